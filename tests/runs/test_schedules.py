"""Learning rates that change: the first round has the whole rate, the second what the schedule leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import SMALL, run_text

FEW = "data: {source: synthetic-ratings, users: 20, items: 30, ratings_per_user: 10}"
LINEAR = "data: {source: synthetic-regression, clients: 20, samples_per_client: 10, features: 4}"
HALF = "{kind: step, every: 1, factor_per_step: 0.5}"


def weights(folder: Path, algorithm: str, rounds: int, schedule: str) -> dict[str, Any]:
    lines = SMALL.replace("evaluation: {every: 2}", "evaluation: {every: 100, final: false}").splitlines()
    data = LINEAR if algorithm == "linear-regression" else FEW
    lines = [data if line.startswith("data:") else line for line in lines if not line.startswith("learning:")]
    text = "\n".join(lines).replace("count: 3, cohort: 20", f"count: {rounds}, cohort: 10")
    learning = f"learning: {{algorithm: {algorithm}, learning_rate: 0.25, schedule: {schedule}}}\n"
    outcome = run_text(folder, f"{text}\n{learning}", name=f"{rounds}-{len(schedule)}")
    with np.load(outcome.directory / "model.npz") as file:
        return {name: file[name].astype(np.float64) for name in file.files}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "algorithm",
    ["fedrecon", "linear-regression", "fedavg-mf"],
)
def test_the_rate_falls_after_the_first_round_and_not_before(algorithm: str, tmp_path: Path) -> None:
    constant = "{kind: constant}"
    first = weights(tmp_path, algorithm, 1, constant)
    second = weights(tmp_path, algorithm, 2, constant)
    halved = weights(tmp_path, algorithm, 2, HALF)
    assert weights(tmp_path, algorithm, 1, HALF).keys() == first.keys()
    for name, value in weights(tmp_path, algorithm, 1, HALF).items():
        assert (value == first[name]).all(), name
    moved = [name for name in first if (second[name] != first[name]).any() and not name.startswith("user")]
    assert moved
    for name in moved:
        # The second round is the same but for its rate, so the model goes half as far.
        found, expected = halved[name] - first[name], (second[name] - first[name]) / 2
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5 * float(np.abs(expected).max())), name
