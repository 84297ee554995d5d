"""A share of devices that rises and falls with the local hour.

Each device divides time into slots of ``SLOT_S`` with a phase of its own, so that the fleet does not switch
all at once. In a slot it is available with the probability at the slot's middle,

    p(h) = mean · (1 + A·cos(2π(h − peak)/24)),   A = (r − 1)/(r + 1),

h being the local hour and r = p(peak)/p(trough). Slots are independent of each other, so the share of
available devices follows p and sessions are short: a geometric number of slots.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from edge.core.rng import hashed_uniform
from edge.device.availability.base import DAY_S, Floats, Ids, Segment, SegmentedModel, epoch_of, rows_of

SLOT_S: Final = 1800.0
"""Length of a slot, seconds: an assumption about how often a device starts or ends being idle."""


class DiurnalAvailability(SegmentedModel):
    """Available by slots, with a probability that follows the local hour.

    Parameters
    ----------
    phase_key, slot_key : of the model's two random streams.
    mean_available : share available over a day. peak_to_trough : r, at least 1.
    peak_local_hour : hours, in [0, 24).
    utc_offset_s : local time minus UTC, seconds: one for all, or float64[devices].
    """

    def __init__(
        self,
        phase_key: int,
        slot_key: int,
        *,
        mean_available: float,
        peak_to_trough: float,
        peak_local_hour: float,
        utc_offset_s: float | Floats,
    ) -> None:
        self._phase_key = phase_key
        self._slot_key = slot_key
        self._mean = mean_available
        self._swing = mean_available * (peak_to_trough - 1.0) / (peak_to_trough + 1.0)
        self._peak_s = peak_local_hour * 3600.0
        self._utc_offset_s = utc_offset_s

    def probability(self, local_s: Floats) -> Floats:
        """Return the share of devices available at a local time (seconds, any day), float64 of its shape."""
        return np.asarray(
            self._mean + self._swing * np.cos((local_s - self._peak_s) * (2.0 * math.pi / DAY_S))
        )

    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the slot around ``t_s``."""
        first = (hashed_uniform(self._phase_key, ids) - 1.0) * SLOT_S
        slot = epoch_of(t_s, first, SLOT_S)
        start = first + slot * SLOT_S
        local = start + 0.5 * SLOT_S + rows_of(self._utc_offset_s, ids)
        on = hashed_uniform(self._slot_key, ids, slot) < self.probability(local)
        return Segment(on, first + (slot + 1.0) * SLOT_S, np.zeros(ids.shape, np.bool_))
