"""Rounds in which devices report sums and change no model: what evaluations and mean queries have in common.

Such a round is one of the same protocol as any other, under a number that says what it is
(:class:`~edge.core.vocabulary.RoundKind`). A device reports one array, ``sums``, added up over its users. It
weighs 1, and says neither examples nor a loss. The coordinator adds reports up as the run adds up updates,
and noise is that of the run.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from coordinator.engine.aggregation.held import BoundedUpdates
from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.secure_sums import SecureSums
from coordinator.engine.workload import Ids, OwnRows, RatingWorkload, RemoteWorkload, TrainingKernel
from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.rounds_section import Rounds
from coordinator.scenario.schema import ScenarioSettings
from edge.core.errors import RemoteProtocolError
from edge.core.vocabulary import Reason
from edge.learning.accumulators import OUT_OF_RANGE, DenseAccumulator
from edge.learning.base import Algorithm, State, Work
from edge.learning.updates import Accumulator, Aggregate, Array, ArraySpec, ClientUpdate, UpdateBatch

SUMS: Final = "sums"
"""The only array of a report."""
_FLOAT64: Final = np.dtype(np.float64)
Floats = npt.NDArray[np.float64]


def finite_report(slot: int, update: ClientUpdate) -> ClientUpdate | Reason:
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
class _SumsKernel:
    workload: SumsWorkload
    state: State

    def limited(self, clients: Ids, steps: Ids) -> TrainingKernel:
        """Return the same: no part of a report is left out."""
        return self

    def __call__(self, clients: Ids) -> Callable[[], Iterable[ClientUpdate]]:
        reports = self.workload.reports(clients, self.state)
        n = len(clients)
        batch = UpdateBatch.of({SUMS: reports}, np.zeros(n, np.int64), np.zeros(n), np.ones(n))
        return functools.partial(_given, batch)


def _given(batch: UpdateBatch) -> UpdateBatch:
    return batch


class SumsWorkload(abc.ABC):
    """What devices do to report sums; implements :class:`~coordinator.engine.workload.Workload`.

    Parameters
    ----------
    workload : of the run.
    width : numbers of a report.
    """

    keep: Callable[[int, Array], None] | None = None
    """Devices keep nothing of it."""

    def __init__(self, workload: RatingWorkload | RemoteWorkload, width: int) -> None:
        self._workload = workload
        self.width = width
        self.n_clients = workload.n_clients
        self.held = workload.held
        self.examples = workload.examples

    @property
    def algorithm(self) -> Algorithm[Any]:
        """The method of the run."""
        return self._workload.algorithm

    def local_steps(self, clients: Ids) -> Ids | None:
        """Return None: no part of a report can be left out."""
        return None

    @abc.abstractmethod
    def work(self, clients: Ids, steps: Ids | None = None) -> Work:
        """Return what a report costs each client."""

    @abc.abstractmethod
    def reports(self, clients: Ids, state: State) -> Floats:
        """Return what clients report, float64 [n, width]; NaN where the model has diverged."""

    def upload_spec(self, examples: Ids) -> Sequence[ArraySpec]:
        """Return the arrays of a report."""
        return (ArraySpec(SUMS, _FLOAT64, (), np.full(len(examples), self.width, np.int64)),)

    def training(self, state: State, round_number: int) -> TrainingKernel:
        """Return the kernel that makes reports from the global ``state``."""
        return _SumsKernel(self, state)

    def own_parts(self, state: State) -> OwnRows | None:
        """Return what devices are sent of ``state`` for themselves alone: nothing."""
        return None

    def _per_client(self, clients: Ids, of_users: Callable[[Ids], Any]) -> Any:
        """Return the sums over the users of each client of what ``of_users`` returns, [n, …]."""
        workload = self._workload
        assert isinstance(workload, RatingWorkload), "devices elsewhere have the ratings"
        if not workload.grouped:
            return of_users(workload.clients.users[clients])
        offsets, users = workload.clients.gather(clients)
        return np.add.reduceat(of_users(users), offsets[:-1], axis=0)


@dataclass(slots=True)
class DeviceSums:
    """How the devices of a run are asked for sums.

    Attributes
    ----------
    rounds : the scenario's, with the cohort that is asked.
    workload : what devices do.
    secure_sums : how reports are summed in each phase, by its name; None: in the clear.
    noisy : whether devices add noise of their own, so that sums may be negative.
    sends_model : whether devices need the model for it.
    """

    rounds: Rounds
    workload: SumsWorkload
    secure_sums: Mapping[str, SecureSums | None]
    noisy: bool
    ranges: ReportRanges = field(init=False, default=ReportRanges(weight_max=1.0, examples_max=0, bare=True))
    """Of the numbers in reports."""
    sends_model: ClassVar[bool] = True

    def accumulator(self, scenario: ScenarioSettings) -> Accumulator:
        """Return an empty accumulator of reports in the clear."""
        made = self._reports()
        made.in_groups(scenario.compute.sum_groups)
        # Noise on the sum is sized for reports within the bound.
        privacy = scenario.privacy
        return BoundedUpdates(made, privacy.clip_norm) if isinstance(privacy, CentralGaussian) else made

    def _reports(self) -> SumsAccumulator:
        return SumsAccumulator(self.workload.width, signed=self.noisy)


def summed(aggregate: Aggregate) -> Floats:
    """Return the sum of the reports of its clients, float64 [width]."""
    # A share of it, where updates of some devices count for less.
    return np.asarray(aggregate.mean()[SUMS] * aggregate.clients)
