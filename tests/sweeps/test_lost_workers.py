"""Sweeps whose workers are killed at random, on every engine, and sweeps on Ray that are stopped."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sweep_helpers import SCENARIO, Sweep

from coordinator.cluster.jobs import TRIES
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
KILLS: Mapping[EngineName, int] = {"local": 6, "ray": 3}

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
    """A sweep whose workers are killed at random once a run has ended, by a seed."""

    def __init__(self, cells: tuple[Cell, ...], target: Path, engine: EngineName, seed: int) -> None:
        self.killed = 0
        self._rng = random.Random(seed)
        self._losses: Counter[tuple[int, int]] = Counter()
        self._over = threading.Event()
        # Ray takes a while to say that a worker is gone: none is killed before the last has been missed.
        self._pause_s = 0.1 if engine == "local" else 1.0
        self._kills = KILLS[engine]
        with self._killing():
            super().__init__(cells, target, engine=engine)

    def _note(self, cell: Cell, seed: int, result: Result, left_s: float | None) -> None:
        super()._note(cell, seed, result, left_s)
        self._losses[cell.number, seed] = 0

    def _note_loss(self, cell: Cell, seed: int, how: str) -> None:
        super()._note_loss(cell, seed, how)
        self._losses[cell.number, seed] += 1

    @contextmanager
    def _killing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._kill)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _kill(self) -> None:
        while self.killed < self._kills and not self._over.wait(self._rng.uniform(1, 5) * self._pause_s):
            found = workers_below(psutil.Process())
            # One more loss of such a run, and it has failed.
            if not found or not self.told or max(self._losses.values()) >= TRIES - 1:
                continue
            with contextlib.suppress(psutil.Error):
                self._rng.choice(found).kill()
                self.killed += 1


def test_the_table_is_that_of_a_sweep_left_alone(
    tmp_path: Path, engine: EngineName, alone: tuple[Path, Sweep]
) -> None:
    cells = load_cells(load(written(tmp_path)))
    disturbed = Disturbed(cells, tmp_path / "disturbed", engine, 5)
    assert disturbed.killed
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
