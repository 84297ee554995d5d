"""Recorded link rates and recorded sessions, as arrays that repeat for ever.

The types only hold and look up; ``device_profiles.importers`` reads them from files.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from device_profiles.errors import TraceError

Floats = npt.NDArray[np.float64]
Direction = Literal["down", "up"]


def _frozen_floats(name: str, values: npt.ArrayLike, shape: tuple[int, ...] | None = None) -> Floats:
    """Return a read-only float64 copy of a 1-d array of finite, non-negative numbers."""
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1 or (shape is not None and array.shape != shape):
        wanted = "one dimension" if shape is None else f"shape {shape}"
        raise TraceError(f"{name}: expected {wanted}, got shape {array.shape}")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if bad.size:
        raise TraceError(f"{name}[{bad[0]}]: must be a finite number, zero or more, not {array[bad[0]]!r}")
    array.setflags(write=False)
    return array


class _PeriodicRate:
    """A step function of time that repeats, its integral, and the inverse of the integral."""

    __slots__ = ("_bits", "_bits_list", "_period_s", "_rates", "_rates_list", "_times", "_times_list")

    def __init__(self, times_s: Floats, rates_bps: Floats, period_s: float) -> None:
        self._times, self._rates, self._period_s = times_s, rates_bps, period_s
        steps = np.diff(np.append(times_s, period_s))
        self._bits = np.concatenate([[0.0], np.cumsum(steps * rates_bps)])
        # The same numbers as Python floats: a look-up for one transfer then costs no numpy call.
        self._times_list: list[float] = times_s.tolist()
        self._rates_list: list[float] = rates_bps.tolist()
        self._bits_list: list[float] = self._bits.tolist()

    @property
    def bits_a_period(self) -> float:
        return self._bits_list[-1]

    def rate_at(self, t_s: Floats) -> Floats:
        _, _, step = _locate(self._times, self._period_s, t_s)
        return np.asarray(self._rates[step])

    def rate_at_scalar(self, t_s: float) -> float:
        return self._rates_list[self._locate_scalar(t_s)[2]]

    def step_at(self, t_s: float) -> tuple[float, float]:
        cycle, _, step = self._locate_scalar(t_s)
        following = [*self._times_list[step + 1 : step + 2], self._period_s][0]
        return self._rates_list[step], max(cycle * self._period_s + following, math.nextafter(t_s, math.inf))

    def bits_until(self, t_s: Floats) -> Floats:
        cycle, phase, step = _locate(self._times, self._period_s, t_s)
        inside = self._bits[step] + self._rates[step] * (phase - self._times[step])
        # Rounding may carry the end of a step or of a period past the start of the next; capped, the whole
        # stays monotone.
        total = cycle * self.bits_a_period + np.minimum(inside, self._bits[step + 1])
        return np.asarray(np.minimum(total, (cycle + 1) * self.bits_a_period))

    def bits_until_scalar(self, t_s: float) -> float:
        cycle, inside = self._bits_inside(t_s)
        return min(cycle * self.bits_a_period + inside, (cycle + 1) * self.bits_a_period)

    def time_for_bits(self, start_s: Floats, bits: Floats) -> Floats:
        cycle, phase, step = _locate(self._times, self._period_s, start_s)
        inside = self._bits[step] + self._rates[step] * (phase - self._times[step])
        target = np.minimum(inside, self._bits[step + 1]) + bits
        total = self.bits_a_period
        # A target on the boundary is reached at the end of a period, not at the start of the next.
        more = np.maximum(np.ceil(target / total) - 1, 0.0)
        rest = np.minimum(np.maximum(target - more * total, 0.0), total)
        end_step = np.clip(np.searchsorted(self._bits, rest, side="left") - 1, 0, self._rates.size - 1)
        rate = self._rates[end_step]
        ahead = np.divide(rest - self._bits[end_step], rate, out=np.zeros_like(rest), where=rate > 0)
        end = (cycle + more) * self._period_s + (self._times[end_step] + ahead)
        return np.asarray(np.where(bits > 0, np.maximum(end, start_s), start_s))

    def time_for_bits_scalar(self, start_s: float, bits: float) -> float:
        if bits <= 0:
            return start_s
        cycle, inside = self._bits_inside(start_s)
        target, total = inside + bits, self.bits_a_period
        more = max(math.ceil(target / total) - 1, 0)
        rest = min(max(target - more * total, 0.0), total)
        step = min(max(bisect.bisect_left(self._bits_list, rest) - 1, 0), len(self._rates_list) - 1)
        rate = self._rates_list[step]
        ahead = (rest - self._bits_list[step]) / rate if rate > 0 else 0.0
        return max((cycle + more) * self._period_s + (self._times_list[step] + ahead), start_s)

    def _locate_scalar(self, t_s: float) -> tuple[float, float, int]:
        cycle = float(math.floor(t_s / self._period_s))
        phase = t_s - cycle * self._period_s
        if phase >= self._period_s:
            cycle, phase = cycle + 1, 0.0
        phase = max(phase, 0.0)
        return cycle, phase, bisect.bisect_right(self._times_list, phase) - 1

    def _bits_inside(self, t_s: float) -> tuple[float, float]:
        cycle, phase, step = self._locate_scalar(t_s)
        inside = self._bits_list[step] + self._rates_list[step] * (phase - self._times_list[step])
        return cycle, min(inside, self._bits_list[step + 1])


def _locate(times: Floats, period_s: float, t_s: Floats) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """Return which repetition, the time inside it and the index of the step, for each time."""
    cycle = np.floor(t_s / period_s)
    phase = t_s - cycle * period_s
    # Division and product round on their own; without this a time just below a boundary may fall outside.
    over = phase >= period_s
    cycle = np.where(over, cycle + 1, cycle)
    phase = np.maximum(np.where(over, 0.0, phase), 0.0)
    return cycle, phase, np.searchsorted(times, phase, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class RateTrace:
    """A recorded link: rates, round trip and loss hold from each time to the next, then all repeats.

    Attributes
    ----------
    times_s : float64[n], start of each step, seconds; the first is 0, strictly increasing.
    down_bps, up_bps : float64[n], rate during each step, bit/s; a step may be 0 (an outage), not all of them.
    rtt_s : float64[n], round trip during each step, seconds.
    loss : float64[n], probability of losing a segment during each step, in [0, 1).
    period_s : length of the trace, seconds, after the last time.

    Raises
    ------
    TraceError : on construction, for arrays that do not fit together or values that make no sense.
    """

    times_s: Floats
    down_bps: Floats
    up_bps: Floats
    rtt_s: Floats
    loss: Floats
    period_s: float
    _down: _PeriodicRate = field(init=False, repr=False)
    _up: _PeriodicRate = field(init=False, repr=False)

    def __post_init__(self) -> None:
        times = _frozen_floats("times_s", self.times_s)
        if times.size == 0:
            raise TraceError("times_s: the trace is empty; it needs at least one step")
        if times[0] != 0:
            raise TraceError(
                f"times_s[0]: a trace starts at 0 s, not at {times[0]:g} s; subtract the first time"
            )
        late = np.flatnonzero(np.diff(times) <= 0)
        if late.size:
            i = int(late[0]) + 1
            raise TraceError(f"times_s[{i}]: {times[i]:g} s does not come after {times[i - 1]:g} s")
        period = float(self.period_s)
        if not math.isfinite(period) or period <= times[-1]:
            raise TraceError(f"period_s: {period:g} s must be later than the last time, {times[-1]:g} s")
        object.__setattr__(self, "times_s", times)
        object.__setattr__(self, "period_s", period)
        for name in ("down_bps", "up_bps", "rtt_s", "loss"):
            object.__setattr__(self, name, _frozen_floats(name, getattr(self, name), times.shape))
        high = np.flatnonzero(self.loss >= 1)
        if high.size:
            raise TraceError(
                f"loss[{high[0]}]: must be below 1, not {self.loss[high[0]]:g}; write 0.02 for 2%"
            )
        for direction in ("down", "up"):
            rate = _PeriodicRate(times, getattr(self, f"{direction}_bps"), period)
            if rate.bits_a_period <= 0:
                raise TraceError(f"{direction}_bps: the trace never carries anything {direction}")
            object.__setattr__(self, f"_{direction}", rate)

    @overload
    def rate_at(self, t_s: float, direction: Direction) -> float: ...
    @overload
    def rate_at(self, t_s: Floats, direction: Direction) -> Floats: ...
    def rate_at(self, t_s: float | Floats, direction: Direction) -> float | Floats:
        """Return the rate in bit/s at ``t_s`` seconds: a float for a float, float64[n] for float64[n]."""
        rate = self._direction(direction)
        return rate.rate_at(t_s) if isinstance(t_s, np.ndarray) else rate.rate_at_scalar(t_s)

    @overload
    def rtt_at(self, t_s: float) -> float: ...
    @overload
    def rtt_at(self, t_s: Floats) -> Floats: ...
    def rtt_at(self, t_s: float | Floats) -> float | Floats:
        """Return the round trip in seconds at ``t_s`` seconds."""
        return self._step_value(self.rtt_s, t_s)

    @overload
    def loss_at(self, t_s: float) -> float: ...
    @overload
    def loss_at(self, t_s: Floats) -> Floats: ...
    def loss_at(self, t_s: float | Floats) -> float | Floats:
        """Return the probability of losing a segment at ``t_s`` seconds."""
        return self._step_value(self.loss, t_s)

    @overload
    def bits_until(self, t_s: float, direction: Direction) -> float: ...
    @overload
    def bits_until(self, t_s: Floats, direction: Direction) -> Floats: ...
    def bits_until(self, t_s: float | Floats, direction: Direction) -> float | Floats:
        """Return the bits carried from 0 to ``t_s`` seconds: piecewise linear, never falling."""
        rate = self._direction(direction)
        return rate.bits_until(t_s) if isinstance(t_s, np.ndarray) else rate.bits_until_scalar(t_s)

    @overload
    def time_for_bits(self, start_s: float, bits: float, direction: Direction) -> float: ...
    @overload
    def time_for_bits(self, start_s: Floats, bits: Floats, direction: Direction) -> Floats: ...
    def time_for_bits(
        self, start_s: float | Floats, bits: float | Floats, direction: Direction
    ) -> float | Floats:
        """Return the absolute time by which ``bits`` have been carried, counted from ``start_s``.

        The earliest t with ``bits_until(t) - bits_until(start_s) == bits``; ``start_s`` itself for 0 bits.
        Both arguments are floats (the result is a float), or float64 arrays that broadcast together.
        """
        rate = self._direction(direction)
        if isinstance(start_s, np.ndarray) or isinstance(bits, np.ndarray):
            starts, sizes = np.broadcast_arrays(np.asarray(start_s, np.float64), np.asarray(bits, np.float64))
            return rate.time_for_bits(starts, sizes)
        return rate.time_for_bits_scalar(start_s, bits)

    def step_at(self, t_s: float, direction: Direction) -> tuple[float, float]:
        """Return the rate at ``t_s``, bit/s, and until when it holds: always after ``t_s``, seconds."""
        return self._direction(direction).step_at(t_s)

    def _direction(self, direction: Direction) -> _PeriodicRate:
        if direction == "down":
            return self._down
        if direction == "up":
            return self._up
        raise ValueError(f"direction is 'down' or 'up', not {direction!r}")

    def _step_value(self, values: Floats, t_s: float | Floats) -> float | Floats:
        _, _, step = _locate(self.times_s, self.period_s, np.asarray(t_s, np.float64))
        found = np.asarray(values[step])
        return found if isinstance(t_s, np.ndarray) else float(found)


@dataclass(frozen=True, slots=True, eq=False)
class AvailabilityTrace:
    """Recorded sessions of many clients, row by row; each client's repeat with a period of its own.

    A client is available during ``[start, end)`` of each of its sessions. Sessions are sorted and lie apart
    from each other (touching or overlapping ones are joined by :meth:`from_sessions`) inside ``[0, period]``.

    Attributes
    ----------
    client_ids : int64[n], as in the source.
    indptr : int64[n + 1]; the sessions of row i are ``indptr[i]:indptr[i + 1]``.
    starts_s, ends_s : float64[m], seconds.
    period_s : float64[n], seconds, above zero.
    """

    client_ids: npt.NDArray[np.int64]
    indptr: npt.NDArray[np.int64]
    starts_s: Floats
    ends_s: Floats
    period_s: Floats

    def __post_init__(self) -> None:
        ids = np.array(self.client_ids, dtype=np.int64)
        indptr = np.array(self.indptr, dtype=np.int64)
        if ids.ndim != 1 or ids.size == 0:
            raise TraceError("client_ids: expected a non-empty 1-d array")
        starts = _frozen_floats("starts_s", self.starts_s)
        if (
            indptr.shape != (ids.size + 1,)
            or indptr[0] != 0
            or indptr[-1] != starts.size
            or np.any(np.diff(indptr) < 0)
        ):
            raise TraceError("indptr: expected n + 1 offsets that rise from 0 to the number of sessions")
        ends = _frozen_floats("ends_s", self.ends_s, starts.shape)
        period = _frozen_floats("period_s", self.period_s, ids.shape)
        rows = np.repeat(np.arange(ids.size), np.diff(indptr))
        if np.any(period <= 0):
            raise TraceError(f"period_s[{int(np.argmin(period))}]: must be above zero")
        if np.any(ends <= starts) or np.any(ends > period[rows]):
            raise TraceError("ends_s: every session must end after its start and within the period")
        if np.any((rows[1:] == rows[:-1]) & (starts[1:] <= ends[:-1])):
            raise TraceError("starts_s: sessions of a client must be sorted and lie apart; use from_sessions")
        ids.setflags(write=False)
        indptr.setflags(write=False)
        object.__setattr__(self, "client_ids", ids)
        object.__setattr__(self, "indptr", indptr)
        for name, floats in (("starts_s", starts), ("ends_s", ends), ("period_s", period)):
            object.__setattr__(self, name, floats)

    @classmethod
    def from_sessions(
        cls,
        client_ids: Sequence[int],
        sessions: Sequence[Sequence[tuple[float, float]]],
        period_s: Sequence[float],
    ) -> AvailabilityTrace:
        """Build a trace from (start, end) pairs per client, in any order.

        Empty sessions are left out, touching and overlapping ones joined.
        """
        indptr = [0]
        starts: list[float] = []
        ends: list[float] = []
        for pairs in sessions:
            first = len(starts)
            for start, end in sorted(p for p in pairs if p[1] != p[0]):
                if len(starts) > first and start <= ends[-1]:
                    ends[-1] = max(ends[-1], end)
                else:
                    starts.append(start)
                    ends.append(end)
            indptr.append(len(starts))
        return cls(
            np.asarray(client_ids, np.int64),
            np.asarray(indptr, np.int64),
            np.asarray(starts, np.float64),
            np.asarray(ends, np.float64),
            np.asarray(period_s, np.float64),
        )

    @property
    def n_clients(self) -> int:
        """Number of rows."""
        return int(self.client_ids.size)
