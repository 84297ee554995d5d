"""FedNCF and FedRecGEL in the simulator: what they draw, send, keep and are measured by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import rows_of, run_text

import coordinator.engine.evaluation
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load
from edge.learning.updates import ITEMS
from edge.metrics.ranking import rank_among, ranks_among

NCF = "algorithm: fedncf, gmf_factors: 4, mlp_factors: 6, layers: [8, 4], learning_rate: 0.05"
GEL = f"algorithm: fedrecgel, base: {{{NCF}, upload: dense, weighting: uniform}}"
SCENARIO = """
format: 2
seed: 4
data:
  source: synthetic-ratings
  users: 80
  items: 90
  ratings_per_user: 12
  positive: 3
  split: {{kind: leave-one-out}}
fleet: {{mix: iot_gateways}}
learning: {{{learning}}}
rounds: {{count: 3, cohort: 20, deadline: 600 s}}
evaluation: {{every: 3, ranking: {{negatives: 20}}}}
"""


def loaded(folder: Path, learning: str, *settings: str) -> Any:
    (folder / "s.yaml").write_text(SCENARIO.format(learning=learning))
    return load(folder / "s.yaml", list(settings))


def test_spared_items_are_never_drawn_and_low_ratings_may_be(tmp_path: Path) -> None:
    assembly = assemble(loaded(tmp_path, NCF, "data.held_out_negatives=spared"))
    workload: Any = assembly.workload
    held_out = workload.split.held_out
    state = workload.algorithm.initial_state(0)
    clients = np.arange(workload.n_clients)
    seen = set()
    for round_number in range(25):
        updates = workload.training(state, round_number)(clients)()
        for client, update in zip(clients.tolist(), updates, strict=True):
            user = int(workload.clients.users[client])
            kept_back = held_out.local(user)[0].tolist()
            items = update.arrays[ITEMS].tolist()
            assert len(kept_back) == 2
            assert not set(kept_back) & set(items)
            seen.update((user, item) for item in items)
    without = assemble(loaded(tmp_path, NCF, "data.positive=null")).workload
    assert isinstance(without, RatingWorkload)
    assert workload.split.train.n_ratings < without.split.train.n_ratings
    assert float(workload.split.train.decoded().min()) >= 3
    free = workload.n_clients * (90 - 2)
    assert len(seen) > 0.95 * free, "every other item comes up sooner or later"


@pytest.mark.parametrize("learning", [NCF, "algorithm: fedrecon, factors: 4"])
def test_ranking_candidates_alone_is_ranking_their_scores(
    learning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def keep(*arguments: Any, **how: Any) -> Any:
        found.append((arguments, ranks_among(*arguments)))
        return rank_among(*arguments, **how)

    monkeypatch.setattr(coordinator.engine.evaluation, "rank_among", keep)
    assembly = assemble(loaded(tmp_path, learning))
    workload: Any = assembly.workload
    state = workload.algorithm.initial_state(3)
    assembly.evaluator.evaluate(state)
    ((_, _, positives, negatives), ranks) = found[0]
    evaluator: Any = assembly.evaluator
    users, candidates = evaluator.candidates()
    np.testing.assert_array_equal(candidates, np.column_stack([positives, negatives]))
    keys = coordinator.engine.evaluation.hashed_bits(evaluator._key, users)
    support = workload.training_batch(users, 0)
    scores = workload.algorithm.scores(state, support, keys, workload.kept_of(users))
    rows = np.arange(len(users))
    expected = ranks_among(scores[rows, positives], scores[rows[:, None], negatives], positives, negatives)
    np.testing.assert_array_equal(ranks, expected)
    whole: Any = assemble(loaded(tmp_path, learning, "evaluation.ranking.negatives=full")).evaluator
    with pytest.raises(ValueError, match="nothing is ranked among sampled items"):
        whole.candidates()


def test_a_run_of_fedrecgel_sums_securely_and_keeps_embeddings_on_devices(tmp_path: Path) -> None:
    text = SCENARIO.format(learning=GEL)
    settings = ["secure_aggregation={mode: secagg-plus, crypto: modelled, clip: 50, examples_max: 40}"]
    outcome = run_text(tmp_path, text, settings)
    assert outcome.status == "finished"
    values = {row["metric"]: row["value"] for row in rows_of(outcome, "evaluations") if row["tag"] == "all"}
    assert 0 < values["hr@10/20neg"] <= 1


def test_uploads_of_a_run_have_the_size_that_is_declared(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SCENARIO.format(learning=NCF))
    rows = [row for row in rows_of(outcome, "device_rounds") if row["outcome"] == "completed"]
    assert len(rows) > 0
    assembly = assemble(loaded(tmp_path, NCF))
    algorithm: Any = assembly.workload.algorithm
    for row in rows:
        examples = assembly.workload.examples(np.array([row["device"]]))
        payload = sum(int(spec.nbytes()[0]) for spec in algorithm.upload_spec(examples))
        assert payload < row["up_bytes"] < payload + 2000


def test_a_threshold_on_the_published_split_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.format(learning=NCF))
    data = "{source: movielens-1m, path: x, positive: 4, split: {kind: published-leave-one-out}}"
    with pytest.raises(ScenarioError, match="counts every rating as a positive; leave it out"):
        load(tmp_path / "s.yaml", ["data=null", f"data={data}"])


def test_a_method_that_only_ranks_needs_a_ranking_and_has_no_errors(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="predicts no ratings, only which items somebody takes to"):
        loaded(tmp_path, NCF, "evaluation.ranking=null")
    assert loaded(tmp_path, "algorithm: fedrecon, factors: 4", "evaluation.ranking=null") is not None
    assembly = assemble(loaded(tmp_path, NCF))
    values = assembly.evaluator.evaluate(assembly.workload.algorithm.initial_state(1))
    assert {value.metric.split("@")[0] for value in values} == {"hr", "ndcg", "recall", "precision"}


def test_a_sparse_upload_inside_a_wrapper_is_named_where_it_stands(tmp_path: Path) -> None:
    wrapped = f"algorithm: fedrecgel, base: {{{NCF}, upload: sparse}}"
    with pytest.raises(ScenarioError, match=r"learning\.base\.upload: a sparse update .*") as refused:
        loaded(tmp_path, wrapped, "secure_aggregation={mode: secagg-plus, examples_max: 40}")
    assert "write 'upload: dense' in learning.base" in str(refused.value)
