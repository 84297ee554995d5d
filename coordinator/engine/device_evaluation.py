"""Evaluations on devices: a cohort measures the model on its own kept-back ratings, and sums are seen alone.

An evaluation is a round of the same protocol as any other, under a number that says what it is
(:data:`~edge.core.vocabulary.FIRST_EVALUATION`). A device reconstructs its local factors from its training
ratings, as it begins a client update, predicts what it keeps back, and reports one array, ``sums``: those
that the metrics are made of (:class:`~coordinator.engine.evaluation.SummedMetrics`), added up over its users.
It weighs 1, and says neither examples nor a loss. The coordinator adds reports up as the run adds up updates.

Where the run has noise, the sums have it, too. Every device then weighs the same, as in training: it reports
the means over its ratings in place of sums, each cut off at a bound and scaled so that the norm of them all
is within the bound of an update.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coordinator.engine.aggregation.held import BoundedUpdates
from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.evaluation import RatingEvaluator, SummedMetrics
from coordinator.engine.facts import MetricValue
from coordinator.engine.secure_sums import SecureSums
from coordinator.engine.workload import Ids, OwnRows, RatingWorkload, RemoteWorkload, TrainingKernel
from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.rounds_section import EvaluationSection, Rounds
from coordinator.scenario.schema import ScenarioSettings
from device_profiles.dataclass import dataclass
from edge.core.errors import LocalProtocolError, RemoteProtocolError
from edge.core.vocabulary import Reason
from edge.learning.accumulators import OUT_OF_RANGE, VALUE_MAX, DenseAccumulator
from edge.learning.base import State, Work, together
from edge.learning.updates import Accumulator, Aggregate, Array, ArraySpec, ClientUpdate, UpdateBatch

SUMS: Final = "sums"
"""The only array of a report."""
_FLOAT64: Final = np.dtype(np.float64)
Floats = npt.NDArray[np.float64]


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


def measured(slot: int, update: ClientUpdate) -> ClientUpdate | Reason:
    """Return what a device reports, or that the model could not be measured: it has diverged."""
    return update if bool(np.isfinite(update.arrays[SUMS]).all()) else Reason.NOT_FINITE


class SumsAccumulator(DenseAccumulator):
    """Adds reports up, and refuses those that no device can have measured.

    Parameters
    ----------
    width : of a report.
    signed : whether noise of the device's own may have made a sum negative.
    """

    def __init__(self, width: int, *, signed: bool) -> None:
        super().__init__({SUMS: (_FLOAT64, (width,))})
        self._signed = signed

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not well-formed sums, or negative (``out-of-range``)."""
        super().check(arrays)
        if not self._signed and bool((arrays[SUMS] < 0).any()):
            raise RemoteProtocolError(OUT_OF_RANGE, f"'{SUMS}' holds a negative sum")

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch."""
        return super().check_many(batch) and (self._signed or not bool((batch.stacked[SUMS] < 0).any()))


@dataclass(frozen=True, slots=True)
class _EvaluationKernel:
    workload: EvaluationWorkload
    state: State

    def limited(self, clients: Ids, steps: Ids) -> TrainingKernel:
        """Return the same: nothing of an evaluation is left out."""
        return self

    def __call__(self, clients: Ids) -> Callable[[], Iterable[ClientUpdate]]:
        reports = self.workload.reports(clients, self.state)
        n = len(clients)
        batch = UpdateBatch.of({SUMS: reports}, np.zeros(n, np.int64), np.zeros(n), np.ones(n))
        return functools.partial(_given, batch)


def _given(batch: UpdateBatch) -> UpdateBatch:
    return batch


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


class EvaluationWorkload:
    """What devices do in an evaluation; implements :class:`~coordinator.engine.workload.Workload`.

    Parameters
    ----------
    workload : of the run.
    scale : how sums are reported.
    evaluator : measures; None where no ratings are at hand, and devices elsewhere do.
    """

    keep: Callable[[int, Array], None] | None = None
    """Devices keep nothing of an evaluation."""

    def __init__(
        self, workload: RatingWorkload | RemoteWorkload, scale: SumsScale, evaluator: RatingEvaluator | None
    ) -> None:
        self._workload = workload
        self._scale = scale
        self._evaluator = evaluator
        self.algorithm = workload.algorithm
        self.n_clients = workload.n_clients
        self.held = workload.held
        self.examples = workload.examples

    def local_steps(self, clients: Ids) -> None:
        """Return None: nothing of an evaluation can be left out."""

    def work(self, clients: Ids, steps: Ids | None = None) -> Work:
        """Return what an evaluation costs each client.

        It is charged what a client update costs, which begins with the same reconstruction, and the
        prediction of what is scored.
        """
        scored = np.zeros(len(clients), np.int64)
        if self._evaluator is not None:
            scored = self._per_client(clients, self._evaluator.scored).astype(np.int64)
        return together(self._workload.work(clients), self.algorithm.scoring_work(scored))

    def upload_spec(self, examples: Ids) -> Sequence[ArraySpec]:
        """Return the arrays of a report."""
        width = self._scale.metrics.width
        return (ArraySpec(SUMS, _FLOAT64, (), np.full(len(examples), width, np.int64)),)

    def training(self, state: State, round_number: int) -> TrainingKernel:
        """Return the kernel that measures ``state``."""
        return _EvaluationKernel(self, state)

    def own_parts(self, state: State) -> _SentRows | None:
        """Return what ``state`` has of each client alone; None where a method has no such thing."""
        rows = self._workload.own_parts(state)
        return None if rows is None else _SentRows(rows.algorithm, rows.clients, rows.state)

    def reports(self, clients: Ids, state: State) -> Floats:
        """Return what clients report, float64 [n, width]; NaN where the model has diverged."""
        assert self._evaluator is not None, "devices elsewhere measure"
        measure = functools.partial(self._evaluator.sums_of, state=state)
        return self._scale.reported(self._per_client(clients, measure))

    def _per_client(self, clients: Ids, of_users: Callable[[Ids], Any]) -> Any:
        """Return the sums over the users of each client of what ``of_users`` returns, [n, …]."""
        workload = self._workload
        assert isinstance(workload, RatingWorkload), "there is an evaluator"
        if not workload.grouped:
            return of_users(workload.clients.users[clients])
        offsets, users = workload.clients.gather(clients)
        return np.add.reduceat(of_users(users), offsets[:-1], axis=0)


@dataclass(frozen=True, slots=True)
class DeviceEvaluation:
    """How the devices of a run measure its model.

    Attributes
    ----------
    section, rounds : when, and with how many devices; ``rounds`` is the scenario's with that cohort.
    workload : what devices do.
    scale : how sums are reported.
    secure_sums : how reports are summed in each phase, by its name; None: in the clear.
    ranges : of the numbers in reports.
    noisy : whether devices add noise of their own, so that sums may be negative.
    """

    section: EvaluationSection
    rounds: Rounds
    workload: EvaluationWorkload
    scale: SumsScale
    secure_sums: Mapping[str, SecureSums | None]
    ranges: ReportRanges
    noisy: bool = False

    def accumulator(self, scenario: ScenarioSettings) -> Accumulator:
        """Return an empty accumulator of reports in the clear."""
        made = SumsAccumulator(self.scale.metrics.width, signed=self.noisy)
        made.in_groups(scenario.compute.sum_groups)
        # Noise on the sum is sized for reports within the bound.
        privacy = scenario.privacy
        return BoundedUpdates(made, privacy.clip_norm) if isinstance(privacy, CentralGaussian) else made

    def values(self, aggregate: Aggregate) -> list[MetricValue]:
        """Return the metrics that a sum of reports comes to."""
        # A share of the sum, where updates of some devices count for less.
        sums = aggregate.mean()[SUMS] * aggregate.clients
        return self.scale.metrics.values(self.scale.sums(sums), aggregate.clients, self.section.part)
