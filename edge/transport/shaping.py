"""Shaped links: a fast host talks to the coordinator as a slow device would.

What a device sends and receives passes a token bucket of the link's rate and is late by half a round trip.
The bucket is filled as TCP fills a link: after a pause it starts from the initial window, by the same formula
as the simulated link (:mod:`edge.transport.tcp_model`). A radio that was idle for longer than its tail has to
be promoted first. Losses, jitter, outages and changing rates are not imitated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge.transport.tcp_model import (
    INITIAL_WINDOW_BYTES,
    data_time,
    retransmission_timeout,
    small_round_trip,
    window_after_idle,
)


@dataclass(frozen=True, slots=True)
class LinkShape:
    """What a link is made to look like: rates in bits/s, times in seconds.

    ``promotion_s`` is what an idle radio takes to be ready, ``tail_s`` how long it stays up after an
    activity.
    """

    down_bps: float
    up_bps: float
    rtt_s: float
    promotion_s: float = 0.0
    tail_s: float = 0.0


class Radio:
    """The radio of a device, which both directions of its link share."""

    __slots__ = ("_promotion_s", "_tail_s", "_until_s")

    def __init__(self, promotion_s: float, tail_s: float) -> None:
        self._promotion_s = promotion_s
        self._tail_s = tail_s
        self._until_s = -math.inf

    def ready_s(self, now_s: float) -> float:
        """Return when the radio is ready for what is wanted at ``now_s``."""
        return now_s if now_s <= self._until_s else now_s + self._promotion_s

    def active_until(self, when_s: float) -> None:
        """Take note of an activity that ends at ``when_s``."""
        self._until_s = max(self._until_s, when_s + self._tail_s)


class Lane:
    """One direction of a shaped link.

    Parameters
    ----------
    rate_bps : its rate, bits/s.
    rtt_s : round trip of the link, seconds.
    radio : what it goes over.
    """

    __slots__ = ("_last_s", "_late_s", "_radio", "_rate_bps", "_rtt_s", "_window_bytes", "free_s")

    def __init__(self, rate_bps: float, rtt_s: float, radio: Radio | None = None) -> None:
        self._radio = Radio(0.0, 0.0) if radio is None else radio
        self._rate_bps = rate_bps
        self._rtt_s = rtt_s
        self._late_s = 0.5 * small_round_trip(rate_bps, rtt_s)
        self._window_bytes = float(INITIAL_WINDOW_BYTES)
        self._last_s = -math.inf
        self.free_s = 0.0
        """When the last byte will have left, and the next one may."""

    def carry(self, size: int, now_s: float) -> float:
        """Put ``size`` bytes on the lane at ``now_s``; return when their last one arrives, always later.

        Both times are absolute seconds.
        """
        idle_s = now_s - self.free_s
        if idle_s > 0.0:
            timeout_s = retransmission_timeout(self._rtt_s)
            self._window_bytes = window_after_idle(self._window_bytes, idle_s, timeout_s)
        seconds, self._window_bytes = data_time(size, self._rate_bps, self._rtt_s, self._window_bytes)
        self.free_s = max(self.free_s, self._radio.ready_s(now_s)) + seconds
        # Strictly later than what came before, whatever rounding does: what arrives stays in order.
        arrival_s = self.free_s + self._late_s
        self._last_s = arrival_s if arrival_s > self._last_s else math.nextafter(self._last_s, math.inf)
        self._radio.active_until(self._last_s)
        return self._last_s


class ShapedLink:
    """Both directions of one device's link."""

    __slots__ = ("down", "up")

    def __init__(self, shape: LinkShape) -> None:
        radio = Radio(shape.promotion_s, shape.tail_s)
        self.down = Lane(shape.down_bps, shape.rtt_s, radio)
        self.up = Lane(shape.up_bps, shape.rtt_s, radio)
