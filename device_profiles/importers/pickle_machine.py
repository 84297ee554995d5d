"""The stack machine of a pickle, restricted to plain data; ``plain_pickle`` gives it its opcodes."""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from device_profiles.errors import UnsafePickleError
from device_profiles.importers.plain_values import FINISH, REBUILD, Global, PendingArray, as_key

MAX_OPERATIONS = 30_000_000
MAX_MARKS = 64


class PickleMachine:
    """The stack machine of a pickle, restricted to opcodes that make plain data."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0  # offset of the opcode being run, for messages
        self.position = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under each open mark
        self.memo: dict[int, Any] = {}
        # Every use of the same memoised bytes makes another array; together they stay within this.
        self.array_bytes_left = 2 * len(data) + 4096

    def run(self, handlers: Mapping[int, Callable[[PickleMachine], None]]) -> object:
        """Run the program; ``handlers`` by opcode, every other opcode is refused."""
        stop = ord(pickle.STOP)
        data = self.data
        for _ in range(MAX_OPERATIONS):
            self.at = self.position
            code = data[self.position]
            self.position += 1
            if code == stop:
                return self._result()
            handler = handlers.get(code)
            if handler is None:
                raise UnsafePickleError(_refusal(code))
            handler(self)
        raise UnsafePickleError(f"more than {MAX_OPERATIONS} operations (MAX_OPERATIONS)")

    def _result(self) -> object:
        value = self.pop()
        if self.stack or self.below:
            raise UnsafePickleError("values are left over at the end")
        if self.position != len(self.data):
            raise UnsafePickleError("bytes follow the end of the pickle")
        return value

    # Operands and stack

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes of the program."""
        if size < 0 or self.position + size > len(self.data):
            raise UnsafePickleError("the pickle is damaged or cut short")
        piece = self.data[self.position : self.position + size]
        self.position += size
        return piece

    def line(self) -> bytes:
        """Return the program up to the next line break, which is skipped."""
        end = self.data.find(b"\n", self.position, self.position + 1000)
        if end < 0:
            raise UnsafePickleError("a line of text is cut short or longer than 1000 bytes")
        piece = self.data[self.position : end]
        self.position = end + 1
        return piece

    def unpack(self, format_: str) -> Any:
        """Return the next bytes as the one number that ``format_`` of ``struct`` describes."""
        return struct.unpack(format_, self.take(struct.calcsize(format_)))[0]

    def push(self, value: object) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Take the top value off the stack; IndexError when there is none."""
        return self.stack.pop()

    def top(self, wanted: type) -> Any:
        """Return the top value, which must be a container of type ``wanted``."""
        value = self.stack[-1]
        if type(value) is not wanted:
            raise UnsafePickleError(f"expected a {wanted.__name__} to add to")
        return value

    def mark(self) -> None:
        """Start a new stack on top of the one so far, until ``pop_to_mark``."""
        if len(self.below) >= MAX_MARKS:
            raise UnsafePickleError(f"more than {MAX_MARKS} marks inside each other (MAX_MARKS)")
        self.below.append(self.stack)
        self.stack = []

    def pop_to_mark(self) -> list[Any]:
        """Take everything since the last mark, and the mark."""
        if not self.below:
            raise UnsafePickleError("no mark on the stack")
        items = self.stack
        self.stack = self.below.pop()
        return items

    def drop(self) -> None:
        """Take off the top value, or the mark where that is on top."""
        if self.stack:
            self.stack.pop()
        else:
            self.pop_to_mark()

    def text(self, raw: bytes) -> str:
        """Return UTF-8 bytes as text."""
        try:
            # Pickles may hold lone surrogates; text with one is not worth accepting.
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise UnsafePickleError("text that is not UTF-8") from None

    # Memo

    def put(self, index: int) -> None:
        """Remember the top value under ``index``."""
        value = self.stack[-1]
        self.memo[index] = value
        if isinstance(value, PendingArray):
            value.memo_indices.append(index)

    def get(self, index: int) -> None:
        """Put the value remembered under ``index`` on the stack."""
        try:
            self.stack.append(self.memo[index])
        except KeyError:
            raise UnsafePickleError("a reference to nothing") from None

    # Containers

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values, in turn, to the dict on top."""
        self.fill(self.top(dict), items)

    @staticmethod
    def fill(target: dict[Any, Any], items: list[Any]) -> None:
        """Add keys and values, in turn, to ``target``."""
        if len(items) % 2:
            raise UnsafePickleError("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[as_key(key)] = value

    def add_items(self, items: list[Any]) -> None:
        """Add items to the set on top."""
        self.top(set).update([as_key(item) for item in items])

    def tuple_of(self, size: int) -> None:
        """Replace the top ``size`` values by a tuple of them."""
        items = tuple([self.pop() for _ in range(size)][::-1])
        self.push(items)

    # Objects: the few that numpy needs, rebuilt here rather than called

    def global_name(self, module: str, name: str) -> None:
        """Put a known constructor on the stack, by name; nothing is imported."""
        if (module, name) not in REBUILD:
            shown = f"{module}.{name}"[:80]
            raise UnsafePickleError(f"it asks for {shown!r}; only plain data and numpy arrays are read")
        self.push(Global(module, name))

    def reduce(self) -> None:
        """Apply the constructor under the arguments on top."""
        arguments, target = self.pop(), self.pop()
        if type(target) is not Global or type(arguments) is not tuple:
            raise UnsafePickleError("it calls something that is not a known constructor")
        self.push(self.counted(REBUILD[target.module, target.name](arguments)))

    def build(self) -> None:
        """Complete the dtype or array under the state on top."""
        state, target = self.pop(), self.pop()
        finish = FINISH.get(type(target))
        if finish is None or type(state) is not tuple:
            raise UnsafePickleError("it sets the state of something that is not a numpy array")
        value = self.counted(finish(target, state))
        if isinstance(target, PendingArray):
            for index in target.memo_indices:
                self.memo[index] = value
        self.push(value)

    def counted(self, value: object) -> object:
        """Return ``value``, after counting the bytes of an array against the limit."""
        if isinstance(value, np.ndarray):
            self.array_bytes_left -= value.nbytes
            if self.array_bytes_left < 0:
                raise UnsafePickleError("its arrays together are larger than the file that describes them")
        return value


def _refusal(code: int) -> str:
    name = next((opcode.name for opcode in pickletools.opcodes if ord(opcode.code) == code), None)
    if name is None:
        return f"0x{code:02x} is not a pickle opcode"
    return f"opcode {name} is refused; only plain data and numpy arrays are read"
