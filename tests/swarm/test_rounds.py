from __future__ import annotations

import dataclasses

import pytest
from swarm_helpers import MASKED, PLAIN, PRIVATE, breakable, said, trial_of

from coordinator.engine.stop_reason import StopReason
from coordinator.scenario.load import load_text
from coordinator.swarm.invariants.figures import consistent_figures, spent_privacy
from coordinator.swarm.invariants.recovery import is_healthy, recovers
from coordinator.swarm.invariants.registry import INVARIANTS, violations_of
from coordinator.swarm.invariants.rounds import applied_once, comes_to_an_end, timely_rounds
from coordinator.swarm.record import FrozenError
from coordinator.swarm.trial import Trial
from edge.core.vocabulary import Outcome, Reason, RoundOutcome, label


@pytest.fixture(scope="module", params=[PLAIN, MASKED], ids=["plain", "masked"])
def trial(request: pytest.FixtureRequest) -> Trial:
    return trial_of(request.param)


def accepted(trial: Trial) -> int:
    """Return the place of the first update that was accepted."""
    return next(i for i, one in enumerate(trial.record.inputs) if one.reason is Reason.NONE)


def test_a_run_without_bugs_keeps_everything(trial: Trial) -> None:
    assert is_healthy(trial.loaded.scenario)
    for invariant in INVARIANTS:
        assert said(invariant.check, trial) == [], invariant.name
    assert violations_of(trial) == []


def test_a_buffer_has_no_rounds_to_check() -> None:
    calm = PLAIN[: PLAIN.index("faults:")] + "evaluation: {every: 100, final: false}\n"
    text = calm.replace("over_select: 120%", "pacing: {mode: buffered, concurrency: 7}")
    trial = trial_of(text)
    assert violations_of(trial) == []
    broken, tables = breakable(trial)
    tables.change("rounds", 0, "duration_s", lambda _: 1e4)
    assert violations_of(broken) == []
    # What has nothing to do with rounds is checked all the same.
    tables.change("rounds", 0, "up_bytes", lambda value: value + 1)
    assert [one.invariant for one in violations_of(broken)] == ["conserved-bytes"]


def test_an_update_that_was_accepted_twice(trial: Trial) -> None:
    broken, _ = breakable(trial)
    broken.record.inputs.append(broken.record.inputs[accepted(trial)])
    assert "a second update of device" in said(applied_once, broken)[0]


def test_an_update_of_another_round(trial: Trial) -> None:
    broken, _ = breakable(trial)
    place = accepted(trial)
    broken.record.inputs[place] = broken.record.inputs[place]._replace(named_round=7)
    assert "an update of round 7 was accepted" in said(applied_once, broken)[0]


def test_an_update_that_came_too_late(trial: Trial) -> None:
    broken, _ = breakable(trial)
    place = accepted(trial)
    broken.record.inputs[place] = broken.record.inputs[place]._replace(time_s=1e4)
    assert "too late from" in said(applied_once, broken)[0]


def test_an_update_of_a_stranger(trial: Trial) -> None:
    broken, _ = breakable(trial)
    place = accepted(trial)
    broken.record.inputs[place] = broken.record.inputs[place]._replace(device=99)
    found = said(applied_once, broken)
    assert "uninvited" in found[0]
    assert "no update was accepted" in found[1]


def test_an_abandoned_round_with_completed_devices(trial: Trial) -> None:
    broken, tables = breakable(trial)
    tables.change("rounds", 0, "outcome", lambda _: label(RoundOutcome.ABANDONED))
    assert "was abandoned with" in said(applied_once, broken)[-1]


def test_a_device_that_was_invited_twice(trial: Trial) -> None:
    broken, tables = breakable(trial)
    tables.change("device_rounds", 1, "device", lambda _: tables.read("device_rounds")["device"][0].as_py())
    assert "was invited twice" in said(applied_once, broken)[0]


def test_rounds_that_take_too_long_or_overlap(trial: Trial) -> None:
    broken, tables = breakable(trial)
    tables.change("rounds", 0, "duration_s", lambda _: 1e4)
    assert "took 10000.000 s of" in said(timely_rounds, broken)[0]
    broken, tables = breakable(trial)
    tables.change("rounds", 1, "start_s", lambda _: 0.0)
    assert "before the last one ended" in said(timely_rounds, broken)[0]
    broken, tables = breakable(trial)
    tables.drop("rounds", 0)
    assert said(timely_rounds, broken)[0] == "round 1 is missing before round 2"


def test_a_stage_that_takes_too_long() -> None:
    broken, tables = breakable(trial_of(MASKED))
    tables.change("rounds", 0, "unmask_s", lambda _: 16.0)
    assert said(timely_rounds, broken) == ["round 1: unmask took 16.000 s of 15 s"]


def test_a_run_that_does_not_end_well(trial: Trial) -> None:
    broken, _ = breakable(trial)
    broken.record.left.append("device 3 is still busy")
    assert said(comes_to_an_end, broken) == ["device 3 is still busy"]
    try:
        raise FrozenError("no end")
    except FrozenError as error:
        failed = dataclasses.replace(trial, error=error, stop=None)
    (violation,) = violations_of(failed)
    assert violation.invariant == "ends"
    assert violation.message.startswith("FrozenError at test_rounds.py:")
    short, tables = breakable(trial)
    tables.drop("rounds", 2)
    assert said(comes_to_an_end, short) == ["the run ended with its last round after 2 of 3 rounds"]


def test_a_fleet_that_does_not_recover(trial: Trial) -> None:
    broken, tables = breakable(trial)
    for row in (1, 2):
        tables.change("rounds", row, "outcome", lambda _: label(RoundOutcome.ABANDONED))
    assert said(recovers, broken) == [
        "the last fault ended at 0 s; of the 2 rounds after it none was completed"
    ]
    broken.stop = StopReason.DIVERGED
    assert said(recovers, broken) == []


@pytest.mark.parametrize(
    "change",
    [
        ("availability: always_on", "availability: flaky_mobile"),
        ("deadline: 60 s", "deadline: 6 s"),
        ("quorum: 1", "quorum: 5"),
        ("uk_mobile_2024", "nigeria_2024"),
        ("vanish: {}", "battery_drain: {level: 0%}"),
    ],
)
def test_a_fleet_that_is_not_healthy(change: tuple[str, str]) -> None:
    text = PLAIN.replace("at_stage: download, ", "") if "battery" in change[1] else PLAIN
    assert not is_healthy(load_text(text.replace(*change), "unhealthy").scenario)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("rounds", "completed", 99),
        ("rounds", "compute_s", 1e9),
        ("rounds", "energy_j", 1e9),
        ("rounds", "reason", label(Reason.QUORUM)),
        ("device_rounds", "outcome", label(Outcome.LATE)),
        ("device_rounds", "wait_s", -1.0),
        ("device_rounds", "reason", label(Reason.BATTERY)),
    ],
)
def test_figures_that_are_wrong(trial: Trial, table: str, column: str, value: object) -> None:
    broken, tables = breakable(trial)
    row = tables.find(table, outcome=label(Outcome.COMPLETED))
    tables.change(table, row, column, lambda _: value)
    assert said(consistent_figures, broken)


def test_privacy_that_is_given_back() -> None:
    trial = trial_of(PRIVATE)
    assert said(spent_privacy, trial) == []
    broken, tables = breakable(trial)
    tables.change("rounds", 2, "epsilon", lambda _: 0.001)
    assert "epsilon is 0.001 after" in said(spent_privacy, broken)[0]
    tables.change("rounds", 2, "epsilon", lambda _: None)
    assert "and was asked for" in said(spent_privacy, broken)[0]
