"""What a run works with: data, method and fleet, put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.evaluation import Evaluator
from coordinator.engine.fleet import Fleet
from coordinator.engine.inference import DeviceInference
from coordinator.engine.privacy import RunPrivacy
from coordinator.engine.secure_sums import SecureSums
from coordinator.engine.shielding import Shield
from coordinator.engine.workload import Workload


@dataclass(slots=True)
class Assembly:
    """What a run works with, and the facts about its data for the manifest."""

    workload: Workload
    fleet: Fleet
    evaluator: Evaluator
    data_facts: dict[str, Any]
    secure_sums: Mapping[str, SecureSums | None] = field(default_factory=dict)
    """How updates are summed in each phase, by its name; None: every device reports in the clear."""
    shields: Mapping[str, Shield] = field(default_factory=dict)
    """Tests for reporting in the clear beside a secure sum, by name of the phase; empty without shielding."""
    privacy: RunPrivacy | None = None
    catalogue: dict[str, Any] | None = None
    """What the items are called in the data, for ``items.json``; None for data without items."""
    inference: DeviceInference | None = None
    """Runs devices' own models; None in a run without a section ``inference``."""
    ranges: ReportRanges = field(init=False)
    """What the numbers of reports lie between."""
    wall_s: float = 0.0
    """How long this took on this host."""

    def counts_kept_back(self, phase: str) -> bool:
        """Return whether the coordinator is given no device's number of examples in rounds of a phase.

        So it is with noise that devices add, and under a secure sum.
        """
        return self.ranges.bare or self.secure_sums[phase] is not None
