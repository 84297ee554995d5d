"""One named error for every way in which secure aggregation refuses or aborts.

``reason`` is a short stable name that is counted and reported; the detail says what was wrong where, and
what would be right. Misuse by our own code raises :class:`~edge.core.errors.LocalProtocolError` instead.
"""

from __future__ import annotations

from typing import ClassVar

from edge.core.errors import RemoteProtocolError


class SecAggError(RemoteProtocolError):
    """Base of the named refusals; each subclass has its own ``NAME``, which becomes ``reason``."""

    NAME: ClassVar[str] = "secure-aggregation"

    culprit: int | None = None
    """The device that is to blame, where it is another than the sender of the message that is refused."""

    def __init__(self, detail: str) -> None:
        super().__init__(self.NAME, detail)


# -- the plan of a round ---------------------------------------------------------------------------------


class OverflowingConfigError(SecAggError):
    """The largest possible sum does not fit into the ring, or leaves not even one quantisation step."""

    NAME = "overflowing-config"


class InfeasibleError(SecAggError):
    """No number of neighbours and threshold is safe and robust enough for the assumed fractions."""

    NAME = "infeasible"


class ThresholdError(SecAggError):
    """A threshold at which two disjoint groups of neighbours could both reconstruct, or none ever could."""

    NAME = "unsafe-threshold"


class ConfigMismatchError(SecAggError):
    """The round's configuration is not the one the device agreed to."""

    NAME = "config-mismatch"


class ModelMismatchError(SecAggError):
    """The model's hash is not that of the model the device trained on."""

    NAME = "model-mismatch"


# -- a device's input ------------------------------------------------------------------------------------


class WeightError(SecAggError):
    """A weight that is negative, not finite, or above the maximum that the plan allows for."""

    NAME = "bad-weight"


class NotFiniteError(SecAggError):
    """A NaN or an infinite value in the input."""

    NAME = "not-finite"


class ValueRangeError(SecAggError):
    """A whole number beyond the range that the plan allows for."""

    NAME = "value-range"


class WrongLengthError(SecAggError):
    """A vector, key, seed or list of the wrong length or shape."""

    NAME = "wrong-length"


class WrongDtypeError(SecAggError):
    """An array of another dtype than the one expected."""

    NAME = "wrong-dtype"


# -- keys and messages -----------------------------------------------------------------------------------


class DuplicateKeyError(SecAggError):
    """The same public key twice in a round, or the same device twice in its key list."""

    NAME = "duplicate-key"


class OwnKeyError(SecAggError):
    """The coordinator's key list shows other keys for this device than it advertised."""

    NAME = "own-key-changed"


class LowOrderPointError(SecAggError):
    """A public key that makes every shared secret zero."""

    NAME = "low-order-point"


class BadKeyError(SecAggError):
    """A public key that is not the canonical encoding of a point."""

    NAME = "bad-key"


class AuthenticationError(SecAggError):
    """A sealed message that was changed, or sealed for another session, round, sender or receiver."""

    NAME = "authentication-failed"


class MissingSignatureError(SecAggError):
    """A message without the signature that the active mode demands."""

    NAME = "missing-signature"


class BadSignatureError(SecAggError):
    """A signature that does not verify."""

    NAME = "bad-signature"


class UnknownDeviceError(SecAggError):
    """A device that is not part of the round or not on the roster."""

    NAME = "unknown-device"


class WrongSenderError(SecAggError):
    """A message in the name of a device that may not send it."""

    NAME = "wrong-sender"


class WrongReceiverError(SecAggError):
    """A message meant for another device."""

    NAME = "wrong-receiver"


class StaleSessionError(SecAggError):
    """A message of another session."""

    NAME = "stale-session"


class StaleRoundError(SecAggError):
    """A message of another round."""

    NAME = "stale-round"


class WrongStageError(SecAggError):
    """A valid message at a stage of the protocol that does not allow it."""

    NAME = "wrong-stage"


class DuplicateMessageError(SecAggError):
    """A second message where the protocol has one."""

    NAME = "duplicate-message"


class MalformedMessageError(SecAggError):
    """A message whose fields contradict each other."""

    NAME = "malformed-message"


# -- who is still there ----------------------------------------------------------------------------------


class TooFewNeighboursError(SecAggError):
    """Fewer neighbours than the threshold needs."""

    NAME = "too-few-neighbours"


class TooFewSurvivorsError(SecAggError):
    """Fewer survivors than the threshold."""

    NAME = "too-few-survivors"


class TooFewContributorsError(SecAggError):
    """A sum over fewer devices than ``min_contributors``."""

    NAME = "too-few-contributors"


class NotNeighbourError(SecAggError):
    """A request or message that names a device which is not a neighbour."""

    NAME = "not-a-neighbour"


class IncompleteListError(SecAggError):
    """Alive and dead together are not exactly the devices that shared their secrets."""

    NAME = "incomplete-list"


class OverlappingListError(SecAggError):
    """A device listed alive and dead at once."""

    NAME = "overlapping-list"


class SelfDeadError(SecAggError):
    """A living device is asked to help unmask itself as dead."""

    NAME = "self-listed-dead"


class RepeatedUnmaskError(SecAggError):
    """A second unmask request in one round."""

    NAME = "repeated-unmask"


# -- shares and what they rebuild ------------------------------------------------------------------------


class ShareIndexError(SecAggError):
    """A share index outside 1 … n; index 0 would be the secret itself."""

    NAME = "bad-share-index"


class ShareLengthError(SecAggError):
    """A share, or a list of shares, of the wrong length."""

    NAME = "bad-share-length"


class ShareValueError(SecAggError):
    """Bytes that are not the one encoding of a share."""

    NAME = "bad-share-value"


class DuplicateShareError(SecAggError):
    """The same share index twice."""

    NAME = "duplicate-share"


class ShareCountError(SecAggError):
    """Not exactly as many shares as the threshold."""

    NAME = "wrong-share-count"


class InconsistentSharesError(SecAggError):
    """Shares that do not belong to one secret: what they rebuild is not 32 bytes."""

    NAME = "inconsistent-shares"


class WrongShareError(SecAggError):
    """So many released shares are not those that their holders were given that too few are left."""

    NAME = "wrong-share"


class KeyMismatchError(SecAggError):
    """A reconstructed private key that does not belong to the advertised public key."""

    NAME = "key-mismatch"


class CommitmentMismatchError(SecAggError):
    """A reconstructed self-mask seed that is not the one its device committed to."""

    NAME = "commitment-mismatch"


class SumMismatchError(SecAggError):
    """A sum that contradicts itself: a device lied about its weight, or used other keys."""

    NAME = "sum-mismatch"
