"""The device's side of a homomorphic sum, as a state machine without I/O.

A device encrypts its input, and waits for what may never come: the request to decrypt the sum, which one
device of the round gets. Whatever else ends the round, an acknowledgement or an abort, reaches the device by
other ways.
"""

from __future__ import annotations

from collections.abc import Callable

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import (
    RepeatedUnmaskError,
    SecAggError,
    TooFewContributorsError,
    WrongReceiverError,
    WrongStageError,
)
from edge.homomorphic.config import CkksConfig
from edge.homomorphic.schemes import SecretKey
from edge.homomorphic.vectors import Encoded, Vector, decode_sum, encode_input, pack, settle, unpack
from edge.learning.updates import ClientUpdate
from edge.secagg.checks import expect_round
from edge.secagg.inputs import part_values
from edge.secagg.participant import Answer, CryptoWork
from edge.secagg.states import DEVICE_FINAL, DeviceState
from edge.wire.messages import Abort, AnyMessage, DecryptedSum, DecryptRequest, EncryptedInput


class CkksParticipant:
    """One device's part in one round; a :class:`~edge.secagg.participant.Participant`.

    Parameters
    ----------
    config : what this device agreed to.
    secret : the key that all devices of the run hold.
    device : its id.
    run_id, round_number : which round.
    watch : told the device and its encoded input before it is encrypted; for checks beside the protocol,
        never in a deployment.

    Attributes
    ----------
    state : ``IDLE``, then ``AWAITING_UNMASK``, then ``DONE`` if it was asked to decrypt, or ``ABORTED``.
    failure : why its part ended early, by the name of an error; None while it has not.
    nonzero : how many real values of its input were not zero.
    clipped : how many of them were beyond the clip.
    """

    __slots__ = (
        "_config",
        "_round_number",
        "_run_id",
        "_secret",
        "_watch",
        "clipped",
        "device",
        "failure",
        "nonzero",
        "state",
    )

    def __init__(
        self,
        config: CkksConfig,
        secret: SecretKey,
        *,
        device: int,
        run_id: str,
        round_number: int,
        watch: Callable[[int, Vector], None] | None = None,
    ) -> None:
        self._config = config
        self._secret = secret
        self._watch = watch
        self._run_id = run_id
        self._round_number = round_number
        self.device = device
        self.state = DeviceState.IDLE
        self.failure: str | None = None
        self.nonzero = 0
        self.clipped = 0

    @property
    def over(self) -> bool:
        """Say whether nothing more is expected from the device."""
        return self.state in DEVICE_FINAL

    def begin(self, update: ClientUpdate) -> Answer:
        """Return the encrypted ``update``.

        Raises what :func:`~edge.secagg.inputs.part_values` and
        :func:`~edge.homomorphic.vectors.encode_input` raise; the device's part has then ended. A second call
        raises ``LocalProtocolError``.
        """
        if self.state is not DeviceState.IDLE:
            raise LocalProtocolError(f"a device cannot begin in the state '{self.state.value}'")
        try:
            encoded = self._encode(update)
        except SecAggError as error:
            self._end(error.reason)
            raise
        self.nonzero = encoded.nonzero
        self.clipped = encoded.clipped
        if self._watch is not None:
            self._watch(self.device, encoded.vector)
        ciphertexts = self._secret.encrypt(encoded.vector)
        self.state = DeviceState.AWAITING_UNMASK
        return Answer(
            EncryptedInput(self._run_id, self._round_number, self.device, pack(ciphertexts)),
            CryptoWork(encryptions=len(ciphertexts)),
        )

    def receive(self, message: AnyMessage) -> Answer | None:
        """Take a frame from the coordinator; return the decrypted sum if it is asked for.

        Raises a :class:`~edge.crypto.errors.SecAggError` by the name of what is wrong. ``StaleSessionError``,
        ``StaleRoundError``, ``WrongReceiverError``, ``WrongStageError`` and ``RepeatedUnmaskError`` leave the
        machine as it was; after any other its state is ``ABORTED``.
        """
        if not isinstance(message, DecryptRequest | Abort):
            raise WrongStageError(f"{type(message).__name__} is not for a device in a homomorphic sum")
        expect_round(self._run_id, self._round_number, message.run_id, message.round_number)
        if message.device != self.device:
            raise WrongReceiverError(f"a message for device {message.device} reached device {self.device}")
        asked = isinstance(message, DecryptRequest)
        if asked and self.state is DeviceState.DONE:
            raise RepeatedUnmaskError(f"a second request to decrypt reached device {self.device}")
        if self.over or (asked and self.state is DeviceState.IDLE):
            raise WrongStageError(
                f"{type(message).__name__} reached device {self.device}, which is '{self.state.value}'"
            )
        if isinstance(message, Abort):
            self._end(message.reason)
            return None
        try:
            answer = self._decrypt(message)
        except SecAggError as error:
            self._end(error.reason)
            raise
        self.state = DeviceState.DONE
        return answer

    def give_up(self, reason: str) -> Abort:
        """End the device's part if it still runs, and return the message with the reason."""
        if not self.over:
            self._end(reason)
        return Abort(self._run_id, self._round_number, self.device, reason)

    def _encode(self, update: ClientUpdate) -> Encoded:
        values, weight = part_values(self._config.parts, update)
        return encode_input(self._config, values, weight)

    def _decrypt(self, message: DecryptRequest) -> Answer:
        config = self._config
        if message.survivors < config.min_contributors:
            raise TooFewContributorsError(
                f"asked to decrypt a sum over {message.survivors} devices; "
                f"{config.min_contributors} must be in it"
            )
        ciphertexts = unpack(config, message.arrays)
        total = settle(self._secret.decrypt(ciphertexts)[: config.length])
        # The sum itself has to say that so many devices are in it, not just the coordinator.
        decode_sum(config, total, message.survivors)
        return Answer(
            DecryptedSum(self._run_id, self._round_number, self.device, {"total": total}),
            CryptoWork(decryptions=len(ciphertexts)),
        )

    def _end(self, reason: str) -> None:
        self.state = DeviceState.ABORTED
        self.failure = reason
