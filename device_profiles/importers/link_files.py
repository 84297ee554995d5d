"""Recorded links from files: Mahimahi traces, and CSV of rates, round trips and losses."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from device_profiles.errors import TraceError
from device_profiles.fields import TEXT_TAG, Choice, Fraction, PositiveSeconds, Text
from device_profiles.traces import RateTrace

MAX_FILE_BYTES = 256 * 2**20
PACKET_BITS = 1500 * 8
_MAX_PERIOD_MS = 30 * 86_400_000
_MAX_STEPS = 10_000_000
_LARGEST_STRETCH = 0.01
"""By which share of its time a trace may be stretched or squeezed to last as long as another."""
_REQUIRED = ("t_s", "down_mbps", "up_mbps", "rtt_ms")
_OPTIONAL = ("loss",)
_MAX_FIELD_CHARS = 40
_CSV_MEANING: Final = "CSV file with `t_s,down_mbps,up_mbps,rtt_ms[,loss]`"


class MahimahiTrace(BaseModel):
    """A pair of Mahimahi traces: the milliseconds at which a 1500-byte packet may pass."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: Literal["mahimahi"]
    down: Text = Field(description="trace towards the device, relative to the file that names it")
    up: Text = Field(description="trace from the device, relative to the file that names it")
    rtt: PositiveSeconds = Field(description="round trip, which the traces do not hold")
    loss: Fraction = Field(default=0.0, description="probability that a segment is lost")


def _tag(value: object) -> str:
    return "mahimahi" if isinstance(value, dict | MahimahiTrace) else TEXT_TAG


WrittenTrace = Annotated[
    Annotated[Text, Tag(TEXT_TAG)] | Annotated[MahimahiTrace, Tag("mahimahi")],
    Discriminator(_tag),
    Choice("kind", {"mahimahi": MahimahiTrace}, _CSV_MEANING),
]


def file_keys(written: str | MahimahiTrace) -> tuple[tuple[str, ...], ...]:
    """Return where, inside a written trace, the names of its files stand."""
    return ((),) if isinstance(written, str) else (("down",), ("up",))


def trace_beside(written: str | MahimahiTrace | None, folder: Path) -> RateTrace | None:
    """Return a written trace, the names of whose files start at ``folder``; None where none is written.

    Raises
    ------
    TraceError : as :func:`read_link_trace`.
    """
    if written is None:
        return None
    names = (written,) if isinstance(written, str) else (written.down, written.up)
    return read_link_trace(written, [folder / name for name in names])


def read_link_trace(written: str | MahimahiTrace, files: Sequence[Path]) -> RateTrace:
    """Return the trace in ``files``, one for each of :func:`file_keys`.

    Raises
    ------
    TraceError : a file that cannot be used; the message says where in it.
    """
    if isinstance(written, str):
        return read_link_csv(files[0])
    down, up = files
    return read_mahimahi(down, up, rtt_s=written.rtt, loss=written.loss)


def trace_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of an ASCII-compatible UTF-8 text file.

    Raises
    ------
    TraceError : the file is missing, larger than 256 MiB (``MAX_FILE_BYTES``) or not UTF-8 text.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise TraceError(f"{path}: {size} bytes is above the limit of {MAX_FILE_BYTES} for a trace file")
        number = 0
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.rstrip("\r\n")
    except UnicodeDecodeError:
        raise TraceError(f"{path}:{number}: not UTF-8 text; a trace is a plain text file") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error


def read_mahimahi(down: Path, up: Path, *, rtt_s: float, loss: float = 0.0, bin_s: float = 0.1) -> RateTrace:
    """Read a pair of Mahimahi traces as one link.

    Netravali et al. 2015, "Mahimahi: Accurate Record-and-Replay for HTTP", section 3 (mm-link): one line per
    delivery opportunity, the millisecond at which 1500 bytes may pass. A line may repeat (several packets in
    one millisecond); the last line is also the length of the trace, which starts over after it.

    Parameters
    ----------
    down, up : trace files of the two directions. Where their lengths differ both repeat until they come out
        even, and the shorter is stretched or squeezed in time by what is left, 1% at most (of traces so long
        that this would take more than the most bins, as little as these allow). The mean rate of each
        direction is exactly that of its file.
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
    longer_ms, shorter_ms = sorted((int(down_ms[-1]), int(up_ms[-1])), reverse=True)
    longer, shorter = _repeats(longer_ms, shorter_ms, most=int(_MAX_STEPS * bin_s * 1000 / longer_ms))
    repeats = (longer, shorter) if down_ms[-1] >= up_ms[-1] else (shorter, longer)
    period_ms = longer * longer_ms
    steps = max(1, round(period_ms / (bin_s * 1000)))
    if steps > _MAX_STEPS:
        raise TraceError(f"{down}: bins of {bin_s:g} s make {steps} steps, above {_MAX_STEPS}; raise bin_s")
    step_ms = period_ms / steps
    times_s = np.asarray(np.arange(steps) * (step_ms / 1000), dtype=np.float64)
    return RateTrace(
        times_s=times_s,
        down_bps=_rates(down_ms, repeats[0], steps),
        up_bps=_rates(up_ms, repeats[1], steps),
        rtt_s=np.full(steps, rtt_s),
        loss=np.full(steps, loss),
        period_s=period_ms / 1000,
    )


def _repeats(longer_ms: int, shorter_ms: int, most: int) -> tuple[int, int]:
    """Return how often two traces repeat so that they last as long as each other, to the tolerance.

    The longer repeats as few times as possible, and no more than ``most`` times.
    """
    found: list[tuple[float, int, int]] = []
    for longer in range(1, max(1, most) + 1):
        shorter = round(longer * longer_ms / shorter_ms)
        apart = abs(longer * longer_ms / (shorter * shorter_ms) - 1.0)
        if apart <= _LARGEST_STRETCH:
            return longer, shorter
        found.append((apart, longer, shorter))
    return min(found)[1:]


def _rates(opportunities_ms: npt.NDArray[np.int64], repeats: int, steps: int) -> npt.NDArray[np.float64]:
    """Return the mean rate of each of ``steps`` equal bins of a trace that repeats, float64[steps], bit/s."""
    own_ms = int(opportunities_ms[-1])
    whole_ms = repeats * own_ms
    counts = np.zeros(steps, dtype=np.int64)
    for repeat in range(repeats):
        # The opportunity of millisecond t is what the link carried since t - 1: it belongs before t, also in
        # a bin that ends there. Taken half a millisecond early it does, and the last one stays inside.
        times_ms = np.maximum(opportunities_ms - 0.5, 0.0) + repeat * own_ms
        position = (times_ms * (steps / whole_ms)).astype(np.int64)
        counts += np.bincount(np.minimum(position, steps - 1), minlength=steps)
    return np.asarray(counts * (PACKET_BITS / (whole_ms / 1000 / steps)), dtype=np.float64)


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


def read_link_csv(path: Path, *, period_s: float | None = None) -> RateTrace:
    """Read a link trace from a CSV file of ``t_s,down_mbps,up_mbps,rtt_ms`` and ``loss``, a fraction.

    Each row holds from its time to the next row's. The first row is at 0. Columns may come in any order;
    ``loss`` may be left out (no loss). Rates are megabits per second, ``rtt_ms`` milliseconds.

    Parameters
    ----------
    path : the file.
    period_s : when the trace starts over, seconds. Left out, the last row lasts as long as the one before it,
        which needs two rows.

    Raises
    ------
    TraceError : with file and line, for a wrong header, a row with other columns than the header, a value
        that is not a finite number in range, or times that do not increase.
    """
    lines = trace_lines(path)
    header = next(lines, None)
    if header is None:
        raise TraceError(f"{path}: empty; the first line names the columns: {','.join(_REQUIRED)}[,loss]")
    columns = _split(path, 1, header[1])
    _check_header(path, columns)
    rows: list[list[float]] = []
    for number, line in lines:
        if not line.strip():
            continue
        rows.append(_read_row(path, number, columns, line, rows))
    if not rows:
        raise TraceError(f"{path}: no rows below the header")
    table = dict(zip(columns, np.asarray(rows, dtype=np.float64).T, strict=True))
    times = table["t_s"]
    if period_s is None:
        if len(rows) < 2:
            raise TraceError(f"{path}:2: one row alone does not say how long it lasts; give the period")
        period_s = float(2 * times[-1] - times[-2])
    try:
        return RateTrace(
            times_s=times,
            down_bps=table["down_mbps"] * 1e6,
            up_bps=table["up_mbps"] * 1e6,
            rtt_s=table["rtt_ms"] / 1e3,
            loss=table.get("loss", np.zeros(times.shape)),
            period_s=period_s,
        )
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _split(path: Path, number: int, line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True))]
    except (csv.Error, StopIteration):
        raise TraceError(f"{path}:{number}: not a line of comma-separated values") from None


def _check_header(path: Path, columns: list[str]) -> None:
    wanted = f"{','.join(_REQUIRED)}[,loss]"
    for name in columns:
        if name not in _REQUIRED + _OPTIONAL:
            raise TraceError(f"{path}:1: unknown column {name[:_MAX_FIELD_CHARS]!r}; write {wanted}")
        if columns.count(name) > 1:
            raise TraceError(f"{path}:1: column {name!r} appears twice")
    for name in _REQUIRED:
        if name not in columns:
            raise TraceError(f"{path}:1: column {name!r} is missing; the columns are {wanted}")


def _read_row(
    path: Path, number: int, columns: list[str], line: str, above: list[list[float]]
) -> list[float]:
    cells = _split(path, number, line)
    if len(cells) != len(columns):
        raise TraceError(f"{path}:{number}: {len(cells)} values, but the header names {len(columns)} columns")
    row: list[float] = []
    for name, cell in zip(columns, cells, strict=True):
        try:
            value = float(cell) if len(cell) <= _MAX_FIELD_CHARS else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            shown = repr(cell[:_MAX_FIELD_CHARS])
            raise TraceError(f"{path}:{number}: {name}: {shown} is not a number; write one without a unit")
        if value < 0:
            raise TraceError(f"{path}:{number}: {name}: {value:g} is negative")
        if name == "loss" and value >= 1:
            raise TraceError(f"{path}:{number}: loss: {value:g} must be below 1; write 0.02 for 2%")
        if name == "rtt_ms" and value == 0:
            raise TraceError(f"{path}:{number}: rtt_ms: a round trip takes some time; write a value above 0")
        row.append(value)
    t = row[columns.index("t_s")]
    if not above and t != 0:
        raise TraceError(f"{path}:{number}: t_s: the first row must be at 0, not {t:g}; subtract it from all")
    if above and t <= above[-1][columns.index("t_s")]:
        before = above[-1][columns.index("t_s")]
        raise TraceError(f"{path}:{number}: t_s: {t:g} does not come after {before:g}, the row before")
    return row
