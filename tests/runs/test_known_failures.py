"""What other simulators were reported to get wrong about waiting, each by its behaviour."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pacing_helpers import FAST_AND_SLOW, by_round, ideal, ideal_regression
from run_helpers import SMALL, rows_of, run_text

from coordinator.run.runner import RunOutcome
from coordinator.scenario.registered_sections import SECTIONS

ROUNDS = "{mode: synchronous}"
BUFFER = "{mode: buffered, concurrency: 6}"
PACINGS = pytest.mark.parametrize("pacing", [ROUNDS, BUFFER], ids=["rounds", "buffer"])
POLICIES = [name for name, section in SECTIONS.items() if not section.even]
"""Those that ask only whoever is available."""
NEVER_THERE = (
    "fleet.availability={kind: on-off, session: {distribution: exponential, mean: 1 s},"
    " gap: {distribution: exponential, mean: 300 d}}"
)


def outcomes(run: RunOutcome) -> Counter[tuple[str, str]]:
    return Counter((row["outcome"], row["reason"]) for row in rows_of(run, "device_rounds"))


@pytest.mark.parametrize("grace", [None, "400 ms"])
def test_a_cut_off_with_the_minimum_met_closes_the_round(grace: str | None, tmp_path: Path) -> None:
    """Reported: the time is looked at only when a report arrives, so that a round without one never ends."""
    pacing = ROUNDS if grace is None else f"{{mode: synchronous, grace: {grace}}}"
    text = ideal(FAST_AND_SLOW, deadline="1 s", quorum="2", count="4", pacing=pacing)
    devices = by_round(rows_of(run := run_text(tmp_path, text), "device_rounds"))
    for round_ in rows_of(run, "rounds"):
        in_time = sorted(
            row["report_end_s"] for row in devices[round_["round"]] if row["outcome"] == "completed"
        )
        # Nothing at all happens at the moment at which it is closed.
        expected = round_["start_s"] + 1.0 if grace is None else in_time[1] + 0.4
        assert round_["end_s"] == pytest.approx(expected, rel=1e-9)
        assert expected > in_time[-1] + 0.05
        assert round_["outcome"] == "completed"


@PACINGS
def test_an_upload_longer_than_any_time_out_still_ends(pacing: str, tmp_path: Path) -> None:
    """Reported: an upload outlives the server's time-out, and the client is waited for for ever."""
    # The model takes about a minute to arrive and two to come back: 720 kB over 100 and 50 kbit/s.
    text = ideal("slow_wire: 100%", users=6, count="1", cohort="6", deadline="70 s", pacing=pacing).replace(
        "items: 400", "items: 20000"
    ).replace("factors: 8", "factors: 8, upload: dense")  # fmt: skip
    run = run_text(tmp_path, text)
    assert outcomes(run) == {("late", "deadline"): 6}
    for row in rows_of(run, "device_rounds"):
        assert 0 < row["report_up_bytes"] < 720_000
        # Twice its time after the invitation a device gives up, and nothing of it is on its way.
        assert row["report_end_s"] < 142.0
        assert row["wasted_bytes"] == row["up_bytes"] + row["down_bytes"]
    (round_,) = rows_of(run, "rounds")
    assert (round_["outcome"], round_["reason"]) == ("abandoned", "quorum")
    if pacing is ROUNDS:
        assert round_["duration_s"] == pytest.approx(70.0)


@PACINGS
def test_devices_that_finish_at_the_same_moment_are_told_apart(pacing: str, tmp_path: Path) -> None:
    """Reported: of two events at one time the second is lost, or they cannot be put in order."""
    over_select = "100%" if pacing is BUFFER else "200%"
    text = ideal_regression(count="4", cohort="3", pacing=pacing, over_select=over_select)
    run = run_text(tmp_path, text)
    rows = by_round(rows_of(run, "device_rounds"))
    for round_ in rows_of(run, "rounds"):
        applied = [row for row in rows[round_["round"]] if row["outcome"] == "completed"]
        assert len(applied) == len({row["device"] for row in applied}) == 3
    if pacing is ROUNDS:
        first = [row for row in rows[1] if row["report_end_s"] is not None]
        assert len(first) == 6
        assert len({row["report_end_s"] for row in first}) == 1
        assert Counter(row["outcome"] for row in first) == {"completed": 3, "surplus": 3}


@pytest.mark.few(3)
@pytest.mark.parametrize("selection", list(SECTIONS))
@PACINGS
def test_nearly_all_devices_asked_at_no_cost(pacing: str, selection: str, tmp_path: Path) -> None:
    """Reported: with 48 of 50 clients and no delays a round never gets its clients, or divides by zero."""
    text = ideal(
        "free_wire: 100%", users=50, count="3", cohort="48", selection=selection,
        pacing=pacing.replace("concurrency: 6", "concurrency: 48"),
    ).replace("ideal_device", "free_device")  # fmt: skip
    run = run_text(tmp_path, text)
    for round_ in rows_of(run, "rounds"):
        assert (round_["outcome"], round_["completed"]) == ("completed", 48)
        assert 0 < round_["duration_s"] < 0.1
    devices = by_round(row for row in rows_of(run, "device_rounds") if row["outcome"] == "completed")
    assert all(len({row["device"] for row in rows}) == 48 for rows in devices.values())


@pytest.mark.few(3)
@pytest.mark.parametrize("selection", POLICIES)
@PACINGS
def test_a_run_whose_devices_are_all_offline_ends_with_a_reason(
    pacing: str, selection: str, tmp_path: Path
) -> None:
    """Reported: the server waits for ever for a client to connect, or asks in a loop without a pause."""
    text = SMALL.replace("count: 3", f"count: 3, pacing: {pacing}, selection: {selection}, max_wait: 5 h")
    run = run_text(tmp_path, text, [NEVER_THERE])
    assert (run.status, run.reason) == ("no-round-completed", "nobody available")
    assert rows_of(run, "rounds") == []


def test_a_buffer_larger_than_all_that_ever_arrives_is_no_standstill(tmp_path: Path) -> None:
    """Reported: with fewer reports than the buffer holds no step is ever taken."""
    silent = "faults: [{name: silent, on: {devices: [0, 2, 4, 6, 8, 10]}, at_stage: compute, vanish: {}}]\n"
    text = ideal(users=12, count="2", cohort="12", deadline="5 s", pacing=BUFFER, more=silent)
    run = run_text(tmp_path, text)
    for round_ in rows_of(run, "rounds"):
        assert (round_["outcome"], round_["completed"], round_["dropped"]) == ("completed", 6, 6)
        # Six places: in the worst case all the silent ones hold theirs before the others get one.
        assert round_["duration_s"] <= 2 * 5 + 1


@pytest.mark.slow
@PACINGS
def test_one_device_that_never_replies_holds_up_nobody_beyond_its_deadline(
    pacing: str, tmp_path: Path
) -> None:
    """Reported: the round waits for the last client, whatever has become of it."""
    silent = "faults: [{name: silent, on: {devices: [3]}, at_stage: download, vanish: {}}]\n"
    text = ideal(users=6, count="8", cohort="6", deadline="5 s", pacing=pacing, more=silent)
    if pacing is BUFFER:
        text = text.replace("cohort: 6", "cohort: 2")
    run = run_text(tmp_path, text)
    rounds = rows_of(run, "rounds")
    assert [row["outcome"] for row in rounds] == ["completed"] * 8
    silences = [row for row in rows_of(run, "device_rounds") if row["device"] == 3]
    assert {row["outcome"] for row in silences} == {"dropped"}
    if pacing is ROUNDS:
        assert [row["duration_s"] for row in rounds] == pytest.approx([5.0] * 8)
    else:
        # The others go on meanwhile.
        assert rounds[-1]["end_s"] < 5.0


def test_a_device_that_comes_back_one_round_late_is_not_taken_for_one_of_the_next(tmp_path: Path) -> None:
    """Reported: an update of the round before is added to this one, or ends the server."""
    # A report over the slow wire takes 2.9 s: it has left by the deadline and arrives in the next round.
    text = ideal(FAST_AND_SLOW, count="6", cohort="10", deadline="2800 ms", interval="10 ms")
    run = run_text(tmp_path, text)
    rounds, devices = rows_of(run, "rounds"), by_round(rows_of(run, "device_rounds"))
    late = [
        row
        for row in rows_of(run, "device_rounds")
        if row["outcome"] == "late" and row["report_end_s"] is not None
    ]
    next_round_s = {row["round"]: row["end_s"] + 0.01 for row in rounds}
    assert any(row["report_end_s"] > next_round_s[row["round"]] for row in late)
    for round_ in rounds:
        applied = [row for row in devices[round_["round"]] if row["outcome"] == "completed"]
        assert round_["weight"] == sum(row["examples"] for row in applied)
        assert {row["network"] for row in applied} == {"ideal_wire"}
    # And whoever was late once is asked again.
    again = Counter(row["device"] for row in rows_of(run, "device_rounds") if row["network"] == "slow_wire")
    assert max(again.values()) > 1


@PACINGS
def test_a_computation_longer_than_the_deadline_is_given_up(pacing: str, tmp_path: Path) -> None:
    """Reported: a client that trains longer than a heartbeat or a time-out is dead to the server for good."""
    # A hundred thousand steps take 133 s.
    text = ideal_regression(count="2", deadline="30 s", pacing=pacing).replace("steps: 300", "steps: 100000")
    run = run_text(tmp_path, text)
    for round_ in rows_of(run, "rounds"):
        assert (round_["outcome"], round_["late"]) == ("abandoned", 6)
    rows = rows_of(run, "device_rounds")
    assert len(rows) == 12
    for row in rows:
        assert (row["outcome"], row["stage"], row["reason"]) == ("late", "compute", "deadline")
        # From the model's arrival until its time is up.
        assert row["compute_s"] == pytest.approx(
            30.0 - (row["compute_start_s"] - row["invite_end_s"]), abs=0.3
        )
        assert row["wasted_compute_s"] == row["compute_s"]
