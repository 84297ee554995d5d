"""What a run works with: data, method and fleet, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.device_sums import DeviceSums
from coordinator.engine.evaluation import Evaluator
from coordinator.engine.fleet import Fleet
from coordinator.engine.mean_query import MeanQuery, RatingMean
from coordinator.engine.secure_sums import SecureSums
from coordinator.engine.workload import Workload
from edge.core.vocabulary import RoundKind

if TYPE_CHECKING:
    from coordinator.engine.device_evaluation import DeviceEvaluation
    from coordinator.engine.inference import DeviceInference
    from coordinator.engine.privacy import RunPrivacy
    from coordinator.engine.shielding import Shield
    from edge.learning.promotion import PromotedItem


@dataclass(slots=True)
class Assembly:
    """What a run works with, and the facts about its data for the manifest."""

    workload: Workload
    fleet: Fleet
    evaluator: Evaluator
    data_facts: dict[str, Any]
    secure_sums: Mapping[str, SecureSums | None] = field(default_factory=dict)
    """How updates are summed in each phase, by its name; None: every device reports in the clear."""
    shields: Mapping[str, Shield | None] = field(default_factory=dict)
    """Tests for reporting in the clear beside a secure sum, by name of the phase; empty without shielding."""
    privacy: RunPrivacy | None = None
    catalogue: dict[str, Any] | None = None
    """What the items are called in the data, for ``items.json``; None for data without items."""
    device_evaluation: DeviceEvaluation | None = None
    """How devices measure the model; None where the simulator does, or there is nothing to score."""
    mean_query: MeanQuery | None = None
    """How devices are asked for the mean rating; None where they are not."""
    known_mean: RatingMean | None = None
    """The mean rating as it is known beforehand; None where the method begins with none."""
    inference: DeviceInference | None = None
    """Runs devices' own models; None in a run without a section ``inference``."""
    validation: Evaluator | None = None
    """Measures on validation ratings as training goes on, where ``evaluator`` tests the best round alone.

    None where that measures every time.
    """
    target: PromotedItem | None = None
    """The item that faults promote; None where none does."""
    notices: Sequence[str] = ()
    """What limits what the run can show, a sentence each."""
    ranges: ReportRanges = field(init=False)
    """What the numbers of reports lie between."""
    wall_s: float = 0.0
    """How long this took on this host."""

    def asked(self) -> dict[RoundKind, DeviceSums]:
        """Return what devices report beside updates."""
        found: dict[RoundKind, DeviceSums | None] = {
            RoundKind.MEAN_QUERY: self.mean_query,
            RoundKind.EVALUATION: self.device_evaluation,
        }
        return {kind: one for kind, one in found.items() if one is not None}

    def rating_mean(self) -> RatingMean | None:
        """Return the mean rating that the method begins with; None where it begins with none."""
        return self.known_mean if self.mean_query is None else self.mean_query.answer or self.known_mean

    def all_sums(self) -> list[SecureSums | None]:
        """Return how updates, and other reports, are summed in each phase."""
        others = (sums for one in self.asked().values() for sums in one.secure_sums.values())
        return [*self.secure_sums.values(), *others]

    def counts_kept_back(self, phase: str) -> bool:
        """Return whether the coordinator is given no device's number of examples in rounds of a phase.

        So it is with noise that devices add, and under a secure sum.
        """
        return self.ranges.bare or self.secure_sums[phase] is not None
