"""What each side can do with its key, whoever does the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edge.homomorphic.vectors import Vector


class SecretKey(Protocol):
    """What all devices of a run hold."""

    def encrypt(self, vector: Vector) -> list[bytes]:
        """Return the ciphertexts of ``vector``, float64[L]: ⌈L / ``SLOTS``⌉ of them."""

    def decrypt(self, ciphertexts: Sequence[bytes]) -> Vector:
        """Return what is in ``ciphertexts`` with noise on it, float64[len · ``SLOTS``].

        Raises ``BadCiphertextError``.
        """


class RunningSum(Protocol):
    """A sum of encrypted vectors: one vector's ciphertexts, however many were added."""

    def add(self, ciphertexts: Sequence[bytes]) -> None:
        """Add a vector's ciphertexts, as many each time.

        Raises ``BadCiphertextError``; nothing is added then.
        """

    def ciphertexts(self) -> list[bytes]:
        """Return the sum's ciphertexts; only once something was added."""


class PublicKey(Protocol):
    """What the coordinator holds: it can add, and open nothing."""

    def running_sum(self) -> RunningSum:
        """Return an empty sum."""


class Scheme(Protocol):
    """The keys of one run, made once, and handed out to either side."""

    @property
    def secret(self) -> SecretKey:
        """The devices' key."""

    @property
    def public(self) -> PublicKey:
        """The coordinator's."""
