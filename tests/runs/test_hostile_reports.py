"""Devices that report what cannot be: their updates are left out, their rounds abandoned, the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import SMALL, run_text

from coordinator.active_round import Channel
from coordinator.actor import Coordinator
from coordinator.metrics.reader import open_run
from coordinator.runner import RunOutcome
from edge.message_kinds import AnyMessage
from edge.messages import Report
from edge.vocabulary import Reason

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
