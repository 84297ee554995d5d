"""How long cryptography takes on a device (simulated, never measured).

    T = Σ_primitives count · cost

with the counts of :class:`~edge.secagg.work.CryptoWork` and the costs of the device's crypto profile, on one
core. Nothing is random and nothing is throttled: these are short bursts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from device_profiles.profile import CryptoProfile, DeviceProfile
from edge.secagg.work import CryptoWork

Floats = npt.NDArray[np.float64]


class CryptoCosts(NamedTuple):
    """What one unit of each count of :class:`CryptoWork` costs one device, seconds, in the same order."""

    key_pair_s: float
    exchange_s: float
    seal_s: float
    signature_s: float
    verification_s: float
    expanded_byte_s: float
    quantised_s: float
    share_product_s: float
    encryption_s: float
    decryption_s: float

    @classmethod
    def of(cls, profile: CryptoProfile) -> Self:
        """Return the costs that a profile states, rates turned into seconds."""
        return cls(
            key_pair_s=profile.key_pair_s,
            exchange_s=profile.key_exchange_s,
            seal_s=profile.seal_s,
            signature_s=profile.sign_s,
            verification_s=profile.verify_s,
            expanded_byte_s=1 / profile.expand_bytes_per_s,
            quantised_s=1 / profile.quantise_elements_per_s,
            share_product_s=1 / profile.share_products_per_s,
            encryption_s=profile.ckks_encrypt_s,
            decryption_s=profile.ckks_decrypt_s,
        )

    def seconds(self, work: CryptoWork) -> float:
        """Return how long ``work`` takes this device, seconds."""
        # Not sum: since Python 3.12 it rounds floats differently, and a run must not depend on the version.
        return math.fsum(map(mul, self, work))


@dataclass(frozen=True, slots=True)
class CryptoSpecs:
    """The costs of each device (or of each class of devices), float64[n] each; as :class:`CryptoCosts`."""

    key_pair_s: Floats
    exchange_s: Floats
    seal_s: Floats
    signature_s: Floats
    verification_s: Floats
    expanded_byte_s: Floats
    quantised_s: Floats
    share_product_s: Floats
    encryption_s: Floats
    decryption_s: Floats

    @classmethod
    def of(cls, profiles: Sequence[DeviceProfile]) -> Self:
        """Return a row per profile."""
        names = CryptoCosts._fields
        rows = [CryptoCosts.of(profile.crypto) for profile in profiles]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
        return cls(**dict(zip(names, np.ascontiguousarray(table.T), strict=True)))

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """Return the specs of ``rows`` (int[n]): a table of classes becomes one row per device."""
        return type(self)(**{name: getattr(self, name)[rows] for name in CryptoCosts._fields})

    def rows(self) -> list[CryptoCosts]:
        """Return the costs of each device by itself, n of them."""
        columns = [getattr(self, name).tolist() for name in CryptoCosts._fields]
        return [CryptoCosts._make(row) for row in zip(*columns, strict=True)]
