"""Any finite number in any column: everything that reads a run takes it, or names the table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from run_helpers import run_text

from coordinator.engine.stop_reason import StopReason
from coordinator.results.comparison import compare_runs
from coordinator.results.comparison_report import comparison_record, render_comparison
from coordinator.results.diff import diff_runs, render_diff
from coordinator.results.figures import of_json
from coordinator.results.learnt import judge_learning
from coordinator.results.report.page import report_of
from coordinator.results.summary import summarise
from coordinator.results.summary_tables import render, render_details
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.reader import RunFormatError, open_run
from coordinator.results.tables.schemas import SCHEMAS
from coordinator.results.tables.trace import trace_events
from coordinator.results.verdicts import json_values, verdict_records
from coordinator.scenario.load import load
from coordinator.scenario.threshold_evaluation import evaluate
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.metrics import exposition

SCENARIO = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 20, items: 20, ratings_per_user: 8}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 3, learning_rate: 0.05}
rounds: {count: 3, cohort: 6, deadline: 120 s}
evaluation: {every: 1}
faults: [{name: gone, vanish: {}, at_stage: report, on: {fraction: 20%}}]
thresholds: {device.latency: [p95 < 3 s], model.rmse: [last < 3], device.up_bytes: [mean < 1 MB]}
"""
TABLES = ("events", "device_rounds", "rounds", "evaluations", "faults")
SOME = (
    ("rounds", "end_s"), ("rounds", "loss"), ("rounds", "round"), ("device_rounds", "latency_s"),
    ("evaluations", "value"), ("device_rounds", "up_bytes"), ("events", "payload_bytes"),
)  # fmt: skip
"""Columns that most is made of."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run_text(folder, SCENARIO)
    run_text(folder, SCENARIO, ["rounds.cohort=5"], name="other")
    return folder


def read_all(run: Path, other: Path, scenario: Path) -> None:
    """Let everything read a run that reads runs."""
    loaded, tables = load(scenario), open_run(run)
    console = Console(width=100)
    summary = json.loads(json.dumps(json_values(summarise(tables)), allow_nan=False))
    console.print(render(of_json(summary)), render_details(of_json(summary)))
    json.dumps(trace_events(tables), allow_nan=False)
    judge_learning(loaded.scenario, tables, StopReason.LAST_ROUND)
    verdicts = evaluate(loaded.scenario.thresholds, TableMetricSource(tables), None)
    json.dumps(verdict_records(verdicts), allow_nan=False)
    assert "<html" in report_of([run])
    assert "<html" in report_of([run, other])
    assert render_diff(diff_runs(tables, open_run(other)), "a", "b")
    compared = compare_runs([other, run])
    json.dumps(comparison_record(compared), allow_nan=False)
    console.print(*render_comparison(compared, 100))
    live = LiveState()
    live.on_begin(loaded, "virtual", None)
    for table in TABLES:
        for batch in tables.read(table).to_batches():
            live.on_batch(table, batch)
    json.dumps(live.changes(-1), allow_nan=False)
    assert exposition(live)[0]


def huge(kind: Any, sign: int) -> float | int:
    """Return the number of a type that is farthest from 0."""
    if pa.types.is_integer(kind):
        most = int(2 ** (kind.bit_width - 1))
        return most - 1 if sign > 0 else -most
    return sign * 1.7e308


def huge_numbers(file: Path, columns: Sequence[str], sign: int) -> None:
    """Write a table with huge numbers in some columns; nulls stay: whether there is a number is no number."""
    rows = pq.read_table(file)
    for column in columns:
        field = rows.schema.field(column)
        values = [None if one is None else huge(field.type, sign) for one in rows.column(column).to_pylist()]
        rows = rows.set_column(rows.schema.get_field_index(column), field, pa.array(values, field.type))
    pq.write_table(rows, file)


@pytest.mark.parametrize(("table", "column"), SOME)
@pytest.mark.few(1)
def test_huge_numbers_are_read(table: str, column: str, runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "run-out", run)
    huge_numbers(run / f"{table}.parquet", [column], 1)
    if column == "round":
        with pytest.raises(RunFormatError, match="is of rounds that the table of rounds has not"):
            read_all(run, runs / "other-out", runs / "run.yaml")
    else:
        read_all(run, runs / "other-out", runs / "run.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(("half", "sign"), [(0, 1), (1, -1)])
@pytest.mark.parametrize("table", TABLES)
def test_huge_numbers_are_read_in_many_columns(
    table: str, half: int, sign: int, runs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "run-out", run)
    numbers = [
        one.name
        for one in SCHEMAS[table]
        if not pa.types.is_dictionary(one.type) and one.name not in ("round", "device")
    ]
    huge_numbers(run / f"{table}.parquet", numbers[half::2], sign)
    read_all(run, runs / "other-out", runs / "run.yaml")
