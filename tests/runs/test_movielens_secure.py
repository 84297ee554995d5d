"""On real ratings a secure sum trains the same model as the sum in the clear."""

import os
from pathlib import Path

import pytest
from run_helpers import SCENARIOS, Silent, rows_of

from coordinator.run.runner import RunOutcome, run_scenario
from coordinator.scenario.load import load

SETTINGS = (
    "learning.upload=dense",
    "rounds.count=8",
    # Long enough that everybody is idle again: both runs draw the same cohorts.
    "rounds.interval=3 min",
    "evaluation.every=4",
)
MASKS = (
    "secure_aggregation.mode=secagg-plus",
    "secure_aggregation.bits=32",
    "secure_aggregation.stage_deadlines={share_keys: 60 s, masked_input: 60 s, unmask: 60 s}",
)


def run_movielens(folder: Path, name: str, *settings: str) -> RunOutcome:
    data = os.environ.get("RECFLEET_DATA")
    if data is None or not Path(data, "ml-100k").is_dir():
        pytest.skip("set RECFLEET_DATA to a folder that holds ml-100k")
    loaded = load(SCENARIOS / "movielens_100k.yaml", [f"data.path={data}/ml-100k", *SETTINGS, *settings])
    return run_scenario(loaded, target=folder / name, observer=Silent())


def errors_of(outcome: RunOutcome) -> dict[int, float]:
    return {
        row["round"]: row["value"]
        for row in rows_of(outcome, "evaluations")
        if (row["metric"], row["tag"]) == ("rmse", "all")
    }


@pytest.mark.slow
def test_the_error_is_the_same_to_four_digits(tmp_path: Path) -> None:
    plain = run_movielens(tmp_path, "plain")
    masked = run_movielens(tmp_path, "masked", *MASKS)
    cohorts = [
        [(row["round"], row["device"], row["outcome"]) for row in rows_of(outcome, "device_rounds")]
        for outcome in (plain, masked)
    ]
    assert cohorts[0] == cohorts[1]
    rounds = rows_of(masked, "rounds")
    assert len(rounds) == 8
    for row in rounds:
        assert (row["outcome"], row["secagg_sum_error"], row["secagg_double_reveals"]) == ("completed", 0, 0)
        assert row["secagg_neighbours"] == 32
        assert row["clipped_fraction"] == 0.0
    before, after = errors_of(plain), errors_of(masked)
    assert before.keys() == after.keys() == {0, 4, 8}
    assert before[8] < before[0]
    for number, error in before.items():
        assert after[number] == pytest.approx(error, abs=1e-4), f"after round {number}"
    for one, other in zip(rows_of(plain, "rounds"), rounds, strict=True):
        assert other["weight"] == one["weight"]
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-4)
