"""The vocabulary's reason for each named error of secure aggregation."""

from __future__ import annotations

from edge.core.vocabulary import Reason
from edge.crypto import errors

_REASON_OF = {
    errors.DuplicateMessageError.NAME: Reason.DUPLICATE,
    errors.RepeatedUnmaskError.NAME: Reason.DUPLICATE,
    errors.StaleSessionError.NAME: Reason.STALE,
    errors.StaleRoundError.NAME: Reason.STALE,
    errors.UnknownDeviceError.NAME: Reason.NOT_INVITED,
    errors.WrongSenderError.NAME: Reason.NOT_INVITED,
    errors.WrongStageError.NAME: Reason.WRONG_STAGE,
    errors.NotFiniteError.NAME: Reason.NOT_FINITE,
    errors.TooFewContributorsError.NAME: Reason.QUORUM,
    errors.TooFewNeighboursError.NAME: Reason.THRESHOLD,
    errors.TooFewSurvivorsError.NAME: Reason.THRESHOLD,
    errors.InfeasibleError.NAME: Reason.THRESHOLD,
    errors.ThresholdError.NAME: Reason.THRESHOLD,
}


def reason_of(name: str) -> Reason:
    """Return the reason that is counted for an error's name; ``PROTOCOL`` for every other."""
    return _REASON_OF.get(name, Reason.PROTOCOL)
