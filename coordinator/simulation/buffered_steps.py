"""A server step of buffered training, which takes the place of a round in the tables.

Its row is about the devices whose reports it applied and those whose participation ended without one while it
was under way, whenever they had been invited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import FaultStrike, RoundFacts
from coordinator.engine.host import rss_bytes
from coordinator.engine.round_records import DeviceEndings, endings_of, strikes_of
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.buffered_cohort import BufferedCohort
from edge.core.log import Column, EventLog
from edge.core.vocabulary import Outcome, Reason, RoundOutcome
from edge.learning.updates import Aggregate


@dataclass(slots=True)
class ServerStep:
    """A server step, and the devices that belong to it."""

    number: int
    phase: str
    start_s: float
    wall_s: float
    end_s: float = math.nan
    outcome: RoundOutcome | None = None
    """None while it is under way."""
    reason: Reason = Reason.NONE
    """Why it was abandoned."""
    aggregate: Aggregate | None = None
    members: list[tuple[BufferedCohort, int, float]] = field(default_factory=list)
    """Cohort, slot, and staleness (NaN where no report was applied)."""
    log: EventLog = field(default_factory=EventLog)
    """Records of no member: of suspensions."""
    unfinished: int = 0
    """Devices whose reports were applied and that are not done yet."""

    def to_row(self, outcome: RoundOutcome) -> tuple[RoundFacts, DeviceEndings]:
        """Return what there is to tell of a step that has ended so, and of its devices."""
        abandoned = outcome is RoundOutcome.ABANDONED
        ended = _joined(self.members)
        ended.columns = np.concatenate([ended.columns, self.log.columns()], axis=1)
        if abandoned:
            given_up = ended.outcome == Outcome.COMPLETED
            ended.outcome[given_up] = Outcome.ABANDONED
            ended.reason[given_up] = self.reason
            ended.staleness[given_up] = math.nan
        aggregate = self.aggregate
        facts = RoundFacts(
            round_number=self.number,
            phase=self.phase,
            start_s=self.start_s,
            end_s=self.end_s,
            outcome=outcome,
            reason=self.reason,
            loss=aggregate.loss if aggregate is not None else math.nan,
            weight=aggregate.weight if aggregate is not None else 0.0,
            wall_s=self.wall_s,
            host_rss_bytes=rss_bytes(),
        )
        return facts, ended

    def strikes(self, faults: tuple[Fault, ...]) -> list[FaultStrike]:
        """Return what was done on purpose to its devices; ``faults`` are those of the scenario."""
        slots: dict[BufferedCohort, set[int]] = {}
        for cohort, slot, _ in self.members:
            slots.setdefault(cohort, set()).add(slot)
        strikes: list[FaultStrike] = []
        for cohort, mine in slots.items():
            if cohort.faults is not None:
                strikes += strikes_of(faults, cohort.faults, cohort.ids, mine)
        return strikes


def _joined(members: list[tuple[BufferedCohort, int, float]]) -> DeviceEndings:
    """Return the members of a step as one cohort, in the order in which they came to it."""
    by_cohort: dict[BufferedCohort, list[int]] = {}
    for place, (cohort, _, _) in enumerate(members):
        by_cohort.setdefault(cohort, []).append(place)
    parts: list[tuple[DeviceEndings, list[int], list[int]]] = []
    for cohort, places in by_cohort.items():
        parts.append((endings_of(cohort), [members[place][1] for place in places], places))

    order = np.argsort(np.concatenate([places for _, _, places in parts]), kind="stable")

    def column(name: str) -> npt.NDArray[Any]:
        values = [getattr(ended, name)[slots] for ended, slots, _ in parts]
        return np.concatenate(values)[order]

    logs = []
    for ended, slots, places in parts:
        place_of = np.full(len(ended.ids) + 1, -1.0)
        place_of[slots] = places
        known = ended.columns[Column.SLOT].astype(np.int64)
        place = place_of[known]
        mine = place >= 0
        log = ended.columns[:, mine]
        log[Column.SLOT] = place[mine]
        logs.append(log)
    columns = np.concatenate(logs, axis=1)
    columns = columns[:, np.argsort(columns[Column.TIME_S], kind="stable")]
    return DeviceEndings(
        **{name: column(name) for name in ("ids", "outcome", "stage", "reason", "loss", "examples")},
        memory_bytes=column("memory_bytes"),
        kept_back=column("kept_back"),
        work_share=column("work_share"),
        staleness=np.array([staleness for _, _, staleness in members]),
        columns=np.ascontiguousarray(columns),
    )
