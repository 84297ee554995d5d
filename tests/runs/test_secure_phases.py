"""Phases of one run that sum updates in their own ways."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows_of, run_text
from secure_helpers import IDEAL_WIRE, PHONES, endings, secure

from coordinator.run.runner import RunOutcome

MODES = {"plain": "off", "masked": "secagg-plus", "signed": "active", "encrypted": "ckks, crypto: modelled"}
PHASES = "phases:\n" + "".join(
    f"  - {{name: {name}, rounds: 2, secure_aggregation: {{mode: {mode}}}}}\n" for name, mode in MODES.items()
)
ROUNDS = "cohort: 20, deadline: 60 s, interval: 10 min"
STAGES_OF = {
    "plain": [],
    "masked": ["advertise-keys", "share-keys", "masked-input", "unmask"],
    "signed": ["advertise-keys", "share-keys", "masked-input", "consistency", "unmask"],
    "encrypted": ["masked-input", "unmask"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    text = secure("mode: off", rounds=ROUNDS, fleet=IDEAL_WIRE, more=PHASES)
    return run_text(tmp_path_factory.mktemp("phases"), text)


def of_phase(outcome: RunOutcome, table: str, phase: str) -> list[dict[str, Any]]:
    return [row for row in rows_of(outcome, table) if row["phase"] == phase]


@pytest.mark.slow
@pytest.mark.parametrize("phase", MODES)
def test_every_round_is_told_as_its_phase_sums(phase: str, run: RunOutcome) -> None:
    rounds = of_phase(run, "rounds", phase)
    assert [row["outcome"] for row in rounds] == ["completed", "completed"]
    masked = phase in ("masked", "signed")
    for row in rounds:
        assert (row["secagg_neighbours"], row["secagg_threshold"]) == ((19, 12) if masked else (None, None))
        assert (row["secagg_sum_error"], row["secagg_double_reveals"]) == ((0, 0) if masked else (None, None))
        assert (row["clipped_fraction"] is None) == (phase == "plain")
        assert row["secagg_failure"] == "none"
        stages = ("advertise-keys", "share-keys", "masked-input", "consistency", "unmask")
        assert [stage for stage in stages if row[f"{stage}_s"] is not None] == STAGES_OF[phase]
    for row in of_phase(run, "device_rounds", phase):
        assert row["latency_s"] > 0.0
        assert (row["report_start_s"] is not None) == (phase == "plain")
        assert (row["masked-input_start_s"] is not None) == (phase != "plain")


def test_the_model_goes_on_from_phase_to_phase(run: RunOutcome) -> None:
    losses = [row["loss"] for row in rows_of(run, "rounds")]
    assert len(losses) == 8
    assert losses[-1] < losses[0]


def test_a_phase_without_a_way_of_its_own_sums_as_the_scenario_does(tmp_path: Path) -> None:
    phases = "phases: [{name: a, rounds: 1}, {name: b, rounds: 1, secure_aggregation: {mode: off}}]\n"
    outcome = run_text(tmp_path, secure("mode: secagg", rounds=ROUNDS, more=phases))
    a, b = rows_of(outcome, "rounds")
    assert (a["secagg_neighbours"], b["secagg_neighbours"]) == (19, None)


@pytest.mark.slow
def test_devices_that_are_still_busy_with_a_sum_do_not_disturb_the_next_phase(tmp_path: Path) -> None:
    """Without a pause, stragglers of one way of summing meet rounds of the other."""
    phases = "phases:\n" + "".join(
        f"  - {{name: p{number}, rounds: 1, secure_aggregation: {{mode: {mode}}}}}\n"
        for number, mode in enumerate([*MODES.values(), *reversed(MODES.values())])
    )
    outcome = run_text(
        tmp_path,
        secure(
            "mode: off", rounds="cohort: 14, over_select: 180%, deadline: 60 s", fleet=PHONES, more=phases
        ),
    )
    rounds, devices = rows_of(outcome, "rounds"), rows_of(outcome, "device_rounds")
    assert [row["outcome"] for row in rounds] == ["completed"] * 8
    ends = {row["round"]: row["end_s"] for row in rounds}
    last_s: Counter[int] = Counter()
    for row in devices:
        last_s[row["round"]] = max(last_s[row["round"]], row["acknowledge_end_s"] or 0.0)
    assert any(last_s[number] > rounds[number]["start_s"] for number in range(1, 8)), "nobody straggles"
    for row in devices:
        assert row["outcome"] in ("completed", "surplus")
    assert all(ends[number] < ends[number + 1] for number in range(1, 8))


@pytest.mark.slow
def test_a_fault_strikes_where_its_stage_is_and_shields_nobody_elsewhere(tmp_path: Path) -> None:
    phases = (
        "phases:\n  - {name: plain, rounds: 1, secure_aggregation: {mode: off}}\n"
        "  - {name: masked, rounds: 1, secure_aggregation: {mode: secagg}}\n"
    )
    # Before a report would be before a masked input, but a masked round has no reports.
    faults = (
        "faults:\n  - {name: inputs, at_stage: masked-input, on: {fraction: 30%}, vanish: {}}\n"
        "  - {name: reports, at_stage: report, vanish: {}, on: {fraction: 90%}}\n"
    )
    outcome = run_text(tmp_path, secure("mode: off", rounds=ROUNDS, more=phases + faults))
    assert endings(of_phase(outcome, "device_rounds", "plain")) == {
        ("completed", None, "none"): 2,
        ("dropped", "report", "vanished"): 18,
    }
    assert endings(of_phase(outcome, "device_rounds", "masked")) == {
        ("completed", None, "none"): 14,
        ("dropped", "masked-input", "vanished"): 6,
    }


@pytest.mark.slow
def test_a_fault_during_a_phase_strikes_in_no_other(tmp_path: Path) -> None:
    phases = "phases: [{name: storm, rounds: 1}, {name: calm, rounds: 1}]\n"
    fault = "faults: [{name: x, during: storm, at_stage: share-keys, on: {fraction: 10%}, vanish: {}}]\n"
    outcome = run_text(tmp_path, secure("mode: secagg", rounds=ROUNDS, more=phases + fault))
    assert [row["dropped"] for row in rows_of(outcome, "rounds")] == [2, 0]
