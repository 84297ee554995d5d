"""The policies of selection by their sections. To add one is to add a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coordinator.scenario.selection_section import (
    AvailabilityAware,
    DeadlineAware,
    Oort,
    PowerOfChoice,
    RandomSelection,
    RoundRobin,
    Selection,
)
from coordinator.selection import deadline_aware, oort, power_of_choice, round_robin, uniform
from coordinator.selection.base import Knowledge, Policy, Selector
from coordinator.selection.pool import Pool

_POLICIES: Final[dict[type[Any], Callable[[Knowledge, Pool, Any], Policy]]] = {
    RandomSelection: lambda knowledge, pool, _: uniform.Uniform(knowledge, pool),
    AvailabilityAware: lambda knowledge, pool, _: uniform.Uniform(knowledge, pool),
    PowerOfChoice: lambda knowledge, pool, section: power_of_choice.PowerOfChoice(
        knowledge, pool, section.candidates
    ),
    Oort: oort.Oort,
    RoundRobin: lambda knowledge, pool, _: round_robin.RoundRobin(knowledge, pool),
    DeadlineAware: lambda knowledge, pool, section: deadline_aware.DeadlineAware(
        knowledge, pool, section.margin
    ),
}


def make_selector(section: Selection, knowledge: Knowledge) -> Selector:
    """Return the selector of a scenario's section ``rounds.selection``."""
    pool = Pool(knowledge.fleet, knowledge.seed, available_only=section.available_only)
    return Selector(pool, _POLICIES[type(section)](knowledge, pool, section), knowledge.experience)
