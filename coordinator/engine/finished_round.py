"""A round that is over for the coordinator, and what the tables say of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.engine.active_round import ActiveRound
from coordinator.engine.backend import RunningCohort
from coordinator.engine.facts import CohortFacts, RoundFacts
from coordinator.engine.host import rss_bytes
from coordinator.engine.secure_rounds import SecureRoundMachine
from edge.core.vocabulary import Outcome, Reason, RoundKind, RoundOutcome, Stage, finished_rounds
from edge.learning.updates import Aggregate

if TYPE_CHECKING:
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

    @property
    def kind(self) -> RoundKind:
        """What devices were asked for."""
        return RoundKind.of(self.cohort.round_number)

    def facts(self, devices: CohortFacts) -> RoundFacts:
        """Return the facts of the round; in ``devices``, outcomes are overridden where it was abandoned.

        An evaluation has the number of the round that it comes after, and no training loss.
        """
        number = finished_rounds(self.cohort.round_number)
        if self.kind is not RoundKind.TRAINING:
            devices.loss[:] = math.nan
        cohort, active, aggregate = self.cohort, self.active, self.aggregate
        outcome = active.machine.outcome
        assert outcome is not None, "a round that is over has an outcome"
        if outcome is RoundOutcome.ABANDONED:
            given_up = devices.outcome == Outcome.COMPLETED
            devices.outcome[given_up] = Outcome.ABANDONED
            devices.reason[given_up] = active.machine.reason
            devices.stage[given_up] = Stage.ACKNOWLEDGE
        elif not (isinstance(active.machine, SecureRoundMachine) and active.machine.failure):
            # A secure sum can end early for a device and yet be made without it.
            devices.outcome[devices.outcome == Outcome.ABANDONED] = Outcome.FAILED
        return RoundFacts(
            round_number=number,
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
            summed=None if cohort.secure_sum is None else cohort.secure_sum.facts(),
            clipped_updates_fraction=self._clipped_fraction(devices),
        )

    def _clipped_fraction(self, devices: CohortFacts) -> float | None:
        """Return the share of the applied updates whose norm was clipped; None where norms are not."""
        applied, clipped = devices.outcome == Outcome.COMPLETED, self.cohort.clipped
        if not self.private or clipped is None or not applied.any():
            return None
        return float(np.count_nonzero(clipped & applied) / np.count_nonzero(applied))


def lost_round(number: int, phase: str, start_s: float) -> RoundFacts:
    """Return the facts of a round that was under way when the coordinator's process ended."""
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
