"""Predictions as a table: metrics made of it, by their textbook formulas, are those of the run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
import pytest

import recfleet
from coordinator.cli.entry import execute

BASE: dict[str, Any] = {
    "format": 2,
    "seed": 2,
    "data": {"source": "synthetic-ratings", "users": 40, "items": 50, "ratings_per_user": 12},
    "fleet": {"mix": "enterprise_wifi", "availability": "always_on"},
    "learning": {"algorithm": "fedrecon", "factors": 3},
    "rounds": {"count": 3, "cohort": 20, "deadline": "60 s"},
    "evaluation": {"every": 3, "ranking": {"k": [5, 10]}},
}
RANKS = {"data": {"split": {"kind": "leave-one-out"}}, "evaluation": {"ranking": {"negatives": 20}}}
UNSEEN = {"data": {"split": {"kind": "users", "unseen": "30%", "test": "20%"}}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _of_users(table: Any, population: str) -> Iterator[list[dict[str, Any]]]:
    users: dict[int, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        if row["population"] == population:
            users.setdefault(row["user"], []).append(row)
    yield from users.values()


def _by_the_textbook(table: Any, population: str, k: int) -> dict[str, float]:
    """Return means over users, each formula from the ranks of what was kept back."""
    found: dict[str, list[float]] = {name: [] for name in ("hr", "ndcg", "recall", "precision")}
    squared: list[float] = []
    for rows in _of_users(table, population):
        ranks = [row["rank"] for row in rows if row["rating"] is not None]
        hits = [rank for rank in ranks if rank <= k]
        gain = sum(1 / math.log2(rank + 1) for rank in hits)
        best = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(ranks), k) + 1))
        found["hr"].append(float(bool(hits)))
        found["ndcg"].append(gain / best)
        found["recall"].append(len(hits) / len(ranks))
        found["precision"].append(len(hits) / k)
        squared += [(row["score"] - row["rating"]) ** 2 for row in rows if row["rating"] is not None]
    return {name: float(np.mean(values)) for name, values in found.items()} | {
        "rmse": math.sqrt(float(np.mean(squared)))
    }


def _last(run: recfleet.Run, metric: str, population: str) -> float:
    rows = run.evaluations.to_pylist()
    wanted = [
        row for row in rows if (row["metric"], row["tag"], row["population"]) == (metric, "all", population)
    ]
    return float(wanted[-1]["value"])


@pytest.mark.parametrize(
    "learning",
    [
        {"algorithm": "fedrecon", "factors": 3},
        {"algorithm": "blur", "factors": 3, "norm_bound": 1.0},
        {"algorithm": "fedavg-mf", "factors": 3},
        {"algorithm": "fedncf", "mlp_factors": 4, "user_embeddings": "reconstructed"},
        {"algorithm": "pfedme", "factors": 3},
    ],
    ids=lambda one: str(one["algorithm"]),
)
@pytest.mark.parametrize("change", [{}, RANKS, UNSEEN], ids=["full", "sampled", "unseen"])
@pytest.mark.few(4)
def test_metrics_of_the_table_are_those_of_the_run(learning: dict[str, Any], change: dict[str, Any]) -> None:
    scenario = recfleet.Scenario.of({**BASE, "learning": learning}).edited(change)
    run = recfleet.run(scenario)
    table = run.predict(top=10)
    suffix = "/20neg" if change is RANKS else ""
    populations = set(run.evaluations["population"].to_pylist())
    assert set(table["population"].to_pylist()) == populations
    for population in populations:
        for k in (5, 10):
            made = _by_the_textbook(table, population, k)
            for name in ("hr", "ndcg", "recall", "precision"):
                assert made[name] == pytest.approx(_last(run, f"{name}@{k}{suffix}", population), abs=1e-9)
        if "rmse" in set(run.evaluations["metric"].to_pylist()):
            assert made["rmse"] == pytest.approx(_last(run, "rmse", population), rel=1e-6)


def test_the_table_has_the_first_candidates_and_all_that_was_kept_back() -> None:
    run = recfleet.run(BASE)
    short, long = run.predict(top=3), run.predict(top=1000)
    for rows in _of_users(long, "seen"):
        assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
        assert all(one["score"] >= other["score"] for one, other in itertools.pairwise(rows))
    kept = long.filter(
        pyarrow.compute.or_(pyarrow.compute.less_equal(long["rank"], 3), long["rating"].is_valid())
    )
    assert short.equals(kept)
    trained = run.manifest["data"]["training_ratings"]
    assert long.num_rows == 40 * 50 - trained


def test_the_verb_writes_parquet_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    recfleet.run(BASE, out="it")
    for name in ("p.parquet", "p.csv"):
        assert execute(["predict", "it", "-o", name]) == 0
    shown = capsys.readouterr().out
    table = pyarrow.parquet.read_table("p.parquet")
    assert shown.startswith(
        f"p.parquet: {table.num_rows:,} rows of user, item, score, rank, rating, population"
    )
    assert pyarrow.csv.read_csv("p.csv")["rank"].to_pylist() == table["rank"].to_pylist()
    assert execute(["predict", "it", "-o", "p.xlsx"]) == 2
    assert "written as .parquet or .csv" in capsys.readouterr().err
    assert execute(["predict", "it", "--split", "validation", "-o", "p.csv"]) == 2
    assert "write 'validation: 10%' in data.split" in capsys.readouterr().err
    assert sorted(one.name for one in Path().iterdir()) == ["it", "p.csv", "p.parquet"]


def test_ids_are_those_of_the_data(folder: Path) -> None:
    rows = [f"u{user},i{item},{1 + (user + item) % 5}" for user in range(30) for item in range(user % 7, 20)]
    (folder / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
    run = recfleet.run({**BASE, "data": {"source": "auto", "path": "ratings.csv"}})
    table = run.predict()
    assert set(table["user"].to_pylist()) <= {f"u{user}" for user in range(30)}
    there = {tuple(row.split(",")[:2]) for row in rows}
    kept = table.filter(table["rating"].is_valid())
    assert {(row["user"], row["item"]) for row in kept.to_pylist()} <= there
    (folder / "ratings.csv").rename("moved.csv")
    with pytest.raises(recfleet.ScenarioError, match=r"no such file or folder.*ratings\.csv"):
        run.predict()
    assert run.predict(set={"data.path": "moved.csv"}).equals(table)
    (folder / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows[:-1]) + "\nu29,i19,1")
    with pytest.raises(recfleet.ExportError, match="are not those of the run"):
        run.predict()


def test_a_run_without_what_it_takes_is_refused() -> None:
    kept = recfleet.run({**BASE, "learning": {"algorithm": "fedmf", "factors": 3}})
    with pytest.raises(recfleet.ExportError, match="stay on the devices"):
        kept.predict()
    regression = {**BASE, "data": {"source": "synthetic-regression", "clients": 30}}
    regression |= {"learning": {"algorithm": "linear-regression"}, "evaluation": {"every": 1}}
    with pytest.raises(recfleet.ExportError, match="ranks no items"):
        recfleet.run(regression).predict()
