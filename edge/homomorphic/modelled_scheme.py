"""A stand-in for CKKS: the same messages of the same sizes, and no encryption at all.

What a device sends lies open in the first 8 · ``SLOTS`` bytes of each ciphertext. Frames, counts of work and
sums are those of :class:`~edge.homomorphic.tenseal_scheme.TensealScheme`, bit by bit, because whole numbers
are summed; a run needs no TenSEAL and no time for cryptography. For simulation only, never a deployment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge.homomorphic.config import SLOTS, BadCiphertextError
from edge.homomorphic.keys import PublicKey, RunningSum, SecretKey
from edge.homomorphic.vectors import Vector

_NUMBER = np.dtype("<f8")
_BYTES = SLOTS * _NUMBER.itemsize


class ModelledScheme:
    """Keys that are none."""

    def __init__(self) -> None:
        self.secret: SecretKey = _ModelledSecretKey()
        self.public: PublicKey = _ModelledPublicKey()


class _ModelledSecretKey:
    def encrypt(self, vector: Vector) -> list[bytes]:
        padded = np.zeros(-(-len(vector) // SLOTS) * SLOTS, dtype=_NUMBER)
        padded[: len(vector)] = vector
        return [numbers.tobytes() for numbers in padded.reshape(-1, SLOTS)]

    def decrypt(self, ciphertexts: Sequence[bytes]) -> Vector:
        return _load(ciphertexts).reshape(-1)


class _ModelledPublicKey:
    def running_sum(self) -> RunningSum:
        return _ModelledSum()


class _ModelledSum:
    def __init__(self) -> None:
        self._totals: Vector | None = None

    def add(self, ciphertexts: Sequence[bytes]) -> None:
        arrived = _load(ciphertexts)
        self._totals = arrived if self._totals is None else self._totals + arrived

    def ciphertexts(self) -> list[bytes]:
        assert self._totals is not None
        return [numbers.tobytes() for numbers in self._totals]


def _load(ciphertexts: Sequence[bytes]) -> Vector:
    """Return the numbers in ``ciphertexts``, float64[len, SLOTS]; raises ``BadCiphertextError``."""
    for data in ciphertexts:
        if len(data) != _BYTES:
            raise BadCiphertextError(f"{len(data)} bytes are not a modelled ciphertext of {_BYTES}")
    return np.asarray([np.frombuffer(data, dtype=_NUMBER) for data in ciphertexts], dtype=np.float64)
