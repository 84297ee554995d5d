"""The coordinator's side of a round whose updates are summed securely, as a state machine without I/O.

It joins two things: who was invited and has accepted, as in :mod:`coordinator.engine.rounds`, and the machine
of the protocol that makes the sum. The first stage of that protocol collects devices until ``target`` are in
or the deadline passes; from then on every stage has a deadline of its own. The round is completed when there
is a sum over at least ``quorum`` devices, else it is abandoned and nothing is applied.

In a *mixed* round devices may report in the clear instead, in the first stage. They count towards ``target``
and ``quorum`` like those in the sum. If there is no sum, its updates are lost, and the round is completed
with the reports if they are a quorum. A device has one way: whoever took the first step of one is refused on
the other.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.engine.rounds import FrameVerdict, RoundPlan
from coordinator.engine.secure_sums import MixedAggregation, SecureAggregation, Step
from edge.core.errors import LocalProtocolError
from edge.core.vocabulary import Reason, RoundOutcome, Stage
from edge.secagg.participant import reason_of
from edge.secagg.states import COORDINATOR_FINAL, CoordinatorState
from edge.wire.messages import FROM_DEVICES, Abort, Accept, AcceptBare, AnyMessage, Report

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

    verdict: FrameVerdict
    reason: Reason
    send: list[tuple[int, AnyMessage]]


class SecureRoundMachine:
    """One round from invitation to outcome.

    Parameters
    ----------
    plan : what the round wants; its deadline is that of the first stage.
    invited : device ids.
    aggregation : makes the sum; knows the same devices and the same target.

    Raises ``LocalProtocolError`` for nobody invited, and for a mixed round whose sum allows no reports.
    """

    __slots__ = (
        "_accepted",
        "_first",
        "_in_sum",
        "_invited",
        "_left",
        "_mixed",
        "_reported",
        "aggregation",
        "clear",
        "closed_by",
        "outcome",
        "plan",
        "reason",
    )

    def __init__(self, plan: RoundPlan, invited: list[int], aggregation: SecureAggregation) -> None:
        if not invited:
            raise LocalProtocolError("a round needs at least one invited device")
        if plan.mixed and not isinstance(aggregation, MixedAggregation):
            raise LocalProtocolError("this sum allows no reports in the clear beside it")
        self.plan = plan
        self.aggregation = aggregation
        self._mixed = aggregation if plan.mixed and isinstance(aggregation, MixedAggregation) else None
        self._invited = frozenset(invited)
        self._accepted: set[int] = set()
        self._left: set[int] = set()
        """Devices that do not, or no longer, take part, by a message of theirs or a notice to them."""
        self._in_sum: set[int] = set()
        """Those that have begun the protocol of the sum."""
        self._reported: set[int] = set()
        """Those that reported in the clear, in time or not."""
        self.clear: set[int] = set()
        """Those whose reports in the clear were taken."""
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
    def culprits(self) -> dict[int, str]:
        """The devices that were found to have broken the protocol of the sum, each with the error's name."""
        return {device: error.reason for device, error in self.aggregation.culprits.items()}

    @property
    def summed(self) -> frozenset[int]:
        """The devices whose updates are in the sum of a completed round."""
        made = self.outcome is RoundOutcome.COMPLETED and self.failure is None
        return self.aggregation.contributors if made else frozenset()

    @property
    def reports(self) -> int:
        """How many updates were taken: into the sum, or reported in the clear."""
        return len(self.aggregation.contributors) + len(self.clear)

    @property
    def applied(self) -> frozenset[int]:
        """The devices whose updates a completed round applies: in the sum, or reported in the clear."""
        completed = self.outcome is RoundOutcome.COMPLETED
        return self.summed | self.clear if completed else frozenset()

    @property
    def opened(self) -> frozenset[int]:
        """The devices whose updates are in a sum that was unmasked, be it not applied."""
        return self.aggregation.contributors if self.aggregation.opened else frozenset()

    @property
    def reason_of_sum(self) -> Reason:
        """Why the updates in the sum are not applied; ``NONE`` if they are. Known once the round is over."""
        return self.reason if self.failure is None else reason_of(self.failure)

    def awaits_report(self, sender: int, message: Report) -> bool:
        """Say whether a report in the clear would count, if its contents are in order."""
        return self._judged_report(sender, message) == (FrameVerdict.AGGREGATE, _NONE)

    def received(self, sender: int, message: AnyMessage) -> Judgement:
        """Judge a frame that arrived from the device ``sender``."""
        if isinstance(message, Report):
            return self._received_report(sender, message)
        plan = self.plan
        if message.round_number != plan.round_number or message.run_id != plan.run_id:
            return Judgement(FrameVerdict.DISCARD, Reason.STALE, [])
        if sender not in self._invited:
            return Judgement(FrameVerdict.DISCARD, Reason.NOT_INVITED, [])
        if not isinstance(message, FROM_DEVICES):
            return self._received_of_sum(sender, message)
        if message.device != sender:
            return Judgement(FrameVerdict.DISCARD, Reason.NOT_INVITED, [])
        accepts = isinstance(message, Accept | AcceptBare)
        ended = sender in self._left or sender in self._reported
        if ended or (accepts and sender in self._accepted):
            return Judgement(FrameVerdict.DISCARD, Reason.DUPLICATE, [])
        if not accepts:
            return self._noted(self.lost(sender))
        if self.stage is not self._first:
            self._left.add(sender)
            return Judgement(FrameVerdict.REFUSE, self._reason_for_late(sender), [])
        self._accepted.add(sender)
        return Judgement(FrameVerdict.SEND_MODEL, _NONE, [])

    def _received_report(self, sender: int, message: Report) -> Judgement:
        verdict, reason = self._judged_report(sender, message)
        send: list[tuple[int, AnyMessage]] = []
        if verdict is FrameVerdict.AGGREGATE:
            assert self._mixed is not None
            self.clear.add(sender)
            before = self.stage
            send = self._after(before, self._mixed.reported(sender))
        if verdict is not FrameVerdict.DISCARD:
            self._reported.add(sender)
        return Judgement(verdict, reason, send)

    def _judged_report(self, sender: int, message: Report) -> tuple[FrameVerdict, Reason]:
        """Return what to do with a report in the clear, as :mod:`coordinator.engine.rounds` would with it."""
        plan = self.plan
        if message.round_number != plan.round_number or message.run_id != plan.run_id:
            # An answer would be taken for one to this round's report.
            return FrameVerdict.DISCARD, Reason.STALE
        if sender not in self._invited or message.device != sender:
            return FrameVerdict.DISCARD, Reason.NOT_INVITED
        if sender in self._reported:
            return FrameVerdict.DISCARD, Reason.DUPLICATE
        if self._mixed is None or sender not in self._accepted or sender in self._left:
            return FrameVerdict.DISCARD, Reason.WRONG_STAGE
        if sender in self._in_sum:
            return FrameVerdict.DISCARD, Reason.OTHER_WAY
        if self.stage is not self._first:
            return FrameVerdict.REFUSE, self._reason_for_late(sender)
        return FrameVerdict.AGGREGATE, _NONE

    def _received_of_sum(self, sender: int, message: AnyMessage) -> Judgement:
        if sender not in self._accepted:  # it was never given the model
            return Judgement(FrameVerdict.DISCARD, Reason.WRONG_STAGE, [])
        if sender in self._reported:
            return Judgement(FrameVerdict.DISCARD, Reason.OTHER_WAY, [])
        before = self.stage
        step = self.aggregation.receive(sender, message)
        if step.refused is None:
            self._in_sum.add(sender)
        excluded = step.refused is not None and len(step.send) > 0
        if excluded or (step.refused is None and isinstance(message, Abort)):
            self._left.add(sender)
        send = self._after(before, step)
        if step.refused is None:
            return self._noted(send)
        reason = reason_of(step.refused.reason)
        if reason is not Reason.WRONG_STAGE or sender in self._left:
            return Judgement(FrameVerdict.DISCARD, reason, send)
        if sender in self.aggregation.dropped:
            # One whose input is in the sum gets its receipt when the round ends, and no other before.
            refuse = sender not in self.aggregation.contributors
            verdict = FrameVerdict.REFUSE if refuse else FrameVerdict.DISCARD
            return Judgement(verdict, self._reason_for_late(sender), send)
        if self.over:
            # All that the sum needed was there before, or there is none.
            reason = self.reason_of_sum or Reason.COHORT_FULL
        return Judgement(FrameVerdict.DISCARD, reason, send)

    def _noted(self, send: list[tuple[int, AnyMessage]]) -> Judgement:
        return Judgement(FrameVerdict.NOTE, _NONE, send)

    def _reason_for_late(self, device: int) -> Reason:
        """Return why a device that would still take part cannot."""
        if self.reason is not _NONE:
            return self.reason
        missed_first = self.aggregation.dropped.get(device) is self._first
        full = missed_first and self.closed_by is not Reason.DEADLINE
        return Reason.COHORT_FULL if full else Reason.DEADLINE

    def lost(self, device: int) -> list[tuple[int, AnyMessage]]:
        """Give up ``device``, which is gone; return what to send."""
        if device not in self._invited or device in self._reported:
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

    def undo(self, reason: Reason) -> None:
        """Abandon a completed round all the same: what came of it cannot be applied."""
        self.outcome, self.reason = RoundOutcome.ABANDONED, reason

    def _after(self, before: CoordinatorState, step: Step) -> list[tuple[int, AnyMessage]]:
        first_ended = before is self._first and self.stage is not before
        if first_ended and self.closed_by is _NONE and not self.aggregation.dropped.keys() <= self._left:
            self.closed_by = Reason.COHORT_FULL
        if self.stage in COORDINATOR_FINAL and not self.over:
            self._close()
        return [*step.send]

    def _close(self) -> None:
        summed = len(self.aggregation.contributors) if self.failure is None else 0
        if summed + len(self.clear) >= self.plan.quorum:
            self.outcome = RoundOutcome.COMPLETED
        else:
            self.outcome = RoundOutcome.ABANDONED
            self.reason = Reason.QUORUM if self.failure is None else reason_of(self.failure)
