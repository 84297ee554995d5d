"""What stays with a link's rate for longer than seconds: a slow process, and a factor of the device's own.

Measured cellular rates are correlated over tens of seconds and more, where the AR(1) of one second
(``conditions.rate_multipliers``) has forgotten everything, and devices differ from each other for good.

The slow process is a second stationary Gaussian process on the log rate with correlation ``exp(-h/tau)`` at a
lag of h (Ornstein and Uhlenbeck 1930; sampled, an AR(1)). It is held constant over cells of a power of two
seconds, a sixteenth of tau or less. Random access goes by bridges: the values at anchors, 256 cells and so at
least 8 tau apart, are independent normals, and what lies between two known values is drawn from its
distribution given both, at half of the way each time. The process is Markov, so pairs of cells of one stretch
and pairs on both sides of an anchor have the correlation of the process exactly, but for the e**-8 or less
that anchors would have with each other.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_normal

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_LEVELS: Final = 8
"""Halvings from the distance of two anchors to a cell."""
_CELLS_A_TIME_CONSTANT: Final = 16.0
_ANCHOR: Final = 0
"""Counter of the draw at an anchor; those of bridges are the places in their tree, from 1."""


def check_slow_rates(sigma_log: FloatArray, time_s: FloatArray) -> None:
    """Raise ValueError for a sigma below 0, or a time that is not positive where it matters."""
    if not bool((np.isfinite(sigma_log) & (sigma_log >= 0.0)).all()):
        raise ValueError("slow_rate.sigma is a standard deviation, finite and 0 or more")
    if not bool((np.isfinite(time_s) & (time_s > 0.0))[sigma_log > 0.0].all()):
        raise ValueError("slow_rate.correlation_time is positive seconds")


def cell_seconds(time_s: FloatArray) -> IntArray:
    """Return the length of the cells of a process with correlation time ``time_s``, int64 [n] seconds."""
    exponent = np.floor(np.log2(np.maximum(time_s / _CELLS_A_TIME_CONSTANT, 1.0)))
    return np.asarray(2 ** np.minimum(exponent, 40.0).astype(np.int64))


def slow_multipliers(
    key: int,
    device_ids: IntArray,
    start_s: int | IntArray,
    steps: int,
    sigma_log: FloatArray,
    time_s: FloatArray,
) -> FloatArray:
    """Return the slow factor on the rate of each link in each second from ``start_s``.

    Parameters
    ----------
    key : of the stream of slow rates, from ``rng.stream_key``.
    device_ids : int64 [n].
    start_s : first second, a multiple of ``steps``; an int or int64 [n].
    steps : how many seconds, a power of two.
    sigma_log : float64 [n], sd of the log rate, >= 0.
    time_s : float64 [n], lag in seconds at which the correlation has fallen to 1/e, > 0.

    Returns
    -------
    float64 [n, steps], mean 1 over devices and times. The row of a device depends on nothing but the key, its
    id, its parameters and the time.
    """
    result = np.empty((len(device_ids), steps))
    lengths_s = cell_seconds(time_s)
    starts_s = np.broadcast_to(start_s, lengths_s.shape)
    for length_s in np.unique(lengths_s).tolist():
        rows = np.flatnonzero(lengths_s == length_s)
        cells = max(1, steps // length_s)
        decay = length_s / time_s[rows]
        x = _cells(key, device_ids[rows], starts_s[rows] // length_s, cells, decay)
        sigma = sigma_log[rows, np.newaxis]
        result[rows] = np.repeat(np.exp(sigma * x - 0.5 * sigma * sigma), steps // cells, axis=1)
    return result


def _cells(key: int, device_ids: IntArray, first: IntArray, cells: int, decay: FloatArray) -> FloatArray:
    """Return the standard normals of cells ``first`` to ``first + cells - 1``, float64 [n, cells].

    ``cells`` is a power of two, ``first``, int64 [n], multiples of it; ``decay`` is a cell's length over tau.
    """
    stretch, place = first[:, np.newaxis] >> _LEVELS, first[:, np.newaxis] & ((1 << _LEVELS) - 1)
    ids = device_ids[:, np.newaxis]
    # Ends of the stretches that are known, and their places in the tree; at first one, from anchor to anchor.
    ends = hashed_normal(key, ids, stretch + np.arange(2), _ANCHOR)
    nodes = np.ones((len(device_ids), 1), dtype=np.int64)
    for level in reversed(range(_LEVELS)):
        rho = np.exp(-decay * float(1 << level))[:, np.newaxis]
        bridge = hashed_normal(key, ids, stretch, nodes)
        middle = (ends[:, :-1] + ends[:, 1:]) * (rho / (1.0 + rho * rho))
        middle += np.sqrt((1.0 - rho * rho) / (1.0 + rho * rho)) * bridge
        halves = np.empty((len(device_ids), 2 * nodes.shape[1] + 1))
        halves[:, ::2], halves[:, 1::2] = ends, middle
        ends, nodes = halves, np.repeat(2 * nodes, 2, axis=1)
        nodes[:, 1::2] += 1
        if (1 << level) >= cells:
            # All that is asked for lies in one half.
            side = (place >> level) & 1
            ends = np.take_along_axis(ends, side + np.arange(2), axis=1)
            nodes = np.take_along_axis(nodes, side, axis=1)
    return ends[:, :cells]


def device_factors(key: int, device_ids: IntArray, sigma_log: FloatArray) -> FloatArray:
    """Return the factor on the mean rate that each device keeps, float64 [n], log-normal with mean 1.

    ``key`` is that of the stream, ``sigma_log`` the sd of the log, float64 [n], 0 for a factor of 1.
    """
    return np.asarray(
        np.exp(sigma_log * hashed_normal(key, device_ids) - 0.5 * sigma_log * sigma_log), dtype=np.float64
    )
