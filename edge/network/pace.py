"""How long a transfer takes on a link whose rate changes while it goes on.

A *pace* says of a moment which factor applies to the link's mean rate, 0 where the link is down, and until
when that holds. Everything that changes about a link's rate over time comes down to one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import Direction
from edge.network.loss import TransferFailedError
from edge.network.tcp import (
    ack_clock_period,
    data_time,
    goodput,
    retransmission_timeout,
    window_after_idle,
)

Pace = Callable[[float], tuple[float, float]]
"""Of an absolute time, seconds: the factor on the mean rate, and until when it holds (after that time)."""


class Conditions(Protocol):
    """What changes about the links of a round over time; links are named by their slot."""

    def prepare(self, slots: npt.NDArray[np.int64], t_s: float) -> None:
        """Get ready for transfers of ``slots`` about ``t_s``."""

    def pace(self, slot: int, direction: Direction, t_s: float) -> tuple[float, float]:
        """Return the factor on the link's mean rate at ``t_s``, 0 if it is down, and until when it holds."""

    def carry_s(self, slot: int, direction: Direction, start_s: float, steady_s: float) -> float:
        """Return the seconds that a transfer takes which takes ``steady_s`` at the link's mean rate."""

    def alone_time(
        self,
        slot: int,
        direction: Direction,
        payload_bytes: float,
        rate_bps: float,
        rtt_s: float,
        start_s: float,
    ) -> tuple[float, float]:
        """Return the seconds from the first to the last byte leaving, and the window afterwards."""


class _Silence:
    """How long a link has been down without a break; gives up when that is longer than TCP waits."""

    __slots__ = ("_limit_s", "_start_s", "seconds")

    def __init__(self, start_s: float, limit_s: float) -> None:
        self._start_s = start_s
        self._limit_s = limit_s
        self.seconds = 0.0

    def lasts(self, from_s: float, until_s: float) -> None:
        """Note that the link is down until ``until_s``; raise where TCP has given up before."""
        before_s = self.seconds
        self.seconds += until_s - from_s
        if self.seconds > self._limit_s:
            at_s = from_s + self._limit_s - before_s
            raise TransferFailedError(
                f"the link was down for more than {self._limit_s:.0f} s", after_s=at_s - self._start_s
            )


def carry(pace: Pace, start_s: float, steady_s: float, limit_s: float) -> float:
    """Return the seconds that a transfer takes which takes ``steady_s`` at the link's mean rate.

    Parameters
    ----------
    pace : of the link.
    start_s : absolute time at which the first byte leaves.
    limit_s : how long a silence TCP bears; ``inf`` for any.

    Raises
    ------
    TransferFailedError : for a silence longer than that; it says after how many seconds from the start.
    """
    left_s, t_s = steady_s, start_s
    silence = _Silence(start_s, limit_s)
    while True:
        factor, until_s = pace(t_s)
        if factor == 0.0:
            silence.lasts(t_s, until_s)
            t_s = until_s
            continue
        silence.seconds = 0.0
        needed_s = left_s / factor
        if t_s + needed_s <= until_s:
            return (t_s - start_s) + needed_s
        left_s -= (until_s - t_s) * factor
        t_s = until_s


def alone(
    pace: Pace,
    payload_bytes: float,
    rate_bps: float,
    rtt_s: float,
    start_s: float,
    window_bytes: float,
    limit_s: float,
) -> tuple[float, float]:
    """Return the time from the first to the last byte leaving, and the window afterwards.

    As ``tcp_model.data_time`` at the rate of the moment. A window that does not fill the link waits for its
    acknowledgements as there, whatever the rate does meanwhile; beyond that the transfer goes at the rate of
    each moment. It stands still while the link is down, and restarts from the initial window after a silence
    longer than the retransmission time-out. Arguments as for :func:`carry` and ``data_time``.
    """
    left, window, t_s = payload_bytes, window_bytes, start_s
    silence = _Silence(start_s, limit_s)
    while True:
        factor, until_s = pace(t_s)
        if factor == 0.0:
            silence.lasts(t_s, until_s)
            t_s = until_s
            continue
        if silence.seconds > 0.0:
            window = window_after_idle(window, silence.seconds, retransmission_timeout(rtt_s))
            silence.seconds = 0.0
        rate_now_bps = rate_bps * factor
        seconds, end_window = data_time(left, rate_now_bps, rtt_s, window)
        if t_s + seconds <= until_s:
            return (t_s - start_s) + seconds, end_window
        bytes_per_s, period_s = goodput(rate_now_bps), ack_clock_period(rate_now_bps, rtt_s)
        while t_s < until_s and left > window and window / bytes_per_s < period_s:
            t_s += period_s
            left -= window
            window *= 2.0
        if t_s < until_s:
            left = max(0.0, left - (until_s - t_s) * bytes_per_s)
            t_s = until_s
