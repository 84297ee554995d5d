"""The column of ε in the table of rounds is what the accountant says of the releases of a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from run_helpers import rows_of, run_text
from secure_helpers import IDEAL_WIRE, secure

from coordinator.exit_codes import ExitCode
from coordinator.runner import RunOutcome
from coordinator.scenario.load import load
from coordinator.scenario.protection import ckks_config, masking_config
from coordinator.scenario.secure_section import Ckks, Masking
from edge.privacy import accounting
from edge.privacy.accounting import (
    Accountant,
    DiscreteGaussianRelease,
    GaussianRelease,
    Neighbours,
    Release,
    Sampling,
)

COHORT, USERS, ITEMS, WIDTH = 20, 120, 60, 5
ARRAYS = [("item_rows", ITEMS * WIDTH)]
"""The arrays of an update, and how long they are."""
UNIFORM = "algorithm: fedrecon, factors: 4, upload: dense, weighting: uniform, learning_rate: 0.05"
MASKED, ENCRYPTED = "mode: secagg-plus, crypto: modelled", "mode: ckks, crypto: modelled"
STORM = (
    "phases: [{name: calm, rounds: 2}, {name: storm, rounds: 1}, {name: after, rounds: 1}]\n"
    "faults: [{name: x, during: storm, at_stage: STAGE, on: {fraction: 100%}, vanish: {}}]\n"
)
"""The third of four rounds is abandoned."""

with_accounting = pytest.mark.skipif(not accounting.available(), reason="needs the extra dp")


def run_of(folder: Path, section: str, privacy: str, more: str = "", name: str = "run") -> RunOutcome:
    count = "" if "phases" in more else "count: 3, "
    text = secure(
        section,
        rounds=f"{count}cohort: {COHORT}, over_select: 150%, deadline: 60 s, interval: 5 min, "
        "selection: random",
        fleet=IDEAL_WIRE,
        learning=UNIFORM,
        data=f"source: synthetic-ratings, users: {USERS}, items: {ITEMS}, ratings_per_user: 10",
        more=f"privacy: {{{privacy}}}\n{more}",
    )
    return run_text(folder, text, name=name)


def epsilons(outcome: RunOutcome) -> list[float | None]:
    return [row["epsilon"] for row in rows_of(outcome, "rounds")]


def accounted(
    release: Release, counted: list[int], delta: float, neighbours: Neighbours = Neighbours.ZERO_OUT
) -> list[float]:
    """Return ε after each round, of which so many releases each are counted."""
    accountant, found = Accountant(neighbours), []
    for times in counted:
        for _ in range(times):
            accountant.compose(release)
        found.append(accountant.epsilon(delta))
    return found


@with_accounting
def test_central_noise_in_the_clear(tmp_path: Path) -> None:
    privacy = "mechanism: central-gaussian, clip_norm: 0.2, noise_multiplier: 1.1, delta: 1e-6"
    outcome = run_of(tmp_path, "mode: off", privacy, STORM.replace("STAGE", "report"))
    assert [row["outcome"] for row in rows_of(outcome, "rounds")] == ["completed"] * 2 + [
        "abandoned",
        "completed",
    ]
    # An abandoned round reveals nothing.
    assert epsilons(outcome) == accounted(GaussianRelease(1.1), [1, 1, 0, 1], 1e-6)


@with_accounting
def test_drawing_devices_amplifies_if_it_is_asked_for(tmp_path: Path) -> None:
    privacy = "mechanism: central-gaussian, clip_norm: 0.2, noise_multiplier: 1.1, amplification: sampling"
    outcome = run_of(tmp_path, "mode: off", privacy)
    # Whoever is invited counts, not who was waited for.
    release = GaussianRelease(1.1, Sampling(USERS, COHORT * 3 // 2))
    expected = accounted(release, [1, 1, 1], 1e-5, Neighbours.REPLACE_ONE)
    assert epsilons(outcome) == expected
    assert expected[-1] < accounted(GaussianRelease(1.1), [3], 1e-5, Neighbours.REPLACE_ONE)[-1]


@with_accounting
@pytest.mark.parametrize("section", [MASKED, ENCRYPTED])
def test_rounding_of_a_secure_sum_is_part_of_what_one_user_changes(section: str, tmp_path: Path) -> None:
    clip = 0.2
    privacy = f"mechanism: central-gaussian, clip_norm: {clip}, noise_multiplier: 1.1"
    outcome = run_of(tmp_path, section, privacy)
    scenario = load(tmp_path / "run.yaml").scenario
    if isinstance(scenario.secure_aggregation, Masking):
        masks = masking_config(scenario, scenario.secure_aggregation, ARRAYS)
        step = 1 / masks.quantizers["item_rows"].scale  # up or down
    else:
        assert isinstance(scenario.secure_aggregation, Ckks)
        step = clip / ckks_config(scenario, scenario.secure_aggregation, ARRAYS).levels / 2  # to the nearest
    rounding = step * math.sqrt(ITEMS * WIDTH)
    release = GaussianRelease(1.1 * clip / (clip + rounding))
    found = epsilons(outcome)
    assert found == pytest.approx(accounted(release, [1, 1, 1], 1e-5), rel=1e-12)
    assert found[-1] != accounted(GaussianRelease(1.1), [3], 1e-5)[-1]


@with_accounting
def test_local_noise_is_spent_with_every_report_whether_the_round_counts_or_not(tmp_path: Path) -> None:
    privacy = "mechanism: local-gaussian, clip_norm: 0.2, noise_multiplier: 3"
    outcome = run_of(tmp_path, "mode: off", privacy, STORM.replace("STAGE", "report"))
    expected = accounted(GaussianRelease(3.0), [1, 1, 1, 1], 1e-5, Neighbours.REPLACE_ONE)
    assert epsilons(outcome) == expected


@with_accounting
def test_distributed_noise(tmp_path: Path) -> None:
    privacy = "mechanism: distributed-discrete-gaussian, clip_norm: 0.2, noise_multiplier: 2"
    outcome = run_of(tmp_path, MASKED, privacy, STORM.replace("STAGE", "masked-input"))
    assert rows_of(outcome, "rounds")[2]["outcome"] == "abandoned"
    scenario = load(tmp_path / "run.yaml").scenario
    assert isinstance(scenario.secure_aggregation, Masking)
    config = masking_config(scenario, scenario.secure_aggregation, ARRAYS)
    # Two of twenty may be corrupt; four are needed, of whom two are honest.
    release = DiscreteGaussianRelease.of(config, 0.2, 2)
    assert epsilons(outcome) == accounted(release, [1, 1, 0, 1], 1e-5)
    # No better than a continuous Gaussian of the planned size, whose ε is exact, not a bound; close to it.
    ideal = accounted(GaussianRelease(2.0), [3], 1e-5)[-1]
    assert ideal < epsilons(outcome)[-1] < 1.1 * ideal  # type: ignore[operator]


@pytest.mark.slow
@with_accounting
@pytest.mark.parametrize(
    ("mechanism", "section"),
    [
        ("central-gaussian", "mode: off"),
        ("local-gaussian", MASKED),
        ("distributed-discrete-gaussian", MASKED),
    ],
)
def test_without_noise_everything_is_spent(mechanism: str, section: str, tmp_path: Path) -> None:
    outcome = run_of(tmp_path, section, f"mechanism: {mechanism}, clip_norm: 0.2, noise_multiplier: 0")
    assert [row["outcome"] for row in rows_of(outcome, "rounds")] == ["completed"] * 3
    assert epsilons(outcome) == [math.inf] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "section"),
    [
        ("central-gaussian", "mode: off"),
        ("local-gaussian", ENCRYPTED),
        ("distributed-discrete-gaussian", MASKED),
    ],
)
def test_without_accounting_nothing_is_told(mechanism: str, section: str, tmp_path: Path) -> None:
    privacy = f"mechanism: {mechanism}, clip_norm: 0.2, noise_multiplier: 2, accounting: false"
    outcome = run_of(tmp_path, section, privacy)
    assert epsilons(outcome) == [None] * 3


def test_without_privacy_there_is_neither(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, secure("mode: secagg"))
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["epsilon"], round_["clipped_updates_fraction"]) == (None, None)


@pytest.mark.slow
@with_accounting
def test_promises_about_privacy_are_judged(tmp_path: Path) -> None:
    privacy = "mechanism: central-gaussian, clip_norm: 0.2, noise_multiplier: 1.1"
    (epsilon,) = accounted(GaussianRelease(1.1), [3], 1e-5)
    for limit, code in ((epsilon * 1.001, ExitCode.HELD), (epsilon * 0.999, ExitCode.THRESHOLD_MISSED)):
        promises = (
            f"thresholds: {{privacy.epsilon: [last <= {limit:.6f}], privacy.clipped: [mean <= 100%]}}\n"
        )
        assert run_of(tmp_path, "mode: off", privacy, promises, name=f"c{code}").exit_code is code
