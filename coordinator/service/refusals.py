"""What of a scenario cannot be had on the real clock, said before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.protection import secure_sections, stays_on_devices
from coordinator.scenario.registered_sections import fitting_policies, method_name
from coordinator.scenario.rounds_section import Buffered, PartialWorkPacing
from coordinator.scenario.secure_section import Ckks, Masking
from device_profiles.errors import DocumentError, Path
from edge.learning.base import MEAN, Algorithm


def refuse_on_real_clock(loaded: LoadedScenario) -> None:
    """Refuse a scenario that asks for what only a simulation has.

    Raises
    ------
    ScenarioError : with all that is in the way.
    """
    _raise(loaded, _problems(loaded))


def refuse_on_devices(loaded: LoadedScenario) -> None:
    """Refuse a scenario that a device by itself cannot take part in.

    Raises
    ------
    ScenarioError : with all that is in the way.
    """
    found = []
    for place, section in secure_sections(loaded.scenario):
        if isinstance(section, Ckks):
            message = "all devices of ckks share one secret key, and there is no way to hand it out"
            found.append(((*place, "mode"), message, "use 'recfleet run --clock real', or another mode"))
    _raise(loaded, iter(found))


def refuse_without_roster(loaded: LoadedScenario, devices: int, roster: Mapping[int, bytes] | None) -> None:
    """Refuse a service in active mode whose devices have no identities, or others, or would not take part.

    Raises
    ------
    ScenarioError : with what to do.
    """
    _raise(loaded, _problems_of_active(loaded, devices, roster))


def refuse_unsent_mean(loaded: LoadedScenario, algorithm: Algorithm[Any]) -> None:
    """Refuse a query of the mean rating whose answer no model would bring to the devices.

    Raises
    ------
    ScenarioError : with what to write instead.
    """
    if loaded.scenario.mean_query is None or MEAN in algorithm.broadcast(algorithm.initial_state(0)):
        return
    message = f"devices of {method_name(loaded.scenario.learning)!r} begin with the mean, and no model has it"
    hint = "write 'rating_mean' in data.public in its place"
    _raise(loaded, iter([(("data", "mean_query"), message, hint)]))


def _problems_of_active(
    loaded: LoadedScenario, devices: int, roster: Mapping[int, bytes] | None
) -> Iterator[tuple[Path, str, str]]:
    sections = list(secure_sections(loaded.scenario))
    if all(section.mode != "active" for _, section in sections):
        return
    for place, section in sections:
        if section.mode != "active":
            message = f"devices with identities, which other phases need, take no part in mode {section.mode}"
            yield (*place, "mode"), message, "write 'active' everywhere, or use 'recfleet run --clock real'"
        elif roster is None or len(roster) != devices:
            message = "devices in mode active sign with identities of their own, and none were issued"
            if roster is not None:
                message = f"{len(roster)} devices were issued identities, and the fleet has {devices}"
            options = f"--devices 0-{devices - 1} --each --identities"
            hint = f"issue them: 'recfleet enroll issue DIR {options}', and add --enrolment DIR"
            yield (*place, "mode"), message, hint


def _problems(loaded: LoadedScenario) -> Iterator[tuple[Path, str, str]]:
    scenario = loaded.scenario
    if scenario.faults:
        yield ("faults",), "faults strike simulated devices only", "leave them out"
    if scenario.baseline is not None:
        yield ("baseline",), "there are no faults to leave out", "leave it out"
    if scenario.evaluation.select is not None:
        message = "a coordinator that is started again does not have the model of the best round"
        yield ("evaluation", "select"), message, "leave it out"
    pacing = scenario.rounds.pacing
    if isinstance(pacing, Buffered | PartialWorkPacing):
        yield ("rounds", "pacing"), "this pacing is for simulated devices only so far", "write 'synchronous'"
    if scenario.phase_time_s is not None:
        yield ("phases", 0, "time"), "devices cannot tell phases that are measured in time", "write 'rounds'"
    kept_back = stays_on_devices(scenario) or any(one.mode != "off" for _, one in secure_sections(scenario))
    if kept_back and scenario.rounds.selection.by_examples:
        message = "this policy draws by how much data a device has, which is kept back from the coordinator"
        yield ("rounds", "selection"), message, f"write {fitting_policies('by_reports')}"
    if kept_back and scenario.inference is not None:
        message = (
            "devices' own models are run here from their data, which gives away how many ratings each has"
        )
        yield ("inference",), message, "leave it out, or the secure sum and the noise of devices"
    for place, section in secure_sections(scenario):
        if isinstance(section, Masking | Ckks) and section.crypto != "real":
            yield (*place, "crypto"), "modelled cryptography hides nothing from a real peer", "write 'real'"


def _raise(loaded: LoadedScenario, problems: Iterator[tuple[Path, str, str]]) -> None:
    errors = [
        DocumentError(loaded.document.position(path), path, f"on the real clock: {message}", hint)
        for path, message, hint in problems
    ]
    if errors:
        raise ScenarioError(errors)
