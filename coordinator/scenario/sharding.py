"""Which scenarios can be run in shards: what couples devices of different shards is refused, by name."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.protection import secure_sections
from coordinator.scenario.rounds_section import Buffered
from coordinator.scenario.secure_section import NoSecureAggregation
from device_profiles.errors import DocumentError, Path

_ALONE = "or run with --shards 1"


def check_sharding(loaded: LoadedScenario, shards: int) -> None:
    """Refuse to run a scenario in so many shards, more than one, that it cannot be run in.

    Raises
    ------
    ScenarioError : with everything that stands in the way, each with its place.
    """
    problems: list[tuple[Path, str, str]] = []
    groups = loaded.scenario.compute.sum_groups
    if shards > groups:
        message = f"{shards} shards are more than the {groups} groups that sums are made in"
        problems.append((("compute", "sum_groups"), message, f"run with --shards {groups}, or fewer"))
    problems += _obstacles(loaded)
    if problems:
        raise ScenarioError(
            [
                DocumentError(loaded.document.position(path), path, message, hint)
                for path, message, hint in problems
            ]
        )


def can_be_sharded(loaded: LoadedScenario) -> bool:
    """Return whether nothing in a scenario is known to couple devices of different shards."""
    return next(_obstacles(loaded), None) is None


def _obstacles(loaded: LoadedScenario) -> Iterator[tuple[Path, str, str]]:
    """Yield what cannot be run in shards: its place, why not, and what to write instead."""
    scenario = loaded.scenario
    if isinstance(scenario.rounds.pacing, Buffered):
        message = "cannot be run in shards: a report of any device may begin the next step"
        yield ("rounds", "pacing", "mode"), message, f"write 'synchronous', {_ALONE}"
    for path, section in secure_sections(scenario):
        if not isinstance(section, NoSecureAggregation):
            message = "cannot be run in shards: each device of a sum shares secrets with devices of others"
            yield (*path, "mode"), message, f"write 'off', {_ALONE}"
    for number, fault in enumerate(scenario.faults):
        if not all(kind.of_devices for kind in fault.kinds):
            message = "cannot be run in shards: it is of the coordinator, which all devices wait for"
            yield ("faults", number, fault.key), message, f"leave it out, {_ALONE}"
    if scenario.compute.workers:
        message = "shards compute in their own processes"
        yield ("compute", "workers"), message, f"leave it out, {_ALONE}"
