"""Devices vanish at each stage of a secure sum: what the sum is then, and how it is told."""

from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows_of, run_text
from secure_helpers import IDEAL_WIRE, endings_of, faults, secure

from coordinator.run.runner import RunOutcome

DEADLINE_S = {
    "advertise-keys": 60.0,
    "share-keys": 7.0,
    "masked-input": 8.0,
    "consistency": 9.0,
    "unmask": 11.0,
}
STAGE_DEADLINES = "stage_deadlines: {share_keys: 7 s, masked_input: 8 s, consistency: 9 s, unmask: 11 s}"
WANTED = 20
"""Up to 50 devices everybody is everybody's neighbour: 12 of 20 shares rebuild a secret, 8 of 14, 4 of 6."""


def run_of(
    folder: Path, mode: str, *, more: str = "", count: int = 1, quorum: int = 1, extra: str = ""
) -> RunOutcome:
    text = secure(
        f"mode: {mode}, {STAGE_DEADLINES}{extra}",
        rounds=f"count: {count}, cohort: {WANTED}, deadline: 60 s, quorum: {quorum}",
        fleet=IDEAL_WIRE,
        more=more,
    )
    return run_text(folder, text)


def in_phases(fault_section: str, struck: int, after: int) -> str:
    """Return faults that strike in the first rounds only."""
    named = fault_section.replace("at_stage", "during: storm, at_stage")
    return f"phases: [{{name: storm, rounds: {struck}}}, {{name: after, rounds: {after}}}]\n{named}"


def seconds_of(row: dict[str, Any]) -> dict[str, float]:
    """Return how long the round stayed in each stage that it came to."""
    return {stage: row[f"{stage}_s"] for stage in DEADLINE_S if row[f"{stage}_s"] is not None}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("stage", "mode", "in_graph", "in_sum"),
    [
        ("download", "active", 14, 14),
        ("compute", "secagg", 14, 14),
        ("advertise-keys", "active", 14, 14),
        ("share-keys", "secagg-plus", 20, 14),
        ("share-keys", "active", 20, 14),
        ("masked-input", "secagg-plus", 20, 14),
        ("masked-input", "active", 20, 14),
        ("consistency", "active", 20, 20),
        ("unmask", "secagg-plus", 20, 20),
        ("unmask", "active", 20, 20),
    ],
)
def test_six_of_twenty_vanish(stage: str, mode: str, in_graph: int, in_sum: int, tmp_path: Path) -> None:
    outcome = run_of(tmp_path, mode, more=faults(**{stage.replace("-", "_"): "30%"}))
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["outcome"], round_["reason"], round_["secagg_failure"]) == ("completed", "none", "none")
    assert (round_["secagg_sum_error"], round_["secagg_double_reveals"]) == (0, 0)
    assert round_["secagg_neighbours"] == in_graph - 1
    assert round_["secagg_threshold"] == {14: 8, 20: 12}[in_graph]
    assert (round_["completed"], round_["dropped"]) == (in_sum, WANTED - in_sum)
    expected: dict[tuple[str, str | None, str], int] = {("completed", None, "none"): in_sum}
    if in_sum < WANTED:
        expected["dropped", stage, "vanished"] = WANTED - in_sum
    assert endings_of(outcome) == expected
    rows = rows_of(outcome, "device_rounds")
    assert round_["weight"] == sum(row["examples"] for row in rows if row["outcome"] == "completed")
    # Whoever is in the sum and gone before the end still wasted nothing but what it was sent in vain.
    assert len([row for row in rows if row["wasted_compute_s"] == 0.0]) >= in_sum

    seconds = seconds_of(round_)
    assert list(seconds) == [name for name in DEADLINE_S if name != "consistency" or mode == "active"]
    assert sum(seconds.values()) == pytest.approx(round_["duration_s"], rel=1e-12)
    # What nobody needs is not waited for: 14 answers to the request for shares are enough for 12.
    waited = {"download": "advertise-keys", "compute": "advertise-keys", "unmask": None}.get(stage, stage)
    for name, taken_s in seconds.items():
        if name == waited:
            assert taken_s == pytest.approx(DEADLINE_S[name], rel=1e-12)
        else:
            assert taken_s < 1.0


FEW = {
    # stage: what the round's row says: neighbours, threshold, failure; then the reason, and the last stage
    "advertise-keys": (None, None, "too-few-contributors", "quorum", "advertise-keys"),
    "share-keys": (19, 12, "too-few-neighbours", "threshold", "share-keys"),
    "masked-input": (19, 12, "too-few-contributors", "quorum", "masked-input"),
    "consistency": (19, 12, "too-few-survivors", "threshold", "consistency"),
    "unmask": (19, 12, "too-few-survivors", "threshold", "unmask"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("stage", FEW)
def test_fourteen_of_twenty_vanish(stage: str, tmp_path: Path) -> None:
    storm = in_phases(faults(**{stage.replace("-", "_"): "70%"}), 1, 1)
    neighbours, threshold, failure, reason, last = FEW[stage]
    outcome = run_of(tmp_path, "active", more=storm, count=2, extra=", min_contributors: 10")
    failed, after = rows_of(outcome, "rounds")
    assert (failed["outcome"], failed["reason"], failed["secagg_failure"]) == ("abandoned", reason, failure)
    assert (failed["secagg_neighbours"], failed["secagg_threshold"]) == (neighbours, threshold)
    assert (failed["weight"], failed["loss"], failed["secagg_sum_error"]) == (0.0, None, None)
    assert failed["clipped_fraction"] is None
    assert failed["secagg_double_reveals"] == 0
    seconds = seconds_of(failed)
    assert list(seconds)[-1] == last
    assert seconds[last] == pytest.approx(DEADLINE_S[last], rel=1e-12)
    assert sum(seconds.values()) == pytest.approx(failed["duration_s"], rel=1e-12)
    ended_at = {"unmask": "acknowledge"}.get(stage, stage)
    assert endings_of(outcome) == {
        ("dropped", stage, "vanished"): 14,
        ("abandoned", ended_at, reason): 6,
    }
    wasted = [row for row in rows_of(outcome, "device_rounds") if row["round"] == 1]
    assert all(row["wasted_compute_s"] == row["compute_s"] for row in wasted)
    assert all(row["wasted_bytes"] == row["up_bytes"] + row["down_bytes"] for row in wasted)

    assert (after["outcome"], after["completed"], after["secagg_sum_error"]) == ("completed", 20, 0)
    assert after["secagg_failure"] == "none"
    assert endings_of(outcome, 2) == {("completed", None, "none"): 20}


@pytest.mark.parametrize("stage", ["share-keys", "masked-input", "unmask"])
def test_below_the_threshold_the_model_stays_as_it_is(stage: str, tmp_path: Path) -> None:
    storm = in_phases(faults(**{stage.replace("-", "_"): "70%"}), 1, 1) + "\n"
    outcome = run_text(
        tmp_path,
        secure(
            "mode: secagg-plus",
            rounds=f"count: 2, cohort: {WANTED}, deadline: 60 s",
            fleet=IDEAL_WIRE,
            more=storm,
        ).replace("evaluation: {every: 1000}", "evaluation: {every: 1}"),
    )
    rmse = {
        row["round"]: row["value"]
        for row in rows_of(outcome, "evaluations")
        if (row["metric"], row["tag"]) == ("rmse", "all")
    }
    assert rmse[0] == rmse[1] != rmse[2]
    assert [row["outcome"] for row in rows_of(outcome, "rounds")] == ["abandoned", "completed"]


@pytest.mark.slow
def test_below_the_quorum_no_sum_is_revealed(tmp_path: Path) -> None:
    outcome = run_of(tmp_path, "secagg-plus", more=faults(masked_input="30%"), quorum=16)
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["outcome"], round_["reason"]) == ("abandoned", "quorum")
    assert round_["secagg_failure"] == "too-few-contributors"
    assert endings_of(outcome) == {
        ("dropped", "masked-input", "vanished"): 6,
        ("abandoned", "masked-input", "quorum"): 14,
    }
    # Nobody was asked for a share.
    assert not [row for row in rows_of(outcome, "events") if row["kind"] == "unmask-request"]


@pytest.mark.slow
def test_a_storm_at_every_stage_at_once(tmp_path: Path) -> None:
    storm = faults(
        download="5%", compute="5%", advertise_keys="5%", share_keys="5%",
        masked_input="5%", consistency="5%", unmask="5%",
    )  # fmt: skip
    outcome = run_of(tmp_path, "active", more=storm, count=4)
    for round_ in rows_of(outcome, "rounds"):
        assert round_["outcome"] == "completed"
        assert (round_["secagg_sum_error"], round_["secagg_double_reveals"]) == (0, 0)
        assert round_["completed"] + round_["dropped"] == WANTED
        assert round_["dropped"] <= 5
        for stage, taken_s in seconds_of(round_).items():
            # Whom two faults strike, the first one takes: some stage may be spared in some round.
            assert taken_s < 1.0 or taken_s == pytest.approx(DEADLINE_S[stage], rel=1e-12)
    seen = {row["stage"] for row in rows_of(outcome, "device_rounds") if row["outcome"] == "dropped"}
    assert seen == {"download", "compute", "advertise-keys", "share-keys", "masked-input"}
