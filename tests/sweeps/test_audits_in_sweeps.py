"""The figures of audits stand in the tables of sweeps; how they are distributed over users, in summaries."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console
from sweep_helpers import cells_of

import recfleet
from coordinator.engine.progress import RunObserver
from coordinator.results.sweep import CellResult, csv_text, json_table, sweep_tables
from coordinator.sweeps.runs import Task, perform

TEXT = """\
format: 2
seed: 3
data:
  source: synthetic-ratings
  users: 30
  items: 40
  ratings_per_user: 10
  features: {kind: synthetic}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedmmf, factors: 2, mask: {kind: one-order, regularization: 1}}
rounds: {count: 1, cohort: 10, deadline: 60 s}
audit: {recovery: [0.5], ranking: [3, 20%], buckets: 4}
sweep:
  learning.mask.regularization: [1, 1000]
"""


def test_audits_of_each_cell_are_in_its_figures(tmp_path: Path) -> None:
    results = []
    for cell in cells_of(tmp_path, TEXT):
        result = perform(Task(cell.runs[0], tmp_path / f"out-{cell.number}"), RunObserver())
        results.append(CellResult(cell, {cell.runs[0].scenario.seed: result}))
    recovered = []
    for at, cell in enumerate(json_table("small", 1, results, tmp_path)["cells"]):
        run = recfleet.open_run(tmp_path / cell["runs"][0]["directory"])
        rows = {row["metric"]: row["value"] for row in run.evaluations.to_pylist() if row["tag"] == "all"}
        for name in (
            "audit.recovery@0.5",
            "audit.recovery_chance@0.5",
            "audit.ranking@20%",
            "audit.indicator",
        ):
            assert results[at].estimates()[f"{name} last"][1].mean == rows[name]
            assert cell["figures"][f"{name} last"]["mean"] == rows[name]
        recovered.append(rows["audit.recovery@0.5"])
        assert not any("_users@" in name for name in cell["figures"])
        users = run.summary["audit_users"]
        assert set(users) == {
            f"audit.{kind}_users@{bound}"
            for kinds, bounds in (
                (("recovery", "recovery_midrange", "recovery_chance"), ("0.5",)),
                (("ranking", "ranking_chance", "ranking_clear"), ("3", "20%")),
            )
            for kind in kinds
            for bound in bounds
        }
        for shares in users.values():
            assert list(shares) == ["0% to 25%", "25% to 50%", "50% to 75%", "75% to 100%"]
            assert sum(shares.values()) == pytest.approx(1)
    assert recovered[0] != recovered[1]
    read = csv.DictReader(io.StringIO(csv_text(results)))
    assert [float(row["audit.recovery@0.5 last mean"]) for row in read] == recovered
    console = Console(width=120, record=True)
    for table in sweep_tables(results, 120, everything=True):
        console.print(table)
    assert "audit." in console.export_text()
