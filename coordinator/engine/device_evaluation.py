"""Evaluations on devices: a cohort measures the model on its own kept-back ratings, and sums are seen alone.

A device reconstructs its local factors from its training ratings, as it begins a client update, predicts what
it keeps back, and reports what the metrics are made of
(:class:`~coordinator.engine.evaluation.SummedMetrics`), as :mod:`coordinator.engine.device_sums` says.

Where the run has noise, the sums have it, too. Every device then weighs the same, as in training: it reports
the means over its ratings in place of sums, each cut off at a bound and scaled so that the norm of them all
is within the bound of an update.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coordinator.engine.device_sums import DeviceSums, Floats, SumsWorkload, summed
from coordinator.engine.evaluation import RatingEvaluator, SummedMetrics
from coordinator.engine.facts import MetricValue
from coordinator.engine.workload import Ids, OwnRows, RatingWorkload, RemoteWorkload
from coordinator.scenario.rounds_section import EvaluationSection
from edge.core.errors import LocalProtocolError
from edge.learning.accumulators import VALUE_MAX
from edge.learning.base import State, Work, together
from edge.learning.updates import Aggregate, Array


@dataclass(frozen=True, slots=True)
class SumsScale:
    """How the sums of a device are reported.

    Attributes
    ----------
    metrics : what is measured.
    clip_norm : the largest L2 norm of a report, where noise is sized for it; None: without noise sums are
        reported as they are.
    error_max : the largest error of a device's mean that counts, where ``clip_norm`` is given.
    """

    metrics: SummedMetrics
    clip_norm: float | None = None
    error_max: float = 1.0

    def reported(self, sums: Floats) -> Floats:
        """Return what devices with these sums, float64 [n, width], report."""
        if self.clip_norm is None:
            return np.minimum(sums, VALUE_MAX)
        counts = self.metrics.counts(sums)
        means = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
        return np.minimum(means / self._bounds, 1.0) * (self.clip_norm / math.sqrt(self.metrics.width))

    def sums(self, reported: Floats) -> Floats:
        """Return what a sum of reports, float64 [width], says: sums over users, or over means of devices."""
        if self.clip_norm is None:
            return np.maximum(reported, 0.0)
        return np.maximum(reported * self._bounds * (math.sqrt(self.metrics.width) / self.clip_norm), 0.0)

    @property
    def _bounds(self) -> Floats:
        return self.metrics.bounds(self.error_max)


class _SentRows(OwnRows):
    """What devices are sent for themselves, where nothing that they report is theirs alone."""

    def named(self, device: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the arrays of a report as they are."""
        return dict(arrays)


class MeasuredElsewhere:
    """Stands for an evaluator where devices alone have the ratings.

    Attributes
    ----------
    unscored : why there is nothing to score; None where there is.
    """

    def __init__(self, unscored: str | None) -> None:
        self.unscored = unscored

    def evaluate(self, state: State) -> list[MetricValue]:
        """Raise ``LocalProtocolError``: there is nothing here to measure with."""
        raise LocalProtocolError("the ratings are on the devices; nobody else measures the model")


class EvaluationWorkload(SumsWorkload):
    """What devices do in an evaluation.

    Parameters
    ----------
    workload : of the run.
    scale : how sums are reported.
    evaluator : measures; None where no ratings are at hand, and devices elsewhere do.
    """

    def __init__(
        self, workload: RatingWorkload | RemoteWorkload, scale: SumsScale, evaluator: RatingEvaluator | None
    ) -> None:
        super().__init__(workload, scale.metrics.width)
        self._scale = scale
        self._evaluator = evaluator

    def work(self, clients: Ids, steps: Ids | None = None) -> Work:
        """Return what an evaluation costs each client.

        It is charged what a client update costs, which begins with the same reconstruction, and the
        prediction of what is scored.
        """
        scored = np.zeros(len(clients), np.int64)
        if self._evaluator is not None:
            scored = self._per_client(clients, self._evaluator.scored).astype(np.int64)
        return together(self._workload.work(clients), self.algorithm.scoring_work(scored))

    def own_parts(self, state: State) -> OwnRows | None:
        """Return what ``state`` has of each client alone; None where a method has no such thing."""
        rows = self._workload.own_parts(state)
        return None if rows is None else _SentRows(rows.algorithm, rows.clients, rows.state)

    def reports(self, clients: Ids, state: State) -> Floats:
        """Return what clients report, float64 [n, width]; NaN where the model has diverged."""
        assert self._evaluator is not None, "devices elsewhere measure"
        measure = functools.partial(self._evaluator.sums_of, state=state)
        return self._scale.reported(self._per_client(clients, measure))


@dataclass(slots=True)
class DeviceEvaluation(DeviceSums):
    """How the devices of a run measure its model.

    Attributes
    ----------
    section : when, and how.
    scale : how sums are reported.
    """

    section: EvaluationSection
    scale: SumsScale

    def values(self, aggregate: Aggregate) -> list[MetricValue]:
        """Return the metrics that a sum of reports comes to."""
        sums = self.scale.sums(summed(aggregate))
        return self.scale.metrics.values(sums, aggregate.clients, self.section.part)
