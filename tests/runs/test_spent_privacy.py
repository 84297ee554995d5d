"""The columns of ε in the table of rounds are what the accountant says of the releases of a run.

They are those of the device that was in most of them, counted here from the rows of devices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from run_helpers import rows_of, run_text
from secure_helpers import IDEAL_WIRE, secure

from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.run.runner import RunOutcome
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import load
from coordinator.scenario.protection import ckks_config, masking_config
from coordinator.scenario.secure_section import Ckks, Masking
from coordinator.secure.secagg import server
from edge.crypto.errors import SumMismatchError
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


def run_of(
    folder: Path,
    section: str,
    privacy: str,
    more: str = "",
    name: str = "run",
    rounds: str = "over_select: 150%",
    interval: str = "5 min",
) -> RunOutcome:
    count = "" if "phases" in more else "count: 3, "
    text = secure(
        section,
        rounds=f"{count}cohort: {COHORT}, deadline: 60 s, interval: {interval}, selection: random, {rounds}",
        fleet=IDEAL_WIRE,
        learning=UNIFORM,
        data=f"source: synthetic-ratings, users: {USERS}, items: {ITEMS}, ratings_per_user: 10",
        more=f"privacy: {{{privacy}}}\n{more}",
    )
    return run_text(folder, text, name=name)


Epsilons = list[Any]
"""After each round: zero-out, and replace-one."""


def epsilons(outcome: RunOutcome) -> Epsilons:
    return [(row["epsilon"], row["epsilon_replace_one"]) for row in rows_of(outcome, "rounds")]


def most(outcome: RunOutcome, counts: Callable[[dict[str, Any]], bool]) -> list[int]:
    """Return by round how many rows that count there are so far of the device that has most of them."""
    found: Counter[int] = Counter()
    after: dict[int, int] = {}
    for row in sorted(rows_of(outcome, "device_rounds"), key=lambda row: int(row["round"])):
        found[row["device"]] += counts(row)
        after[row["round"]] = max(found.values())
    return [after[row["round"]] for row in rows_of(outcome, "rounds")]


def completed(row: dict[str, Any]) -> bool:
    return bool(row["outcome"] == "completed")


def exact(release: Release, times: int, delta: float = 1e-5) -> tuple[float, float]:
    spent = []
    for neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE):
        accountant = Accountant(neighbours)
        for _ in range(times):
            accountant.compose(release)
        spent.append(accountant.epsilon(delta))
    return spent[0], spent[1]


def accounted(release: Release, times: list[int], delta: float) -> Epsilons:
    """Return ε after each round, by which a device was in so many releases."""
    return [pytest.approx(exact(release, count, delta), rel=1e-12) for count in times]


@with_accounting
def test_central_noise_in_the_clear(tmp_path: Path) -> None:
    privacy = "mechanism: central-gaussian, clip_norm: 0.2, noise_multiplier: 1.1, delta: 1e-6"
    outcome = run_of(tmp_path, "mode: off", privacy, STORM.replace("STAGE", "report"))
    assert [row["outcome"] for row in rows_of(outcome, "rounds")] == ["completed"] * 2 + [
        "abandoned",
        "completed",
    ]
    # An abandoned round reveals nothing, and a device that reported beside the wanted ones is in no sum.
    times = most(outcome, completed)
    assert times[2] == times[1] < times[3] <= 3
    assert epsilons(outcome) == accounted(GaussianRelease(1.1), times, 1e-6)


@with_accounting
def test_drawing_devices_amplifies_if_it_is_asked_for(tmp_path: Path) -> None:
    privacy = "mechanism: central-gaussian, clip_norm: 0.2, noise_multiplier: 1.1, amplification: sampling"
    outcome = run_of(tmp_path, "mode: off", privacy)
    # Whoever is invited counts, not who was waited for.
    release = GaussianRelease(1.1, Sampling(USERS, COHORT * 3 // 2))
    assert epsilons(outcome) == accounted(release, [1, 2, 3], 1e-5)
    assert epsilons(outcome)[-1][1] < exact(GaussianRelease(1.1), 3)[1]


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
    times = most(outcome, completed)
    assert found == accounted(release, times, 1e-5)
    assert found != accounted(GaussianRelease(1.1), times, 1e-5)


def reported(row: dict[str, Any]) -> bool:
    """Return whether an update of a device has arrived: its frame went up, and was not lost on its way."""
    return bool(row["report_up_bytes"] > 0 and row["report_end_s"] is not None)


LOCAL = "mechanism: local-gaussian, clip_norm: 0.2, noise_multiplier: 3"


@with_accounting
def test_local_noise_is_spent_with_every_report_whether_it_counts_or_not(tmp_path: Path) -> None:
    outcome = run_of(tmp_path, "mode: off", LOCAL, rounds="over_select: 300%")
    outcomes = Counter(row["outcome"] for row in rows_of(outcome, "device_rounds"))
    assert outcomes["surplus"] > 0
    times = most(outcome, reported)
    assert epsilons(outcome) == accounted(GaussianRelease(3.0), times, 1e-5)


@with_accounting
def test_reports_to_a_round_that_is_abandoned_are_spent(tmp_path: Path) -> None:
    # All of the twenty that a round needs are told that they are too late.
    late = "faults: [{name: slow, at_stage: report, on: {fraction: 60%}, late: {by: 70 s}}]\n"
    outcome = run_of(tmp_path, "mode: off", LOCAL, late, rounds="over_select: 150%, quorum: 95%")
    assert {row["outcome"] for row in rows_of(outcome, "rounds")} == {"abandoned"}
    rows = rows_of(outcome, "device_rounds")
    assert {row["outcome"] for row in rows} <= {"late", "abandoned"}
    assert epsilons(outcome)[-1] == accounted(GaussianRelease(3.0), [most(outcome, reported)[-1]], 1e-5)[0]
    assert most(outcome, reported)[-1] >= 2


@with_accounting
@pytest.mark.parametrize(
    ("privacy", "counts"),
    [
        ("mechanism: central-gaussian, clip_norm: 0.2, noise_multiplier: 3", completed),
        (LOCAL, reported),
    ],
)
def test_each_row_has_what_was_spent_until_its_round_however_late_others_are(
    privacy: str, counts: Callable[[dict[str, Any]], bool], tmp_path: Path
) -> None:
    """Late devices of a round are at work while the next ones begin and end."""
    late = "faults: [{name: slow, at_stage: report, on: {fraction: 20%}, late: {by: 50 s}}]\n"
    outcome = run_of(tmp_path, "mode: off", privacy, late, interval="1 s")
    starts = [row["start_s"] for row in rows_of(outcome, "rounds")]
    reports = [row["report_end_s"] for row in rows_of(outcome, "device_rounds") if row["round"] == 1]
    assert max(at for at in reports if at is not None) > starts[2]
    times = most(outcome, counts)
    found = epsilons(outcome)
    if counts is completed:
        assert found == accounted(GaussianRelease(3.0), times, 1e-5)
    assert found[-1] == pytest.approx(exact(GaussianRelease(3.0), times[-1]), rel=1e-12)
    assert found == sorted(found)


@with_accounting
def test_a_report_that_cannot_be_read_is_spent(tmp_path: Path) -> None:
    faults = "faults: [{name: noise, at_stage: report, on: {fraction: 100%}, corrupt: {}}]\n"
    outcome = run_of(tmp_path, "mode: off", LOCAL, faults)
    rows = rows_of(outcome, "device_rounds")
    assert {row["outcome"] for row in rows} == {"failed"}
    assert epsilons(outcome) == accounted(GaussianRelease(3.0), most(outcome, lambda _: True), 1e-5)
    assert epsilons(outcome)[0][0] > 0


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
    times = most(outcome, completed)
    assert epsilons(outcome) == accounted(release, times, 1e-5)
    # No better than a continuous Gaussian of the planned size, whose ε is exact, not a bound; close to it.
    ideal, _ = exact(GaussianRelease(2.0), times[-1])
    assert ideal < epsilons(outcome)[-1][0] < 1.1 * ideal


@pytest.mark.few(1)
@with_accounting
@pytest.mark.parametrize("mechanism", ["central-gaussian", "distributed-discrete-gaussian"])
def test_a_sum_that_was_unmasked_is_spent_though_it_cannot_be_right(
    mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> NoReturn:
        raise SumMismatchError("as if a device had lied")

    privacy = f"mechanism: {mechanism}, clip_norm: 0.2, noise_multiplier: 2"
    honest = run_of(tmp_path, MASKED, privacy, name="honest")
    monkeypatch.setattr(server, "read_sum", refused)
    outcome = run_of(tmp_path, MASKED, privacy)
    rounds = rows_of(outcome, "rounds")
    assert {(row["outcome"], row["secagg_failure"]) for row in rounds} == {("abandoned", "sum-mismatch")}
    assert epsilons(outcome) == epsilons(honest)
    assert epsilons(outcome)[0][0] > 0


@pytest.mark.few(1)
@with_accounting
@pytest.mark.parametrize(
    ("mechanism", "section"),
    [
        ("central-gaussian", "mode: off"),
        ("central-gaussian", MASKED),
        ("central-gaussian", ENCRYPTED),
        ("distributed-discrete-gaussian", MASKED),
    ],
)
def test_a_sum_that_was_made_is_spent_though_it_is_not_applied(
    mechanism: str, section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    privacy = f"mechanism: {mechanism}, clip_norm: 0.2, noise_multiplier: 2"
    honest = run_of(tmp_path, section, privacy, name="honest")
    monkeypatch.setattr(ReportRanges, "objection", lambda *_: "it is beyond all bounds")
    outcome = run_of(tmp_path, section, privacy)
    rounds = rows_of(outcome, "rounds")
    assert {(row["outcome"], row["reason"]) for row in rounds} == {("abandoned", "wrong-sum")}
    assert epsilons(outcome) == epsilons(honest)
    assert epsilons(outcome)[0][0] > 0


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
    assert epsilons(outcome) == [(math.inf, math.inf)] * 3


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
    assert epsilons(outcome) == [(None, None)] * 3


def test_without_privacy_there_is_neither(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, secure("mode: secagg"))
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["epsilon"], round_["clipped_updates_fraction"]) == (None, None)


@pytest.mark.slow
@with_accounting
def test_promises_about_privacy_are_judged(tmp_path: Path) -> None:
    privacy = "mechanism: central-gaussian, clip_norm: 0.2, noise_multiplier: 1.1"
    times = most(run_of(tmp_path, "mode: off", privacy, name="times"), completed)
    zero_out, replace_one = exact(GaussianRelease(1.1), times[-1])
    clipped = "privacy.clipped: [mean <= 100%]"
    for metric, epsilon in (("privacy.epsilon", zero_out), ("privacy.epsilon_replace_one", replace_one)):
        for share, code in ((1.001, ExitCode.HELD), (0.999, ExitCode.THRESHOLD_MISSED)):
            promises = f"thresholds: {{{metric}: [last <= {epsilon * share:.6f}], {clipped}}}\n"
            assert run_of(tmp_path, "mode: off", privacy, promises, name=f"{metric}{code}").exit_code is code
