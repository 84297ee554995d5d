"""Rows of the tables from the facts of a run: the recorder that the engine writes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import CohortFacts, FaultStrike, FleetNames, Inferences, MetricValue, RoundFacts
from coordinator.results.tables.batches import evaluation_batch, fault_batch, inference_batch, round_batches
from coordinator.results.tables.writer import TableWriter


class TableRecorder:
    """Records a run in its tables; implements :class:`~coordinator.engine.facts.Recorder`.

    Parameters
    ----------
    writer : of the tables.
    names : of device classes, networks and regions.
    """

    def __init__(self, writer: TableWriter, names: FleetNames) -> None:
        self._writer = writer
        self._names = names

    def round(
        self, facts: RoundFacts, cohort: CohortFacts, columns: npt.NDArray[np.float64]
    ) -> Mapping[str, Any]:
        """Write the rows of a finished round; return its row of ``rounds``."""
        batches = round_batches(facts, cohort, self._names, columns)
        self._writer.write_round(batches)
        return batches.row

    def faults(self, round_number: int, phase: str, strikes: Sequence[FaultStrike]) -> None:
        """Write what faults did in a round; before the rows of the round."""
        self._writer.write_faults(fault_batch(round_number, phase, strikes))

    def evaluation(self, round_number: int, phase: str, time_s: float, values: Sequence[MetricValue]) -> None:
        """Write one evaluation of the model."""
        self._writer.write_evaluations(evaluation_batch(round_number, phase, time_s, values))

    def inferences(self, round_number: int, phase: str, time_s: float, inferences: Inferences) -> None:
        """Write one inference of the model on devices."""
        self._writer.write_inferences(inference_batch(round_number, phase, time_s, inferences, self._names))
