"""A secure sum moves the model as the sum in the clear does, to within the quantisation that was planned."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from run_helpers import report_on, rows_of, run_text
from secure_helpers import IDEAL_WIRE, secure

from coordinator.run.runner import RunOutcome
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import load
from coordinator.scenario.protection import ckks_config, masking_config
from coordinator.scenario.secure_section import Ckks, Masking

WANTED = 12
CLIP = 4.0
ROUNDS = f"cohort: {WANTED}, deadline: 60 s, interval: 10 min"
"""Every device is idle again before the next round, so both ways of summing draw the same cohorts."""
REGRESSION = {
    "data": "source: synthetic-regression, clients: 20, samples_per_client: 30, features: 4",
    "learning": "algorithm: linear-regression, local: {method: gradient-steps, steps: 3, learning_rate: 0.1}",
    "fleet": IDEAL_WIRE,
}
RATINGS = {
    "learning": "algorithm: fedrecon, factors: 4, upload: dense, optimizer: {kind: sgd}, learning_rate: 0.5",
    "fleet": IDEAL_WIRE,
}
UNIFORM = {**RATINGS, "learning": f"{RATINGS['learning']}, weighting: uniform"}
SUPPORTED = {**RATINGS, "learning": f"{RATINGS['learning']}, split: support-query"}
SUMS = (
    "mode: secagg, bits: 32",
    "mode: secagg, bits: 64",
    "mode: active, crypto: modelled",
    "mode: ckks, crypto: modelled",
)


def run_of(folder: Path, name: str, section: str, count: int, more: str = "", **parts: str) -> RunOutcome:
    rounds = f"count: {count}, {ROUNDS}"
    return run_text(folder, secure(section, rounds=rounds, more=more, **parts), name=name)


def model_of(outcome: RunOutcome) -> dict[str, npt.NDArray[np.float64]]:
    with np.load(outcome.directory / "model.npz") as arrays:
        return {name: arrays[name].astype(np.float64) for name in arrays.files}


def distance(first: RunOutcome, second: RunOutcome) -> float:
    """Return the largest difference of any parameter."""
    one, other = model_of(first), model_of(second)
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def planned_errors(folder: Path, name: str) -> tuple[float, float]:
    """Return the largest error of an element of a sum, and of the sum of the losses."""
    scenario = load(folder / f"{name}.yaml").scenario
    section = scenario.secure_aggregation
    if isinstance(section, Masking):
        quantizers = masking_config(scenario, section, [("update", 1)]).quantizers
        return quantizers["update"].error_bound, quantizers["loss"].error_bound
    assert isinstance(section, Ckks)
    config = ckks_config(scenario, section, [("update", 1)])
    loss_clip = next(part.clip for part in config.parts if part.name == "loss")  # type: ignore[union-attr]
    return WANTED * CLIP / config.levels / 2, WANTED * loss_clip / config.levels / 2


METHODS = {
    "regression": (REGRESSION, 1.0),
    "ratings": (RATINGS, 0.5),
    "uniform": (UNIFORM, 0.5),
    "support-query": (SUPPORTED, 0.5),
}
"""Data and method, and the server's learning rate."""


@pytest.fixture(scope="module")
def in_clear(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunOutcome]:
    """Return a run of one round in the clear for each method."""
    folder = tmp_path_factory.mktemp("clear")
    return {name: run_of(folder, name, "mode: off", 1, **method) for name, (method, _) in METHODS.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "section"),
    [*((name, section) for name in ("regression", "ratings", "uniform") for section in SUMS),
     ("support-query", SUMS[0])],
)  # fmt: skip
def test_one_round(name: str, section: str, in_clear: dict[str, RunOutcome], tmp_path: Path) -> None:
    plain, (method, rate) = in_clear[name], METHODS[name]
    summed = run_of(tmp_path, "summed", f"{section}, clip: {CLIP}", 1, **method)
    (clear_round,), (secure_round,) = rows_of(plain, "rounds"), rows_of(summed, "rounds")
    error, loss_error = planned_errors(tmp_path, "summed")
    assert secure_round["clipped_fraction"] == 0.0
    # Ratings are learned in float32, and the last step of either model is rounded in it.
    rounding = 0.0 if name == "regression" else 2.0**-23
    assert distance(plain, summed) <= rate * error / clear_round["weight"] + rounding
    assert secure_round["weight"] == clear_round["weight"]
    assert secure_round["secagg_sum_error"] == (None if "ckks" in section else 0)
    examples = sum(row["examples"] for row in rows_of(plain, "device_rounds"))
    assert abs(secure_round["loss"] - clear_round["loss"]) <= loss_error / examples + 1e-12
    for column in ("device", "outcome", "examples", "loss", "invite_end_s", "download_end_s"):
        one, other = ([row[column] for row in rows_of(run, "device_rounds")] for run in (plain, summed))
        assert one == other, column


@pytest.mark.slow
def test_errors_of_many_rounds_add_up_and_do_not_grow(tmp_path: Path) -> None:
    count = 5
    plain = run_of(tmp_path, "plain", "mode: off", count, **REGRESSION)
    apart = {}
    for bits in (32, 64):
        section = f"mode: secagg, bits: {bits}, clip: {CLIP}"
        summed = run_of(tmp_path, f"summed-{bits}", section, count, **REGRESSION)
        error, loss_error = planned_errors(tmp_path, f"summed-{bits}")
        apart[bits] = distance(plain, summed)
        weights = {row["weight"] for row in rows_of(plain, "rounds")}
        assert weights == {WANTED * 30.0}
        # Gradient steps of a stable rate bring two models closer; each round adds an error of five elements.
        assert apart[bits] <= count * 5**0.5 * error / (WANTED * 30.0) + 1e-13
        for one, other in zip(rows_of(plain, "rounds"), rows_of(summed, "rounds"), strict=True):
            # The loss falls by less than 10 for each unit by which a weight moves.
            assert abs(one["loss"] - other["loss"]) <= loss_error / (WANTED * 30.0) + 50 * apart[bits] + 1e-12
    assert apart[64] < 1e-6 * apart[32]


@pytest.mark.few(2)
@pytest.mark.parametrize("section", SUMS)
def test_over_the_same_survivors(section: str, tmp_path: Path) -> None:
    def fault(stage: str) -> str:
        # Drawn by name: the same devices are struck in both runs.
        return f"faults: [{{name: x, at_stage: {stage}, on: {{fraction: 25%}}, vanish: {{}}}}]\n"

    plain = run_of(tmp_path, "plain", "mode: off", 1, fault("report"), **REGRESSION)
    summed = run_of(tmp_path, "summed", f"{section}, clip: {CLIP}", 1, fault("masked-input"), **REGRESSION)
    for run in (plain, summed):
        (round_,) = rows_of(run, "rounds")
        assert (round_["outcome"], round_["completed"], round_["dropped"]) == ("completed", 9, 3)
        assert round_["weight"] == 9 * 30.0
    survivors = [
        {row["device"] for row in rows_of(run, "device_rounds") if row["outcome"] == "completed"}
        for run in (plain, summed)
    ]
    assert survivors[0] == survivors[1]
    assert distance(plain, summed) <= planned_errors(tmp_path, "summed")[0] / (9 * 30.0)


@pytest.mark.parametrize("section", ["mode: secagg", "mode: ckks, crypto: modelled"])
def test_values_of_items_that_nobody_rated_do_not_hide_what_is_clipped(section: str, tmp_path: Path) -> None:
    """Devices with ten ratings each change a sixth of the rows; all of that but the loss is clipped."""
    text = secure(f"{section}, clip: 1e-6", more="thresholds: {round.clipped: [min > 90%]}\n")
    outcome = run_text(tmp_path, text)
    (round_,) = rows_of(outcome, "rounds")
    assert 0.9 < round_["clipped_fraction"] < 1.0
    assert outcome.exit_code is ExitCode.HELD
    summary = json.loads((outcome.directory / "summary.json").read_text(encoding="utf-8"))
    expected = {"mean": round_["clipped_fraction"], "max": round_["clipped_fraction"]}
    assert summary["clipped"] == {"values": expected, "updates": None}
    assert f"{expected['mean']:.2%} of the values other than zero" in report_on(outcome)


@pytest.mark.slow
def test_what_is_beyond_the_clip_is_counted_and_changes_the_model(tmp_path: Path) -> None:
    plain = run_of(tmp_path, "plain", "mode: off", 1, **REGRESSION)
    changes = model_of(plain)["weights"]
    below = float(np.abs(changes).max()) / 4
    for name, section in (("masked", "mode: secagg"), ("encrypted", "mode: ckks, crypto: modelled")):
        summed = run_of(tmp_path, name, f"{section}, clip: {below:.6f}", 1, **REGRESSION)
        (round_,) = rows_of(summed, "rounds")
        assert 0.0 < round_["clipped_fraction"] < 1.0
        # The mean of clipped changes is within the clip.
        assert float(np.abs(model_of(summed)["weights"]).max()) <= below + 1e-5 < float(np.abs(changes).max())
