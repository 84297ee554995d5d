"""Every method with its defaults learns on MovieLens 100K within the rounds that `recfleet init` writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from run_helpers import rows_of, run_text

from coordinator.engine.evaluation import RatingEvaluator
from coordinator.engine.samplers import counter_values
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.scenario.load import load_text
from edge.learning.registry import METHODS

OF_RATINGS = sorted(name for name, entry in METHODS.items() if entry.data == "ratings")
NEEDED: Final = {
    "blur": ", norm_bound: 0.3",
    "fedmmf": ", mask: {kind: one-order}",
    "fedrecgel": ", base: {algorithm: fedrecon, reconstruction: {method: gradient-steps}}",
    "local-context": ", model: {kind: zero-order}",
}
"""Settings that have no default."""
RMSE_BELOW: Final = 0.95
"""A method of ratings has an RMSE of so much of the training mean's, or less."""
NDCG_ABOVE: Final = 3.0
"""A method that ranks has an NDCG of so many times that of a random order, or more."""


def scenario(name: str, folder: Path, *, ranks: bool) -> str:
    """Return the rounds of `recfleet init`, with every device there; 300 users are evaluated."""
    data: dict[str, Any] = {"positive": 4} if ranks else {}
    if METHODS[name].needs_features:
        data["features"] = "{kind: movielens}"
    more = "".join(f"\n  {key}: {value}" for key, value in data.items())
    return f"""
format: 2
data:
  source: movielens-100k
  path: {folder / "ml-100k"}{more}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {{algorithm: {name}{NEEDED.get(name, "")}}}
rounds: {{count: 20, cohort: 50, deadline: 5 min}}
evaluation: {{every: 20, users: 300{", ranking: {k: [10]}" if ranks else ""}}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_RATINGS)
def test_a_method_learns_with_its_defaults(name: str, tmp_path: Path) -> None:
    given = os.environ.get("RECFLEET_DATA")
    if given is None:
        pytest.skip("set RECFLEET_DATA to a folder with ml-100k")
    entry = METHODS[name]
    # What hides values is not asked to learn from what has none.
    ranking = scenario(name, Path(given), ranks=not entry.hides_values)
    ranks = entry.only_ranks(load_text(ranking, name).scenario.learning)
    text = scenario(name, Path(given), ranks=ranks)
    outcome = run_text(tmp_path, text)
    metric = "ndcg@10" if ranks else "rmse"
    rows = [row for row in rows_of(outcome, "evaluations") if row["tag"] == "all" and row["round"] == 20]
    (value,) = (row["value"] for row in rows if row["metric"] == metric)
    assembly = assemble(load_text(text, name))
    workload, evaluator = assembly.workload, assembly.evaluator
    assert isinstance(workload, RatingWorkload)
    assert isinstance(evaluator, RatingEvaluator)
    if ranks:
        assert value > NDCG_ABOVE * counter_values(workload, evaluator, {}, 1)["ndcg@10"]
        return
    split = workload.split
    assert split.test is not None
    test = split.test.decoded().astype(np.float64)
    constant = float(np.sqrt(np.mean((test - split.train.mean()) ** 2)))
    assert value < RMSE_BELOW * constant
