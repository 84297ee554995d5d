"""Transfers over links that lose packets at random.

A transfer is followed flight by flight: each packet is lost with probability p on its own, so the lost ones
of a flight of w are Binomial(w, p). They are drawn by their gaps instead, which are geometric: a transfer
that loses nothing costs one uniform and takes exactly the time of the closed form (``tcp_model``).

What a loss does:

* the window is multiplied by 0.7 (cubic: RFC 9438, section 4.6) or 0.5 (reno: RFC 5681, equation 4), once
  per flight, and grows again as RFC 9438 (equations 1, 2 and 4, fast convergence of section 4.7) or by one
  segment a round trip;
* a lost segment with a delivered one behind it is found after a round trip and sent again (RFC 8985);
* when the tail of the last flight is lost, a probe goes out after two round trips (RFC 8985, section 7.2;
  no later than the retransmission time-out), and if that is lost too, after the retransmission time-out,
  which doubles each time (RFC 6298, section 5.5);
* a lost SYN is sent again after 1 s, doubling (RFC 6298, section 2).

No cap by the square root of p is put on the rate: that is the limit of endless transfers, and wrong by up to
four times for messages of 10 KB to 1 MB.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from edge.core.errors import RecfleetError
from edge.core.rng import hashed_bits_scalar, uniform_source
from edge.network.tcp import (
    INITIAL_WINDOW_BYTES,
    SEGMENT_PAYLOAD_BYTES,
    ack_clock_period,
    data_time,
    goodput,
    retransmission_timeout,
    segments,
    small_round_trip,
)

Congestion = Literal["cubic", "reno"]
Draw = Callable[[], float]
"""Returns the next uniform in (0, 1) of the stream that belongs to the transfer."""
SYN_TIMEOUT_S = 1.0
"""First time-out of a SYN (RFC 6298, section 2.1)."""
CUBIC_BETA = 0.7
CUBIC_C = 0.4
"""Segments/s**3 (RFC 9438, section 5)."""
CUBIC_ALPHA = 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA)
"""Additive increase with which cubic is as fast as reno (RFC 9438, section 4.3)."""
RENO_BETA = 0.5
LEAST_WINDOW_SEGMENTS = 2.0
MAX_BACKOFFS = 15
"""Doublings of a time-out after which a connection is given up (Linux: ``tcp_retries2``)."""
JITTER = 0
LOSS = 1 << 32
HANDSHAKE = 2 << 32
"""Where the counters of a frame's draws begin: its jitter, its losses, those of the handshake before."""
REPEATED = 1 << 20
"""Added to the number of a frame that is sent again; a device sends fewer frames than this in a round."""


class TransferFailedError(RecfleetError):
    """The same packet was lost :data:`MAX_BACKOFFS` times over; TCP gives the connection up.

    ``after_s`` is how long after the start of the transfer it does, where that is known; else 0.
    """

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


def silence_limit(rtt_s: float) -> float:
    """Return how long TCP bears a dead link, seconds: the time-out and its :data:`MAX_BACKOFFS` doublings."""
    return retransmission_timeout(rtt_s) * float(2 ** (MAX_BACKOFFS + 1) - 1)


class LossyResult(NamedTuple):
    """What a transfer over a lossy link took."""

    seconds: float
    """From the first byte leaving to the last one leaving for good."""
    retransmitted_segments: int
    end_window_bytes: float


class _Gaps:
    """Positions of the lost packets in an endless row of packets: geometric gaps between them."""

    __slots__ = ("_draw", "_log_keep", "left")

    def __init__(self, loss: float, draw: Draw, first: int) -> None:
        self._log_keep = math.log1p(-loss)
        self._draw = draw
        self.left = first
        """Packets that pass before the next one is lost."""

    def next_gap(self) -> int:
        return int(math.log(self._draw()) / self._log_keep)

    def lost_in(self, count: int) -> tuple[int, bool]:
        """Send ``count`` packets; return how many are lost and whether the last of them is.

        :attr:`left`, if read before, is how many packets arrive ahead of the first loss.
        """
        lost, ahead = 0, count
        while self.left < ahead:
            ahead -= self.left + 1
            lost += 1
            self.left = self.next_gap()
            if ahead == 0:
                return lost, True
        self.left -= ahead
        return lost, False


class _Window:
    """The congestion window, in segments."""

    __slots__ = (
        "_cubic",
        "_largest",
        "_limit",
        "_origin",
        "_origin_delay_s",
        "_reno_like",
        "size",
        "threshold",
    )

    def __init__(self, size: float, limit: float, congestion: Congestion) -> None:
        self.size = size
        self.threshold = math.inf
        self._limit = limit
        """The link and its queue hold no more."""
        self._cubic = congestion == "cubic"
        self._largest = 0.0
        self._origin = 0.0
        self._origin_delay_s = 0.0
        self._reno_like = 0.0

    def on_flight(self, now_s: float, period_s: float) -> None:
        """Record that a flight was acknowledged whole at ``now_s``."""
        if self.size < self.threshold:
            grown = min(2.0 * self.size, max(self.threshold, self.size))
        elif self._cubic:
            self._reno_like += CUBIC_ALPHA
            ahead_s = now_s + period_s - self._origin - self._origin_delay_s
            target = self._largest + CUBIC_C * ahead_s**3
            grown = max(self.size, self._reno_like, min(target, 1.5 * self.size))
        else:
            grown = self.size + 1.0
        self.size = max(self.size, min(grown, self._limit))

    def on_loss(self, now_s: float, ahead: int) -> None:
        """Record that the flight sent until ``now_s`` lost segments, the first after ``ahead`` others.

        In slow start those have opened the window by as much when the loss is found.
        """
        if self.size < self.threshold:
            self.size += ahead
        if self._cubic:
            converging = self.size < self._largest
            self._largest = self.size * (1.0 + CUBIC_BETA) / 2.0 if converging else self.size
            self.size = max(LEAST_WINDOW_SEGMENTS, self.size * CUBIC_BETA)
            self._origin_delay_s = max(0.0, (self._largest - self.size) / CUBIC_C) ** (1.0 / 3.0)
            self._origin = now_s
            self._reno_like = self.size
        else:
            self.size = max(LEAST_WINDOW_SEGMENTS, self.size * RENO_BETA)
        self.threshold = self.size

    def on_timeout(self) -> None:
        """Restart from one segment (RFC 5681, section 3.1)."""
        self.size = 1.0


def lossy_transfer(
    payload_bytes: int,
    rate_bps: float,
    rtt_s: float,
    loss: float,
    draw: Draw,
    congestion: Congestion = "cubic",
    window_bytes: float = INITIAL_WINDOW_BYTES,
    *,
    queue_round_trips: float = 1.0,
) -> LossyResult:
    """Return the time, the retransmissions and the window of a transfer over a lossy link.

    Parameters
    ----------
    payload_bytes, rate_bps, rtt_s, window_bytes : as for ``tcp_model.data_time``.
    loss : probability that a packet is lost, in [0, 1).
    draw : uniforms in (0, 1); called once if nothing is lost and never when ``loss`` is 0.
    congestion : ``"cubic"`` or ``"reno"``.
    queue_round_trips : what the bottleneck's queue holds, in bandwidth-delay products; the window grows no
        further than the link and this queue hold.

    Raises
    ------
    ValueError : as ``data_time``, and for a loss or congestion control that does not exist.
    TransferFailedError : if one packet is lost so often that TCP gives up.
    """
    count = segments(payload_bytes)
    if loss == 0.0 or count == 0:
        seconds, window = data_time(payload_bytes, rate_bps, rtt_s, window_bytes)
        return LossyResult(seconds, 0, window)
    if not 0.0 < loss < 1.0:
        raise ValueError(f"loss is a probability in [0, 1), not {loss!r}; model a dead link as an outage")
    first = int(math.log(draw()) / math.log1p(-loss))
    if first >= count:
        seconds, window = data_time(payload_bytes, rate_bps, rtt_s, window_bytes)
        return LossyResult(seconds, 0, window)
    if congestion not in ("cubic", "reno"):
        raise ValueError(f"unknown congestion control {congestion!r}; write 'cubic' or 'reno'")
    gaps = _Gaps(loss, draw, first)
    return _by_flights(
        payload_bytes,
        rate_bps,
        rtt_s,
        gaps,
        congestion,
        window_bytes=window_bytes,
        queue_round_trips=queue_round_trips,
    )


def _by_flights(
    payload_bytes: int,
    rate_bps: float,
    rtt_s: float,
    gaps: _Gaps,
    congestion: Congestion,
    *,
    window_bytes: float,
    queue_round_trips: float,
) -> LossyResult:
    count = segments(payload_bytes)
    segment_s = SEGMENT_PAYLOAD_BYTES / goodput(rate_bps)
    period_s = ack_clock_period(rate_bps, rtt_s)
    link_holds = max(1.0, period_s / segment_s)
    window = _Window(
        max(1.0, window_bytes / SEGMENT_PAYLOAD_BYTES), link_holds * (1.0 + queue_round_trips), congestion
    )
    # The last segment is rarely full; the others always are.
    short_by_s = (count * SEGMENT_PAYLOAD_BYTES - payload_bytes) / SEGMENT_PAYLOAD_BYTES * segment_s
    left = count
    now_s = 0.0
    retransmitted = 0
    while True:
        flight = min(int(window.size), left)
        ahead = gaps.left
        lost, tail_lost = gaps.lost_in(flight)
        retransmitted += lost
        if flight < left:
            now_s += max(period_s, flight * segment_s)
            left -= flight - lost
            if lost:
                window.on_loss(now_s, ahead)
            else:
                window.on_flight(now_s, period_s)
            continue
        now_s += flight * segment_s - short_by_s
        if not lost:
            break
        window.on_loss(now_s, ahead)
        left = lost
        if not tail_lost:
            short_by_s = 0.0
            now_s += period_s
            continue
        delay_s, resent = _tail_repair(flight, segment_s, rtt_s, gaps, window)
        now_s += delay_s
        retransmitted += resent - 1
        left -= 1
        if left == 0:
            break
        # The acknowledgement of the tail reveals the other holes, a round trip later.
        short_by_s = 0.0
        now_s += period_s
    return LossyResult(now_s, retransmitted, window.size * SEGMENT_PAYLOAD_BYTES)


def _tail_repair(
    flight: int, segment_s: float, rtt_s: float, gaps: _Gaps, window: _Window
) -> tuple[float, int]:
    """Send the last segment until it arrives; return the delay and how often it was sent again.

    A flight of one waits for the retransmission time-out at once: the probe of RFC 8985 allows for the
    delayed acknowledgement of a lone segment, which takes it beyond the time-out.
    """
    timeout_s = retransmission_timeout(rtt_s)
    delay_s = (timeout_s if flight == 1 else min(2.0 * rtt_s, timeout_s)) + segment_s
    sent = 1
    while gaps.lost_in(1)[0]:
        if sent > MAX_BACKOFFS:
            raise TransferFailedError(f"the last segment was lost {sent} times over; the link loses too much")
        delay_s += timeout_s + segment_s
        timeout_s *= 2.0
        sent += 1
        window.on_timeout()
    return delay_s, sent


def handshake_time(rtt_s: float, rate_bps: float, handshakes: int, loss: float, draw: Draw) -> float:
    """Return the seconds that the opening of a connection takes.

    Parameters
    ----------
    rtt_s, rate_bps : as for ``tcp_model.data_time``.
    handshakes : 0 on an open connection, 1 for TCP, 2 with TLS 1.3.
    loss : probability that a packet is lost, in [0, 1), in each direction.
    draw : uniforms in (0, 1); called once if nothing is lost, never when ``loss`` or ``handshakes`` is 0.

    Raises
    ------
    TransferFailedError : if a packet is lost so often that TCP gives up.

    A lost SYN, or its lost answer, costs 1 s, then 2 s and so on. The messages of TLS are single flights
    whose loss costs the retransmission time-out, doubling.
    """
    if handshakes < 0:
        raise ValueError(f"handshakes is a count, not {handshakes}; write 0 for an open connection")
    seconds = handshakes * small_round_trip(rate_bps, rtt_s)
    if handshakes == 0 or loss == 0.0:
        return seconds
    if not 0.0 < loss < 1.0:
        raise ValueError(f"loss is a probability in [0, 1), not {loss!r}; model a dead link as an outage")
    first = int(math.log(draw()) / math.log1p(-loss))
    if first >= 2 * handshakes:
        return seconds
    gaps = _Gaps(loss, draw, first)
    timeout_s = SYN_TIMEOUT_S
    for _ in range(handshakes):
        sent = 1
        while gaps.lost_in(2)[0]:
            if sent > MAX_BACKOFFS:
                raise TransferFailedError(f"a handshake was lost {sent} times over; the link loses too much")
            seconds += timeout_s
            timeout_s *= 2.0
            sent += 1
        timeout_s = retransmission_timeout(rtt_s)
    return seconds


def frame_draws(round_key: int, number: int, first: int) -> Callable[[], float]:
    """Return the source of uniforms in (0, 1) of frame ``number`` in a device's round, from ``first`` on.

    Frames are counted in both directions together, in the order of their sending. The key is ``hash(link key,
    device, round, number)``, with the link key of the stream ``"link", "frames"``, so what is drawn for a
    frame depends on nothing but its place in the device's round, on either clock.
    """
    return uniform_source(hashed_bits_scalar(round_key, number), first)


def frame_jitter(round_key: int, number: int, mean_s: float) -> float:
    """Return the jitter of frame ``number`` in a device's round: exponential, of ``mean_s`` seconds."""
    return -mean_s * math.log(frame_draws(round_key, number, JITTER)())
