"""The coordinator's side of secure aggregation, as a state machine without I/O.

Frames from devices, losses and deadlines go in; messages to send come out. A stage ends as soon as
everybody who is awaited has answered, at the deadline, or, for unmasking, when every secret that is needed
can be rebuilt. A masked input is added to the one running sum and forgotten, so memory does not grow with
the number of inputs.

A share that is not what its owner committed to is dropped, and others are waited for
in its place. The round ends without a sum, in a named abort, only when too few are left, of devices or of
right shares, or when what was rebuilt from right shares is not what its owner advertised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from coordinator.engine.secure_sums import Step
from coordinator.secure.secagg.cohort import Flags, NeighbourGraph
from coordinator.secure.secagg.submissions import AdvertisedRecords, SealedStore
from coordinator.secure.secagg.unmasking import SecAggResult, Unmasking, read_sum
from coordinator.secure.sum_server import Sent, SumServer
from edge.core.errors import LocalProtocolError
from edge.crypto.errors import (
    OverflowingConfigError,
    SecAggError,
    TooFewContributorsError,
    TooFewNeighboursError,
)
from edge.crypto.keys import SIGNATURE_BYTES
from edge.crypto.ring import RingVector
from edge.secagg.checks import OCTETS, Octets, expect_arrays, read
from edge.secagg.config import SecAggConfig
from edge.secagg.cryptography import REAL, Cryptography
from edge.secagg.graph import GraphParameters
from edge.secagg.inputs import Sums, decode_sum
from edge.secagg.keylist import RoundContext, survivors_statement
from edge.secagg.states import (
    COORDINATOR_FINAL,
    COORDINATOR_TRANSITIONS,
    STAGE_OF_ANSWER,
    CoordinatorEvent,
    CoordinatorState,
    Mode,
)
from edge.wire.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    SealedShares,
    SecAggMessage,
    SharesDelivery,
    UnmaskShares,
)


class SecAggServer(SumServer):
    """One round of secure aggregation.

    Parameters
    ----------
    config : how the round is aggregated.
    run_id, round_number : which round.
    model_hash : SHA-256 of the model that the devices were given, 32 bytes.
    devices : ids of those that may take part.
    roster : the public identity of every device of the run; active mode only.
    target : how many are wanted, if fewer than may take part: once as many have advertised keys, the others
        are too late.
    quorum : how many must contribute, those that report in the clear included: else no sum is revealed.
    crypto : where cryptography is done; the same as on the devices.

    Attributes
    ----------
    cohort : who advertised keys, and their graph; None before that is known.
    result : the outcome, once the state is ``DONE``; None if everybody reported in the clear.

    Others are those of :class:`~coordinator.secure.sum_server.SumServer`.

    Raises ``LocalProtocolError`` for no devices or one twice, and for a roster that does not fit the mode
    or the devices; ``OverflowingConfigError`` for more devices than the configuration is safe for.
    """

    stages = STAGE_OF_ANSWER
    sum_name = "secure aggregation"

    def __init__(
        self,
        config: SecAggConfig,
        *,
        run_id: str,
        round_number: int,
        model_hash: bytes,
        devices: Iterable[int],
        roster: Mapping[int, bytes] | None = None,
        target: int | None = None,
        quorum: int = 0,
        crypto: Cryptography = REAL,
    ) -> None:
        transitions = COORDINATOR_TRANSITIONS[config.mode]
        super().__init__(run_id, round_number, devices, CoordinatorState.ADVERTISING, transitions)
        wanted = len(self._invited) if target is None else min(target, len(self._invited))
        if wanted > config.n_max:
            raise OverflowingConfigError(f"{wanted} devices; the sum is only safe for {config.n_max}")
        if (roster is not None) is not (config.mode is Mode.ACTIVE):
            raise LocalProtocolError("a roster is needed in active mode, and only there")
        if roster is not None and not self._waiting <= roster.keys():
            raise LocalProtocolError(
                f"not on the roster: devices {sorted(self._waiting - roster.keys())[:5]}"
            )
        self._config = config
        self._wanted = wanted
        self._quorum = quorum
        self._clear: set[int] = set()
        """Who takes part in the round without taking part in the sum."""
        self._crypto = crypto
        self._context = RoundContext(run_id, round_number, config.hash, model_hash)
        self._roster: Mapping[int, bytes] = {} if roster is None else roster
        self._advertised = AdvertisedRecords(self._context, roster, crypto.verify)
        self._signatures: dict[int, bytes] = {}
        """Under the survivors, in active mode."""
        self.cohort: NeighbourGraph | None = None
        self._sealed: SealedStore | None = None
        """What devices sealed for each other, until it is delivered."""
        self._commitments: Octets = np.zeros(0, dtype=np.uint8)
        """Of devices to the shares that they sealed, uint8[n, k + 1, 32], once those are delivered."""
        self._shared: Flags = np.zeros(0, dtype=np.bool_)
        self._alive: Flags = np.zeros(0, dtype=np.bool_)
        self._total: RingVector = config.ring.zeros(0)
        self._unmasking: Unmasking | None = None
        self.result: SecAggResult | None = None

    @property
    def parameters(self) -> GraphParameters | None:
        """Degree and threshold of the graph, once it is known."""
        return None if self.cohort is None else GraphParameters(self.cohort.k, self.cohort.t)

    @property
    def contributors(self) -> frozenset[int]:
        """Whose inputs are in the sum, once their collection has ended."""
        alive = self._members.devices[self._alive] if self._alive.size else ()
        return frozenset(map(int, alive))

    def sums(self) -> Sums:
        """Return the decoded sum of a round that is ``DONE``."""
        if self.result is None:
            raise LocalProtocolError(f"there is no sum in the state '{self.state.value}'")
        return decode_sum(self._config, self.result.total)

    @property
    def _members(self) -> NeighbourGraph:
        assert self.cohort is not None
        return self.cohort

    # -- events ------------------------------------------------------------------------------------------

    def reported(self, device: int) -> Step:
        """Count ``device`` as reported in the clear; ``LocalProtocolError`` unless its keys are awaited."""
        if self.state is not CoordinatorState.ADVERTISING or device not in self._waiting:
            raise LocalProtocolError(f"device {device} cannot report in the clear: its keys are not awaited")
        self._waiting.remove(device)
        self._clear.add(device)
        return Step(self._advance())

    def lost(self, device: int) -> Step:
        """Drop ``device``, which is known to be gone, unless it has reported in the clear."""
        return Step([]) if device in self._clear else super().lost(device)

    def _take(self, sender: int, message: SecAggMessage) -> None:
        if isinstance(message, AdvertiseKeys):
            self._advertised.take(sender, message)
        elif isinstance(message, SealedShares):
            assert self._sealed is not None
            self._sealed.take(self._members.position[sender], message)
        elif isinstance(message, MaskedInput):
            expect_arrays(message.arrays, "masked")
            masked = read(message.arrays, "masked", self._config.ring.dtype, (self._config.length,))
            self._config.ring.add_into(self._total, masked)
        elif isinstance(message, ConsistencySignature):
            expect_arrays(message.arrays, signature="signature")
            signature = read(message.arrays, "signature", OCTETS, (SIGNATURE_BYTES,)).tobytes()
            statement = survivors_statement(self._members.session, self._members.devices[self._alive])
            self._crypto.verify(self._roster[sender], signature, statement)
            self._signatures[sender] = signature
        else:
            assert isinstance(message, UnmaskShares)
            assert self._unmasking is not None
            self._unmasking.take(self._members.position[sender], message)

    # -- from stage to stage -----------------------------------------------------------------------------

    def _advance(self) -> Sent:
        """Go on for as long as nothing more is awaited; return what to send."""
        send: Sent = []
        while self.state not in COORDINATOR_FINAL and self._stage_over():
            try:
                send += self._next_stage()
            except SecAggError as error:
                send = self._abort(error)
        return send

    def _stage_over(self) -> bool:
        wanted = self._wanted - len(self._clear)
        if self.state is CoordinatorState.ADVERTISING and len(self._advertised.records) >= wanted:
            present = self._answered[self.state] - self.dropped.keys()
            if len(present) >= wanted:
                self._drop_waiting()
        return not self._waiting or (self._unmasking is not None and self._unmasking.complete)

    def _next_stage(self) -> Sent:
        answered = self._answered[self.state]
        if self.state is CoordinatorState.ADVERTISING:
            if self._clear and not answered:
                self._go(CoordinatorEvent.ALL_CLEAR)
                return []
            return self._send_key_lists(answered - self.dropped.keys())
        if self.state is CoordinatorState.SHARING:
            return self._deliver_shares(answered - self.dropped.keys())
        if self.state is CoordinatorState.MASKING:
            # An input is in the sum even if its device is gone since.
            return self._close_inputs(answered)
        if self.state is CoordinatorState.CHECKING:
            return self._request_shares(CoordinatorEvent.SIGNATURES_COLLECTED, answered - self.dropped.keys())
        return self._finish()

    def _send_key_lists(self, present: set[int]) -> Sent:
        self._expect_contributors(len(present), len(present))
        cohort = NeighbourGraph(
            self._config, self._context, {device: self._advertised.records[device] for device in present}
        )
        self.cohort = cohort
        self._sealed = SealedStore(cohort)
        self._go(CoordinatorEvent.KEYS_COLLECTED, present)
        return [*cohort.key_lists(self._config.mode, self._advertised.signatures)]

    def _deliver_shares(self, present: set[int]) -> Sent:
        cohort = self._members
        shared = self._members.flags(present)
        # Without its shares in enough hands a device cannot take part; without it, its neighbours have fewer.
        while True:
            short = shared & (cohort.around_each(shared) < cohort.t)
            if not short.any():
                break
            shared &= ~short
        excluded = present - set(cohort.devices[shared].tolist())
        if not shared.any():
            raise TooFewNeighboursError(
                f"{len(present)} of {len(cohort)} devices shared; none has {cohort.t} holders"
            )
        self._expect_contributors(int(np.count_nonzero(shared)), len(cohort))
        run, number = self._run_id, self._round_number
        send: Sent = []
        for device in sorted(excluded):
            send.append(self._exclude(device, TooFewNeighboursError.NAME))
        assert self._sealed is not None
        for device, arrays in self._sealed.deliveries(shared):
            send.append((device, SharesDelivery(run, number, device, arrays)))
        self._shared = shared
        self._commitments, self._sealed = self._sealed.commitments, None
        self._total = self._config.ring.zeros(self._config.length)
        self._go(CoordinatorEvent.SHARES_COLLECTED, present - excluded)
        return send

    def _close_inputs(self, contributed: set[int]) -> Sent:
        self._expect_contributors(len(contributed), len(self._members))
        self._alive = self._members.flags(contributed)
        present = contributed - self.dropped.keys()
        if self._config.mode is Mode.SEMI_HONEST:
            return self._request_shares(CoordinatorEvent.INPUTS_COLLECTED, present)
        self._go(CoordinatorEvent.INPUTS_COLLECTED_TO_CHECK, present)
        survivors = self._members.devices[self._alive]
        check = ConsistencyCheck(self._run_id, self._round_number, {"survivors": survivors})
        return [(device, check) for device in sorted(present)]

    def _request_shares(self, event: CoordinatorEvent, present: set[int]) -> Sent:
        cohort, number = self._members, self._round_number
        asked = cohort.flags(present)
        self._unmasking = unmasking = Unmasking(
            cohort, number, self._shared, self._alive, asked, self._commitments, self._crypto.pairs
        )
        self._go(event, present)
        signatures = self._signatures if self._config.mode is Mode.ACTIVE else None
        return [*unmasking.requests(self._run_id, asked, signatures)]

    def _finish(self) -> Sent:
        """Make the sum, unless wrong shares were released and others may still come in their place."""
        unmasking = self._unmasking
        assert unmasking is not None
        if self._crypto.hides:
            unmasking.rebuild()
        if not unmasking.complete and not self._waiting:
            raise unmasking.shortage()
        found = {device: error for device, error in unmasking.wrong.items() if device not in self.culprits}
        self.culprits |= found
        notices = [self._exclude(device, error.reason) for device, error in found.items()]
        if not unmasking.complete:
            return [*notices]
        self.opened = True
        if self._crypto.hides:
            unmasking.remove_masks(self._total)
        self._unmasking = None
        cohort = self._members
        survivors, dead = cohort.devices[self._alive], cohort.devices[self._shared & ~self._alive]
        self.result = read_sum(self._config, self._total, survivors, dead)
        self._go(CoordinatorEvent.UNMASKED)
        return [*notices]

    def _abort(self, error: SecAggError) -> Sent:
        """End the round without a sum; return the notices to devices that have none yet."""
        over = self._answered[CoordinatorState.UNMASKING] | self.dropped.keys()
        present = set(self._advertised.records if self.cohort is None else self.cohort.position) - over
        self.failure = error
        if error.culprit is not None:
            self.culprits[error.culprit] = error
        if self._unmasking is not None:
            self.culprits |= self._unmasking.wrong
        self._unmasking = None
        self._total = self._config.ring.zeros(0)
        self._sealed = None
        self._go(CoordinatorEvent.ABORT)
        return [self._notice(device, error.reason) for device in sorted(present)]

    def _expect_contributors(self, count: int, members: int) -> None:
        needed = max(self._config.contributors_needed(members), self._quorum - len(self._clear))
        if count < needed:
            raise TooFewContributorsError(
                f"{count} devices are left at the stage '{self.state.value}'; {needed} must contribute"
            )
