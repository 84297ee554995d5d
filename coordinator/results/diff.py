"""Whether two runs are the same, and where they first part if they are not.

Compared are the deterministic columns of all tables, value by value (a NaN equals a NaN, null equals
null); what was measured on the host is left out. Events come first: the first event that differs is
nearer to the cause than the rows that sum it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from coordinator.engine.host import numerical_differences
from coordinator.results.tables.digest import canonical, whole_columns
from coordinator.results.tables.reader import RunTables
from coordinator.results.tables.schemas import deterministic_fields
from edge.core.plugins import editions

_ORDER: Final = ("events", "device_rounds", "evaluations", "inferences", "faults", "rounds")
CONTEXT_ROWS: Final = 3

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place at which two runs differ.

    Attributes
    ----------
    table : where it was found.
    row : position of the first differing row, from 0.
    round_number : the round of that row, the earlier one if the two differ.
    fields : names of the columns that differ; empty when one of the runs ends before this row.
    first, second : that row of either run; None when the run ends before it.
    context : the rows before it, equal in both.
    """

    table: str
    row: int
    round_number: int
    fields: tuple[str, ...]
    first: Row | None
    second: Row | None
    context: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class RunDiff:
    """The result of a comparison.

    Attributes
    ----------
    divergence : None when the runs are identical as far as both were recorded.
    rows : rows compared, by table.
    digests : of both runs, from their manifests; None for a run without an end.
    notes : what the reader should know, for example that a run was killed or recorded no events.
    """

    divergence: Divergence | None
    rows: dict[str, int]
    digests: tuple[str | None, str | None]
    notes: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether no row differs and neither run is longer."""
        return self.divergence is None


def diff_runs(first: RunTables, second: RunTables) -> RunDiff:
    """Compare two runs.

    A run that ended early differs from one that went on: the divergence is the first row that only one of
    them has. When only one run recorded events, events are not compared, and a note says so.
    """
    notes = [
        f"{run.directory}: this run has no end; its finished rounds are compared"
        for run in (first, second)
        if not run.complete
    ]
    digests = (first.manifest.get("digest"), second.manifest.get("digest"))
    tables = list(_ORDER)
    recorded = [bool(run.read("events", ["round"]).num_rows) for run in (first, second)]
    if recorded[0] != recorded[1]:
        tables.remove("events")
        without = (first, second)[recorded.index(False)]
        notes.append(f"{without.directory}: this run recorded no events; events are not compared")
    rows: dict[str, int] = {}
    found: list[Divergence] = []
    for table in tables:
        divergence, compared = _compare(first, second, table)
        rows[table] = compared
        if divergence is not None:
            found.append(divergence)
    # Of several tables the earliest round, and in it the events: cause before consequence.
    earliest = min(found, key=lambda one: (one.round_number, _ORDER.index(one.table)), default=None)
    notes.extend(_plugin_notes(first, second))
    notes.extend(_numerical_notes(first, second, parted=bool(found)))
    return RunDiff(earliest, rows, digests, tuple(notes))


def _plugin_notes(first: RunTables, second: RunTables) -> Iterator[str]:
    sides = [editions(run.manifest, run.directory) for run in (first, second)]
    for name in sorted(sides[0] | sides[1]):
        one, other = (side.get(name, "none") for side in sides)
        if one != other:
            yield f"the runs used other plug-ins: {name} is {one} in the first and {other} in the second"


def _numerical_notes(first: RunTables, second: RunTables, *, parted: bool) -> Iterator[str]:
    hosts = [run.manifest.get("host", {}) for run in (first, second)]
    differences = numerical_differences(hosts[0], hosts[1])
    if differences:
        named = "; ".join(f"{name}: {one} and {other}" for name, (one, other) in differences.items())
        yield f"the runs come from different numerics ({named}); last bits may differ for that alone"
    for run, host in zip((first, second), hosts, strict=True):
        if parted and host and "numerics" not in host:
            yield f"{run.directory}: the manifest of this older run does not name its processor and BLAS"


def _compare(first: RunTables, second: RunTables, table: str) -> tuple[Divergence | None, int]:
    fields = [field.name for field in deterministic_fields(table)]
    sides = [whole_columns(run.read(table, fields)) for run in (first, second)]
    lengths = [len(side["round"]) for side in sides]
    shared = min(lengths)
    position = shared
    for name in fields:
        unequal = _unequal(sides[0][name].slice(0, position), sides[1][name].slice(0, position))
        if unequal.size:
            position = int(unequal[0])
    if position == shared and lengths[0] == lengths[1]:
        return None, shared
    before = max(0, position - CONTEXT_ROWS)
    rows = [
        _row(side, position) if position < length else None
        for side, length in zip(sides, lengths, strict=True)
    ]
    differing: tuple[str, ...] = ()
    if rows[0] is not None and rows[1] is not None:
        differing = tuple(
            name for name in fields
            if _unequal(sides[0][name].slice(position, 1), sides[1][name].slice(position, 1)).size
        )  # fmt: skip
    divergence = Divergence(
        table=table,
        row=position,
        round_number=min(row["round"] for row in rows if row is not None),
        fields=differing,
        first=rows[0],
        second=rows[1],
        context=tuple(_row(sides[0], index) for index in range(before, position)),
    )
    return divergence, shared


def _unequal(first: pa.Array, second: pa.Array) -> Any:
    """Return the positions at which two columns of equal length differ, ascending."""
    (values, valid), (other_values, other_valid) = canonical(first), canonical(second)
    # Compared as bits, so that a NaN equals itself and zeros of either sign differ, as in the digest.
    return np.flatnonzero((values.view(np.int64) != other_values.view(np.int64)) | (valid != other_valid))


def _row(columns: dict[str, Any], position: int) -> Row:
    return {name: column[position].as_py() for name, column in columns.items()}


def render_diff(diff: RunDiff, first: str = "A", second: str = "B") -> str:
    """Return the comparison as text: ``identical``, or the first divergence with its context."""
    lines = [f"note: {note}" for note in diff.notes]
    counts = ", ".join(f"{count} {table.replace('_', ' ')}" for table, count in diff.rows.items())
    divergence = diff.divergence
    if divergence is None:
        return "\n".join([*lines, f"identical ({counts})"])
    table = divergence.table.replace("_", " ")
    lines.append(f"first difference: round {divergence.round_number}, table {table}, row {divergence.row}")
    lines.extend(f"    {_text(row)}" for row in divergence.context)
    if divergence.first is None or divergence.second is None:
        ends, goes_on = (first, second) if divergence.first is None else (second, first)
        row = divergence.second if divergence.first is None else divergence.first
        lines.append(f"  {ends} ends here; {goes_on} goes on:")
        lines.append(f"    {_text(row or {})}")
        return "\n".join(lines)
    lines.append(f"  {first}: {_text(divergence.first)}")
    lines.append(f"  {second}: {_text(divergence.second)}")
    lines.append("  differing:")
    lines.extend(
        f"    {name}: {divergence.first[name]!r} in {first}, {divergence.second[name]!r} in {second}"
        for name in divergence.fields
    )
    return "\n".join(lines)


def _text(row: Row) -> str:
    """Return a row as ``name=value`` pairs, without what is empty."""
    return " ".join(f"{name}={value}" for name, value in row.items() if value not in (None, 0, "none"))
