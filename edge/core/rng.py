"""Named random streams, and random settings drawn from them.

Two forms, both addressed by a seed and a path of names, so that no two features share randomness and
switching one on never shifts another:

* :func:`stream` gives a numpy generator, for draws made one after the other in one place.
* :func:`hashed_uniform` and its siblings are pure functions of a key and counters (device id, round,
  message index …), vectorised. The value for device 17 does not depend on which other devices are asked
  about, nor in which order; that is what makes "is this device available at time t?" repeatable.

The counter form mixes with the finaliser of splitmix64 (Steele, Lea & Flood 2014, "Fast Splittable
Pseudorandom Number Generators", constants of Stafford's variant 13) once per counter.
None of this is cryptographic: no mask, key or share of a deployment may ever come from here. Those of a
simulation are expanded from :func:`stream_bytes`, so that a run replays.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_M1 = 0xBF58_476D_1CE4_E5B9
_M2 = 0x94D0_49BB_1331_11EB
_TO_UNIT = 2.0**-53
# Arrays: with a scalar an operation on a few numbers costs half as much again.
_GOLDEN_U, _M1_U, _M2_U = (np.array(constant, dtype=np.uint64) for constant in (_GOLDEN, _M1, _M2))
_S30, _S27, _S31, _S11 = (np.array(bits, dtype=np.uint64) for bits in (30, 27, 31, 11))
Counter = int | npt.NDArray[np.integer]
"""A counter: a non-negative int or an integer array; arrays broadcast against each other."""
Key = int | npt.NDArray[np.uint64]
"""A key, or an array of keys made by :func:`hashed_bits`, one for each device."""
T = TypeVar("T")


def _digest(seed: int, names: tuple[str | int, ...], size: int) -> bytes:
    if seed < 0:
        raise ValueError(f"a seed is a non-negative whole number, not {seed}")
    # Type and length go in with every part, so ("a", "b") and ("ab",), or 1 and "1", never meet.
    text = repr((int(seed), *(n if isinstance(n, str) else int(n) for n in names)))
    return hashlib.blake2b(text.encode(), digest_size=size, person=b"recfleet-stream").digest()


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return the generator of the stream called ``names`` under ``seed``.

    Parameters
    ----------
    seed : non-negative int, the run's seed.
    names : path of the stream, for example ``"selection", round_number``.
    """
    # Two words: numpy takes longer to cut a large int into them than to make the generator.
    return np.random.Generator(np.random.Philox(key=np.frombuffer(_digest(seed, names, 16), "<u8")))


@functools.lru_cache(maxsize=4096)
def stream_key(seed: int, *names: str | int) -> int:
    """Return the 64-bit key of a stream, for the counter-based functions below."""
    return int.from_bytes(_digest(seed, names, 8), "little")


def stream_bytes(seed: int, *names: str | int) -> bytes:
    """Return 32 bytes of a stream: a key for a generator of another kind, that of simulated secrets."""
    return _digest(seed, names, 32)


def hashed_bits(key: Key, *counters: Counter) -> npt.NDArray[np.uint64]:
    """Return 64 random bits for each tuple of counters.

    Parameters
    ----------
    key : from :func:`stream_key`, or an array of keys from this function.
    counters : one or more ints or integer arrays (broadcast together); values are taken modulo 2**64.

    Returns
    -------
    uint64 array of the broadcast shape (0-d for ints alone).
    """
    # One dimension at least: numpy warns of overflow, which is wanted here, in scalars only.
    single = isinstance(key, int) or not key.ndim
    state = np.array([key], dtype=np.uint64) if isinstance(key, int) else np.atleast_1d(key)
    for counter in counters:
        if isinstance(counter, int):
            x = state ^ np.uint64(((counter + 1) * _GOLDEN) & _MASK)
        else:
            single = single and not counter.ndim
            x = np.atleast_1d(counter).astype(np.uint64)
            x *= _GOLDEN_U
            x += _GOLDEN_U
            x = state ^ x
        x ^= x >> _S30
        x *= _M1_U
        x ^= x >> _S27
        x *= _M2_U
        state = x ^ (x >> _S31)
    return state.reshape(()) if single else state


def hashed_uniform(key: Key, *counters: Counter) -> npt.NDArray[np.float64]:
    """Return float64 uniforms in the open interval (0, 1), one per tuple of counters.

    They are odd multiples of 2**-54, so ``log`` of one is always finite.
    """
    bits = hashed_bits(key, *counters) >> _S11
    return np.asarray((bits.astype(np.float64) + 0.5) * _TO_UNIT)


def hashed_bits_scalar(key: int, *counters: int) -> int:
    """Return the same value as :func:`hashed_bits` for plain ints, without numpy's cost per call."""
    state = key
    for counter in counters:
        x = state ^ (((counter + 1) * _GOLDEN) & _MASK)
        x = ((x ^ (x >> 30)) * _M1) & _MASK
        x = ((x ^ (x >> 27)) * _M2) & _MASK
        state = x ^ (x >> 31)
    return state


def hashed_uniform_scalar(key: int, *counters: int) -> float:
    """Return the same value as :func:`hashed_uniform` for plain ints, without numpy's cost per call."""
    return ((hashed_bits_scalar(key, *counters) >> 11) + 0.5) * _TO_UNIT


def uniform_source(key: int, first: int) -> Callable[[], float]:
    """Return a function whose calls give ``hashed_uniform_scalar(key, first)``, ``(key, first + 1)``, ….

    For draws one after the other whose number is not known beforehand.
    """
    step = first * _GOLDEN

    def draw() -> float:
        nonlocal step
        step += _GOLDEN
        x = key ^ (step & _MASK)
        x = ((x ^ (x >> 30)) * _M1) & _MASK
        x = ((x ^ (x >> 27)) * _M2) & _MASK
        return (((x ^ (x >> 31)) >> 11) + 0.5) * _TO_UNIT

    return draw


def hashed_normal(key: Key, *counters: Counter) -> npt.NDArray[np.float64]:
    """Return float64 standard normals, one per tuple of counters (Box and Muller 1958, cosine branch)."""
    bits = hashed_bits(key, *counters)
    # A second, independent word from the first: one more round of the mixer.
    x = np.atleast_1d(bits) ^ _GOLDEN_U
    x *= _M1_U
    x ^= x >> _S27
    x *= _M2_U
    second = (x ^ (x >> _S31)).reshape(bits.shape)
    radius = np.sqrt(-2.0 * np.log(((bits >> _S11).astype(np.float64) + 0.5) * _TO_UNIT))
    angle = (second >> _S11).astype(np.float64) * (2.0 * math.pi * _TO_UNIT)
    return np.asarray(radius * np.cos(angle))


def hashed_exponential(key: Key, *counters: Counter) -> npt.NDArray[np.float64]:
    """Return float64 exponentials of mean 1, one per tuple of counters."""
    return np.asarray(-np.log(hashed_uniform(key, *counters)))


class Draws:
    """Draws from the stream ``names`` under ``seed``; see :func:`edge.core.rng.stream`."""

    def __init__(self, seed: int, *names: str | int) -> None:
        self._generator = stream(seed, "swarm", *names)

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return bool(self._generator.random() < probability)

    def whole(self, least: int, most: int) -> int:
        """Return a whole number, both ends included."""
        return int(self._generator.integers(least, most + 1))

    def between(self, least: float, most: float) -> float:
        """Return a number of three digits, uniform in its logarithm."""
        return float(f"{least * (most / least) ** self._generator.random():.3g}")

    def percent(self, least: float, most: float) -> str:
        """Return a share between two as a percentage, as :meth:`between` draws it."""
        return f"{self.between(least, most) * 100:.4g}%"

    def seconds(self, least: float, most: float) -> str:
        """Return a duration between two numbers of seconds, as :meth:`between` draws it."""
        return f"{self.between(least, most):.4g} s"

    def one(self, options: Sequence[T]) -> T:
        """Return one of ``options``, all as likely."""
        return options[self.whole(0, len(options) - 1)]

    def weighted(self, options: Mapping[T, float]) -> T:
        """Return one of ``options`` by their weights."""
        point = self._generator.random() * sum(options.values())
        for option, weight in options.items():
            point -= weight
            if point < 0:
                return option
        return option

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """Return ``count`` different ones of ``options``, in their order."""
        chosen = sorted(self._generator.permutation(len(options))[:count].tolist())
        return [options[index] for index in chosen]
