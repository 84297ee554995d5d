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

:func:`lossy_transfer` computes one transfer, :func:`lossy_transfers` many, from the same draws and with the
same results bit for bit. There the flights of all transfers advance together as arrays, from loss to loss
where many flights lie between; a transfer whose tail is lost, and the few that are left when most have ended,
continue one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.core.errors import RecfleetError
from edge.core.rng import hashed_bits, hashed_bits_scalar, hashed_uniform, uniform_source
from edge.network.tcp import (
    INITIAL_WINDOW_BYTES,
    SEGMENT_PAYLOAD_BYTES,
    ack_clock_period,
    data_time,
    data_time_array,
    goodput,
    retransmission_timeout,
    segments,
    small_round_trip,
)

Congestion = Literal["cubic", "reno"]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
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
_MOST_DRAWS: Final = 1 << 20
"""Draws for transfers that are computed together, which bounds the memory that they take."""
_FEWEST_TOGETHER: Final = 48
"""Fewer transfers than this are computed faster one by one."""
_FLIGHTS_AHEAD: Final = 12
"""Flights without a loss that are followed at once."""
_LOG_ERROR: Final = 1e-12
"""Relative, of a quotient of two logarithms: thousands of times that of any library."""
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


class LossyResults(NamedTuple):
    """What many transfers over lossy links took, each field an array [m]."""

    seconds: FloatArray
    """As :attr:`LossyResult.seconds`; ``inf`` where TCP gives up."""
    retransmitted_segments: IntArray
    """0 where TCP gives up."""
    gives_up_s: FloatArray
    """``after_s`` of the :class:`TransferFailedError`; ``nan`` where TCP does not give up."""


class _Gaps:
    """Positions of the lost packets in an endless row of packets: geometric gaps between them."""

    __slots__ = ("_next", "left")

    def __init__(self, following: Callable[[], int], left: int) -> None:
        self._next = following
        """Returns the gap after the next loss, then the one after that, …."""
        self.left = left
        """Packets that pass before the next one is lost."""

    @classmethod
    def drawn(cls, loss: float, draw: Draw, left: int) -> _Gaps:
        """Return gaps of which all but the first, ``left``, are drawn as they are asked for."""
        log_keep = math.log1p(-loss)
        return cls(lambda: int(math.log(draw()) / log_keep), left)

    def lost_in(self, count: int) -> tuple[int, bool]:
        """Send ``count`` packets; return how many are lost and whether the last of them is.

        :attr:`left`, if read before, is how many packets arrive ahead of the first loss.
        """
        lost, ahead = 0, count
        while self.left < ahead:
            ahead -= self.left + 1
            lost += 1
            self.left = self._next()
            if ahead == 0:
                return lost, True
        self.left -= ahead
        return lost, False


class _Window:
    """The congestion window, in segments."""

    __slots__ = (
        "_cubic",
        "_limit",
        "largest",
        "origin_delay_s",
        "origin_s",
        "reno_like",
        "size",
        "threshold",
    )

    def __init__(self, size: float, limit: float, congestion: Congestion) -> None:
        self.size = size
        self.threshold = math.inf
        self._limit = limit
        """The link and its queue hold no more."""
        self._cubic = congestion == "cubic"
        self.largest = 0.0
        """At the last loss."""
        self.origin_s = 0.0
        """Of the last loss, where the cubic curve begins; ``origin_delay_s`` later is its middle."""
        self.origin_delay_s = 0.0
        self.reno_like = 0.0

    def whole_flights(self, room: int, now_s: float, segment_s: float, period_s: float) -> tuple[int, float]:
        """Record flights that were acknowledged whole: as many as have ``room`` packets together.

        The first is sent at ``now_s``. Returns their packets, and when the last of them was acknowledged.
        """
        sent, size = 0, self.size
        while sent + (flight := int(size)) <= room:
            sent += flight
            now_s += max(period_s, flight * segment_s)
            if size < self.threshold:
                grown = min(2.0 * size, self.threshold)
            elif self._cubic:
                self.reno_like += CUBIC_ALPHA
                # Products: powers of numpy differ from those of Python in their last bits on some machines.
                ahead_s = now_s + period_s - self.origin_s - self.origin_delay_s
                target = self.largest + CUBIC_C * (ahead_s * ahead_s * ahead_s)
                grown = max(size, self.reno_like, min(target, 1.5 * size))
            else:
                grown = size + 1.0
            size = max(size, min(grown, self._limit))
        self.size = size
        return sent, now_s

    def on_loss(self, now_s: float, ahead: int) -> None:
        """Record that the flight sent until ``now_s`` lost segments, the first after ``ahead`` others.

        In slow start those have opened the window by as much when the loss is found.
        """
        if self.size < self.threshold:
            self.size += ahead
        if self._cubic:
            converging = self.size < self.largest
            self.largest = self.size * (1.0 + CUBIC_BETA) / 2.0 if converging else self.size
            self.size = max(LEAST_WINDOW_SEGMENTS, self.size * CUBIC_BETA)
            self.origin_delay_s = max(0.0, (self.largest - self.size) / CUBIC_C) ** (1.0 / 3.0)
            self.origin_s = now_s
            self.reno_like = self.size
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
        seconds, end_window = data_time(payload_bytes, rate_bps, rtt_s, window_bytes)
        return LossyResult(seconds, 0, end_window)
    if not 0.0 < loss < 1.0:
        raise ValueError(f"loss is a probability in [0, 1), not {loss!r}; model a dead link as an outage")
    first = int(math.log(draw()) / math.log1p(-loss))
    if first >= count:
        seconds, end_window = data_time(payload_bytes, rate_bps, rtt_s, window_bytes)
        return LossyResult(seconds, 0, end_window)
    if congestion not in ("cubic", "reno"):
        raise ValueError(f"unknown congestion control {congestion!r}; write 'cubic' or 'reno'")
    segment_s = SEGMENT_PAYLOAD_BYTES / goodput(rate_bps)
    period_s = ack_clock_period(rate_bps, rtt_s)
    link_holds = max(1.0, period_s / segment_s)
    window = _Window(
        max(1.0, window_bytes / SEGMENT_PAYLOAD_BYTES), link_holds * (1.0 + queue_round_trips), congestion
    )
    # The last segment is rarely full; the others always are.
    short_by_s = (count * SEGMENT_PAYLOAD_BYTES - payload_bytes) / SEGMENT_PAYLOAD_BYTES * segment_s
    gaps = _Gaps.drawn(loss, draw, first)
    return _by_flights(count, segment_s, period_s, rtt_s, short_by_s, gaps, window)


def _by_flights(
    left: int,
    segment_s: float,
    period_s: float,
    rtt_s: float,
    short_by_s: float,
    gaps: _Gaps,
    window: _Window,
    now_s: float = 0.0,
    retransmitted: int = 0,
) -> LossyResult:
    """Return the result of a transfer of which ``left`` segments are left at ``now_s``."""
    while True:
        passed, now_s = window.whole_flights(min(gaps.left, left - 1), now_s, segment_s, period_s)
        left -= passed
        gaps.left -= passed
        flight = min(int(window.size), left)
        ahead = gaps.left
        lost, tail_lost = gaps.lost_in(flight)
        retransmitted += lost
        if flight < left:
            now_s += max(period_s, flight * segment_s)
            left -= flight - lost
            window.on_loss(now_s, ahead)
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


def lossy_transfers(
    payload_bytes: IntArray,
    rate_bps: FloatArray,
    rtt_s: FloatArray,
    loss: FloatArray,
    keys: npt.NDArray[np.uint64],
    number: int,
    congestion: Congestion = "cubic",
) -> LossyResults:
    """Return the results of :func:`lossy_transfer` for many transfers, equal bit for bit.

    Parameters
    ----------
    payload_bytes, rate_bps, rtt_s, loss : of each transfer, [m].
    keys : uint64 [m], the key of each transfer's device in the round.
    number : of the frame in its device's round; the draws are those of ``frame_draws(key, number, LOSS)``.
    congestion : ``"cubic"`` or ``"reno"``.

    Raises
    ------
    ValueError : as :func:`lossy_transfer`.
    """
    if not bool(((loss >= 0.0) & (loss < 1.0)).all()):
        raise ValueError("loss is a probability in [0, 1); model a dead link as an outage")
    if not bool(((rate_bps > 0.0) & (payload_bytes >= 0)).all()):
        raise ValueError("links have positive rates in bits/s, and messages 0 or more bytes")
    if congestion not in ("cubic", "reno"):
        raise ValueError(f"unknown congestion control {congestion!r}; write 'cubic' or 'reno'")
    transfers = _Transfers(payload_bytes, rate_bps, rtt_s, loss, hashed_bits(keys, number), congestion)
    return transfers.results()


def _whole_gaps(uniform: FloatArray, loss: FloatArray, most: IntArray) -> IntArray:
    """Return ``int(math.log(uniform) / math.log1p(-loss))``, or ``most`` where that is less.

    The logarithms of numpy and of ``math`` differ in their last bits on some machines. Where that could
    decide between two whole numbers, those of ``math`` do.
    """
    gaps = np.minimum(np.log(uniform) / np.log1p(-loss), most + 0.5)
    whole: IntArray = gaps.astype(np.int64)
    for at in np.flatnonzero(np.abs(gaps - np.rint(gaps)) <= _LOG_ERROR * gaps).tolist():
        exact = math.log(uniform.item(at)) / math.log1p(-loss.item(at))
        whole[at] = int(min(exact, most.item(at)))
    return whole


class _Windows:
    """The congestion windows of many transfers: :class:`_Window` as arrays [m], but for time-outs."""

    __slots__ = ("_columns", "_congestion", "_cubic")

    def __init__(self, limit: FloatArray, congestion: Congestion) -> None:
        self._congestion: Congestion = congestion
        self._cubic = congestion == "cubic"
        self._columns = np.zeros((7, len(limit)))
        size, threshold, limits, *_ = self._columns
        size[:], threshold[:], limits[:] = INITIAL_WINDOW_BYTES / SEGMENT_PAYLOAD_BYTES, np.inf, limit

    @property
    def size(self) -> FloatArray:
        return np.asarray(self._columns[0])

    def keep(self, at: IntArray) -> None:
        """Drop all windows but those."""
        self._columns = self._columns[:, at]

    def one(self, i: int) -> _Window:
        """Return window ``i`` alone."""
        size, threshold, limit, largest, origin_s, origin_delay_s, reno_like = self._columns[:, i].tolist()
        window = _Window(size, limit, self._congestion)
        window.threshold, window.largest = threshold, largest
        window.origin_s, window.origin_delay_s, window.reno_like = origin_s, origin_delay_s, reno_like
        return window

    def whole_flights(
        self, room: IntArray, now_s: FloatArray, segment_s: FloatArray, period_s: FloatArray
    ) -> tuple[IntArray, BoolArray]:
        """Do the first flights of :meth:`_Window.whole_flights`, and set ``now_s`` to when they are over.

        Returns how many packets they have, int [m], and where there are no others, bool [m].
        """
        size, threshold, limit, largest, origin_s, origin_delay_s, reno_like = self._columns
        count = min(_FLIGHTS_AHEAD, int((room // size).mean()) + 1)
        sizes = np.empty((count + 1, len(size)))
        sums = np.empty((count + 1, 3, len(size)))  # packets, time and reno's window after each flight
        more = np.empty(sums.shape[1:])
        flight, took_s, more[2] = more[0], more[1], CUBIC_ALPHA
        sizes[0], sums[0, 0], sums[0, 1], sums[0, 2] = size, 0.0, now_s, reno_like
        ahead_s, grown = np.empty_like(size), np.empty_like(size)
        # Only time-outs lead back to slow start, and those are followed one by one: there is no threshold.
        slow = size < threshold
        some_slow = bool(slow.any())
        for done in range(count):
            before = sizes[done]
            np.floor(before, out=flight)
            np.multiply(flight, segment_s, out=took_s)
            np.maximum(took_s, period_s, out=took_s)
            np.add(sums[done], more, out=sums[done + 1])
            if self._cubic:
                np.add(sums[done + 1, 1], period_s, out=ahead_s)
                ahead_s -= origin_s
                ahead_s -= origin_delay_s
                np.multiply(ahead_s, ahead_s, out=grown)
                grown *= ahead_s
                grown *= CUBIC_C
                grown += largest
                np.multiply(before, 1.5, out=ahead_s)
                np.minimum(grown, ahead_s, out=grown)
                np.maximum(grown, sums[done + 1, 2], out=grown)
            else:
                np.add(before, 1.0, out=grown)
            if some_slow:
                np.multiply(before, 2.0, out=grown, where=slow)
            np.minimum(grown, limit, out=grown)
            np.maximum(grown, before, out=sizes[done + 1])
        flights = np.count_nonzero(sums[1:, 0] <= room, axis=0)
        each = np.arange(len(size))
        size[:] = sizes[flights, each]
        sent, now_s[:], reno_like[:] = sums[flights, :, each].T
        return sent.astype(np.int64), flights < count

    def on_losses(self, at: IntArray, now_s: FloatArray, ahead: IntArray) -> None:
        """Do :meth:`_Window.on_loss` at ``at``, int [k]; ``now_s`` and ``ahead`` are of those alone."""
        size, threshold, _, largest, origin_s, origin_delay_s, reno_like = self._columns
        had = size[at]
        had = np.where(had < threshold[at], had + ahead, had)
        if self._cubic:
            highest = np.where(had < largest[at], had * (1.0 + CUBIC_BETA) / 2.0, had)
            left = np.maximum(LEAST_WINDOW_SEGMENTS, had * CUBIC_BETA)
            cubes = np.maximum(0.0, (highest - left) / CUBIC_C)
            # Roots of numpy differ like its powers.
            origin_delay_s[at] = [cube ** (1.0 / 3.0) for cube in cubes.tolist()]
            largest[at], origin_s[at], reno_like[at] = highest, now_s, left
        else:
            left = np.maximum(LEAST_WINDOW_SEGMENTS, had * RENO_BETA)
        size[at] = threshold[at] = left


class _Transfers:
    """Transfers over lossy links, computed together; their arguments are those of :func:`lossy_transfers`."""

    __slots__ = (
        "_congestion",
        "_count",
        "_frame_keys",
        "_loss",
        "_payload_bytes",
        "_rate_bps",
        "_results",
        "_rtt_s",
    )

    def __init__(
        self,
        payload_bytes: IntArray,
        rate_bps: FloatArray,
        rtt_s: FloatArray,
        loss: FloatArray,
        frame_keys: npt.NDArray[np.uint64],
        congestion: Congestion,
    ) -> None:
        self._payload_bytes, self._rate_bps, self._rtt_s, self._loss = payload_bytes, rate_bps, rtt_s, loss
        self._count = -(-payload_bytes // SEGMENT_PAYLOAD_BYTES)
        self._frame_keys = frame_keys
        self._congestion: Congestion = congestion
        count = len(payload_bytes)
        self._results = LossyResults(
            np.full(count, np.inf), np.zeros(count, np.int64), np.full(count, np.nan)
        )

    def results(self) -> LossyResults:
        """Return what the transfers took."""
        loss, count = self._loss, self._count
        lossy = loss > 0.0
        at = np.flatnonzero(lossy)
        first = _whole_gaps(hashed_uniform(self._frame_keys[at], LOSS), loss[at], count[at])
        lossy[at] = first < count[at]
        plain = np.flatnonzero(~lossy)
        self._results.seconds[plain] = data_time_array(
            self._payload_bytes[plain].astype(np.float64), self._rate_bps[plain], self._rtt_s[plain]
        )
        at = np.flatnonzero(lossy)
        # Losses on the way to ``count`` arrivals are negative binomial: three deviations suffice for most.
        mean = count[at] * loss[at] / (1.0 - loss[at])
        drawn = (mean + 3.0 * np.sqrt(mean / (1.0 - loss[at])) + 3.0).astype(np.int64)
        batch = np.cumsum(drawn) // _MOST_DRAWS
        for together in np.split(np.arange(len(at)), np.flatnonzero(np.diff(batch)) + 1):
            if len(together) < _FEWEST_TOGETHER:
                self._one_by_one(at[together])
            else:
                self._together(at[together], drawn[together])
        return self._results

    def _one_by_one(self, at: IntArray) -> None:
        for i in at.tolist():
            draw = uniform_source(self._frame_keys.item(i), LOSS)
            self._record(
                i,
                partial(
                    lossy_transfer,
                    self._payload_bytes.item(i),
                    self._rate_bps.item(i),
                    self._rtt_s.item(i),
                    self._loss.item(i),
                    draw,
                    self._congestion,
                ),
            )

    def _record(self, i: int, compute: Callable[[], LossyResult]) -> None:
        """Record the result of transfer ``i``, or that TCP gave it up."""
        results = self._results
        try:
            results.seconds[i], results.retransmitted_segments[i], _ = compute()
        except TransferFailedError as error:
            results.gives_up_s[i] = error.after_s

    def _together(self, at: IntArray, drawn: IntArray) -> None:
        """Compute transfers ``at``, which lose packets, with so many gaps between losses drawn beforehand.

        Which of the packets that a transfer sends are lost depends on its draws alone: all its packets stand
        in a row, and the transfer is over once as many as it has segments have passed between the losses.
        """
        ends = np.cumsum(drawn)
        first = ends - drawn
        row = np.repeat(np.arange(len(at)), drawn)
        index = np.arange(len(row)) - first[row]
        of_row = at[row]
        gaps = _whole_gaps(
            hashed_uniform(self._frame_keys[of_row], LOSS + index), self._loss[of_row], self._count[of_row]
        )
        passed = np.cumsum(gaps)
        passed -= (passed[first] - gaps[first])[row]
        known = passed[ends - 1] >= self._count[at]
        self._one_by_one(at[~known])
        # The rows of packets stand one behind the other, so that one search finds the losses of all.
        places = passed + index
        stride = int(places.max()) + 1
        places += row * stride
        rows = np.flatnonzero(known)
        self._fly(at[rows], rows * stride, first[rows], places)

    def _fly(self, at: IntArray, sent: IntArray, seen: IntArray, places: IntArray) -> None:
        """Follow transfers ``at`` flight by flight, until few are left.

        ``places`` are those of all losses, increasing, [n]; ``sent`` is the place of the next packet of a
        transfer, ``seen`` the index of its next loss in ``places``.
        """
        count, rate_bps, rtt_s = self._count[at], self._rate_bps[at], self._rtt_s[at]
        segment_s = SEGMENT_PAYLOAD_BYTES / goodput(rate_bps)
        period_s = ack_clock_period(rate_bps, rtt_s)
        windows = _Windows(np.maximum(1.0, period_s / segment_s) * 2.0, self._congestion)
        unfilled = count * SEGMENT_PAYLOAD_BYTES - self._payload_bytes[at]
        short_by_s = unfilled / SEGMENT_PAYLOAD_BYTES * segment_s
        whole = np.stack([at, count, sent, seen, seen])
        times = np.stack([np.zeros(len(at)), short_by_s, segment_s, period_s])
        while whole.shape[1] >= _FEWEST_TOGETHER:
            at, left, sent, seen, first = whole
            now_s, short_by_s, segment_s, period_s = times
            room = np.minimum(places.take(seen) - sent, left - 1)
            passed, eventful = windows.whole_flights(room, now_s, segment_s, period_s)
            left -= passed
            sent += passed
            # The next flight loses packets or is the last; of a transfer that is not as far, nothing is sent.
            flight = np.minimum(windows.size.astype(np.int64), left) * eventful
            end = sent + flight
            seen_then = seen.copy()
            while (more := places.take(seen_then) < end).any():
                seen_then += more
            lost = seen_then - seen
            sending_s = flight * segment_s
            took_s = np.maximum(period_s, sending_s) * eventful
            final = np.flatnonzero(flight == left)
            over = tail_lost = final
            if final.size:
                took_s[final] = sending_s[final] - short_by_s[final]
                over = final[lost[final] == 0]
                tail_lost = final[(lost[final] > 0) & (places[seen_then[final] - 1] == end[final] - 1)]
                self._results.seconds[at[over]] = now_s[over] + took_s[over]
                self._results.retransmitted_segments[at[over]] = seen[over] - first[over]
                for i in tail_lost.tolist():
                    self._resume(whole[:, i], times[:, i], windows.one(i), places)
            now_s += took_s
            hit = np.flatnonzero(lost)
            windows.on_losses(hit, now_s[hit], places[seen[hit]] - sent[hit])
            left -= flight - lost
            sent[:], seen[:] = end, seen_then
            if final.size:
                now_s[final] += period_s[final]
                short_by_s[final] = 0.0
                stays = np.ones(len(at), np.bool_)
                stays[over] = stays[tail_lost] = False
                keep = np.flatnonzero(stays)
                whole, times = whole[:, keep], times[:, keep]
                windows.keep(keep)
        for i in range(whole.shape[1]):
            self._resume(whole[:, i], times[:, i], windows.one(i), places)

    def _resume(self, whole: IntArray, times: FloatArray, window: _Window, places: IntArray) -> None:
        """Compute the rest of one transfer, given as in :meth:`_fly`."""
        i, left, sent, seen, first = whole.tolist()
        now_s, short_by_s, segment_s, period_s = times.tolist()
        following = (places.item(at + 1) - places.item(at) - 1 for at in itertools.count(seen))
        gaps = _Gaps(following.__next__, places.item(seen) - sent)
        self._record(
            i,
            partial(
                _by_flights,
                left,
                segment_s,
                period_s,
                self._rtt_s.item(i),
                short_by_s,
                gaps,
                window,
                now_s,
                seen - first,
            ),
        )


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
    gaps = _Gaps.drawn(loss, draw, first)
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
