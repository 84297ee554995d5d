"""``data``: what a file of ratings holds, before any scenario names it; ratings prepared for many runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import click
import numpy as np

from coordinator.scenario.data_section import FileRatings, ParquetRatings
from coordinator.scenario.dump import yaml_lines
from coordinator.scenario.load import load_text
from coordinator.scenario.ratings import prepare_file, read_file
from device_profiles.documents import Node
from edge.data.store import RatingStore
from edge.data.table.formats import TABLE
from edge.data.table.reading import DUPLICATES_KEPT, RatingsFile

_LABEL_WIDTH = 12
_BAR_WIDTH = 40
_MOST_VALUES = 12
_REST = """
fleet: {mix: global_android_2024}
learning: {algorithm: fedrecon}
rounds: {count: 1, cohort: 1, deadline: 1 min}
"""
"""What a scenario needs besides data."""
_LATER = ParquetRatings.model_fields.keys() - {"source", "path", "on_bad_row", "duplicates"}
"""The settings of ratings that say nothing of how a file is read."""


def show(file: Path, settings: tuple[str, ...]) -> None:
    """Print what a file of ratings holds, and the section that reads it."""
    read, written = read_with(file, settings)
    for line in (*_lines(read), "", *_yaml(written, read)):
        click.echo(line)


def prepare(file: Path, target: Path, settings: tuple[str, ...]) -> None:
    """Write a folder of prepared ratings, and print the section that reads it."""
    section, path, written = _section(file, settings)
    facts = prepare_file(section, path, target)
    click.echo(facts.line())
    for warning in facts.warnings:
        click.echo(f"warning: {warning}")
    click.echo()
    # How the file was read is done with; what is made of ratings remains.
    left = {key: value for key, value in written.items() if key in _LATER}
    for line in yaml_lines({"data": {"source": "parquet", "path": str(target), **left}}):
        click.echo(line)


def read_with(file: Path, settings: Sequence[str]) -> tuple[RatingsFile, dict[str, Node]]:
    """Read ratings as settings of the command line say; return them and the section ``data`` that does so."""
    section, path, written = _section(file, settings)
    return read_file(section, path), written


def _section(file: Path, settings: Sequence[str]) -> tuple[FileRatings, Path, dict[str, Node]]:
    """Return the section ``data`` that reads a file so, where the file is, and the section as written."""
    for setting in settings:
        if not re.match(r"data\s*[.=]", setting):
            raise click.UsageError(f"--set {setting}: here settings say how ratings are read, data.…=…")
    text = f"format: 2\ndata: {{source: auto, path: {json.dumps(str(file))}}}{_REST}"
    loaded = load_text(text, str(file), overrides=settings)
    section = loaded.scenario.data
    if not isinstance(section, FileRatings):
        raise click.UsageError(f"data.source {section.source!r} reads no file; leave it out")
    written = loaded.document.root["data"]
    assert isinstance(written, dict)
    return section, loaded.resolve(("data", "path")), written


def _lines(read: RatingsFile) -> Iterator[str]:
    store = read.store
    yield read.line()
    for warning in read.warnings:
        yield f"warning: {warning}"
    cells = store.n_users * store.n_items
    kept = DUPLICATES_KEPT.get(read.duplicates_rule)
    repeated = f", {read.duplicates:,} duplicates ({kept})" if read.duplicates else ""
    yield _row(
        "rows", f"{read.rows:,}{repeated}" + (f", {read.skipped:,} bad ones skipped" if read.skipped else "")
    )
    yield _row("users", f"{store.n_users:,}, ratings each {_spread(store.counts)}")
    yield _row("items", f"{store.n_items:,}, ratings each {_spread(store.item_counts())}")
    yield _row("density", f"{store.n_ratings / cells:.3%}")
    if read.implicit:
        yield _row("ratings", "none: implicit feedback")
    else:
        values = store.decoded()
        yield _row("ratings", f"{values.min():g} to {values.max():g}, mean {store.mean():.4g}")
        yield from _histogram(values)
    yield _row("times", "none" if store.timestamps is None else _span(store))
    yield _row("columns", ", ".join(f"{role} = {name}" for role, name in read.columns.items()))
    if read.by_position:
        yield _row("", "guessed by position: there is no header with known names")
    if read.left_out:
        yield _row("left out", ", ".join(read.left_out))


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}{text}"


def _spread(counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
    return f"{counts.min():,} to {counts.max():,}, median {np.median(counts):,.0f}"


def _histogram(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Iterator[str]:
    distinct, counts = np.unique(values, return_counts=True)
    labels = [f"{value:g}" for value in distinct]
    if distinct.size > _MOST_VALUES:
        counts, edges = np.histogram(values, bins=_MOST_VALUES - 2)
        labels = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    width = max(map(len, labels))
    for label, count in zip(labels, counts.tolist(), strict=True):
        bar = "█" * round(_BAR_WIDTH * count / int(counts.max()))
        yield _row("", f"{label:>{width}}  {count:>9,}  {bar}".rstrip())


def _span(store: RatingStore) -> str:
    times = store.timestamps
    assert times is not None
    known = times[times != 0]
    if known.size == 0:
        return "none known"
    first, last = (_moment(int(time)) for time in (known.min(), known.max()))
    unknown = times.size - known.size
    return f"{first} to {last}" + (f", {unknown:,} unknown" if unknown else "")


def _moment(time_s: int) -> str:
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_s} s"


def _yaml(written: dict[str, Node], read: RatingsFile) -> Iterator[str]:
    """Yield the section that reads the file as it was read here."""
    section = {**written, "source": read.format}
    if read.format == TABLE and read.by_position:
        section["columns"] = {role: name.removeprefix("column ") for role, name in read.columns.items()}
    if read.implicit:
        yield "# No rating column: for methods of ratings, write 'negatives: 4' in place of 'positive'."
        section.setdefault("positive", "1")
    yield from yaml_lines({"data": section})
    store = read.store
    mean = "" if read.implicit else f", rating_mean: {store.mean():.6g}"
    yield "# For 'recfleet serve', which reads no ratings, if every user has some to train on:"
    yield f"#   public: {{clients: {store.n_users}, items: {store.n_items}{mean}}}"
