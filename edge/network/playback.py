"""A recorded link, played back: how long a transfer takes on a rate trace."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from device_profiles.traces import Direction as TraceDirection
from device_profiles.traces import RateTrace
from edge.core.vocabulary import Direction
from edge.network.tcp import (
    INITIAL_WINDOW_BYTES,
    PACKET_BYTES,
    SEGMENT_PAYLOAD_BYTES,
    SMALL_PACKET_BYTES,
    WIRE_BYTES_PER_PAYLOAD_BYTE,
)

_WIRE_BITS_PER_PAYLOAD_BYTE = 8.0 * WIRE_BYTES_PER_PAYLOAD_BYTE
# A data packet and its acknowledgement, in payloads of a data packet at the same rate.
_CLOCK_SEGMENTS = 1.0 + SMALL_PACKET_BYTES / PACKET_BYTES

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def _trace_direction(direction: Direction) -> TraceDirection:
    if direction is Direction.UP:
        return "up"
    if direction is Direction.DOWN:
        return "down"
    raise ValueError(f"a transfer goes up or down, not {direction!r}")


class TracePlayback:
    """Links that all follow one trace, each from a moment of its own.

    Parameters
    ----------
    trace : the recording; it repeats for ever.
    offsets_s : float64[n], where in the trace each link is at time 0, seconds >= 0; methods name a link by
        its ``slot``, its place in this array. Different offsets keep a fleet from fading in step.

    Raises
    ------
    ValueError : for offsets that are negative or not finite.
    """

    __slots__ = ("_mean_bps", "_offsets_s", "_trace")

    def __init__(self, trace: RateTrace, offsets_s: FloatArray) -> None:
        if not bool((np.isfinite(offsets_s) & (offsets_s >= 0.0)).all()):
            raise ValueError("offsets_s are seconds, finite and 0 or more")
        self._trace = trace
        self._offsets_s: list[float] = offsets_s.tolist()
        self._mean_bps = {
            direction: trace.bits_until(trace.period_s, _trace_direction(direction)) / trace.period_s
            for direction in (Direction.DOWN, Direction.UP)
        }

    def prepare(self, slots: npt.NDArray[np.int64], t_s: float) -> None:
        """Do nothing: a trace is known beforehand."""

    def rtt_s(self, slot: int, t_s: float) -> float:
        """Return the round trip of a link at ``t_s``, seconds."""
        return self._trace.rtt_at(t_s + self._offsets_s[slot])

    def loss(self, slot: int, t_s: float) -> float:
        """Return the probability of losing a packet at ``t_s``."""
        return self._trace.loss_at(t_s + self._offsets_s[slot])

    def pace(self, slot: int, direction: Direction, t_s: float) -> tuple[float, float]:
        """Return the factor on the trace's mean rate at ``t_s``, and until when it holds."""
        offset_s = self._offsets_s[slot]
        rate_bps, until_s = self._trace.step_at(t_s + offset_s, _trace_direction(direction))
        return rate_bps / self._mean_bps[direction], max(until_s - offset_s, math.nextafter(t_s, math.inf))

    def carry_s(self, slot: int, direction: Direction, start_s: float, steady_s: float) -> float:
        """Return the seconds that a transfer takes which takes ``steady_s`` at the trace's mean rate."""
        at_s = start_s + self._offsets_s[slot]
        bits = steady_s * self._mean_bps[direction]
        return self._trace.time_for_bits(at_s, bits, _trace_direction(direction)) - at_s

    def alone_time(
        self,
        slot: int,
        direction: Direction,
        payload_bytes: float,
        rate_bps: float,
        rtt_s: float,
        start_s: float,
        *,
        window_bytes: float = INITIAL_WINDOW_BYTES,
    ) -> tuple[float, float]:
        """Return the time from the first to the last byte leaving, and the window afterwards.

        ``tcp_model.data_time`` with the link's rate taken from the trace: a window goes out as fast as the
        trace carries it, then waits for the acknowledgement of its first packet, whose period is the round
        trip of the moment and the time of a packet and an acknowledgement at the pace of that window.

        Parameters
        ----------
        slot, direction : which link, which way.
        payload_bytes : bytes of the message, >= 0.
        rate_bps, rtt_s : not used, the trace has its own; here so that a trace can stand in for
            ``LinkConditions``.
        start_s : absolute time at which the first byte leaves, seconds >= 0.
        window_bytes : congestion window at the start, > 0.

        Raises
        ------
        ValueError : for a payload, start or window out of its range.
        """
        if not (payload_bytes >= 0.0 and start_s >= 0.0 and window_bytes > 0.0):
            raise ValueError(
                f"payload_bytes and start_s are 0 or more and window_bytes is above 0; "
                f"got {payload_bytes!r}, {start_s!r}, {window_bytes!r}"
            )
        trace, way = self._trace, _trace_direction(direction)
        begin_s = t_s = start_s + self._offsets_s[slot]
        left, window = payload_bytes, window_bytes
        while True:
            flight = min(left, window)
            sent_s = trace.time_for_bits(t_s, flight * _WIRE_BITS_PER_PAYLOAD_BYTE, way)
            if flight == 0.0:
                return sent_s - begin_s, window
            segment_s = (sent_s - t_s) * (SEGMENT_PAYLOAD_BYTES / flight)
            period_s = trace.rtt_at(t_s) + segment_s * _CLOCK_SEGMENTS
            filling = window * (sent_s - t_s) >= period_s * flight
            if left <= window:
                return sent_s - begin_s, window if filling else window + left
            if filling:
                end_s = trace.time_for_bits(t_s, left * _WIRE_BITS_PER_PAYLOAD_BYTE, way)
                return end_s - begin_s, window
            t_s += period_s
            left -= window
            window *= 2.0

    def carry_times(
        self, slots: IntArray, direction: Direction, start_s: FloatArray, steady_s: FloatArray
    ) -> FloatArray:
        """Return :meth:`carry_s` of many transfers, float64 [m], bit for bit; ``inf`` remains ``inf``."""
        seconds = np.full(len(slots), np.inf)
        for at in np.flatnonzero(steady_s < np.inf).tolist():
            seconds[at] = self.carry_s(slots.item(at), direction, start_s.item(at), steady_s.item(at))
        return seconds

    def alone_times(
        self,
        slots: IntArray,
        direction: Direction,
        payload_bytes: FloatArray,
        rate_bps: FloatArray,
        rtt_s: FloatArray,
        start_s: FloatArray,
    ) -> FloatArray:
        """Return the seconds of :meth:`alone_time` of many transfers, float64 [m], bit for bit."""
        columns = (slots, payload_bytes, rate_bps, rtt_s, start_s)
        return np.array(
            [
                self.alone_time(slot, direction, payload, rate, rtt, start)[0]
                for slot, payload, rate, rtt, start in zip(*(c.tolist() for c in columns), strict=True)
            ]
        )
