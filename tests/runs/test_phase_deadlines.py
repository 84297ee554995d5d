"""Phases whose rounds wait another time than ``rounds.deadline`` says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pacing_helpers import FAST_AND_SLOW, by_round, ideal, ideal_regression
from run_helpers import rows_of, run_text, tables_of

PHASES = "phases: [{name: patient, rounds: 2}, {name: hasty, rounds: 2, deadline: 2 s}]"


def text_of(*, selection: str = "random", phases: str = PHASES) -> str:
    return ideal(
        FAST_AND_SLOW, count="4", cohort="10", deadline="30 s", quorum="1", selection=selection, more=phases
    )


def test_rounds_of_a_phase_end_at_its_own_deadline(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, text_of())
    # Over the slow wire a round takes 2.9 s: time enough in the first phase, not in the second.
    durations = {row["phase"]: row["duration_s"] for row in rows_of(outcome, "rounds")}
    assert durations["patient"] > 2.5
    assert durations["hasty"] == pytest.approx(2.0)
    devices = rows_of(outcome, "device_rounds")
    late = {row["round"] for row in devices if row["outcome"] == "late"}
    assert late == {3, 4}
    assert {row["network"] for row in devices if row["outcome"] == "late"} == {"slow_wire"}


def test_the_same_deadline_said_by_a_phase_is_the_same_run(tmp_path: Path) -> None:
    phases = "phases: [{name: patient, rounds: 2}, {name: hasty, rounds: 2}]"
    said = phases.replace("rounds: 2}", "rounds: 2, deadline: 30 s}")
    runs = [run_text(tmp_path, text_of(phases=one), name=name) for name, one in (("a", phases), ("b", said))]
    digests = {tables_of(run).manifest["digest"] for run in runs}
    assert len(digests) == 1


def test_who_cannot_make_the_deadline_of_a_phase_is_not_invited_to_its_rounds(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, text_of(selection="deadline-aware"))
    networks = {
        number: {row["network"] for row in rows}
        for number, rows in by_round(rows_of(outcome, "device_rounds")).items()
    }
    assert networks[1] == {"ideal_wire", "slow_wire"}
    assert networks[3] == networks[4] == {"ideal_wire"}


def test_partial_work_fills_the_deadline_of_its_phase(tmp_path: Path) -> None:
    pacing = "{mode: partial-work, margin: 95%}"
    text = ideal_regression(
        FAST_AND_SLOW, clients=6, count="4", cohort="6", deadline="30 s", pacing=pacing, more=PHASES
    ).replace("deadline: 2 s", "deadline: 2500 ms")
    shares = {
        (row["phase"], row["network"], row["work_share"])
        for row in rows_of(run_text(tmp_path, text), "device_rounds")
    }
    assert {share for phase, _, share in shares if phase == "patient"} == {1.0}
    assert {share for phase, network, share in shares if (phase, network) == ("hasty", "ideal_wire")} == {1.0}
    (slow,) = (share for phase, network, share in shares if (phase, network) == ("hasty", "slow_wire"))
    assert 0.0 < slow < 0.5


def test_devices_of_a_buffer_have_the_deadline_of_the_phase_in_which_they_were_invited(
    tmp_path: Path,
) -> None:
    pacing = "{mode: buffered, concurrency: 20}"
    phases = PHASES.replace("name: hasty, rounds: 2", "name: hasty, rounds: 12")
    text = ideal(FAST_AND_SLOW, count="14", cohort="6", deadline="30 s", pacing=pacing, more=phases)
    rows = rows_of(run_text(tmp_path, text), "device_rounds")
    too_late = {(row["phase"], row["network"]) for row in rows if row["reason"] == "deadline"}
    assert too_late == {("hasty", "slow_wire")}
