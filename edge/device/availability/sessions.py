"""Sessions and gaps that follow each other: an alternating renewal process, made a pure function of time.

Summing lengths from t = 0 would cost more the later one asks. Time is cut into epochs instead, with a phase
of its own per device, and in each epoch the process starts afresh in its stationary state (Cox 1962, "Renewal
Theory"): on with probability p = on/(on + off) of the means; the first length is what is left of an ordinary
one that a random instant falls into, which is a uniform share of a length-biased draw. So the chance to be on
is exactly p at any t.

The price is paid at the cuts: the state jumps there independently of what it was. A cut begins a session with
probability p(1 − p), and joins two or cuts one short otherwise; sessions begin 1/C + p(1 − p)/E times a
second, for cycles of mean length C and epochs of length E. So all lengths are drawn longer by c = 1 + p(1 −
p)/N and E is N of the longer cycles, which makes that rate, and with it the mean lengths of sessions and
gaps, exactly what was asked for. What remains is a slightly different shape: at most 1/(4N + 1) of sessions
begin at a cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits, hashed_exponential, hashed_normal, hashed_uniform, stream_key
from edge.device.availability.base import Floats, Ids, Segment, SegmentedModel, epoch_of

CYCLES_AN_EPOCH: Final = 4
"""N: enough that cuts are rare, few enough that finding a time in an epoch stays cheap."""

SHORTEST_S: Final = 1e-3
"""Lengths are at least this, seconds, or a very short one could vanish between two neighbouring floats."""

_BLOCK_CYCLES: Final = 2


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths: log-normal, or exponential where ``sigma_log`` is None.

    Attributes
    ----------
    mean_s : mean in seconds, the same for all or float64[n], one per row.
    sigma_log : sd of the log, or None.
    """

    mean_s: float | Floats
    sigma_log: float | None

    def draw(self, key: int, words: npt.NDArray[np.uint64]) -> Floats:
        """Return a length per word, float64 of the shape of ``words`` (rows first), seconds."""
        return np.maximum(self._mean_like(words) * self._relative(key, words, -0.5), SHORTEST_S)

    def draw_remaining(self, key: int, share_key: int, words: npt.NDArray[np.uint64]) -> Floats:
        """Return what a random instant leaves of the length that it falls into, a value per word, seconds.

        The length-biased log-normal of parameters (m, σ) is the log-normal of (m + σ², σ); what is left of it
        is a uniform share. What is left of an exponential is that exponential again.
        """
        if self.sigma_log is None:
            return self.draw(key, words)
        left = self._relative(key, words, 0.5) * hashed_uniform(share_key, words)
        return np.maximum(self._mean_like(words) * left, SHORTEST_S)

    def rows(self, rows: npt.NDArray[np.intp]) -> Lengths:
        """Return the distribution of some of the rows."""
        mean = self.mean_s[rows] if isinstance(self.mean_s, np.ndarray) else self.mean_s
        return Lengths(mean, self.sigma_log)

    def _mean_like(self, words: npt.NDArray[np.uint64]) -> float | Floats:
        mean = self.mean_s
        return mean[:, np.newaxis] if isinstance(mean, np.ndarray) and words.ndim == 2 else mean

    def _relative(self, key: int, words: npt.NDArray[np.uint64], tilt: float) -> Floats:
        sigma = self.sigma_log
        if sigma is None:
            return hashed_exponential(key, words)
        return np.asarray(np.exp(sigma * hashed_normal(key, words) + tilt * sigma * sigma))


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """Keys of the random streams of one process."""

    phase: int
    epoch: int
    state: int
    length: int
    remaining: int

    @classmethod
    def of(cls, seed: int, *names: str | int) -> SessionKeys:
        """Return the keys of the process called ``names`` under ``seed``."""
        return cls(*(stream_key(seed, *names, name) for name in cls.__slots__))


class SessionAvailability(SegmentedModel):
    """The same lengths of sessions and gaps for every device."""

    def __init__(self, keys: SessionKeys, on: Lengths, off: Lengths) -> None:
        self._keys, self._on, self._off = keys, on, off

    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the session or gap around ``t_s``."""
        return session_segment(self._keys, ids, t_s, self._on, self._off)


def session_segment(keys: SessionKeys, ids: Ids, t_s: Floats, on: Lengths, off: Lengths) -> Segment:
    """Return the session or gap around ``t_s`` (float64[n]) of each process in ``ids`` (int64[n])."""
    p_on, on, off, epoch_s = _stretched(on, off)
    first = (hashed_uniform(keys.phase, ids) - 1.0) * epoch_s
    epoch = epoch_of(t_s, first, epoch_s)
    epoch_start, epoch_end = first + epoch * epoch_s, first + (epoch + 1.0) * epoch_s
    words = hashed_bits(keys.epoch, ids, epoch)

    # Edges alternate on, off, on, off: an epoch that starts off has a first session of no length.
    available = np.empty(ids.shape, np.bool_)
    end = np.empty(ids.shape)
    rows = np.arange(ids.size)
    start = epoch_start
    cycle = 0
    while rows.size:
        lengths = _lengths(keys, words[rows], on.rows(rows), off.rows(rows), cycle)
        if cycle == 0:
            _make_stationary(lengths, keys, words, on, off, p_on=p_on)
        lengths[:, 0] += start
        edges = np.cumsum(lengths, axis=1, out=lengths)
        passed = np.count_nonzero(edges <= t_s[rows, np.newaxis], axis=1)
        found = np.flatnonzero(passed < edges.shape[1])
        available[rows[found]] = passed[found] % 2 == 0
        end[rows[found]] = edges[found, passed[found]]
        beyond = np.flatnonzero(passed == edges.shape[1])
        rows, start = rows[beyond], edges[beyond, -1]
        cycle += _BLOCK_CYCLES
    return Segment(available, np.minimum(end, epoch_end), end < epoch_end)


def _stretched(on: Lengths, off: Lengths) -> tuple[float | Floats, Lengths, Lengths, float | Floats]:
    """Return p, both lengths with the cuts made up for, and the length of an epoch."""
    p_on = on.mean_s / (on.mean_s + off.mean_s)
    stretch = 1.0 + p_on * (1.0 - p_on) / CYCLES_AN_EPOCH
    on = Lengths(on.mean_s * stretch, on.sigma_log)
    off = Lengths(off.mean_s * stretch, off.sigma_log)
    return p_on, on, off, CYCLES_AN_EPOCH * (on.mean_s + off.mean_s)


def _lengths(
    keys: SessionKeys, words: npt.NDArray[np.uint64], on: Lengths, off: Lengths, cycle: int
) -> Floats:
    lengths = np.empty((words.size, 2 * _BLOCK_CYCLES))
    numbers = np.arange(2 * cycle, 2 * (cycle + _BLOCK_CYCLES), dtype=np.uint64)
    lengths[:, 0::2] = on.draw(keys.length, words[:, np.newaxis] + numbers[0::2])
    lengths[:, 1::2] = off.draw(keys.length, words[:, np.newaxis] + numbers[1::2])
    return lengths


def _make_stationary(
    lengths: Floats,
    keys: SessionKeys,
    words: npt.NDArray[np.uint64],
    on: Lengths,
    off: Lengths,
    *,
    p_on: float | Floats,
) -> None:
    """Draw each epoch's first state; make its first length what a random instant leaves of one."""
    starts_on = hashed_uniform(keys.state, words) < p_on
    began, idle = np.flatnonzero(starts_on), np.flatnonzero(~starts_on)
    lengths[began, 0] = on.rows(began).draw_remaining(keys.length, keys.remaining, words[began])
    lengths[idle, 0] = 0.0
    lengths[idle, 1] = off.rows(idle).draw_remaining(keys.length, keys.remaining, words[idle] + np.uint64(1))


def log_normal_mean(median_s: float, sigma_log: float) -> float:
    """Return the mean of a log-normal from its median: median·exp(σ²/2)."""
    return median_s * math.exp(0.5 * sigma_log * sigma_log)
