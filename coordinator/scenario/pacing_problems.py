"""Whether selection and pacing suit what else a scenario asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coordinator.scenario.errors import Problem
from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.protection import secure_sections

if TYPE_CHECKING:
    from coordinator.scenario.schema import Scenario


def pacing_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield what keeps devices from being selected and waited for as the scenario says."""
    yield from _selection_problems(scenario)


def _selection_problems(scenario: Scenario) -> Iterator[Problem]:
    selection = scenario.rounds.selection
    if not selection.needs_losses:
        return
    place = ("rounds", "selection")
    hint = "write 'selection: random', 'availability-aware', 'round-robin' or 'deadline-aware'"
    message = f"{selection.policy!r} looks at the losses of single devices, which nobody sees"
    if any(section.mode != "off" for _, section in secure_sections(scenario)):
        yield Problem(place, f"{message} under secure aggregation", hint)
    elif scenario.privacy is not None and not isinstance(scenario.privacy, CentralGaussian):
        yield Problem(place, f"{message} where noise is added on the device", hint)
