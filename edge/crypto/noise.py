"""Secret noise from a keystream: Gaussian for sums of floats, discrete Gaussian for sums in a ring.

Every draw comes from AES-128-CTR under a 16-byte seed (:mod:`edge.crypto.prg`), never from a statistical
generator: whoever can predict the noise can subtract it. The same seed gives the same noise; use it once.

Neither sampler takes the same time for every draw, and Gaussian noise on floats is not exactly the mechanism
that is accounted for: its low bits depend on what it was added to (Mironov 2012). Discrete noise, in the ring
or on a grid (:attr:`Sampler.DISCRETE`), has no such gap.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError
from edge.crypto.entropy import Entropy
from edge.crypto.noise_scale import check_sd
from edge.crypto.prg import SEED_BYTES, Keystream

LARGEST_SIGMA = 2.0**53
"""Largest σ of discrete noise, ring units: no ring has room for more."""

_GRID_BITS = 30
"""Steps of the grid of discrete noise on floats to a standard deviation, at least: 2**30."""
_FARTHEST_STEP = 2.0**62
"""Largest value on the grid, in steps; larger ones are moved to it, which brings no two of them apart."""
_CHUNK = 1 << 14
"""Candidates drawn at a time: temporaries stay in the cache, their words below the keystream's limit."""
_CANDIDATES_EACH = 2.2
"""About the candidates that a draw takes: 2.1 at a large σ, up to 3 around 1."""
_TO_UNIT = 2.0**-64
_HALF_WORD = 1 << 63


class Sampler(enum.Enum):
    """How Gaussian noise on floats is drawn."""

    FLOATING_POINT = "floating-point"
    """Box and Muller, added in float64: fast, and its low bits may give away what it was added to."""
    DISCRETE = "discrete"
    """On a grid: values are rounded to it, and discrete Gaussian noise is added in whole steps."""


def grid_step(sd: float) -> float:
    """Return the step of the grid for noise of ``sd``: the power of two from ``sd``·2**−31 to ``sd``·2**−30.

    Rounding to it moves each of two values by half a step at most, so it moves two vectors of d elements
    apart by √d steps at most. 0 for an ``sd`` of 0.
    """
    return math.ldexp(1.0, math.frexp(sd)[1] - 1 - _GRID_BITS) if sd > 0 else 0.0


def gaussian(seed: bytes, sd: float, n: int) -> npt.NDArray[np.float64]:
    """Return ``n`` independent Gaussians of mean 0 and standard deviation ``sd``, float64[n].

    Box and Muller 1958, both branches, from 64-bit uniforms: no value is beyond 9.5 ``sd`` (such a one has
    probability 2**−65), and below that the distribution is off by rounding alone, about 2**−50.

    Parameters
    ----------
    seed : 16 secret bytes, used once.
    sd : in the units of what it is added to; 0 or more.
    n : number of draws.

    Raises ``LocalProtocolError`` for an ``sd`` that is negative or not finite, ``WrongLengthError`` for
    another length of the seed.
    """
    check_sd(sd)
    stream = Keystream(seed)
    noise = np.empty(n, dtype=np.float64)
    for start in range(0, n, _CHUNK):
        piece = noise[start : start + _CHUNK]
        pairs = -(-piece.size // 2)
        uniforms = _unit(stream.words(4 * pairs).view("<u8"))
        radius = np.sqrt(-2.0 * np.log(uniforms[:pairs]))
        angle = uniforms[pairs:] * (2.0 * math.pi)
        piece[:pairs] = radius * np.cos(angle)
        piece[pairs:] = (radius * np.sin(angle))[: piece.size - pairs]
    noise *= sd
    return noise


def with_gaussian(
    arrays: Mapping[str, npt.NDArray[Any]],
    sd: float,
    entropy: Entropy,
    sampler: Sampler = Sampler.FLOATING_POINT,
) -> dict[str, npt.NDArray[Any]]:
    """Return ``arrays`` (float32 or float64) with Gaussian noise of ``sd`` on every element.

    New arrays of the same dtypes and shapes. In floating point the sum is made in float64 and rounded once.
    Discrete noise is added to values on the grid of :func:`grid_step`, in whole numbers of steps; the
    conversion to the dtype depends on that number alone. Each array has a seed of its own from ``entropy``,
    in the order of the names.

    On the grid the noise is that of a Gaussian that is rounded to it, except that a probability within 12
    ``sd`` differs by a factor of at most 1 ± 2**−57 (with s steps to an ``sd``, the pmf of a rounded Gaussian
    is φ(x)·(1 + (x²/s² − 1)/24s² + …)). So accounting for a Gaussian, with what rounding to the grid adds to
    the sensitivity, holds for it to within what :func:`discrete_gaussian` says of its draws.

    Raises ``LocalProtocolError`` for an ``sd`` that is negative or not finite, or another dtype.
    """
    noisy: dict[str, npt.NDArray[Any]] = {}
    for name in sorted(arrays):
        array = arrays[name]
        if array.dtype not in (np.float32, np.float64):
            raise LocalProtocolError(f"'{name}' is {array.dtype}; Gaussian noise is for float32 and float64")
        seed = entropy.bytes(SEED_BYTES)
        if sampler is Sampler.DISCRETE and sd > 0:
            noisy[name] = _on_grid(array, sd, seed)
        else:
            noise = gaussian(seed, sd, array.size).reshape(array.shape)
            noisy[name] = np.add(noise, array).astype(array.dtype)
    return {name: noisy[name] for name in arrays}


def _on_grid(array: npt.NDArray[Any], sd: float, seed: bytes) -> npt.NDArray[Any]:
    """Return ``array`` rounded to the grid, with discrete Gaussian noise."""
    check_sd(sd)
    step = grid_step(sd)
    farthest = _FARTHEST_STEP * step
    # By a power of two: only rounding to whole steps changes a value.
    whole = np.rint(np.clip(array.astype(np.float64), -farthest, farthest) / step).astype(np.int64)
    whole += discrete_gaussian(seed, sd / step, array.size).reshape(array.shape)
    return np.asarray((whole * step).astype(array.dtype))


def discrete_gaussian(
    seed: bytes, sigma: float, n: int, *, largest: int | None = None
) -> npt.NDArray[np.int64]:
    """Return ``n`` independent discrete Gaussians, P(x) ∝ exp(−x²/2σ²) on the whole numbers, int64[n].

    Canonne, Kamath and Steinke 2020, Algorithms 2 and 3, a vector at a time. With t = ⌊σ⌋ + 1, a candidate is
    x = ±(u + t·v), u uniform on 0 … t−1, v geometric with ratio 1/e, kept with probability

        exp(−u/t) · exp(−(|x| − σ²/t)²/2σ²)

    and 0 only with the positive sign: the first factor makes ±(u + t·v) discrete Laplace, the second makes it
    Gaussian. Signs and u are exactly uniform. The exponentials are evaluated in float64 and compared with
    uniforms of 64 (v) and 128 bits (to keep), which leaves the exponent, at most 73 within 12 σ and 2 in the
    mean, with a relative error of some units of 2**−53: no probability within 12 σ is off by more than
    2**−44 of itself, and the statistical distance of a draw from the true distribution is below 2**−46.

    Parameters
    ----------
    seed : 16 secret bytes, used once.
    sigma : σ, ring units, above 0 and at most 2**53. From σ = 1 on the variance is σ² to within 3e−7 of it;
        for a smaller σ it is less.
    n : number of draws.
    largest : draws of a larger absolute value are drawn again; at least σ. It moves the distribution by the
        probability of such a draw, at most 2·exp(−``largest``²/2σ²).

    Raises ``LocalProtocolError`` for another ``sigma`` or ``largest``, ``WrongLengthError`` for a seed of
    another length.
    """
    if not 0 < sigma <= LARGEST_SIGMA:
        raise LocalProtocolError(f"discrete noise has σ above 0 and up to 2^53 ring units, not {sigma}")
    if largest is not None and largest < sigma:
        raise LocalProtocolError(f"noise of σ = {sigma} cannot be kept within ±{largest}")
    stream = Keystream(seed)
    noise = np.empty(n, dtype=np.int64)
    filled = 0
    while filled < n:
        candidates = min(_CHUNK, math.ceil(_CANDIDATES_EACH * (n - filled)) + 32)
        words = stream.words(8 * candidates).view("<u8").reshape(4, candidates)
        kept = _kept(words, sigma, largest)[: n - filled]
        noise[filled : filled + kept.size] = kept
        filled += kept.size
    return noise


def _kept(words: npt.NDArray[np.uint64], sigma: float, largest: int | None) -> npt.NDArray[np.int64]:
    """Return the candidates of uniform ``words``, uint64[4, candidates], that are kept."""
    period = math.floor(sigma) + 1
    centre = sigma * sigma / period
    negative = (words[0] & np.uint64(1)).astype(np.bool_)
    uniform = words[0] >> np.uint64(1)
    # Without the remainder of the range, each of 0 … period−1 is left equally often.
    keep = uniform < np.uint64(_HALF_WORD - _HALF_WORD % period)
    offset = (uniform - uniform // np.uint64(period) * np.uint64(period)).astype(np.int64)
    periods = np.floor(-np.log(_unit(words[1]))).astype(np.int64)
    magnitude = periods * period + offset
    deviation = (magnitude - centre) / sigma
    exponent = offset / period + 0.5 * deviation * deviation
    # The second word counts where the first is small, as it must be to keep a candidate far out.
    keep &= (words[2] + _unit(words[3])) * _TO_UNIT < np.exp(-exponent)
    keep &= ~(negative & (magnitude == 0))
    if largest is not None:
        keep &= magnitude <= largest
    magnitude[negative] *= -1
    kept: npt.NDArray[np.int64] = magnitude[keep]
    return kept


def _unit(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return uniforms in (0, 1], float64, from 64-bit words; small ones keep all their bits."""
    return np.asarray((words.astype(np.float64) + 0.5) * _TO_UNIT)
