"""Runs of a method that hides the values of ratings: what is said of ε, secure sums, and its noise."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from run_helpers import IDEAL_PROFILES, report_on, run_text, tables_of

from coordinator.engine.progress import RunObserver
from coordinator.results.figures import run_figures
from coordinator.results.summary_tables import privacy_lines
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.scenario.load import load
from coordinator.service.conducting import RealTime
from coordinator.service.local_run import along

DEVICES, EPSILON = 16, 2.0
TEXT = f"""
format: 2
seed: 5
data: {{source: synthetic-ratings, users: {DEVICES}, items: 30, ratings_per_user: 8,
  features: {{kind: synthetic}}}}
fleet: {{devices: {{ideal_device: 100%}}, networks: {{ideal_wire: 100%}}, profiles: [{IDEAL_PROFILES}]}}
learning: {{algorithm: dp-mf, epsilon: {EPSILON:g}, factors: 3, upload: dense}}
rounds: {{count: 1, cohort: {DEVICES}, quorum: 100%, deadline: 60 s}}
"""
MASKED = "secure_aggregation={mode: secagg-plus, bits: 32, crypto: modelled}"


def model_of(outcome: RunOutcome) -> dict[str, npt.NDArray[np.float64]]:
    with np.load(outcome.directory / "model.npz") as model:
        return {name: np.asarray(model[name]) for name in model.files}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    return run_text(tmp_path_factory.mktemp("plain"), TEXT)


def test_epsilon_of_a_value_is_said_wherever_epsilon_is(plain: RunOutcome) -> None:
    manifest, summary = (
        json.loads((plain.directory / f"{name}.json").read_text()) for name in ("manifest", "summary")
    )
    workload = assemble(load(plain.directory / "scenario.resolved.yaml")).workload
    most = int(workload.held(np.arange(DEVICES)).max())
    assert summary["value_privacy"] == manifest["value_privacy"]
    assert manifest["value_privacy"] == {
        "mechanism": "dp-mf",
        "hides": "the value of one rating",
        "delta": 0.0,
        "epsilon": EPSILON,
        "releases": 1,
        "most_ratings": most,
        "epsilon_of_most_ratings": EPSILON * most,
    }
    assert summary["epsilon"] is None, "that is of all that a user reports"
    line = (
        "epsilon 2 at δ = 0, of the value of one rating, in the model that dp-mf releases once; "
        f"{2 * most} of all values of a user with {most}"
    )
    assert next(iter(privacy_lines(summary))) == line
    assert line in report_on(plain)
    assert run_figures(tables_of(plain), ())["epsilon of a value"].value == EPSILON


def test_a_sum_under_masks_gives_the_model_and_its_rounding_counts(plain: RunOutcome, tmp_path: Path) -> None:
    masked = run_text(tmp_path, TEXT, (MASKED,))
    expected, found = model_of(plain), model_of(masked)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)
    said = json.loads((masked.directory / "manifest.json").read_text())["value_privacy"]["epsilon"]
    assert EPSILON < said < EPSILON * (1 + 1e-4)
    sums = next(iter(assemble(load(masked.directory / "scenario.resolved.yaml")).secure_sums.values()))
    assert sums is not None
    assert sums.masked is not None
    unit = 1 / sums.masked.quantizers["item_rows"].scale
    assert said == pytest.approx(EPSILON * (1 + math.sqrt(3) * unit), rel=1e-12)


def test_on_the_real_clock_the_noise_does_not_follow_from_the_seed(plain: RunOutcome, tmp_path: Path) -> None:
    loaded = load(plain.directory / "scenario.resolved.yaml")
    outcome = run_assembled(
        loaded,
        assemble(loaded),
        target=tmp_path / "out",
        observer=RunObserver(),
        conductor=RealTime(wait_for=DEVICES, company=along(shaped=False)),
    )
    expected, found = model_of(plain), model_of(outcome)
    np.testing.assert_allclose(found["hessian"], expected["hessian"], rtol=1e-5, atol=1e-6)
    # The same summands, and another η for every item.
    assert (np.abs(found["moment"] - expected["moment"]).min(axis=1) > 1e-9).all()
