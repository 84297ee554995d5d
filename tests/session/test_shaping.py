"""Shaped links: what is sent takes as long as the formulas and draws of the simulated link say."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from edge.core.errors import CodecError
from edge.core.rng import hashed_bits_scalar, stream_key
from edge.core.vocabulary import Direction
from edge.network.cohort import CohortLinks, Frame, LinkSpecs
from edge.network.conditions import LinkConditions
from edge.network.loss import LossyResult, TransferFailedError, lossy_transfer, silence_limit
from edge.network.pace import Conditions, alone, carry
from edge.network.shaping import Lane, LinkShape, Radio, ShapedLink
from edge.network.tcp import INITIAL_WINDOW_BYTES, data_time, small_round_trip
from edge.wire.codec import encode
from edge.wire.messages import Accept, Model
from edge.wire.session_frames import PIECE_BYTES, Ack, Note, Piece, pack

RATE_BPS, RTT_S = 2e6, 0.1
SEED, DEVICE = 7, 5
LATE_S = 0.5 * small_round_trip(RATE_BPS, RTT_S)
STEADY = LinkShape(RATE_BPS, RATE_BPS, RTT_S)


def conditions(*, sigma: float = 0.0, outage_fraction: float = 0.0, outage_s: float = 0.0) -> LinkConditions:
    return LinkConditions(
        SEED,
        np.array([DEVICE]),
        sigma_log=np.array([sigma]),
        rho_1s=np.array([0.8]),
        outage_fraction=np.array([outage_fraction]),
        outage_mean_s=np.array([outage_s]),
    )


def lane(rate_bps: float = RATE_BPS, rtt_s: float = RTT_S) -> Lane:
    return Lane(Direction.UP, LinkShape(rate_bps, rate_bps, rtt_s), conditions(), Radio(0.0, 0.0))


def shaped(shape: LinkShape = STEADY, known: Conditions | None = None) -> ShapedLink:
    key = hashed_bits_scalar(stream_key(SEED, "link", "frames"), DEVICE)
    return ShapedLink(shape, conditions() if known is None else known, key)


def accept(round_number: int = 1) -> bytes:
    return encode(Accept("run", round_number, DEVICE))


def model(size: int, round_number: int = 1) -> bytes:
    return encode(Model("run", round_number, {"a": np.zeros(size, np.uint8)}))


def pieces(message: bytes, first: int = 1) -> list[bytes]:
    """Return the session frames of a message, numbered from ``first`` on."""
    starts = range(0, len(message), PIECE_BYTES)
    cut = [message[start : start + PIECE_BYTES] for start in starts]
    left = len(message)
    frames = []
    for number, part in enumerate(cut, first):
        left -= len(part)
        frames.append(pack(Piece(number, left, part)))
    return frames


def on_link(message: bytes, first: int = 1) -> int:
    """Return how many bytes of a message the link is given: its own, and the head of its first piece."""
    (head, *_) = pieces(message, first)
    return len(head) + max(0, len(message) - PIECE_BYTES)


def simulated(shape: LinkShape, numbers: int, device: int = DEVICE, round_number: int = 1) -> CohortLinks:
    """Return the simulation's links of a round in which the device sends ``numbers`` small frames."""
    ids = np.array([device])

    def one(value: float) -> np.ndarray:
        return np.array([value])

    specs = LinkSpecs(
        down_bps=one(shape.down_bps),
        up_bps=one(shape.up_bps),
        rtt_s=one(shape.rtt_s),
        loss=one(shape.loss),
        jitter_s=one(shape.jitter_s),
        promotion_s=one(0.0),
        tail_s=one(0.0),
        flaky=np.array([False]),
    )
    frames = [Frame(Direction.UP, np.array([100])) for _ in range(numbers)]
    return CohortLinks(
        stream_key(SEED, "link", "frames"), ids, round_number, specs, frames, 1, np.array([True])
    )


@pytest.mark.parametrize("size", [1, 1000, INITIAL_WINDOW_BYTES, 100_000, 5_000_000])
def test_one_message_takes_as_long_as_on_the_simulated_link(size: int) -> None:
    seconds, _ = data_time(size, RATE_BPS, RTT_S)
    assert lane().carry(size, 3.0) == pytest.approx(3.0 + seconds + LATE_S)


@pytest.mark.parametrize("size", [1000, 300_000])
def test_pieces_take_as_long_as_the_whole(size: int) -> None:
    message = model(size)
    link = shaped()
    arrivals = [link.came(frame, 3.0) for frame in pieces(message)]
    seconds, _ = data_time(on_link(message), RATE_BPS, RTT_S)
    assert arrivals[-1] == pytest.approx(3.0 + seconds + LATE_S)
    assert arrivals == sorted(set(arrivals))


def test_pieces_that_are_fetched_late_do_not_make_the_message_late() -> None:
    message = model(300_000)
    link = shaped()
    for number, frame in enumerate(pieces(message)):
        arrival_s = link.sent(frame, max(3.0 + 0.01 * number, link.up.free_s))
    seconds, _ = data_time(on_link(message), RATE_BPS, RTT_S)
    assert arrival_s == pytest.approx(3.0 + seconds + LATE_S)


def test_latencies_of_messages_overlap() -> None:
    both = lane()
    first_s, second_s = both.carry(1000, 0.0), both.carry(1000, 0.0)
    assert second_s - first_s == pytest.approx(data_time(1000, RATE_BPS, RTT_S)[0])


def test_what_comes_later_arrives_later_whatever_rounding_does() -> None:
    fast = lane(1e15, 0.0)
    arrivals = [fast.carry(1, 1e6) for _ in range(100)]
    assert arrivals == sorted(set(arrivals))


def test_every_message_starts_from_the_initial_window() -> None:
    both = lane()
    first_s, second_s = both.carry(100_000, 0.0), both.carry(100_000, 0.0)
    assert second_s - first_s == pytest.approx(data_time(100_000, RATE_BPS, RTT_S)[0])


def test_an_idle_radio_is_promoted_once_for_both_directions() -> None:
    plain = lane().carry(1000, 0.0)
    link = shaped(LinkShape(RATE_BPS, RATE_BPS, RTT_S, promotion_s=2.0, tail_s=10.0))
    first_s = link.down.carry(1000, 0.0)
    assert first_s == pytest.approx(2.0 + plain)
    assert link.up.carry(1000, first_s + 9.0) == pytest.approx(first_s + 9.0 + plain)
    assert link.up.carry(1000, 100.0) == pytest.approx(102.0 + plain)
    link.opened(200.0)  # for which it had to be awake
    assert link.down.carry(1000, 205.0) == pytest.approx(205.0 + plain)


# -- jitter ----------------------------------------------------------------------------------------------

JITTERY = LinkShape(RATE_BPS, RATE_BPS, RTT_S, jitter_s=0.3)


def test_messages_have_the_jitter_that_the_simulated_link_draws_for_them() -> None:
    frame = simulated(JITTERY, 6).frames
    link = shaped(JITTERY)
    for number, way in enumerate((link.came, link.sent, link.came, link.sent, link.came, link.sent)):
        now_s = 100.0 * number
        (data,) = pieces(accept(), 1 + number // 2)
        seconds, _ = data_time(len(data), RATE_BPS, RTT_S)
        assert way(data, now_s) - now_s - seconds == pytest.approx(frame[number].latency_s[0])


def test_each_round_has_draws_of_its_own() -> None:
    link = shaped(JITTERY)
    for round_number in (1, 2, 9):
        (data,) = pieces(accept(round_number), round_number)
        now_s = 100.0 * round_number
        late_s = link.came(data, now_s) - now_s - data_time(len(data), RATE_BPS, RTT_S)[0]
        assert late_s == pytest.approx(
            simulated(JITTERY, 1, round_number=round_number).frames[0].latency_s[0]
        )


def test_jitter_delays_the_last_piece_only() -> None:
    message = model(300_000)
    plain, jittery = shaped(), shaped(JITTERY)
    arrivals = [(plain.came(frame, 0.0), jittery.came(frame, 0.0)) for frame in pieces(message)]
    assert len(arrivals) > 3
    for expected_s, found_s in arrivals[:-1]:
        assert found_s == expected_s
    expected_s, found_s = arrivals[-1]
    jitter_s = simulated(JITTERY, 1).frames[0].latency_s[0] - LATE_S
    assert found_s - expected_s == pytest.approx(jitter_s)


def test_jitter_never_reorders() -> None:
    link = shaped(LinkShape(RATE_BPS, RATE_BPS, RTT_S, jitter_s=5.0))
    arrivals = []
    for number in range(1, 200):
        (data,) = pieces(accept(), number)
        arrivals.append(link.came(data, 0.01 * number))
        arrivals.append(link.came(pack(Ack(number)), 0.01 * number))
    assert arrivals == sorted(set(arrivals))


def test_acknowledgements_carry_no_jitter_and_lose_nothing() -> None:
    link = shaped(LinkShape(RATE_BPS, RATE_BPS, RTT_S, jitter_s=5.0, loss=0.9))
    for number in range(50):
        ack = pack(Ack(number))
        seconds, _ = data_time(len(ack), RATE_BPS, RTT_S)
        now_s = 10.0 * number
        assert link.sent(ack, now_s) == pytest.approx(now_s + seconds + LATE_S)


def test_the_draws_are_the_same_however_often_they_are_made() -> None:
    message = model(200_000)
    shape = LinkShape(RATE_BPS, RATE_BPS, RTT_S, jitter_s=0.3, loss=0.05)
    known = conditions(sigma=0.8, outage_fraction=0.2, outage_s=2.0)
    found = []
    for _ in range(2):
        link = shaped(shape, known)
        found.append([link.came(frame, 50.0) for frame in pieces(message)])
    assert found[0] == found[1]


# -- losses ----------------------------------------------------------------------------------------------


def lost(shape: LinkShape, size: int, number: int) -> LossyResult:
    """Return what the simulated link says of frame ``number``."""
    draw = simulated(shape, 1).loss_draws(0, number)
    return lossy_transfer(size, RATE_BPS, RTT_S, shape.loss, draw, shape.congestion)


@pytest.mark.parametrize("congestion", ["cubic", "reno"])
def test_messages_lose_the_packets_that_the_simulated_link_loses(congestion: str) -> None:
    shape = LinkShape(RATE_BPS, RATE_BPS, RTT_S, loss=0.02, congestion=congestion)  # type: ignore[arg-type]
    message = model(100_000)
    link = shaped(shape)
    resent = []
    for number in range(6):
        now_s = 1000.0 * number
        frames = pieces(message, 1 + 2 * number)
        expected = lost(shape, on_link(message, 1 + 2 * number), number)
        *_, arrival_s = [link.came(frame, now_s) for frame in frames]
        assert arrival_s - now_s - LATE_S == pytest.approx(expected.seconds)
        resent.append(expected.retransmitted_segments)
    assert max(resent) > 0


def test_a_message_that_is_sent_again_has_draws_of_its_own_and_the_next_keep_theirs() -> None:
    frame = simulated(JITTERY, 2).frames
    link = shaped(JITTERY)
    (data,) = pieces(accept(), 1)
    first_s = link.came(data, 0.0)
    link.opened(100.0)
    again_s = link.came(data, 100.0) - 100.0
    assert again_s != pytest.approx(first_s)
    (data,) = pieces(accept(), 2)
    seconds, _ = data_time(len(data), RATE_BPS, RTT_S)
    assert link.came(data, 200.0) - 200.0 - seconds == pytest.approx(frame[1].latency_s[0])


def test_the_rest_of_a_message_may_be_sent_again() -> None:
    message = model(300_000)
    link = shaped()
    frames = pieces(message)
    for frame in frames[:3]:
        link.sent(frame, 0.0)
    link.opened(50.0)
    arrivals = [link.sent(frame, 50.0) for frame in frames[2:]]
    size = len(frames[2]) + len(message) - 3 * PIECE_BYTES
    assert arrivals[-1] == pytest.approx(50.0 + data_time(size, RATE_BPS, RTT_S)[0] + LATE_S)
    assert arrivals == sorted(set(arrivals))


# -- the device's own time -------------------------------------------------------------------------------


def test_a_late_host_does_not_make_the_device_late() -> None:
    on_time, late = shaped(JITTERY), shaped(JITTERY)
    (data,) = pieces(accept())
    ack = pack(Ack(1))
    expected = on_time.sent(ack, 10.0), on_time.sent(data, 10.2)
    late.moment_s = 10.0
    ack_s = late.sent(ack, 10.4)
    late.moment_s = 10.2
    late.promise()
    late.moment_s = 77.0
    assert (ack_s, late.sent(data, 10.4)) == expected


def test_what_the_device_sends_sooner_than_promised_leaves_at_once() -> None:
    link = shaped()
    link.moment_s = 50.0
    link.promise()
    (data,) = pieces(accept())
    assert link.sent(data, 10.0) == shaped().sent(data, 10.0)


def test_messages_and_notes_leave_at_the_times_that_they_were_promised_for() -> None:
    link = shaped()
    message = model(150_000)
    for moment_s in (10.0, 20.0, 30.0):
        link.moment_s = moment_s
        link.promise()
    note_s = link.sent(pack(Note(1, 2, 0.5)), 90.0)
    assert 10.0 < note_s < 11.0
    arrivals = [link.sent(frame, 90.0) for frame in pieces(message, 2)[:2]]
    link.opened(90.0)
    # The rest of the message on another connection, where the piece that follows was never sent.
    rest = pieces(message, 2)[2:]
    arrivals += [link.sent(frame, 90.0) for frame in rest]
    link.opened(90.0)
    (data,) = pieces(accept(), 10)
    assert 20.0 < arrivals[0] < arrivals[1] < 30.0
    assert arrivals[-1] > 90.0
    assert link.sent(data, 95.0) == pytest.approx(90.0 + data_time(len(data), RATE_BPS, RTT_S)[0] + LATE_S)


# -- rates and outages -----------------------------------------------------------------------------------


def test_the_rate_changes_as_on_the_simulated_link() -> None:
    known = conditions(sigma=0.8)
    message = model(400_000)
    taken = []
    for now_s in (0.0, 3.7, 100.2):
        link = shaped(known=known)
        *_, arrival_s = [link.came(frame, now_s) for frame in pieces(message)]
        pace = functools.partial(known.pace, 0, Direction.DOWN)
        size = on_link(message)
        seconds, _ = alone(pace, size, RATE_BPS, RTT_S, now_s, INITIAL_WINDOW_BYTES, math.inf)
        assert arrival_s - now_s - LATE_S == pytest.approx(seconds)
        taken.append(seconds)
    assert max(taken) > 1.1 * min(taken)


def test_an_outage_delays_by_its_length() -> None:
    known = conditions(outage_fraction=0.1, outage_s=4.0)
    down, begin_s = known.outage_at(0, 10.0)
    assert not down
    down, end_s = known.outage_at(0, begin_s)
    assert down
    assert not known.outage_at(0, end_s)[0]
    shape = LinkShape(RATE_BPS, RATE_BPS, RTT_S, flaky=True)
    (data,) = pieces(accept())
    seconds, _ = data_time(len(data), RATE_BPS, RTT_S)
    link = shaped(shape, known)
    assert link.sent(data, begin_s) == pytest.approx(end_s + seconds + LATE_S)
    # Acknowledgements wait as well, and behind what waits already.
    assert link.sent(pack(Ack(1)), begin_s) > end_s + seconds + LATE_S
    assert shaped(shape, known).opening_s(begin_s) == pytest.approx(
        end_s - begin_s + small_round_trip(RATE_BPS, RTT_S)
    )


def test_messages_take_what_the_simulated_link_says_with_all_at_once() -> None:
    shape = LinkShape(RATE_BPS, RATE_BPS, RTT_S, loss=0.02, flaky=True)
    known = conditions(sigma=0.8, outage_fraction=0.2, outage_s=3.0)
    message = model(200_000)
    link = shaped(shape, known)
    for number in range(4):
        now_s = 200.0 * number
        first = 1 + 4 * number
        *_, arrival_s = [link.came(frame, now_s) for frame in pieces(message, first)]
        steady_s = lost(shape, on_link(message, first), number).seconds
        seconds = known.carry_s(0, Direction.DOWN, now_s, steady_s)
        assert arrival_s - now_s - LATE_S == pytest.approx(seconds)


class Dead(LinkConditions):
    """A link that is down for ever."""

    def __init__(self) -> None:
        super().__init__(
            SEED,
            np.array([DEVICE]),
            sigma_log=np.zeros(1),
            rho_1s=np.zeros(1),
            outage_fraction=np.zeros(1),
            outage_mean_s=np.zeros(1),
        )

    def pace(self, slot: int, direction: Direction, t_s: float) -> tuple[float, float]:
        return 0.0, math.inf


def test_tcp_gives_up_a_link_that_is_down_for_too_long() -> None:
    link = shaped(LinkShape(RATE_BPS, RATE_BPS, RTT_S, promotion_s=2.0, flaky=True), Dead())
    (data,) = pieces(accept())
    with pytest.raises(TransferFailedError, match="the link was down") as caught:
        link.sent(data, 10.0)
    assert caught.value.after_s == pytest.approx(2.0 + silence_limit(RTT_S))


def test_tcp_gives_up_a_link_that_loses_everything() -> None:
    link = shaped(LinkShape(RATE_BPS, RATE_BPS, RTT_S, loss=1.0 - 1e-9))
    (data,) = pieces(accept())
    with pytest.raises(TransferFailedError, match="loses too much"):
        link.sent(data, 10.0)


def test_what_is_no_session_frame_is_refused() -> None:
    with pytest.raises(CodecError):
        shaped().came(b"\xc1 what is this", 0.0)


def test_a_message_without_a_round_is_carried_all_the_same() -> None:
    link = shaped(JITTERY)
    data = pack(Piece(1, 0, b"\x93\x01nonsense"))
    assert link.sent(data, 0.0) > LATE_S


def test_carrying_bears_a_silence_that_tcp_bears() -> None:
    limit_s = silence_limit(RTT_S)

    def pace(t_s: float) -> tuple[float, float]:
        return (0.0, 0.99 * limit_s) if t_s < 0.99 * limit_s else (1.0, math.inf)

    assert carry(pace, 0.0, 1.0, limit_s) == pytest.approx(0.99 * limit_s + 1.0)
