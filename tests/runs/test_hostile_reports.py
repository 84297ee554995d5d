"""Devices that report what cannot be: their updates are left out, their rounds abandoned, the run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import SMALL, Silent, report_on, run_text

from coordinator.engine.active_round import Channel
from coordinator.engine.actor import Coordinator
from coordinator.engine.selection.pool import Pool
from coordinator.results.tables.reader import open_run
from coordinator.run.runner import RunOutcome
from coordinator.scenario.load import load
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.local_run import run_watched
from coordinator.service.metrics import exposition
from coordinator.simulation.backend import SimulatedCohort
from coordinator.simulation.fleet_assembly import build_fleet
from edge.core.vocabulary import Reason
from edge.wire.messages import AnyMessage, Report

BUFFERED = "rounds.pacing={mode: buffered, concurrency: 30}"
ROBUST = "aggregation={rule: trimmed-mean, trim: 20%}"
FEW = ["rounds.cohort=10", "rounds.over_select=1", "rounds.quorum=50%", "rounds.count=4"]


def run_where(
    monkeypatch: pytest.MonkeyPatch, folder: Path, settings: list[str], spoil: Callable[[Report], Report]
) -> RunOutcome:
    """Run a scenario in which ``spoil`` is done to every report on its way to the coordinator."""
    judge = Coordinator.frame_received

    def received(self: Coordinator, channel: Channel, message: AnyMessage) -> Reason:
        return judge(self, channel, spoil(message) if isinstance(message, Report) else message)

    # The reports of a wave do not come one by one.
    monkeypatch.setattr(SimulatedCohort, "foreseeable", False)
    monkeypatch.setattr(Coordinator, "frame_received", received)
    return run_text(folder, SMALL, settings)


def rows(outcome: RunOutcome, table: str) -> list[dict[str, Any]]:
    return list(open_run(outcome.directory).read(table).to_pylist())


@pytest.mark.parametrize("settings", [[], [BUFFERED]], ids=["synchronous", "buffered"])
def test_a_round_whose_updates_weigh_nothing_is_abandoned_by_name(
    settings: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome = run_where(monkeypatch, tmp_path, FEW + settings, lambda report: report._replace(weight=0.0))
    found = rows(outcome, "rounds")
    assert len(found) == 4
    assert {(row["outcome"], row["reason"]) for row in found} == {("abandoned", "wrong-sum")}
    assert {row["weight"] for row in found} == {0.0}
    ends = {(row["outcome"], row["reason"]) for row in rows(outcome, "device_rounds")}
    assert ("abandoned", "wrong-sum") in ends
    assert not any(outcome == "completed" for outcome, _ in ends)


@pytest.mark.parametrize("settings", [[], [BUFFERED], [ROBUST]], ids=["synchronous", "buffered", "robust"])
def test_a_fifth_of_the_fleet_cannot_move_the_model_by_what_is_outside(
    settings: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def spoil(report: Report) -> Report:
        if report.device % 5:
            return report
        kind = report.device // 5 % 4
        if kind == 0:
            return report._replace(weight=-8.0)
        if kind == 1:
            return report._replace(examples=2**63)
        if kind == 2:
            return report._replace(loss=-1.7e308)
        spoilt = {
            name: np.full_like(array, 1e37) if array.dtype.kind == "f" else array
            for name, array in report.arrays.items()
        }
        return report._replace(arrays=spoilt)

    outcome = run_where(monkeypatch, tmp_path, FEW + settings, spoil)
    assert outcome.status == "finished"
    found = rows(outcome, "rounds")
    assert {row["outcome"] for row in found} == {"completed"}
    assert all(0 <= row["loss"] < 100 for row in found)
    for row in rows(outcome, "device_rounds"):
        if row["device"] % 5 == 0:
            assert row["outcome"] != "completed"
    refused = [row for row in rows(outcome, "device_rounds") if row["reason"] == "out-of-range"]
    assert refused
    assert all(row["device"] % 5 == 0 and row["outcome"] == "failed" for row in refused)


def invited_rounds(outcome: RunOutcome, device: int) -> list[int]:
    return [row["round"] for row in rows(outcome, "device_rounds") if row["device"] == device]


ALL = ["data.users=12", "rounds.cohort=11", "rounds.quorum=50%", "rounds.count=8", "rounds.selection=random"]


@pytest.mark.parametrize(
    ("settings", "strikes"),
    [([], 3), (["admission.strikes=1"], 1), ([BUFFERED.replace("30", "11")], 3)],
    ids=["three", "one", "buffered"],
)
def test_a_device_that_spoils_rounds_is_suspended_for_the_run(
    settings: list[str], strikes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: Any
) -> None:
    def spoil(report: Report) -> Report:
        return report._replace(weight=-8.0) if report.device == 4 else report

    outcome = run_where(monkeypatch, tmp_path, ALL + settings, spoil)
    mine = [row for row in rows(outcome, "device_rounds") if row["device"] == 4]
    assert [row["reason"] for row in mine] == ["out-of-range"] * strikes
    assert all(len(invited_rounds(outcome, device)) > strikes for device in (3, 5))
    manifest = json.loads((outcome.directory / "manifest.json").read_text())
    assert manifest["suspended_devices"] == [4]
    (said,) = [record.getMessage() for record in caplog.records if "suspended" in record.getMessage()]
    assert f"device 4 is suspended after {strikes} strikes" in said
    (event,) = [row for row in rows(outcome, "events") if row["kind"] == "suspended"]
    assert (event["device"], event["slot"], event["direction"]) == (4, -1, "none")
    assert (event["round"], event["reason"]) == (mine[-1]["round"], "out-of-range")
    assert event["time_s"] >= mine[-1]["report_end_s"]
    summary = json.loads((outcome.directory / "summary.json").read_text())
    assert summary["suspended_devices"] == [{"device": 4, "round": event["round"], "reason": "out-of-range"}]
    notice = f"1 device was suspended after 'admission.strikes': 4 in round {event['round']} (out-of-range)"
    assert summary["notices"] == [notice]
    assert notice in report_on(outcome).replace("&#39;", "'")


def test_a_suspension_is_recorded_where_other_events_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def spoil(report: Report) -> Report:
        return report._replace(weight=-8.0) if report.device == 4 else report

    outcome = run_where(monkeypatch, tmp_path, [*ALL, "record.events=none"], spoil)
    (event,) = rows(outcome, "events")
    assert (event["kind"], event["device"], event["reason"]) == ("suspended", 4, "out-of-range")


RUNAWAY = ["rounds.count=6", "learning.learning_rate=1e12"]
STEPS = "learning.client={method: gradient-steps, steps: 1, learning_rate: 1e12}"
UNSEEN = ["evaluation={every: 100, final: false}"]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("settings", "since"),
    [
        (RUNAWAY, 2),
        ([*RUNAWAY, *UNSEEN], 2),
        ([*RUNAWAY, *UNSEEN, BUFFERED], 3),
        (["rounds.count=3", STEPS], 1),
    ],
    ids=["seen by a metric", "seen by reports alone", "buffered", "from the first round on"],
)
def test_honest_devices_whose_model_runs_away_are_not_struck_and_the_run_has_diverged(
    settings: list[str], since: int, tmp_path: Path
) -> None:
    outcome = run_text(tmp_path, SMALL, settings)
    assert (outcome.status, outcome.exit_code) == ("diverged", 3)
    assert outcome.ending is not None
    assert f"since round {since}" in outcome.ending
    assert "learning_rate 1000000000000" in outcome.ending
    refused = [row for row in rows(outcome, "device_rounds") if row["reason"] == "out-of-range"]
    # In a buffer, reports on the model before share the first step.
    assert min(row["round"] for row in refused) == since - (BUFFERED in settings)
    assert open_run(outcome.directory).manifest["suspended_devices"] == []


def test_a_hostile_minority_is_struck_and_its_run_has_not_diverged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def spoil(report: Report) -> Report:
        return report._replace(weight=-8.0) if report.device < 5 else report

    outcome = run_where(monkeypatch, tmp_path, ALL, spoil)
    assert outcome.status == "finished"
    assert open_run(outcome.directory).manifest["suspended_devices"] == [0, 1, 2, 3, 4]


def test_a_buffer_as_large_as_the_fleet_is_emptied_without_those_that_are_suspended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def spoil(report: Report) -> Report:
        return report._replace(weight=-8.0) if report.device in (4, 7) else report

    settings = [*ALL, "rounds.cohort=12", BUFFERED.replace("30", "12")]
    outcome = run_where(monkeypatch, tmp_path, settings, spoil)
    manifest = json.loads((outcome.directory / "manifest.json").read_text())
    assert manifest["suspended_devices"] == [4, 7]
    assert (outcome.status, outcome.reason) == ("finished", None)
    assert [(row["outcome"], row["completed"]) for row in rows(outcome, "rounds")] == [("completed", 10)] * 8


def test_honest_devices_are_never_suspended(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SMALL, [*ALL, "fleet.availability=diurnal_charging"])
    manifest = json.loads((outcome.directory / "manifest.json").read_text())
    assert manifest["suspended_devices"] == []


def test_a_suspension_outlives_the_process(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(SMALL)
    loaded = load(tmp_path / "run.yaml")
    before, after = build_fleet(loaded, 120), build_fleet(loaded, 120)
    for struck in ([4, 7], [4], [4, 4 + 1]):
        before.strike(np.array(struck), 3)
    after.recall(before.memory())
    pool = Pool(after, 3, available_only=False)
    assert np.flatnonzero(after.suspended).tolist() == [4]
    assert pool.eligible(np.arange(3, 6), 0.0).tolist() == [3, 5]
    assert after.strike(np.array([7, 4]), 3).tolist() == []
    assert after.strike(np.array([7]), 3).tolist() == [7]


def test_who_watches_a_run_is_told_of_suspensions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    judge = Coordinator.frame_received

    def received(self: Coordinator, channel: Channel, message: AnyMessage) -> Reason:
        if isinstance(message, Report) and message.device == 4:
            message = message._replace(weight=-8.0)
        return judge(self, channel, message)

    monkeypatch.setattr(SimulatedCohort, "foreseeable", False)
    monkeypatch.setattr(Coordinator, "frame_received", received)
    (tmp_path / "run.yaml").write_text(SMALL)
    live = LiveState()
    run_watched(load(tmp_path / "run.yaml", ALL), target=tmp_path / "run", observer=Silent(), live=live)
    found = live.changes(-1)
    assert found["totals"]["suspended"] == {"out-of-range": 1}
    (told,) = [one for one in found["log"] if one["kind"] == "suspension"]
    assert (told["device"], told["reason"]) == (4, "out-of-range")
    assert 'recfleet_devices_suspended_total{reason="out-of-range"} 1.0' in exposition(live)[0].decode()
