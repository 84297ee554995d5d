"""Schemes of homomorphic sums: what each side can do with its key, by TenSEAL's CKKS or by a stand-in."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from edge.core.errors import MissingExtraError
from edge.homomorphic.config import DEGREE, MODULUS_BITS, SCALE, SLOTS, BadCiphertextError
from edge.homomorphic.vectors import Vector

_NUMBER = np.dtype("<f8")
_BYTES = SLOTS * _NUMBER.itemsize


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


def _tenseal() -> Any:
    try:
        return importlib.import_module("tenseal")
    except ImportError as error:
        raise MissingExtraError(
            f"homomorphic sums need TenSEAL ({error}); write: pip install 'recfleet[he]'"
        ) from error


class TensealScheme:
    """A fresh key pair of CKKS by TenSEAL, which comes with the extra ``he`` and is imported here.

    Keys and noise come from the operating system and cannot be seeded, so the bytes of ciphertexts differ
    from run to run. Their number, their room in a frame and, once rounded, the sums do not.

    Raises ``MissingExtraError`` without TenSEAL.
    """

    def __init__(self) -> None:
        tenseal = _tenseal()
        context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(MODULUS_BITS), n_threads=1
        )
        context.global_scale = SCALE
        self.public_bytes: bytes = context.serialize(
            save_secret_key=False, save_galois_keys=False, save_relin_keys=False
        )
        """The coordinator's context: parameters and public key, 364 kB."""
        self.secret: SecretKey = _TensealSecretKey(tenseal, context)
        # Made of the bytes, so that the secret key is not in it.
        self.public: PublicKey = TensealPublicKey(self.public_bytes)


class _TensealSecretKey:
    def __init__(self, tenseal: Any, context: Any) -> None:
        self._tenseal = tenseal
        self._context = context

    def encrypt(self, vector: Vector) -> list[bytes]:
        # All slots are filled: a shorter vector would have a size of its own, which sums must not mix.
        padded = np.zeros(-(-len(vector) // SLOTS) * SLOTS, dtype=np.float64)
        padded[: len(vector)] = vector
        return [
            self._tenseal.ckks_vector(self._context, numbers).serialize()
            for numbers in padded.reshape(-1, SLOTS)
        ]

    def decrypt(self, ciphertexts: Sequence[bytes]) -> Vector:
        opened = [_load(self._tenseal, self._context, data).decrypt() for data in ciphertexts]
        return np.asarray(opened, dtype=np.float64).reshape(-1)


class TensealPublicKey:
    """The coordinator's key, from :attr:`TensealScheme.public_bytes`."""

    def __init__(self, public_bytes: bytes) -> None:
        self._tenseal = _tenseal()
        self._context = self._tenseal.context_from(public_bytes, n_threads=1)

    def running_sum(self) -> RunningSum:
        """Return an empty sum."""
        return _TensealSum(self._tenseal, self._context)


class _TensealSum:
    def __init__(self, tenseal: Any, context: Any) -> None:
        self._tenseal = tenseal
        self._context = context
        self._totals: list[Any] = []

    def add(self, ciphertexts: Sequence[bytes]) -> None:
        arrived = [_load(self._tenseal, self._context, data) for data in ciphertexts]
        if not self._totals:
            self._totals = arrived
            return
        try:
            # New ones, so that a failure half-way leaves the sum as it was.
            added = [total + one for total, one in zip(self._totals, arrived, strict=True)]
        except (ValueError, RuntimeError) as error:
            raise BadCiphertextError(f"a ciphertext cannot be added: {error!s:.80}") from error
        self._totals = added

    def ciphertexts(self) -> list[bytes]:
        return [total.serialize() for total in self._totals]


def _load(tenseal: Any, context: Any, data: bytes) -> Any:
    """Return a ciphertext that can be added to every other; raises ``BadCiphertextError``."""
    try:
        vector = tenseal.ckks_vector_from(context, data)
    except (ValueError, RuntimeError) as error:
        raise BadCiphertextError(f"{len(data)} bytes are not a ciphertext: {error!s:.80}") from error
    # What loads may still have the shape of a product, another level or scale, or nothing in it at all; as
    # the first of a sum it would spoil all that follow.
    parts = vector.ciphertext()
    shape = [
        (one.size(), one.coeff_modulus_size(), one.poly_modulus_degree(), one.scale, one.is_ntt_form())
        for one in parts
    ]
    if vector.size() != SLOTS or shape != [(2, len(MODULUS_BITS) - 1, DEGREE, SCALE, True)]:
        raise BadCiphertextError(
            f"a ciphertext of {vector.size()} numbers and shape {shape!s:.80}, not a fresh one of {SLOTS}"
        )
    return vector


class ModelledScheme:
    """Keys that are none: the messages of CKKS in their sizes, and no encryption at all.

    What a device sends lies open in the first 8 · ``SLOTS`` bytes of each ciphertext. Frames, counts of work
    and sums are those of :class:`TensealScheme`, bit by bit, because whole numbers are summed; a run needs no
    TenSEAL and no time for cryptography. For simulation only, never a deployment.
    """

    def __init__(self) -> None:
        self.secret: SecretKey = _ModelledSecretKey()
        self.public: PublicKey = _ModelledPublicKey()


class _ModelledSecretKey:
    def encrypt(self, vector: Vector) -> list[bytes]:
        padded = np.zeros(-(-len(vector) // SLOTS) * SLOTS, dtype=_NUMBER)
        padded[: len(vector)] = vector
        return [numbers.tobytes() for numbers in padded.reshape(-1, SLOTS)]

    def decrypt(self, ciphertexts: Sequence[bytes]) -> Vector:
        return _numbers_of(ciphertexts).reshape(-1)


class _ModelledPublicKey:
    def running_sum(self) -> RunningSum:
        return _ModelledSum()


class _ModelledSum:
    def __init__(self) -> None:
        self._totals: Vector | None = None

    def add(self, ciphertexts: Sequence[bytes]) -> None:
        arrived = _numbers_of(ciphertexts)
        self._totals = arrived if self._totals is None else self._totals + arrived

    def ciphertexts(self) -> list[bytes]:
        assert self._totals is not None
        return [numbers.tobytes() for numbers in self._totals]


def _numbers_of(ciphertexts: Sequence[bytes]) -> Vector:
    """Return the numbers in ``ciphertexts``, float64[len, SLOTS]; raises ``BadCiphertextError``."""
    for data in ciphertexts:
        if len(data) != _BYTES:
            raise BadCiphertextError(f"{len(data)} bytes are not a modelled ciphertext of {_BYTES}")
    return np.asarray([np.frombuffer(data, dtype=_NUMBER) for data in ciphertexts], dtype=np.float64)
