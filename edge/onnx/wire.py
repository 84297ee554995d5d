"""Reading protobuf's wire format, strictly and without the package that the format belongs to.

Only what ONNX uses is read: varints, 32 and 64 bit values, and runs of bytes. Groups, over-long varints and
lengths beyond the end are refused, so that what is checked here is what any other reader will see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_LONGEST_VARINT: Final = 10


class WireError(ValueError):
    """Bytes that are no protobuf message, or not one of the expected kind."""


class Field(NamedTuple):
    """One field: its number, wire type, value of a varint (else 0), and where its contents lie."""

    number: int
    wire_type: int
    value: int
    start: int
    end: int


class Allowed(NamedTuple):
    """What may stand in a message: a name for errors, the wire type, and whether it may be repeated."""

    name: str
    wire_type: int
    repeated: bool = False


def fields(contents: memoryview, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``contents[start:end]``.

    Raises
    ------
    WireError
        Naming the offset of the first byte that cannot be read.
    """
    at = start
    while at < end:
        key, at = varint(contents, at, end)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise WireError(f"field number 0 before byte {at}")
        value = 0
        begin = at
        if wire_type == VARINT:
            value, at = varint(contents, at, end)
        elif wire_type == BYTES:
            length, begin = varint(contents, at, end)
            at = begin + length
        elif wire_type in (FIXED64, FIXED32):
            at += 8 if wire_type == FIXED64 else 4
        else:
            raise WireError(f"wire type {wire_type} before byte {at}")
        if at > end:
            raise WireError(f"truncated: the field at byte {begin} ends {at - end} bytes after its message")
        yield Field(number, wire_type, value, begin, at)


def checked_fields(
    contents: memoryview, where: tuple[int, int], message: str, allowed: Mapping[int, Allowed]
) -> Iterator[Field]:
    """Yield the fields of a message, all of which are in ``allowed``.

    A second value of a field that is not repeated is refused: readers differ in whether they take the last or
    merge them. Packed lists of numbers are passed on as bytes.

    Raises
    ------
    WireError
        Naming ``message`` and the field.
    """
    seen: set[int] = set()
    for field in fields(contents, *where):
        known = allowed.get(field.number)
        if known is None:
            raise WireError(f"{message} has field {field.number}, which no recommender needs")
        packed = known.repeated and field.wire_type == BYTES
        if field.wire_type != known.wire_type and not packed:
            raise WireError(f"{message}.{known.name} has wire type {field.wire_type}, not {known.wire_type}")
        if not known.repeated and field.number in seen:
            raise WireError(f"{message} has {known.name} twice")
        seen.add(field.number)
        yield field


def text(contents: memoryview, field: Field) -> str:
    """Return the text in a field; ``WireError`` if it is not UTF-8."""
    try:
        return bytes(contents[field.start : field.end]).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"no UTF-8 text at byte {field.start + error.start}") from error


def varint(contents: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the number at ``at`` and where it ends; ``WireError`` if it does not end before ``end``."""
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= end:
            raise WireError(f"truncated in the number at byte {at}")
        byte = contents[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + place + 1
    raise WireError(f"a number of more than 64 bits at byte {at}")
