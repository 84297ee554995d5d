"""Under homomorphic encryption one device decrypts the sum; if it cannot, the next one is asked."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows_of, run_text
from secure_helpers import IDEAL_WIRE, MIXED_WIRES, endings_of, faults, secure

from coordinator.run.runner import RunOutcome

UNMASK_S = 40.0


def run_of(
    folder: Path, cohort: int, *, more: str = "", fleet: str = IDEAL_WIRE, limit_s: float
) -> RunOutcome:
    section = f"mode: ckks, crypto: modelled, stage_deadlines: {{unmask: {limit_s:g} s}}"
    return run_text(
        folder,
        secure(section, rounds=f"count: 1, cohort: {cohort}, deadline: 60 s", fleet=fleet, more=more),
    )


def requests_of(outcome: RunOutcome) -> list[dict[str, Any]]:
    return [row for row in rows_of(outcome, "events") if row["kind"] == "decrypt-request"]


@pytest.mark.parametrize(("share", "cohort", "vanishing"), [("60%", 5, 3), ("95%", 20, 19)])
def test_the_next_is_asked_with_a_full_deadline_of_its_own(
    share: str, cohort: int, vanishing: int, tmp_path: Path
) -> None:
    outcome = run_of(tmp_path, cohort, more=faults(unmask=share), limit_s=UNMASK_S)
    asked = requests_of(outcome)
    ids = sorted(row["device"] for row in rows_of(outcome, "device_rounds"))
    # In ascending order, and nobody after the first that stays; the fault leaves cohort - vanishing of them.
    assert [row["device"] for row in asked] == ids[: len(asked)]
    assert 2 <= len(asked) <= vanishing + 1
    for before, after in pairwise(asked):
        assert after["start_s"] - before["start_s"] == pytest.approx(UNMASK_S, rel=1e-12)
    (answer,) = [
        row for row in rows_of(outcome, "events")
        if row["kind"] == "decrypted-sum" and row["fate"] == "delivered"
    ]  # fmt: skip
    assert answer["device"] == asked[-1]["device"]
    (round_,) = rows_of(outcome, "rounds")
    assert round_["end_s"] == answer["end_s"]
    waited_s = UNMASK_S * (len(asked) - 1)
    assert round_["unmask_s"] == pytest.approx(waited_s + answer["end_s"] - asked[-1]["start_s"], rel=1e-12)
    assert waited_s < round_["unmask_s"] < waited_s + 1.0
    # Whoever vanished while it sent the sum has its update in it.
    assert (round_["outcome"], round_["completed"], round_["dropped"]) == ("completed", cohort, 0)
    assert endings_of(outcome) == {("completed", None, "none"): cohort}


def test_when_all_vanish_the_round_is_abandoned(tmp_path: Path) -> None:
    outcome = run_of(tmp_path, 8, more=faults(unmask="100%"), limit_s=UNMASK_S)
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["outcome"], round_["reason"]) == ("abandoned", "threshold")
    assert round_["secagg_failure"] == "too-few-survivors"
    assert (round_["secagg_neighbours"], round_["secagg_threshold"]) == (None, None)
    assert (round_["weight"], round_["loss"], round_["clipped_fraction"]) == (0.0, None, None)
    assert round_["unmask_s"] == pytest.approx(8 * UNMASK_S, rel=1e-12)
    assert len(requests_of(outcome)) == 8
    assert endings_of(outcome) == {("dropped", "unmask", "vanished"): 8}
    # Nobody lost patience while others had their time.
    assert {row["fate"] for row in requests_of(outcome)} == {"delivered"}


def test_one_that_is_too_slow_to_decrypt_is_told_so_and_its_update_counts(tmp_path: Path) -> None:
    # The encrypted sum takes 20 s over the slow line, and less than 1 s over the other.
    fleet = MIXED_WIRES.replace("ideal_wire: 50%, slow_wire: 50%", "ideal_wire: 30%, slow_wire: 70%")
    outcome = run_of(tmp_path, 10, fleet=fleet, limit_s=5.0)
    rows = sorted(rows_of(outcome, "device_rounds"), key=lambda row: int(row["device"]))
    slow_ahead = next(at for at, row in enumerate(rows) if row["network"] == "ideal_wire")
    assert slow_ahead >= 1
    assert len(requests_of(outcome)) == slow_ahead + 1
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["outcome"], round_["completed"]) == ("completed", 10)
    assert 5.0 * slow_ahead < round_["unmask_s"] < 5.0 * slow_ahead + 1.0
    for row in rows[:slow_ahead]:
        assert (row["outcome"], row["reason"]) == ("completed", "none")
        thrown_away = [
            event for event in rows_of(outcome, "events")
            if event["device"] == row["device"] and event["kind"] == "late"
        ]  # fmt: skip
        assert [(event["stage"], event["fate"]) for event in thrown_away] == [("unmask", "discarded")]
        assert thrown_away[0]["reason"] in ("deadline", "cohort-full")


def test_only_one_device_sees_the_sum(tmp_path: Path) -> None:
    outcome = run_of(tmp_path, 8, limit_s=UNMASK_S)
    (asked,) = requests_of(outcome)
    others = [row for row in rows_of(outcome, "device_rounds") if row["device"] != asked["device"]]
    assert len(others) == 7
    for row in others:
        assert (row["unmask_start_s"], row["unmask_down_bytes"], row["unmask_up_bytes"]) == (None, 0, 0)
        assert (row["advertise-keys_start_s"], row["share-keys_start_s"]) == (None, None)
        assert row["outcome"] == "completed"
