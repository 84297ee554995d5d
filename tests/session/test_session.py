"""Both ends of a session, joined through bytes: what is sent arrives once and in order, whatever breaks."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest

from edge.core.errors import CodecError, FrameTooLargeError, RemoteProtocolError
from edge.wire.session import (
    CONTROL_FRAMES,
    Acknowledged,
    Noted,
    Received,
    Session,
    SessionEnded,
    SessionLimits,
)
from edge.wire.session_frames import (
    MESSAGE_BYTES,
    PIECE_BYTES,
    Ack,
    Goodbye,
    Hello,
    Note,
    Piece,
    Ping,
    Pong,
    SessionFrame,
    Welcome,
    carried_bytes,
    pack,
    unpack,
)

LIMITS = SessionLimits(
    frame_bytes=1_000_000, unacknowledged_bytes=4_000_000, heartbeat_s=5.0, idle_s=20.0, computing_s=100.0
)


def pair() -> tuple[Session, Session]:
    return Session(LIMITS, client=True), Session(LIMITS, client=False)


def carry(sender: Session, receiver: Session, now_s: float = 0.0, most: int = 10_000) -> list[object]:
    """Carry up to ``most`` session frames from one end to the other."""
    events: list[object] = []
    for _ in range(most):
        data = sender.next_frame(now_s)
        if data is None:
            break
        events += receiver.receive(data, now_s)
    return events


def connect(one: Session, other: Session, now_s: float = 0.0) -> list[Acknowledged]:
    return one.connected(other.received, now_s) + other.connected(one.received, now_s)


def frames_of(events: list[object]) -> list[bytes]:
    return [event.frame for event in events if isinstance(event, Received)]


class TestMessages:
    def test_a_short_one_takes_one_piece_and_is_acknowledged(self) -> None:
        device, coordinator = pair()
        sent = device.send(b"hello", "label")
        (received,) = carry(device, coordinator, 3.0)
        assert isinstance(received, Received)
        assert (received.frame, received.begun_s, received.repeated_bytes) == (b"hello", 3.0, 0)
        assert carry(coordinator, device, 4.0) == [Acknowledged(sent, 4.0)]
        assert (sent.label, sent.begun_s, sent.message_bytes, sent.repeated_bytes) == ("label", 3.0, 5, 0)
        assert device.unacknowledged == []

    def test_a_long_one_is_cut_into_pieces(self) -> None:
        device, coordinator = pair()
        whole = random.Random(1).randbytes(2 * PIECE_BYTES + 17)
        coordinator.send(whole)
        assert frames_of(carry(coordinator, device, most=2)) == []
        assert frames_of(carry(coordinator, device)) == [whole]

    def test_both_ends_count_the_same_bytes(self) -> None:
        device, coordinator = pair()
        whole = bytes(PIECE_BYTES + 1)
        sent = device.send(whole)
        (received,) = carry(device, coordinator)
        assert isinstance(received, Received)
        pieces = (Piece(1, 1, whole[:PIECE_BYTES]), Piece(2, 0, whole[PIECE_BYTES:]))
        carried = sum(carried_bytes(len(pack(piece)), masked=True) for piece in pieces)
        assert sent.session_bytes == received.session_bytes == carried - len(whole)

    def test_notes_keep_their_place_among_messages(self) -> None:
        device, coordinator = pair()
        device.note(3)
        device.note(3, 0.25)
        device.send(b"report")
        events = carry(device, coordinator)
        assert events[:2] == [Noted(3, None, 0.0), Noted(3, 0.25, 0.0)]
        assert frames_of(events) == [b"report"]

    def test_goodbye_ends_it(self) -> None:
        device, _ = pair()
        assert device.receive(pack(Goodbye("done")), 0.0) == [SessionEnded("done")]


class TestBrokenConnections:
    def test_what_was_not_acknowledged_is_sent_again(self) -> None:
        device, coordinator = pair()
        first, second = device.send(b"first"), device.send(b"second")
        assert device.next_frame(0.0) is not None  # lost on the way
        connect(device, coordinator)
        assert frames_of(carry(device, coordinator)) == [b"first", b"second"]
        assert carry(coordinator, device) == [Acknowledged(first, 0.0), Acknowledged(second, 0.0)]
        assert first.repeated_bytes == first.session_bytes + 5
        assert second.repeated_bytes == 0

    def test_what_had_arrived_is_not(self) -> None:
        device, coordinator = pair()
        first = device.send(b"first")
        device.send(b"second")
        assert frames_of(carry(device, coordinator, most=1)) == [b"first"]  # its acknowledgement is lost
        assert connect(device, coordinator) == [Acknowledged(first, 0.0)]
        assert frames_of(carry(device, coordinator)) == [b"second"]

    def test_a_long_message_goes_on_where_it_broke_off(self) -> None:
        device, coordinator = pair()
        whole = random.Random(2).randbytes(4 * PIECE_BYTES)
        sent = coordinator.send(whole)
        carry(coordinator, device, most=2)
        connect(device, coordinator)
        assert frames_of(carry(coordinator, device)) == [whole]
        assert sent.repeated_bytes == 0

    def test_what_comes_twice_is_dropped_and_acknowledged_again(self) -> None:
        device, coordinator = pair()
        device.send(b"once")
        data = device.next_frame(0.0)
        assert data is not None
        assert frames_of(list(coordinator.receive(data, 0.0))) == [b"once"]
        assert coordinator.receive(data, 0.0) == []
        answers = [coordinator.next_frame(0.0), coordinator.next_frame(0.0)]
        assert answers == [pack(Ack(1)), None]

    @pytest.mark.parametrize("seed", range(30))
    def test_everything_arrives_once_and_in_order(self, seed: int) -> None:
        chance = random.Random(seed)
        ends = pair()
        wanted: tuple[list[bytes], list[bytes]] = ([], [])
        got: tuple[list[bytes], list[bytes]] = ([], [])
        for step in range(300):
            end = chance.randrange(2)
            what = chance.random()
            if what < 0.25:
                size = chance.choice((1, 100, PIECE_BYTES, 3 * PIECE_BYTES + 5))
                message = step.to_bytes(4, "big") + bytes(size)
                ends[end].send(message)
                wanted[end].append(message)
            elif what < 0.3:
                connect(*ends)  # whatever was on its way is lost
            elif what < 0.35:
                ends[end].next_frame(0.0)
                connect(*ends)
            else:
                got[end].extend(frames_of(carry(ends[end], ends[1 - end], most=chance.randrange(1, 5))))
        connect(*ends)
        for _ in range(2):
            for end in (0, 1):
                got[end].extend(frames_of(carry(ends[end], ends[1 - end])))
        assert got == wanted
        assert [end.unacknowledged for end in ends] == [[], []]


class TestSignsOfLife:
    def test_silence_is_asked_about_then_ends_the_connection(self) -> None:
        _, coordinator = pair()
        coordinator.connected(0, 100.0)
        assert coordinator.next_check_s() == 105.0
        assert coordinator.check(104.9)
        assert not coordinator.waiting
        assert coordinator.check(105.0)
        assert coordinator.waiting
        assert coordinator.next_check_s() == 120.0
        assert not coordinator.check(120.0)

    def test_an_answer_is_a_sign_of_life(self) -> None:
        device, coordinator = pair()
        connect(device, coordinator, 0.0)
        assert coordinator.check(5.0)
        carry(coordinator, device, 5.0)
        carry(device, coordinator, 6.0)
        assert coordinator.next_check_s() == 11.0

    def test_a_device_that_computes_is_given_more_time(self) -> None:
        device, coordinator = pair()
        connect(device, coordinator, 0.0)
        device.note(3)
        carry(device, coordinator, 1.0)
        assert coordinator.check(21.0)
        assert coordinator.check(100.9)
        assert not coordinator.check(101.0)

    def test_and_no_more_once_it_is_done(self) -> None:
        device, coordinator = pair()
        connect(device, coordinator, 0.0)
        device.note(3)
        device.note(3, 9.0)
        carry(device, coordinator, 10.0)
        assert not coordinator.check(30.0)


AHEAD_S = 5000.0
"""How much more the device's clock shows than the coordinator's."""
UP_S, DOWN_S = 0.3, 0.3


class TestTimesOfTheOtherEnd:
    """A device says by its own clock when it did what it did; the coordinator has that in its own time."""

    def up(self, device: Session, coordinator: Session, left_s: float) -> list[object]:
        """Carry what the device has to send; it leaves at ``left_s``, by the coordinator's clock."""
        return self._carry(device, coordinator, left_s + AHEAD_S, left_s + UP_S)

    def down(self, device: Session, coordinator: Session, left_s: float, took_s: float = DOWN_S) -> None:
        self._carry(coordinator, device, left_s, left_s + took_s + AHEAD_S)

    def _carry(self, sender: Session, receiver: Session, left_s: float, came_s: float) -> list[object]:
        events: list[object] = []
        while (data := sender.next_frame(left_s)) is not None:
            events += receiver.receive(data, came_s)
        return events

    def acquainted(self) -> tuple[Session, Session]:
        """Return both ends after the coordinator has asked the device for a sign of life."""
        device, coordinator = pair()
        coordinator.challenge(7)
        self.down(device, coordinator, 1.0)
        assert self.up(device, coordinator, 1.0 + DOWN_S) == []
        assert coordinator.has_answered(7)
        return device, coordinator

    def test_a_message_down_ends_when_the_device_has_it(self) -> None:
        device, coordinator = self.acquainted()
        sent = coordinator.send(b"model")
        self.down(device, coordinator, 10.0, took_s=1.8)
        (event,) = self.up(device, coordinator, 11.9)  # the acknowledgement waited for a while
        assert event == Acknowledged(sent, pytest.approx(11.8))

    def test_a_message_up_begins_when_the_device_begins_to_send_it(self) -> None:
        device, coordinator = self.acquainted()
        device.note(5, 0.25, at_s=20.0 + AHEAD_S)
        device.send(bytes(PIECE_BYTES + 1), at_s=20.0 + AHEAD_S)
        noted, received = self.up(device, coordinator, 20.1)
        assert noted == Noted(5, 0.25, pytest.approx(20.0))
        assert isinstance(received, Received)
        assert received.begun_s == pytest.approx(20.0)

    def test_it_begins_there_on_another_connection_too(self) -> None:
        device, coordinator = self.acquainted()
        device.send(b"report", at_s=20.0 + AHEAD_S)
        device.next_frame(20.0 + AHEAD_S)  # lost on the way
        connect(device, coordinator)
        (received,) = self.up(device, coordinator, 30.0)
        assert isinstance(received, Received)
        assert received.begun_s == pytest.approx(20.0)

    def test_the_quickest_answer_says_most(self) -> None:
        device, coordinator = self.acquainted()
        coordinator.challenge(8)
        self.down(device, coordinator, 40.0, took_s=9.0)
        self.up(device, coordinator, 49.0)
        device.send(b"report", at_s=50.0 + AHEAD_S)
        (received,) = self.up(device, coordinator, 50.0)
        assert isinstance(received, Received)
        assert received.begun_s == pytest.approx(50.0, abs=0.005)  # its clock may have drifted since

    def test_a_clock_that_was_set_is_learnt_anew(self) -> None:
        device, coordinator = self.acquainted()
        moved_s = AHEAD_S - 3600.0
        for number in (8, 9):
            coordinator.challenge(number)
            self._carry(coordinator, device, 60.0, 60.0 + DOWN_S + moved_s)
            self._carry(device, coordinator, 60.0 + DOWN_S + moved_s, 60.0 + DOWN_S + UP_S)
        device.send(b"report", at_s=61.0 + moved_s)
        (received,) = self._carry(device, coordinator, 61.0 + moved_s, 61.0 + UP_S)
        assert isinstance(received, Received)
        assert received.begun_s == pytest.approx(61.0, abs=0.005)

    def test_what_says_nothing_is_seen_from_here(self) -> None:
        device, coordinator = self.acquainted()
        device.note(5, 0.25)
        device.send(b"report")
        noted, received = self.up(device, coordinator, 20.0)
        assert noted == Noted(5, 0.25, 20.0 + UP_S)
        assert isinstance(received, Received)
        assert received.begun_s == 20.0 + UP_S

    @pytest.mark.parametrize("seed", range(5))
    def test_no_word_of_a_device_is_of_the_future(self, seed: int) -> None:
        chance = random.Random(seed)
        device, coordinator = self.acquainted()
        for step in range(1, 200):
            now_s = 100.0 + step
            said_s = chance.choice((0.0, now_s, now_s + AHEAD_S, 1e12, chance.uniform(0.0, 1e4)))
            device.send(b"x", at_s=said_s)
            (received,) = self._carry(device, coordinator, now_s, now_s)
            assert isinstance(received, Received)
            assert received.begun_s <= now_s
            coordinator.send(b"y")
            self._carry(coordinator, device, now_s, chance.uniform(0.0, 1e4))
            (event,) = self._carry(device, coordinator, now_s, now_s)
            assert isinstance(event, Acknowledged)
            assert event.at_s <= now_s

    def test_the_coordinator_says_nothing_of_its_own(self) -> None:
        device, coordinator = pair()
        device.send(b"report", at_s=3.0)
        carry(device, coordinator, 3.0)
        assert coordinator.next_frame(4.0) == pack(Ack(1))


class TestBrokenPeers:
    def test_a_message_above_the_limit_is_refused_at_its_first_piece(self) -> None:
        _, coordinator = pair()
        piece = Piece(1, LIMITS.frame_bytes, b"x")
        with pytest.raises(FrameTooLargeError, match=r"limits\.frame_bytes"):
            coordinator.receive(pack(piece), 0.0)

    def test_pieces_that_do_not_add_up(self) -> None:
        _, coordinator = pair()
        coordinator.receive(pack(Piece(1, 10, b"x")), 0.0)
        with pytest.raises(RemoteProtocolError, match="10 were awaited"):
            coordinator.receive(pack(Piece(2, 5, b"yy")), 0.0)

    def test_a_gap(self) -> None:
        _, coordinator = pair()
        with pytest.raises(RemoteProtocolError, match="sequence number 2 after 0"):
            coordinator.receive(pack(Piece(2, 0, b"x")), 0.0)

    def test_an_acknowledgement_of_what_never_left(self) -> None:
        _, coordinator = pair()
        coordinator.send(b"waits")
        with pytest.raises(RemoteProtocolError, match="1 is acknowledged, and 0 was sent last"):
            coordinator.receive(pack(Ack(1)), 0.0)
        with pytest.raises(RemoteProtocolError):
            coordinator.connected(1, 0.0)

    def test_a_flood_of_questions(self) -> None:
        _, coordinator = pair()
        for number in range(CONTROL_FRAMES):
            coordinator.receive(pack(Ping(number)), 0.0)
        with pytest.raises(RemoteProtocolError, match="flood"):
            coordinator.receive(pack(Ping(0)), 0.0)

    def test_one_that_acknowledges_nothing_costs_bounded_memory(self) -> None:
        _, coordinator = pair()
        for _ in range(4):
            coordinator.send(bytes(1_000_000))
        with pytest.raises(RemoteProtocolError, match=r"connection\.sockets\.unacknowledged_bytes"):
            coordinator.send(b"more")

    @pytest.mark.parametrize(
        "frame",
        [Hello(1, 0, "", "", "", 0), Welcome("s", 0, 1.0, 1.0, 1.0, 1, "", "", "run")],
        ids=["hello", "welcome"],
    )
    def test_greetings_in_the_middle(self, frame: Hello | Welcome) -> None:
        _, coordinator = pair()
        with pytest.raises(RemoteProtocolError, match="in the middle of a session"):
            coordinator.receive(pack(frame), 0.0)

    @pytest.mark.parametrize("run_id", ["", "a run", "a/../run", "run\n", "r" * 65, "лауф", 8, None])
    def test_an_identity_of_a_run_that_is_none(self, run_id: Any) -> None:
        welcome = Welcome("s", 0, 1.0, 1.0, 1.0, 1, "", "", run_id)
        with pytest.raises(CodecError, match=r"run_id: expected 1 to 64 letters|frame has 8"):
            unpack(pack(welcome))

    def test_a_computation_of_negative_time(self) -> None:
        _, coordinator = pair()
        with pytest.raises(RemoteProtocolError, match=r"-0\.5 s"):
            coordinator.receive(pack(Note(1, 3, -0.5)), 0.0)


class TestFrames:
    @pytest.mark.parametrize(
        "frame",
        [
            Hello(1, 17, "token", "session", "hash", 4),
            Welcome("session", 3, 15.0, 60.0, 120.0, 1 << 26, "hash", "format: 2\n", "a-run_01"),
            Piece(1, 0, b"\x01"),
            Note(9, 3, 0.5),
            Goodbye("done"),
            Piece(1, 0, b"\x01", 17.25),
            Note(9, 3, 0.5, 17.25),
            Ack(3),
            Ack(3, 17.25),
            Pong(3),
            Pong(3, 17.25),
        ],
        ids=lambda frame: type(frame).__name__,
    )
    def test_round_trip(self, frame: SessionFrame) -> None:
        assert unpack(pack(frame)) == frame

    def test_the_longest_piece_fits(self) -> None:
        assert len(pack(Piece(2**62, 2**62, bytes(PIECE_BYTES), 1e12))) <= MESSAGE_BYTES

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xc1",
            msgpack.packb(None),
            msgpack.packb([]),
            msgpack.packb([99]),
            msgpack.packb([True, 1]),
            msgpack.packb([5]),
            msgpack.packb([5, -1]),
            msgpack.packb([5, 1.0]),
            msgpack.packb([5, True]),
            msgpack.packb([5, 1, -1.0]),
            msgpack.packb([5, 1, 2e12]),
            msgpack.packb([5, 1, float("inf")]),
            msgpack.packb([5, 1, None]),
            msgpack.packb([5, 1, 2.0, 3.0]),
            msgpack.packb([3, 1, 0, b""]),
            msgpack.packb([3, 1, 0, "text"]),
            msgpack.packb([3, 1, 0, bytes(PIECE_BYTES + 1)]),
            msgpack.packb([4, 1, 3, float("nan")]),
            msgpack.packb([8, "x" * 513]),
            msgpack.packb([1, 1, 0, 5, "", "", 0]),
            msgpack.packb({"a": 1}),
            msgpack.packb([5, 1]) + b"\x00",
            b"\xdd\xff\xff\xff\xff",
        ],
    )
    def test_garbage(self, data: bytes) -> None:
        with pytest.raises(CodecError):
            unpack(data)

    @pytest.mark.parametrize("seed", range(5))
    def test_random_bytes_raise_nothing_else(self, seed: int) -> None:
        chance = random.Random(seed)
        refused = 0
        for _ in range(2000):
            _, coordinator = pair()
            codes = (0x91, 0x92, 0x94, 1, 3, 5, 0xC4, 0xCF, chance.randrange(256))
            try:
                coordinator.receive(bytes(chance.choices(codes, k=chance.randrange(20))), 0.0)
            except RemoteProtocolError:
                refused += 1
            assert coordinator.received <= 1
        assert 0 < refused <= 2000

    @pytest.mark.parametrize(("length", "header"), [(0, 2), (125, 2), (126, 4), (65535, 4), (65536, 10)])
    def test_length_of_a_websocket_message(self, length: int, header: int) -> None:
        assert carried_bytes(length, masked=False) == header + length
        assert carried_bytes(length, masked=True) == header + 4 + length
