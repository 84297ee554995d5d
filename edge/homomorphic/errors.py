"""The named errors that only homomorphic sums have; all others are those of :mod:`edge.crypto.errors`."""

from __future__ import annotations

from edge.crypto.errors import SecAggError


class BadCiphertextError(SecAggError):
    """Bytes that are not a ciphertext under the parameters of this run, or cannot be added."""

    NAME = "bad-ciphertext"


class ImpreciseSumError(SecAggError):
    """A decrypted sum that is not whole or not finite: there is more noise on it than inputs can have."""

    NAME = "imprecise-sum"
