"""Metrics by users' activity and items' popularity, and rankings of other kinds, by independent counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import run_text

from coordinator.engine.evaluation import _popularity_groups
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.scenario.dump import scenario_hash
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load
from edge.core.rng import hashed_bits

SCENARIO = """
format: 2
seed: 4
data:
  source: synthetic-ratings
  users: 60
  items: 50
  ratings_per_user: 12
  split: {kind: ratio, test: 30%}
fleet: {mix: iot_gateways}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {count: 2, cohort: 20, deadline: 600 s}
evaluation:
  by: [activity, popularity]
  ranking: {k: [5], metrics: [recall, coverage, novelty, auc]}
"""


def assembled(folder: Path, *settings: str) -> Any:
    (folder / "s.yaml").write_text(SCENARIO)
    return assemble(load(folder / "s.yaml", list(settings)))


def values_of(assembly: Any) -> dict[tuple[str, str, str], tuple[float, int]]:
    state = assembly.workload.algorithm.initial_state(1)
    return {
        (one.metric, one.tag, one.group): (one.value, one.users) for one in assembly.evaluator.evaluate(state)
    }


def test_figures_by_activity_and_popularity_are_those_of_the_ratings_in_each_group(tmp_path: Path) -> None:
    assembly = assembled(tmp_path)
    workload = assembly.workload
    train, test = workload.split.train, workload.split.test
    users = np.flatnonzero(test.counts)
    keys = hashed_bits(assembly.evaluator._key, users)
    state = workload.algorithm.initial_state(1)
    support, query = train.gather(users), test.gather(users)
    errors = workload.algorithm.predict(state, support, query, keys, None) - query.ratings
    owners = np.repeat(np.arange(len(users)), query.counts)
    scores = workload.algorithm.scores(state, support, keys, None).astype(np.float64)
    scores[np.repeat(np.arange(len(users)), support.counts), support.items] = -np.inf
    lists = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    hit = np.array([item in lists[owner] for owner, item in zip(owners, query.items, strict=True)])

    counts = train.counts[users]
    ordered = np.sort(counts)
    third = np.searchsorted(np.quantile(ordered, (1 / 3, 2 / 3)), counts)
    popularity = train.item_counts()
    groups = {("activity", name): third[owners] == at for at, name in enumerate(("light", "medium", "heavy"))}
    of_item = _popularity_groups(popularity, 3)
    groups |= {
        ("popularity", name): of_item[query.items] == at for at, name in enumerate(("head", "middle", "tail"))
    }
    found = values_of(assembly)
    for (tag, name), chosen in groups.items():
        rmse, n = found["rmse", tag, name]
        assert rmse == pytest.approx(np.sqrt(np.mean(np.square(errors[chosen], dtype=np.float64))), rel=1e-6)
        assert n == len(np.unique(owners[chosen]))
        recalls = [hit[chosen & (owners == user)].mean() for user in np.unique(owners[chosen])]
        assert found["recall@5", tag, name][0] == pytest.approx(np.mean(recalls), abs=1e-12)
        others = [
            np.mean([(s > v) + (s == v) / 2 for v in negatives])
            for user in np.unique(owners[chosen])
            for negatives in [
                np.delete(scores[user], query.items[owners == user])[
                    np.isfinite(np.delete(scores[user], query.items[owners == user]))
                ]
            ]
            for s in [scores[user][query.items[chosen & (owners == user)]][:, None]]
        ]
        # Users differ in how many relevant items they have; the mean is of users' means.
        assert found["auc", tag, name][0] == pytest.approx(np.mean(others), abs=1e-6)
    assert found["coverage@5", "all", "all"][0] == len(np.unique(lists)) / 50
    bits = -np.log2(np.maximum(popularity, 1) / np.count_nonzero(train.counts))
    assert found["novelty@5", "all", "all"][0] == pytest.approx(bits[lists].mean(), abs=1e-12)
    # What is listed is listed for users; no item of a group is listed by itself.
    assert ("coverage@5", "activity", "light") in found
    assert ("coverage@5", "popularity", "head") not in found


def test_popular_items_hold_a_third_of_the_ratings_each() -> None:
    counts = np.array([0, 30, 10, 25, 5, 5, 5, 5, 5, 0])
    assert _popularity_groups(counts, 3).tolist() == [2, 0, 1, 1, 2, 2, 2, 2, 2, 2]
    assert _popularity_groups(np.zeros(3, np.int64), 3).tolist() == [2, 2, 2]


def test_thresholds_take_groups_and_a_run_writes_them(tmp_path: Path) -> None:
    promises = (
        "thresholds:\n  model.rmse{activity=heavy}: [last < 100]\n  model.auc{popularity=tail}: [last > 0]"
    )
    outcome = run_text(tmp_path, SCENARIO + promises)
    assert [verdict.held for verdict in outcome.verdicts] == [True, True]
    source = TableMetricSource(open_run(outcome.directory))
    assert len(source.values("model.coverage@5", {"activity": "light"})) == 2
    assert not len(source.values("model.coverage@5", {"popularity": "head"}))


@pytest.mark.parametrize(
    ("evaluation", "threshold", "message"),
    [
        ("by: [activity]", "model.rmse{activity=lazy}", "unknown activity 'lazy'"),
        ("by: [activity]", "model.loss{activity=light}", "model.loss has no tag 'activity'"),
        ("by: [activity]", "model.coverage@5/9neg", "unknown metric 'model.coverage@5/9neg'"),
        (
            "by: [popularity]",
            "model.rmse{activity=light}",
            r"only measured by activity on demand; write 'by: \[activity\]' in evaluation",
        ),
        (
            "ranking: {negatives: 9, metrics: [auc, novelty]}",
            "model.rmse",
            r"metrics\[1\]: 'novelty' is of what is recommended, and sampled candidates are not",
        ),
        ("on: devices, by: [activity]", "model.rmse", "evaluation.by: groups what the simulator sees"),
        (
            "on: devices, ranking: {metrics: [mrr, coverage]}",
            "model.rmse",
            r"evaluation.ranking.metrics\[1\]: 'coverage' is of what everybody is recommended",
        ),
    ],
)
def test_groups_and_metrics_that_do_not_fit_are_refused(
    evaluation: str, threshold: str, message: str, tmp_path: Path
) -> None:
    text = SCENARIO[: SCENARIO.index("evaluation:")].replace(
        "{kind: ratio, test: 30%}", "{kind: leave-one-out}"
    )
    text += f"evaluation: {{{evaluation}}}\nthresholds: {{'{threshold}': [last < 9]}}\n"
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ScenarioError, match=message):
        load(tmp_path / "s.yaml")


def test_a_scenario_that_asks_for_nothing_new_keeps_its_name(tmp_path: Path) -> None:
    hashes = []
    for evaluation in (
        "ranking: {k: [5]}",
        "by: [], ranking: {k: [5], metrics: [hr, ndcg, recall, precision]}",
        "by: [activity], ranking: {k: [5]}",
        "ranking: {k: [5], metrics: [hr]}",
    ):
        text = SCENARIO[: SCENARIO.index("evaluation:")] + f"evaluation: {{{evaluation}}}\n"
        (tmp_path / "s.yaml").write_text(text)
        hashes.append(scenario_hash(load(tmp_path / "s.yaml").scenario))
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
