"""What coordinator and devices agree on before a round of homomorphic sums."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import OverflowingConfigError, SecAggError, TooFewContributorsError
from edge.secagg.config import HONEST_AT_LEAST, CountPart, RealPart

DEGREE = 8_192
"""Of the polynomials, N."""
SLOTS = DEGREE // 2
"""Numbers in a ciphertext."""
MODULUS_BITS = (60, 40, 60)
"""Of the primes in the chain of moduli. The last is for keys; a ciphertext has residues of the others."""
SCALE = 2.0**40
"""What numbers are multiplied by before they become coefficients."""
CIPHERTEXT_BYTES = 232 * 1024
"""The room of a ciphertext in a frame, 1.16 times its 2·N·(60 + 40) bits.

A ciphertext travels as TenSEAL serialises it, compressed: 234,402 to 235,364 bytes in 14,000 of them, 235,072
on average with a standard deviation of 95 (TenSEAL 0.3.18, zstd). The length of a frame would differ from run
to run, so each is padded to this room, 1.1 % above the average.
"""
SUM_MAX = 2**44
"""Largest absolute value of an element of a sum.

Encoding works in float64, so the error grows with the largest number in a ciphertext. Measured on one: below
1e-8 for numbers up to 2**20, 0.01 at 2**44, above the allowed 0.25 from 2**50 on. The noise of encryption
itself grows with the root of the number of devices, from 1e-9.
"""
ERROR_MAX = 0.25
"""A decrypted number that is further than this from whole is not believed."""
LEVELS_MAX = 2**30
"""Most steps from 0 to the clip of a real part; far finer than the 24 bits of a float32."""


class BadCiphertextError(SecAggError):
    """Bytes that are not a ciphertext under the parameters of this run, or cannot be added."""

    NAME = "bad-ciphertext"


class ImpreciseSumError(SecAggError):
    """A decrypted sum that is not whole or not finite: there is more noise on it than inputs can have."""

    NAME = "imprecise-sum"


@dataclass(frozen=True)
class CkksConfig:
    """How a round is aggregated.

    Attributes
    ----------
    parts : the vectors of a device, in the order in which they are encrypted. The weight and a one (to count
        contributors) follow them as two more elements.
    n_max : most devices that may take part.
    weight_max : largest weight of a device, a whole number as the weights themselves.
    min_contributors : no sum over fewer is decrypted.

    Raises ``OverflowingConfigError`` if a sum could leave the range in which sums are exact, or for a limit
    that is not positive and finite; ``TooFewContributorsError`` for less than two contributors;
    ``LocalProtocolError`` for parts without names of their own, without elements, or with noise, which nobody
    would add.
    """

    parts: tuple[RealPart | CountPart, ...]
    n_max: int
    weight_max: int = 1
    min_contributors: int = HONEST_AT_LEAST

    def __post_init__(self) -> None:
        names = {part.name for part in self.parts}
        if not names or "" in names or len(names) != len(self.parts):
            raise LocalProtocolError("a homomorphic sum needs one or more parts with names of their own")
        for part in self.parts:
            if part.length < 1:
                raise LocalProtocolError(
                    f"part {part.name!r} has {part.length} elements; at least 1 is needed"
                )
            if isinstance(part, CountPart) and part.value_max < 1:
                raise LocalProtocolError(
                    f"part {part.name!r} has value_max {part.value_max}; write 1 or more"
                )
            if isinstance(part, RealPart) and part.noise_sd:
                raise LocalProtocolError(
                    f"part {part.name!r} has noise_sd {part.noise_sd}; homomorphic sums add none"
                )
            if isinstance(part, RealPart) and not 0 < part.clip < math.inf:
                raise OverflowingConfigError(
                    f"part {part.name!r} has clip {part.clip}; it must be positive and finite"
                )
        if self.n_max < 1 or self.weight_max < 1:
            raise OverflowingConfigError(
                f"n_max is {self.n_max} and weight_max {self.weight_max}; write 1 or more"
            )
        if self.min_contributors < HONEST_AT_LEAST:
            raise TooFewContributorsError(
                f"min_contributors of {self.min_contributors} reveals a single device; "
                f"write {HONEST_AT_LEAST} or more"
            )
        counts = [part.value_max for part in self.parts if isinstance(part, CountPart)]
        largest = max([self.weight_max, *counts])
        if self.n_max * largest > SUM_MAX:
            raise OverflowingConfigError(
                f"sums are exact up to {SUM_MAX}; {self.n_max} devices with numbers up to {largest} go beyond"
            )

    @cached_property
    def levels(self) -> int:
        """Steps from 0 to the clip of a real part, whose values are rounded to whole steps: a power of two.

        All that is encrypted is whole, so all that is decrypted can be rounded to the exact sum of what went
        in: the noise of CKKS, random and not to be seeded, leaves no trace. The price is an error of up to
        half a step for each device.
        """
        fitting = SUM_MAX // (self.n_max * self.weight_max)
        return min(1 << (fitting.bit_length() - 1), LEVELS_MAX)

    @cached_property
    def length(self) -> int:
        """L, elements of a device's vector."""
        return sum(part.length for part in self.parts) + 2

    @cached_property
    def ciphertexts(self) -> int:
        """How many ciphertexts hold a vector."""
        return math.ceil(self.length / SLOTS)

    @cached_property
    def encoded(self) -> bytes:
        """The one encoding of this configuration and of the parameters that are fixed."""
        parts = [
            ["real", part.name, part.length, float(part.clip)]
            if isinstance(part, RealPart)
            else ["count", part.name, part.length, part.value_max]
            for part in self.parts
        ]
        agreed = [parts, self.n_max, self.weight_max, self.min_contributors, self.levels]
        fields = [*agreed, DEGREE, MODULUS_BITS, SCALE]
        return json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode()

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of :attr:`encoded`, 32 bytes."""
        return hashlib.sha256(self.encoded).digest()
