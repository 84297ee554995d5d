"""A round whose updates are summed securely: both ends real, every frame passing as bytes, no clock.

The devices live their story, :func:`edge.device.actor.take_part`, a frame at a time. The coordinator's end
does what its actor does with a machine's verdicts. A test decides what arrives, and when.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from coordinator.engine.rounds import FrameVerdict, RoundPlan
from coordinator.engine.secure_rounds import SecureRoundMachine
from coordinator.secure.homomorphic.server import CkksServer
from coordinator.secure.secagg.oracle import Oracle
from coordinator.secure.secagg.server import SecAggServer
from edge.clock.virtual import DeadlineExceededError
from edge.core.errors import RemoteProtocolError
from edge.core.vocabulary import Reason, RoundOutcome
from edge.crypto.entropy import SeededEntropy
from edge.crypto.keys import Identity
from edge.device.actor import take_part
from edge.device.participation import Participation
from edge.homomorphic.config import CkksConfig
from edge.homomorphic.participant import CkksParticipant
from edge.homomorphic.schemes import ModelledScheme
from edge.learning.accumulators import DenseAccumulator
from edge.learning.updates import ClientUpdate
from edge.secagg.client import SecAggClient
from edge.secagg.config import CountPart, RealPart, SecAggConfig
from edge.secagg.cryptography import REAL, Cryptography
from edge.secagg.masking import MaskingParticipant
from edge.secagg.participant import Answer, Participant
from edge.secagg.states import CoordinatorState, Mode
from edge.wire.codec import decode, encode
from edge.wire.messages import Abort, Acknowledge, Invite, Model, Report

RUN = "run"
ROUND = 4
INVITE = Invite(RUN, ROUND, "task", 60.0, 100)
MODEL = Model(RUN, ROUND, {"factors": np.zeros(4, np.float32)})
MODEL_HASH = hashlib.sha256(encode(MODEL)).digest()
CLIP = 2.0
PARTS = (RealPart("factors", 4, CLIP), CountPart("examples", 1, 100), RealPart("loss", 1, 500.0))
IDENTITIES = [Identity(bytes([number]) * 32) for number in range(1, 17)]
KEY = b"an entropy key of the tests"

Mutate = Callable[[Any], Any]


def update_of(device: int) -> ClientUpdate:
    random = np.random.default_rng(device)
    weight = device % 3 + 1
    factors = np.float32(weight) * random.uniform(-CLIP, CLIP, 4).astype(np.float32)
    return ClientUpdate({"factors": factors}, float(weight), 10 + device, 0.5 + device % 4)


def with_arrays(message: Any, **arrays: Any) -> Any:
    """Return a copy of ``message`` with arrays replaced, added, or (None) removed."""
    changed = {name: array for name, array in (message.arrays | arrays).items() if array is not None}
    return message._replace(arrays=changed)


def flipped(array: np.ndarray[Any, Any], at: int = 0) -> np.ndarray[Any, Any]:
    """Return a copy of a uint8 array with one bit changed."""
    copy = array.copy()
    copy.reshape(-1)[at] ^= 1
    return copy


# -- protocols -------------------------------------------------------------------------------------------


class Masked:
    """Double masking, with an oracle that sees the inputs."""

    def __init__(
        self,
        mode: Mode = Mode.SEMI_HONEST,
        crypto: Cryptography = REAL,
        seed: int = 0,
        quorum: int = 0,
        **changes: Any,
    ) -> None:
        self.quorum = quorum
        settings: dict[str, Any] = {"parts": PARTS, "n_max": 10, "weight_max": 3, "sparse": False}
        self.config = SecAggConfig(mode=mode, **(settings | changes))
        self.crypto = crypto
        self.seed = seed
        self.oracle = Oracle(self.config)
        active = mode is Mode.ACTIVE
        self.roster = {at: identity.public for at, identity in enumerate(IDENTITIES)} if active else None

    def server(self, devices: Sequence[int], target: int) -> SecAggServer:
        self.aggregation = SecAggServer(
            self.config,
            run_id=RUN,
            round_number=ROUND,
            model_hash=MODEL_HASH,
            devices=devices,
            roster=self.roster,
            target=target,
            quorum=self.quorum,
            crypto=self.crypto,
        )
        return self.aggregation

    def participant(self, device: int) -> MaskingParticipant:
        key = KEY + self.seed.to_bytes(4, "big")
        client = SecAggClient(
            self.config,
            device=device,
            run_id=RUN,
            round_number=ROUND,
            model_hash=MODEL_HASH,
            entropy=SeededEntropy(key, device, ROUND),
            identity=None if self.roster is None else IDENTITIES[device],
            roster=self.roster,
            rounding=SeededEntropy(key + b"rounding", device, ROUND),
            crypto=self.crypto,
        )
        return MaskingParticipant(self.config, client, self.oracle)

    def check_sum(self, applied: Collection[int]) -> None:
        assert self.aggregation.result is not None
        assert self.oracle.sum_error(self.aggregation.result.total, applied) == 0


class Encrypted:
    """Homomorphic sums without the encryption."""

    def __init__(self, **changes: Any) -> None:
        self.config = CkksConfig(**({"parts": PARTS, "n_max": 10, "weight_max": 3} | changes))
        self.scheme = ModelledScheme()

    def server(self, devices: Sequence[int], target: int) -> CkksServer:
        self.aggregation = CkksServer(
            self.config,
            self.scheme.public,
            run_id=RUN,
            round_number=ROUND,
            devices=devices,
            target=target,
        )
        return self.aggregation

    def participant(self, device: int) -> CkksParticipant:
        return CkksParticipant(self.config, self.scheme.secret, device=device, run_id=RUN, round_number=ROUND)

    def check_sum(self, applied: Collection[int]) -> None:
        sums = self.aggregation.sums()
        updates = [update_of(device) for device in applied]
        assert sums.counts["examples"].tolist() == [sum(update.examples for update in updates)]
        assert (sums.weight, sums.contributors) == (sum(update.weight for update in updates), len(updates))
        # Half a step of rounding for each, and float32 over the weight.
        factors = np.sum([update.arrays["factors"].astype(np.float64) for update in updates], axis=0)
        np.testing.assert_allclose(sums.reals["factors"], factors, rtol=0, atol=len(updates) * 3e-6)


# -- devices ---------------------------------------------------------------------------------------------


@types.coroutine
def _frame() -> Generator[None, Any, Any]:
    message = yield
    return message


class Device:
    """A device in one round; implements :class:`edge.device.actor.DeviceContext` without a clock."""

    def __init__(self, device: int, protocol: Masked | Encrypted, wire: list[tuple[int, bytes]]) -> None:
        self.device = device
        self.protocol = protocol
        self.declines = Reason.NONE
        self.shielded = False
        """Whether it reports in the clear."""
        self.result: ClientUpdate | Reason = update_of(device)
        self.mutate: Mutate | None = None
        self.sent: list[Any] = []
        self.answers: list[Answer] = []
        self.settled: list[Reason] = []
        """What became of each frame that it took."""
        self.part: Participant | None = None
        self.ended: Participation | None = None
        """How its participation ended, once it has."""
        self._wire = wire
        self._story: Any = None

    # What happens to it.

    def take(self, message: Any) -> None:
        """Take a frame; the first invitation starts the story, what comes after the end is lost on it."""
        if self.ended is not None:
            return
        if self._story is None:
            if isinstance(message, Invite):
                self._story = take_part(self, message)
                self._go_on(lambda story: story.send(None))
            return
        self._go_on(lambda story: story.send(message))

    def time_out(self) -> None:
        """Let its patience end."""
        if self._story is not None and self.ended is None:
            self._go_on(lambda story: story.throw(DeadlineExceededError()))

    def _go_on(self, step: Callable[[Any], None]) -> None:
        try:
            step(self._story)
        except StopIteration as end:
            self.ended = end.value

    @property
    def verdict(self) -> Reason | None:
        """What it was told in the end: ``NONE`` for "your update counts"; None if nothing."""
        if self.ended is None:
            return None
        return self.ended.receipt if self.ended.receipt is not None else self.ended.abandoned

    # What it can do.

    def obstacle(self) -> Reason:
        return self.declines

    def bare(self) -> bool:
        return False

    def send(self, message: Any) -> None:
        if self.mutate is not None:
            message = self.mutate(message)
        self.sent.append(message)
        self._wire.append((self.device, encode(message)))

    def receive(self) -> Awaitable[Any]:
        return _frame()

    def settle(self, reason: Reason) -> None:
        self.settled.append(reason)

    async def train(self, model: Model) -> ClientUpdate | Reason:
        return self.result

    def participant(self, model: Model) -> Participant | None:
        if self.shielded:
            return None
        self.part = self.protocol.participant(self.device)
        return self.part

    async def prepare(self, answer: Answer) -> None:
        self.answers.append(answer)


# -- the round -------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """What the coordinator made of a frame."""

    sender: int
    kind: type[Any]
    verdict: FrameVerdict
    reason: Reason


class Round:
    """Coordinator, devices, and the frames between them."""

    def __init__(
        self,
        protocol: Masked | Encrypted,
        devices: Sequence[int] | int,
        *,
        target: int | None = None,
        quorum: int = 1,
        shielded: Collection[int] | None = None,
    ) -> None:
        """``shielded`` report in the clear; None: the round is not mixed."""
        ids = list(range(devices)) if isinstance(devices, int) else list(devices)
        self.protocol = protocol
        wanted = len(ids) if target is None else target
        aggregation = protocol.server(ids, wanted)
        self.plan = RoundPlan(RUN, ROUND, wanted, quorum, 60.0, mixed=shielded is not None)
        self.machine = SecureRoundMachine(self.plan, ids, aggregation)
        self.accumulator = DenseAccumulator({"factors": (np.dtype(np.float32), (4,))})
        """The sum of the reports in the clear."""
        self.frames: list[tuple[int, bytes]] = []
        """Every frame that arrived at the coordinator or was sent by it."""
        self.up: list[tuple[int, bytes]] = []
        """Frames on their way to the coordinator, each with its sender."""
        self.down: list[tuple[int, bytes]] = [(device, encode(INVITE)) for device in ids]
        """Frames on their way to devices."""
        self.held: list[tuple[int, bytes]] = []
        """Frames that are slow, each with its sender."""
        self.devices = {device: Device(device, protocol, self.up) for device in ids}
        for device in shielded or ():
            self.devices[device].shielded = True
        self.judged: list[Judged] = []
        self.given_model: set[int] = set()
        self.answered: set[int] = set()
        """Devices that a receipt or an abort was sent to."""
        self._slow: set[tuple[int, type[Any]]] = set()

    # What the coordinator does.

    def arrive(self, sender: int, frame: bytes) -> Judged:
        """Let a frame arrive at the coordinator."""
        message = decode(frame)
        self.frames.append((sender, frame))
        was_over = self.machine.over
        if isinstance(message, Report) and self.machine.awaits_report(sender, message):
            try:
                self.accumulator.check(message.arrays)
            except RemoteProtocolError:
                send = self.machine.lost(sender)
                self.acknowledge(sender, Reason.GARBAGE)
                self.post(send, was_over)
                self.judged.append(Judged(sender, Report, FrameVerdict.DISCARD, Reason.GARBAGE))
                return self.judged[-1]
        verdict, reason, send = self.machine.received(sender, message)
        judged = Judged(sender, type(message), verdict, reason)
        self.judged.append(judged)
        if verdict is FrameVerdict.SEND_MODEL:
            self.given_model.add(sender)
            self.down.append((sender, encode(MODEL)))
        elif verdict is FrameVerdict.REFUSE:
            assert reason is not Reason.NONE, "a refusal has a reason"
            self.acknowledge(sender, reason)
        elif verdict is FrameVerdict.AGGREGATE:
            assert isinstance(message, Report)
            update = ClientUpdate(message.arrays, message.weight, message.examples, message.loss)
            self.accumulator.add(update, sender)
            self.acknowledge(sender, Reason.NONE)
        self.post(send, was_over)
        return judged

    def send(self, sender: int, message: Any) -> Judged:
        return self.arrive(sender, encode(message))

    def post(self, send: Sequence[tuple[int, Any]], was_over: bool) -> None:
        for device, message in send:
            self.frames.append((device, encode(message)))
            if device in self.given_model:
                self.down.append((device, encode(message)))
                if isinstance(message, Abort):
                    self.answered.add(device)
        if self.machine.over and not was_over:
            told = {device for device, _ in send}
            for device in sorted(self.machine.aggregation.contributors - told):
                self.acknowledge(device, self.machine.reason_of_sum)

    def acknowledge(self, device: int, reason: Reason) -> None:
        self.answered.add(device)
        self.down.append((device, encode(Acknowledge(RUN, ROUND, reason))))

    def lose(self, device: int) -> None:
        was_over = self.machine.over
        self.post(self.machine.lost(device), was_over)

    def deadline(self, stage: CoordinatorState | None = None) -> None:
        """Let the deadline of a stage pass, by default of the one that goes on."""
        was_over = self.machine.over
        self.post(self.machine.deadline_passed(self.machine.stage if stage is None else stage), was_over)

    # What the network does.

    def hold(self, device: int, kind: type[Any]) -> None:
        """Keep what ``device`` sends of a kind until it is released."""
        self._slow.add((device, kind))

    def release(self, device: int) -> list[Judged]:
        """Let everything arrive that was held of a device; return what the coordinator made of it."""
        arriving = [frame for sender, frame in self.held if sender == device]
        self.held = [entry for entry in self.held if entry[0] != device]
        return [self.arrive(device, frame) for frame in arriving]

    def go(self) -> None:
        """Deliver whatever is under way, in order, until nothing is but what is held."""
        while self.up or self.down:
            if self.down:
                device, frame = self.down.pop(0)
                self.devices[device].take(decode(frame))
            else:
                sender, frame = self.up.pop(0)
                if (sender, type(decode(frame))) in self._slow:
                    self.held.append((sender, frame))
                else:
                    self.arrive(sender, frame)

    def reach(self, kind: type[Any], slow: int) -> None:
        """Go on until only a frame of ``kind`` from the device ``slow`` is missing."""
        self.hold(slow, kind)
        self.go()
        assert [sender for sender, _ in self.held] == [slow]

    # What must hold.

    def discarded(self) -> list[Judged]:
        return [one for one in self.judged if one.verdict in (FrameVerdict.DISCARD, FrameVerdict.REFUSE)]

    def check(self) -> None:
        """A completed round applies the exact sum of its contributors, an abandoned one nothing."""
        machine = self.machine
        assert machine.over
        applied = machine.applied
        assert applied <= self.given_model
        if machine.outcome is RoundOutcome.COMPLETED:
            assert machine.failure is None or self.plan.mixed
            assert machine.reason is Reason.NONE
            assert len(applied) >= machine.plan.quorum
            assert applied == machine.summed | machine.clear
            assert not machine.summed & machine.clear
            if machine.summed or not self.plan.mixed:
                self.protocol.check_sum(machine.summed)
        else:
            assert machine.outcome is RoundOutcome.ABANDONED
            assert machine.reason in (Reason.QUORUM, Reason.THRESHOLD, Reason.PROTOCOL)
            assert not applied
        for device in self.devices.values():
            if device.ended is not None and device.ended.receipt is Reason.NONE:
                # A report in the clear is acknowledged at once, whatever becomes of the round.
                told = applied | machine.clear
                assert device.device in told, "nobody is told that it counts who does not"
            if device.device in applied:
                assert device.ended is None or device.ended.receipt in (Reason.NONE, None)

    def check_completed(self, *applied: int) -> None:
        assert self.machine.failure is None
        assert self.machine.outcome is RoundOutcome.COMPLETED
        assert self.machine.applied == set(applied)
        self.check()

    def verdicts(self) -> dict[int, Reason | None]:
        """What every device was told in the end."""
        return {number: device.verdict for number, device in self.devices.items()}
