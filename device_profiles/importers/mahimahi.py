"""Mahimahi link traces: one line per delivery opportunity, the millisecond at which 1500 bytes may pass.

Netravali et al. 2015, "Mahimahi: Accurate Record-and-Replay for HTTP", section 3 (mm-link). A line may
repeat (several packets in one millisecond); the last line is also the length of the trace, which starts over
after it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_profiles.errors import TraceError
from device_profiles.importers.text_lines import trace_lines
from device_profiles.traces import RateTrace

PACKET_BITS = 1500 * 8
_MAX_PERIOD_MS = 30 * 86_400_000
_MAX_STEPS = 10_000_000


def read_mahimahi(down: Path, up: Path, *, rtt_s: float, loss: float = 0.0, bin_s: float = 0.1) -> RateTrace:
    """Read a pair of Mahimahi traces as one link.

    Parameters
    ----------
    down, up : trace files of the two directions. Where their lengths differ the result has the longer one,
        and the shorter repeats inside it, cut off at the end.
    rtt_s : round trip, seconds: a Mahimahi trace has none (mm-delay adds it there).
    loss : probability of losing a segment, in [0, 1); the trace has none either.
    bin_s : opportunities are counted in bins of about this length, seconds (the nearest that divides the
        trace evenly), so the rate is right on average over a bin, and the bits of a whole trace exactly.

    Raises
    ------
    TraceError : with file and line, for anything but non-decreasing whole milliseconds; for a trace of no
        length; for more than 10,000,000 bins.
    """
    if not bin_s > 0:
        raise ValueError(f"bin_s must be above zero, not {bin_s!r}")
    down_ms, up_ms = _read_opportunities(down), _read_opportunities(up)
    period_ms = max(int(down_ms[-1]), int(up_ms[-1]))
    steps = max(1, round(period_ms / (bin_s * 1000)))
    if steps > _MAX_STEPS:
        raise TraceError(f"{down}: bins of {bin_s:g} s make {steps} steps, above {_MAX_STEPS}; raise bin_s")
    step_ms = period_ms / steps
    times_s = np.asarray(np.arange(steps) * (step_ms / 1000), dtype=np.float64)
    return RateTrace(
        times_s=times_s,
        down_bps=_rates(down_ms, period_ms, steps),
        up_bps=_rates(up_ms, period_ms, steps),
        rtt_s=np.full(steps, rtt_s),
        loss=np.full(steps, loss),
        period_s=period_ms / 1000,
    )


def _rates(opportunities_ms: npt.NDArray[np.int64], period_ms: int, steps: int) -> npt.NDArray[np.float64]:
    """Return the mean rate of each of ``steps`` equal bins, float64[steps], bit/s."""
    own_ms = int(opportunities_ms[-1])
    repeats = -(-period_ms // own_ms)
    shifts = np.arange(repeats, dtype=np.int64)[:, None] * own_ms
    times = (shifts + opportunities_ms[None, :]).ravel()
    times = times[times <= period_ms]
    # The opportunity of millisecond t is what the link carried since t - 1: it belongs before t, also in a
    # bin that ends there. Taken half a millisecond early it does, and the last one stays inside the trace.
    position = np.maximum(times - 0.5, 0.0) * (steps / period_ms)
    counts = np.bincount(np.minimum(position.astype(np.int64), steps - 1), minlength=steps)
    return np.asarray(counts * (PACKET_BITS / (period_ms / 1000 / steps)), dtype=np.float64)


def _read_opportunities(path: Path) -> npt.NDArray[np.int64]:
    """Return the milliseconds of a trace, int64[n], n >= 1, non-decreasing, the last above zero."""
    times: list[int] = []
    last = 0
    for number, line in trace_lines(path):
        text = line.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 12):
            shown = text[:40] or "an empty line"
            raise TraceError(f"{path}:{number}: expected a whole number of milliseconds, found {shown!r}")
        t = int(text)
        if t < last:
            raise TraceError(f"{path}:{number}: {t} ms comes after {last} ms; times must not go back")
        if t > _MAX_PERIOD_MS:
            raise TraceError(f"{path}:{number}: {t} ms is beyond 30 days, the longest trace accepted")
        times.append(t)
        last = t
    if not times:
        raise TraceError(f"{path}: empty; expected one line per packet, each a time in milliseconds")
    if last == 0:
        raise TraceError(f"{path}:{len(times)}: the last time is 0 ms; a trace must last for some time")
    return np.asarray(times, dtype=np.int64)
