"""Whether the faults of a scenario can strike at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coordinator.scenario.data_section import SyntheticRatings, SyntheticRegression
from coordinator.scenario.errors import Problem, did_you_mean
from coordinator.scenario.faults_section import ORDER, STAGE_OF_LABEL, Fault, stages_of
from device_profiles.quantities import quoted
from edge.vocabulary import label

if TYPE_CHECKING:
    from coordinator.scenario.schema import Scenario


def fault_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield the faults that cannot strike."""
    names: set[str] = set()
    for index, fault in enumerate(scenario.faults):
        for problem in _phase_problems(scenario, fault):
            yield problem._replace(path=("faults", index, *problem.path))
        if fault.name in names:
            yield Problem(("faults", index, "name"), f"a second fault {quoted(fault.name)}; rename one")
        names.add(fault.name)
    if isinstance(scenario.data, SyntheticRatings | SyntheticRegression):
        yield from unknown_victims(scenario, scenario.data.client_count)


def _phase_problems(scenario: Scenario, fault: Fault) -> Iterator[Problem]:
    phases = [phase.name for phase in scenario.phases]
    unknown = False
    for place, phase in enumerate(fault.during or ()):
        if phase not in phases:
            unknown = True
            hint = did_you_mean(phase, phases, listed="phases") or "the scenario has no phases"
            path = ("during",) if len(fault.during or ()) == 1 else ("during", place)
            yield Problem(path, f"unknown phase {quoted(phase)}", hint)
    if fault.at_stage is None or unknown:
        return
    sections = dict.fromkeys(scenario.secure_in(phase) for phase in fault.during or phases or [""])
    reached = dict.fromkeys(stage for section in sections for stage in stages_of(section))
    kinds = list(zip(fault.keys, fault.kinds, strict=True))
    if fault.at_stage not in reached:
        message = f"no device comes to the stage {quoted(fault.at_stage)} there"
    else:
        free = [key for key, kind in kinds if fault.at_stage not in map(label, kind.stages)]
        if not free:
            return
        message = f"{free[0]} cannot be pinned to {quoted(fault.at_stage)}: {dict(kinds)[free[0]].elsewhere}"
    common = frozenset.intersection(*(kind.stages for _, kind in kinds))
    fitting = [label(stage) for stage in ORDER if stage in common and label(stage) in reached]
    hint = f"write one of {', '.join(fitting)}" if fitting else "leave it out"
    if fault.at_stage not in STAGE_OF_LABEL:
        hint = did_you_mean(fault.at_stage, fitting) or hint
    yield Problem(("at_stage",), message, hint)


def unknown_victims(scenario: Scenario, clients: int) -> Iterator[Problem]:
    """Yield the devices that a fault names and that a fleet of as many ``clients`` does not have."""
    for index, fault in enumerate(scenario.faults):
        for place, device in enumerate(fault.on.devices or ()):
            if device >= clients:
                message = f"there is no device {device}; the last of {clients} is {clients - 1}"
                yield Problem(("faults", index, "on", "devices", place), message)
