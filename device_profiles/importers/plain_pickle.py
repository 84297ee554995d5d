"""Reading pickles of plain data without unpickling them.

A pickle is a program. Python's own unpickler runs it, and a filter on the names it may look up still leaves
opcodes that import, set attributes or allocate at will. This reader interprets the opcodes itself: it never
imports, never calls what the file names, and refuses every opcode that plain data does not need. What it
makes: dict (keys text, whole numbers, True/False), list, tuple, set, frozenset, str, bytes, int of at most 64
bits, float, bool, None, and numpy arrays of bool, int, uint and float, which it builds from their bytes;
numpy scalars become Python numbers.

Opcodes as documented in CPython's ``pickletools`` (protocols 0 to 5).
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable
from typing import Any

from device_profiles.errors import UnsafePickleError
from device_profiles.importers.pickle_machine import PickleMachine
from device_profiles.importers.plain_values import as_key, checked_int, refuse_deep

MAX_PICKLE_BYTES = 128 * 2**20
MAX_DEPTH = 16

_INT_TEXT = re.compile(rb"-?[0-9]{1,20}L?")


def load_plain_pickle(
    data: bytes, *, max_bytes: int = MAX_PICKLE_BYTES, max_depth: int = MAX_DEPTH
) -> object:
    """Return the plain data in a pickle.

    Parameters
    ----------
    data : the whole file; at most ``MAX_OPERATIONS`` opcodes, which bounds the memory it can ask for.
    max_bytes : larger input is refused unread.
    max_depth : containers may nest this deep.

    Raises
    ------
    UnsafePickleError : anything but plain data, damaged input, or a limit; the message gives the byte offset.
    """
    if len(data) > max_bytes:
        raise UnsafePickleError(f"{len(data)} bytes is above the limit of {max_bytes} (max_bytes)")
    machine = PickleMachine(data)
    try:
        value = machine.run(_HANDLERS)
    except UnsafePickleError as error:
        raise UnsafePickleError(f"byte {machine.at}: {error}") from None
    except (IndexError, struct.error):
        raise UnsafePickleError(f"byte {machine.at}: the pickle is damaged or cut short") from None
    refuse_deep(value, max_depth)
    return value


def _number_of(format_: str) -> Callable[[PickleMachine], None]:
    """Return the handler of a number of fixed size; most of a trace is made of these, so they are short."""
    packed = struct.Struct(format_)

    def push(machine: PickleMachine) -> None:
        machine.stack.append(packed.unpack_from(machine.data, machine.position)[0])
        machine.position += packed.size

    return push


def _get_short(machine: PickleMachine) -> None:
    index = machine.data[machine.position]
    machine.position += 1
    machine.get(index)


def _long(machine: PickleMachine, size: int) -> int:
    if size > 9:
        raise UnsafePickleError("a whole number of more than 64 bits")
    return checked_int(int.from_bytes(machine.take(size), "little", signed=True))


def _int_line(machine: PickleMachine) -> int | bool:
    raw = machine.line()
    if raw in (b"00", b"01"):  # how protocol 0 writes False and True
        return raw == b"01"
    if not _INT_TEXT.fullmatch(raw):
        raise UnsafePickleError("a whole number that is not one")
    return checked_int(int(raw.rstrip(b"L")))


def _float_line(machine: PickleMachine) -> float:
    try:
        return float(machine.line())
    except ValueError:
        raise UnsafePickleError("a number that is not one") from None


def _quoted_line(machine: PickleMachine) -> str:
    raw = machine.line()
    if len(raw) < 2 or raw[:1] not in b"'\"" or raw[:1] != raw[-1:] or b"\\" in raw:
        raise UnsafePickleError("old-style text with escapes; write the pickle with protocol 2 or later")
    return machine.text(raw[1:-1])


def _unicode_line(machine: PickleMachine) -> str:
    raw = machine.line()
    try:
        return raw.decode("raw-unicode-escape")
    except UnicodeDecodeError:
        raise UnsafePickleError("text that cannot be decoded") from None


def _stack_global(machine: PickleMachine) -> None:
    name, module = machine.pop(), machine.pop()
    if type(name) is not str or type(module) is not str:
        raise UnsafePickleError("a name that is not text")
    machine.global_name(module, name)


def _put_line(machine: PickleMachine) -> None:
    machine.put(_memo_index(machine))


def _memo_index(machine: PickleMachine) -> int:
    raw = machine.line()
    if not (raw.isdigit() and len(raw) <= 10):
        raise UnsafePickleError("a memo index that is not a number")
    return int(raw)


def _protocol(machine: PickleMachine) -> None:
    protocol = machine.take(1)[0]
    if protocol > 5:
        raise UnsafePickleError(f"pickle protocol {protocol} is not known; write protocol 5 or earlier")


def _append(machine: PickleMachine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _set_item(machine: PickleMachine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.top(dict)[as_key(key)] = value


def _appends(machine: PickleMachine) -> None:
    items = machine.pop_to_mark()
    machine.top(list).extend(items)


def _dict(machine: PickleMachine) -> None:
    made: dict[Any, Any] = {}
    machine.fill(made, machine.pop_to_mark())
    machine.push(made)


_HANDLERS: dict[int, Callable[[PickleMachine], None]] = {
    code[0]: handler
    for code, handler in (
        (pickle.PROTO, _protocol),
        (pickle.FRAME, lambda m: void(m.take(8))),
        (pickle.MARK, lambda m: m.mark()),
        (pickle.POP, lambda m: m.drop()),
        (pickle.POP_MARK, lambda m: void(m.pop_to_mark())),
        (pickle.NONE, lambda m: m.push(None)),
        (pickle.NEWTRUE, lambda m: m.push(True)),
        (pickle.NEWFALSE, lambda m: m.push(False)),
        (pickle.INT, lambda m: m.push(_int_line(m))),
        (pickle.BININT, _number_of("<i")),
        (pickle.BININT1, _number_of("<B")),
        (pickle.BININT2, _number_of("<H")),
        (pickle.LONG, lambda m: m.push(_int_line(m))),
        (pickle.LONG1, lambda m: m.push(_long(m, m.take(1)[0]))),
        (pickle.LONG4, lambda m: m.push(_long(m, m.unpack("<I")))),
        (pickle.FLOAT, lambda m: m.push(_float_line(m))),
        (pickle.BINFLOAT, _number_of(">d")),
        (pickle.STRING, lambda m: m.push(_quoted_line(m))),
        (pickle.SHORT_BINSTRING, lambda m: m.push(m.text(m.take(m.take(1)[0])))),
        (pickle.BINSTRING, lambda m: m.push(m.text(m.take(m.unpack("<i"))))),
        (pickle.UNICODE, lambda m: m.push(_unicode_line(m))),
        (pickle.SHORT_BINUNICODE, lambda m: m.push(m.text(m.take(m.take(1)[0])))),
        (pickle.BINUNICODE, lambda m: m.push(m.text(m.take(m.unpack("<I"))))),
        (pickle.BINUNICODE8, lambda m: m.push(m.text(m.take(m.unpack("<Q"))))),
        (pickle.SHORT_BINBYTES, lambda m: m.push(m.take(m.take(1)[0]))),
        (pickle.BINBYTES, lambda m: m.push(m.take(m.unpack("<I")))),
        (pickle.BINBYTES8, lambda m: m.push(m.take(m.unpack("<Q")))),
        (pickle.BYTEARRAY8, lambda m: m.push(m.take(m.unpack("<Q")))),
        (pickle.EMPTY_LIST, lambda m: m.push([])),
        (pickle.APPEND, _append),
        (pickle.APPENDS, _appends),
        (pickle.LIST, lambda m: m.push(m.pop_to_mark())),
        (pickle.EMPTY_TUPLE, lambda m: m.push(())),
        (pickle.TUPLE1, lambda m: m.tuple_of(1)),
        (pickle.TUPLE2, lambda m: m.tuple_of(2)),
        (pickle.TUPLE3, lambda m: m.tuple_of(3)),
        (pickle.TUPLE, lambda m: m.push(tuple(m.pop_to_mark()))),
        (pickle.EMPTY_DICT, lambda m: m.push({})),
        (pickle.DICT, _dict),
        (pickle.SETITEM, _set_item),
        (pickle.SETITEMS, lambda m: m.set_items(m.pop_to_mark())),
        (pickle.EMPTY_SET, lambda m: m.push(set())),
        (pickle.ADDITEMS, lambda m: m.add_items(m.pop_to_mark())),
        (pickle.FROZENSET, lambda m: m.push(frozenset([as_key(item) for item in m.pop_to_mark()]))),
        (pickle.GET, lambda m: m.get(_memo_index(m))),
        (pickle.BINGET, _get_short),
        (pickle.LONG_BINGET, lambda m: m.get(m.unpack("<I"))),
        (pickle.PUT, _put_line),
        (pickle.BINPUT, lambda m: m.put(m.take(1)[0])),
        (pickle.LONG_BINPUT, lambda m: m.put(m.unpack("<I"))),
        (pickle.MEMOIZE, lambda m: m.put(len(m.memo))),
        (pickle.GLOBAL, lambda m: m.global_name(m.text(m.line()), m.text(m.line()))),
        (pickle.STACK_GLOBAL, _stack_global),
        (pickle.REDUCE, lambda m: m.reduce()),
        (pickle.BUILD, lambda m: m.build()),
    )
}


def void(_: object) -> None:
    """Drop a value where a handler returns nothing."""
