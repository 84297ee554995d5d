"""The coordinator's side of a homomorphic sum, as a state machine without I/O.

An encrypted input is added to the one running sum when it arrives, and forgotten. When the inputs are in,
one contributor is asked to decrypt the sum; if it is lost, refuses, is too late or sends rubbish, the next
one is. Whoever drops out before contributing is missing in the sum and costs nothing else.

A bad frame never ends the round: it is refused by name, and if its sender broke the protocol the round goes
on without that device. The round ends without a sum only when too few contribute or nobody is left to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coordinator.engine.secure_sums import Step
from edge.core.errors import LocalProtocolError
from edge.crypto.errors import (
    DuplicateMessageError,
    OverflowingConfigError,
    SecAggError,
    TooFewContributorsError,
    TooFewSurvivorsError,
    UnknownDeviceError,
    WrongSenderError,
    WrongStageError,
)
from edge.homomorphic.config import CkksConfig
from edge.homomorphic.frames import pack, unpack
from edge.homomorphic.keys import PublicKey
from edge.homomorphic.vectors import decode_sum, settle
from edge.secagg.checks import expect_arrays, expect_round, read
from edge.secagg.inputs import Sums
from edge.secagg.states import (
    COORDINATOR_FINAL,
    COORDINATOR_TRANSITIONS,
    CoordinatorEvent,
    CoordinatorState,
    Mode,
)
from edge.wire.messages import Abort, Arrays, DecryptedSum, DecryptRequest, EncryptedInput

_TOTAL = np.dtype("<f8")
_STAGE_OF: dict[type[Any], CoordinatorState] = {
    EncryptedInput: CoordinatorState.MASKING,
    DecryptedSum: CoordinatorState.UNMASKING,
}
# The later half of the transitions of secure aggregation with a coordinator that follows the protocol.
_TABLE = COORDINATOR_TRANSITIONS[Mode.SEMI_HONEST]

_Send = Sequence[tuple[int, Abort | DecryptRequest]]


class CkksServer:
    """One round; a :class:`~coordinator.engine.secure_sums.SecureAggregation`.

    Parameters
    ----------
    config : how the round is aggregated.
    public : the key that adds.
    run_id, round_number : which round.
    devices : ids of those that may take part.
    target : how many inputs are enough; the devices that have not sent theirs by then are dropped. None waits
        for everybody.

    Attributes
    ----------
    state : ``MASKING``, then ``UNMASKING``, then ``DONE``; or ``ABORTED``.
    failure : the error that ended the round without a sum, else None.
    opened : whether a device has sent what it says is the decrypted sum.
    dropped : the stage at which each device was lost, refused or too late, by id.
    parameters : None; there is no graph.

    Raises ``LocalProtocolError`` for no devices or one twice, ``OverflowingConfigError`` for more inputs than
    sums are exact for.
    """

    def __init__(
        self,
        config: CkksConfig,
        public: PublicKey,
        *,
        run_id: str,
        round_number: int,
        devices: Iterable[int],
        target: int | None = None,
    ) -> None:
        listed = list(devices)
        self._waiting = set(listed)
        """Whose answer to this stage is awaited."""
        if not listed or len(self._waiting) != len(listed):
            raise LocalProtocolError("a round needs one or more devices, each named once")
        enough = len(listed) if target is None else min(target, len(listed))
        if enough > config.n_max:
            raise OverflowingConfigError(f"{enough} devices; the sum is only exact for {config.n_max}")
        self._config = config
        self._run_id = run_id
        self._round_number = round_number
        self._invited = frozenset(listed)
        self._enough = enough
        self._answered: dict[CoordinatorState, set[int]] = {stage: set() for stage in _STAGE_OF.values()}
        self._running_sum = public.running_sum()
        self._encrypted_sum: Arrays = {}
        """The arrays of the request to decrypt, once the inputs are in."""
        self._refused_sum: SecAggError | None = None
        """What was wrong with the last sum that a device sent."""
        self._sums: Sums | None = None
        self.parameters = None
        self.state = CoordinatorState.MASKING
        self.failure: SecAggError | None = None
        self.opened = False
        self.dropped: dict[int, CoordinatorState] = {}
        self.culprits: dict[int, SecAggError] = {}

    @property
    def waiting(self) -> frozenset[int]:
        """Whose answers are awaited; at ``UNMASKING`` the one device that was asked."""
        return frozenset(self._waiting)

    @property
    def contributors(self) -> frozenset[int]:
        """Whose inputs are in the sum; while they are collected, those that have arrived."""
        return frozenset(self._answered[CoordinatorState.MASKING])

    def sums(self) -> Sums:
        """Return the decoded sum; ``LocalProtocolError`` unless the state is ``DONE``."""
        if self._sums is None:
            raise LocalProtocolError(f"there is no sum in the state '{self.state.value}'")
        return self._sums

    # -- events ------------------------------------------------------------------------------------------

    def receive(self, sender: int, message: Any) -> Step:
        """Take a frame that arrived from the device ``sender``; a refusal is in the result, never raised."""
        try:
            self._admit(sender, message)
        except SecAggError as error:
            return Step([], error)
        if isinstance(message, Abort):
            return self.lost(sender)
        self._waiting.remove(sender)
        try:
            self._take(sender, message)
        except SecAggError as error:
            self.culprits[sender] = error
            notice = self._exclude(sender, error)
            return Step([notice, *self._advance()], error)
        return Step(self._advance())

    def lost(self, device: int) -> Step:
        """Note that ``device`` is known to be gone: nothing more is expected from it or sent to it."""
        if device not in self._invited or device in self.dropped or self.state in COORDINATOR_FINAL:
            return Step([])
        self.dropped[device] = self.state
        self._waiting.discard(device)
        return Step(self._advance())

    def deadline_passed(self, stage: CoordinatorState) -> Step:
        """End ``MASKING`` with the inputs that are there; at ``UNMASKING``, ask the next device.

        Does nothing if ``stage`` has ended before. Every request to decrypt deserves a deadline of its own.
        """
        if stage is not self.state:
            return Step([])
        self._drop_waiting()
        return Step(self._advance())

    def _admit(self, sender: int, message: Any) -> None:
        """Refuse what strayed, came twice or came out of turn; whoever sent it is not given up for that."""
        if not isinstance(message, EncryptedInput | DecryptedSum | Abort):
            raise WrongStageError(f"{type(message).__name__} is not for the coordinator of a homomorphic sum")
        expect_round(self._run_id, self._round_number, message.run_id, message.round_number)
        if sender not in self._invited:
            raise UnknownDeviceError(f"device {sender} was not invited to this round")
        if message.device != sender:
            raise WrongSenderError(f"device {sender} sent a message in the name of device {message.device}")
        if isinstance(message, Abort):
            return
        stage = _STAGE_OF[type(message)]
        if sender in self._answered[stage]:
            raise DuplicateMessageError(f"a second {type(message).__name__} from device {sender}")
        if stage is not self.state or sender not in self._waiting:
            raise WrongStageError(
                f"{type(message).__name__} from device {sender} came at the stage '{self.state.value}'"
            )

    def _take(self, sender: int, message: EncryptedInput | DecryptedSum) -> None:
        if isinstance(message, EncryptedInput):
            self._running_sum.add(unpack(self._config, message.arrays))
            self._answered[CoordinatorState.MASKING].add(sender)
            return
        self.opened = True
        try:
            expect_arrays(message.arrays, "total")
            total = read(message.arrays, "total", _TOTAL, (self._config.length,))
            self._sums = decode_sum(self._config, settle(total), len(self.contributors))
        except SecAggError as error:
            self._refused_sum = error
            raise
        self._answered[CoordinatorState.UNMASKING].add(sender)
        self._go(CoordinatorEvent.UNMASKED)

    # -- from stage to stage -----------------------------------------------------------------------------

    def _advance(self) -> _Send:
        """Go on if nothing more is awaited; return what to send."""
        if self.state is CoordinatorState.MASKING:
            if self._waiting and len(self.contributors) < self._enough:
                return []
            return self._close_inputs()
        if self.state is CoordinatorState.UNMASKING and not self._waiting:
            return self._ask_next()
        return []

    def _close_inputs(self) -> _Send:
        self._drop_waiting()
        count, needed = len(self.contributors), self._config.min_contributors
        if count < needed:
            return self._abort(TooFewContributorsError(f"{count} devices sent an input; {needed} must"))
        self._encrypted_sum = pack(self._running_sum.ciphertexts())
        self._go(CoordinatorEvent.INPUTS_COLLECTED)
        return self._ask_next()

    def _ask_next(self) -> _Send:
        """Ask the first contributor that is still there."""
        # An input is in the sum even if its device is gone since.
        present = self.contributors - self.dropped.keys()
        count = len(self.contributors)
        if not present:
            return self._abort(
                self._refused_sum
                or TooFewSurvivorsError(f"none of {count} contributors is left to decrypt the sum")
            )
        device = min(present)
        self._waiting = {device}
        request = DecryptRequest(self._run_id, self._round_number, device, count, self._encrypted_sum)
        return [(device, request)]

    def _abort(self, error: SecAggError) -> _Send:
        """End the round without a sum; return the notices to those who do not know yet."""
        self.failure = error
        self._go(CoordinatorEvent.ABORT)
        present = sorted(self.contributors - self.dropped.keys())
        return [(device, self._notice(device, error)) for device in present]

    def _exclude(self, device: int, error: SecAggError) -> tuple[int, Abort]:
        """Go on without ``device``; return the notice to it."""
        self.dropped[device] = self.state
        return device, self._notice(device, error)

    def _notice(self, device: int, error: SecAggError) -> Abort:
        return Abort(self._run_id, self._round_number, device, error.reason)

    def _drop_waiting(self) -> None:
        for device in sorted(self._waiting):
            self.dropped[device] = self.state
        self._waiting.clear()

    def _go(self, event: CoordinatorEvent) -> None:
        self.state = _TABLE[self.state, event]
