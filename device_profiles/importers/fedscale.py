"""FedScale's availability trace: the sessions of a hundred thousand clients.

Lai et al. 2022, "FedScale: Benchmarking Model and System Performance of Federated Learning at Scale"
(ICML), section 3.2. The file is a pickle of plain dicts, lists and numbers, and nothing else is read from it.
The trace is not part of recfleet; its licence is its own.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from device_profiles.errors import TraceError, UnsafePickleError
from device_profiles.traces import AvailabilityTrace

MAX_PICKLE_BYTES: Final = 128 * 2**20
MAX_OPERATIONS: Final = 30_000_000
_PLAIN: Final = frozenset(
    {"PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE"}
    | {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "SHORT_BINSTRING", "BINSTRING"}
    | {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
    | {"EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE"}
    | {"EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"}
    | {"GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
)
"""Opcodes of dicts, lists, tuples, text and numbers, as CPython's ``pickletools`` documents them."""
_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_WHOLE_NUMBERS: Final = frozenset({"INT", "LONG", "LONG1", "LONG4"})


def read_fedscale_availability(path: Path) -> AvailabilityTrace:
    """Read ``client_behave_trace``: client id -> {active: [s], inactive: [s], finish_time: s, …}.

    A client is available from each ``active`` to the ``inactive`` at the same index, and everything repeats
    after ``finish_time``. Other keys (``duration``, ``model``) are not used. Sessions that touch or overlap
    are joined, those without length are left out.

    Raises
    ------
    UnsafePickleError : the file is anything but plain data.
    TraceError : it cannot be read, or an entry is not as described; the message names the client.
    """
    ids: list[int] = []
    sessions: list[list[tuple[float, float]]] = []
    periods: list[float] = []
    for client, entry in sorted(_clients(path), key=lambda pair: pair[0]):
        where = f"{path}: client {client}"
        period = _positive(where, entry, "finish_time")
        starts, ends = _times(where, entry, "active"), _times(where, entry, "inactive")
        if len(starts) != len(ends):
            raise TraceError(f"{where}: {len(starts)} times in 'active', but {len(ends)} in 'inactive'")
        for start, end in zip(starts, ends, strict=True):
            if not 0 <= start <= end <= period:
                lies = f"does not lie in 0 to {period:g} s (finish_time)"
                raise TraceError(f"{where}: a session from {start:g} to {end:g} s {lies}")
        ids.append(client)
        sessions.append(list(zip(starts, ends, strict=True)))
        periods.append(period)
    return AvailabilityTrace.from_sessions(ids, sessions, periods)


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles without looking up any name."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse a name, whatever it is."""
        raise UnsafePickleError(f"it asks for {module_name}.{global_name}")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        """Refuse an object that is kept elsewhere."""
        raise UnsafePickleError("it asks for an object from elsewhere")


def load_plain_pickle(data: bytes) -> object:
    """Return the dicts, lists, tuples, text and numbers in a pickle.

    Every opcode is looked at before the first is run: those that plain data does not need, whole numbers
    beyond 64 bits (as keys they can be made to collide) and memo indices that would cost memory are refused.

    Raises
    ------
    UnsafePickleError : anything but plain data, damaged input, or more than ``MAX_PICKLE_BYTES`` bytes or
        ``MAX_OPERATIONS`` opcodes; the message gives the byte offset where there is one.
    """
    if len(data) > MAX_PICKLE_BYTES:
        raise UnsafePickleError(f"larger than the limit of {MAX_PICKLE_BYTES} bytes")
    try:
        _check_opcodes(data)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except UnsafePickleError:
        raise
    except Exception as error:  # whatever a damaged program makes the unpickler raise
        raise UnsafePickleError(f"damaged or cut short ({type(error).__name__}: {error})") from None


def _check_opcodes(data: bytes) -> None:
    for count, (opcode, value, position) in enumerate(pickletools.genops(data)):
        argument: Any = value
        if opcode.name not in _PLAIN:
            asked = "" if argument is None else f" {str(argument).replace(' ', '.')[:80]}"
            what = f"it asks for {opcode.name}{asked}"
            raise UnsafePickleError(f"byte {position}: {what}; only plain data is read")
        if opcode.name in _WHOLE_NUMBERS and abs(argument) >= 2**64:
            raise UnsafePickleError(f"byte {position}: a whole number of more than 64 bits")
        if opcode.name in _PUTS and argument > count:
            raise UnsafePickleError(f"byte {position}: memo index {argument} after {count} opcodes")
        if count >= MAX_OPERATIONS:
            raise UnsafePickleError(f"byte {position}: more than {MAX_OPERATIONS} opcodes")


def _clients(path: Path) -> Iterator[tuple[int, dict[object, object]]]:
    """Yield (id, entry) for every client, in the order of the file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PICKLE_BYTES + 1)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        content = load_plain_pickle(data)
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{path}: {error}") from None
    if not isinstance(content, dict) or not content:
        raise TraceError(f"{path}: expected a dict from client id to its entry, found {_kind(content)}")
    seen: set[int] = set()
    for key, entry in content.items():
        client = _client_id(path, key)
        if client in seen:
            raise TraceError(f"{path}: client {client} appears as a number and as text")
        seen.add(client)
        if not isinstance(entry, dict):
            raise TraceError(f"{path}: client {client}: expected a dict, found {_kind(entry)}")
        yield client, entry


def _client_id(path: Path, key: object) -> int:
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < 2**63:
        return key
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 18:
        return int(key)
    raise TraceError(f"{path}: {str(key)[:40]!r} is not a client id; expected a whole number, 0 or more")


def _number(where: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TraceError(f"{where}: {name}: expected a finite number, found {_kind(value)}")
    return float(value)


def _positive(where: str, entry: dict[object, object], name: str) -> float:
    if name not in entry:
        raise TraceError(f"{where}: {name!r} is missing")
    value = _number(where, name, entry[name])
    if value <= 0:
        raise TraceError(f"{where}: {name}: must be above zero, not {value:g}")
    return value


def _times(where: str, entry: dict[object, object], name: str) -> list[float]:
    if name not in entry:
        raise TraceError(f"{where}: {name!r} is missing")
    values = entry[name]
    if not isinstance(values, list | tuple):
        raise TraceError(f"{where}: {name}: expected a list of times in seconds, found {_kind(values)}")
    return [_number(where, name, value) for value in values]


def _kind(value: object) -> str:
    """Return what a value is, for a message; the value itself only if that is short."""
    name = type(value).__name__
    return f"{name} {str(value)[:40]!r}" if isinstance(value, int | float | str) else name
