"""Checks of a valid scenario against what it refers to: the catalogue and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path as FilePath

from coordinator.scenario.errors import Problem, did_you_mean
from coordinator.scenario.features_section import TableFeatures
from coordinator.scenario.fleet_section import Fleet, MahimahiTrace
from coordinator.scenario.schema import Scenario
from device_profiles import catalogue
from device_profiles.availability_schema import AvailabilitySection, TraceSection
from device_profiles.catalogue import Catalogue
from device_profiles.documents import Path
from device_profiles.errors import ProfileError, TraceError
from device_profiles.quantities import quoted

# Here os.path, and not Path.is_file(): that raises for a name that no file can have, such as a very long one.

Resolve = Callable[[Path], FilePath]
"""Gives the file that the text at a path of the scenario names."""


def check_references(scenario: Scenario, resolve: Resolve) -> Iterator[Problem]:
    """Yield every name and file of a scenario that does not exist.

    Raises
    ------
    CatalogueError : an extra catalogue file that cannot be used; it names the place in that file.
    """
    yield from _files(scenario, resolve)
    extra = [resolve(("fleet", "profiles", index)) for index in range(len(scenario.fleet.profiles))]
    missing = [
        Problem(("fleet", "profiles", index), f"there is no such file {quoted(path)}")
        for index, path in enumerate(extra)
        if not os.path.isfile(path)
    ]
    if missing:
        yield from missing
        return
    known = catalogue.load(extra)
    yield from _profiles(scenario.fleet, known)
    yield from _inline_availability(scenario.fleet, resolve)
    yield from _tags(scenario, known)


def _files(scenario: Scenario, resolve: Resolve) -> Iterator[Problem]:
    if getattr(scenario.data, "path", None) is not None:
        path = resolve(("data", "path"))
        if not os.path.exists(path):
            message = f"there is no such file or folder {quoted(path)}"
            yield Problem(("data", "path"), message, "name one with: --set data.path=...")
    if isinstance(getattr(scenario.data, "features", None), TableFeatures):
        path = resolve(("data", "features", "path"))
        if not os.path.isfile(path):
            yield Problem(("data", "features", "path"), f"there is no such file {quoted(path)}")
    trace = scenario.fleet.link_trace
    if trace is None:
        return
    place: Path = ("fleet", "link_trace")
    places = [(*place, "down"), (*place, "up")] if isinstance(trace, MahimahiTrace) else [place]
    for place in places:
        path = resolve(place)
        if not os.path.isfile(path):
            yield Problem(place, f"there is no such file {quoted(path)}")


def _unknown(path: Path, kind: str, name: str, known: Iterable[str], *, of_key: bool = False) -> Problem:
    hint = did_you_mean(name, known) or "see them all with: recfleet profiles list"
    return Problem(path, f"unknown {kind} {quoted(name)}", hint, of_key)


def _profiles(fleet: Fleet, known: Catalogue) -> Iterator[Problem]:
    names = known.names()
    if fleet.mix is not None and fleet.mix not in names["fleets"]:
        yield _unknown(("fleet", "mix"), "fleet", fleet.mix, names["fleets"])
    for key, kind, shares in (("devices", "device", fleet.devices), ("networks", "network", fleet.networks)):
        for name in shares or ():
            if name not in names[key]:
                yield _unknown(("fleet", key, name), kind, name, names[key], of_key=True)
    if isinstance(fleet.availability, str) and fleet.availability not in names["availability"]:
        yield _unknown(("fleet", "availability"), "availability", fleet.availability, names["availability"])


def _inline_availability(fleet: Fleet, resolve: Resolve) -> Iterator[Problem]:
    section = fleet.availability
    if not isinstance(section, AvailabilitySection):
        return
    place = ("fleet", "availability")
    folder = FilePath()
    if isinstance(section, TraceSection):
        file = resolve((*place, "file"))
        if not os.path.isfile(file):
            yield Problem((*place, "file"), f"there is no such file {quoted(file)}")
            return
        folder = file.parent
        section = section.model_copy(update={"file": file.name})
    try:
        section.build("inline", folder)
    except ProfileError as error:
        keys = {attribute: key for key, attribute in section.fields.items()}
        key = keys.get(error.field, error.field)
        yield Problem((*place, key) if key in type(section).model_fields else place, error.problem)
    except TraceError as error:
        yield Problem((*place, "file"), str(error))


def _tags(scenario: Scenario, known: Catalogue) -> Iterator[Problem]:
    """Yield thresholds on device classes or networks that the fleet does not have."""
    fleet = scenario.fleet
    names = known.names()
    mix = known.fleet(fleet.mix) if fleet.mix in names["fleets"] else None
    devices = fleet.devices or (mix.devices if mix is not None else {})
    networks = fleet.networks or (mix.networks if mix is not None else {})
    regions = _regions(fleet, known, None if mix is None else mix.availability)
    for index, fault in enumerate(scenario.faults):
        wanted = {"class": fault.on.device_class, "network": fault.on.network, "region": fault.on.region}
        for key, there in (("class", devices), ("network", networks), ("region", regions)):
            name = wanted[key]
            if name is not None and there and name not in there:
                hint = did_you_mean(name, there, listed="in this fleet")
                message = f"no device of the fleet has {key} {quoted(name)}"
                yield Problem(("faults", index, "on", key), message, hint)
    for threshold in scenario.thresholds:
        for tag, shares in (("class", devices), ("network", networks)):
            value = dict(threshold.tags).get(tag)
            if value is not None and shares and value not in shares:
                hint = did_you_mean(value, shares, listed="in this fleet")
                path: Path = ("thresholds", threshold.written_key)
                yield Problem(path, f"no device of the fleet has {tag} {quoted(value)}", hint, of_key=True)


def _regions(fleet: Fleet, known: Catalogue, of_mix: str | None) -> tuple[str, ...]:
    """Return the regions of the fleet; none where its availability is not known."""
    wanted = of_mix if fleet.availability is None else fleet.availability
    if wanted is None:
        return region_names(None, fleet.regions)
    if isinstance(wanted, AvailabilitySection):
        return region_names(wanted, fleet.regions)
    if wanted not in known.names()["availability"]:
        return ()
    return region_names(known.availability(wanted), fleet.regions)


def region_names(availability: object, regions: int) -> tuple[str, ...]:
    """Return the names of a fleet's regions: those of its availability where that knows any, else its own."""
    return tuple(f"region-{number}" for number in range(getattr(availability, "regions", regions)))
