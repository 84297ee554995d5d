"""From a scenario's ``fleet`` section to the fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.fleet import Fleet
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.references import region_names
from device_profiles.availability import Always, AvailabilityProfile, BatteryGated, RegionalOutage
from device_profiles.catalogue import Catalogue
from device_profiles.catalogue import load as load_catalogue
from device_profiles.importers.link_csv import read_link_csv
from device_profiles.importers.mahimahi import read_mahimahi
from device_profiles.profile import NetworkProfile, RadioProfile
from device_profiles.traces import RateTrace
from edge.device.answered import UNLIMITED
from edge.device.availability.base import AvailabilityModel
from edge.device.availability.build import build as build_availability
from edge.rng import hashed_bits, stream_key

HOUR_S = 3600.0
Floats = npt.NDArray[np.float64]

_WIRE = NetworkProfile(
    name="trace",
    down_bps=1.0,
    up_bps=1.0,
    rtt_s=1.0,
    jitter_s=0.0,
    loss=0.0,
    rate_sigma_log=0.0,
    rate_rho_1s=1.0,
    radio=RadioProfile("wired", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
)
"""The network of a fleet whose links follow a trace and that names no networks: the trace says everything."""


def build_fleet(loaded: LoadedScenario, n: int) -> Fleet:
    """Return the fleet of ``n`` devices that the scenario describes."""
    scenario, section = loaded.scenario, loaded.scenario.fleet
    extra = [loaded.resolve(("fleet", "profiles", i)) for i in range(len(section.profiles))]
    catalogue = load_catalogue(extra)
    mix = catalogue.fleet(section.mix) if section.mix is not None else None
    devices = section.devices if section.devices is not None else (mix.devices if mix else {})
    networks = section.networks if section.networks is not None else (mix.networks if mix else {})
    device_profiles = [(catalogue.device(name), share) for name, share in devices.items()]
    trace = _link_trace(loaded)
    network_profiles = [(catalogue.network(name), share) for name, share in networks.items()] or [
        (_WIRE, 1.0)
    ]
    profile = _availability(loaded, catalogue, mix.availability if mix is not None else None)
    names = region_names(profile, section.regions)
    region_key = stream_key(scenario.seed, "fleet", "region")
    ids = np.arange(n, dtype=np.int64)
    regions = (hashed_bits(region_key, ids) % np.uint64(len(names))).astype(np.uint8)

    def availability(batteries_j: Callable[[], Floats]) -> AvailabilityModel:
        return build_availability(
            profile,
            scenario.seed,
            utc_offset_s=_utc_offset_s(scenario.seed, section.time_zones, ids),
            region=regions if isinstance(profile, RegionalOutage) else None,
            battery_j=batteries_j() if isinstance(profile, BatteryGated) else None,
        )

    return Fleet(
        scenario.seed,
        n,
        device_profiles,
        network_profiles,
        regions,
        names,
        availability,
        trace,
        UNLIMITED if scenario.round_count is None else scenario.round_count,
    )


def _link_trace(loaded: LoadedScenario) -> RateTrace | None:
    section = loaded.scenario.fleet.link_trace
    if section is None:
        return None
    place = ("fleet", "link_trace")
    if isinstance(section, str):
        return read_link_csv(loaded.resolve(place))
    down, up = loaded.resolve((*place, "down")), loaded.resolve((*place, "up"))
    return read_mahimahi(down, up, rtt_s=section.rtt, loss=section.loss)


def _utc_offset_s(seed: int, time_zones: int, ids: npt.NDArray[np.int64]) -> Any:
    """Return local time minus UTC: whole hours, devices spread evenly over the time zones."""
    if time_zones == 1:
        return 0.0
    zone = hashed_bits(stream_key(seed, "fleet", "time-zone"), ids) % np.uint64(time_zones)
    return zone.astype(np.float64) * HOUR_S


def _availability(loaded: LoadedScenario, catalogue: Catalogue, of_mix: str | None) -> AvailabilityProfile:
    wanted = loaded.scenario.fleet.availability
    if wanted is None:
        return catalogue.availability(of_mix) if of_mix is not None else Always("always")
    if isinstance(wanted, str):
        return catalogue.availability(wanted)
    return wanted.build("scenario", loaded.folder(("fleet", "availability")))
