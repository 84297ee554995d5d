"""Checks of a valid scenario against what it refers to: the catalogue and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path as FilePath

from coordinator.scenario.data_section import TableFeatures
from coordinator.scenario.errors import FieldProblem, did_you_mean
from coordinator.scenario.fleet_section import ScenarioFleet
from coordinator.scenario.schema import ScenarioSettings
from device_profiles import catalogue
from device_profiles.availability import (
    Always,
    AvailabilityProfile,
    AvailabilitySection,
    CombinedSection,
    TraceSection,
    regions_of,
)
from device_profiles.catalogue import Catalogue
from device_profiles.catalogue_reading import Parsed
from device_profiles.errors import Path, ProfileError, TraceError
from device_profiles.importers.link_files import MahimahiTrace, file_keys, read_link_trace
from device_profiles.profile import FleetGroup, FleetShare
from device_profiles.quantities import quoted

# Here os.path, and not Path.is_file(): that raises for a name that no file can have, such as a very long one.

Resolve = Callable[[Path], FilePath]
"""Gives the file that the text at a path of the scenario names."""
Part = Callable[[Path], Parsed]
"""Gives the profiles that are written at a path of the scenario."""


def profile_layers(fleet: ScenarioFleet, resolve: Resolve, part: Part) -> list[FilePath | Parsed]:
    """Return the further profiles of a fleet, in order, as the catalogue takes them."""
    return [resolve(place) if isinstance(one, str) else part(place) for place, one in fleet.layers]


def check_references(
    scenario: ScenarioSettings, resolve: Resolve, part: Part, *, data_here: bool = True
) -> Iterator[FieldProblem]:
    """Yield every name and file of a scenario that does not exist; without ``data_here`` none of ratings.

    Raises
    ------
    CatalogueError : further profiles that cannot be used; it names the place in their file or the scenario.
    """
    yield from _files(scenario, resolve, data_here=data_here)
    extra = profile_layers(scenario.fleet, resolve, part)
    missing = [
        FieldProblem(place, f"there is no such file {quoted(layer)}")
        for (place, _), layer in zip(scenario.fleet.layers, extra, strict=True)
        if not isinstance(layer, Parsed) and not os.path.isfile(layer)
    ]
    if missing:
        yield from missing
        return
    known = catalogue.load(extra)
    unknown = list(_profiles(scenario.fleet, known))
    yield from unknown
    availabilities: tuple[AvailabilityProfile, ...] = ()
    if not any({"mix", "availability"} & set(problem.path) for problem in unknown):
        availabilities, problems = _availabilities(scenario.fleet, known, resolve)
        yield from problems
    regions = regions_of_fleet(scenario.fleet, availabilities) if availabilities else ()
    yield from _tags(scenario, known, regions)


def _files(scenario: ScenarioSettings, resolve: Resolve, *, data_here: bool) -> Iterator[FieldProblem]:
    if data_here and getattr(scenario.data, "path", None) is not None:
        path = resolve(("data", "path"))
        if not os.path.exists(path):
            message = f"there is no such file or folder {quoted(path)}"
            yield FieldProblem(("data", "path"), message, "name one with: --set data.path=...")
    if isinstance(getattr(scenario.data, "features", None), TableFeatures):
        path = resolve(("data", "features", "path"))
        if not os.path.isfile(path):
            yield FieldProblem(("data", "features", "path"), f"there is no such file {quoted(path)}")
    fleet = scenario.fleet
    traces: list[tuple[Path, str | MahimahiTrace | None]] = [(("fleet", "link_trace"), fleet.link_trace)]
    for index, group in enumerate(fleet.groups or ()):
        traces.append((("fleet", "groups", index, "link_trace"), group.link_trace))
    for place, trace in traces:
        if trace is not None:
            yield from _link_trace(place, trace, resolve)


def _link_trace(place: Path, trace: str | MahimahiTrace, resolve: Resolve) -> Iterator[FieldProblem]:
    places = [(*place, *keys) for keys in file_keys(trace)]
    files = [resolve(at) for at in places]
    missing = [(at, file) for at, file in zip(places, files, strict=True) if not os.path.isfile(file)]
    for at, file in missing:
        yield FieldProblem(at, f"there is no such file {quoted(file)}")
    if not missing:
        try:
            read_link_trace(trace, files)
        except TraceError as error:
            yield FieldProblem(place, str(error))


def _unknown(path: Path, kind: str, name: str, known: Iterable[str], *, of_key: bool = False) -> FieldProblem:
    hint = did_you_mean(name, known) or "see them all with: recfleet profiles list"
    return FieldProblem(path, f"unknown {kind} {quoted(name)}", hint, of_key)


def _profiles(fleet: ScenarioFleet, known: Catalogue) -> Iterator[FieldProblem]:
    names = known.names()
    if fleet.mix is not None and fleet.mix not in names["fleets"]:
        yield _unknown(("fleet", "mix"), "fleet", fleet.mix, names["fleets"])
    grouped = fleet.mix in names["fleets"] and bool(known.fleet(fleet.mix).groups)
    for key, kind, shares in (("devices", "device", fleet.devices), ("networks", "network", fleet.networks)):
        if grouped and shares is not None:
            message = f"the fleet {quoted(fleet.mix)} has groups; leave out 'mix' or '{key}'"
            yield FieldProblem(("fleet", key), message, of_key=True)
        for name in shares or ():
            if name not in names[key]:
                yield _unknown(("fleet", key, name), kind, name, names[key], of_key=True)
    named: list[tuple[Path, str, str, str | None]] = []
    if isinstance(fleet.availability, str):
        named.append((("fleet", "availability"), "availability", "availability", fleet.availability))
    elif isinstance(fleet.availability, CombinedSection):
        for index, part in enumerate(fleet.availability.of):
            named.append((("fleet", "availability", "of", index), "availability", "availability", part))
    for index, group in enumerate(fleet.groups or ()):
        place: Path = ("fleet", "groups", index)
        named += [
            ((*place, "device"), "devices", "device", group.device),
            ((*place, "network"), "networks", "network", group.network),
            ((*place, "availability"), "availability", "availability", group.availability),
        ]
    for path, section, kind, written in named:
        if written is not None and written not in names[section]:
            yield _unknown(path, kind, written, names[section])


def _availabilities(
    fleet: ScenarioFleet, known: Catalogue, resolve: Resolve
) -> tuple[tuple[AvailabilityProfile, ...], list[FieldProblem]]:
    """Return the availability of each group, and what is wrong with one written out or with all together."""
    section = fleet.availability
    place: Path = ("fleet", "availability")
    folder = FilePath()
    if isinstance(section, TraceSection):
        file = resolve((*place, "file"))
        if not os.path.isfile(file):
            return (), [FieldProblem((*place, "file"), f"there is no such file {quoted(file)}")]
        folder = file.parent
        fleet = fleet.model_copy(update={"availability": section.model_copy(update={"file": file.name})})
    try:
        profiles = availabilities_of(fleet, known, folder)
    except ProfileError as error:
        assert isinstance(section, AvailabilitySection)
        keys = {attribute: key for key, attribute in section.fields.items()}
        key = keys.get(error.field, error.field)
        return (), [
            FieldProblem((*place, key) if key in type(section).model_fields else place, error.problem)
        ]
    except TraceError as error:
        return (), [FieldProblem((*place, "file"), str(error))]
    problems: list[FieldProblem] = []
    regions: int | None = None
    for index, profile in enumerate(profiles):
        found = regions_of(profile)
        if None not in (found, regions) and found != regions:
            message = f"{quoted(profile.name)} has {found} regions, another group {regions}; use one number"
            at: Path = ("mix",) if fleet.groups is None else ("groups", index, "availability")
            problems.append(FieldProblem(("fleet", *at), message))
        regions = regions if found is None else found
    return profiles, problems


def _tags(scenario: ScenarioSettings, known: Catalogue, regions: tuple[str, ...]) -> Iterator[FieldProblem]:
    """Yield faults and thresholds on classes, networks or regions that the fleet does not have.

    ``regions`` are those of the fleet, none where they are not known.
    """
    fleet = scenario.fleet
    names = known.names()
    mix = known.fleet(fleet.mix) if fleet.mix in names["fleets"] else None
    if fleet.groups is not None:
        devices: Iterable[str] = {group.device for group in fleet.groups}
        networks: Iterable[str] = {group.network for group in fleet.groups}
    else:
        devices = fleet.devices or (mix.devices if mix is not None else ())
        networks = fleet.networks or (mix.networks if mix is not None else ())
    for index, fault in enumerate(scenario.faults):
        wanted = {"class": fault.on.device_class, "network": fault.on.network, "region": fault.on.region}
        for key, there in (("class", devices), ("network", networks), ("region", regions)):
            name = wanted[key]
            if name is not None and there and name not in there:
                hint = did_you_mean(name, there, listed="in this fleet")
                message = f"no device of the fleet has {key} {quoted(name)}"
                yield FieldProblem(("faults", index, "on", key), message, hint)
    for threshold in scenario.thresholds:
        for tag, shares in (("class", devices), ("network", networks)):
            value = dict(threshold.tags).get(tag)
            if value is not None and shares and value not in shares:
                hint = did_you_mean(value, shares, listed="in this fleet")
                path: Path = ("thresholds", threshold.written_key)
                yield FieldProblem(
                    path, f"no device of the fleet has {tag} {quoted(value)}", hint, of_key=True
                )


def availabilities_of(
    fleet: ScenarioFleet, known: Catalogue, folder: FilePath
) -> tuple[AvailabilityProfile, ...]:
    """Return the availability of each group of a fleet; of a fleet without groups its one.

    Parameters
    ----------
    fleet : the section; every name in it exists.
    known : the catalogue.
    folder : where the names of files in an availability that is written out start.

    Raises
    ------
    ProfileError, TraceError : an availability that is written out and cannot be.
    """
    written: str | AvailabilitySection | None = fleet.availability
    if written is None and fleet.mix is not None:
        written = known.fleet(fleet.mix).availability
    of_fleet: AvailabilityProfile
    if isinstance(written, AvailabilitySection):
        of_fleet = written.build("scenario", folder, known.availabilities)
    else:
        of_fleet = Always("always") if written is None else known.availability(written)
    groups: Sequence[FleetShare | FleetGroup] = fleet.groups or ()
    if fleet.groups is None and fleet.mix is not None:
        groups = known.fleet(fleet.mix).groups
    own = [group.availability for group in groups] or [None]
    return tuple(of_fleet if name is None else known.availability(name) for name in own)


def regions_of_fleet(fleet: ScenarioFleet, availabilities: Iterable[AvailabilityProfile]) -> tuple[str, ...]:
    """Return the names of a fleet's regions: those of its availability where that knows any, else its own."""
    counts = (regions_of(profile) for profile in availabilities)
    number = next((count for count in counts if count is not None), fleet.regions)
    return tuple(f"region-{index}" for index in range(number))
