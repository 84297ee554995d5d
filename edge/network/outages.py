"""When a link is down: on/off outages as a pure function of key, device and time.

Up and down times are exponential, a continuous-time Markov chain (Gilbert 1960) given by the share of time
that the link is down, f, and the mean length of an outage, m; up times last ``m*(1-f)/f`` on average. Time is
cut into epochs of ``8*m/f`` seconds, eight outages on average. Each epoch starts from the stationary
distribution (down with probability f) with draws of its own, so any time can be asked about without knowing
what came before. By the lack of memory of exponential times the link is down a share f of the time exactly;
the restarts cut or join an outage now and then, which makes the mean length ``m / (1 + f*(1-f)/8)``, 3 %
short at most.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_exponential, hashed_uniform

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

OUTAGES_PER_EPOCH = 8
_FIRST_STATE = 0
"""Counter of the draw that says whether an epoch starts down; stretches count from 1."""
_STRETCHES_AT_ONCE = 24


def check_outages(fraction: FloatArray, mean_s: FloatArray) -> None:
    """Raise ValueError for a fraction outside [0, 1), or a mean that is not positive where it matters."""
    bad = ~((fraction >= 0.0) & (fraction < 1.0))
    if bad.any():
        raise ValueError(
            f"an outage fraction is in [0, 1), not {float(fraction[bad][0])!r}; write 8% as 0.08, "
            "and leave out a device that is never reachable"
        )
    bad = (fraction > 0.0) & ~((mean_s > 0.0) & np.isfinite(mean_s))
    if bad.any():
        raise ValueError(f"the mean length of an outage is positive seconds, not {float(mean_s[bad][0])!r}")


def epoch_of(t_s: FloatArray, length_s: FloatArray) -> IntArray:
    """Return the epoch that each time falls into, int64[n]: ``epoch*length <= t < (epoch+1)*length``."""
    epoch = np.floor(t_s / length_s).astype(np.int64)
    # The quotient may be rounded across the boundary that the products below define.
    epoch = np.where(epoch * length_s > t_s, epoch - 1, epoch)
    return np.where((epoch + 1) * length_s <= t_s, epoch + 1, epoch)


def _first_state(key: int, device_ids: IntArray, epoch: IntArray, fraction: FloatArray) -> BoolArray:
    return np.asarray(hashed_uniform(key, device_ids, epoch, _FIRST_STATE) < fraction)


def epoch_edges(
    key: int, device_ids: IntArray, epoch: IntArray, fraction: FloatArray, mean_s: FloatArray
) -> tuple[BoolArray, FloatArray]:
    """Return the outages of one epoch of each device.

    Parameters
    ----------
    key : of the outage stream, from ``rng.stream_key``.
    device_ids, epoch : int64[n].
    fraction, mean_s : float64[n], both positive.

    Returns
    -------
    (down bool[n], edges_s float64[n, k]): whether the epoch starts with the link down, and the absolute
    times at which the state changes, increasing along a row; the last is not before the end of the epoch.
    """
    length_s = OUTAGES_PER_EPOCH * mean_s / fraction
    end_s = (epoch + 1) * length_s
    first_down = _first_state(key, device_ids, epoch, fraction)
    up_s = mean_s * (1.0 - fraction) / fraction
    odd_s, even_s = np.where(first_down, mean_s, up_s), np.where(first_down, up_s, mean_s)
    edges_s = (epoch * length_s)[:, np.newaxis]
    while bool((edges_s[:, -1] < end_s).any()):
        done = edges_s.shape[1]
        indices = np.arange(done, done + _STRETCHES_AT_ONCE)
        means_s = np.where(indices & 1, odd_s[:, np.newaxis], even_s[:, np.newaxis])
        lasting_s = means_s * hashed_exponential(
            key, device_ids[:, np.newaxis], epoch[:, np.newaxis], indices
        )
        following_s = np.concatenate([edges_s[:, -1:], lasting_s], axis=1).cumsum(axis=1)
        edges_s = np.concatenate([edges_s, following_s[:, 1:]], axis=1)
    return first_down, edges_s[:, 1:]


def stretch_at(
    key: int, device_ids: IntArray, t_s: npt.ArrayLike, fraction: FloatArray, mean_s: FloatArray
) -> tuple[BoolArray, FloatArray]:
    """Return whether each link is down at ``t_s``, and until when that is known to hold.

    Parameters
    ----------
    key : of the outage stream.
    device_ids : int64[n].
    t_s : float or float64[n], seconds >= 0.
    fraction, mean_s : float64[n]; share of the time down, in [0, 1), and mean length, seconds.

    Returns
    -------
    (down bool[n], until_s float64[n]): the absolute end of the stretch or of the epoch, whichever is earlier,
    always after ``t_s``; ``inf`` for a link without outages.

    Raises
    ------
    ValueError : for a fraction or mean length that makes no sense.
    """
    check_outages(fraction, mean_s)
    n = device_ids.shape[0]
    down, until_s = np.zeros(n, dtype=np.bool_), np.full(n, np.inf)
    rows = np.flatnonzero(fraction > 0.0)
    if rows.size == 0:
        return down, until_s
    t = np.broadcast_to(np.asarray(t_s, dtype=np.float64), (n,))[rows]
    ids, share, mean = device_ids[rows], fraction[rows], mean_s[rows]
    length_s = OUTAGES_PER_EPOCH * mean / share
    epoch = epoch_of(t, length_s)
    end_s = (epoch + 1) * length_s
    state = _first_state(key, ids, epoch, share)
    edge_s = epoch * length_s
    index = 0
    while rows.size:
        index += 1
        lasting_s = np.where(state, mean, mean * (1.0 - share) / share)
        edge_s = edge_s + lasting_s * hashed_exponential(key, ids, epoch, index)
        found = edge_s > t
        down[rows[found]] = state[found]
        until_s[rows[found]] = np.minimum(edge_s[found], end_s[found])
        keep = ~found
        rows, ids, epoch, share, mean = rows[keep], ids[keep], epoch[keep], share[keep], mean[keep]
        t, end_s, edge_s, state = t[keep], end_s[keep], edge_s[keep], ~state[keep]
    return down, until_s


def in_outage(
    key: int, device_ids: IntArray, t_s: npt.ArrayLike, fraction: FloatArray, mean_s: FloatArray
) -> BoolArray:
    """Return bool[n]: whether each link is down at ``t_s``. Parameters as for :func:`stretch_at`."""
    return stretch_at(key, device_ids, t_s, fraction, mean_s)[0]


def outage_end(
    key: int, device_ids: IntArray, t_s: npt.ArrayLike, fraction: FloatArray, mean_s: FloatArray
) -> FloatArray:
    """Return float64[n]: the first time from ``t_s`` on at which each link is up; ``t_s`` itself if it is."""
    return _first_time(key, device_ids, t_s, fraction, mean_s, wanted_down=False)


def outage_start(
    key: int, device_ids: IntArray, t_s: npt.ArrayLike, fraction: FloatArray, mean_s: FloatArray
) -> FloatArray:
    """Return float64[n]: the first time from ``t_s`` on at which each link is down; ``inf`` if never."""
    return _first_time(key, device_ids, t_s, fraction, mean_s, wanted_down=True)


def _first_time(
    key: int,
    device_ids: IntArray,
    t_s: npt.ArrayLike,
    fraction: FloatArray,
    mean_s: FloatArray,
    *,
    wanted_down: bool,
) -> FloatArray:
    t = np.array(np.broadcast_to(np.asarray(t_s, dtype=np.float64), device_ids.shape))
    down, until_s = stretch_at(key, device_ids, t, fraction, mean_s)
    rows = np.flatnonzero(down != wanted_down)
    until_s = until_s[rows]
    while rows.size:
        t[rows] = until_s
        going_on = np.isfinite(until_s)
        rows, until_s = rows[going_on], until_s[going_on]
        down, following_s = stretch_at(key, device_ids[rows], until_s, fraction[rows], mean_s[rows])
        waiting = down != wanted_down
        rows, until_s = rows[waiting], following_s[waiting]
    return t


def outage_intervals(
    key: int, device_id: int, start_s: float, end_s: float, *, fraction: float, mean_s: float
) -> list[tuple[float, float]]:
    """Return the outages of one device that overlap ``[start_s, end_s)``, cut to it, in order."""
    share, mean = np.array([fraction]), np.array([mean_s])
    check_outages(share, mean)
    if fraction == 0.0 or not start_s < end_s:
        return []
    length_s = OUTAGES_PER_EPOCH * mean / share
    first, last = (int(epoch_of(np.array([t]), length_s)[0]) for t in (start_s, end_s))
    epochs = np.arange(first, last + 1)
    n = epochs.shape[0]
    first_down, edges_s = epoch_edges(
        key, np.full(n, device_id), epochs, np.full(n, fraction), np.full(n, mean_s)
    )
    intervals: list[tuple[float, float]] = []
    for row, epoch in enumerate(epochs.tolist()):
        begin_s, limit_s = max(start_s, epoch * length_s.item()), min(end_s, (epoch + 1) * length_s.item())
        edges = [epoch * length_s.item(), *edges_s[row].tolist()]
        for down_s, up_s in itertools.islice(itertools.pairwise(edges), 0 if first_down[row] else 1, None, 2):
            cut_down_s, cut_up_s = max(down_s, begin_s), min(up_s, limit_s)
            if cut_down_s >= cut_up_s:
                continue
            if intervals and intervals[-1][1] == cut_down_s:
                # One outage that reaches over the boundary of two epochs.
                cut_down_s = intervals.pop()[0]
            intervals.append((cut_down_s, cut_up_s))
    return intervals
