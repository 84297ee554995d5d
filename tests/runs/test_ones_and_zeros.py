"""`data.negatives`: methods of ratings on implicit feedback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import rows_of, run_text

import coordinator.engine.evaluation
from coordinator.run.assembling import assemble
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load
from edge.metrics.ranking import rank_fully

SCENARIO = """
format: 2
seed: 6
data:
  source: synthetic-ratings
  users: 60
  items: 90
  ratings_per_user: 12
  positive: 3
  negatives: 3
  split: {kind: ratio, test: 20%}
fleet: {mix: iot_gateways}
learning: {algorithm: fedrecon, factors: 4, upload: dense, weighting: uniform}
rounds: {count: 2, cohort: 20, deadline: 600 s}
evaluation: {every: 2, ranking: {k: [10]}}
"""


def loaded(folder: Path, *settings: str) -> Any:
    (folder / "s.yaml").write_text(SCENARIO)
    return load(folder / "s.yaml", list(settings))


def test_devices_train_on_ones_and_zeros_drawn_anew(tmp_path: Path) -> None:
    workload: Any = assemble(loaded(tmp_path, "data.held_out_negatives=spared")).workload
    train, users = workload.split.train, workload.clients.users
    first, second = (workload.training_batch(users, number) for number in (0, 1))
    again = workload.training_batch(users[::-1], 0)
    clients = np.arange(workload.n_clients)
    np.testing.assert_array_equal(np.diff(first.indptr), workload.examples(clients))
    np.testing.assert_array_equal(workload.held(clients), train.counts[users])
    # Three zeros for each rating, unless fewer are left: the most that is kept back of anybody is spared.
    most, rated = int(workload.split.held_out.counts.max()), train.counts[users]
    expected = np.minimum(4 * rated, 90 - most)
    assert 90 - most < 4 * int(rated.max())
    np.testing.assert_array_equal(workload.examples(clients), expected)
    moved = 0
    for index, user in enumerate(users.tolist()):
        part = slice(first.indptr[index], first.indptr[index + 1])
        ones = first.items[part][first.ratings[part] == 1]
        np.testing.assert_array_equal(ones, train.local(user)[0])
        held_out = set(workload.split.held_out.local(user)[0].tolist())
        assert not held_out & set(first.items[part].tolist())
        moved += set(first.items[part].tolist()) != set(second.items[part].tolist())
        back = len(users) - 1 - index
        np.testing.assert_array_equal(
            first.items[part], again.items[again.indptr[back] : again.indptr[back + 1]]
        )
    assert moved > 50
    assert workload.algorithm.initial_state(0)["rating_mean"][0] == np.float32(rated.sum() / expected.sum())


def test_a_run_ranks_and_has_no_errors_of_ratings(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SCENARIO)
    assert outcome.status == "finished"
    metrics = {row["metric"] for row in rows_of(outcome, "evaluations")}
    assert metrics == {"hr@10", "ndcg@10", "recall@10", "precision@10"}


def test_zeros_that_a_device_drew_are_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: list[Any] = []

    def keep(scores: Any, relevant: Any, exclude: Any, **how: Any) -> Any:
        left_out.append(exclude)
        return rank_fully(scores, relevant, exclude, **how)

    monkeypatch.setattr(coordinator.engine.evaluation, "rank_fully", keep)
    assembly = assemble(loaded(tmp_path))
    workload: Any = assembly.workload
    assembly.evaluator.evaluate(workload.algorithm.initial_state(0))
    train = workload.split.train
    everybody = train.gather(np.flatnonzero(workload.split.test.counts))
    assert len(left_out) > 0
    for excluded in left_out:
        np.testing.assert_array_equal(excluded.items, everybody.items)


def test_tiers_go_by_ratings_and_not_by_zeros(tmp_path: Path) -> None:
    tiers = "[{name: few, up_to: 15, noise_multiplier: 2}, {name: many, noise_multiplier: 1}]"
    privacy = f"privacy={{mechanism: personal-gaussian, clip_norm: 1, tiers: {tiers}}}"
    assembly = assemble(loaded(tmp_path, privacy))
    workload: Any = assembly.workload
    few = int(np.count_nonzero(workload.split.train.counts[workload.clients.users] <= 15))
    assert 0 < few < workload.n_clients
    assert assembly.privacy is not None
    facts: Any = assembly.privacy.facts()
    assert facts["tiers"]["few"]["devices"] == few


NCF = ["learning=null", "learning={algorithm: fedncf, gmf_factors: 4, mlp_factors: 6, layers: [8, 4]}"]


@pytest.mark.slow
@pytest.mark.parametrize("learning", [[], NCF])
def test_what_is_held_out_is_drawn_unless_it_is_spared(learning: list[str], tmp_path: Path) -> None:
    zeros = "data.negatives=null" if learning else "data.negatives=80"
    for how, expected in (("=spared", 0), ("=drawn", 1), ("=null", 1)):
        workload: Any = assemble(loaded(tmp_path, *learning, zeros, f"data.held_out_negatives{how}")).workload
        algorithm, users = workload.algorithm, workload.clients.users
        held_out = workload.split.held_out.gather(users)
        codes = np.repeat(np.arange(len(users)), held_out.counts) * 90 + held_out.items
        found: set[int] = set()
        for number in range(30):
            if learning:
                updates = workload.training(algorithm.initial_state(0), number)(np.arange(len(users)))()
                rows = [(client, update.arrays["items"]) for client, update in enumerate(updates)]
            else:
                batch = workload.training_batch(users, number)
                rows = list(enumerate(np.split(batch.items, batch.indptr[1:-1])))
            found.update(
                code for client, items in rows for code in (client * 90 + items.astype(int)).tolist()
            )
        share = len(found & set(codes.tolist())) / len(codes)
        assert share == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["evaluation.ranking=null"], "with data.negatives a method predicts no ratings"),
        (NCF, "draws negatives by itself; write 'negatives' in learning"),
        (["data.negatives=0"], "negatives"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=message):
        loaded(tmp_path, *settings)


def test_masks_are_not_judged_by_ones_and_zeros(tmp_path: Path) -> None:
    masks = [
        "data.features={kind: synthetic}",
        "learning={algorithm: fedmmf, mask: {kind: zero-order}, factors: 4, weighting: uniform}",
    ]
    with pytest.raises(ScenarioError, match="audits compare masks with ratings"):
        loaded(tmp_path, *masks, "audit={}")
    shield = "shielded: {test: indicator, at_most: 0.1}"
    shielded = f"secure_aggregation={{mode: secagg-plus, clip: 9, examples_max: 200, {shield}}}"
    with pytest.raises(ScenarioError, match="masks are judged by ratings"):
        loaded(tmp_path, *masks, shielded)


def test_devices_recommend_what_they_have_not_taken_to(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SCENARIO, ["inference={every: 2, devices: 40}"])
    assert outcome.status == "finished"
    workload: Any = assemble(loaded(tmp_path)).workload
    rows = rows_of(outcome, "inferences")
    assert len(rows) == 40
    devices = np.array([row["device"] for row in rows])
    assert [row["rated"] for row in rows] == workload.held(devices).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("negatives", ["full", "20"])
def test_a_model_that_diverges_ends_in_metrics_that_are_no_numbers(negatives: str, tmp_path: Path) -> None:
    far = ["learning.optimizer={kind: sgd}", "learning.learning_rate=1e30", "learning.weighting=examples"]
    ranked = ["data.split={kind: leave-one-out, test: null}", f"evaluation.ranking.negatives={negatives}"]
    with np.errstate(all="ignore"):
        outcome = run_text(tmp_path, SCENARIO, [*far, *ranked])
    assert outcome.status == "diverged"
    values = {
        row["metric"]: row["value"]
        for row in rows_of(outcome, "evaluations")
        if row["round"] and row["tag"] == "all"
    }
    assert len(values) == 4
    assert set(values.values()) == {None}
    accuracy = json.loads((outcome.directory / "summary.json").read_text())["accuracy"]
    assert len(accuracy) == 4
    assert {row["last"] for row in accuracy} == {None}
    assert {row["best_round"] for row in accuracy} == {None}


@pytest.mark.parametrize("learning", ["fedrecon, reconstruction: {method: gradient-steps}", "fedavg-mf"])
@pytest.mark.parametrize("loss", ["cross-entropy", "bpr", "sampled-softmax"])
@pytest.mark.few(3)
def test_every_loss_learns_to_rank(learning: str, loss: str, tmp_path: Path) -> None:
    section = f"learning={{algorithm: {learning}, factors: 4, loss: {loss}, learning_rate: 0.05}}"
    settings = ["learning=null", section, "rounds.count=20", "evaluation.every=20"]
    outcome = run_text(tmp_path, SCENARIO, settings)
    values = {
        row["round"]: row["value"]
        for row in rows_of(outcome, "evaluations")
        if row["metric"] == "ndcg@10" and row["tag"] == "all"
    }
    assert values[20] > 1.3 * values[0]


def test_a_loss_of_ones_and_zeros_needs_zeros(tmp_path: Path) -> None:
    learning = ["learning=null", "learning={algorithm: fedavg-mf, loss: bpr}"]
    assert loaded(tmp_path, *learning).scenario.learning.loss == "bpr"
    with pytest.raises(ScenarioError, match=r"learning\.loss: is a loss of ones and zeros; write"):
        loaded(tmp_path, *learning, "data.negatives=null")
