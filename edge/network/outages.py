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
