"""Which items a full ranking has as candidates, by an independent count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.run.assembling import assemble
from coordinator.scenario.load import load
from edge.core.rng import hashed_bits

SCENARIO = """
format: 2
seed: 4
data:
  source: synthetic-ratings
  users: 60
  items: 40
  ratings_per_user: 12
  split: {kind: ratio, test: 20%, validation: 20%}
fleet: {mix: iot_gateways}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {count: 3, cohort: 20, deadline: 600 s}
evaluation: {ranking: {k: [5]}}
"""


def assembled(folder: Path, *settings: str) -> Any:
    (folder / "s.yaml").write_text(SCENARIO)
    return assemble(load(folder / "s.yaml", list(settings)))


def recall_at_5(assembly: Any, masked: list[Any], query: Any) -> tuple[float, np.ndarray[Any, Any]]:
    """Return the mean recall of a model before training, and the lists of five, int64 [users, 5]."""
    workload, evaluator = assembly.workload, assembly.evaluator
    users = np.flatnonzero(query.counts)
    state = workload.algorithm.initial_state(1)
    keys = hashed_bits(evaluator._key, users)
    scores = workload.algorithm.scores(state, workload.split.train.gather(users), keys, None)
    recalls, lists = [], []
    for row, user in enumerate(users.tolist()):
        left = scores[row].astype(np.float64)
        for store in masked:
            left[store.local(user)[0]] = -np.inf
        best = np.lexsort((np.arange(left.size), -left))[:5]
        lists.append(best)
        wanted = query.local(user)[0]
        recalls.append(np.isin(best, wanted).sum() / wanted.size)
    return float(np.mean(recalls)), np.array(lists)


@pytest.mark.parametrize("on", ["test", "validation"])
def test_full_rankings_leave_out_what_is_known_before(on: str, tmp_path: Path) -> None:
    assembly = assembled(tmp_path, f"evaluation.on={on}")
    split = assembly.workload.split
    known, query = {
        "test": ([split.train, split.validation], split.test),
        "validation": ([split.train], split.validation),
    }[on]
    expected, lists = recall_at_5(assembly, known, query)
    state = assembly.workload.algorithm.initial_state(1)
    values = {one.metric: one.value for one in assembly.evaluator.evaluate(state) if one.tag == "all"}
    assert values["recall@5"] == pytest.approx(expected, abs=1e-12)
    if on == "test":
        # The mask matters: without it some lists hold validation items, and the figure is another.
        only_train, peeking = recall_at_5(assembly, [split.train], query)
        assert not np.array_equal(lists, peeking)
        assert only_train != expected
    (ranked,) = assembly.evaluator.rankings(state, 5)
    shown = ranked.items[ranked.ranks <= 5].reshape(-1, 5)
    np.testing.assert_array_equal(shown, lists)


def test_users_that_never_train_are_ranked_without_their_support(tmp_path: Path) -> None:
    split = "data.split={kind: users, unseen: 30%, validation: 20%, test: 20%}"
    assembly = assembled(tmp_path, split)
    state = assembly.workload.algorithm.initial_state(1)
    for ranked in assembly.evaluator.rankings(state, 40):
        store = (
            assembly.workload.split.train if ranked.population == "seen" else assembly.workload.split.support
        )
        for user in np.unique(ranked.users).tolist():
            found = ranked.items[ranked.users == user]
            everything = np.setdiff1d(np.arange(40), store.local(user)[0])
            np.testing.assert_array_equal(np.sort(found), everything)
