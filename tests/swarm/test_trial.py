from __future__ import annotations

import asyncio
import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
from swarm_helpers import MASKED, PLAIN, trial_of

from coordinator.engine.progress import RunObserver
from coordinator.engine.training import Training
from coordinator.results.tables.reader import open_run
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load, load_text
from coordinator.simulation.backend import SimulatedCohort
from coordinator.swarm import record as record_module
from coordinator.swarm.record import FrozenError
from coordinator.swarm.trial import run_trial
from edge.device.simulated import SimulatedDevice


@pytest.mark.slow
@pytest.mark.parametrize("text", [PLAIN, MASKED], ids=["plain", "masked"])
def test_tables_in_memory_are_those_of_a_run_directory(text: str, tmp_path: Path) -> None:
    file = tmp_path / "same.yaml"
    file.write_text(text)
    outcome = run_scenario(load(file), target=tmp_path / "run", observer=RunObserver())
    written = open_run(outcome.directory)
    trial = trial_of(text)
    assert trial.tables.digest() == written.manifest["digest"]
    for table in ("rounds", "device_rounds", "events", "evaluations", "faults"):
        kept = trial.tables.read(table)
        assert kept.num_rows == trial.tables.rows(table) == written.read(table).num_rows
        assert kept.column_names == written.read(table).column_names
    assert trial.tables.read("events", ["round", "kind"]).column_names == ["round", "kind"]


def test_a_scenario_from_text_is_that_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "same.yaml"
    file.write_text(PLAIN)
    assert load_text(PLAIN, "same").hash == load(file).hash


def test_a_witness_does_not_change_a_run(tmp_path: Path) -> None:
    trial = trial_of(MASKED)
    assert len(trial.record.deliveries) == len(trial.record.sizes) > 0
    assert trial.record.left == []
    assert {one.round_number for one in trial.record.moves} == {1, 2, 3}
    assert all(len(made) == 1 for made in trial.record.sums.values())
    assert len(trial.record.vectors) >= sum(len(m[0].survivors or ()) for m in trial.record.sums.values())


def test_an_error_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Training, *_: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(Training, "_aggregate", fails)
    trial = run_trial(PLAIN, "failing")
    assert isinstance(trial.error, ValueError)
    assert trial.stop is None


@pytest.mark.parametrize(("operation", "a_bug"), [("divide", True), ("matmul", False), ("dot", False)])
def test_a_warning_is_a_bug_but_for_the_spurious_one(
    monkeypatch: pytest.MonkeyPatch, operation: str, a_bug: bool
) -> None:
    aggregate = Training._aggregate

    def warns(self: Training, *arguments: Any) -> Any:
        warnings.warn(f"invalid value encountered in {operation}", RuntimeWarning, stacklevel=1)
        return aggregate(self, *arguments)

    monkeypatch.setattr(Training, "_aggregate", warns)
    trial = run_trial(PLAIN, "warned of")
    assert isinstance(trial.error, RuntimeWarning) == a_bug
    assert (trial.stop is None) == a_bug


def test_a_run_that_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedCohort, "_closed_one", lambda _: None)
    trial = run_trial(PLAIN, "frozen")
    assert isinstance(trial.error, FrozenError)
    assert "has not come to its end after" in str(trial.error)


def test_a_run_that_goes_round_in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "MOST_FRAMES", 20)
    trial = run_trial(PLAIN, "circles")
    assert isinstance(trial.error, FrozenError)
    assert "after 20 frames" in str(trial.error)


def test_what_is_left_over_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = SimulatedDevice._finish
    tasks = []

    def stays(self: SimulatedDevice) -> None:
        finish(self)
        if not tasks:
            forever = asyncio.get_running_loop().create_future()
            tasks.append(asyncio.ensure_future(_wait(forever)))
            tasks[0].set_name("a forgotten task")

    async def _wait(future: asyncio.Future[None]) -> None:
        await future

    monkeypatch.setattr(SimulatedDevice, "_finish", stays)
    trial = run_trial(PLAIN, "left over")
    assert trial.error is None
    assert trial.record.left == ["the task a forgotten task has not ended"]


def test_a_device_that_stays_busy_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = SimulatedCohort.finished

    def busy(self: SimulatedCohort, device: SimulatedDevice) -> None:
        finished(self, device)
        if self.round_number == 3:
            self._simulation.fleet.busy[device.device] = True

    monkeypatch.setattr(SimulatedCohort, "finished", busy)
    left = run_trial(PLAIN, "busy").record.left
    assert left
    assert all(line.endswith("is still busy") for line in left)


def test_a_trial_can_be_looked_at_twice() -> None:
    trial = trial_of(PLAIN)
    assert dataclasses.replace(trial).digest() == trial.digest() == trial_of(PLAIN).digest()
