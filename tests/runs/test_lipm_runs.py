"""Runs of LIPM: through a secure sum, and on data that it cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from run_helpers import run_text

from coordinator.scenario.errors import ScenarioError
from edge.learning.methods.lipm.interest import INTEREST_NAMES

SCENARIO = """
format: 2
seed: 3
data: {{{data}}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning:
  algorithm: lipm
  factors: 3
  weighting: uniform
  optimizer: {{kind: sgd}}
  learning_rate: 0.5
  window: 6
  interest_width: 3
  attention_bound: 2
rounds: {{count: 2, cohort: 10, deadline: 10 min, interval: 30 min}}
secure_aggregation: {{mode: {mode}}}
"""
TIMELESS = "source: synthetic-ratings, users: 60, items: 40, ratings_per_user: 10"


def u_data(folder: Path) -> Path:
    rng = np.random.default_rng(4)
    lines = []
    for user in range(1, 31):
        for item in rng.choice(np.arange(1, 26), 12, replace=False):
            lines.append(f"{user}\t{item}\t{rng.integers(1, 6)}\t{rng.integers(1, 1000)}\n")
    file = folder / "u.data"
    file.write_text("".join(lines))
    return file


def model_after(folder: Path, name: str, mode: str) -> dict[str, npt.NDArray[Any]]:
    text = SCENARIO.format(data=f"source: movielens-100k, path: {u_data(folder)}", mode=mode)
    outcome = run_text(folder, text, name=name)
    with np.load(outcome.directory / "model.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def test_under_masks_the_same_model_comes_out(tmp_path: Path) -> None:
    clear, masked = model_after(tmp_path, "clear", "off"), model_after(tmp_path, "masked", "secagg, clip: 4")
    assert clear.keys() == masked.keys()
    assert set(INTEREST_NAMES) < clear.keys()
    assert np.abs(clear["precision"]).max() > 1e-3, "it starts at zero"
    for name, array in clear.items():
        np.testing.assert_allclose(array, masked[name], atol=2e-5, err_msg=name)


def test_data_without_times_is_refused_with_the_place(tmp_path: Path) -> None:
    place = r"run\.yaml:7:\d+: learning\.algorithm: 'lipm' reads ratings by"
    with pytest.raises(ScenarioError, match=place) as caught:
        run_text(tmp_path, SCENARIO.format(data=TIMELESS, mode="off"))
    assert "write 'timestamps: true' in data" in str(caught.value)
    timed = SCENARIO.format(data=f"{TIMELESS}, timestamps: true", mode="off")
    outcome = run_text(tmp_path, timed, name="timed")
    with np.load(outcome.directory / "model.npz") as arrays:
        assert np.abs(arrays["precision"]).max() > 1e-3, "it starts at zero"
