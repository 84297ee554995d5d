"""What coordinator and devices agree on before a round of secure aggregation: the configuration.

Both ends hold their own copy; its hash goes into the session, so ends that disagree share no secret.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import OverflowingConfigError, TooFewContributorsError
from edge.crypto.ring import Ring
from edge.secagg.graph import (
    GRINDING_BITS,
    GraphParameters,
    check_parameters,
    check_private,
    choose_parameters,
    complete_parameters,
)
from edge.secagg.quantize import Quantizer, check_integers, plan
from edge.secagg.states import Mode

HONEST_AT_LEAST = 2
"""A sum with a single honest term is that term to whoever knows the others."""
NOISE_TAIL_SD = 12
"""Noise beyond so many standard deviations is drawn again, so that the plan can leave room for all of it.

One draw in 10**31 at most (2·exp(−72) of them): over n·L = 10**9 draws of a round the distribution of the sum
moves by less than 2e−22.
"""
LEAST_NOISE_STEPS = 0.5
"""Smallest standard deviation of a device's noise in steps of the ring.

A sum of narrower discrete Gaussians is not close to a discrete Gaussian (Kairouz, Liu and Steinke 2021).
"""


@dataclass(frozen=True, slots=True)
class RealPart:
    """A named vector of ``length`` real numbers, clipped to ±``clip`` and multiplied by the weight.

    Every device adds discrete Gaussian noise of standard deviation ``noise_sd``, in the input's units, to
    each element, whatever its weight; 0 is no noise.
    """

    name: str
    length: int
    clip: float
    noise_sd: float = 0.0


@dataclass(frozen=True, slots=True)
class CountPart:
    """A named vector of ``length`` whole numbers from −``value_max`` to ``value_max``; no weight applies."""

    name: str
    length: int
    value_max: int


@dataclass(frozen=True)
class SecAggConfig:
    """How a round is aggregated.

    Attributes
    ----------
    parts : the vectors of a device, in the order in which they lie in the masked vector. The weight and a
        one (to count contributors) follow them as two more elements.
    n_max : most devices that may take part.
    weight_max : largest weight of a device, a whole number as the weights themselves.
    bits : of the ring, 32 or 64.
    mode : how far the coordinator is trusted.
    corrupt : γ, fraction of devices that may collude with the coordinator.
    dropout : δ, fraction of devices that may drop out.
    min_contributors : no sum over fewer is revealed; :meth:`contributors_needed` may ask for more.
    sparse : whether the graph may be sparse; otherwise it is complete.
    parameters : degree and threshold, if they must not be chosen here. The degree is lowered to the complete
        graph's when fewer devices take part.
    unsafe : accept ``parameters`` that ``corrupt`` devices break; never a threshold of half the shares.

    Raises ``OverflowingConfigError`` if a sum could wrap around or the ring is too coarse for the noise,
    ``TooFewContributorsError`` for less than two contributors, ``ThresholdError`` and ``InfeasibleError`` for
    parameters that are unsafe or that cohorts of ``n_max`` cannot have, ``LocalProtocolError`` for parts
    without names of their own, without elements, or with noise that is negative or not finite.
    """

    parts: tuple[RealPart | CountPart, ...]
    n_max: int
    weight_max: int = 1
    bits: int = 32
    mode: Mode = Mode.SEMI_HONEST
    corrupt: float = 0.1
    dropout: float = 0.1
    min_contributors: int = HONEST_AT_LEAST
    sparse: bool = True
    parameters: GraphParameters | None = None
    unsafe: bool = False

    def __post_init__(self) -> None:
        names = {part.name for part in self.parts}
        if not names or "" in names or len(names) != len(self.parts):
            raise LocalProtocolError("secure aggregation needs one or more parts with names of their own")
        for part in self.parts:
            if part.length < 1:
                raise LocalProtocolError(
                    f"part {part.name!r} has {part.length} elements; at least 1 is needed"
                )
            if isinstance(part, CountPart) and part.value_max < 1:
                raise LocalProtocolError(
                    f"part {part.name!r} has value_max {part.value_max}; write 1 or more"
                )
            if isinstance(part, RealPart) and not 0 <= part.noise_sd < math.inf:
                raise LocalProtocolError(
                    f"part {part.name!r} has noise_sd {part.noise_sd}; write 0 or more, and finite"
                )
        if self.min_contributors < HONEST_AT_LEAST:
            raise TooFewContributorsError(
                f"min_contributors of {self.min_contributors} reveals a single device; "
                f"write {HONEST_AT_LEAST} or more"
            )
        # One that overflows is refused here, before any round.
        check_integers(self.ring, n_max=self.n_max, value_max=max(self.weight_max, 1))
        for part in self.parts:
            if isinstance(part, CountPart):
                check_integers(self.ring, n_max=self.n_max, value_max=part.value_max)
            else:
                self._check_noise(part, self._plan(part))
        self.graph(self.n_max)

    @cached_property
    def ring(self) -> Ring:
        """Where the sums live."""
        return Ring(self.bits)

    @cached_property
    def quantizers(self) -> dict[str, Quantizer]:
        """The quantiser of each real part, by its name."""
        return {part.name: self._plan(part) for part in self.parts if isinstance(part, RealPart)}

    def _plan(self, part: RealPart) -> Quantizer:
        noise_max = NOISE_TAIL_SD * part.noise_sd
        return plan(self.bits, self.n_max, self.weight_max, part.clip, noise_max=noise_max)

    def _check_noise(self, part: RealPart, quantizer: Quantizer) -> None:
        steps = part.noise_sd * quantizer.scale
        if 0 < steps < LEAST_NOISE_STEPS:
            raise OverflowingConfigError(
                f"part {part.name!r} has noise of {steps:.3g} steps of a ring of {self.bits} bits, less than "
                f"{LEAST_NOISE_STEPS}; use 64 bits, a smaller cohort, a smaller clip or more noise"
            )

    @cached_property
    def length(self) -> int:
        """L, elements of a masked vector."""
        return sum(part.length for part in self.parts) + 2

    @cached_property
    def encoded(self) -> bytes:
        """The one encoding of this configuration, which the session binds."""
        parts = [
            ["real", part.name, part.length, float(part.clip), float(part.noise_sd)]
            if isinstance(part, RealPart)
            else ["count", part.name, part.length, part.value_max]
            for part in self.parts
        ]
        fields = [
            *(parts, self.n_max, self.weight_max, self.bits, self.mode.value, float(self.corrupt)),
            *(float(self.dropout), self.min_contributors, self.sparse, self.parameters, self.unsafe),
        ]
        return json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode()

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of :attr:`encoded`, 32 bytes."""
        return hashlib.sha256(self.encoded).digest()

    def graph(self, members: int) -> GraphParameters:
        """Return degree and threshold for ``members`` devices; both ends compute them for themselves.

        In either mode the threshold follows the rule for a coordinator that lies; in active mode a sparse
        graph is also safe against one that tries many rings. So must ``parameters`` be, unless they are
        ``unsafe``, for the devices that take part: fewer may not be safe with them. Raises
        ``InfeasibleError`` and ``ThresholdError``.
        """
        grinding_bits = GRINDING_BITS if self.mode is Mode.ACTIVE else 0
        if self.parameters is not None:
            k, t = min(self.parameters.k, members - 1), self.parameters.t
            check_parameters(members, k, t)
            if not self.unsafe:
                check_private(members, k, t, self.corrupt, self.dropout, grinding_bits=grinding_bits)
            return GraphParameters(k, t)
        if not self.sparse:
            return complete_parameters(members, self.corrupt, self.dropout)
        return choose_parameters(members, self.corrupt, self.dropout, grinding_bits=grinding_bits)

    def contributors_needed(self, members: int) -> int:
        """Return below how many contributors of ``members`` devices no sum may be revealed.

        That is ``min_contributors``, or more: two of them must be honest if every corrupt one contributes.
        """
        return max(self.min_contributors, self._corrupt_of(members) + HONEST_AT_LEAST)

    @cached_property
    def honest_contributors(self) -> int:
        """The least number of honest devices in a sum that is revealed."""
        return self.contributors_needed(self.n_max) - self._corrupt_of(self.n_max)

    def _corrupt_of(self, members: int) -> int:
        return self._corrupt.numerator * members // self._corrupt.denominator

    @cached_property
    def _corrupt(self) -> Fraction:
        """The decimal that was written for γ, not the float next to it: 0.3 of 10 is 3."""
        return Fraction(repr(float(self.corrupt)))
