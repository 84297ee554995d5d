"""How long TCP takes to carry a message, in closed form, and what it adds to the bytes.

The model is flow-level: it knows slow start, the acknowledgement clock and the handshakes, and nothing of
single packets. For S payload bytes over a link of C bit/s both ways with round trip R seconds::

    g  = C/8 * 1448/1500              goodput, bytes/s
    Re = R + 12000/C + 480/C          period of the acknowledgement clock
    rs = R + 960/C                    round trip of small packets
    while rem > w and w/g < Re:       slow start: a window leaves, then its acknowledgements are awaited
        t += Re; rem -= w; w *= 2
    T  = h*rs + t + rem/g + rs        h handshakes, the data, then the answer

Slow start and the idle restart are those of RFC 5681 (sections 3.1 and 4.1) with the initial window of
RFC 6928. :func:`data_time` is the middle of it, ``t + rem/g``: the time from the first to the last byte
*leaving*, which is what occupies a link. Callers add the propagation that they need.

One rate serves both directions: the 480/C of an acknowledgement on a much slower return path is
underestimated by as much as that path is slower.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

SEGMENT_PAYLOAD_BYTES = 1448
"""Payload of a full segment: 1500 bytes less IPv4 (20), TCP (20) and its timestamp option (12)."""
PACKET_BYTES = 1500
"""A full packet on the wire."""
SEGMENT_HEADER_BYTES = PACKET_BYTES - SEGMENT_PAYLOAD_BYTES
"""IP and TCP headers of one data segment."""
SYN_BYTES = 60
"""IPv4 and TCP headers of a SYN with its 20 bytes of options (MSS, SACK, timestamp, window scale)."""
SYN_ACK_BYTES = 60
"""The answer carries the same options."""
PURE_ACK_BYTES = 52
"""An acknowledgement without data: IPv4, TCP and the timestamp option."""
HANDSHAKE_SENT_BYTES = SYN_BYTES + PURE_ACK_BYTES
"""What the side that opens the connection sends."""
HANDSHAKE_RECEIVED_BYTES = SYN_ACK_BYTES
"""What it receives."""
SEGMENTS_PER_ACK = 2
"""Delayed acknowledgements: one for every second full segment (RFC 5681, section 4.2)."""
SMALL_PACKET_BYTES = 60
"""Size taken for a packet without data where its time matters."""
INITIAL_WINDOW_SEGMENTS = 10
"""RFC 6928."""
INITIAL_WINDOW_BYTES = INITIAL_WINDOW_SEGMENTS * SEGMENT_PAYLOAD_BYTES
RTO_FLOOR_S = 0.2
"""Least margin of the retransmission time-out above the round trip; Linux's (RFC 6298 asks for 1 s)."""

WIRE_BYTES_PER_PAYLOAD_BYTE = PACKET_BYTES / SEGMENT_PAYLOAD_BYTES

_PAYLOAD_BYTES_PER_BIT = SEGMENT_PAYLOAD_BYTES / PACKET_BYTES / 8
_CLOCK_BITS = 8 * (PACKET_BYTES + SMALL_PACKET_BYTES)
_SMALL_ROUND_TRIP_BITS = 8 * 2 * SMALL_PACKET_BYTES

FloatArray = npt.NDArray[np.float64]
Real = TypeVar("Real", float, FloatArray)
"""One value or many."""


def goodput(rate_bps: Real) -> Real:
    """Return the payload bytes/s that full packets carry on a link of ``rate_bps`` bit/s."""
    return rate_bps * _PAYLOAD_BYTES_PER_BIT


def ack_clock_period(rate_bps: Real, rtt_s: Real) -> Real:
    """Return the seconds between a data packet's departure and the arrival of its acknowledgement."""
    return rtt_s + _CLOCK_BITS / rate_bps


def small_round_trip(rate_bps: float, rtt_s: float) -> float:
    """Return the seconds in which a packet without data goes there and another comes back."""
    return rtt_s + _SMALL_ROUND_TRIP_BITS / rate_bps


def data_time(
    payload_bytes: float, rate_bps: float, rtt_s: float, window_bytes: float = INITIAL_WINDOW_BYTES
) -> tuple[float, float]:
    """Return the time from the first to the last byte leaving, and the window afterwards.

    Parameters
    ----------
    payload_bytes : bytes of the message, >= 0.
    rate_bps : rate of the link, bits/s, > 0.
    rtt_s : round trip of the idle link, seconds, >= 0.
    window_bytes : congestion window at the start, > 0; the initial window on a new or idle connection.

    Returns
    -------
    (seconds, window in bytes). In slow start the window grows by what is acknowledged (RFC 5681,
    equation 2), so the last flight adds its own size; a window that fills the link stays as it is, which
    bounds it by twice the bandwidth-delay product (or the window given).

    Raises
    ------
    ValueError : for a rate or a window that is not positive, or a negative payload.
    """
    if not (rate_bps > 0.0 and window_bytes > 0.0 and payload_bytes >= 0.0):
        raise _bad_arguments(payload_bytes, rate_bps, window_bytes)
    bytes_per_s = rate_bps * _PAYLOAD_BYTES_PER_BIT
    period_s = rtt_s + _CLOCK_BITS / rate_bps
    left = payload_bytes
    window = window_bytes
    stalled_s = 0.0
    while left > window and window / bytes_per_s < period_s:
        stalled_s += period_s
        left -= window
        window *= 2.0
    seconds = stalled_s + left / bytes_per_s
    if window / bytes_per_s < period_s:
        window += left
    return seconds, window


def data_time_array(
    payload_bytes: FloatArray,
    rate_bps: FloatArray,
    rtt_s: FloatArray,
    window_bytes: float | FloatArray = INITIAL_WINDOW_BYTES,
) -> FloatArray:
    """Return the seconds of :func:`data_time` for many messages, float64 [n], equal to them bit for bit."""
    bytes_per_s, period_s = goodput(rate_bps), ack_clock_period(rate_bps, rtt_s)
    left = np.array(payload_bytes, dtype=np.float64)
    window = window_bytes
    stalled_s = np.zeros(len(left))
    while (slow := (left > window) & (window / bytes_per_s < period_s)).any():
        np.add(stalled_s, period_s, out=stalled_s, where=slow)
        np.subtract(left, window, out=left, where=slow)
        # A message that has left slow start never returns to it: a larger window fills its link all the more.
        window = window * 2.0
    return np.asarray(stalled_s + left / bytes_per_s)


def retransmission_timeout(rtt_s: Real, deviation_s: float = 0.0) -> Real:
    """Return the retransmission time-out of a connection whose round trip has settled, in seconds.

    RFC 6298, equation 2.3, ``SRTT + max(floor, 4*RTTVAR)``, the floor of 200 ms being Linux's.

    Parameters
    ----------
    rtt_s : smoothed round trip.
    deviation_s : its mean deviation, RTTVAR.
    """
    return rtt_s + max(RTO_FLOOR_S, 4.0 * deviation_s)


def window_after_idle(window_bytes: float, idle_s: float, rto_s: float) -> float:
    """Return the window, in bytes, of a connection that was silent for ``idle_s`` seconds.

    Longer than the retransmission time-out and it restarts from the initial window, or from the window it
    had if that is smaller (RFC 5681, section 4.1).
    """
    if idle_s > rto_s:
        return min(window_bytes, INITIAL_WINDOW_BYTES)
    return window_bytes


def segments(payload_bytes: int) -> int:
    """Return the number of data segments that carry ``payload_bytes`` bytes; none for an empty message."""
    return -(-payload_bytes // SEGMENT_PAYLOAD_BYTES)


def tcp_ip_bytes(payload_bytes: int) -> int:
    """Return the IP and TCP header bytes of the data segments of a message."""
    return segments(payload_bytes) * SEGMENT_HEADER_BYTES


def ack_bytes(payload_bytes: int) -> int:
    """Return the bytes of pure acknowledgements that a message draws from its receiver.

    One for every second segment, and one for the last segment of an odd number.
    """
    return -(-segments(payload_bytes) // SEGMENTS_PER_ACK) * PURE_ACK_BYTES


def wire_bits(payload_bytes: int) -> int:
    """Return the bits of the data segments of a message, headers included."""
    return 8 * (payload_bytes + tcp_ip_bytes(payload_bytes))


def _bad_arguments(payload_bytes: float, rate_bps: float, window_bytes: float) -> ValueError:
    if not rate_bps > 0.0:
        return ValueError(
            f"a link's rate is positive bits/s, not {rate_bps!r}; model a dead link as an outage"
        )
    if not window_bytes > 0.0:
        return ValueError(
            f"a congestion window is positive bytes, not {window_bytes!r}; "
            f"a new connection has {INITIAL_WINDOW_BYTES}"
        )
    if math.isnan(payload_bytes):
        return ValueError("payload_bytes is not a number")
    return ValueError(f"a message has 0 or more bytes, not {payload_bytes!r}")
