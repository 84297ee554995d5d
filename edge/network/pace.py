"""How long a transfer takes on a link whose rate changes while it goes on.

A *pace* says of a moment which factor applies to the link's mean rate, 0 where the link is down, and until
when that holds. Everything that changes about a link's rate over time comes down to one.

:func:`carry` and :func:`alone` compute one transfer, :func:`carry_array` and :func:`alone_array` many. The
array forms do the same operations in the same order, so their results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import Direction
from edge.network.loss import TransferFailedError
from edge.network.tcp import (
    INITIAL_WINDOW_BYTES,
    ack_clock_period,
    data_time,
    data_time_array,
    goodput,
    retransmission_timeout,
    window_after_idle,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Pace = Callable[[float], tuple[float, float]]
"""Of an absolute time, seconds: the factor on the mean rate, and until when it holds (after that time)."""
Paces = Callable[[IntArray, FloatArray], tuple[FloatArray, FloatArray]]
"""The paces of many transfers: of the places of some, int64 [m], and a time of each, float64 [m]."""


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

    def carry_times(
        self, slots: IntArray, direction: Direction, start_s: FloatArray, steady_s: FloatArray
    ) -> FloatArray:
        """Return :meth:`carry_s` of many transfers, float64 [m], bit for bit; ``inf`` remains ``inf``."""

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


def carry_array(paces: Paces, start_s: FloatArray, steady_s: FloatArray) -> FloatArray:
    """Return :func:`carry` of many transfers, for any silence, float64 [m] seconds.

    A ``steady_s`` of ``inf`` remains ``inf``.
    """
    seconds = np.full(len(steady_s), np.inf)
    at = np.flatnonzero(steady_s < np.inf)
    left_s, begin_s = steady_s[at], start_s[at]
    t_s = begin_s
    while at.size:
        factor, until_s = paces(at, t_s)
        up = factor != 0.0
        needed_s = np.divide(left_s, factor, out=np.full(len(at), np.inf), where=up)
        done = up & (t_s + needed_s <= until_s)
        seconds[at[done]] = ((t_s - begin_s) + needed_s)[done]
        more = (~done).nonzero()[0]
        left_s = (left_s - (until_s - t_s) * factor).take(more)
        at, begin_s, t_s = at.take(more), begin_s.take(more), until_s.take(more)
    return seconds


def alone_array(
    paces: Paces, payload_bytes: FloatArray, rate_bps: FloatArray, rtt_s: FloatArray, start_s: FloatArray
) -> FloatArray:
    """Return the seconds of :func:`alone` of many transfers, for any silence, float64 [m].

    All begin with the initial window. A transfer costs a step for every change of its link's pace; those that
    remain after a step go on as smaller arrays.

    Raises
    ------
    ValueError : for a rate that is not positive or a negative payload.
    """
    if not bool(((rate_bps > 0.0) & (payload_bytes >= 0.0)).all()):
        raise ValueError("links have positive rates in bits/s, and messages 0 or more bytes")
    seconds = np.empty(len(payload_bytes))
    at = np.arange(len(payload_bytes))
    rate, rtt, begin_s = rate_bps, rtt_s, start_s
    left, t_s = payload_bytes, start_s
    window: FloatArray = np.full(len(at), float(INITIAL_WINDOW_BYTES))
    silent_s: FloatArray | None = None
    """How long each link has been down; None: none has been."""
    while True:
        factor, until_s = paces(at, t_s)
        up = factor != 0.0
        if silent_s is None and not up.all():
            silent_s = np.zeros(len(at))
        if silent_s is not None:
            idle = up & (silent_s > retransmission_timeout(rtt))
            window = np.where(idle, np.minimum(window, INITIAL_WINDOW_BYTES), window)
            silent_s = np.where(up, 0.0, silent_s + (until_s - t_s))
            # A link that is down gets any rate here: what comes of it is not used.
            factor = np.where(up, factor, 1.0)
        rate_now_bps = rate * factor
        needed_s = data_time_array(left, rate_now_bps, rtt, window)
        done = up & (t_s + needed_s <= until_s)
        seconds[at[done]] = ((t_s - begin_s) + needed_s)[done]
        more = (~done).nonzero()[0]
        if not more.size:
            return seconds
        at, begin_s, rate, rtt = at.take(more), begin_s.take(more), rate.take(more), rtt.take(more)
        left, window = left.take(more), window.take(more)
        if silent_s is not None:
            silent_s, t_s = silent_s.take(more), np.where(up, t_s, until_s).take(more)
        else:
            t_s = t_s.take(more)
        rate_now_bps, until_s = rate_now_bps.take(more), until_s.take(more)
        bytes_per_s, period_s = goodput(rate_now_bps), ack_clock_period(rate_now_bps, rtt)
        while (slow := (t_s < until_s) & (left > window) & (window / bytes_per_s < period_s)).any():
            np.add(t_s, period_s, out=t_s, where=slow)
            np.subtract(left, window, out=left, where=slow)
            np.multiply(window, 2.0, out=window, where=slow)
        sending = t_s < until_s
        left = np.where(sending, np.maximum(0.0, left - (until_s - t_s) * bytes_per_s), left)
        t_s = np.where(sending, until_s, t_s)
