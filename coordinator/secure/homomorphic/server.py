"""The coordinator's side of a homomorphic sum, as a state machine without I/O.

An encrypted input is added to the one running sum when it arrives, and forgotten. When the inputs are in,
one contributor is asked to decrypt the sum; if it is lost, refuses, is too late or sends rubbish, the next
one is. Whoever drops out before contributing is missing in the sum and costs nothing else.

The sum is given up only when too few devices contribute, or no contributor is left for the decryption.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coordinator.secure.sum_server import Sent, SumServer
from edge.core.errors import LocalProtocolError
from edge.crypto.errors import (
    OverflowingConfigError,
    SecAggError,
    TooFewContributorsError,
    TooFewSurvivorsError,
)
from edge.homomorphic.config import CkksConfig
from edge.homomorphic.schemes import PublicKey
from edge.homomorphic.vectors import decode_sum, pack, settle, unpack
from edge.secagg.checks import expect_arrays, read
from edge.secagg.inputs import Sums
from edge.secagg.states import (
    COORDINATOR_TRANSITIONS,
    CoordinatorEvent,
    CoordinatorState,
    Mode,
)
from edge.wire.messages import Arrays, DecryptedSum, DecryptRequest, EncryptedInput

_TOTAL = np.dtype("<f8")
# The later half of the transitions of secure aggregation with a coordinator that follows the protocol.
_TABLE = COORDINATOR_TRANSITIONS[Mode.SEMI_HONEST]


class CkksServer(SumServer):
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
    parameters : None; there is no graph.

    Others are those of :class:`~coordinator.secure.sum_server.SumServer`.

    Raises ``LocalProtocolError`` for no devices or one twice, ``OverflowingConfigError`` for more inputs than
    sums are exact for.
    """

    stages = {EncryptedInput: CoordinatorState.MASKING, DecryptedSum: CoordinatorState.UNMASKING}  # noqa: RUF012
    sum_name = "a homomorphic sum"

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
        super().__init__(run_id, round_number, devices, CoordinatorState.MASKING, _TABLE)
        enough = len(self._invited) if target is None else min(target, len(self._invited))
        if enough > config.n_max:
            raise OverflowingConfigError(f"{enough} devices; the sum is only exact for {config.n_max}")
        self._config = config
        self._enough = enough
        self._running_sum = public.running_sum()
        self._encrypted_sum: Arrays = {}
        """The arrays of the request to decrypt, once the inputs are in."""
        self._refused_sum: SecAggError | None = None
        """What was wrong with the last sum that a device sent."""
        self._sums: Sums | None = None
        self.parameters = None

    @property
    def contributors(self) -> frozenset[int]:
        """Whose inputs are in the sum; while they are collected, those that have arrived."""
        return frozenset(self._answered[CoordinatorState.MASKING])

    def sums(self) -> Sums:
        """Return the decoded sum; ``LocalProtocolError`` unless the state is ``DONE``."""
        if self._sums is None:
            raise LocalProtocolError(f"there is no sum in the state '{self.state.value}'")
        return self._sums

    def _take(self, sender: int, message: EncryptedInput | DecryptedSum) -> None:
        if isinstance(message, EncryptedInput):
            self._running_sum.add(unpack(self._config, message.arrays))
            return
        self.opened = True
        try:
            expect_arrays(message.arrays, "total")
            total = read(message.arrays, "total", _TOTAL, (self._config.length,))
            self._sums = decode_sum(self._config, settle(total), len(self.contributors))
        except SecAggError as error:
            self._refused_sum = error
            raise
        self._go(CoordinatorEvent.UNMASKED)

    # -- from stage to stage -----------------------------------------------------------------------------

    def _advance(self) -> Sent:
        """Go on if nothing more is awaited; return what to send."""
        if self.state is CoordinatorState.MASKING:
            if self._waiting and len(self.contributors) < self._enough:
                return []
            return self._close_inputs()
        if self.state is CoordinatorState.UNMASKING and not self._waiting:
            return self._ask_next()
        return []

    def _close_inputs(self) -> Sent:
        self._drop_waiting()
        count, needed = len(self.contributors), self._config.min_contributors
        if count < needed:
            return self._abort(TooFewContributorsError(f"{count} devices sent an input; {needed} must"))
        self._encrypted_sum = pack(self._running_sum.ciphertexts())
        self._go(CoordinatorEvent.INPUTS_COLLECTED)
        return self._ask_next()

    def _ask_next(self) -> Sent:
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

    def _abort(self, error: SecAggError) -> Sent:
        """End the round without a sum; return the notices to devices that have none yet."""
        self.failure = error
        self._go(CoordinatorEvent.ABORT)
        present = sorted(self.contributors - self.dropped.keys())
        return [self._notice(device, error.reason) for device in present]
