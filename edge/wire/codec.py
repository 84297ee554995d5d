"""Messages to bytes and back: msgpack with an extension for arrays, and hard limits.

A frame is a msgpack array ``[version, code, field, …]`` with the fields of the message's fields. An array
is extension type 1: one byte of dtype, one of dimensions, four (little-endian) a dimension, then the data,
row-major and little-endian. :func:`frame_size` gives ``len(encode(message))`` without encoding.

Decoding never trusts a length: the frame limit is checked before anything is parsed, containers are bounded
to what a message can hold (so nested headers cannot make the parser reserve memory), a dtype outside the
whitelist is refused, and shape × dtype must equal the bytes that are there. Arrays are read-only views of the
frame, not copies.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

import msgpack
import numpy as np
import numpy.typing as npt

from edge.core.errors import CodecError, FrameTooLargeError, LocalProtocolError
from edge.wire.messages import ARRAYS, KINDS, REAL, TEXT, UNSIGNED, AnyMessage, Arrays, fields_of

VERSION = 1
ARRAY_EXTENSION = 1

DTYPES: tuple[npt.DTypeLike, ...] = (
    "<f4",
    "<f8",
    "<f2",
    "|i1",
    "|u1",
    "<i2",
    "<u2",
    "<i4",
    "<u4",
    "<i8",
    "<u8",
)
"""The dtypes that may travel; the position is the code on the wire, so only ever append."""

_DTYPE_OF_CODE = tuple(np.dtype(name) for name in DTYPES)
_CODE_OF_DTYPE = {dtype: code for code, dtype in enumerate(_DTYPE_OF_CODE)}
_CODE_OF_TYPE: dict[type[Any], int] = {message_type: kind.code for message_type, kind in KINDS.items()}
_TYPE_OF_CODE = {code: message_type for message_type, code in _CODE_OF_TYPE.items()}
_FIELDS = {message_type: fields_of(message_type) for message_type in _CODE_OF_TYPE}
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class CodecLimits:
    """What one frame may hold; the defaults fit the largest messages of the shipped methods."""

    frame_bytes: int = 64 * 1024 * 1024
    arrays: int = 64
    dimensions: int = 4
    text_bytes: int = 256


DEFAULT_LIMITS = CodecLimits()


# -- encoding ------------------------------------------------------------------------------------------


def _pack_array(value: object) -> msgpack.ExtType:
    if not isinstance(value, np.ndarray):
        raise LocalProtocolError(f"a message cannot carry a {type(value).__name__}")
    dtype = value.dtype.newbyteorder("<")
    code = _CODE_OF_DTYPE.get(dtype)
    if code is None:
        raise LocalProtocolError(
            f"a message cannot carry an array of dtype {value.dtype}; allowed: {_dtype_names()}"
        )
    data = np.ascontiguousarray(value, dtype=dtype)
    head = bytes((code, value.ndim)) + b"".join(_U32.pack(n) for n in value.shape)
    return msgpack.ExtType(ARRAY_EXTENSION, head + data.tobytes())


def encode(message: AnyMessage, limits: CodecLimits = DEFAULT_LIMITS) -> bytes:
    """Return the frame of ``message``.

    Raises ``LocalProtocolError`` for a value that the message's fields do not allow (our own bug), and
    ``FrameTooLargeError`` above ``limits.frame_bytes``.
    """
    kind_of_message = message.__class__
    fields: list[Any] = [VERSION, _CODE_OF_TYPE[kind_of_message]]
    values: tuple[Any, ...] = message
    for (name, kind), value in zip(_FIELDS[kind_of_message], values, strict=True):
        problem = _field_problem(kind, value, limits)
        if problem is not None:
            raise LocalProtocolError(f"{type(message).__name__}.{name}: {problem}")
        fields.append(float(value) if kind == REAL else value)
    size = frame_size(message)
    if size > limits.frame_bytes:
        raise FrameTooLargeError(
            "frame-too-large",
            f"{type(message).__name__} of {size} bytes is above limits.frame_bytes = {limits.frame_bytes}",
        )
    return cast(bytes, msgpack.packb(fields, default=_pack_array, use_bin_type=True))


# -- sizes without encoding ----------------------------------------------------------------------------


def _unsigned_size(value: int) -> int:
    if value < 0x80:
        return 1
    if value < 0x100:
        return 2
    if value < 0x1_0000:
        return 3
    return 5 if value < 0x1_0000_0000 else 9


def _text_size(value: str) -> int:
    length = len(value) if value.isascii() else len(value.encode())
    if length < 32:
        return 1 + length
    return 2 + length if length < 0x100 else 3 + length


_short_text_size = lru_cache(maxsize=1024)(_text_size)
"""The same texts come again and again: names of runs, tasks and arrays."""


def array_frame_size(array: npt.NDArray[Any]) -> int:
    """Return how many bytes ``array`` takes within a frame: header, shape and data."""
    body = 2 + 4 * array.ndim + array.nbytes
    if body in (1, 2, 4, 8, 16):
        return 2 + body
    if body < 0x100:
        return 3 + body
    return 4 + body if body < 0x1_0000 else 6 + body


def _arrays_size(arrays: Arrays) -> int:
    size = 1 if len(arrays) < 16 else 3
    for name, array in arrays.items():
        size += _short_text_size(name) + array_frame_size(array)
    return size


_SIZERS: dict[str, Callable[[Any], int]] = {
    UNSIGNED: _unsigned_size,
    TEXT: _short_text_size,
    ARRAYS: _arrays_size,
}
_SIZE_PLANS = {
    message_type: (
        tuple(
            (position, _SIZERS[kind])
            for position, (_, kind) in enumerate(fields)
            if position >= 2 and kind != REAL
        ),
        next((position for position, (_, kind) in enumerate(fields) if kind == ARRAYS), None),
    )
    for message_type, fields in _FIELDS.items()
}
"""Of each type of message, the fields behind run and round whose size depends on their value, and which of
them holds arrays."""


@lru_cache(maxsize=256)
def _head_size(message_type: type[AnyMessage], run_id: str, round_number: int) -> int:
    """Return what all messages of a type in a round have in common, bytes.

    Container header, version and code, run and round, and nine bytes for every float64.
    """
    reals = sum(kind == REAL for _, kind in _FIELDS[message_type])
    return 3 + 9 * reals + _text_size(run_id) + _unsigned_size(round_number)


def frame_size(message: AnyMessage) -> int:
    """Return ``len(encode(message))`` in bytes, computed from the fields' values and shapes alone."""
    return measure(message)[0]


def measure(message: AnyMessage) -> tuple[int, int]:
    """Return the frame's length and, of that, the raw data of its arrays, both in bytes."""
    kind = message.__class__
    fields, arrays_at = _SIZE_PLANS[kind]
    size: int = _head_size(kind, message[0], message[1])  # type: ignore[arg-type]  # a class is hashable
    for position, size_of in fields:
        size += size_of(message[position])
    if arrays_at is None:
        return size, 0
    arrays: Arrays = message[arrays_at]  # type: ignore[assignment]  # the plan says so
    payload = 0
    for array in arrays.values():
        payload += array.nbytes
    return size, payload


_UNSIGNED_EDGES: Final = np.array([0x80, 0x100, 0x1_0000, 0x1_0000_0000], dtype=np.int64)
_UNSIGNED_SIZES: Final = np.array([1, 2, 3, 5, 9], dtype=np.int64)


def unsigned_sizes(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many bytes each of ``values`` (>= 0) takes in a frame, int64 [n]."""
    return _UNSIGNED_SIZES[_UNSIGNED_EDGES.searchsorted(values, side="right")]


def array_frame_sizes(dimensions: int, data_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return :func:`array_frame_size` for arrays of equal dimensions, given the bytes of their data."""
    body = 2 + 4 * dimensions + data_bytes
    header = np.where(body < 0x100, 3, np.where(body < 0x1_0000, 4, 6))
    header[(body <= 16) & (body & (body - 1) == 0)] = 2  # MessagePack's fixext: 1, 2, 4, 8 or 16 bytes
    return body + header


# -- decoding ------------------------------------------------------------------------------------------


def _unpack_array(code: int, data: memoryview, limits: CodecLimits) -> npt.NDArray[Any]:
    if code != ARRAY_EXTENSION:
        raise CodecError("garbage", f"extension type {code} is not known")
    if len(data) < 2:
        raise CodecError("garbage", "an array without dtype and dimensions")
    dtype_code, dimensions = data[0], data[1]
    if dtype_code >= len(_DTYPE_OF_CODE):
        raise CodecError("garbage", f"dtype code {dtype_code} is not one of 0…{len(_DTYPE_OF_CODE) - 1}")
    if dimensions > limits.dimensions:
        raise CodecError("garbage", f"{dimensions} dimensions are above the limit of {limits.dimensions}")
    start = 2 + 4 * dimensions
    if len(data) < start:
        raise CodecError("garbage", "an array whose shape is cut off")
    shape = struct.unpack_from(f"<{dimensions}I", data, 2)
    dtype = _DTYPE_OF_CODE[dtype_code]
    expected = math.prod(shape) * dtype.itemsize
    if expected != len(data) - start:
        raise CodecError(
            "garbage", f"shape {shape} of {dtype} needs {expected} bytes, the frame has {len(data) - start}"
        )
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape)


def _dtype_names() -> str:
    return ", ".join(dtype.name for dtype in _DTYPE_OF_CODE)


def _field_problem(kind: str, value: Any, limits: CodecLimits) -> str | None:
    if kind == UNSIGNED:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
            return f"expected a whole number from 0 to 2**64 − 1, got {value!r:.40}"
    elif kind == REAL:
        if isinstance(value, bool) or not isinstance(value, float | int) or not math.isfinite(value):
            return f"expected a finite number, got {value!r:.40}"
    elif kind == TEXT:
        if not isinstance(value, str) or len(value.encode(errors="replace")) > limits.text_bytes:
            return f"expected at most {limits.text_bytes} bytes of text"
    elif kind == ARRAYS:
        if not isinstance(value, dict) or len(value) > limits.arrays:
            return f"expected at most {limits.arrays} named arrays"
        for name, array in value.items():
            if not isinstance(name, str) or len(name.encode(errors="replace")) > limits.text_bytes:
                return "the name of an array must be short text"
            if not isinstance(array, np.ndarray):
                return f"{name!r:.40} is not an array"
    return None


def decode(frame: bytes, limits: CodecLimits = DEFAULT_LIMITS) -> AnyMessage:
    """Return the message in ``frame``; its arrays are read-only views of ``frame``.

    Raises ``FrameTooLargeError`` above ``limits.frame_bytes`` and ``CodecError`` for anything that is not a
    valid frame. No input makes it reserve more memory than a small multiple of the frame.
    """
    if len(frame) > limits.frame_bytes:
        raise FrameTooLargeError(
            "frame-too-large",
            f"a frame of {len(frame)} bytes is above limits.frame_bytes = {limits.frame_bytes}",
        )

    def unpack_extension(code: int, data: bytes) -> npt.NDArray[Any]:
        return _unpack_array(code, memoryview(data), limits)

    try:
        fields = msgpack.unpackb(
            frame,
            ext_hook=unpack_extension,
            raw=False,
            strict_map_key=True,
            max_str_len=limits.text_bytes,
            max_bin_len=0,
            max_array_len=16,
            max_map_len=limits.arrays,
            max_ext_len=limits.frame_bytes,
        )
    except CodecError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException, msgpack.ExtraData, RecursionError) as error:
        raise CodecError("garbage", f"not a frame: {type(error).__name__}: {error!s:.80}") from None
    return _build(fields, limits)


_HEAD_BYTES = 512
"""More than what a frame begins with: container, version, code, run and round."""


def round_of_head(head: bytes | memoryview) -> int | None:
    """Return the round of the message whose frame begins with ``head``; None if that is no frame.

    For whoever passes a frame on without decoding it.
    """
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=_HEAD_BYTES)
    unpacker.feed(head[:_HEAD_BYTES])
    try:
        if unpacker.read_array_header() < 4:
            return None
        version, _, _, round_number = (unpacker.unpack() for _ in range(4))
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return None
    return round_number if version == VERSION and type(round_number) is int else None


def _build(fields: object, limits: CodecLimits) -> AnyMessage:
    if not isinstance(fields, list) or len(fields) < 2:
        raise CodecError("garbage", "a frame is an array of at least version and code")
    version, code = fields[0], fields[1]
    if type(version) is not int or version != VERSION:
        raise CodecError("version", f"frame version {version!r:.20}; this side speaks {VERSION}")
    message_type = _TYPE_OF_CODE.get(code) if type(code) is int else None
    if message_type is None:
        raise CodecError("garbage", f"message code {code!r:.20} is not known")
    values = fields[2:]
    expected = _FIELDS[message_type]
    if len(values) != len(expected):
        raise CodecError(
            "garbage", f"{message_type.__name__} has {len(expected)} fields, the frame has {len(values)}"
        )
    for (name, kind), value in zip(expected, values, strict=True):
        problem = _field_problem(kind, value, limits)
        if problem is not None:
            raise CodecError("garbage", f"{message_type.__name__}.{name}: {problem}")
    return cast(AnyMessage, message_type(*values))
