"""From a scenario's ``fleet`` section to the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.fleet import Fleet, Makeup
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.references import availabilities_of, regions_of_fleet
from device_profiles.availability import (
    AvailabilityProfile,
    BatteryGated,
    regions_of,
    simple_parts,
)
from device_profiles.catalogue import Catalogue
from device_profiles.catalogue import load as load_catalogue
from device_profiles.errors import Path
from device_profiles.importers.link_files import MahimahiTrace, file_keys, read_link_trace
from device_profiles.profile import FleetGroup
from device_profiles.traces import RateTrace
from edge.core.rng import hashed_bits, stream, stream_key
from edge.device.availability.base import AvailabilityModel
from edge.device.availability.build import build as build_availability
from edge.device.availability.combined import Grouped
from edge.device.participation import UNLIMITED

HOUR_S = 3600.0
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint8]


def build_fleet(loaded: LoadedScenario, n: int) -> Fleet:
    """Return the fleet of ``n`` devices that the scenario describes."""
    scenario, section = loaded.scenario, loaded.scenario.fleet
    catalogue = load_catalogue(loaded.profile_layers)
    groups = _groups(loaded, catalogue)
    if groups:
        group = assign([one.share for one in groups], n, stream(scenario.seed, "fleet", "group"))
        makeup = _in_groups(loaded, catalogue, groups, group)
    else:
        group, makeup = None, _drawn_apart(loaded, catalogue, n)
    profiles = availabilities_of(section, catalogue, loaded.folder(("fleet", "availability")))
    names = regions_of_fleet(section, profiles)
    region_key = stream_key(scenario.seed, "fleet", "region")
    ids = np.arange(n, dtype=np.int64)
    regions = (hashed_bits(region_key, ids) % np.uint64(len(names))).astype(np.uint8)
    offset_s = utc_offset_s(scenario.seed, section.time_zones, ids)

    def availability(batteries_j: Callable[[], Floats]) -> AvailabilityModel:
        def model(profile: AvailabilityProfile) -> AvailabilityModel:
            gated = any(isinstance(part, BatteryGated) for part in simple_parts(profile))
            return build_availability(
                profile,
                scenario.seed,
                utc_offset_s=offset_s,
                region=None if regions_of(profile) is None else regions,
                battery_j=batteries_j() if gated else None,
            )

        models = {profile: model(profile) for profile in dict.fromkeys(profiles)}
        if group is None:
            return models[profiles[0]]
        return Grouped(group, [models[profile] for profile in profiles])

    return Fleet(
        scenario.seed,
        makeup,
        regions,
        names,
        availability,
        UNLIMITED if scenario.answers_count is None else scenario.answers_count,
    )


def assign(shares: list[float], n: int, generator: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return a code for each of ``n`` devices, uint8 [n]: exact counts by largest remainder, shuffled."""
    exact = np.asarray(shares) * n
    counts = np.floor(exact).astype(np.int64)
    remainders = exact - counts
    short = n - int(counts.sum())
    counts[np.argsort(-remainders, kind="stable")[:short]] += 1
    codes = np.repeat(np.arange(len(shares), dtype=np.uint8), counts)
    generator.shuffle(codes)
    return codes


def _drawn_apart(loaded: LoadedScenario, catalogue: Catalogue, n: int) -> Makeup:
    """Return devices and networks that are drawn independently of each other."""
    seed, section = loaded.scenario.seed, loaded.scenario.fleet
    mix = catalogue.fleet(section.mix) if section.mix is not None else None
    devices = section.devices if section.devices is not None else (mix.devices if mix else {})
    networks = section.networks if section.networks is not None else (mix.networks if mix else {})
    network = assign(list(networks.values()), n, stream(seed, "fleet", "network"))
    profiles = tuple(catalogue.network(name) for name in networks)
    of_fleet = _own_trace(loaded, section.link_trace, ("fleet", "link_trace"))
    traces, link = _links([(code, profile.trace or of_fleet) for code, profile in enumerate(profiles)])
    return Makeup(
        devices=tuple(catalogue.device(name) for name in devices),
        networks=profiles,
        device_class=assign(list(devices.values()), n, stream(seed, "fleet", "device-class")),
        network=network,
        traces=traces,
        link=link,
        link_kind=network,
    )


def _groups(loaded: LoadedScenario, catalogue: Catalogue) -> Sequence[FleetGroup]:
    """Return the groups of a fleet, which are its own or its mix's; none where it has shares of each."""
    section = loaded.scenario.fleet
    if section.groups is None:
        return () if section.mix is None else catalogue.fleet(section.mix).groups
    return [
        one.build(_own_trace(loaded, one.link_trace, ("fleet", "groups", index, "link_trace")))
        for index, one in enumerate(section.groups)
    ]


def _in_groups(
    loaded: LoadedScenario, catalogue: Catalogue, groups: Sequence[FleetGroup], group: Codes
) -> Makeup:
    """Return devices and networks by group; ``group`` (uint8 [n]) is that of each device."""
    devices = {one.device: catalogue.device(one.device) for one in groups}
    networks = {one.network: catalogue.network(one.network) for one in groups}
    of_fleet = _own_trace(loaded, loaded.scenario.fleet.link_trace, ("fleet", "link_trace"))
    network_code = _codes(networks, [one.network for one in groups])
    followed = [one.trace or networks[one.network].trace or of_fleet for one in groups]
    traces, link = _links(list(zip(network_code.tolist(), followed, strict=True)))
    return Makeup(
        devices=tuple(devices.values()),
        networks=tuple(networks.values()),
        device_class=_codes(devices, [one.device for one in groups])[group],
        network=network_code[group],
        traces=traces,
        link=link,
        link_kind=group,
    )


def _codes(known: Mapping[str, object], names: Sequence[str]) -> Codes:
    """Return the place of each name among the known ones, uint8."""
    place = {name: index for index, name in enumerate(known)}
    return np.array([place[name] for name in names], dtype=np.uint8)


def _links(
    kinds: Sequence[tuple[int, RateTrace | None]],
) -> tuple[tuple[RateTrace, ...], tuple[tuple[int, int], ...]]:
    """Return the traces of the kinds of links, each once, and each kind's network and trace (or -1)."""
    traces: list[RateTrace] = []
    link: list[tuple[int, int]] = []
    for network, trace in kinds:
        if trace is not None and trace not in traces:
            traces.append(trace)
        link.append((network, -1 if trace is None else traces.index(trace)))
    return tuple(traces), tuple(link)


def _own_trace(loaded: LoadedScenario, written: str | MahimahiTrace | None, place: Path) -> RateTrace | None:
    """Return the trace that is written at a place of the scenario."""
    if written is None:
        return None
    return read_link_trace(written, [loaded.resolve((*place, *keys)) for keys in file_keys(written)])


def utc_offset_s(seed: int, time_zones: int, ids: npt.NDArray[np.int64]) -> Any:
    """Return local time minus UTC: whole hours, devices spread evenly over the time zones."""
    if time_zones == 1:
        return 0.0
    zone = hashed_bits(stream_key(seed, "fleet", "time-zone"), ids) % np.uint64(time_zones)
    return zone.astype(np.float64) * HOUR_S
