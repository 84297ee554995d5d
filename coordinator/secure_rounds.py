"""The coordinator's side of a round whose updates are summed securely, as a state machine without I/O.

It joins two things: who was invited and has accepted, as in :mod:`coordinator.rounds`, and the machine of the
protocol that makes the sum. The first stage of that protocol collects devices until ``target`` are in or the
deadline passes; from then on every stage has a deadline of its own. The round is completed when there is a
sum over at least ``quorum`` devices, else it is abandoned and nothing is applied.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.rounds import RoundPlan, Verdict
from coordinator.secagg.aggregation import SecureAggregation
from coordinator.secagg.outcome import Step
from edge.errors import LocalProtocolError
from edge.message_kinds import AnyMessage
from edge.messages import FROM_DEVICES, Accept, AcceptBare, Report
from edge.secagg.reasons import reason_of
from edge.secagg.states import COORDINATOR_FINAL, CoordinatorState
from edge.secagg_messages import Abort
from edge.vocabulary import Reason, RoundOutcome, Stage

_NONE = Reason.NONE


STAGE_OF_STATE = {
    CoordinatorState.ADVERTISING: Stage.ADVERTISE_KEYS,
    CoordinatorState.SHARING: Stage.SHARE_KEYS,
    CoordinatorState.MASKING: Stage.MASKED_INPUT,
    CoordinatorState.CHECKING: Stage.CONSISTENCY,
    CoordinatorState.UNMASKING: Stage.UNMASK,
}
"""What the stage is called whose answers the coordinator collects in a state."""


class Judgement(NamedTuple):
    """What to do with a frame, why if it does not count, and what to send besides, each with its receiver."""

    verdict: Verdict
    reason: Reason
    send: list[tuple[int, AnyMessage]]


class SecureRoundMachine:
    """One round from invitation to outcome.

    Parameters
    ----------
    plan : what the round wants; its deadline is that of the first stage.
    invited : device ids.
    aggregation : makes the sum; knows the same devices and the same target.
    """

    __slots__ = (
        "_accepted",
        "_first",
        "_invited",
        "_left",
        "aggregation",
        "closed_by",
        "outcome",
        "plan",
        "reason",
    )

    def __init__(self, plan: RoundPlan, invited: list[int], aggregation: SecureAggregation) -> None:
        if not invited:
            raise LocalProtocolError("a round needs at least one invited device")
        self.plan = plan
        self.aggregation = aggregation
        self._invited = frozenset(invited)
        self._accepted: set[int] = set()
        self._left: set[int] = set()
        """Those that do not, or no longer, take part and either said so themselves or were told."""
        self._first = aggregation.state
        self.outcome: RoundOutcome | None = None
        self.reason = _NONE
        self.closed_by = _NONE
        """Why the first stage stopped waiting: ``COHORT_FULL``, ``DEADLINE``, or ``NONE`` (nobody left)."""

    @property
    def over(self) -> bool:
        """Say whether the outcome is known."""
        return self.outcome is not None

    @property
    def accepted(self) -> int:
        """How many devices accepted in time and were given the model."""
        return len(self._accepted)

    @property
    def first_stage(self) -> CoordinatorState:
        """The stage that collects the devices."""
        return self._first

    @property
    def stage(self) -> CoordinatorState:
        """The stage whose answers are collected."""
        return self.aggregation.state

    @property
    def failure(self) -> str | None:
        """The name of the error that ended the sum, or None."""
        error = self.aggregation.failure
        return None if error is None else error.reason

    @property
    def applied(self) -> frozenset[int]:
        """The devices whose updates are in the sum of a completed round."""
        completed = self.outcome is RoundOutcome.COMPLETED
        return self.aggregation.contributors if completed else frozenset()

    def received(self, sender: int, message: AnyMessage) -> Judgement:
        """Judge a frame that arrived from the device ``sender``."""
        plan = self.plan
        if message.round_number != plan.round_number or message.run_id != plan.run_id:
            return Judgement(Verdict.DISCARD, Reason.STALE, [])
        if sender not in self._invited:
            return Judgement(Verdict.DISCARD, Reason.NOT_INVITED, [])
        if not isinstance(message, FROM_DEVICES):
            return self._received_of_sum(sender, message)
        if message.device != sender:
            return Judgement(Verdict.DISCARD, Reason.NOT_INVITED, [])
        if isinstance(message, Report):
            return Judgement(Verdict.DISCARD, Reason.WRONG_STAGE, [])
        accepts = isinstance(message, Accept | AcceptBare)
        if sender in self._left or (accepts and sender in self._accepted):
            return Judgement(Verdict.DISCARD, Reason.DUPLICATE, [])
        if not accepts:
            return self._noted(self.lost(sender))
        if self.stage is not self._first:
            self._left.add(sender)
            return Judgement(Verdict.REFUSE, self._reason_for_late(sender), [])
        self._accepted.add(sender)
        return Judgement(Verdict.SEND_MODEL, _NONE, [])

    def _received_of_sum(self, sender: int, message: AnyMessage) -> Judgement:
        if sender not in self._accepted:  # it was never given the model
            return Judgement(Verdict.DISCARD, Reason.WRONG_STAGE, [])
        before = self.stage
        step = self.aggregation.receive(sender, message)
        excluded = step.refused is not None and len(step.send) > 0
        if excluded or (step.refused is None and isinstance(message, Abort)):
            self._left.add(sender)
        send = self._after(before, step)
        if step.refused is None:
            return self._noted(send)
        reason = reason_of(step.refused.reason)
        if reason is not Reason.WRONG_STAGE or sender in self._left:
            return Judgement(Verdict.DISCARD, reason, send)
        if sender in self.aggregation.dropped:
            # One whose input is in the sum gets its receipt when the round ends, and no other before.
            refuse = sender not in self.aggregation.contributors
            verdict = Verdict.REFUSE if refuse else Verdict.DISCARD
            return Judgement(verdict, self._reason_for_late(sender), send)
        if self.over:
            # All that the sum needed was there before, or there is none.
            reason = self.reason or Reason.COHORT_FULL
        return Judgement(Verdict.DISCARD, reason, send)

    def _noted(self, send: list[tuple[int, AnyMessage]]) -> Judgement:
        return Judgement(Verdict.NOTE, _NONE, send)

    def _reason_for_late(self, device: int) -> Reason:
        """Return why a device that would still take part cannot."""
        if self.reason is not _NONE:
            return self.reason
        missed_first = self.aggregation.dropped.get(device) is self._first
        full = missed_first and self.closed_by is not Reason.DEADLINE
        return Reason.COHORT_FULL if full else Reason.DEADLINE

    def lost(self, device: int) -> list[tuple[int, AnyMessage]]:
        """Note that ``device`` is known to be gone; return what to send."""
        if device not in self._invited:
            return []
        self._left.add(device)
        before = self.stage
        return self._after(before, self.aggregation.lost(device))

    def deadline_passed(self, stage: CoordinatorState) -> list[tuple[int, AnyMessage]]:
        """End ``stage`` with the answers that are there; return what to send."""
        if stage is not self.stage:
            return []
        if stage is self._first:
            self.closed_by = Reason.DEADLINE
        return self._after(stage, self.aggregation.deadline_passed(stage))

    def abandon(self, reason: Reason) -> None:
        """Give the round up, if it is not over yet."""
        if self.outcome is None:
            self.outcome = RoundOutcome.ABANDONED
            self.reason = reason

    def _after(self, before: CoordinatorState, step: Step) -> list[tuple[int, AnyMessage]]:
        first_ended = before is self._first and self.stage is not before
        if first_ended and self.closed_by is _NONE and not self.aggregation.dropped.keys() <= self._left:
            self.closed_by = Reason.COHORT_FULL
        if self.stage in COORDINATOR_FINAL and not self.over:
            self._close()
        return [*step.send]

    def _close(self) -> None:
        if self.failure is None and len(self.aggregation.contributors) >= self.plan.quorum:
            self.outcome = RoundOutcome.COMPLETED
        else:
            self.outcome = RoundOutcome.ABANDONED
            self.reason = Reason.QUORUM if self.failure is None else reason_of(self.failure)
