"""Rankings of one held-out item among sampled ones, as a scenario asks for them."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import rows_of, run_text, tables_of

import coordinator.engine.evaluation
from coordinator.run.assembling import assemble
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load
from edge.data.published import read_published_ml_1m
from edge.data.synthetic import generate_ratings
from edge.metrics.ranking import rank_among

SCENARIO = """
format: 2
seed: 4
data: {source: synthetic-ratings, users: 150, items: 160, ratings_per_user: 12, split: {kind: leave-one-out}}
fleet: {mix: iot_gateways}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {count: 2, cohort: 20, deadline: 60 s}
evaluation: {every: 2, ranking: {k: [5, 20], negatives: 20}}
"""


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Collect what is ranked, a pair of positives and negatives a batch of users."""
    seen: list[tuple[Any, Any]] = []

    def keep(positive_scores: Any, scores: Any, positives: Any, negatives: Any, **how: Any) -> Any:
        seen.append((positives, negatives))
        return rank_among(positive_scores, scores, positives, negatives, **how)

    monkeypatch.setattr(coordinator.engine.evaluation, "rank_among", keep)
    return seen


@pytest.mark.parametrize("part", ["test", "validation"])
def test_an_item_the_user_rated_in_any_part_is_never_a_negative(
    part: str, tmp_path: Path, ranked: list[tuple[Any, Any]]
) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    loaded = load(tmp_path / "s.yaml", [f"evaluation.on={part}"])
    assembly = assemble(loaded)
    data: Any = loaded.scenario.data
    ratings = generate_ratings(data.spec(), seed=4)
    algorithm = assembly.workload.algorithm
    values = assembly.evaluator.evaluate(algorithm.initial_state(0))
    positives, negatives = (np.concatenate(arrays) for arrays in zip(*ranked, strict=True))
    least = 2 if part == "test" else 3
    users = np.flatnonzero(ratings.counts >= least)
    assert negatives.shape == (users.size, 20)
    for user, positive, row in zip(users.tolist(), positives.tolist(), negatives.tolist(), strict=True):
        rated = set(ratings.local(user)[0].tolist())
        assert positive in rated
        assert not rated & set(row)
    of_all = {value.metric: value.value for value in values if value.tag == "all"}
    assert of_all["hr@20/20neg"] >= of_all["hr@5/20neg"] > 0


def test_the_number_of_negatives_is_in_the_names(tmp_path: Path) -> None:
    rows = rows_of(run_text(tmp_path, SCENARIO), "evaluations")
    names = {row["metric"] for row in rows if "@" in row["metric"]}
    assert names == {
        f"{metric}@{k}/20neg" for metric in ("hr", "ndcg", "recall", "precision") for k in (5, 20)
    }


@pytest.mark.slow
def test_the_published_negatives_are_the_ones_ranked(tmp_path: Path, ranked: list[tuple[Any, Any]]) -> None:
    folder = os.environ.get("RECFLEET_DATA")
    if folder is None:
        pytest.skip("set RECFLEET_DATA to a folder that holds ml-1m")
    published = read_published_ml_1m(Path(folder, "ml-1m"))
    data = f"{{source: movielens-1m, path: {folder}/ml-1m, split: {{kind: published-leave-one-out}}}}"
    lines = SCENARIO.replace("negatives: 20", "negatives: 99").splitlines()
    lines[3] = f"data: {data}"
    outcome = run_text(tmp_path, "\n".join(lines), ["rounds.count=1", "evaluation.final=false"])
    positives, negatives = (np.concatenate(arrays) for arrays in zip(*ranked, strict=True))
    assert np.array_equal(positives, published.positives)
    assert np.array_equal(negatives, published.negatives)
    assert tables_of(outcome).manifest["data"]["rated_negatives"] == 156


def test_more_negatives_than_unrated_items_are_refused_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("negatives: 20", "negatives: 155"))
    with pytest.raises(ScenarioError) as refused:
        assemble(load(tmp_path / "s.yaml"))
    (error,) = refused.value.problems
    assert (
        str(error)
        .split("s.yaml", 1)[1]
        .startswith(":8:57: evaluation.ranking.negatives: 155 negatives asked for, but a user has ")
    )
    most = int(str(error).split("a user has ")[1].split()[0])
    assert assemble(load(tmp_path / "s.yaml", [f"evaluation.ranking.negatives={most}"])) is not None
