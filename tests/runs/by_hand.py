"""The arithmetic of ``ideal_wire`` and of frames, written down a second time."""

from __future__ import annotations

from math import prod

DOWN_BPS, UP_BPS, RTT_S = 10e6, 2e6, 0.1
WINDOW_BYTES = 14_480
SEGMENT_BYTES, PACKET_BYTES = 1448, 1500


def leaving_s(frame_bytes: int, rate_bps: float, rtt_s: float = RTT_S) -> float:
    """Return the time from the first to the last byte leaving: slow start, then the link's rate."""
    goodput = rate_bps / 8 * SEGMENT_BYTES / PACKET_BYTES
    period_s = rtt_s + (12_000 + 480) / rate_bps
    window, left, seconds = WINDOW_BYTES, frame_bytes, 0.0
    while left > window and window / goodput < period_s:
        seconds += period_s
        left -= window
        window *= 2
    return seconds + left / goodput


def small_round_trip_s(rate_bps: float) -> float:
    return RTT_S + 960 / rate_bps


def down_s(frame_bytes: int) -> float:
    """Return how long a frame takes to a device, from its first byte to the arrival of its last."""
    return leaving_s(frame_bytes, DOWN_BPS) + small_round_trip_s(DOWN_BPS) / 2


def up_s(frame_bytes: int) -> float:
    """Return how long a frame takes from a device."""
    return leaving_s(frame_bytes, UP_BPS) + small_round_trip_s(UP_BPS) / 2


def array_bytes(name: str, item_bytes: int, *shape: int) -> int:
    """Return how many bytes of a frame an array takes, with its name (of less than 32 letters)."""
    body = 2 + 4 * len(shape) + item_bytes * prod(shape)
    assert body not in (1, 2, 4, 8, 16), "msgpack has shorter headers for these"
    header = 3 if body < 256 else 4 if body < 65_536 else 6
    return 1 + len(name) + header + body


def frame_bytes(run_id: str, *arrays: int, small_fields: int) -> int:
    """Return the length of a frame of a round below 128.

    Parameters
    ----------
    run_id : names the run.
    arrays : sizes from :func:`array_bytes`; none for a message that carries no arrays.
    small_fields : how many whole numbers below 128 it has besides version, type and round.
    """
    head = 3 + 1 + len(run_id) + 1
    return head + small_fields + (1 + sum(arrays) if arrays else 0)
