"""The noise that privacy puts on a model has the size that was planned, whoever adds it.

Two runs that differ in ``noise_multiplier`` alone have the same cohorts and updates, so after one round of a
server that adds the mean update, their models differ by the noise, divided by the number of contributors.
"""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from run_helpers import rows_of, run_text
from secure_helpers import IDEAL_WIRE, faults, secure

from coordinator.run.runner import RunOutcome

COHORT, ITEMS, WIDTH = 40, 1500, 5
ELEMENTS = ITEMS * WIDTH
CLIP_NORM = 0.2
TOLERANCE = 5 * math.sqrt(2 / ELEMENTS)
"""Five standard deviations of the variance of so many Gaussians, relative to itself: one in two million."""
CLEAR, MASKED, ENCRYPTED = "mode: off", "mode: secagg-plus, crypto: modelled", "mode: ckks, crypto: modelled"


def run_of(folder: Path, section: str, mechanism: str, multiplier: float, more: str = "") -> RunOutcome:
    privacy = (
        f"privacy: {{mechanism: {mechanism}, clip_norm: {CLIP_NORM}, noise_multiplier: {multiplier}, "
        "accounting: false}\n"
    )
    text = secure(
        section,
        rounds=f"count: 1, cohort: {COHORT}, deadline: 60 s",
        fleet=IDEAL_WIRE,
        data=f"source: synthetic-ratings, users: 60, items: {ITEMS}, ratings_per_user: 10",
        learning="algorithm: fedrecon, factors: 4, upload: dense, weighting: uniform, "
        "optimizer: {kind: sgd}, learning_rate: 1",
        more=privacy + more,
    )
    return run_text(folder, text, name=f"z{multiplier:g}")


def noise_on_sum(
    folder: Path, section: str, mechanism: str, multiplier: float, more: str = ""
) -> npt.NDArray[np.float64]:
    """Return the noise on each element of the sum of a round, in the units of the update."""
    silent = run_of(folder, section, mechanism, 0.0, more)
    noisy = run_of(folder, section, mechanism, multiplier, more)
    contributors = rows_of(silent, "rounds")[0]["completed"]
    assert contributors == rows_of(noisy, "rounds")[0]["completed"] > 0
    differences = []
    with np.load(silent.directory / "model.npz") as without, np.load(noisy.directory / "model.npz") as model:
        for name in ("item_factors", "item_bias"):
            changed = model[name].astype(np.float64) - without[name].astype(np.float64)
            differences.append(changed.ravel() * contributors)
        assert model["rating_mean"] == without["rating_mean"]
    found: npt.NDArray[np.float64] = np.concatenate(differences)
    assert found.size == ELEMENTS
    return found


def assert_gaussian(noise: npt.NDArray[np.float64], sd: float) -> None:
    """Check mean, variance and tails of independent Gaussians."""
    assert abs(noise.mean()) < 5 * sd / math.sqrt(noise.size)
    assert noise.var() == pytest.approx(sd * sd, rel=TOLERANCE)
    # 4.55 % are beyond two standard deviations; so many of them have this standard deviation of their own.
    beyond = np.count_nonzero(np.abs(noise) > 2 * sd) / noise.size
    assert abs(beyond - 0.0455) < 5 * math.sqrt(0.0455 * 0.9545 / noise.size)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("multiplier", "struck", "contributors"), [(0.5, "", 40), (2.0, "", 40), (1.0, "20%", 32)]
)
def test_shares_are_sized_for_the_fewest_honest_devices(
    multiplier: float, struck: str, contributors: int, tmp_path: Path
) -> None:
    more = faults(masked_input=struck) if struck else ""
    noise = noise_on_sum(tmp_path, MASKED, "distributed-discrete-gaussian", multiplier, more)
    # Four of forty may be corrupt, and a sum needs two more: two of its six contributors are honest.
    planned_sd = multiplier * CLIP_NORM
    assert_gaussian(noise, planned_sd * math.sqrt(contributors / 2))


@pytest.mark.slow
def test_a_quorum_spares_noise(tmp_path: Path) -> None:
    """The more contributors a sum needs, the less noise each of them has to add."""
    section = f"{MASKED}, min_contributors: 36"
    noise = noise_on_sum(tmp_path, section, "distributed-discrete-gaussian", 1.0)
    assert_gaussian(noise, CLIP_NORM * math.sqrt(COHORT / 32))


@pytest.mark.few(1)
@pytest.mark.parametrize("section", [CLEAR, MASKED, ENCRYPTED])
def test_central_noise_is_that_of_one_device_on_the_sum(section: str, tmp_path: Path) -> None:
    assert_gaussian(noise_on_sum(tmp_path, section, "central-gaussian", 1.5), 1.5 * CLIP_NORM)


@pytest.mark.few(1)
@pytest.mark.parametrize("section", [CLEAR, MASKED, ENCRYPTED])
def test_local_noise_is_on_every_update(section: str, tmp_path: Path) -> None:
    noise = noise_on_sum(tmp_path, section, "local-gaussian", 1.5)
    assert_gaussian(noise, 1.5 * CLIP_NORM * math.sqrt(COHORT))


def test_without_noise_a_bound_above_every_norm_changes_nothing(tmp_path: Path) -> None:
    uniform = "algorithm: fedrecon, factors: 4, upload: dense, weighting: uniform"
    privacy = "{mechanism: central-gaussian, clip_norm: 1e6, noise_multiplier: 0, accounting: false}"
    bare = run_text(tmp_path, secure(CLEAR, learning=uniform), name="bare")
    bounded = run_text(
        tmp_path, secure(CLEAR, learning=uniform, more=f"privacy: {privacy}\n"), name="bounded"
    )
    with np.load(bare.directory / "model.npz") as one, np.load(bounded.directory / "model.npz") as other:
        assert all(one[name].tobytes() == other[name].tobytes() for name in one.files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "section"),
    [
        ("local-gaussian", CLEAR),
        ("local-gaussian", MASKED),
        ("local-gaussian", ENCRYPTED),
        ("distributed-discrete-gaussian", MASKED),
    ],
)
def test_where_no_noise_would_hide_them_loss_and_examples_stay_on_the_device(
    mechanism: str, section: str, tmp_path: Path
) -> None:
    (round_,) = rows_of(run_of(tmp_path, section, mechanism, 0.5), "rounds")
    assert (round_["outcome"], round_["loss"], round_["weight"]) == ("completed", None, 40.0)
