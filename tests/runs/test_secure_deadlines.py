"""Each stage of a secure sum has its own deadline; who misses it is told, and the round goes on."""

from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows_of, run_text
from secure_helpers import MIXED_WIRES, endings, secure

from coordinator.run.runner import RunOutcome

FLEET = MIXED_WIRES.replace("ideal_wire: 50%, slow_wire: 50%", "ideal_wire: 70%, slow_wire: 30%")
DATA = "source: synthetic-ratings, users: 20, items: 200, ratings_per_user: 10"
"""Twenty devices, six of them behind a slow line, and all of them in every round."""
FAST, SLOW = 14, 6


def run_of(
    folder: Path, *, mode: str = "active", rounds: str = "cohort: 20, deadline: 60 s", **deadlines: str
) -> RunOutcome:
    long = {"share_keys": "60 s", "masked_input": "60 s", "consistency": "60 s", "unmask": "60 s"}
    stages = ", ".join(f"{stage}: {limit}" for stage, limit in {**long, **deadlines}.items())
    section = f"mode: {mode}, crypto: modelled, stage_deadlines: {{{stages}}}"
    return run_text(folder, secure(section, rounds=f"count: 1, {rounds}", fleet=FLEET, data=DATA))


def split(outcome: RunOutcome) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of the fast and of the slow devices."""
    rows = rows_of(outcome, "device_rounds")
    fast = [row for row in rows if row["network"] == "ideal_wire"]
    slow = [row for row in rows if row["network"] == "slow_wire"]
    assert (len(fast), len(slow)) == (FAST, SLOW)
    return fast, slow


def events_of(outcome: RunOutcome, devices: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind of some devices, by device."""
    ids = {row["device"] for row in devices}
    found = [row for row in rows_of(outcome, "events") if row["device"] in ids and row["kind"] == kind]
    return sorted(found, key=lambda row: int(row["device"]))


@pytest.mark.parametrize(
    ("stage", "settings", "limit_s"),
    [
        ("advertise-keys", {"rounds": "cohort: 20, deadline: 1500 ms"}, 1.5),
        ("share-keys", {"share_keys": "600 ms"}, 0.6),
        ("masked-input", {"masked_input": "600 ms"}, 0.6),
        ("masked-input", {"mode": "ckks", "rounds": "cohort: 20, deadline: 10 s"}, 10.0),
    ],
)
def test_whoever_misses_a_deadline_is_late_and_told(
    stage: str, settings: dict[str, str], limit_s: float, tmp_path: Path
) -> None:
    outcome = run_of(tmp_path, **settings)
    fast, slow = split(outcome)
    assert endings(fast) == {("completed", None, "none"): FAST}
    assert endings(slow) == {("late", stage, "deadline"): SLOW}
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["outcome"], round_["completed"], round_["late"]) == ("completed", FAST, SLOW)
    assert round_[f"{stage}_s"] == pytest.approx(limit_s, rel=1e-12)
    # Its answer arrives and is thrown away under its own name, and answered with a receipt.
    thrown_away = events_of(outcome, slow, "late")
    assert [row["device"] for row in thrown_away] == sorted(row["device"] for row in slow)
    receipts = events_of(outcome, slow, "acknowledged")
    for row, receipt in zip(thrown_away, receipts, strict=True):
        assert (row["stage"], row["fate"], row["reason"]) == (stage, "discarded", "deadline")
        assert receipt["device"] == row["device"]
        assert receipt["fate"] == "delivered"
        assert receipt["start_s"] == row["end_s"] > sum(_until(round_, stage))
    for row in slow:
        assert row["discarded_bytes"] == row[f"{stage}_up_bytes"] > 0
        assert row["wasted_compute_s"] == row["compute_s"] > 0.0
        assert row["wasted_bytes"] == row["up_bytes"] + row["down_bytes"]
        # Only a late input stands for the report.
        assert (row["latency_s"] is None) == (stage != "masked-input")


def _until(round_: dict[str, Any], stage: str) -> list[float]:
    """Return the seconds of the stages up to one."""
    names = ["advertise-keys", "share-keys", "masked-input"]
    return [round_[f"{name}_s"] or 0.0 for name in names[: names.index(stage) + 1]]


def test_whoever_signs_too_late_is_in_the_sum_all_the_same(tmp_path: Path) -> None:
    outcome = run_of(tmp_path, consistency="300 ms")
    fast, slow = split(outcome)
    assert endings(fast) == {("completed", None, "none"): FAST}
    assert endings(slow) == {("completed", None, "none"): SLOW}
    (round_,) = rows_of(outcome, "rounds")
    assert round_["consistency_s"] == pytest.approx(0.3, rel=1e-12)
    assert (round_["completed"], round_["secagg_sum_error"]) == (20, 0)
    (reasons,) = {(row["stage"], row["reason"]) for row in events_of(outcome, slow, "late")}
    assert reasons == ("consistency", "deadline")
    # Of those that are not known to have agreed, nobody is asked for shares.
    assert events_of(outcome, slow, "unmask-request") == []
    assert len(events_of(outcome, fast, "unmask-request")) == FAST


def test_shares_beyond_those_needed_are_surplus_and_their_device_is_not(tmp_path: Path) -> None:
    outcome = run_of(tmp_path)
    _, slow = split(outcome)
    (round_,) = rows_of(outcome, "rounds")
    assert round_["secagg_threshold"] == 12 <= FAST
    assert round_["unmask_s"] < 0.3
    late = events_of(outcome, slow, "late")
    assert {(row["stage"], row["fate"], row["reason"]) for row in late} == {
        ("unmask", "discarded", "cohort-full")
    }
    assert endings(slow) == {("completed", None, "none"): SLOW}


@pytest.mark.parametrize(("mode", "stage"), [("active", "download"), ("ckks", "masked-input")])
def test_a_full_cohort_leaves_a_surplus(mode: str, stage: str, tmp_path: Path) -> None:
    # Twenty are invited for fourteen. Slow phones have not even accepted when the keys of the fast are in;
    # encrypted inputs take longer than to accept and to be given the model.
    outcome = run_of(tmp_path, mode=mode, rounds="cohort: 14, over_select: 142%, deadline: 90 s")
    fast, slow = split(outcome)
    assert endings(fast) == {("completed", None, "none"): FAST}
    assert endings(slow) == {("surplus", stage, "cohort-full"): SLOW}
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["invited"], round_["completed"], round_["surplus"]) == (20, FAST, SLOW)
    for row in events_of(outcome, slow, "late"):
        assert (row["stage"], row["reason"]) == ("masked-input", "cohort-full")
    assert len(events_of(outcome, slow, "acknowledged")) == SLOW


def test_whoever_comes_late_to_a_failed_round_hears_why_it_failed(tmp_path: Path) -> None:
    outcome = run_of(tmp_path, rounds="cohort: 20, deadline: 1500 ms, quorum: 15")
    fast, slow = split(outcome)
    assert endings(fast) == {("abandoned", "advertise-keys", "quorum"): FAST}
    assert endings(slow) == {("abandoned", "advertise-keys", "quorum"): SLOW}
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["outcome"], round_["reason"]) == ("abandoned", "quorum")
    assert round_["secagg_failure"] == "too-few-contributors"
    assert round_["duration_s"] == pytest.approx(1.5, rel=1e-12)


def test_a_stage_that_nobody_misses_ends_with_the_last_answer(tmp_path: Path) -> None:
    outcome = run_of(tmp_path)
    (round_,) = rows_of(outcome, "rounds")
    events = rows_of(outcome, "events")
    ends = {"keys": "advertise-keys", "sealed-shares": "share-keys", "masked-input": "masked-input",
            "signature": "consistency"}  # fmt: skip
    start_s = 0.0
    for kind, stage in ends.items():
        last_s = max(row["end_s"] for row in events if row["kind"] == kind)
        assert round_[f"{stage}_s"] == pytest.approx(last_s - start_s, rel=1e-12)
        start_s = last_s
    # Twelve shares of each secret are enough.
    arrivals = sorted(row["end_s"] for row in events if row["kind"] == "unmask-shares")
    assert len(arrivals) == 12
    assert round_["unmask_s"] == pytest.approx(arrivals[-1] - start_s, rel=1e-9)
    assert round_["duration_s"] == pytest.approx(arrivals[-1], rel=1e-12)
