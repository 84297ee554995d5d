"""With everybody, a full batch and one local step, federated averaging is gradient descent, to 1e-12."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from run_helpers import SCENARIOS, rows_of, run_text

from coordinator.scenario.exit_codes import ExitCode
from edge.data.regression import generate_regression

RATE = 0.3
ROUNDS = 25


def centralised(heterogeneity: str, rounds: int) -> npt.NDArray[np.float64]:
    """Return the weights and the intercept that plain gradient descent on all samples reaches."""
    store = generate_regression(
        clients=10, samples_per_client=50, features=5, heterogeneity=heterogeneity, noise_sd=0.1, seed=1
    )
    design = np.hstack([store.x, np.ones((len(store.x), 1))])
    weights = np.zeros(6)
    for _ in range(rounds):
        weights -= RATE * design.T @ (design @ weights - store.y) / len(store.y)
    return weights


@pytest.mark.parametrize("heterogeneity", ["iid", "feature-shift", "label-shift"])
def test_federated_averaging_is_gradient_descent(heterogeneity: str, tmp_path: Path) -> None:
    text = (SCENARIOS / "linear_regression_10x5.yaml").read_text()
    settings = [
        f"data.heterogeneity={heterogeneity}",
        f"rounds.count={ROUNDS}",
        "learning.stop_gradient_norm=0",
        f"learning.local={{method: gradient-steps, steps: 1, learning_rate: {RATE}}}",
        "thresholds=null",
    ]
    outcome = run_text(tmp_path, text, settings)
    assert [row["completed"] for row in rows_of(outcome, "rounds")] == [10] * ROUNDS
    with np.load(outcome.directory / "model.npz") as model:
        np.testing.assert_allclose(model["weights"], centralised(heterogeneity, ROUNDS), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_uploading_gradients_gives_the_same_model(tmp_path: Path) -> None:
    text = (SCENARIOS / "linear_regression_10x5.yaml").read_text()
    settings = [
        f"rounds.count={ROUNDS}",
        "learning.stop_gradient_norm=0",
        "learning.local.method=gradient",
        "learning.local.steps=null",
        "learning.local.learning_rate=null",
        f"learning.learning_rate={RATE}",
        "thresholds=null",
    ]
    outcome = run_text(tmp_path, text, settings)
    with np.load(outcome.directory / "model.npz") as model:
        np.testing.assert_allclose(model["weights"], centralised("iid", ROUNDS), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_shipped_run_stops_by_its_rule(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, (SCENARIOS / "linear_regression_10x5.yaml").read_text())
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("finished", "converged", ExitCode.HELD)
    rounds = len(rows_of(outcome, "rounds"))
    store = generate_regression(clients=10, samples_per_client=50, features=5, noise_sd=0.1, seed=1)
    design = np.hstack([store.x, np.ones((len(store.x), 1))])

    def gradient_norm(steps: int) -> float:
        weights = centralised("iid", steps)
        return float(np.linalg.norm(design.T @ (design @ weights - store.y) / len(store.y)))

    # The last round's gradient, the one before its step, is the first that is short enough.
    assert gradient_norm(rounds - 1) < 1e-6 <= gradient_norm(rounds - 2)
    exact, *_ = np.linalg.lstsq(design, store.y, rcond=None)
    with np.load(outcome.directory / "model.npz") as model:
        np.testing.assert_allclose(model["weights"], exact, rtol=0, atol=1e-5)
