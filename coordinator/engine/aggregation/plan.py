"""How the updates of a run are aggregated."""

from __future__ import annotations

from coordinator.engine.aggregation.bound import BoundedUpdates
from coordinator.engine.aggregation.held import HeldUpdates
from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.schema import Scenario
from edge.learning.updates import Accumulator


def aggregating(accumulator: Accumulator, scenario: Scenario) -> Accumulator:
    """Return what updates in the clear go into: the method's empty accumulator, or one around it."""
    section = scenario.aggregation
    rule = section.build()
    if rule is not None:
        accumulator = HeldUpdates(accumulator, rule, getattr(section, "min_senders", 1))
    bound = section.norm_bound
    if isinstance(scenario.privacy, CentralGaussian):
        bound = scenario.privacy.clip_norm  # other noise comes on top of what was clipped
    return accumulator if bound is None else BoundedUpdates(accumulator, bound)
