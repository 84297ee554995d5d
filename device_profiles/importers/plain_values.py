"""The values that a pickle of plain data may hold, and how numpy's are rebuilt from their bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from device_profiles.errors import UnsafePickleError

_DTYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})
_MAX_DIMENSIONS = 8
_CONTAINERS = (list, tuple, dict, set, frozenset)
_LEAVES = (str, bytes, int, float, bool, type(None), np.ndarray)


@dataclass(frozen=True, slots=True)
class Global:
    """A name that a pickle looked up, one of ``REBUILD``; only ever applied here, never imported."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class PlainDtype:
    """A dtype of the whitelist, ``code`` such as ``f8`` and ``order`` such as ``<``."""

    code: str
    order: str = "="

    def make(self) -> np.dtype[Any]:
        """Return numpy's own dtype."""
        return np.dtype(("=" if self.order == "|" else self.order) + self.code)


@dataclass(slots=True)
class PendingDtype:
    """A dtype whose byte order comes in a later step of the pickle."""

    code: str
    order: str = "="

    def plain(self) -> PlainDtype:
        """Return it as it stands."""
        return PlainDtype(self.code, self.order)


@dataclass(slots=True, eq=False)
class PendingArray:
    """An array whose contents come in a later step of the pickle, and the memo entries that wait for it."""

    memo_indices: list[int] = field(default_factory=list)


def checked_int(value: int) -> int:
    """Return ``value``; refuse one beyond 64 bits (larger ones can be made to collide as dict keys)."""
    if not -(2**63) <= value < 2**64:
        raise UnsafePickleError("a whole number of more than 64 bits")
    return value


def as_key(value: object) -> str | int:
    """Return a dict key or set item; only text and whole numbers can be one."""
    if type(value) is str or type(value) is int or type(value) is bool:
        return value
    raise UnsafePickleError(
        f"a key or set item of type {type(value).__name__}; only text and whole numbers can be"
    )


def refuse_deep(root: object, max_depth: int) -> None:
    """Check the finished value, without recursion, each shared part once.

    Raises
    ------
    UnsafePickleError : nested deeper than ``max_depth``, containing itself, or holding an unfinished object.
    """
    heights: dict[int, int] = {}
    open_: set[int] = set()
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        value, done = stack.pop()
        children = value.values() if type(value) is dict else value
        key = id(value)
        if type(value) not in _CONTAINERS:
            if type(value) not in _LEAVES:
                raise UnsafePickleError("an object is left unfinished")
        elif done:
            open_.discard(key)
            inner = [heights[id(child)] for child in children if type(child) in _CONTAINERS]
            heights[key] = 1 + max(inner, default=0)
            if heights[key] > max_depth:
                raise UnsafePickleError(f"nested deeper than {max_depth} levels (max_depth)")
        elif key in open_:
            raise UnsafePickleError("a container that contains itself")
        elif key not in heights:
            open_.add(key)
            stack.append((value, True))
            # Leaves in bulk are the common case; only what may nest, or be refused, goes on the stack.
            stack.extend(
                (child, False)
                for child in children
                if type(child) not in _LEAVES and id(child) not in heights
            )


def _word(value: object) -> str:
    """Return a piece of text, and "" for anything else: comparing to an array, say, gives another array."""
    return value if type(value) is str else ""


def _dtype_of(value: object) -> np.dtype[Any]:
    if isinstance(value, PendingDtype):
        return value.plain().make()
    raise UnsafePickleError("an array without a dtype")


def _array(raw: object, dtype: object, shape: object, order: str) -> np.ndarray[Any, Any]:
    made = _dtype_of(dtype)
    if type(raw) is not bytes:
        raise UnsafePickleError("the contents of an array are not bytes")
    if (
        type(shape) is not tuple
        or len(shape) > _MAX_DIMENSIONS
        or any(type(size) is not int or not 0 <= size <= 2**40 for size in shape)
    ):
        raise UnsafePickleError("the shape of an array is not a short tuple of sizes")
    if math.prod(shape) * made.itemsize != len(raw):
        raise UnsafePickleError("the shape of an array does not fit its bytes")
    flat = np.frombuffer(raw, dtype=made)
    if made.kind == "b" and np.any(flat.view(np.uint8) > 1):
        raise UnsafePickleError("an array of True and False holds other bytes")
    shaped = flat.reshape(shape, order="F" if order == "F" else "C")
    return shaped.astype(made.newbyteorder("="))


def _rebuild_dtype(arguments: tuple[Any, ...]) -> PendingDtype:
    if not arguments or _word(arguments[0]) not in _DTYPES:
        raise UnsafePickleError("a dtype other than bool, int, uint or float")
    return PendingDtype(arguments[0])


def _finish_dtype(target: PendingDtype, state: tuple[Any, ...]) -> PendingDtype:
    # (version, order, subdtype, names, fields, itemsize, alignment, flags[, metadata]), as numpy writes it
    if (
        len(state) < 5
        or _word(state[1]) not in ("<", ">", "|", "=")
        or any(part is not None for part in state[2:5])
    ):
        raise UnsafePickleError("a dtype with fields or an unknown byte order")
    target.order = state[1]
    return target


def _rebuild_array(arguments: tuple[Any, ...]) -> PendingArray:
    if not arguments or type(arguments[0]) is not Global or arguments[0] != Global("numpy", "ndarray"):
        raise UnsafePickleError("an array of a type other than numpy.ndarray")
    return PendingArray()


def _finish_array(_: PendingArray, state: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    if len(state) != 5:
        raise UnsafePickleError("an array in an unknown format")
    _version, shape, dtype, fortran, raw = state
    return _array(raw, dtype, shape, "F" if fortran is True else "C")


def _rebuild_from_buffer(arguments: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    if len(arguments) != 4:
        raise UnsafePickleError("an array in an unknown format")
    raw, dtype, shape, order = arguments
    return _array(raw, dtype, shape, "F" if _word(order) == "F" else "C")


def _rebuild_scalar(arguments: tuple[Any, ...]) -> float | int | bool:
    if len(arguments) != 2:
        raise UnsafePickleError("a numpy number in an unknown format")
    value: float | int | bool = _array(arguments[1], arguments[0], (), "C").item()
    return value


def _rebuild_encoded(arguments: tuple[Any, ...]) -> bytes:
    # How protocols 0 to 2 write bytes: text to be encoded as Latin-1.
    if (
        len(arguments) != 2
        or type(arguments[0]) is not str
        or _word(arguments[1]) not in ("latin1", "latin-1")
    ):
        raise UnsafePickleError("text to be encoded in another way than Latin-1")
    try:
        return arguments[0].encode("latin-1")
    except UnicodeEncodeError:
        raise UnsafePickleError("text that Latin-1 cannot encode") from None


def _rebuild_bytes(arguments: tuple[Any, ...]) -> bytes:
    if arguments == ():
        return b""
    if len(arguments) == 1 and type(arguments[0]) is bytes:
        return arguments[0]
    return _rebuild_encoded(arguments)


def _members(arguments: tuple[Any, ...]) -> list[str | int]:
    if len(arguments) != 1 or type(arguments[0]) is not list:
        raise UnsafePickleError("a set made from something other than a list")
    return [as_key(item) for item in arguments[0]]


def _rebuild_set(arguments: tuple[Any, ...]) -> set[str | int]:
    return set(_members(arguments))


def _rebuild_frozenset(arguments: tuple[Any, ...]) -> frozenset[str | int]:
    return frozenset(_members(arguments))


def _never(_: tuple[Any, ...]) -> object:
    raise UnsafePickleError("numpy.ndarray is called directly")


REBUILD: dict[tuple[str, str], Callable[[tuple[Any, ...]], object]] = {
    ("numpy", "dtype"): _rebuild_dtype,
    ("numpy", "ndarray"): _never,
    **{(f"numpy.{core}.multiarray", "scalar"): _rebuild_scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _rebuild_array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _rebuild_from_buffer for core in ("core", "_core")},
    ("_codecs", "encode"): _rebuild_encoded,
    **{(builtins, "set"): _rebuild_set for builtins in ("builtins", "__builtin__")},
    **{(builtins, "frozenset"): _rebuild_frozenset for builtins in ("builtins", "__builtin__")},
    **{(builtins, "bytes"): _rebuild_bytes for builtins in ("builtins", "__builtin__")},
    **{(builtins, "bytearray"): _rebuild_bytes for builtins in ("builtins", "__builtin__")},
}
"""Names a pickle may look up -> what is done here instead of calling them."""

FINISH: dict[type, Callable[[Any, tuple[Any, ...]], object]] = {
    PendingDtype: _finish_dtype,
    PendingArray: _finish_array,
}
"""Unfinished values -> what completes them from their state."""
