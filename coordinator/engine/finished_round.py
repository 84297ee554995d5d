"""A round that is over for the coordinator, and what the tables say of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coordinator.engine.active_round import ActiveRound
from coordinator.engine.backend import RunningCohort
from coordinator.engine.facts import NO_FAILURE, RoundFacts
from coordinator.engine.host import rss_bytes
from coordinator.engine.round_records import DeviceEndings
from coordinator.engine.secure_rounds import SecureRoundMachine
from coordinator.engine.secure_sums import SumFacts
from edge.core.vocabulary import Outcome, Reason, RoundOutcome, Stage
from edge.learning.updates import Aggregate
from edge.privacy.ledger import Epsilon


@dataclass(slots=True)
class FinishedRound:
    """A round that is over for the coordinator, but perhaps not for all its devices.

    Attributes
    ----------
    cohort, active, phase : its devices, the coordinator's part in it, and the phase that it belongs to.
    aggregate : the sum that was applied; None of an abandoned round.
    epsilon : the ε of the run so far; None where it is not asked for.
    spent : the devices for which a release of this round has been counted.
    wall_s : measured time that the round took here.
    private : whether updates are clipped for privacy.
    """

    cohort: RunningCohort
    active: ActiveRound
    aggregate: Aggregate | None
    phase: str
    epsilon: Epsilon | None
    spent: frozenset[int]
    wall_s: float
    private: bool

    def to_row(self, ended: DeviceEndings) -> RoundFacts:
        """Return the row of the round; ``ended``, how its devices have, is made to agree with how it did."""
        cohort, active, aggregate = self.cohort, self.active, self.aggregate
        outcome = active.machine.outcome
        assert outcome is not None, "only rounds that are over are told of"
        if outcome is RoundOutcome.ABANDONED:
            given_up = ended.outcome == Outcome.COMPLETED
            ended.outcome[given_up] = Outcome.ABANDONED
            ended.reason[given_up] = active.machine.reason
            ended.stage[given_up] = Stage.ACKNOWLEDGE
        elif not (isinstance(active.machine, SecureRoundMachine) and active.machine.failure):
            # A secure sum can end early for a device and yet be made without it.
            ended.outcome[ended.outcome == Outcome.ABANDONED] = Outcome.FAILED
        summed = cohort.secure_sum.facts() if cohort.secure_sum is not None else None
        return RoundFacts(
            round_number=cohort.round_number,
            phase=self.phase,
            start_s=active.start_s,
            end_s=active.end_s,
            outcome=outcome,
            reason=active.machine.reason,
            loss=aggregate.loss if aggregate is not None else math.nan,
            weight=aggregate.weight if aggregate is not None else 0.0,
            wall_s=self.wall_s,
            host_rss_bytes=rss_bytes(),
            stage_s=active.stage_s(),
            epsilon=None if self.epsilon is None else self.epsilon.zero_out,
            epsilon_replace_one=None if self.epsilon is None else self.epsilon.replace_one,
            clipped_updates_fraction=self._clipped_fraction(ended),
            **_facts_of_sum(summed),
        )

    def _clipped_fraction(self, ended: DeviceEndings) -> float | None:
        """Return the share of the applied updates whose norm was clipped; None where norms are not."""
        applied, clipped = ended.outcome == Outcome.COMPLETED, self.cohort.clipped
        if not self.private or clipped is None or not applied.any():
            return None
        return float(np.count_nonzero(clipped & applied) / np.count_nonzero(applied))


def lost_round(number: int, phase: str, start_s: float) -> RoundFacts:
    """Return the row of a round that was under way when the coordinator's process ended."""
    return RoundFacts(
        round_number=number,
        phase=phase,
        start_s=start_s,
        end_s=start_s,
        outcome=RoundOutcome.ABANDONED,
        reason=Reason.COORDINATOR_CRASH,
        loss=math.nan,
        weight=0.0,
        wall_s=0.0,
        host_rss_bytes=rss_bytes(),
    )


def _facts_of_sum(summed: SumFacts | None) -> dict[str, Any]:
    """Return what the table of rounds shows of a secure sum."""
    if summed is None:
        return {}
    facts = asdict(summed)
    return {**facts, "failure": summed.failure or NO_FAILURE}
