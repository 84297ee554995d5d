"""Ciphertexts as the arrays of a message, whose size depends on nothing but their number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import WrongLengthError
from edge.homomorphic.config import CIPHERTEXT_BYTES, CkksConfig
from edge.secagg.checks import OCTETS, expect_arrays, octets, read
from edge.wire.messages import Arrays

_LENGTHS = np.dtype("<i8")


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
