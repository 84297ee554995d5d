"""What a participation costs in joules, and what that leaves in the battery (simulated).

    E_compute = P_active · T
    E_radio   = n·promotion_s·promotion_w + base_w·t + α_up·bits_up + α_down·bits_down
                + tail_w·t_tail + tail2_w·t_tail2

t is the time in which the radio transfers, n how often it was woken from idle. The power of a transfer, base
+ α_up·rate_up + α_down·rate_down (Huang et al. 2012, "A Close Examination of Performance and Power
Characteristics of 4G LTE Networks"), is linear in the rates: integrated over t, the rates become
bits, and sums per device are all that is needed.

After an activity the radio stays up: tail_s at tail_w, then tail2_s at tail2_w, then it is idle. The next
activity, a gap g later, cuts the tail short, so an activity is followed by

    t_tail  = min(g, tail_s)        t_tail2 = min(max(g − tail_s, 0), tail2_s)

and finds the radio idle, and pays a promotion, when g ≥ tail_s + tail2_s. A radio that sits in its second
tail resumes at once; the short promotion that some networks ask for there is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from device_profiles.profile import RadioProfile

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RadioSpecs:
    """What the energy model needs of each device's radio (or of each class), float64[n] each.

    Attributes
    ----------
    promotion_s, tail_s, tail2_s : seconds.
    promotion_w, tail_w, tail2_w, base_w : watts.
    up_w_per_bps, down_w_per_bps : α, watts per bit/s, which is joules per bit.
    """

    promotion_s: Floats
    promotion_w: Floats
    tail_s: Floats
    tail_w: Floats
    tail2_s: Floats
    tail2_w: Floats
    base_w: Floats
    up_w_per_bps: Floats
    down_w_per_bps: Floats

    @classmethod
    def of(cls, profiles: Sequence[RadioProfile]) -> Self:
        """Return a row per profile."""
        return cls(*(np.array([getattr(p, f.name) for p in profiles], np.float64) for f in fields(cls)))

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """Return the specs of ``rows`` (int[n]): a table of classes becomes one row per device."""
        return type(self)(*(getattr(self, f.name)[rows] for f in fields(self)))


class Tail(NamedTuple):
    """Seconds after an activity in which the radio stays up, float64[n] each."""

    tail_s: Floats
    tail2_s: Floats


def compute_joules(active_power_w: Floats, compute_s: Floats) -> Floats:
    """Return the energy of ``compute_s`` seconds of work, float64[n] joules."""
    return np.asarray(active_power_w * compute_s)


def tail_after(gap_s: Floats, radio: RadioSpecs) -> Tail:
    """Return how long each radio stays up after an activity if the next follows ``gap_s`` seconds later.

    Parameters
    ----------
    gap_s : float64[n], seconds, at least 0; ``inf`` when nothing follows.
    """
    return Tail(
        np.minimum(gap_s, radio.tail_s),
        np.minimum(np.maximum(gap_s - radio.tail_s, 0.0), radio.tail2_s),
    )


def found_idle(gap_s: Floats, radio: RadioSpecs) -> npt.NDArray[np.bool_]:
    """Return bool[n], whether each radio is idle ``gap_s`` (``inf``: never used) after an activity."""
    return np.asarray(gap_s >= radio.tail_s + radio.tail2_s)


def radio_joules(
    radio: RadioSpecs,
    *,
    transfer_s: Floats,
    up_bits: Floats | npt.NDArray[np.int64],
    down_bits: Floats | npt.NDArray[np.int64],
    promotions: Floats | npt.NDArray[np.int64],
    tail: Tail,
) -> Floats:
    """Return the energy of each radio from its sums over a participation, float64[n] joules.

    Parameters
    ----------
    radio : n rows.
    transfer_s : seconds in which the radio sent or received, promotions not included.
    up_bits, down_bits : everything on the air in either direction, retransmissions included.
    promotions : how often it was woken from idle.
    tail : sums of :func:`tail_after` over the activities.
    """
    waking = promotions * (radio.promotion_s * radio.promotion_w)
    transfer = radio.base_w * transfer_s + radio.up_w_per_bps * up_bits + radio.down_w_per_bps * down_bits
    staying_up = radio.tail_w * tail.tail_s + radio.tail2_w * tail.tail2_s
    return np.asarray(waking + transfer + staying_up)
