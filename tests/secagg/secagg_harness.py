"""A round of secure aggregation with both machines, every frame passing as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from coordinator.engine.secure_sums import Step
from coordinator.secure.secagg.oracle import Oracle
from coordinator.secure.secagg.server import SecAggServer
from edge.crypto.entropy import SeededEntropy
from edge.crypto.errors import SecAggError
from edge.crypto.keys import Identity
from edge.secagg.client import SecAggClient
from edge.secagg.config import CountPart, RealPart, SecAggConfig
from edge.secagg.cryptography import REAL, Cryptography
from edge.secagg.states import COORDINATOR_FINAL, CoordinatorState, DeviceState, Mode
from edge.wire.codec import decode, encode
from edge.wire.messages import Abort, Arrays, SecAggMessage, SharesDelivery, UnmaskShares

RUN = "run"
ROUND = 3
MODEL_HASH = bytes(range(32))
KEY = b"an entropy key of the tests"
IDENTITIES = [Identity(bytes([number]) * 32) for number in range(1, 65)]
"""Made once: they are the slow part of many small rounds."""

Mutate = Callable[[SecAggMessage], SecAggMessage]


def small_config(n_max: int, **changes: Any) -> SecAggConfig:
    settings: dict[str, Any] = {
        "parts": (RealPart("factors", 5, 2.0), CountPart("touched", 3, 1)),
        "n_max": n_max,
        "weight_max": 7,
        "unsafe": True,  # small written graphs are for tests only
    }
    return SecAggConfig(**(settings | changes))


def with_arrays(message: Any, **arrays: Any) -> Any:
    """Return a copy of ``message`` with arrays replaced, added, or (None) removed."""
    changed = {name: array for name, array in (message.arrays | arrays).items() if array is not None}
    return message._replace(arrays=changed)


def flipped(array: np.ndarray[Any, Any], at: int = 0) -> np.ndarray[Any, Any]:
    """Return a copy of a uint8 array with one bit changed."""
    copy = array.copy()
    copy.reshape(-1)[at] ^= 1
    return copy


class Fleet:
    """Devices, a coordinator, an oracle, and the frames between them."""

    def __init__(
        self,
        devices: Sequence[int] | int,
        config: SecAggConfig | None = None,
        *,
        seed: int = 0,
        round_number: int = ROUND,
        run_id: str = RUN,
        target: int | None = None,
        crypto: Cryptography = REAL,
        **changes: Any,
    ) -> None:
        self.devices = list(range(devices)) if isinstance(devices, int) else list(devices)
        self.config = config if config is not None else small_config(len(self.devices), **changes)
        self.random = np.random.default_rng(seed)
        identities = dict(zip(self.devices, IDENTITIES, strict=False))
        active = self.config.mode is Mode.ACTIVE
        self.roster = {device: identities[device].public for device in self.devices} if active else None
        self.server = SecAggServer(
            self.config,
            run_id=run_id,
            round_number=round_number,
            model_hash=MODEL_HASH,
            devices=self.devices,
            roster=self.roster,
            target=target,
            crypto=crypto,
        )
        self.clients = {
            device: SecAggClient(
                self.config,
                device=device,
                run_id=run_id,
                round_number=round_number,
                model_hash=MODEL_HASH,
                entropy=SeededEntropy(KEY + seed.to_bytes(8, "big"), device, round_number),
                identity=identities[device] if active else None,
                roster=self.roster,
                # Of its own, so that inputs do not depend on what secrets are made of.
                rounding=SeededEntropy(KEY + b"rounding", device, round_number),
                crypto=crypto,
            )
            for device in self.devices
        }
        self.oracle = Oracle(self.config)
        self.inbox: list[tuple[int, bytes]] = []
        """Frames on their way to devices."""
        self.refusals: list[SecAggError] = []
        """What the coordinator refused."""
        self.errors: dict[int, SecAggError] = {}
        """The last error of each device."""
        self.frames: list[SecAggMessage] = []
        """Everything that devices sent."""

    # -- inputs ------------------------------------------------------------------------------------------

    def values(self, device: int) -> Arrays:
        random = np.random.default_rng(device)
        parts: Arrays = {}
        for part in self.config.parts:
            if isinstance(part, RealPart):
                parts[part.name] = random.normal(0, part.clip / 2, part.length).astype(np.float32)
            else:
                parts[part.name] = random.integers(0, part.value_max + 1, part.length)
        return parts

    def weight(self, device: int) -> int:
        return device % self.config.weight_max + 1

    # -- frames ------------------------------------------------------------------------------------------

    def to_server(self, sender: int, message: SecAggMessage) -> Step:
        self.frames.append(message)
        step = self.server.receive(sender, decode(encode(message)))
        if step.refused is not None:
            self.refusals.append(step.refused)
        self.post(step)
        return step

    def post(self, step: Step) -> None:
        self.inbox += [(receiver, encode(message)) for receiver, message in step.send]

    def lose(self, device: int) -> None:
        self.post(self.server.lost(device))

    def deadline(self) -> None:
        self.post(self.server.deadline_passed(self.server.state))

    def answer(self, device: int, message: SecAggMessage) -> SecAggMessage | None:
        """Let a device take a frame; return what it sends, which is an abort if the frame ended its part."""
        client = self.clients[device]
        before = client.state
        try:
            reply: SecAggMessage | None = client.receive(message)
        except SecAggError as error:
            self.errors[device] = error
            if client.state is DeviceState.ABORTED and before is not DeviceState.ABORTED:
                return client.give_up(error.reason)
            assert client.state is before, "a refused frame must change nothing"
            return None
        if isinstance(message, SharesDelivery):
            reply = client.contribute(self.values(device), self.weight(device), watch=self.oracle.watch)
        if isinstance(reply, UnmaskShares):
            dead = frozenset(message.arrays["dead"].tolist())  # type: ignore[union-attr]
            owners = client.partners.difference(reply.arrays["unopened"].tolist())
            self.oracle.released(device, sorted((*owners, device)), dead)
        return reply

    def advertise(self, devices: Iterable[int] | None = None, mutate: Mutate | None = None) -> None:
        for device in self.devices if devices is None else devices:
            message: SecAggMessage = self.clients[device].advertise()
            self.to_server(device, mutate(message) if mutate is not None else message)

    def deliver(self, silent: Iterable[int] = (), mutate: Mutate | None = None) -> None:
        """Deliver everything that is on its way to devices, and their answers to the coordinator.

        ``silent`` devices are gone: they get nothing and send nothing. ``mutate`` changes what devices send.
        """
        gone = set(silent)
        arrived, self.inbox = self.inbox, []
        for device, frame in arrived:
            if device in gone:
                continue
            reply = self.answer(device, decode(frame))
            if reply is not None:
                self.to_server(device, mutate(reply) if mutate is not None else reply)

    def run(self) -> None:
        """Go on without further losses until the round is over."""
        while self.server.state not in COORDINATOR_FINAL:
            if self.inbox:
                self.deliver()
            else:
                self.deadline()
        self.deliver()

    def reach(self, stage: CoordinatorState) -> None:
        """Go on without losses until the coordinator collects the answers of ``stage``."""
        if self.server.state is CoordinatorState.ADVERTISING:
            self.advertise()
        while self.server.state is not stage:
            self.deliver()

    @property
    def members(self) -> int:
        assert self.server.cohort is not None
        return len(self.server.cohort)

    # -- what must hold ----------------------------------------------------------------------------------

    def check(self) -> None:
        """The exact sum of the survivors, or a named abort; never both secrets of anybody."""
        server = self.server
        if server.state is CoordinatorState.DONE:
            assert server.result is not None
            assert server.failure is None
            survivors = server.result.survivors.tolist()
            assert self.oracle.sum_error(server.result.total, survivors) == 0
            assert (
                server.result.contributors == len(survivors) >= self.config.contributors_needed(self.members)
            )
            assert server.result.weight == sum(map(self.weight, survivors))
        else:
            assert server.state is CoordinatorState.ABORTED
            assert server.failure is not None
            assert server.result is None
        threshold = 2 if server.cohort is None else server.cohort.t
        assert self.oracle.double_reveals(threshold) == 0
        told = [frame for frame in self.frames if isinstance(frame, Abort)]
        assert all(frame.reason for frame in told)
