"""How the updates of a run are aggregated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.aggregation.bound import BoundedUpdates
from coordinator.aggregation.held import HeldUpdates
from edge.learning.base import Accumulator

if TYPE_CHECKING:
    from coordinator.scenario.aggregation_section import Aggregation


def aggregating(accumulator: Accumulator, section: Aggregation) -> Accumulator:
    """Return what updates in the clear go into: the method's empty accumulator, or one around it."""
    rule = section.build()
    if rule is not None:
        accumulator = HeldUpdates(accumulator, rule, getattr(section, "min_senders", 1))
    if section.norm_bound is not None:
        accumulator = BoundedUpdates(accumulator, section.norm_bound)
    return accumulator
