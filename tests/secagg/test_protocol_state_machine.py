"""Both machines under whatever order of events hypothesis can think of."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from secagg_harness import ROUND, Fleet, small_config, with_arrays

from edge.secagg.graph import GraphParameters
from edge.secagg.states import COORDINATOR_FINAL, CoordinatorState, DeviceState, Mode
from edge.wire.codec import decode, encode
from edge.wire.messages import SecAggMessage, UnmaskShares

AT = st.integers(0, 10**6)
ORDER = list(CoordinatorState)


class RoundOfSecureAggregation(RuleBasedStateMachine):
    """Frames in flight are delivered, repeated, altered or dropped in any order; deadlines pass any time."""

    def __init__(self) -> None:
        super().__init__()
        self.up: list[tuple[int, bytes]] = []
        self.seen: list[tuple[bool, int, bytes]] = []
        self.gone: set[int] = set()
        self.released: list[int] = []
        self.stage = 0

    @initialize(
        n=st.integers(2, 7), mode=st.sampled_from(Mode), sparse=st.booleans(), least=st.integers(2, 3)
    )
    def begin(self, n: int, mode: Mode, sparse: bool, least: int) -> None:
        parameters = GraphParameters(4, 3) if sparse and n >= 6 else None
        config = small_config(
            n, mode=mode, parameters=parameters, corrupt=0.0, dropout=0.0, min_contributors=least
        )
        self.fleet = Fleet(n, config)
        for device, client in self.fleet.clients.items():
            self.send(device, client.advertise())

    def send(self, device: int, message: SecAggMessage) -> None:
        frame = encode(message)
        self.seen.append((True, device, frame))
        self.up.append((device, frame))
        if isinstance(message, UnmaskShares):
            self.released.append(device)

    def take(self, device: int, message: Any) -> None:
        reply = self.fleet.answer(device, message)
        if reply is not None:
            self.send(device, reply)

    @precondition(lambda self: self.up)
    @rule(at=AT)
    def deliver_up(self, at: int) -> None:
        device, frame = self.up.pop(at % len(self.up))
        self.fleet.to_server(device, decode(frame))

    @precondition(lambda self: self.fleet.inbox)
    @rule(at=AT)
    def deliver_down(self, at: int) -> None:
        device, frame = self.fleet.inbox.pop(at % len(self.fleet.inbox))
        if device not in self.gone:
            self.seen.append((False, device, frame))
            self.take(device, decode(frame))

    @rule()
    def deliver_everything(self) -> None:
        for _ in range(len(self.up)):
            self.deliver_up(0)
        for _ in range(len(self.fleet.inbox)):
            self.deliver_down(0)

    @precondition(lambda self: self.seen)
    @rule(at=AT, to=AT, older=st.booleans(), strays=st.booleans())
    def repeat(self, at: int, to: int, older: bool, strays: bool) -> None:
        upwards, device, frame = self.seen[at % len(self.seen)]
        message: Any = decode(frame)
        if older:
            message = message._replace(round_number=ROUND - 1)
        if strays:
            device = self.fleet.devices[to % len(self.fleet.devices)]
        if upwards:
            self.fleet.to_server(device, message)
        elif device not in self.gone:
            self.take(device, message)

    @precondition(lambda self: self.up)
    @rule(at=AT, which=AT)
    def garble(self, at: int, which: int) -> None:
        at %= len(self.up)
        device, frame = self.up[at]
        message: Any = decode(frame)
        if "arrays" in message._fields:
            name = sorted(message.arrays)[which % len(message.arrays)]
            self.up[at] = (device, encode(with_arrays(message, **{name: message.arrays[name][:-1]})))

    @rule(at=AT, known=st.booleans())
    def lose(self, at: int, known: bool) -> None:
        device = self.fleet.devices[at % len(self.fleet.devices)]
        self.gone.add(device)
        if known:
            self.fleet.lose(device)

    @rule()
    def deadline(self) -> None:
        self.fleet.deadline()

    @invariant()
    def no_device_answers_two_unmask_requests(self) -> None:
        assert len(self.released) == len(set(self.released))

    @invariant()
    def stages_go_forward(self) -> None:
        if hasattr(self, "fleet"):
            now = ORDER.index(self.fleet.server.state)
            assert now >= self.stage
            self.stage = now

    @invariant()
    def nobody_is_awaited_who_was_dropped(self) -> None:
        if hasattr(self, "fleet"):
            server = self.fleet.server
            assert not server.waiting & server.dropped.keys()
            assert bool(server.waiting) is (server.state not in COORDINATOR_FINAL)

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        fleet = self.fleet
        while fleet.server.state not in COORDINATOR_FINAL:
            if self.up or fleet.inbox:
                self.deliver_everything()
            else:
                fleet.deadline()
        self.deliver_everything()
        fleet.check()
        if fleet.server.state is CoordinatorState.ABORTED:
            waiting = {fleet.clients[device].state for device in set(fleet.clients) - self.gone}
            assert DeviceState.READY not in waiting


RoundOfSecureAggregation.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestRoundOfSecureAggregation = RoundOfSecureAggregation.TestCase
