"""A few devices take part in most rounds, and devices differ in how often they fail.

Device i is available for a share a_i = u_i^g of time, u_i uniform. The most active share q then holds

    1 − (1 − q)^(g + 1)

of all availability (the Lorenz curve of a power of a uniform), and of all participations when the coordinator
picks among available devices at random; g follows from the share that is asked for. FLASH (Yang et al. 2022,
"FLASH: Heterogeneity-Aware Federated Learning at Scale", IEEE Transactions on Mobile Computing) reports q =
30 % and 86 %, so g = 4.5 and 18 % of devices available on average.

The share of time is spent in sessions of ``MEAN_SESSION_S`` on average; the gaps between them are as long as
a_i wants. A participation of device i fails with probability v_i^d, v_i uniform and d such that the mean over
devices is the one asked for; that failure is independent of activity is an assumption.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from edge.core.rng import Counter, hashed_uniform
from edge.device.availability.base import Dropout, Floats, Ids, Segment, SegmentedModel
from edge.device.availability.constant import draw_dropout
from edge.device.availability.sessions import Lengths, SessionKeys, session_segment

MEAN_SESSION_S: Final = 3600.0
"""Mean length of a session, seconds (an assumption)."""

FAILURE_STAGES: Final[Floats] = np.array([0.2, 0.5, 0.3])
"""Where a failure happens, ordered as ``BREAKING_STAGES`` (assumption, as in the catalogue's Bernoulli)."""
FAILURE_STAGES.setflags(write=False)

_LEAST_ACTIVE: Final = 1e-6
_MOST_ACTIVE: Final = 1.0 - 1e-4


class HeavyTailAvailability(SegmentedModel):
    """Sessions with a share of time of its own for each device.

    Parameters
    ----------
    keys : of the sessions. activity_key, failure_key, dropout_key : of three more random streams.
    mean_failure : mean over devices of the chance that a participation fails, in [0, 1).
    top_share, top_participation : the most active ``top_share`` of devices do that share of everything.
    """

    def __init__(
        self,
        keys: SessionKeys,
        activity_key: int,
        failure_key: int,
        dropout_key: int,
        *,
        mean_failure: float,
        top_share: float,
        top_participation: float,
    ) -> None:
        self._keys = keys
        self._activity_key, self._failure_key, self._dropout_key = activity_key, failure_key, dropout_key
        self._mean_failure = mean_failure
        self._exponent = math.log(1.0 - top_participation) / math.log(1.0 - top_share) - 1.0

    def activity(self, ids: Ids) -> Floats:
        """Return float64[n]: the share of time for which each device is available.

        Kept within [1e-6, 0.9999], so that neither gaps of centuries nor of milliseconds arise.
        """
        share = hashed_uniform(self._activity_key, ids) ** self._exponent
        return np.clip(share, _LEAST_ACTIVE, _MOST_ACTIVE)

    def failure(self, ids: Ids) -> Floats:
        """Return float64[n]: the chance that a participation of each device fails."""
        if self._mean_failure == 0.0:
            return np.zeros(ids.shape)
        return np.asarray(hashed_uniform(self._failure_key, ids) ** (1.0 / self._mean_failure - 1.0))

    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the session or gap around ``t_s``."""
        gap_s = MEAN_SESSION_S * (1.0 / self.activity(ids) - 1.0)
        return session_segment(self._keys, ids, t_s, Lengths(MEAN_SESSION_S, None), Lengths(gap_s, None))

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return where each participation breaks off; see ``AvailabilityModel``."""
        return draw_dropout(self._dropout_key, ids, participation, self.failure(ids), FAILURE_STAGES)
