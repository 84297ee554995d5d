"""Buffered asynchronous training in whole runs: what is applied, with which weight, and what is wasted."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_checks import bytes_of, check_run
from pacing_helpers import FAST_AND_SLOW, by_round, ideal, ideal_regression, most_at_once
from random_faults import random_faults
from run_helpers import SMALL, rows_of, run_text, tables_of
from test_byte_conservation import random_scenario

from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome
from coordinator.scenario.load import load
from edge.learning.updates import ClientUpdate


def buffered(concurrency: int, **settings: str) -> str:
    written = {"mode": "buffered", "concurrency": str(concurrency), **settings}
    return f"{{{', '.join(f'{name}: {value}' for name, value in written.items())}}}"


def model_of(outcome: RunOutcome) -> dict[str, Any]:
    with np.load(outcome.directory / "model.npz") as file:
        return dict(file)


def outcomes(outcome: RunOutcome) -> Counter[tuple[str, str]]:
    return Counter((row["outcome"], row["reason"]) for row in rows_of(outcome, "device_rounds"))


@pytest.mark.slow
def test_a_buffer_of_fresh_reports_is_a_synchronous_round(tmp_path: Path) -> None:
    synchronous = run_text(tmp_path, ideal(users=10, count="1"), name="rounds")
    pacing = buffered(10)
    asynchronous = run_text(tmp_path, ideal(users=10, count="1", pacing=pacing), name="buffer")
    one, other = model_of(synchronous), model_of(asynchronous)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name
    (round_,), (step,) = rows_of(synchronous, "rounds"), rows_of(asynchronous, "rounds")
    assert step["duration_s"] == round_["duration_s"]
    assert {row["staleness"] for row in rows_of(asynchronous, "device_rounds")} == {0.0}
    assert {row["staleness"] for row in rows_of(synchronous, "device_rounds")} == {None}


@pytest.mark.slow
@pytest.mark.parametrize("weight", ["inverse-sqrt", "constant"])
def test_every_step_is_what_the_formula_says(weight: str, tmp_path: Path) -> None:
    """The whole run once more, from nothing but who reported when, and how old its model was."""
    pacing = buffered(4, staleness_weight=weight)
    text = ideal_regression(FAST_AND_SLOW, count="12", cohort="2", pacing=pacing)
    outcome = run_text(tmp_path, text)
    assembly = assemble(load(tmp_path / "run.yaml"))
    workload, algorithm = assembly.workload, assembly.workload.algorithm
    states = [algorithm.initial_state(2)]
    optimizer_state = algorithm.initial_optimizer_state(states[0])
    applied = [row for row in rows_of(outcome, "device_rounds") if row["outcome"] == "completed"]
    seen: set[int] = set()
    for number, reports in by_round(applied).items():
        assert len(reports) == 2
        accumulator = algorithm.accumulator(states[-1])
        for report in sorted(reports, key=lambda row: row["report_end_s"]):
            age = int(report["staleness"])
            seen.add(age)
            kernel = workload.training(states[number - 1 - age], number - age)
            (update,) = kernel(np.array([report["device"]]))()
            share = 1.0 if weight == "constant" else (1.0 + age) ** -0.5
            accumulator.add(scaled(update, share), report["device"])
        aggregate = accumulator.result()
        assert aggregate.weight == 100.0  # two reports of 50 samples, however old
        state, optimizer_state = algorithm.server_update(states[-1], optimizer_state, aggregate, number - 1)
        states.append(state)
    assert {0, 1}.issubset(seen)
    assert max(seen) >= 2
    np.testing.assert_allclose(model_of(outcome)["weights"], states[-1]["weights"], rtol=1e-12, atol=1e-15)


def scaled(update: ClientUpdate, share: float) -> ClientUpdate:
    return update._replace(arrays={name: array * share for name, array in update.arrays.items()})


def test_staleness_is_the_number_of_steps_since_the_model_was_sent(tmp_path: Path) -> None:
    """One fast and one slow device, a step a report: the slow one is as old as there were steps meanwhile."""
    text = ideal(FAST_AND_SLOW, users=2, count="12", cohort="1", pacing=buffered(2, staleness_limit="100"))
    rows = rows_of(run_text(tmp_path, text), "device_rounds")
    slow = [row for row in rows if row["network"] == "slow_wire" and row["outcome"] == "completed"]
    assert len(slow) >= 2
    for row in slow:
        steps_meanwhile = [
            other
            for other in rows
            if other["outcome"] == "completed"
            and row["invite_start_s"] < other["report_end_s"] < row["report_end_s"]
        ]
        assert row["staleness"] == len(steps_meanwhile) >= 4
    fast = [row for row in rows if row["network"] == "ideal_wire" and row["outcome"] == "completed"]
    assert max(row["staleness"] for row in fast) <= 1


def test_a_report_over_the_limit_is_refused_and_counts_as_waste(tmp_path: Path) -> None:
    text = ideal(FAST_AND_SLOW, users=20, count="30", cohort="1", pacing=buffered(8, staleness_limit="3"))
    rows = rows_of(run_text(tmp_path, text), "device_rounds")
    assert max(row["staleness"] for row in rows if row["staleness"] is not None) == 3.0
    stale = [row for row in rows if row["reason"] == "stale"]
    assert stale
    for row in stale:
        assert (row["outcome"], row["staleness"]) == ("late", None)
        assert row["wasted_bytes"] == row["up_bytes"] + row["down_bytes"] > 0
        assert row["wasted_compute_s"] == row["compute_s"]
    assert any(row["compute_s"] > 0 for row in stale)


def test_a_limit_of_nothing_takes_only_fresh_reports(tmp_path: Path) -> None:
    text = ideal(FAST_AND_SLOW, users=20, count="6", cohort="2", pacing=buffered(6, staleness_limit="0"))
    rows = rows_of(run_text(tmp_path, text), "device_rounds")
    assert {row["staleness"] for row in rows if row["outcome"] == "completed"} == {0.0}


def test_as_many_devices_are_at_work_as_the_scenario_says(tmp_path: Path) -> None:
    text = ideal(FAST_AND_SLOW, count="20", cohort="4", pacing=buffered(7))
    rows = rows_of(run_text(tmp_path, text), "device_rounds")
    spans = [(row["invite_start_s"], row["report_end_s"]) for row in rows if row["outcome"] == "completed"]
    assert most_at_once(spans) == 7
    # A place that is free is filled at once: who is invited is invited when somebody else has reported.
    ends = {end for _, end in spans}
    later = {begin for begin, _ in spans if begin > 0}
    assert later
    assert later <= ends


def test_a_device_is_not_asked_twice_for_the_same_model(tmp_path: Path) -> None:
    text = ideal(users=12, count="6", cohort="10", pacing=buffered(4))
    rows = rows_of(run_text(tmp_path, text), "device_rounds")
    models = Counter((row["device"], row["round"] - (row["staleness"] or 0)) for row in rows)
    assert max(models.values()) == 1


def test_a_buffer_larger_than_what_arrives_is_applied_when_nobody_is_left(tmp_path: Path) -> None:
    # Half of the twelve are over a wire that is too slow for the deadline.
    text = ideal(FAST_AND_SLOW, users=12, count="3", cohort="12", deadline="2 s", pacing=buffered(5))
    outcome = run_text(tmp_path, text)
    fast = sum(row["network"] == "ideal_wire" for row in by_round(rows_of(outcome, "device_rounds"))[1])
    assert 0 < fast < 12
    for round_ in rows_of(outcome, "rounds"):
        assert (round_["outcome"], round_["invited"]) == ("completed", 12)
        assert (round_["completed"], round_["late"]) == (fast, 12 - fast)
        assert 2 < round_["duration_s"] < 15


def test_a_buffer_that_stays_below_its_quorum_is_abandoned(tmp_path: Path) -> None:
    text = ideal(
        FAST_AND_SLOW, users=12, count="2", cohort="12", quorum="12", deadline="2 s", pacing=buffered(5)
    )
    outcome = run_text(tmp_path, text)
    for round_ in rows_of(outcome, "rounds"):
        assert (round_["outcome"], round_["reason"]) == ("abandoned", "quorum")
        assert round_["abandoned"] + round_["late"] == 12
        assert round_["loss"] is None
    assert {row["staleness"] for row in rows_of(outcome, "device_rounds")} == {None}
    assert ("abandoned", "quorum") in outcomes(outcome)


SILENCE = "faults:\n  - {name: silence, at_stage: compute, on: {fraction: 100%}, vanish: {}}\n"


def test_a_silent_device_frees_its_place_at_its_deadline(tmp_path: Path) -> None:
    text = ideal(count="1", users=4, cohort="4", deadline="30 s", more=SILENCE, pacing=buffered(1))
    outcome = run_text(tmp_path, text)
    rows = rows_of(outcome, "device_rounds")
    assert [row["outcome"] for row in rows] == ["dropped"] * 4
    invited_s = sorted(row["invite_start_s"] for row in rows)
    assert invited_s == pytest.approx([0.0, 30.0, 60.0, 90.0])
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["outcome"], round_["reason"]) == ("abandoned", "quorum")
    assert round_["duration_s"] == pytest.approx(120.0)


NEVER_THERE = (
    "fleet.availability={kind: on-off, session: {distribution: exponential, mean: 1 s},"
    " gap: {distribution: exponential, mean: 300 d}}"
)


def test_a_run_with_nobody_available_waits_and_ends_with_a_reason(tmp_path: Path) -> None:
    settings = [NEVER_THERE, "rounds.selection=availability-aware", "rounds.max_wait=2 h"]
    outcome = run_text(tmp_path, SMALL.replace("count: 3", f"count: 3, pacing: {buffered(8)}"), settings)
    assert (outcome.status, outcome.reason) == ("no-round-completed", "nobody available")
    assert rows_of(outcome, "rounds") == []


def test_everybody_out_of_reach_ends_each_step_in_simulated_time(tmp_path: Path) -> None:
    text = SMALL.replace("count: 3", f"count: 2, pacing: {buffered(40)}")
    outcome = run_text(tmp_path, text, [NEVER_THERE, "rounds.selection=random"])
    assert outcome.reason is None
    rounds = rows_of(outcome, "rounds")
    assert [row["outcome"] for row in rounds] == ["abandoned"] * 2
    # 120 devices, 40 at a time, each with 120 s.
    assert [row["duration_s"] for row in rounds] == pytest.approx([360.0, 360.0])
    assert outcomes(outcome)[("unreachable", "unavailable")] >= 239


def test_a_limit_on_simulated_time_ends_the_step_under_way(tmp_path: Path) -> None:
    text = ideal(
        FAST_AND_SLOW, users=20, count="1000", cohort="6", pacing=buffered(8), simulated_time_limit="10 s"
    )
    outcome = run_text(tmp_path, text)
    assert outcome.reason == "time limit"
    rounds = rows_of(outcome, "rounds")
    assert rounds[-1]["end_s"] == pytest.approx(10.0)
    assert 1 <= rounds[-1]["completed"] < 6 == rounds[0]["completed"]
    assert [row["start_s"] for row in rounds[1:]] == [row["end_s"] for row in rounds[:-1]]
    # Whoever is cut off is told of, with the last step.
    cut = [row for row in rows_of(outcome, "device_rounds") if row["outcome"] == "surplus"]
    assert cut
    assert {(row["round"], row["reason"]) for row in cut} == {(len(rounds), "cohort-full")}


def test_phases_by_time_end_with_their_time(tmp_path: Path) -> None:
    text = ideal(
        users=20,
        cohort="4",
        pacing=buffered(4),
        count="null",
        more="phases: [{name: first, time: 3 s}, {name: second, time: 3 s}]\n",
    )
    outcome = run_text(tmp_path, text)
    assert outcome.reason is None
    rounds = rows_of(outcome, "rounds")
    assert rounds[-1]["end_s"] == pytest.approx(6.0)
    assert all(row["phase"] == ("first" if row["start_s"] < 3.0 else "second") for row in rounds)


def test_a_target_ends_training(tmp_path: Path) -> None:
    text = SMALL.replace("count: 3", f"count: 200, pacing: {buffered(30)}")
    outcome = run_text(tmp_path, text, ["rounds.target=model.rmse <= 0.978", "evaluation.every=5"])
    assert outcome.reason == "target reached"
    steps = [row["round"] for row in rows_of(outcome, "rounds")]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) % 5 == 0
    assert len(steps) < 200


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_whatever_the_batches(tmp_path: Path) -> None:
    text = SMALL.replace("count: 3", f"count: 12, pacing: {buffered(30, staleness_limit='2')}")
    digests = [
        tables_of(run_text(tmp_path, text, settings, name=name)).manifest["digest"]
        for name, settings in (
            ("one", ["compute.batch=1"]),
            ("many", ["compute.batch=256"]),
            ("again", ["compute.batch=256"]),
            ("other", ["seed=4"]),
        )
    ]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def random_buffered_scenario(seed: int) -> str:
    """Return a random scenario whose devices drop out and come late, without rounds."""
    generator = random.Random(f"buffered {seed}")
    text = random_scenario(seed)
    users = int(text.split("users: ")[1].split(",")[0])
    pacing = buffered(generator.randint(1, users), staleness_limit=str(generator.choice([0, 1, 10])))
    lines = [
        f"  pacing: {pacing}" if line.startswith("  over_select") else line for line in text.splitlines()
    ]
    return "\n".join(lines).replace("  count: ", "  count: 1")


@pytest.mark.slow
def test_bytes_are_conserved_among_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100, 108):
        faults = random_faults(random.Random(f"buffered faults {seed}"), of_rounds=False)
        text = f"{random_buffered_scenario(seed)}\n{faults}"
        try:
            with monkeypatch.context() as patch:
                check_run(tmp_path, text, seed, patch, by_round=False)
        except Exception as error:
            error.add_note(f"replay with seed {seed}:\n{text}")
            raise


def test_a_share_of_the_devices_is_struck_though_they_are_asked_one_by_one(tmp_path: Path) -> None:
    faults = "faults:\n  - {name: some, at_stage: compute, on: {fraction: 30%}, vanish: {}}\n"
    text = ideal(count="40", cohort="10", pacing=buffered(15), deadline="3 s", more=faults)
    outcome = run_text(tmp_path, text)
    rows = rows_of(outcome, "device_rounds")
    dropped = [row for row in rows if row["outcome"] == "dropped"]
    # A standard deviation of the share is 0.02 for 500 devices.
    assert len(rows) > 500
    assert len(dropped) / len(rows) == pytest.approx(0.3, abs=0.08)
    struck = rows_of(outcome, "faults")
    assert sorted((row["round"], row["device"]) for row in struck) == sorted(
        (row["round"], row["device"]) for row in dropped
    )


@pytest.mark.slow
def test_bytes_are_conserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = 0
    for seed in range(8):
        try:
            with monkeypatch.context() as patch:
                tables = check_run(tmp_path, random_buffered_scenario(seed), seed, patch, by_round=False)
                total += bytes_of(tables)
        except Exception as error:
            error.add_note(f"replay with random_buffered_scenario({seed})")
            raise
    assert total > 100_000


def test_devices_that_keep_their_factors_take_part(tmp_path: Path) -> None:
    text = SMALL.replace(
        "factors: 4,",
        "factors: 4, user_factors: persistent, reconstruction: {method: gradient-steps, steps: 2},",
    ).replace("count: 3", f"count: 10, pacing: {buffered(30)}")
    outcome = run_text(tmp_path, text)
    assert [row["completed"] for row in rows_of(outcome, "rounds")[:-1]] == [20] * 9
