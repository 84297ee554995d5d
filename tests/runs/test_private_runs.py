"""Runs with personal budgets or a naive claim, and with a protection that does nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from rich.console import Console
from run_helpers import report_on, rows_of, run_text
from secure_helpers import IDEAL_WIRE

from coordinator.results.summary_tables import render
from coordinator.run.runner import RunOutcome
from edge.privacy import accounting

pytestmark = pytest.mark.skipif(not accounting.available(), reason="needs recfleet[dp]")

TEXT = f"""
format: 2
seed: 3
data: {{source: synthetic-ratings, users: 60, items: 50, ratings_per_user: 10}}
fleet: {IDEAL_WIRE}
learning:
  algorithm: fedrecon
  factors: 3
  upload: dense
  weighting: uniform
  optimizer: {{kind: sgd}}
  learning_rate: 0.5
rounds: {{count: 4, cohort: 12, deadline: 60 s, interval: 10 min}}
evaluation: {{every: 1000}}
"""
TIERS = """
privacy:
  mechanism: personal-gaussian
  clip_norm: 1
  tiers: [{name: casual, up_to: 9, noise_multiplier: 2}, {name: heavy, noise_multiplier: 1}]
"""


def model_of(outcome: RunOutcome) -> dict[str, npt.NDArray[Any]]:
    with np.load(outcome.directory / "model.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def json_of(outcome: RunOutcome, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((outcome.directory / name).read_text(encoding="utf-8"))
    return found


def printed(summary: dict[str, Any]) -> str:
    shown = io.StringIO()
    Console(width=200, file=shown).print(render(summary))
    return shown.getvalue()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "privacy",
    [
        "mechanism: central-gaussian, clip_norm: 1e30, noise_multiplier: 0",
        "mechanism: local-gaussian, clip_norm: 1e30, noise_multiplier: 0",
        "mechanism: personal-gaussian, clip_norm: 1e30, tiers: [{name: a, noise_multiplier: 0}]",
    ],
    ids=["central", "local", "personal"],
)
def test_without_noise_and_bound_the_model_is_the_plain_one_bit_for_bit(tmp_path: Path, privacy: str) -> None:
    plain = model_of(run_text(tmp_path, TEXT, name="plain"))
    private = run_text(tmp_path, f"{TEXT}privacy: {{{privacy}}}", name="private")
    for name, array in model_of(private).items():
        assert array.tobytes() == plain[name].tobytes(), name
    assert rows_of(private, "rounds")[-1]["epsilon"] == np.inf


def test_a_naive_claim_stands_beside_the_true_epsilon(tmp_path: Path) -> None:
    privacy = "mechanism: central-gaussian, clip_norm: 1, calibration: naive, claimed_epsilon: 1"
    outcome = run_text(tmp_path, f"{TEXT}privacy: {{{privacy}}}")
    summary = json_of(outcome, "summary.json")
    # Of four releases at a multiplier of 1 a device was in three: as one at 1/√3, and against any other
    # update at half of that. By dp_accounting.get_epsilon_gaussian(3**-0.5, 1e-5), and of 0.5 * 3**-0.5.
    assert summary["privacy"]["most_releases"] == 3
    assert summary["epsilon"] == pytest.approx(8.3854, abs=1e-4)
    assert summary["privacy"]["claimed_epsilon"] == 1.0
    assert json_of(outcome, "manifest.json")["privacy"] == summary["privacy"]
    line = "epsilon 1 claimed, by σ = Δ/ε, which is no calibration of Gaussian noise; the true one is"
    assert summary["epsilon_replace_one"] == pytest.approx(20.1250, abs=1e-4)
    shown = f"{summary['epsilon']:.4g} zero-out, {summary['epsilon_replace_one']:.4g} replace-one"
    assert f"{line} {shown}" in printed(summary)
    assert line in report_on(outcome)


def test_every_tier_has_an_epsilon_of_its_own(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, TEXT.replace("ratings_per_user: 10", "ratings_per_user: 12") + TIERS)
    summary = json_of(outcome, "summary.json")
    tiers = summary["privacy"]["tiers"]
    assert sum(tier["devices"] for tier in tiers.values()) == 60
    assert min(tier["devices"] for tier in tiers.values()) > 0
    assert 0 < tiers["casual"]["epsilon"] < tiers["heavy"]["epsilon"] == summary["epsilon"]
    weights = {"casual": 0.25, "heavy": 1.0}
    assert {name: tier["weight"] for name, tier in tiers.items()} == weights
    for row in rows_of(outcome, "rounds"):
        assert 0.25 * 12 <= row["weight"] <= 12
        assert float(4 * row["weight"]).is_integer()
    assert f"tier casual: epsilon {tiers['casual']['epsilon']:.4g}" in printed(summary)


def test_tiers_sum_under_masks_as_in_the_clear(tmp_path: Path) -> None:
    clear = run_text(tmp_path, TEXT + TIERS, name="clear")
    masked = run_text(tmp_path, f"{TEXT}{TIERS}secure_aggregation: {{mode: secagg}}", name="masked")
    assert [row["weight"] for row in rows_of(clear, "rounds")] == [
        row["weight"] for row in rows_of(masked, "rounds")
    ]
    expected = model_of(clear)
    for name, array in model_of(masked).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_shrinking_takes_its_part_of_every_step(tmp_path: Path) -> None:
    one = TEXT.replace("count: 4", "count: 1")
    start = model_of(
        run_text(tmp_path, one.replace("learning_rate: 0.5", "learning_rate: 1e-30"), name="start")
    )
    whole = model_of(run_text(tmp_path, one + TIERS, name="whole"))
    shrunk = model_of(run_text(tmp_path, f"{one}{TIERS}  shrinkage: 25%", name="shrunk"))
    step = whole["item_factors"] - start["item_factors"]
    assert np.abs(step).max() > 0.1
    np.testing.assert_allclose(shrunk["item_factors"] - start["item_factors"], 0.75 * step, atol=1e-6)
