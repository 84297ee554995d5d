"""A device's vectors to the one vector that is encrypted, and back; ciphertexts as a message's arrays.

The parts lie one after the other in the order of the configuration, real ones in steps of clip / ``levels``.
Behind them come the weight and a one, so that the sum says the total weight and over how many devices it was
made. Every element is a whole number in float64, exact far below 2**53.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import (
    MalformedMessageError,
    NotFiniteError,
    SumMismatchError,
    ValueRangeError,
    WeightError,
    WrongDtypeError,
    WrongLengthError,
)
from edge.homomorphic.config import CIPHERTEXT_BYTES, ERROR_MAX, CkksConfig, ImpreciseSumError
from edge.secagg.checks import OCTETS, expect_arrays, octets, read
from edge.secagg.config import RealPart
from edge.secagg.inputs import Sums
from edge.wire.messages import Arrays

Vector = npt.NDArray[np.float64]
"""What is encrypted and decrypted: whole numbers, float64[L]."""
_LENGTHS = np.dtype("<i8")


class Encoded(NamedTuple):
    """A device's input.

    ``vector`` is float64[L]; ``clipped`` counts the values beyond the clip, ``nonzero`` the real values other
    than zero.
    """

    vector: Vector
    clipped: int
    nonzero: int


def encode_input(config: CkksConfig, values: Mapping[str, npt.NDArray[Any]], weight: int) -> Encoded:
    """Return a device's input, and counts of its values.

    Parameters
    ----------
    config : the round's configuration.
    values : an array for each of its parts, [length]: float32 or float64 for real ones, signed integers for
        counts.
    weight : a whole number from 0 to ``weight_max``; real parts are multiplied by it.

    Raises ``WeightError``, ``NotFiniteError``, ``ValueRangeError``, ``WrongDtypeError``,
    ``WrongLengthError``, and ``MalformedMessageError`` for missing or unknown parts.
    """
    names = {part.name for part in config.parts}
    if values.keys() != names:
        raise MalformedMessageError(f"the input has the parts {sorted(values)!s:.80}, not {sorted(names)}")
    if isinstance(weight, bool) or not isinstance(weight, int) or not 0 <= weight <= config.weight_max:
        raise WeightError(f"the weight {weight!r:.40} is not a whole number from 0 to {config.weight_max}")
    vector = np.empty(config.length, dtype=np.float64)
    clipped = nonzero = 0
    start = 0
    for part in config.parts:
        value = values[part.name]
        if value.shape != (part.length,):
            raise WrongLengthError(f"part {part.name!r} has shape {value.shape}, not ({part.length},)")
        room = vector[start : start + part.length]
        if isinstance(part, RealPart):
            clipped += _encode_reals(part, value, weight * config.levels, room)
            nonzero += int(np.count_nonzero(value))
        else:
            if value.dtype.kind != "i":
                raise WrongDtypeError(f"part {part.name!r} holds signed integers, not {value.dtype}")
            if int(value.max()) > part.value_max or int(value.min()) < -part.value_max:
                raise ValueRangeError(
                    f"part {part.name!r} has values from {value.min()} to {value.max()}, beyond "
                    f"{part.value_max}, the largest planned for"
                )
            room[:] = value
        start += part.length
    vector[start:] = (weight, 1)
    return Encoded(vector, clipped, nonzero)


def _encode_reals(part: RealPart, values: npt.NDArray[Any], clip_steps: int, room: Vector) -> int:
    """Write ``values`` to ``room`` so that the clip is ``clip_steps``; return how many were clipped."""
    if values.dtype not in (np.float32, np.float64):
        raise WrongDtypeError(f"part {part.name!r} holds float32 or float64, not {values.dtype}")
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise NotFiniteError(f"element {at} of part {part.name!r} is {values[at]}; an update must be finite")
    room[:] = values
    clipped = int(np.count_nonzero(np.abs(room) > part.clip))
    np.clip(room, -part.clip, part.clip, out=room)
    # |value/clip| <= 1 and a product of floats is monotone, so no rounding leads beyond the clip's steps.
    np.divide(room, part.clip, out=room)
    np.multiply(room, clip_steps, out=room)
    np.rint(room, out=room)
    return clipped


def settle(total: Vector) -> Vector:
    """Return a decrypted sum, [L], rounded to the whole numbers that it stands for.

    Raises ``ImpreciseSumError`` for a number that is not finite or further than ``ERROR_MAX`` from whole.
    """
    if not np.isfinite(total).all():
        raise ImpreciseSumError("the decrypted sum has numbers that are not finite")
    whole = np.rint(total)
    error = float(np.abs(total - whole).max())
    if error > ERROR_MAX:
        raise ImpreciseSumError(f"a decrypted number is {error:.3f} from whole; {ERROR_MAX} is allowed")
    # Noise decides whether a zero is −0; adding 0 makes it +0.
    return np.asarray(whole + 0.0, dtype=np.float64)


def decode_sum(config: CkksConfig, total: Vector, contributors: int) -> Sums:
    """Return the vectors, weight and number of contributors of a settled sum ``total``, [L].

    Raises ``SumMismatchError`` if it cannot be the sum of ``contributors`` inputs.
    """
    weight, counted = total[-2:].tolist()
    if counted != contributors or not 0 <= weight <= contributors * config.weight_max:
        raise SumMismatchError(
            f"the sum says {counted:.0f} contributors of weight {weight:.0f}; {contributors} inputs "
            f"were added, of weight up to {config.weight_max} each"
        )
    reals: dict[str, Vector] = {}
    counts: dict[str, npt.NDArray[np.int64]] = {}
    start = 0
    for part in config.parts:
        values = total[start : start + part.length]
        largest = weight * config.levels if isinstance(part, RealPart) else contributors * part.value_max
        if np.abs(values).max() > largest:
            raise SumMismatchError(f"part {part.name!r} of the sum is beyond what its inputs can add up to")
        if isinstance(part, RealPart):
            reals[part.name] = values / config.levels * part.clip
        else:
            counts[part.name] = values.astype(np.int64)
        start += part.length
    return Sums(reals, counts, int(weight), contributors)


def pack(ciphertexts: Sequence[bytes]) -> Arrays:
    """Return ``ciphertexts`` uint8[c · ``CIPHERTEXT_BYTES``] and ``lengths`` int64[c] of ``c`` ciphertexts.

    Raises ``LocalProtocolError`` for one that is longer than its room.
    """
    longest = max(map(len, ciphertexts))
    if longest > CIPHERTEXT_BYTES:
        raise LocalProtocolError(
            f"a ciphertext of {longest} bytes does not fit into CIPHERTEXT_BYTES = {CIPHERTEXT_BYTES}; "
            "this build of TenSEAL compresses less than those that were measured"
        )
    rooms = np.zeros((len(ciphertexts), CIPHERTEXT_BYTES), dtype=np.uint8)
    for room, ciphertext in zip(rooms, ciphertexts, strict=True):
        room[: len(ciphertext)] = octets(ciphertext)
    return {
        "ciphertexts": rooms.reshape(-1),
        "lengths": np.array([len(ciphertext) for ciphertext in ciphertexts], dtype=_LENGTHS),
    }


def unpack(config: CkksConfig, arrays: Arrays) -> list[bytes]:
    """Return the ciphertexts in a message.

    Raises ``MalformedMessageError`` for other arrays, ``WrongDtypeError``, and ``WrongLengthError`` for
    another number of ciphertexts or a length beyond its room.
    """
    expect_arrays(arrays, "ciphertexts", "lengths")
    rooms = read(arrays, "ciphertexts", OCTETS, (config.ciphertexts * CIPHERTEXT_BYTES,))
    lengths = read(arrays, "lengths", _LENGTHS, (config.ciphertexts,))
    if lengths.min() < 1 or lengths.max() > CIPHERTEXT_BYTES:
        raise WrongLengthError(
            f"ciphertexts have 1 to {CIPHERTEXT_BYTES} bytes, not {lengths.min()} to {lengths.max()}"
        )
    rows = rooms.reshape(config.ciphertexts, CIPHERTEXT_BYTES)
    return [room[:length].tobytes() for room, length in zip(rows, lengths.tolist(), strict=True)]
