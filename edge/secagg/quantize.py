"""Real vectors to elements of the ring and back, with a proof that no sum wraps around.

Values are clipped to [−c, c] and multiplied by S = Z/c, so that one unit of the ring is c/Z, and rounded
stochastically: up with the probability of the fractional part, which leaves the mean unbiased. Multiplying by
the weight comes before rounding, so a weight does not multiply the error.

The sum over ``n_max`` devices is exact if and only if it cannot leave the signed range of the ring:

    n_max · (W_max · Z + noise) <= 2**(bits − 1) − 1

:func:`plan` chooses the largest Z for which this holds, or refuses the one it is asked for. The error of a
sum of n devices is below n/S, its standard deviation at most √n/(2S).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.crypto.errors import (
    NotFiniteError,
    OverflowingConfigError,
    ValueRangeError,
    WeightError,
    WrongDtypeError,
    WrongLengthError,
)
from edge.crypto.ring import Ring, RingVector

_EXACT = 2**53
"""Up to here every whole number is a float64: finer steps would be lost before they are rounded."""
_CHUNK = 1 << 15
"""Elements quantised at a time: temporaries stay in the cache and far below the size of a vector."""
_WORD = 2.0**32


class Quantized(NamedTuple):
    """A device's input.

    ``vector`` is uint32[L] or uint64[L]; ``clipped`` counts the values beyond the clip, ``nonzero`` the real
    values other than zero.
    """

    vector: RingVector
    clipped: int
    nonzero: int


@dataclass(frozen=True, slots=True)
class Quantizer:
    """A plan that :func:`plan` has checked.

    Attributes
    ----------
    ring : where the sums live.
    n_max : most devices in a sum.
    weight_max : largest weight of a device.
    clip : largest absolute value of an element, in the input's units.
    levels : Z, the steps from 0 to ``clip``.
    noise_levels : steps of noise that each device may add on top.
    """

    ring: Ring
    n_max: int
    weight_max: float
    clip: float
    levels: int
    noise_levels: int

    @property
    def scale(self) -> float:
        """S = Z/c, ring units per unit of the input."""
        return self.levels / self.clip

    @property
    def error_bound(self) -> float:
        """Bound on the error of one element of a sum of ``n_max`` devices, in the input's units: n/S."""
        return self.n_max / self.scale

    def check_weight(self, weight: float) -> None:
        """Raise ``WeightError`` unless 0 <= ``weight`` <= ``weight_max``; NaN is refused too."""
        if not 0 <= weight <= self.weight_max:
            raise WeightError(
                f"the weight {weight} is not from 0 to {self.weight_max}, the largest planned for"
            )

    def quantize(
        self,
        values: npt.NDArray[np.floating[Any]],
        words: Callable[[int], npt.NDArray[np.uint32]],
        *,
        weight: float = 1,
        out: RingVector | None = None,
    ) -> Quantized:
        """Return ``weight`` · ``values`` as elements of the ring, rounded stochastically.

        Parameters
        ----------
        values : float32[L] or float64[L].
        words : gives the next uniform words, uint32 of the length asked for, which decide the rounding: of
            :class:`~edge.crypto.prg.Keystream`, whose seed is used once. Each decision has 32 random bits, so
            its probability is exact to 2**−32.
        weight : from 0 to ``weight_max``.
        out : where to write, uint32[L] or uint64[L] of the ring; a new vector if left out.

        Raises
        ------
        ``WeightError``, ``NotFiniteError``, ``WrongDtypeError`` for other input than floats, and
        ``WrongLengthError`` for another shape of ``values`` or ``out``.
        """
        self.check_weight(weight)
        if values.dtype not in (np.float32, np.float64):
            raise WrongDtypeError(f"values are float32 or float64, not {values.dtype}")
        if values.ndim != 1:
            raise WrongLengthError(f"values come in one dimension, not {values.ndim}")
        if out is None:
            out = self.ring.zeros(values.size)
        self.ring.check(out, values.size)
        signed = out.view(self.ring.signed_dtype)
        # |value/clip| <= 1 and a product of floats is monotone, so no rounding leads beyond weight · levels.
        factor = weight * self.levels
        clipped = nonzero = 0
        room = np.empty((2, min(_CHUNK, values.size)))
        flags = np.empty(room.shape[1], np.bool_)
        for start in range(0, values.size, _CHUNK):
            given = values[start : start + _CHUNK]
            piece, other = room[:, : given.size]
            up = flags[: given.size]
            # Not a number is both the largest and the smallest.
            largest, smallest = float(given.max()), float(given.min())
            if not (math.isfinite(largest) and math.isfinite(smallest)):
                at = start + int(np.flatnonzero(~np.isfinite(given))[0])
                raise NotFiniteError(f"element {at} of the input is {values[at]}; an update must be finite")
            nonzero += int(np.count_nonzero(np.not_equal(given, 0, out=up)))
            np.copyto(piece, given)
            if largest > self.clip or smallest < -self.clip:
                clipped += int(np.count_nonzero(np.abs(piece) > self.clip))
                np.clip(piece, -self.clip, self.clip, out=piece)
            piece /= self.clip
            piece *= factor
            np.floor(piece, out=other)
            piece -= other
            piece *= _WORD
            target = signed[start : start + _CHUNK]
            target[:] = other
            np.copyto(other, words(piece.size))
            target += np.less(other, piece, out=up)
        return Quantized(out, clipped, nonzero)

    def dequantize(self, total: RingVector) -> npt.NDArray[np.float64]:
        """Return a sum in the input's units, float64[L]; raises ``WrongDtypeError`` for another dtype."""
        return np.asarray(self.ring.to_signed(total) / self.scale, dtype=np.float64)


def plan(
    bits: int,
    n_max: int,
    weight_max: float,
    clip: float,
    *,
    levels: int | None = None,
    noise_max: float = 0.0,
) -> Quantizer:
    """Return the finest quantiser whose sums cannot wrap around.

    Parameters
    ----------
    bits : of the ring, 32 or 64.
    n_max : the largest cohort that can report, at least 1.
    weight_max : the largest weight of one device, above 0.
    clip : values are clipped to [−clip, clip]; above 0.
    levels : Z, if it must not be chosen here.
    noise_max : the largest absolute noise that one device adds to an element, in the input's units.

    Raises ``OverflowingConfigError`` if a sum could leave the signed range, if there is no room for a single
    step, or for a limit that is not positive and finite; the message names the largest that would fit.
    """
    ring = Ring(bits)
    limit = _headroom(ring, n_max)
    if not (0 < weight_max < math.inf and 0 < clip < math.inf):
        raise OverflowingConfigError(
            f"the largest weight {weight_max} and the clip {clip} must be positive and finite"
        )
    if not 0 <= noise_max < math.inf:
        raise OverflowingConfigError(f"the largest noise {noise_max} must be finite and not negative")
    noise_ratio = Fraction(noise_max) / Fraction(clip)
    # ⌈W·Z⌉ and ⌈noise·Z⌉ together are at most one unit more than their sum rounded up.
    room = min(limit, _EXACT) - (1 if noise_max else 0)
    finest = math.floor(room / (Fraction(weight_max) + noise_ratio))
    if finest < 1:
        raise OverflowingConfigError(
            f"{n_max} devices of weight up to {weight_max} and noise up to {noise_max} leave no quantisation "
            f"step in a ring of {bits} bits; use 64 bits, a smaller cohort, smaller weights or less noise"
        )
    if levels is not None and not 1 <= levels <= finest:
        raise OverflowingConfigError(
            f"{levels} quantisation levels do not fit: the sum of {n_max} devices of weight up to "
            f"{weight_max} must stay below 2^{bits - 1}; write 1 to {finest}"
        )
    chosen = finest if levels is None else levels
    return Quantizer(ring, n_max, weight_max, clip, chosen, math.ceil(noise_ratio * chosen))


def _headroom(ring: Ring, n_max: int) -> int:
    """Return the largest absolute value of one element of one device."""
    if n_max < 1:
        raise OverflowingConfigError(f"a sum has at least 1 device, not {n_max}")
    return ring.largest // n_max


def encode_integers(
    values: npt.NDArray[np.signedinteger[Any]], ring: Ring, *, n_max: int, value_max: int
) -> RingVector:
    """Return counts and other whole numbers as elements of the ring, a new array.

    Parameters
    ----------
    values : any signed integer dtype, [L], absolute values up to ``value_max``.
    ring : where the sums live.
    n_max : most devices in a sum.
    value_max : largest absolute value of one device.

    Raises ``OverflowingConfigError`` if a sum could leave the signed range, ``ValueRangeError`` for a value
    beyond ``value_max``, otherwise as :meth:`edge.crypto.ring.Ring.from_signed`.
    """
    check_integers(ring, n_max=n_max, value_max=value_max)
    encoded = ring.from_signed(values)
    if values.size and (int(values.max()) > value_max or int(values.min()) < -value_max):
        raise ValueRangeError(
            f"values from {values.min()} to {values.max()} are beyond {value_max}, the largest planned for"
        )
    return encoded


def check_integers(ring: Ring, *, n_max: int, value_max: int) -> None:
    """Raise ``OverflowingConfigError`` unless ``n_max`` numbers up to ``value_max`` sum within the ring."""
    largest = _headroom(ring, n_max)
    if value_max > largest:
        raise OverflowingConfigError(
            f"{n_max} devices with numbers up to {value_max} overflow {ring.bits} bits; {largest} would fit"
        )
