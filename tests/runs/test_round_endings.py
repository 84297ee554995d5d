"""How rounds and runs end, and that each ending has its name."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from run_helpers import IDEAL_PROFILES, SMALL, Silent, rows_of, run_text

from coordinator.run.runner import RunOutcome, run_scenario
from coordinator.scenario.load import load


def ideal(networks: str, **rounds: str) -> str:
    settings = {"count": "3", "cohort": "10", "deadline": "30 s", **rounds}
    return f"""
format: 2
seed: 2
data: {{source: synthetic-ratings, users: 60, items: 400, ratings_per_user: 15}}
fleet: {{devices: {{ideal_device: 100%}}, networks: {{{networks}}}, profiles: [{IDEAL_PROFILES}]}}
learning: {{algorithm: fedrecon, factors: 8}}
rounds: {{{", ".join(f"{name}: {value}" for name, value in settings.items())}}}
"""


def outcomes(outcome: RunOutcome) -> Counter[tuple[str, str]]:
    return Counter((row["outcome"], row["reason"]) for row in rows_of(outcome, "device_rounds"))


def test_what_comes_after_the_deadline_is_late_and_not_applied(tmp_path: Path) -> None:
    # Over the fast wire a device needs 0.5 s, over the slow one 2.9 s.
    outcome = run_text(tmp_path, ideal("ideal_wire: 50%, slow_wire: 50%", deadline="2 s"))
    by_network: dict[str, set[tuple[str, str]]] = {"ideal_wire": set(), "slow_wire": set()}
    for row in rows_of(outcome, "device_rounds"):
        by_network[row["network"]].add((row["outcome"], row["reason"]))
        if row["network"] == "slow_wire":
            assert row["wasted_bytes"] == row["up_bytes"] + row["down_bytes"] > 0
            assert row["wasted_compute_s"] == row["compute_s"]
    assert by_network == {"ideal_wire": {("completed", "none")}, "slow_wire": {("late", "deadline")}}
    for round_ in rows_of(outcome, "rounds"):
        assert round_["duration_s"] == pytest.approx(2.0)
        assert round_["outcome"] == "completed"
        assert round_["completed"] + round_["late"] == 10


def test_a_late_report_is_answered_and_counted_as_late(tmp_path: Path) -> None:
    # Its upload over the slow wire has begun at the deadline and arrives after it.
    outcome = run_text(tmp_path, ideal("slow_wire: 100%", count="1", deadline="2800 ms", cohort="4"))
    rows = rows_of(outcome, "device_rounds")
    late = [row for row in rows if row["report_start_s"] is not None]
    assert late
    for row in late:
        assert row["outcome"] == "late"
        assert row["latency_s"] > 2.8
        assert row["discarded_bytes"] == row["report_up_bytes"]
        assert row["acknowledge_down_bytes"] > 0
    kinds = Counter(row["kind"] for row in rows_of(outcome, "events"))
    assert kinds["late"] == len(late)


def test_below_the_quorum_nothing_is_applied(tmp_path: Path) -> None:
    text = ideal("ideal_wire: 50%, slow_wire: 50%", deadline="2 s", quorum="10")
    outcome = run_text(tmp_path, text)
    for round_ in rows_of(outcome, "rounds"):
        assert (round_["outcome"], round_["reason"]) == ("abandoned", "quorum")
        assert round_["loss"] is None
        assert round_["abandoned"] + round_["late"] == 10
    assert ("abandoned", "quorum") in outcomes(outcome)
    # They had done their part, and waited for nothing but the end of the round.
    given_up = [row for row in rows_of(outcome, "device_rounds") if row["outcome"] == "abandoned"]
    assert {row["stage"] for row in given_up} == {"acknowledge"}
    rmse = [row["value"] for row in rows_of(outcome, "evaluations") if row["metric"] == "rmse"]
    assert len(set(rmse[:: len(rmse) // 2])) == 1  # the model is still the first one


def test_over_selection_leaves_a_surplus(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, ideal("ideal_wire: 50%, slow_wire: 50%", over_select="150%"))
    for round_ in rows_of(outcome, "rounds"):
        assert round_["invited"] == 15
        assert round_["completed"] == 10
        assert round_["surplus"] == 5
    assert set(outcomes(outcome)) == {("completed", "none"), ("surplus", "cohort-full")}


def test_a_device_without_the_memory_fails(tmp_path: Path) -> None:
    text = SMALL.replace(
        "mix: global_android_2024", "devices: {mcu_esp32c3: 100%}, networks: {wifi_home: 100%}"
    )
    outcome = run_text(tmp_path, text, ["data.items=20000", "rounds.count=1", "rounds.deadline=10 min"])
    rows = rows_of(outcome, "device_rounds")
    # 400 KiB of memory, of which a quarter is for one application.
    assert all(row["memory_bytes"] > 100 * 1024 for row in rows)
    assert set(outcomes(outcome)) == {("failed", "memory")}
    assert {row["stage"] for row in rows} == {"compute"}
    assert all(row["compute_s"] == 0.0 and row["download_down_bytes"] > 20_000 * 5 * 4 for row in rows)
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["outcome"], round_["failed"]) == ("abandoned", 20)


def test_the_same_model_fits_a_device_with_more_memory(tmp_path: Path) -> None:
    text = SMALL.replace("mix: global_android_2024", "devices: {sbc_pi3: 100%}, networks: {wifi_home: 100%}")
    outcome = run_text(tmp_path, text, ["data.items=20000", "rounds.count=1", "rounds.deadline=10 min"])
    assert set(outcomes(outcome)) == {("completed", "none")}


RARE = (
    "fleet.availability={kind: on-off, session: {distribution: exponential, mean: 1 s},"
    " gap: {distribution: exponential, mean: 300 d}}"
)


def test_a_run_stops_when_nobody_is_available(tmp_path: Path) -> None:
    settings = [RARE, "rounds.selection=availability-aware", "rounds.quorum=5", "rounds.max_wait=2 h"]
    outcome = run_text(tmp_path, SMALL, settings)
    assert (outcome.status, outcome.reason) == ("no-round-completed", "nobody available")
    assert rows_of(outcome, "rounds") == []


def test_whoever_is_away_is_unreachable(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SMALL, [RARE, "rounds.selection=random"])
    assert outcome.reason is None
    counted = outcomes(outcome)
    assert counted[("unreachable", "unavailable")] > 55
    for round_ in rows_of(outcome, "rounds"):
        if round_["unreachable"] == 20:
            assert (round_["outcome"], round_["duration_s"]) == ("abandoned", pytest.approx(120.0))


def test_a_target_stops_the_run_at_the_evaluation_that_reaches_it(tmp_path: Path) -> None:
    settings = ["rounds.count=50", "rounds.target=model.rmse <= 0.978", "evaluation.every=5"]
    outcome = run_text(tmp_path, SMALL, settings)
    assert (outcome.status, outcome.reason) == ("finished", "target reached")
    rmse = [
        (row["round"], row["value"])
        for row in rows_of(outcome, "evaluations")
        if row["metric"] == "rmse" and row["tag"] == "all"
    ]
    assert all(value > 0.978 for _, value in rmse[:-1])
    last_round, last = rmse[-1]
    assert last <= 0.978
    assert last_round == len(rows_of(outcome, "rounds")) < 50
    assert last_round % 5 == 0


def test_a_limit_on_simulated_time_stops_the_run(tmp_path: Path) -> None:
    settings = ["rounds.count=500", "rounds.interval=10 s", "rounds.simulated_time_limit=60 s"]
    outcome = run_text(tmp_path, SMALL, settings)
    assert (outcome.status, outcome.reason) == ("finished", "time limit")
    rounds = rows_of(outcome, "rounds")
    assert rounds[-1]["start_s"] < 60.0 <= rounds[-1]["end_s"] + 10.0
    for before, after in itertools.pairwise(rounds):
        assert after["start_s"] == pytest.approx(before["end_s"] + 10.0)


def phases_of(outcome: RunOutcome) -> list[tuple[str, float]]:
    return [(row["phase"], row["start_s"]) for row in rows_of(outcome, "rounds")]


def test_phases_by_rounds(tmp_path: Path) -> None:
    settings = ["rounds.count=null", "phases=[{name: first, rounds: 2}, {name: second, rounds: 3}]"]
    outcome = run_text(tmp_path, SMALL, settings)
    assert [name for name, _ in phases_of(outcome)] == ["first"] * 2 + ["second"] * 3
    names: dict[int, Any] = {row["round"]: row["phase"] for row in rows_of(outcome, "device_rounds")}
    assert names == {1: "first", 2: "first", 3: "second", 4: "second", 5: "second"}


@pytest.mark.slow
def test_phases_by_simulated_time(tmp_path: Path) -> None:
    settings = [
        "rounds.count=null",
        "rounds.interval=7 s",
        "phases=[{name: first, time: 20 s}, {name: second, time: 40 s}]",
    ]
    outcome = run_text(tmp_path, SMALL, settings)
    assert outcome.reason is None
    phases = phases_of(outcome)
    assert {name for name, _ in phases} == {"first", "second"}
    assert all(name == ("first" if start_s < 20.0 else "second") for name, start_s in phases)
    assert phases[-1][1] < 60.0 <= phases[-1][1] + 7.0 + 10.0


@pytest.mark.slow
def test_a_round_waits_for_its_quorum_no_longer_than_needed(tmp_path: Path) -> None:
    """With every device in every round, the next begins with the last receipt, not after a fixed pause."""
    text = ideal("ideal_wire: 100%", cohort="60", quorum="60")
    outcome = run_text(tmp_path, text)
    rounds = rows_of(outcome, "rounds")
    receipts = [row for row in rows_of(outcome, "device_rounds") if row["round"] == 1]
    assert rounds[1]["start_s"] == max(row["acknowledge_end_s"] for row in receipts)
    assert [round_["completed"] for round_ in rounds] == [60, 60, 60]


def test_progress_is_told_of_every_round(tmp_path: Path) -> None:
    file = tmp_path / "told.yaml"
    file.write_text(SMALL)
    observer = Silent()
    run_scenario(load(file), target=tmp_path / "out", observer=observer)
    assert [row["round"] for row in observer.rounds] == [1, 2, 3]
    assert [number for number, _ in observer.evaluations] == [0, 2, 3]
    assert observer.status == "finished"
