"""Pacing round after round: grace after the quorum, partial work, and tiers of speed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from pacing_helpers import FAST_AND_SLOW, by_round, ideal, ideal_regression
from run_helpers import rows_of, run_text, tables_of

GRACE = "{mode: synchronous, grace: 500 ms}"


def test_a_round_ends_a_time_of_grace_after_its_quorum(tmp_path: Path) -> None:
    text = ideal(FAST_AND_SLOW, quorum="3", cohort="10", pacing=GRACE)
    outcome = run_text(tmp_path, text)
    devices = by_round(rows_of(outcome, "device_rounds"))
    for round_ in rows_of(outcome, "rounds"):
        rows = devices[round_["round"]]
        arrived_s = sorted(row["report_end_s"] for row in rows if row["network"] == "ideal_wire")
        assert round_["outcome"] == "completed"
        assert round_["end_s"] == pytest.approx(arrived_s[2] + 0.5, rel=1e-9)
        assert round_["completed"] == len(arrived_s) < 10
        late = [row for row in rows if row["network"] == "slow_wire"]
        assert {(row["outcome"], row["reason"]) for row in late} == {("late", "deadline")}


@pytest.mark.slow
def test_grace_does_not_hold_up_a_round_that_has_all_it_wants(tmp_path: Path) -> None:
    plain = run_text(tmp_path, ideal(quorum="3"), name="plain")
    graced = run_text(tmp_path, ideal(quorum="3", pacing="{mode: synchronous, grace: 20 s}"), name="graced")
    ends = [[row["end_s"] for row in rows_of(run, "rounds")] for run in (plain, graced)]
    assert ends[0] == ends[1]


def test_the_deadline_still_ends_a_round_within_its_grace(tmp_path: Path) -> None:
    text = ideal(
        FAST_AND_SLOW, quorum="3", deadline="2 s", count="1", pacing="{mode: synchronous, grace: 1 h}"
    )
    (round_,) = rows_of(run_text(tmp_path, text), "rounds")
    assert (round_["outcome"], round_["duration_s"]) == ("completed", pytest.approx(2.0))


def test_below_the_quorum_there_is_no_grace(tmp_path: Path) -> None:
    text = ideal(FAST_AND_SLOW, quorum="10", deadline="2 s", count="2", pacing=GRACE)
    for round_ in rows_of(run_text(tmp_path, text), "rounds"):
        assert (round_["outcome"], round_["duration_s"]) == ("abandoned", pytest.approx(2.0))


# -- partial work -----------------------------------------------------------------------------------------

STEP_S = 1e-3 + 3 * 20e-6 + (50 * 4 * 301 + 2 * 301) / 2e9 + 50 * 2 * 302 * 8 / 1e9
"""One of the 300 steps: framework, three operators, flops and bytes; see the round computed by hand."""


def test_devices_take_as_many_steps_as_their_deadline_allows(tmp_path: Path) -> None:
    # All 300 steps take 0.4 s; the rest of a round takes 0.6 s over the fast wire, 2.3 s over the slow one.
    text = ideal_regression(FAST_AND_SLOW, deadline="2500 ms", pacing="{mode: partial-work, margin: 95%}")
    outcome = run_text(tmp_path, text)
    rows = rows_of(outcome, "device_rounds")
    shares = {"ideal_wire": set(), "slow_wire": set()}
    for row in rows:
        assert row["outcome"] == "completed"
        steps = row["compute_s"] / STEP_S
        assert steps == pytest.approx(round(steps), abs=1e-6)
        assert row["work_share"] == pytest.approx(round(steps) / 300, rel=1e-12)
        assert row["latency_s"] < 2.5
        shares[row["network"]].add(row["work_share"])
    assert shares["ideal_wire"] == {1.0}
    assert shares["slow_wire"]
    assert all(0 < share < 1 for share in shares["slow_wire"])


def test_a_device_uses_what_it_planned_of_its_deadline(tmp_path: Path) -> None:
    text = ideal_regression("slow_wire: 100%", deadline="2500 ms", pacing="{mode: partial-work, margin: 95%}")
    for row in rows_of(run_text(tmp_path, text), "device_rounds"):
        # Frames are a little longer than the arrays in them, which is all that a device plans with.
        assert 0.95 * 2.5 - 2 * STEP_S < row["latency_s"] < 0.95 * 2.5 + 0.1


def test_without_it_the_slow_devices_are_late(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, ideal_regression(FAST_AND_SLOW, deadline="2500 ms"))
    rows = rows_of(outcome, "device_rounds")
    assert {row["outcome"] for row in rows if row["network"] == "slow_wire"} == {"late"}
    assert {row["outcome"] for row in rows if row["network"] == "ideal_wire"} == {"completed"}
    assert {row["work_share"] for row in rows} == {None}


def test_a_part_of_the_work_weighs_as_much_less(tmp_path: Path) -> None:
    text = ideal_regression(FAST_AND_SLOW, deadline="2500 ms", pacing="{mode: partial-work}")
    outcome = run_text(tmp_path, text)
    devices = by_round(rows_of(outcome, "device_rounds"))
    for round_ in rows_of(outcome, "rounds"):
        shares = [row["work_share"] for row in devices[round_["round"]] if row["outcome"] == "completed"]
        assert round_["weight"] == pytest.approx(50 * math.fsum(shares), rel=1e-12)


def test_with_time_enough_partial_work_is_all_of_it(tmp_path: Path) -> None:
    whole = run_text(tmp_path, ideal_regression(FAST_AND_SLOW), name="whole")
    part = run_text(tmp_path, ideal_regression(FAST_AND_SLOW, pacing="{mode: partial-work}"), name="part")
    models = [np.load(run.directory / "model.npz")["weights"] for run in (whole, part)]
    assert models[0].tobytes() == models[1].tobytes()
    assert {row["work_share"] for row in rows_of(part, "device_rounds")} == {1.0}


@pytest.mark.slow
def test_partial_work_of_phones_does_not_depend_on_batches(tmp_path: Path) -> None:
    text = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 120, items: 150, ratings_per_user: 40}
fleet: {mix: global_android_2024, availability: always_on}
learning:
  algorithm: fedrecon
  factors: 4
  client: {method: mini-batches, epochs: 40, batch_size: 5, learning_rate: 0.05}
rounds: {count: 2, cohort: 20, deadline: 1 s, pacing: {mode: partial-work}}
"""
    runs = [run_text(tmp_path, text, [f"compute.batch={n}"], name=f"of-{n}") for n in (1, 256)]
    assert tables_of(runs[0]).manifest["digest"] == tables_of(runs[1]).manifest["digest"]
    shares = [row["work_share"] for row in rows_of(runs[0], "device_rounds") if row["work_share"] is not None]
    assert min(shares) < 0.5
    assert max(shares) == 1.0


# -- tiers ------------------------------------------------------------------------------------------------


def test_after_profiling_a_round_is_of_devices_that_are_alike(tmp_path: Path) -> None:
    # The first two rounds ask all 40 devices: then every speed is known.
    pacing = "{mode: tiers, tiers: 2, profiling: 2, every: 100, credits: 3}"
    text = ideal(FAST_AND_SLOW, users=40, count="14", cohort="40", interval="5 s", pacing=pacing)
    outcome = run_text(tmp_path, text)
    devices = by_round(rows_of(outcome, "device_rounds"))
    networks = {number: {row["network"] for row in rows} for number, rows in devices.items()}
    assert networks[1] == networks[2] == {"ideal_wire", "slow_wire"}
    later = [networks[number] for number in range(3, 15)]
    slow_s, fast_s = [], []
    for round_ in rows_of(outcome, "rounds")[2:]:
        (slow_s if "slow_wire" in networks[round_["round"]] else fast_s).append(round_["duration_s"])
    assert sum(len(found) == 1 for found in later) >= 10
    assert max(fast_s) < min(slow_s)
    # Credits: of twelve rounds each tier has six.
    assert (len(fast_s), len(slow_s)) == (6, 6)


@pytest.mark.slow
def test_tiers_choose_among_the_same_devices_whatever_the_selection(tmp_path: Path) -> None:
    pacing = "{mode: tiers, tiers: 2, profiling: 1, credits: 2}"
    for selection in ("round-robin", "oort", "availability-aware"):
        text = ideal(FAST_AND_SLOW, users=40, count="8", cohort="6", pacing=pacing, selection=selection)
        rounds = rows_of(run_text(tmp_path, text, name=selection), "rounds")
        assert [row["outcome"] for row in rounds] == ["completed"] * 8
