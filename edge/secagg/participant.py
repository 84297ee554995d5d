"""A device's part in a round whose sum alone is revealed, by whatever protocol."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from edge.core.vocabulary import Reason
from edge.crypto import errors
from edge.learning.updates import ClientUpdate
from edge.wire.messages import Abort, AnyMessage

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


class CryptoWork(NamedTuple):
    """How often each primitive is done."""

    key_pairs: int = 0
    """X25519 key pairs made."""
    exchanges: int = 0
    """X25519 exchanges, each with its key derivation."""
    seals: int = 0
    """Share messages sealed or opened with AES-256-GCM."""
    signatures: int = 0
    """Ed25519 signatures made."""
    verifications: int = 0
    """Ed25519 signatures verified."""
    expanded_bytes: int = 0
    """Bytes of AES-128-CTR keystream expanded and added."""
    quantised: int = 0
    """Elements clipped, scaled and rounded stochastically."""
    share_products: int = 0
    """Multiply-adds of Shamir over F_65537, 16-bit words."""
    encryptions: int = 0
    """CKKS ciphertexts of degree 8192 made."""
    decryptions: int = 0
    """CKKS ciphertexts of degree 8192 opened."""


class Answer(NamedTuple):
    """What a device sends, and what it had to compute for it."""

    message: AnyMessage
    work: CryptoWork


class Participant(Protocol):
    """The order of calls is :meth:`begin`, then :meth:`receive` until :attr:`over`."""

    @property
    def over(self) -> bool:
        """Say whether nothing more is expected from the device."""

    @property
    def failure(self) -> str | None:
        """Why the device's part ended early, by the name of an error; None while it has not."""

    def begin(self, update: ClientUpdate) -> Answer:
        """Take the update that shall be summed, and return the first message.

        Raises a :class:`~edge.crypto.errors.SecAggError` for an update that the round's configuration does
        not allow; the device's part has then ended.
        """

    def receive(self, message: AnyMessage) -> Answer | None:
        """Take a frame from the coordinator; return the answer, if it wants one.

        Raises a :class:`~edge.crypto.errors.SecAggError` by the name of what is wrong; :attr:`over` says
        whether the device's part has ended with it.
        """

    def give_up(self, reason: str) -> Abort:
        """End the device's part and return the message that says why."""


def reason_of(name: str) -> Reason:
    """Return the reason that is counted for an error's name; ``PROTOCOL`` for every other."""
    return _REASON_OF.get(name, Reason.PROTOCOL)
