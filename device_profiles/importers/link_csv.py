"""Link traces as CSV: ``t_s,down_mbps,up_mbps,rtt_ms`` and, if you have it, ``loss`` (a fraction)."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from device_profiles.errors import TraceError
from device_profiles.importers.text_lines import trace_lines
from device_profiles.traces import RateTrace

_REQUIRED = ("t_s", "down_mbps", "up_mbps", "rtt_ms")
_OPTIONAL = ("loss",)
_MAX_FIELD_CHARS = 40


def read_link_csv(path: Path, *, period_s: float | None = None) -> RateTrace:
    """Read a link trace from a CSV file.

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
