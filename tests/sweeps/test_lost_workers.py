"""Sweeps whose workers are killed, on every engine, and sweeps on Ray that are stopped."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sweep_helpers import SCENARIO, Sweep

from coordinator.cluster.on_ray import RayCluster
from coordinator.results.sweep import Result
from coordinator.scenario import EngineName
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import load
from coordinator.scenario.sweep import Cell, load_cells

ROOT = Path(__file__).resolve().parents[2]
LONG = SCENARIO.replace("count: 2", "count: 60").replace("cohort: 20", "cohort: 40")
SWEEP = "sweep: {rounds.over_select: [100%, 120%, 150%], repeat: 3}\n"
NEEDS_RAY = "needs Ray: pip install 'recfleet[ray]'"

pytestmark = pytest.mark.slow


@pytest.fixture(params=["local", "ray"])
def engine(request: pytest.FixtureRequest) -> Iterator[EngineName]:
    if request.param == "local":
        yield "local"
        return
    pytest.importorskip("ray", reason=NEEDS_RAY)
    with RayCluster(2):
        yield "ray"


def written(folder: Path) -> Path:
    file = folder / "long.yaml"
    file.write_text(LONG + SWEEP, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sweep]:
    """A sweep that nothing disturbs, and where it lies."""
    folder = tmp_path_factory.mktemp("alone")
    return folder / "out", Sweep(load_cells(load(written(folder))), folder / "out")


def workers_below(process: psutil.Process) -> list[psutil.Process]:
    """Return the workers that a process has started, itself or by Ray."""
    found = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            line = child.cmdline()
            if any("spawn_main" in part for part in line) or (line[:1] and line[0].startswith("ray::_Actor")):
                found.append(child)
    return found


class Disturbed(Sweep):
    """A sweep all of whose workers are killed twice: once two runs have ended, and once five have."""

    def __init__(self, cells: tuple[Cell, ...], target: Path, engine: EngineName) -> None:
        self.killed = 0
        super().__init__(cells, target, engine=engine)

    def _note(self, cell: Cell, seed: int, result: Result, left_s: float | None) -> None:
        super()._note(cell, seed, result, left_s)
        # A run is lost no more than twice: it is tried again each time.
        if len(self.told) in (2, 5):
            for worker in workers_below(psutil.Process()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
                    self.killed += 1


def test_the_table_is_that_of_a_sweep_left_alone(
    tmp_path: Path, engine: EngineName, alone: tuple[Path, Sweep]
) -> None:
    cells = load_cells(load(written(tmp_path)))
    disturbed = Disturbed(cells, tmp_path / "disturbed", engine)
    assert disturbed.killed >= 2
    assert disturbed.lost
    undisturbed, sweep = alone
    assert disturbed.outcome.exit_code == sweep.outcome.exit_code
    for name in ("sweep.json", "sweep.csv"):
        assert (tmp_path / "disturbed" / name).read_bytes() == (undisturbed / name).read_bytes()
    # Nothing is left of the runs that were cut short, and no process.
    names = [sorted(path.name for path in each.iterdir()) for each in (tmp_path / "disturbed", undisturbed)]
    assert names[0] == names[1]
    assert psutil.wait_procs(workers_below(psutil.Process()), timeout=60)[1] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_sweep_on_ray_leaves_no_process_and_goes_on(
    tmp_path: Path, number: signal.Signals, alone: tuple[Path, Sweep]
) -> None:
    pytest.importorskip("ray", reason=NEEDS_RAY)
    file, out = written(tmp_path), tmp_path / "out"
    command = [sys.executable, "-m", "coordinator.cli", "sweep", str(file), "--out", str(out)]
    command += ["--jobs", "2", "--engine", "ray"]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("2/9 "):
                break
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, errors = process.communicate(timeout=600)
    assert below
    assert psutil.wait_procs(below, timeout=120)[1] == []
    assert "Traceback" not in errors
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == ExitCode.INTERRUPTED
        assert "the same command goes on from here" in errors
        table = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
        assert "not run" in {run["status"] for cell in table["cells"] for run in cell["runs"]}
    cells = load_cells(load(file))
    assert Sweep(cells, out).kept() >= 2
    assert (out / "sweep.json").read_bytes() == (alone[0] / "sweep.json").read_bytes()
