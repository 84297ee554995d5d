"""Devices that can always be reached; some break a participation off."""

from __future__ import annotations

from typing import Final

import numpy as np

from edge.core.rng import Counter, hashed_uniform
from edge.core.vocabulary import Stage
from edge.device.availability.base import (
    NO_STAGE,
    Bools,
    Dropout,
    Floats,
    Ids,
    checked_times,
    no_dropout,
)

BREAKING_STAGES: Final = np.array([Stage.DOWNLOAD, Stage.COMPUTE, Stage.REPORT], np.int8)
"""Where a participation can break off: before download (its very start), during compute, during upload."""


class AlwaysAvailable:
    """Every device, always."""

    def available(self, ids: Ids, t_s: float | Floats) -> Bools:
        """Return bool[n], all True; see :class:`~edge.device.availability.base.AvailabilityModel`."""
        checked_times(ids, t_s)
        return np.ones(ids.shape, np.bool_)

    def until(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n], all ``inf``."""
        checked_times(ids, t_s)
        return np.full(ids.shape, np.inf)

    def next_available(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n], ``t_s`` itself."""
        return checked_times(ids, t_s).copy()

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return no dropout."""
        del participation
        return no_dropout(ids.size)


class BernoulliDropout(AlwaysAvailable):
    """Always reachable, but a participation breaks off with a fixed probability.

    Parameters
    ----------
    key : of the model's random stream.
    probability : that a participation breaks off, in [0, 1].
    stage_shares : float64[3], where it does, given that it does, ordered as ``BREAKING_STAGES``; sum to 1.
    """

    def __init__(self, key: int, probability: float, stage_shares: Floats) -> None:
        self._key = key
        self._probability = probability
        self._stage_shares = stage_shares

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return where each participation breaks off; see ``AvailabilityModel``."""
        return draw_dropout(self._key, ids, participation, self._probability, self._stage_shares)


def draw_dropout(
    key: int, ids: Ids, participation: Counter, probability: float | Floats, stage_shares: Floats
) -> Dropout:
    """Return where each participation breaks off.

    Parameters
    ----------
    key : of the model's random stream. ids : int64[n]. participation : int or int[n].
    probability : float or float64[n], that the participation breaks off.
    stage_shares : float64[3], ordered as ``BREAKING_STAGES``; sum to 1.
    """
    dropped = hashed_uniform(key, ids, participation, 0) < probability
    where = hashed_uniform(key, ids, participation, 1)
    # Only the inner edges: the last stage takes what rounding may leave of the sum.
    index = np.searchsorted(np.cumsum(stage_shares)[:-1], where, side="right")
    stage = np.where(dropped, BREAKING_STAGES[index], np.int8(NO_STAGE))
    fraction = hashed_uniform(key, ids, participation, 2)
    under_way = stage > BREAKING_STAGES[0]
    return Dropout(stage, np.where(under_way, fraction, 0.0))
