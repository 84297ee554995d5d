"""Seeds expanded to masks: AES-128 in counter mode (NIST SP 800-38A, 6.5), added straight to a vector.

The keystream of a 16-byte seed, read as little-endian elements, is the mask. The counter starts at zero, so a
seed may be expanded for one vector of one round only; :func:`edge.crypto.keys.derive` makes such seeds.

A mask is never held whole: it is made and added a chunk at a time, in a scratch buffer of at most 1 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import DuplicateKeyError, WrongDtypeError, WrongLengthError
from edge.crypto.ring import RingVector

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

SEED_BYTES = 16
"""Length of a seed."""
LARGEST_CHUNK_BYTES = 1 << 20
"""Largest piece of keystream made at once."""

Scratch = npt.NDArray[np.uint8]
"""A reusable work buffer from :func:`make_scratch`; nothing in it means anything between calls."""

_BLOCK_BYTES = 16
_FIRST_BLOCK = bytes(_BLOCK_BYTES)
_ZEROS = memoryview(bytes(LARGEST_CHUNK_BYTES))
"""Encrypting zeros gives the bare keystream."""


def make_scratch(chunk_bytes: int = LARGEST_CHUNK_BYTES) -> Scratch:
    """Return a work buffer for chunks of ``chunk_bytes``, a positive multiple of 16 of at most 1 MiB.

    Handing one in saves its allocation per call; one buffer serves one thread at a time.
    """
    if not 0 < chunk_bytes <= LARGEST_CHUNK_BYTES or chunk_bytes % _BLOCK_BYTES:
        raise LocalProtocolError(
            f"a chunk is a multiple of {_BLOCK_BYTES} bytes up to {LARGEST_CHUNK_BYTES}, not {chunk_bytes}"
        )
    # Some releases of cryptography ask for room of one block beyond the data.
    return np.empty(chunk_bytes + _BLOCK_BYTES, dtype=np.uint8)


def add_all_expanded(
    total: RingVector,
    added: Sequence[bytes],
    subtracted: Sequence[bytes],
    *,
    chunk_bytes: int = LARGEST_CHUNK_BYTES,
    scratch: Scratch | None = None,
) -> None:
    """Add the masks of some seeds to ``total`` in place and subtract those of others, modulo the ring.

    Each piece of a long vector is visited once. ``scratch`` (:func:`make_scratch`) overrides ``chunk_bytes``.

    Raises ``WrongLengthError`` for a seed that is not 16 bytes long (a shorter one can be guessed) and for a
    vector that is not one-dimensional and contiguous, ``WrongDtypeError`` for another dtype.
    """
    if total.dtype.str not in ("<u4", "<u8"):
        raise WrongDtypeError(f"a masked vector is little-endian uint32 or uint64, not {total.dtype}")
    if total.ndim != 1 or not total.flags.c_contiguous:
        raise WrongLengthError(f"a masked vector is one contiguous row, not of shape {total.shape}")
    streams: list[tuple[CipherContext, np.ufunc]] = [(_encryptor(seed), np.add) for seed in added]
    streams += [(_encryptor(seed), np.subtract) for seed in subtracted]
    if scratch is None:
        scratch = make_scratch(chunk_bytes)
    chunk_bytes = scratch.size - _BLOCK_BYTES
    step = chunk_bytes // total.itemsize
    keystream = scratch[:chunk_bytes].view(total.dtype)
    room = scratch.data
    for start in range(0, total.size, step):
        piece = total[start : start + step]
        zeros = _ZEROS[: piece.nbytes]
        mask = keystream[: piece.size]
        target = room[: piece.nbytes + _BLOCK_BYTES]
        for stream, combine in streams:
            stream.update_into(zeros, target)
            combine(piece, mask, out=piece)


class Keystream:
    """The expansion of a 16-byte seed taken piece by piece, as uniform words.

    Raises ``WrongLengthError`` for a seed of another length.
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = _encryptor(seed)

    def words(self, count: int) -> npt.NDArray[np.uint32]:
        """Return the next words, uint32[count], little-endian and read-only; up to 1 MiB at once."""
        return np.frombuffer(self._stream.update(_ZEROS[: 4 * count]), dtype="<u4")


def ring_order(devices: Sequence[int], seed: bytes) -> list[int]:
    """Return the devices in the random order of their ring, which a 16-byte ``seed`` decides.

    The order depends on the set of devices, not on how it is listed. Each device, by id, draws 64 bits of the
    AES-128-CTR keystream of the seed; the order of these is the ring.

    Raises ``DuplicateKeyError`` for a device listed twice, ``WrongLengthError`` for another seed.
    """
    if len(seed) != SEED_BYTES:
        raise WrongLengthError(f"the seed of a ring has {SEED_BYTES} bytes, not {len(seed)}")
    ids = sorted(devices)
    if len(set(ids)) != len(ids):
        raise DuplicateKeyError("a device is listed twice for the ring")
    stream = _encryptor(seed)
    draws = np.frombuffer(stream.update(bytes(8 * len(ids))), dtype="<u8")
    return [ids[at] for at in np.argsort(draws, kind="stable").tolist()]


@cache
def _from_zero() -> Callable[[bytes], CipherContext]:
    """Return what makes the AES-128-CTR keystream of a key, from its beginning."""
    # Not above: every run knows the noise of devices, and few add any.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415

    start = modes.CTR(_FIRST_BLOCK)
    return lambda key: Cipher(algorithms.AES128(key), start).encryptor()


def _encryptor(seed: bytes) -> CipherContext:
    if len(seed) != SEED_BYTES:
        raise WrongLengthError(f"the seed of a mask has {SEED_BYTES} bytes, not {len(seed)}")
    return _from_zero()(seed)
