"""The mean rating that methods begin with: where it is from, and the query of devices for it.

Before the first round a cohort is asked for count and sum of its training ratings, each cut off at the range
that the scenario says. A report is the count, and the sum of how far ratings are above the lower end
(:mod:`coordinator.engine.device_sums`). Where the run has noise, every device weighs the same: it reports the
mean of its ratings, scaled from the range to the bound of an update, and the mean is one over devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from coordinator.engine.device_sums import SUMS, DeviceSums, Floats, SumsAccumulator, SumsWorkload, summed
from coordinator.engine.workload import Ids, RatingWorkload, RemoteWorkload
from coordinator.scenario.data_section import MeanQuerySection
from edge.core.errors import RemoteProtocolError
from edge.learning.accumulators import OUT_OF_RANGE
from edge.learning.base import WORK_KINDS, State, Work
from edge.learning.updates import Aggregate, Array, UpdateBatch

_FLOPS_A_RATING: Final = 4.0
"""Two comparisons with the range, a difference, a sum."""
_BYTES_A_RATING: Final = 4.0
_ROUNDING: Final = 1e-9
"""Part of the range by which a device's sum may be above what its count allows."""


@dataclass(frozen=True, slots=True)
class RatingMean:
    """The mean rating that a method begins with.

    Attributes
    ----------
    value : stars; None: devices have not been asked yet, or could not say.
    origin : ``data``, which whoever runs the run has; ``public``, from the scenario; ``negatives``, whose
        number it follows from; or ``devices``.
    devices : how many of them are in the sum.
    ratings : how many of theirs; None also where every device weighs the same.
    """

    value: float | None
    origin: Literal["data", "public", "negatives", "devices"]
    devices: int | None = None
    ratings: int | None = None

    @property
    def number(self) -> float:
        """The mean, NaN where it is unknown: a method that uses it all the same has no model."""
        return math.nan if self.value is None else self.value

    def facts(self) -> dict[str, Any]:
        """Return what manifest and summary say."""
        return {"value": self.value, "from": self.origin, "devices": self.devices, "ratings": self.ratings}


@dataclass(frozen=True, slots=True)
class MeanScale:
    """How devices report their ratings.

    Attributes
    ----------
    low, high : the range that ratings are cut off at, stars.
    clip_norm : the largest L2 norm of a report, where noise is sized for it; None: without noise.
    """

    low: float
    high: float
    clip_norm: float | None = None

    @property
    def span(self) -> float:
        """Length of the range."""
        return self.high - self.low

    @property
    def width(self) -> int:
        """Numbers of a report: count and sum, or the mean."""
        return 2 if self.clip_norm is None else 1

    def reported(self, sums: Floats) -> Floats:
        """Return what devices with these counts and sums above ``low``, float64 [n, 2], report."""
        if self.clip_norm is None:
            return sums
        counts, above = sums.T
        means = np.divide(above, counts, out=np.zeros_like(above), where=counts > 0)
        return np.asarray(means * (self.clip_norm / self.span))[:, None]

    def mean(self, sums: Floats, devices: int) -> RatingMean | None:
        """Return the mean that a sum of reports of so many devices says; None where it is of no ratings."""
        if self.clip_norm is not None:
            ratings, above = None, float(sums[0]) / devices * (self.span / self.clip_norm)
        elif (ratings := round(float(sums[0]))) > 0:
            above = float(sums[1] / sums[0])
        else:
            return None
        # Noise, and a device that says what cannot be, may have led out of the range.
        value = self.low + min(max(above, 0.0), self.span)
        return RatingMean(value, "devices", devices, ratings)


class CountsAndSums(SumsAccumulator):
    """Adds up counts and sums, and refuses sums that so many ratings within the range cannot have."""

    def __init__(self, span: float) -> None:
        super().__init__(2, signed=False)
        self._most = span * (1.0 + _ROUNDING)

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are no counts and sums of ratings within the range (``out-of-range``)."""
        super().check(arrays)
        count, above = arrays[SUMS].tolist()
        if above > count * self._most:
            message = f"'{SUMS}' has {above:g} for {count:g} ratings, each of {self._most:g} at most"
            raise RemoteProtocolError(OUT_OF_RANGE, message)

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch."""
        if not super().check_many(batch):
            return False
        counts, above = batch.stacked[SUMS].T
        return bool((above <= counts * self._most).all())


class MeanWorkload(SumsWorkload):
    """What devices do in a query of the mean.

    Parameters
    ----------
    workload : of the run.
    scale : how ratings are reported.
    """

    def __init__(self, workload: RatingWorkload | RemoteWorkload, scale: MeanScale) -> None:
        super().__init__(workload, scale.width)
        self._scale = scale

    def work(self, clients: Ids, steps: Ids | None = None) -> Work:
        """Return what it costs each client to look through its ratings once."""
        ratings = self._workload.held(clients).astype(np.float64)
        flops, moved, ops = (np.zeros((len(ratings), len(WORK_KINDS))) for _ in range(3))
        dense = WORK_KINDS.index("dense")
        flops[:, dense] = _FLOPS_A_RATING * ratings
        moved[:, dense] = _BYTES_A_RATING * ratings
        ops[:, dense] = 1.0
        return Work(flops, moved, ops, np.ones(len(ratings)), (_BYTES_A_RATING * ratings).astype(np.int64))

    def reports(self, clients: Ids, state: State) -> Floats:
        """Return what clients report, float64 [n, width]."""
        return self._scale.reported(self._per_client(clients, self._sums_of))

    def _sums_of(self, users: Ids) -> Floats:
        """Return count of training ratings and their sum above the lower end, float64 [n, 2]."""
        workload = self._workload
        assert isinstance(workload, RatingWorkload), "devices elsewhere have the ratings"
        batch, n = workload.split.train.gather(users), len(users)
        low, high = self._scale.low, self._scale.high
        above = np.clip(batch.ratings.astype(np.float64), low, high) - low
        counts = np.diff(batch.indptr)
        sums = np.bincount(np.repeat(np.arange(n), counts), weights=above, minlength=n)
        return np.stack([counts.astype(np.float64), sums], axis=1)


@dataclass(slots=True)
class MeanQuery(DeviceSums):
    """How the devices of a run are asked for the mean rating, and what they have said.

    Attributes
    ----------
    section : whom to ask.
    scale : how ratings are reported.
    tries : how often they have been asked.
    answer : the mean; None: not known yet.
    """

    section: MeanQuerySection
    scale: MeanScale
    tries: int = field(init=False, default=0)
    answer: RatingMean | None = field(init=False, default=None)
    sends_model: ClassVar[bool] = False

    def settle(self, aggregate: Aggregate) -> bool:
        """Take a sum of reports as the answer; return whether it is one."""
        self.answer = self.scale.mean(summed(aggregate), aggregate.clients)
        return self.answer is not None

    def memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is known, as arrays by name."""
        memory: dict[str, npt.NDArray[Any]] = {"tries": np.array([self.tries])}
        if self.answer is not None:
            memory["value"] = np.array([self.answer.value])
            memory["devices"] = np.array([self.answer.devices])
            if self.answer.ratings is not None:
                memory["ratings"] = np.array([self.answer.ratings])
        return memory

    def recall(self, memory: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with what :meth:`memory` returned."""
        self.tries = int(memory["tries"][0])
        if "value" in memory:
            ratings = int(memory["ratings"][0]) if "ratings" in memory else None
            devices = int(memory["devices"][0])
            self.answer = RatingMean(float(memory["value"][0]), "devices", devices, ratings)

    def _reports(self) -> SumsAccumulator:
        if self.scale.clip_norm is None:
            return CountsAndSums(self.scale.span)
        return SumsAccumulator(self.workload.width, signed=self.noisy)
