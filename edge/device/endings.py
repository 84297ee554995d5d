"""What frames that do not count are called, and how a participation ended by its receipt."""

from __future__ import annotations

from edge.core.vocabulary import EventKind, Outcome, Reason
from edge.wire.messages import (
    KINDS,
    AdvertiseKeys,
    AnyMessage,
    ConsistencySignature,
    DecryptedSum,
    EncryptedInput,
    MaskedInput,
    Report,
    SealedShares,
    UnmaskShares,
)

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


def event_of_discarded(message: AnyMessage, reason: Reason) -> EventKind:
    """Return what the transfer of a frame is called that arrived and was thrown away."""
    late = reason is Reason.DEADLINE or reason is Reason.COHORT_FULL
    if late and message.__class__ in _REPORTS:
        return EventKind.LATE
    return _EVENT_OF_REASON.get(reason, KINDS[message.__class__].event)
