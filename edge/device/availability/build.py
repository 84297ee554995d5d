"""From an availability profile to the model that answers for it."""

from __future__ import annotations

from functools import partial
from typing import assert_never

import numpy as np
import numpy.typing as npt

from device_profiles.availability import (
    Always,
    AvailabilityProfile,
    BatteryGated,
    Bernoulli,
    Combined,
    Diurnal,
    Exponential,
    HeavyTail,
    LengthDistribution,
    OnOffSessions,
    RegionalOutage,
    TraceAvailability,
)
from edge.core.rng import stream_key
from edge.device.availability.base import AvailabilityModel, Floats
from edge.device.availability.battery import BatteryAvailability
from edge.device.availability.combined import All
from edge.device.availability.models import (
    AlwaysAvailable,
    BernoulliDropout,
    DiurnalAvailability,
    HeavyTailAvailability,
    RegionalOutageAvailability,
    TraceReplay,
)
from edge.device.availability.sessions import Lengths, SessionAvailability, SessionKeys, log_normal_mean


def build(
    profile: AvailabilityProfile,
    seed: int,
    *,
    utc_offset_s: float | Floats,
    region: npt.NDArray[np.integer] | None = None,
    battery_j: Floats | None = None,
) -> AvailabilityModel:
    """Return the model of ``profile`` for a fleet.

    Its random streams are named after the profile's kind and name: two profiles of a run are independent of
    each other, and the same one under the same seed is the same model. A combined one is its parts, each as
    it is alone.

    Parameters
    ----------
    profile : what is wanted.
    seed : of the run.
    utc_offset_s : local time minus UTC, seconds, where a local hour counts: one for all or float64[devices].
    region : int[devices], for regional outages; None assigns devices to regions at random.
    battery_j : float64[devices], energy of each device's battery, NaN where its profile names none; None if
        no profile names any.

    Raises
    ------
    ValueError : a region that the profile does not have.
    """
    name = ("availability", profile.kind, profile.name)
    key = partial(stream_key, seed, *name)
    match profile:
        case Always():
            return AlwaysAvailable()
        case Bernoulli():
            shares = np.array([profile.before_download, profile.during_compute, profile.during_upload])
            return BernoulliDropout(key("dropout"), profile.drop_probability, shares)
        case Diurnal():
            return DiurnalAvailability(
                key("phase"),
                key("slot"),
                mean_available=profile.mean_available,
                peak_to_trough=profile.peak_to_trough,
                peak_local_hour=profile.peak_local_hour,
                utc_offset_s=utc_offset_s,
            )
        case OnOffSessions():
            keys = SessionKeys.of(seed, *name)
            return SessionAvailability(keys, _lengths(profile.on), _lengths(profile.off))
        case BatteryGated():
            return BatteryAvailability(
                key("start"),
                key("plug-in"),
                key("idle-power"),
                capacity_j=_capacity(profile.capacity_j, battery_j),
                min_charge=profile.min_charge,
                start_charge_low=profile.start_charge_low,
                start_charge_high=profile.start_charge_high,
                idle_power_w=profile.idle_power_w,
                charge_power_w=profile.charge_power_w,
                plug_in_local_hour=profile.plug_in_local_hour,
                plugged_hours=profile.plugged_hours,
                utc_offset_s=utc_offset_s,
            )
        case RegionalOutage():
            return RegionalOutageAvailability(
                SessionKeys.of(seed, *name),
                key("region"),
                regions=profile.regions,
                mean_between_s=profile.mean_between_s,
                mean_outage_s=profile.mean_outage_s,
                region=region,
            )
        case HeavyTail():
            return HeavyTailAvailability(
                SessionKeys.of(seed, *name),
                key("activity"),
                key("failure"),
                key("dropout"),
                mean_failure=profile.mean_failure,
                top_share=profile.top_share,
                top_participation=profile.top_participation,
            )
        case TraceAvailability():
            return TraceReplay(profile.trace)
        case Combined():
            parts = profile.parts
            return All(
                [
                    build(part, seed, utc_offset_s=utc_offset_s, region=region, battery_j=battery_j)
                    for part in parts
                ]
            )
        case _:
            assert_never(profile)


def _lengths(distribution: LengthDistribution) -> Lengths:
    if isinstance(distribution, Exponential):
        return Lengths(distribution.mean_s, None)
    return Lengths(log_normal_mean(distribution.median_s, distribution.sigma_log), distribution.sigma_log)


def _capacity(capacity_j: float, battery_j: Floats | None) -> float | Floats:
    if battery_j is None:
        return capacity_j
    return np.where(np.isnan(battery_j), capacity_j, battery_j)
