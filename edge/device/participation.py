"""The device's side of a round, as a state machine without I/O, and which rounds it has answered.

Frames and local events go in, messages to send come out; there is no clock, socket or ``await`` here. The
same machine serves the virtual and the real clock. What a frame means is decided here and nowhere else: one
of another run or round is *stale*, one that repeats a step is a *duplicate*, one out of order is of the
*wrong stage*; such frames are discarded and named, never acted on.
"""

from __future__ import annotations

import enum
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError
from edge.core.vocabulary import FIRST_QUERY, EventKind, Outcome, Reason
from edge.secagg.participant import reason_of
from edge.wire.messages import (
    KINDS,
    SECAGG_FROM_COORDINATOR,
    Abort,
    Accept,
    AcceptBare,
    Acknowledge,
    AdvertiseKeys,
    AnyMessage,
    Arrays,
    ConsistencySignature,
    Decline,
    DecryptedSum,
    DecryptRequest,
    EncryptedInput,
    Failure,
    Invite,
    MaskedInput,
    Model,
    Report,
    SealedShares,
    UnmaskShares,
)

_OF_SECURE_SUM = frozenset((*SECAGG_FROM_COORDINATOR, DecryptRequest))
_REASONS = {int(reason): reason for reason in Reason}
_NONE = Reason.NONE
_EVENT_OF_REASON = {
    Reason.DUPLICATE: EventKind.DUPLICATE,
    Reason.STALE: EventKind.STALE,
    Reason.GARBAGE: EventKind.GARBAGE,
}
_REPORTS: frozenset[type[AnyMessage]] = frozenset(
    {
        Report,
        AdvertiseKeys,
        SealedShares,
        MaskedInput,
        ConsistencySignature,
        UnmaskShares,
        EncryptedInput,
        DecryptedSum,
    }
)
"""A report, and the messages of a secure sum that stand in its place."""
RECEIPT_PATIENCE = 2.0
"""A device that has begun its report waits for the receipt until this multiple of the round's time limit."""
LAST_OF_REPORT = (Report, UnmaskShares, DecryptedSum)
"""After one of these a device only waits for its receipt."""
OUTCOME_OF_RECEIPT = {
    Reason.NONE: Outcome.COMPLETED,
    Reason.COHORT_FULL: Outcome.SURPLUS,
    Reason.GARBAGE: Outcome.FAILED,
    Reason.OUT_OF_RANGE: Outcome.FAILED,
    Reason.QUORUM: Outcome.ABANDONED,
    Reason.THRESHOLD: Outcome.ABANDONED,
    Reason.PROTOCOL: Outcome.ABANDONED,
}
"""How a participation ended, by what the receipt says; everything else came too late."""
Ids = npt.NDArray[np.int64]
Counts = int | npt.NDArray[np.int32]
UNLIMITED: Final = int(np.iinfo(np.int32).max)
"""The number of rounds of a device that is allowed as many as there are."""


class State(enum.Enum):
    """Where the device stands in its round."""

    IDLE = "idle"
    AWAITING_MODEL = "awaiting model"
    COMPUTING = "computing"
    SUMMING = "taking part in a secure sum"
    AWAITING_RECEIPT = "awaiting receipt"
    OVER = "over"


# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_AWAITING_MODEL = State.AWAITING_MODEL
_COMPUTING = State.COMPUTING
_SUMMING = State.SUMMING
_AWAITING_RECEIPT = State.AWAITING_RECEIPT
_IDLE = State.IDLE
_OVER = State.OVER


class Participation:
    """One device's part in one round.

    The order of calls is :meth:`invited`, :meth:`received` (until it gives a model), :meth:`computed` or
    :meth:`failed`, :meth:`received` (until the receipt); :meth:`timed_out` may end it anywhere. Where updates
    are summed securely, :meth:`sums` comes in place of :meth:`computed`, and then :meth:`contributed` or
    :meth:`aborted`. A call in any other state raises ``LocalProtocolError``: that is a bug of the caller, not
    of the peer.
    """

    __slots__ = ("abandoned", "declined", "device", "receipt", "round_number", "run_id", "state")

    def __init__(self, device: int) -> None:
        self.device = device
        self.state = _IDLE
        self.run_id = ""
        self.round_number = -1
        self.receipt: Reason | None = None
        """What the coordinator answered to the report: ``Reason.NONE`` when it was counted."""
        self.declined: Reason | None = None
        """Why the device did not accept the invitation."""
        self.abandoned: Reason | None = None
        """Why the secure sum ended for this device before its time."""

    @property
    def over(self) -> bool:
        """Say whether nothing more is to be done in this round."""
        return self.state is _OVER

    def _expect(self, state: State, call: str) -> None:
        if self.state is not state:
            raise LocalProtocolError(f"{call}() needs the state '{state.value}', not '{self.state.value}'")

    def invited(
        self, invite: Invite, obstacle: Reason, *, bare: bool = False
    ) -> Accept | AcceptBare | Decline:
        """Answer an invitation: no if there is an ``obstacle`` (battery, memory, …), else yes.

        ``bare`` says that the device lacks what never changes and is sent only once.
        """
        if self.state is not _IDLE:
            self._expect(_IDLE, "invited")
        self.run_id = invite.run_id
        self.round_number = invite.round_number
        if obstacle is not _NONE:
            self.state = _OVER
            self.declined = obstacle
            return Decline(invite.run_id, invite.round_number, self.device, obstacle)
        self.state = _AWAITING_MODEL
        accept = AcceptBare if bare else Accept
        return accept(invite.run_id, invite.round_number, self.device)

    def received(self, message: AnyMessage) -> Reason:
        """Take a frame from the coordinator; return ``Reason.NONE`` if it was acted on, else why not.

        A message of a secure sum is only admitted here; what it means is the sum's own machine's business,
        until the device has done its part: from then on an abort is a receipt.
        """
        kind = type(message)
        plain = kind is Model or kind is Acknowledge or kind is Invite
        if not plain and kind not in _OF_SECURE_SUM:
            return Reason.WRONG_STAGE
        if message.round_number != self.round_number or message.run_id != self.run_id:
            return Reason.STALE
        state = self.state
        if not plain:
            return self._received_of_sum(message)
        if kind is Model:
            if state is not _AWAITING_MODEL:
                return Reason.DUPLICATE
            self.state = _COMPUTING
            return _NONE
        if kind is Invite or state is _OVER:
            return Reason.DUPLICATE
        if state is _COMPUTING:
            return Reason.WRONG_STAGE  # nothing was reported that could be acknowledged
        # Before anything was reported, a receipt says that the round no longer needs this device.
        assert isinstance(message, Acknowledge)
        self.state = _OVER
        self.receipt = _REASONS.get(message.reason, Reason.GARBAGE)
        return _NONE

    def _received_of_sum(self, message: AnyMessage) -> Reason:
        if self.state is _SUMMING:
            return _NONE
        if self.state is not _AWAITING_RECEIPT or not isinstance(message, Abort):
            return Reason.WRONG_STAGE
        # The sum failed after this device had done its part: there will be no other receipt.
        self.state = _OVER
        self.abandoned = reason_of(message.reason)
        return _NONE

    def computed(self, arrays: Arrays, weight: float, examples: int, loss: float) -> Report | Failure:
        """Report a finished client update; one with a NaN or infinite loss or weight becomes a failure."""
        if self.state is not _COMPUTING:
            self._expect(_COMPUTING, "computed")
        if not (math.isfinite(loss) and math.isfinite(weight)):
            return self.failed(Reason.NOT_FINITE)
        self.state = _AWAITING_RECEIPT
        return Report(self.run_id, self.round_number, self.device, examples, weight, loss, arrays)

    def sums(self) -> None:
        """Note that the update is ready and takes part in a secure sum instead of being reported."""
        self._expect(_COMPUTING, "sums")
        self.state = _SUMMING

    def contributed(self) -> None:
        """Note that the secure sum needs nothing more from this device but its patience."""
        self._expect(_SUMMING, "contributed")
        self.state = _AWAITING_RECEIPT

    def aborted(self, reason: Reason) -> None:
        """End the participation because the secure sum ended for this device."""
        self._expect(_SUMMING, "aborted")
        self.state = _OVER
        self.abandoned = reason

    def failed(self, reason: Reason) -> Failure:
        """Give up during the computation and say why."""
        self._expect(_COMPUTING, "failed")
        self.state = _OVER
        return Failure(self.run_id, self.round_number, self.device, reason)

    def timed_out(self) -> None:
        """End the participation: its time is up. Nothing is sent; the coordinator has its own clock."""
        self.state = _OVER


def event_of_discarded(message: type[AnyMessage], reason: Reason) -> EventKind:
    """Return what the transfer of a frame with such a message is called that arrived and was thrown away."""
    late = reason is Reason.DEADLINE or reason is Reason.COHORT_FULL
    if late and message in _REPORTS:
        return EventKind.LATE
    return _EVENT_OF_REASON.get(reason, KINDS[message].event)


def objections(round_number: int, last_round: Counts, rounds: Counts, allowed: Counts) -> Ids:
    """Return why devices do not answer a round, the number of a :class:`Reason` each, int64 [n]; 0: they do.

    Parameters
    ----------
    round_number : the round; the first is 1.
    last_round : the highest round of its series that a device has answered, 0 for none.
    rounds : how many it has answered, evaluations among them.
    allowed : how many it may answer in the run.
    """
    spent = np.where(rounds >= allowed, int(Reason.BUDGET_SPENT), int(Reason.NONE))
    return np.where(last_round >= round_number, int(Reason.ALREADY_ANSWERED), spent)


class AnsweredRounds:
    """The rounds of a run that each device of a simulated fleet has answered, a row each.

    Two sums over cohorts that differ by one device differ by that device's update, and the mean of many noisy
    updates is the update. So a device answers a round once, then only higher ones, and no more rounds than it
    is allowed. A round is answered when the invitation is accepted, whatever becomes of it afterwards: the
    receipt may be lost, and the update seen all the same. The task that an invitation names makes no
    difference. Evaluations, which the number of a round tells, are a series of their own beside the others,
    and count together with them.

    Parameters
    ----------
    n : number of devices.
    allowed : how many rounds and evaluations each may answer.

    Attributes
    ----------
    last_round, last_evaluation : int32 [n], the highest of each series that each has answered, 0 for none.
    rounds : int32 [n], how many of both it has answered.
    """

    def __init__(self, n: int, allowed: int = UNLIMITED) -> None:
        self._allowed = allowed
        self.last_round = np.zeros(n, dtype=np.int32)
        self.last_evaluation = np.zeros(n, dtype=np.int32)
        self.rounds = np.zeros(n, dtype=np.int32)

    def _last(self, round_number: int) -> npt.NDArray[np.int32]:
        return self.last_evaluation if round_number >= FIRST_QUERY else self.last_round

    def objections(self, ids: Ids, round_number: int) -> Ids:
        """Return why the devices ``ids`` (int64 [n]) do not answer a round; see :func:`objections`."""
        return objections(round_number, self._last(round_number)[ids], self.rounds[ids], self._allowed)

    def add_many(self, devices: Ids, round_number: int) -> None:
        """Count that ``devices`` (int64 [n], each once) answer a round."""
        self._last(round_number)[devices] = round_number
        self.rounds[devices] += 1

    def add(self, device: int, round_number: int) -> None:
        """Count that a device answers a round."""
        self._last(round_number)[device] = round_number
        self.rounds[device] += 1
