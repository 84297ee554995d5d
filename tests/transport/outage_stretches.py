"""Outages at one time of each link, stretch by stretch: what the edges of whole epochs are held against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_exponential, hashed_uniform
from edge.network.conditions import (
    OUTAGES_PER_EPOCH,
    BoolArray,
    FloatArray,
    IntArray,
    check_outages,
    epoch_of,
)


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
    state = hashed_uniform(key, ids, epoch, 0) < share
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
