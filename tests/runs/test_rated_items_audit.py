"""The audit of uploads in runs: single updates give every rated item away, sums what anybody has rated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows_of, run_text

from coordinator.scenario.errors import ScenarioError

TEXT = """
format: 2
title: small
seed: 3
data: {source: synthetic-ratings, users: 20, items: 60, ratings_per_user: 8}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 2, upload: dense}
rounds: {count: 2, cohort: 5, quorum: 100%, deadline: 120 s}
evaluation: {every: 2}
audit: {rated_items: true}
"""
SECURE = "secure_aggregation={mode: secagg, crypto: modelled}"
NAMES = ("precision", "recall", "chance", "singletons")


def figures(folder: Path, *overrides: str, text: str = TEXT, name: str = "run") -> dict[str, Any]:
    run = run_text(folder, text, overrides, name)
    rows = [row for row in rows_of(run, "evaluations") if row["metric"].startswith("audit.rated_")]
    assert [row["metric"] for row in rows] == [f"audit.rated_{name}" for name in NAMES]
    assert len({row["users"] for row in rows}) == 1
    return {row["metric"].removeprefix("audit.rated_"): row["value"] for row in rows} | {
        "users": rows[0]["users"]
    }


@pytest.mark.parametrize("pacing", ["{mode: synchronous}", "{mode: buffered, concurrency: 6}"])
def test_single_updates_give_all_away(pacing: str, tmp_path: Path) -> None:
    found = figures(tmp_path, f"rounds.pacing={pacing}")
    assert (found["precision"], found["recall"], found["singletons"]) == (1.0, 1.0, 1.0)
    assert 0.05 < found["chance"] < 0.25
    assert 5 <= found["users"] <= 12


def test_a_secure_sum_gives_what_anybody_has_rated(tmp_path: Path) -> None:
    found = figures(tmp_path, SECURE)
    assert found["recall"] == 1.0
    # Who rated what is not in it: the precision is the mean share of a row's devices that rated the item.
    assert found["chance"] < found["precision"] < 0.6
    assert 0 < found["singletons"] < 1
    assert found["users"] <= 10


@pytest.mark.slow
def test_negatives_are_told_from_positives_in_single_updates_alone(tmp_path: Path) -> None:
    text = TEXT.replace("algorithm: fedrecon", "algorithm: pfedrec").replace(
        "every: 2", "every: 2, ranking: {}"
    )
    single = figures(tmp_path, text=text, name="single")
    assert (single["precision"], single["recall"]) == (1.0, 1.0)
    summed = figures(tmp_path, SECURE, text=text, name="summed")
    assert summed["precision"] < 0.6
    assert summed["recall"] < 1.0


@pytest.mark.slow
def test_an_audit_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    texts = (TEXT, TEXT.replace("audit: {rated_items: true}\n", ""))
    runs = [run_text(tmp_path, text, (), f"run{number}") for number, text in enumerate(texts)]
    audited, plain = ((run.directory / "model.npz").read_bytes() for run in runs)
    assert audited == plain


def test_uploads_without_rows_of_items_are_refused(tmp_path: Path) -> None:
    text = TEXT.replace("algorithm: fedrecon, factors: 2, upload: dense", "algorithm: gpfedrec, factors: 2")
    text = text.replace("every: 2", "every: 2, ranking: {}")
    with pytest.raises(ScenarioError, match=r"audit.rated_items: 'gpfedrec' uploads no rows of items"):
        run_text(tmp_path, text, (), "none")


def test_nothing_heard_is_no_figure(tmp_path: Path) -> None:
    found = figures(tmp_path, "rounds.deadline=1 ms", "expect=no-round-completed")
    assert [found[name] for name in (*NAMES, "users")] == [None, None, None, None, 0]
