"""The device's side of secure aggregation, as a state machine without I/O.

Double masking (Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine
Learning") on the neighbour graph of Bell et al. 2020. A device u with neighbours v masks its input x as

    y_u = x_u + PRG(b_u) + Σ_v γ_uv·PRG(s_uv)   modulo 2**bits,   γ_uv = +1 if u < v else −1

with its own seed b_u and a seed s_uv agreed with each neighbour, and gives every neighbour a share of b_u and
of the key behind s_uv. At the end it releases one share a neighbour: of the key if that neighbour is dead, of
the seed if it is not.

A neighbour whose share does not open, or is not the one that it committed to, keeps its mask on the input;
its share is missing from what this device releases.

Frames go in, answers come out. A frame that strayed, came twice or came out of turn is refused and changes
nothing; one that shows that the coordinator or a neighbour broke the protocol ends the device's part. Either
way the error says which, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError
from edge.crypto.entropy import Entropy
from edge.crypto.errors import (
    DuplicateMessageError,
    RepeatedUnmaskError,
    SecAggError,
    TooFewNeighboursError,
    WrongReceiverError,
    WrongStageError,
)
from edge.crypto.keys import Identity
from edge.crypto.ring import RingVector
from edge.crypto.shamir import SHARE_BYTES
from edge.secagg.checks import (
    DEVICE_IDS,
    OCTETS,
    DeviceIds,
    expect_arrays,
    expect_round,
    octets,
    read,
    read_devices,
)
from edge.secagg.config import SecAggConfig
from edge.secagg.cryptography import REAL, Cryptography, Secrets
from edge.secagg.inputs import encode_input
from edge.secagg.keylist import (
    KeyRecord,
    Neighbourhood,
    RoundContext,
    expect_neighbours,
    keys_statement,
    survivors_statement,
)
from edge.secagg.sealing import COMMITMENTS_BYTES, SEALED_BYTES
from edge.secagg.states import DEVICE_FINAL, DEVICE_TRANSITIONS, DeviceEvent, DeviceState, Mode
from edge.secagg.survivors import read_survivors, read_unmask_request
from edge.wire.messages import (
    SECAGG_FROM_COORDINATOR,
    Abort,
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    FromDevice,
    KeyList,
    MaskedInput,
    SealedShares,
    SecAggMessage,
    SharesDelivery,
    UnmaskRequest,
    UnmaskShares,
)

_EVENT_OF: dict[type[Any], DeviceEvent] = {
    KeyList: DeviceEvent.KEY_LIST,
    SharesDelivery: DeviceEvent.SHARES,
    ConsistencyCheck: DeviceEvent.CHECK,
    UnmaskRequest: DeviceEvent.UNMASK,
    Abort: DeviceEvent.ABORT,
}


class SecAggClient:
    """One device's part in one round of secure aggregation.

    The order of calls is :meth:`advertise`, :meth:`receive` (a key list, then shares), :meth:`contribute`,
    and :meth:`receive` until the state is ``DONE``. A call in any other state raises ``LocalProtocolError``.

    Parameters
    ----------
    config : what this device agreed to.
    device : its id.
    run_id, round_number : which round.
    model_hash : SHA-256 of the model that it was given, 32 bytes.
    entropy : where its secrets come from.
    identity : its long-term key; active mode only.
    roster : the public identity of every device of the run, fixed before it; active mode only.
    rounding : where the randomness of stochastic rounding (and of noise) comes from, if not from ``entropy``.
    crypto : where cryptography is done; a simulation may only account for it.
    """

    __slots__ = (
        "_config",
        "_context",
        "_crypto",
        "_entropy",
        "_hood",
        "_identity",
        "_record",
        "_roster",
        "_rounding",
        "_secrets",
        "_seen",
        "_shared",
        "_survivors",
        "_table",
        "clipped",
        "device",
        "failure",
        "nonzero",
        "state",
    )

    def __init__(
        self,
        config: SecAggConfig,
        *,
        device: int,
        run_id: str,
        round_number: int,
        model_hash: bytes,
        entropy: Entropy,
        identity: Identity | None = None,
        roster: Mapping[int, bytes] | None = None,
        rounding: Entropy | None = None,
        crypto: Cryptography = REAL,
    ) -> None:
        if config.mode is Mode.ACTIVE:
            if identity is None or roster is None or roster.get(device) != identity.public:
                raise LocalProtocolError("active mode needs an identity, and a roster that shows it")
        elif identity is not None or roster is not None:
            raise LocalProtocolError("identity and roster belong to active mode; this round is semi-honest")
        self._config = config
        self._context = RoundContext(run_id, round_number, config.hash, model_hash)
        self._entropy = entropy
        self._rounding = entropy if rounding is None else rounding
        self._crypto = crypto
        self._identity = identity
        self._roster: Mapping[int, bytes] = {} if roster is None else roster
        self._table = DEVICE_TRANSITIONS[config.mode]
        self._seen: set[DeviceEvent] = set()
        self._secrets: Secrets | None = None
        self._record = KeyRecord(b"", b"", b"")
        self._hood: Neighbourhood | None = None
        self._shared: frozenset[int] = frozenset()
        """Neighbours that shared: those whose masks are on the input."""
        self._survivors: DeviceIds | None = None
        """The survivors that were signed, in active mode."""
        self.device = device
        self.state = DeviceState.IDLE
        self.failure: str | None = None
        """Why the device's part ended early: the name of an error, its own or the coordinator's."""
        self.clipped = 0
        self.nonzero = 0
        """How many values of the input were beyond the clip."""

    @property
    def partners(self) -> frozenset[int]:
        """The neighbours that shared: those whose masks are on the input."""
        return self._shared

    # -- what the device does by itself ------------------------------------------------------------------

    def advertise(self) -> AdvertiseKeys:
        """Make the keys of this round and return the message that advertises them."""
        self._local(DeviceEvent.ADVERTISE)
        context = self._context
        secrets = self._secrets = self._crypto.secrets(self._entropy, self.device, context.round_number)
        self._record = secrets.public()
        record = self._record.encoded
        arrays: dict[str, npt.NDArray[Any]] = {
            "record": octets(record),
            "context": octets(context.hashes).reshape(2, -1),
        }
        if self._identity is not None:
            statement = keys_statement(context, self.device, record)
            arrays["signature"] = octets(self._crypto.sign(self._identity, statement))
        return AdvertiseKeys(context.run_id, context.round_number, self.device, arrays)

    def contribute(
        self,
        values: Mapping[str, npt.NDArray[Any]],
        weight: int = 1,
        *,
        watch: Callable[[int, RingVector], None] | None = None,
    ) -> MaskedInput:
        """Mask the input and return the message that carries it.

        Parameters
        ----------
        values : an array for each part of the configuration.
        weight : a whole number that real parts are multiplied by.
        watch : called with the device and its encoded input before it is masked; for checks beside the
            protocol, never in a deployment.

        Raises what :func:`edge.secagg.inputs.encode_input` raises; the device's part has then ended.
        """
        self._local(DeviceEvent.CONTRIBUTE)
        hood, secrets = self._live()
        try:
            vector, self.clipped, self.nonzero = encode_input(self._config, values, weight, self._rounding)
        except SecAggError as error:
            self._end(error.reason)
            raise
        if watch is not None:
            watch(self.device, vector)
        secrets.mask(vector, hood, self._shared)
        return MaskedInput(self._context.run_id, self._context.round_number, self.device, {"masked": vector})

    def give_up(self, reason: str) -> Abort:
        """End the device's part if it still runs, and return the message with the reason."""
        if self.state not in DEVICE_FINAL:
            self._end(reason)
        return Abort(self._context.run_id, self._context.round_number, self.device, reason)

    # -- what the coordinator sends ----------------------------------------------------------------------

    def receive(self, message: SecAggMessage) -> FromDevice | None:
        """Take a frame from the coordinator; return the answer, if it wants one.

        Raises a :class:`~edge.crypto.errors.SecAggError` by the name of what is wrong. ``StaleSessionError``,
        ``StaleRoundError``, ``WrongReceiverError``, ``WrongStageError``, ``DuplicateMessageError`` and
        ``RepeatedUnmaskError`` leave the machine as it was; after any other its state is ``ABORTED``.
        """
        if not isinstance(message, SECAGG_FROM_COORDINATOR):
            raise WrongStageError(f"{type(message).__name__} is for the coordinator, not for a device")
        expect_round(self._context.run_id, self._context.round_number, message.run_id, message.round_number)
        if not isinstance(message, ConsistencyCheck) and message.device != self.device:
            raise WrongReceiverError(f"a message for device {message.device} reached device {self.device}")
        event = _EVENT_OF[type(message)]
        after = self._table.get((self.state, event))
        if after is None:
            self._refuse(event)
        self._seen.add(event)
        try:
            answer = self._answer(message)
        except SecAggError as error:
            self._end(error.reason)
            raise
        if after in DEVICE_FINAL:
            self._secrets = None
        self.state = after
        return answer

    def _answer(self, message: SecAggMessage) -> FromDevice | None:
        if isinstance(message, KeyList):
            return self._share(message)
        if isinstance(message, SharesDelivery):
            self._take_shares(message)
            return None
        if isinstance(message, ConsistencyCheck):
            return self._sign_survivors(message)
        if isinstance(message, UnmaskRequest):
            return self._unmask(message)
        assert isinstance(message, Abort)
        self._end(message.reason)
        return None

    def _share(self, message: KeyList) -> SealedShares:
        secrets = self._secrets
        assert secrets is not None
        hood = self._hood = self._crypto.neighbourhood(
            message, self._config, self._context, self.device, self._record, self._roster
        )
        sealed, committed = secrets.seal_shares(hood)
        return SealedShares(
            self._context.run_id,
            self._context.round_number,
            self.device,
            {
                "sealed": octets(sealed).reshape(hood.k, SEALED_BYTES),
                "commitments": octets(committed).reshape(hood.k + 1, COMMITMENTS_BYTES),
            },
        )

    def _take_shares(self, message: SharesDelivery) -> None:
        hood, secrets = self._live()
        expect_arrays(message.arrays, "senders", "sealed", "commitments")
        senders = read_devices(message.arrays, "senders")
        sealed = read(message.arrays, "sealed", OCTETS, (len(senders), SEALED_BYTES))
        committed = read(message.arrays, "commitments", OCTETS, (len(senders), COMMITMENTS_BYTES))
        expect_neighbours(senders, frozenset(hood.neighbours), "the delivery of shares")
        if len(senders) + 1 < hood.t:
            raise TooFewNeighboursError(
                f"{len(senders)} neighbours shared; with this device that is below the threshold of {hood.t}"
            )
        rows = zip(map(np.ndarray.tobytes, sealed), map(np.ndarray.tobytes, committed), strict=True)
        secrets.open_shares(hood, dict(zip(senders.tolist(), rows, strict=True)))
        self._shared = frozenset(senders.tolist())

    def _sign_survivors(self, message: ConsistencyCheck) -> ConsistencySignature:
        hood, _ = self._live()
        assert self._identity is not None
        self._survivors = read_survivors(message, self._config, hood, self.device, self._shared)
        statement = survivors_statement(hood.session, self._survivors)
        return ConsistencySignature(
            self._context.run_id,
            self._context.round_number,
            self.device,
            {"signature": octets(self._crypto.sign(self._identity, statement))},
        )

    def _unmask(self, message: UnmaskRequest) -> UnmaskShares:
        hood, secrets = self._live()
        dead = read_unmask_request(
            message,
            self._config,
            hood,
            self.device,
            self._shared,
            self._survivors,
            self._roster,
            self._crypto.verify,
        )
        # One row an owner, so both shares of one device never leave this one, whatever the request says.
        rows = [
            share[SHARE_BYTES:] if owner in dead else share[:SHARE_BYTES]
            for owner, share in sorted(secrets.shares.items())
        ]
        unopened = np.array(sorted(self._shared - secrets.shares.keys()), dtype=DEVICE_IDS)
        return UnmaskShares(
            self._context.run_id,
            self._context.round_number,
            self.device,
            {"shares": octets(b"".join(rows)).reshape(len(rows), SHARE_BYTES), "unopened": unopened},
        )

    # -- states ------------------------------------------------------------------------------------------

    def _live(self) -> tuple[Neighbourhood, Secrets]:
        assert self._hood is not None
        assert self._secrets is not None
        return self._hood, self._secrets

    def _local(self, event: DeviceEvent) -> None:
        after = self._table.get((self.state, event))
        if after is None:
            raise LocalProtocolError(f"a device cannot do '{event.value}' in the state '{self.state.value}'")
        self.state = after

    def _refuse(self, event: DeviceEvent) -> NoReturn:
        if event in self._seen:
            error = RepeatedUnmaskError if event is DeviceEvent.UNMASK else DuplicateMessageError
            raise error(f"a second '{event.value}' reached device {self.device}")
        raise WrongStageError(f"'{event.value}' reached device {self.device}, which is '{self.state.value}'")

    def _end(self, reason: str) -> None:
        self.state = DeviceState.ABORTED
        self.failure = reason
        self._secrets = None
