"""The coordinator's side of one round, as a state machine without I/O.

Frames from devices and the deadline go in; verdicts come out. The machine knows who was invited, who
answered what, and when the round is over:

* as soon as ``target`` reports were accepted (over-selection: more devices are invited than wanted),
* as soon as nobody is left who could still report,
* at the deadline, or ``grace_s`` after the quorum was met, if that is sooner.

With at least ``quorum`` reports the round is completed, else it is abandoned and nothing is applied. A report
after the end is late (or surplus, when the target had been reached) and never applied; one of another run or
round is stale and is never taken for one of this round.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from edge.core.errors import LocalProtocolError
from edge.core.vocabulary import Reason, RoundOutcome
from edge.wire.messages import FROM_DEVICES, Accept, AcceptBare, Message, Report


class FrameVerdict(enum.Enum):
    """What the coordinator does with a frame."""

    SEND_MODEL = "send the model"
    AGGREGATE = "aggregate the report and acknowledge it"
    NOTE = "note it; nothing to send"
    REFUSE = "acknowledge that it does not count, with the reason"
    DISCARD = "discard it without an answer"


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round wants: ``target`` reports, at least ``quorum``, within ``deadline_s`` (relative).

    With ``grace_s`` it is over that long after the quorum was met, at the latest. ``mixed`` says of a round
    with a secure sum that devices may report in the clear beside it. ``close`` is for a part of a round, when
    and why all of it is over (absolute seconds); None: as the other fields say.
    """

    run_id: str
    round_number: int
    target: int
    quorum: int
    deadline_s: float
    grace_s: float | None = None
    mixed: bool = False
    close: tuple[float, Reason] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.quorum <= self.target:
            raise LocalProtocolError(f"quorum {self.quorum} must lie between 1 and the target {self.target}")
        if not self.deadline_s > 0:
            raise LocalProtocolError(f"a round's deadline must be positive, not {self.deadline_s} s")


class Member(enum.IntEnum):
    """Where a device stands."""

    INVITED = 0
    ACCEPTED = 1
    GONE = 2
    REPORTED = 3


# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_INVITED = Member.INVITED
_ACCEPTED = Member.ACCEPTED
_GONE = Member.GONE
_REPORTED = Member.REPORTED
_NONE = Reason.NONE


class RoundMachine:
    """One round from invitation to outcome.

    Parameters
    ----------
    plan : what the round wants.
    invited : device ids.
    """

    __slots__ = ("_members", "accepted", "closed_by", "open", "outcome", "plan", "reason", "reported")

    def __init__(self, plan: RoundPlan, invited: list[int]) -> None:
        self.plan = plan
        self._members = dict.fromkeys(invited, _INVITED)
        self.open = len(self._members)
        """Devices that may still report."""
        self.accepted = 0
        self.reported: list[int] = []
        """Devices whose reports count, in the order of their coming."""
        self.outcome: RoundOutcome | None = None
        self.reason = _NONE
        self.closed_by = _NONE
        """Why the round stopped waiting: ``COHORT_FULL``, ``DEADLINE``, or ``NONE`` (nobody was left)."""
        if not self._members:
            raise LocalProtocolError("a round needs at least one invited device")

    @property
    def over(self) -> bool:
        """Say whether the outcome is known."""
        return self.outcome is not None

    @property
    def reports(self) -> int:
        """How many reports count."""
        return len(self.reported)

    @property
    def applied(self) -> frozenset[int]:
        """The devices whose updates a completed round applies."""
        return frozenset(self.reported) if self.outcome is RoundOutcome.COMPLETED else frozenset()

    @property
    def opened(self) -> frozenset[int]:
        """The devices whose updates are in a sum that was made, be it not applied."""
        made = self.outcome is RoundOutcome.COMPLETED or self.reason is Reason.WRONG_SUM
        return frozenset(self.reported) if made else frozenset()

    def received(self, message: Message) -> tuple[FrameVerdict, Reason]:
        """Judge a frame from a device.

        Returns the verdict and, for ``REFUSE`` and ``DISCARD``, the reason that is counted and reported.
        """
        if not isinstance(message, FROM_DEVICES):
            return FrameVerdict.DISCARD, Reason.WRONG_STAGE
        plan = self.plan
        if message.round_number != plan.round_number or message.run_id != plan.run_id:
            # Of a round before: the device still deserves to hear that its report does not count.
            return (
                FrameVerdict.REFUSE if isinstance(message, Report) else FrameVerdict.DISCARD
            ), Reason.STALE
        member = self._members.get(message.device)
        if member is None:
            return FrameVerdict.DISCARD, Reason.NOT_INVITED
        if isinstance(message, Report):
            return self._report(message, member)
        if isinstance(message, Accept | AcceptBare):
            return self._accept(message, member)
        if member is _GONE or member is _REPORTED:
            return FrameVerdict.DISCARD, Reason.DUPLICATE
        self._leave(message.device)
        return FrameVerdict.NOTE, _NONE

    def _accept(self, message: Accept | AcceptBare, member: Member) -> tuple[FrameVerdict, Reason]:
        if member is not _INVITED:
            return FrameVerdict.DISCARD, Reason.DUPLICATE
        if self.outcome is not None:
            self._members[message.device] = _GONE
            return FrameVerdict.REFUSE, self.lateness
        self._members[message.device] = _ACCEPTED
        self.accepted += 1
        return FrameVerdict.SEND_MODEL, _NONE

    def _report(self, message: Report, member: Member) -> tuple[FrameVerdict, Reason]:
        if member is _REPORTED:
            return FrameVerdict.DISCARD, Reason.DUPLICATE
        if member is not _ACCEPTED:
            return FrameVerdict.DISCARD, Reason.WRONG_STAGE
        self._members[message.device] = _REPORTED
        if self.outcome is not None:
            return FrameVerdict.REFUSE, self.lateness
        self.reported.append(message.device)
        self.open -= 1
        self._close_if_done()
        return FrameVerdict.AGGREGATE, _NONE

    def count(self, accepted: int, left: int, reported: list[int]) -> None:
        """Take what invited devices have said, each once and none before; the round is not over.

        Parameters
        ----------
        accepted, left : how many have accepted, and how many will not report: they declined, failed, or
        reported
            what cannot be.
        reported : devices whose reports count, in the order of their coming.
        """
        self.accepted += accepted
        self.reported += reported
        self.open -= left + len(reported)
        if left or reported:
            self._close_if_done()

    def lost(self, device: int) -> None:
        """Give up ``device``, whose connection is gone: it will not report."""
        if self._members.get(device) in (_INVITED, _ACCEPTED):
            self._leave(device)

    def _leave(self, device: int) -> None:
        self._members[device] = _GONE
        if self.outcome is None:
            self.open -= 1
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self.reports >= self.plan.target:
            self._close(Reason.COHORT_FULL)
        elif self.open == 0:
            self._close(_NONE)

    def deadline_passed(self) -> None:
        """End the round at its deadline, if it is not over yet."""
        if self.outcome is None:
            self._close(Reason.DEADLINE if self.plan.close is None else self.plan.close[1])

    def abandon(self, reason: Reason) -> None:
        """Give the round up, if it is not over yet."""
        if self.outcome is None:
            self.outcome = RoundOutcome.ABANDONED
            self.reason = reason

    def undo(self, reason: Reason) -> None:
        """Abandon a completed round all the same: what came of it cannot be applied."""
        self.outcome, self.reason = RoundOutcome.ABANDONED, reason

    def _close(self, closed_by: Reason) -> None:
        self.closed_by = closed_by
        if self.reports >= self.plan.quorum:
            self.outcome = RoundOutcome.COMPLETED
        else:
            self.outcome = RoundOutcome.ABANDONED
            self.reason = Reason.QUORUM

    @property
    def lateness(self) -> Reason:
        """Why a report, or an acceptance, that comes after the end does not count."""
        return Reason.COHORT_FULL if self.closed_by is Reason.COHORT_FULL else Reason.DEADLINE
