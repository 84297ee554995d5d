"""Available while the battery holds enough: a daily charge curve as a pure function of time.

Between unplugging and plugging in, a device loses idle power; plugged in, it gains charge power less idle
power; the state of charge stops at 0 and at 1. Days run from one unplugging to the next. One whole day takes
a state of charge x to

    f(x) = min(max(x + net, low), 1),   net = gained − lost,   low = min(max(gained, 0), 1),

and n days in a row have a closed form too, because net has one sign:

    net ≥ 0:  min(max(x + net, low) + (n − 1)·net, 1)        net < 0:  max(min(x + net, 1) + (n − 1)·net, low)

so the state of charge on any day needs no walk through the days before. What training itself draws is not
part of it: availability stays independent of what the run does. It is accounted in
``edge.device.compute_model``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from edge.core.rng import hashed_uniform
from edge.device.availability.base import DAY_S, Floats, Ids, Segment, SegmentedModel, epoch_of, rows_of

PLUG_IN_SPREAD_S: Final = 3600.0
"""Each owner plugs in at a time of their own, uniform within this of the profile's hour (assumption)."""

IDLE_POWER_SPREAD: Final = 0.5
"""Idle power is the profile's mean times a factor uniform in 1 ± this, one for each device (assumption)."""


class _Day(NamedTuple):
    """The day around a time: when it runs, and the charge on it, float64[n] each."""

    unplug_s: Floats  # 0 on the first day if that begins before the run
    plug_s: Floats
    end_s: Floats
    soc: Floats  # at unplug_s
    drain: Floats  # lost a second while unplugged
    gain: Floats  # gained a second while plugged in; negative if the charger is too weak


class BatteryAvailability(SegmentedModel):
    """Available while the state of charge is at least ``min_charge``.

    Parameters
    ----------
    start_key, plug_key, power_key : of the model's random streams.
    capacity_j : energy of a full battery, joules, above 0: one for all, or float64[devices].
    min_charge, start_charge_low, start_charge_high : states of charge in [0, 1].
    idle_power_w, charge_power_w : watts.
    plug_in_local_hour, plugged_hours : hours.
    utc_offset_s : local time minus UTC, seconds: one for all, or float64[devices].
    """

    def __init__(
        self,
        start_key: int,
        plug_key: int,
        power_key: int,
        *,
        capacity_j: float | Floats,
        min_charge: float,
        start_charge_low: float,
        start_charge_high: float,
        idle_power_w: float,
        charge_power_w: float,
        plug_in_local_hour: float,
        plugged_hours: float,
        utc_offset_s: float | Floats,
    ) -> None:
        self._start_key, self._plug_key, self._power_key = start_key, plug_key, power_key
        self._capacity_j = capacity_j
        self._min_charge = min_charge
        self._start_low, self._start_high = start_charge_low, start_charge_high
        self._idle_power_w, self._charge_power_w = idle_power_w, charge_power_w
        self._unplug_local_s = (plug_in_local_hour + plugged_hours) * 3600.0
        self._plugged_s = plugged_hours * 3600.0
        self._utc_offset_s = utc_offset_s

    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the stretch above or below ``min_charge`` around ``t_s``, cut at the end of the day."""
        day, least = self._day(ids, t_s), self._min_charge
        charged = day.soc >= least
        low = _crossing(day.unplug_s, day.soc, least, -day.drain, day.plug_s)
        low = np.where(charged, low, day.unplug_s)
        evening = np.maximum(day.soc - day.drain * (day.plug_s - day.unplug_s), 0.0)
        # Who holds out until it is plugged in is still on then, whatever rounding makes of the charge.
        held_out = charged & (low >= day.plug_s)
        passes = _crossing(day.plug_s, evening, least, day.gain, day.end_s)
        rises = np.where(held_out, day.plug_s, np.where(day.gain > 0, passes, day.end_s))
        falls = np.where(held_out & (day.gain < 0), passes, day.end_s)
        # On during [unplug, first_end) and [rises, falls), which is one stretch where they touch.
        first_end = np.where(held_out, falls, low)
        on_again = (t_s >= rises) & (t_s < falls)
        on = (t_s < first_end) | on_again
        end = np.where(
            t_s < first_end,
            first_end,
            np.where(t_s < rises, rises, np.where(on_again, falls, day.end_s)),
        )
        return Segment(on, end, end < day.end_s)

    def _day(self, ids: Ids, t_s: Floats) -> _Day:
        factor = 1.0 + IDLE_POWER_SPREAD * (2.0 * hashed_uniform(self._power_key, ids) - 1.0)
        idle_w, capacity_j = self._idle_power_w * factor, rows_of(self._capacity_j, ids)
        drain, gain = idle_w / capacity_j, (self._charge_power_w - idle_w) / capacity_j
        jitter = PLUG_IN_SPREAD_S * (2.0 * hashed_uniform(self._plug_key, ids) - 1.0)
        # The unplugging at or before the start of the run; the first day is entered in its middle.
        first = np.mod(self._unplug_local_s + jitter - rows_of(self._utc_offset_s, ids), DAY_S) - DAY_S
        number = epoch_of(t_s, first, DAY_S)
        unplug, end = first + number * DAY_S, first + (number + 1.0) * DAY_S
        plug = end - self._plugged_s

        start = self._start_low + (self._start_high - self._start_low) * hashed_uniform(self._start_key, ids)
        first_plug = np.maximum(first + DAY_S - self._plugged_s, 0.0)
        morning = _after(start, drain * first_plug, gain * (first + DAY_S - first_plug))
        lost, gained = drain * (DAY_S - self._plugged_s), gain * self._plugged_s
        soc = np.where(number == 0, start, _after_days(morning, lost, gained, np.maximum(number - 1, 0)))
        unplug = np.maximum(unplug, 0.0)
        return _Day(unplug, np.maximum(plug, unplug), end, soc, drain, gain)


def _after(soc: Floats, lost: Floats, gained: Floats) -> Floats:
    return np.clip(np.maximum(soc - lost, 0.0) + gained, 0.0, 1.0)


def _after_days(soc: Floats, lost: Floats, gained: Floats, days: Ids) -> Floats:
    """Return the state of charge after whole days; the closed form at the top of the module."""
    net = gained - lost
    low = np.clip(gained, 0.0, 1.0)
    more = (days - 1.0) * net
    rising = np.minimum(np.maximum(soc + net, low) + more, 1.0)
    falling = np.maximum(np.minimum(soc + net, 1.0) + more, low)
    return np.where(days == 0, soc, np.where(net >= 0, rising, falling))


def _crossing(start_s: Floats, soc: Floats, least: float, rate: Floats, end_s: Floats) -> Floats:
    """Return when a charge of ``soc`` that moves at ``rate`` a second passes ``least``, absolute seconds.

    ``start_s`` if it is already past it in the direction in which it moves; ``end_s`` if it gets there later
    or never.
    """
    ahead = np.divide(least - soc, rate, out=np.full(soc.shape, np.inf), where=rate != 0)
    return np.asarray(np.clip(start_s + np.maximum(ahead, 0.0), start_s, end_s))
