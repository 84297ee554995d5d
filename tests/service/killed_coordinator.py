"""Kills a coordinator again and again, goes on with its run each time, and checks what became of it.

Fifty times, from the top of the repository::

    PYTHONPATH=.:tests/service python tests/service/killed_coordinator.py --kills 50

Each time ``recfleet serve --resume`` is killed by ``kill -9`` at a random moment: while it starts, while it
takes up the journal, while rounds go on, while a model is applied. The devices live in a process of their own
and come back by themselves. What is checked afterwards: no round that was applied is lost or was applied
twice, every round is told of once, and the model is what its rounds give, computed anew from the start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import numpy as np
from service_helpers import HANG_S, SMALL

from coordinator.engine.run_files import MODEL
from coordinator.engine.snapshots import of_part
from coordinator.results.tables.reader import RunTables, open_run
from coordinator.run.assembling import assemble
from coordinator.scenario.load import LoadedScenario, load
from coordinator.service.survival.journal import JOURNAL, MARK, Journal, Named

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-W", "error", "-m", "coordinator.cli")
DEVICES = 12
ENDLESS = (
    *("rounds.count=1000000", "rounds.interval=0.02 s", "rounds.deadline=10 s", "evaluation.every=5"),
    # The coordinator has no ratings: it and the oracle begin with the mean that is stated.
    f"data.public={{clients: {DEVICES}, items: 40, rating_mean: 3.5}}",
)
MODES = {
    "none": (),
    "secagg-plus": ("secure_aggregation={mode: secagg-plus, clip: 4, bits: 32}",),
}
_LONGEST_LIFE_S = 2.5
_LISTENING = 0.8
"""Part of the kills that wait until the coordinator listens."""
_NEAR = 0.1
"""How far a model may be from that of its rounds; one round more or less would be 1."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@dataclass
class Findings:
    """What was seen while coordinators lived and died.

    Attributes
    ----------
    kills : coordinators that were killed.
    announced : rounds that one said were completed, by number, with how many devices.
    applied : rounds that the journal knew as applied after some kill, with which application it was.
    cut_short : rounds that were under way when a coordinator was killed.
    while_starting : kills before the coordinator listened.
    off : how far any model was from what its rounds give, as a part of the least that one of them changed.
    """

    kills: int = 0
    announced: dict[int, int] = field(default_factory=dict)
    applied: dict[int, int] = field(default_factory=dict)
    cut_short: set[int] = field(default_factory=set)
    while_starting: int = 0
    off: float = 0.0

    def look(self, journal: Journal) -> None:
        """Look into the journal that a coordinator has left."""
        self.cut_short |= {one.number for one in journal.open_rounds() if one.stands == "begun"}
        applied = rounds_applied(journal)
        assert len(applied) == journal.applied, "the journal counts other rounds than it has rows of"
        for application, number in enumerate(applied, start=1):
            before = self.applied.setdefault(number, application)
            assert before == application, f"round {number}: application {before}, then {application}"
        lost = self.applied.keys() - set(applied)
        assert not lost, f"the journal has lost the rounds {sorted(lost)}"


def rows_in(journal: Journal) -> Iterator[Named]:
    """Yield the rows of a journal: those that are final, and those of rounds that are over."""
    yield from journal.piece_rows()
    yield from journal.rows()
    for one in journal.open_rounds():
        if one.stands == "over":
            yield from journal.draft(one.number)


def rounds_applied(journal: Journal) -> list[int]:
    """Return the rounds that were applied to the model, in their order."""
    rows = [row for name, batch in rows_in(journal) if name == "rounds" for row in batch.to_pylist()]
    return [row["round"] for row in rows if row["outcome"] == "completed"]


class Oracle:
    """Applies the rounds of a run once more, from one journal to the next, beside the coordinator."""

    def __init__(self, loaded: LoadedScenario) -> None:
        self._workload = assemble(loaded).workload
        algorithm = self._workload.algorithm
        self._state = algorithm.initial_state(loaded.scenario.seed)
        self._optimizer_state = algorithm.initial_optimizer_state(self._state)
        self._applied = 0

    def distance(self, journal: Journal) -> float:
        """Apply the rounds that are new in a journal; return how far the model there is from that.

        As a part of the least that any of these rounds changed, by its entry that changed most. The next
        distance is measured from the model there: rounded sums differ a little, and learning adds to that.
        """
        members: dict[int, list[int]] = {}
        for name, batch in rows_in(journal):
            if name == "device_rounds":
                for row in batch.select(["round", "device", "outcome"]).to_pylist():
                    if row["outcome"] == "completed":
                        members.setdefault(row["round"], []).append(row["device"])
        algorithm, state, optimizer_state = self._workload.algorithm, self._state, self._optimizer_state
        least = np.inf
        new = rounds_applied(journal)[self._applied :]
        for number in new:
            accumulator, before = algorithm.accumulator(state), state
            ids = np.array(sorted(members[number]), dtype=np.int64)
            updates = self._workload.training(state, number)(ids)()
            for device, update in zip(ids.tolist(), updates, strict=True):
                accumulator.add(update, device)
            state, optimizer_state = algorithm.server_update(
                state, optimizer_state, accumulator.result(), self._applied
            )
            self._applied += 1
            least = min(least, max(float(np.abs(state[name] - before[name]).max()) for name in state))
        model = journal.arrays("model")
        found, self._optimizer_state = of_part(model, "state"), of_part(model, "optimizer")
        off = max(float(np.abs(found[name] - state[name]).max()) for name in state)
        self._state = found
        assert new or off == 0.0, "the model has changed without a round"
        return off / least if new else 0.0


class Coordinator:
    """One life of the coordinator, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        self._stream: IO[str] = process.stderr
        self.lines: list[str] = []

    def listen(self, until_s: float, wanted: str = "") -> bool:
        """Read what it says until ``until_s`` (``time.monotonic``), or until a line holds ``wanted``."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stream, selectors.EVENT_READ)
            while (left_s := until_s - time.monotonic()) > 0:
                if not selector.select(left_s):
                    return False
                line = self._stream.readline()
                if not line:
                    return False
                self.lines.append(line)
                if wanted and wanted in line:
                    return True
        return False

    def announced(self) -> dict[int, int]:
        """Return the rounds that it said were completed, with how many devices."""
        found = re.findall(r"^round (\d+)/\S+ (\d+) completed", "".join(self.lines), re.MULTILINE)
        return {int(number): int(completed) for number, completed in found if int(completed)}


@dataclass
class Play:
    """A run whose coordinator is killed now and then.

    Parameters
    ----------
    folder : takes scenario and run.
    settings : of the scenario, beside those that make it endless.
    """

    folder: Path
    settings: Sequence[str]
    findings: Findings = field(default_factory=Findings)

    def __post_init__(self) -> None:
        self.file = self.folder / "s.yaml"
        self.file.write_text(SMALL)
        self.port = free_port()
        self.run = self.folder / "run"
        self.partial = self.folder / "run.partial"
        self.oracle = Oracle(self.loaded)

    @property
    def loaded(self) -> LoadedScenario:
        """The scenario."""
        return load(self.file, (*ENDLESS, *self.settings))

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        return subprocess.Popen(
            [*COMMAND, *arguments], cwd=self.folder, env=environment, text=True, bufsize=1,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    @contextlib.contextmanager
    def devices(self) -> Iterator[subprocess.Popen[str]]:
        """Let all devices live in a process of their own, which nobody kills."""
        # Lines of a coordinator that is not there are not read: there are none.
        process = self._start(
            "device",
            f"http://127.0.0.1:{self.port}",
            "--count",
            str(DEVICES),
            "--no-shape",
            "--memory",
            "memory",
            "--patience",
            "5 min",
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    @contextlib.contextmanager
    def coordinator(self) -> Iterator[Coordinator]:
        """Let a coordinator begin the run, or go on with it."""
        sets = [part for one in (*ENDLESS, *self.settings) for part in ("--set", one)]
        process = self._start(
            *("serve", "s.yaml", *sets, "--port", str(self.port), "--wait-for", str(DEVICES)),
            *("--out", "run", "--resume"),
        )
        life = Coordinator(process)
        try:
            yield life
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
            self.findings.announced.update(life.announced())

    def kill_after(self, seconds: float, *, listening: bool) -> None:
        """Let a coordinator live for so long, from its start or from when it listens; see what is left."""
        with self.coordinator() as life:
            if listening:
                assert life.listen(time.monotonic() + HANG_S, "listening at"), "".join(life.lines)
            life.listen(time.monotonic() + seconds)
            assert life.process.poll() is None, "".join(life.lines)
            life.process.kill()
            life.process.wait()
            # What it said with its last breath was said.
            life.listen(time.monotonic() + 1.0)
        self.findings.kills += 1
        self.findings.while_starting += not any("listening at" in line for line in life.lines)
        self.look()

    def end(self) -> None:
        """Let the last coordinator finish some rounds, and stop in order."""
        with self.coordinator() as life:
            assert life.listen(time.monotonic() + HANG_S, "after round"), "".join(life.lines)
            life.process.send_signal(signal.SIGTERM)
            life.listen(time.monotonic() + HANG_S)
            assert life.process.wait(HANG_S) == 4, "".join(life.lines)
        self.look()

    def look(self) -> None:
        """Look at what a coordinator has left: a copy, as its own successor would find it."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        # The mark and the pieces among them.
        for file in (
            *self.partial.glob(f"{JOURNAL}*"),
            *self.partial.glob(MARK),
            *self.partial.glob("*.parquet"),
        ):
            shutil.copy(file, copy / file.name)
        if not (copy / JOURNAL).exists():
            return
        with Journal(copy) as journal:
            if journal.fact("began_at_s") is None:
                return  # killed before it did anything
            self.findings.look(journal)
            off = self.oracle.distance(journal)
        # A round that is missing, or there twice, would show at its full size.
        assert off < _NEAR, f"the model is off by {off} of what a round changes"
        self.findings.off = max(self.findings.off, off)

    def check(self) -> None:
        """Assert that nothing was lost and nothing applied twice."""
        tables = open_run(self.partial)
        with Journal(self.partial) as journal:
            assert not journal.open_rounds()
            check_rounds(tables, journal, self.findings)
            with np.load(self.partial / MODEL) as model:
                kept = of_part(journal.arrays("model"), "state")
                assert {name: model[name].tobytes() for name in model} == {n: kept[n].tobytes() for n in kept}


def check_rounds(tables: RunTables, journal: Journal, findings: Findings) -> None:
    """Assert that journal, tables and what coordinators said tell of the same rounds, once each."""
    row_of = {row["round"]: row for row in tables.read("rounds").to_pylist()}
    numbers = list(range(1, journal.rounds + 1))
    assert tables.read("rounds")["round"].to_pylist() == numbers
    completed = [number for number in numbers if row_of[number]["outcome"] == "completed"]
    assert rounds_applied(journal) == completed
    assert journal.applied == len(completed), "applied once each"
    applied = {number: application for application, number in enumerate(completed, start=1)}
    assert findings.applied.items() <= applied.items()
    for number, devices in findings.announced.items():
        assert row_of[number]["completed"] == devices, f"round {number} was announced otherwise"
    for number in set(numbers) - set(completed):
        assert row_of[number]["reason"] in ("coordinator-crash", "quorum", "deadline"), row_of[number]
    devices = tables.read("device_rounds").to_pylist()
    assert len({(row["round"], row["device"]) for row in devices}) == len(devices)
    assert len(devices) == sum(row["invited"] for row in row_of.values())
    check_evaluations(tables, {0, *(number for number in numbers if number % 5 == 0)}, findings.kills)


def check_evaluations(tables: RunTables, due: set[int], kills: int) -> None:
    """Assert that each evaluation has its values, once, or is one that a kill cut short.

    Devices answer no evaluation twice, so one that they had answered before the kill is abandoned after it.
    """
    evaluated = Counter(tables.read("evaluations")["round"].to_pylist())
    assert len(set(evaluated.values())) == 1, "each has as many values as any other"
    held = tables.read("evaluation_rounds", ["round", "outcome", "reason"]).to_pylist()
    assert {row["round"] for row in held} == due
    completed = {row["round"] for row in held if row["outcome"] == "completed"}
    assert evaluated.keys() <= completed
    lost = due - evaluated.keys()
    assert len(lost) <= kills
    abandoned = [row for row in held if row["outcome"] != "completed"]
    assert lost <= {row["round"] for row in abandoned}
    assert all(row["reason"] == "quorum" for row in abandoned), abandoned


def main() -> None:
    """Kill as often as the command line says, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=tuple(MODES), default="secagg-plus")
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    with TemporaryDirectory() as folder:
        play = Play(Path(folder), MODES[arguments.mode])
        with play.devices():
            for number in range(arguments.kills):
                listening = moments.random() < _LISTENING
                seconds = moments.uniform(0.0, _LONGEST_LIFE_S)
                play.kill_after(seconds, listening=listening)
                since = "it listened" if listening else "its start"
                applied = len(play.findings.applied)
                print(
                    f"kill {number + 1}, {seconds:.2f} s after {since}: {applied} rounds applied", flush=True
                )
            play.end()
        play.check()
    found = play.findings
    print(
        f"{arguments.mode}: {found.kills} kills, {found.while_starting} of them before anybody listened; "
        f"{len(found.applied)} rounds applied, each once; {len(found.cut_short)} cut short; none lost; "
        f"models are off by {found.off:.1e} of the smallest change of a round"
    )


if __name__ == "__main__":
    main()
