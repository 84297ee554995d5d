"""The range of every number that a device reports, and of every sum of them: nothing outside is applied.

Arrays have theirs in :mod:`edge.learning.accumulators`, where they are looked at. A report is checked
wherever it can be read: in the clear, for a mean, a buffer or a robust rule. Of a secure sum, whose inputs
nobody sees, the sum itself is checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from coordinator.engine.workload import Workload
from coordinator.scenario.protection import secure_sections, stays_on_devices
from coordinator.scenario.registered_sections import method_name
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.secure_section import NoSecureAggregation
from edge.core.errors import RemoteProtocolError
from edge.learning.accumulators import OUT_OF_RANGE
from edge.learning.registry import METHODS
from edge.learning.updates import Accumulator, Aggregate, UpdateBatch
from edge.wire.messages import Report

LOSS_MAX: Final = 1e12
"""Largest absolute value of a training loss."""
WEIGHT_MIN: Final = 2.0**-30
"""Smallest weight above 0: no device does a smaller part of its work, and what is divided by it is finite."""


@dataclass(frozen=True, slots=True)
class ReportRanges:
    """What the numbers of a run's reports lie between.

    Attributes
    ----------
    weight_max : largest weight: 1, or the most examples of a device where weights count them.
    examples_max : most examples of a device.
    bare : whether examples and loss stay on the devices, so that both are exactly 0.
    signed_loss : whether the method's loss may be negative.
    """

    weight_max: float
    examples_max: int
    bare: bool = False
    signed_loss: bool = False

    @classmethod
    def of(cls, scenario: ScenarioSettings, workload: Workload) -> ReportRanges:
        """Return the ranges of a run."""
        method = METHODS[method_name(scenario.learning)]
        held = int(workload.examples(np.arange(workload.n_clients)).max(initial=0))
        most = held + math.floor(method.added_examples(scenario.learning) * held)
        planned = [
            section.examples_max
            for _, section in secure_sections(scenario)
            if not isinstance(section, NoSecureAggregation)
        ]
        most = max([most, *planned])
        return cls(
            weight_max=1.0 if method.uniform(scenario.learning) else float(most),
            examples_max=most,
            bare=stays_on_devices(scenario),
            signed_loss=method.signed_loss,
        )

    def check(self, report: Report, accumulator: Accumulator) -> None:
        """Refuse a report that ``accumulator`` must not be given.

        Raises
        ------
        RemoteProtocolError : reason ``out-of-range`` for a number outside its range; what
            :meth:`~edge.learning.updates.Accumulator.check` raises of the arrays.
        """
        weight, examples, loss = report.weight, report.examples, report.loss
        if not (weight == 0 or WEIGHT_MIN <= weight <= self.weight_max):
            raise _outside("weight", weight, f"0, or from {WEIGHT_MIN:g} to {self.weight_max:g}")
        if self.bare:
            if examples != 0 or loss != 0:
                what, value = ("number of examples", examples) if examples else ("loss", loss)
                raise _outside(what, value, "0: it stays on the device")
        else:
            # Of one whose data all went into fitting what it keeps there are no examples, and no weight.
            if not (0 if weight == 0 else 1) <= examples <= self.examples_max:
                raise _outside("number of examples", examples, f"from 1 to {self.examples_max}")
            if not self._can_be(loss):
                raise _outside("loss", loss, self._losses)
        accumulator.check(report.arrays)

    def check_many(self, batch: UpdateBatch, accumulator: Accumulator) -> bool:
        """Return whether :meth:`check` is known to refuse no report that brings an update of a batch.

        False means that each is to be checked: one may be refused, or all may pass.
        """
        weights, examples, losses = batch.weights, batch.examples, batch.losses
        working = weights != 0
        if not (((weights >= WEIGHT_MIN) & (weights <= self.weight_max)) | ~working).all():
            return False
        if self.bare:
            if examples.any() or losses.any():
                return False
        else:
            if not ((examples >= working) & (examples <= self.examples_max)).all():
                return False
            if not ((losses >= self._loss_min) & (losses <= LOSS_MAX)).all():
                return False
        return accumulator.check_many(batch)

    def objection(self, aggregate: Aggregate) -> str | None:
        """Return why a sum is out of the range that its contributors allow; None if it is within."""
        clients, weight, examples, loss = (
            aggregate.clients,
            aggregate.weight,
            aggregate.examples,
            aggregate.loss,
        )
        if not 0 < weight <= clients * self.weight_max:
            return f"{clients} updates weigh {weight:g} together, and each {self.weight_max:g} at most"
        if not 0 <= examples <= (0 if self.bare else clients * self.examples_max):
            return f"{clients} updates are of {examples} examples, and each of {self.examples_max} at most"
        if examples and not self._can_be(loss):
            return f"their mean loss is {loss:g}, and that of one is {self._losses}"
        if not aggregate.finite():
            return "it is not finite"
        return None

    def _can_be(self, loss: float) -> bool:
        return self._loss_min <= loss <= LOSS_MAX

    @property
    def _loss_min(self) -> float:
        return -LOSS_MAX if self.signed_loss else 0.0

    @property
    def _losses(self) -> str:
        return f"from {self._loss_min:g} to {LOSS_MAX:g}"


def _outside(what: str, value: float, wanted: str) -> RemoteProtocolError:
    return RemoteProtocolError(OUT_OF_RANGE, f"the {what} of a report is {value:g}, not {wanted}")
