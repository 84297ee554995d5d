"""Facts of a round that its log does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import Reason, RoundOutcome, Stage

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]


NO_FAILURE: Final = "none"
"""Stands for the name of an error where there was none."""

RoundRow = Mapping[str, Any]
"""A row of the table ``rounds``: plain values by column, None where null.

It may be computed as it is read, from the log of the round, which it holds: ``dict(row)`` is what to keep.
"""


@dataclass(frozen=True, slots=True)
class FleetNames:
    """The names behind the codes of a :class:`CohortFacts`; the same object for the whole run.

    A code is a position in its tuple.
    """

    classes: tuple[str, ...]
    networks: tuple[str, ...]
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CohortFacts:
    """The invited devices of a round and how each ended; the arrays have one entry a slot.

    Attributes
    ----------
    device : int64 [n], ids in the fleet.
    device_class, network, region : integer [n], codes into :class:`FleetNames`.
    outcome : integer [n], :class:`~edge.core.vocabulary.Outcome`.
    stage : integer [n], the :class:`~edge.core.vocabulary.Stage` at which it ended; -1 when it was completed.
    reason : integer [n], :class:`~edge.core.vocabulary.Reason`.
    energy_compute_j, energy_radio_j : float64 [n], joules.
    memory_bytes : integer [n].
    examples : integer [n], local examples of the update; 0 when none was made.
    loss : float64 [n], local training loss; NaN when none.
    work_share : float64 [n], part of its local steps that were taken; NaN when none could be left out.
    staleness : float64 [n], server steps between its model and its report; NaN when there can be none.
    kept_back : bool [n], whether nothing is written of how much data it has, nor of what follows from that.
    """

    device: npt.NDArray[np.int64]
    device_class: Integers
    network: Integers
    region: Integers
    outcome: Integers
    stage: Integers
    reason: Integers
    energy_compute_j: Floats
    energy_radio_j: Floats
    memory_bytes: Integers
    examples: Integers
    loss: Floats
    work_share: Floats
    staleness: Floats
    kept_back: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        n = len(self.device)
        for name in self.__slots__:
            shape = getattr(self, name).shape
            if shape != (n,):
                raise ValueError(
                    f"cohort: {name} has shape {shape}; give one entry for each of the {n} devices"
                )


@dataclass(frozen=True, slots=True)
class SumFacts:
    """Facts of a round's secure sum, beside its stages.

    Attributes
    ----------
    failure : name of the error that ended it, or None.
    neighbours, threshold : of its graph; None without one.
    sum_error : largest absolute difference from the sum in the clear, in units of the ring; None when there
        is no sum, or none in a ring, or the inputs are not seen here.
    double_reveals : devices of which both secrets could be rebuilt from what was released; None where devices
        share no secrets, or what they release is not seen here.
    clipped_fraction : share of the real numbers other than zero in the sum that were clipped; None without a
        sum or such numbers, or where the inputs are not seen here.
    """

    failure: str | None
    neighbours: int | None
    threshold: int | None
    sum_error: int | None
    double_reveals: int | None
    clipped_fraction: float | None


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """Facts of a finished round.

    Attributes
    ----------
    round_number : rounds count from 1.
    phase : name of the scenario's phase.
    start_s, end_s : simulated seconds since the start of the run.
    outcome, reason : how it ended, and why when it was abandoned.
    loss : training loss over the applied reports; NaN when there is none.
    weight : sum of the weights of the applied reports.
    stage_s : how long each stage of a secure sum took on the coordinator, seconds; empty without one.
    summed : of its secure sum; None without one.
    clipped_updates_fraction : share of the applied updates whose norm was clipped; None where norms are not.
    epsilon, epsilon_replace_one : what the run has spent of differential privacy so far, against an update
        of zeros and against any other; None where it is not accounted for.
    wall_s, host_rss_bytes : measured on this host; no part of any digest.
    """

    round_number: int
    phase: str
    start_s: float
    end_s: float
    outcome: RoundOutcome
    reason: Reason
    loss: float
    weight: float
    wall_s: float
    host_rss_bytes: int
    stage_s: Mapping[Stage, float] = field(default_factory=dict)
    summed: SumFacts | None = None
    clipped_updates_fraction: float | None = None
    epsilon: float | None = None
    epsilon_replace_one: float | None = None


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One value of one metric; see the table ``evaluations`` for the meaning of the fields.

    ``value`` is NaN when there was nobody to compute it over.
    """

    metric: str
    value: float
    users: int
    split: str = "test"
    population: str = "seen"
    tag: str = "all"
    group: str = "all"


@dataclass(frozen=True, slots=True)
class Inferences:
    """Devices that ran their own models, one entry each; see the table ``inferences`` for the fields.

    Codes of classes and networks are those of :class:`FleetNames`; ``items`` and ``model_bytes`` are alike
    for all.
    """

    device: Integers
    device_class: Integers
    network: Integers
    items: int
    rated: Integers
    model_bytes: int
    latency_s: Floats
    energy_j: Floats
    memory_bytes: Integers
    host_latency_s: Floats
    host_opening_s: Floats
    host_session_bytes: Integers
    max_absolute_error: Floats
    max_relative_error: Floats


@dataclass(frozen=True, slots=True)
class FaultStrike:
    """That a fault struck in a round; see the table ``faults`` for the fields.

    ``device`` is None for the coordinator, ``stage`` where there was none.
    """

    fault: str
    kind: str
    device: int | None
    stage: Stage | None
    first_s: float
    last_s: float
    count: int


class Recorder(Protocol):
    """Takes the facts of a run as they come; what becomes of them changes nothing in the run."""

    def round(self, facts: RoundFacts, cohort: CohortFacts, columns: npt.NDArray[np.float64]) -> RoundRow:
        """Record a finished round; return its row of ``rounds``.

        Parameters
        ----------
        facts, cohort : of the round, and of its devices.
        columns : float64 [WIDTH, records], the log of the round.

        The arrays may be kept: nothing changes them afterwards.
        """

    def evaluation_round(
        self, facts: RoundFacts, cohort: CohortFacts, columns: npt.NDArray[np.float64]
    ) -> None:
        """Record a round in which devices measured the model; parameters as of :meth:`round`."""

    def faults(self, round_number: int, phase: str, strikes: Sequence[FaultStrike]) -> None:
        """Record what faults did in a round; before the round itself."""

    def evaluation(self, round_number: int, phase: str, time_s: float, values: Sequence[MetricValue]) -> None:
        """Record one evaluation of the model, ``round_number`` rounds after the start."""

    def inferences(self, round_number: int, phase: str, time_s: float, inferences: Inferences) -> None:
        """Record one inference of the model on devices."""
