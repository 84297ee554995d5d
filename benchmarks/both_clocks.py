"""One scenario on both clocks: over real sockets with shaped links, and simulated. For `fidelity.py`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.assembly import Assembly
from coordinator.engine.backend import Clock
from coordinator.engine.training import StopReason, Training
from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.runner import VirtualTime, run_assembled
from coordinator.scenario.load import LoadedScenario, load
from coordinator.service.conducting import Company, RealTime
from coordinator.service.local_run import along

SETTLING_S = 2.0
Floats = npt.NDArray[np.float64]
Keyed = dict[tuple[int, int, str, str], int]
"""Bytes by round, device, stage and direction."""


class Quiet:
    """Shows nothing."""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Ignore the start."""

    def on_round(self, summary: Any) -> None:
        """Ignore the round."""

    def on_evaluation(self, round_number: int, values: Sequence[Any]) -> None:
        """Ignore the evaluation."""

    def on_end(self, status: str) -> None:
        """Ignore the end."""


@dataclass
class Host:
    """How late the loop is that coordinator and devices share."""

    late_s: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        """Measure for ever, in the run's time."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + 0.02
            await asyncio.sleep(0.02)
            self.late_s.append(loop.time() - due_s)

    def watched(self, company: Company) -> Company:
        """Return a company beside which is measured."""

        @asynccontextmanager
        async def with_watch(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
            watch = asyncio.get_running_loop().create_task(self.watch())
            try:
                async with company(url, loaded, assembly):
                    yield
            finally:
                watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watch

        def made(url: str, loaded: LoadedScenario, assembly: Assembly) -> AbstractAsyncContextManager[None]:
            return with_watch(url, loaded, assembly)

        return made


class LaterTraining:
    """A training that begins some seconds into the run."""

    def __init__(self, training: Training, start_s: float) -> None:
        self._training = training
        self._start_s = start_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._training, name)

    async def run(self, backend: Any) -> StopReason:
        """Wait, and train."""
        await asyncio.sleep(self._start_s)
        return await self._training.run(backend)


@dataclass(slots=True)
class SettledTime(RealTime):
    """Conducts a run over sockets some time after all have joined: by then devices are at rest.

    Radios sleep, too, where the pause between rounds is long enough for them to.
    """

    def __call__(self, loaded: LoadedScenario, assembly: Assembly, training: Training) -> StopReason:
        """Listen, wait for devices and for rest, and train."""
        later: Any = LaterTraining(training, max(SETTLING_S, loaded.scenario.rounds.interval))
        return RealTime.__call__(self, loaded, assembly, later)


@dataclass(slots=True)
class TimetabledTime(VirtualTime):
    """Conducts a simulation each of whose rounds begins no sooner than ``starts_s`` says, by its number."""

    starts_s: dict[int, float] = field(default_factory=dict)

    def __call__(self, loaded: LoadedScenario, assembly: Assembly, training: Training) -> StopReason:
        """Train on the virtual clock, by the timetable."""
        select = training._select

        async def select_in_time(clock: Clock, number: int) -> Any:
            await asyncio.sleep(max(0.0, self.starts_s[number] - clock.now_s))
            return await select(clock, number)

        training._select = select_in_time  # type: ignore[method-assign]
        return VirtualTime.__call__(self, loaded, assembly, training)


class Clocked:
    """What a run on one clock has left.

    Attributes
    ----------
    rows : columns of the table ``device_rounds``.
    payload, framing : bytes of each kind.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        run = open_run(directory)
        if run.manifest["status"] != "finished":
            raise SystemExit(f"a run ended as {run.manifest['status']}")
        table = run.read("device_rounds")
        self.rows = {name: np.array(table[name].to_pylist()) for name in ("round", "device", "outcome")}
        for name in table.column_names:
            if name.endswith("_s"):
                self.rows[name] = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
        self.completed = self.rows["outcome"] == "completed"
        """Of each row, bool [n]."""
        payload: defaultdict[tuple[int, int, str, str], int] = defaultdict(int)
        framing: defaultdict[tuple[int, int, str, str], int] = defaultdict(int)
        for row in run.read("events").to_pylist():
            if row["direction"] != "none":
                key = row["round"], row["device"], row["stage"], row["direction"]
                payload[key] += row["payload_bytes"]
                framing[key] += row["framing_bytes"]
        self.payload, self.framing = dict(payload), dict(framing)

    def of_completed(self, column: str) -> Floats:
        """Return a column of those who completed, float64 [n]."""
        found: Floats = self.rows[column][self.completed]
        return found

    def stage_spans(self, name: str) -> Floats:
        """Return how long the stage took of those who completed and were in it, seconds."""
        spans_s: Floats = self.of_completed(f"{name}_end_s") - self.of_completed(f"{name}_start_s")
        return spans_s[~np.isnan(spans_s)]

    def cohorts(self) -> list[frozenset[int]]:
        """Return the devices of each round."""
        rounds, devices = self.rows["round"], self.rows["device"]
        return [frozenset(devices[rounds == number].tolist()) for number in np.unique(rounds)]

    def medians(self) -> Floats:
        """Return the median latency of each round, seconds."""
        rounds, latency_s = self.rows["round"][self.completed], self.of_completed("latency_s")
        return np.array([np.median(latency_s[rounds == number]) for number in np.unique(rounds)])

    def starts_s(self) -> dict[int, float]:
        """Return when the first invitation of each round was sent."""
        rounds, start_s = self.rows["round"], self.rows["invite_start_s"]
        return {int(number): float(np.nanmin(start_s[rounds == number])) for number in np.unique(rounds)}

    def model(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the model after the last round."""
        with np.load(self._directory / "model.npz") as file:
            return dict(file)


def over_sockets(loaded: LoadedScenario, target: Path, stretch: float) -> tuple[Clocked, Host]:
    """Run a scenario with all of its devices over sockets on loopback, with shaped links.

    A second of the run takes ``stretch`` real ones.
    """
    assembly, host = assemble(loaded), Host()
    company = host.watched(along(shaped=True))
    conductor = SettledTime(wait_for=assembly.fleet.n, company=company, stretch=stretch)
    outcome = run_assembled(loaded, assembly, target=target, observer=Quiet(), conductor=conductor)
    return Clocked(outcome.directory), host


def simulated(file: Path, target: Path, real: Clocked) -> Clocked:
    """Simulate a scenario, its rounds at the times at which they began over sockets."""
    loaded = load(file, ["rounds.interval=0 s"])
    assembly = assemble(loaded)
    # Devices over sockets have joined before the first round.
    assembly.fleet.connected[:] = True
    conductor = TimetabledTime(starts_s=real.starts_s())
    outcome = run_assembled(loaded, assembly, target=target, observer=Quiet(), conductor=conductor)
    return Clocked(outcome.directory)


def both(folder: Path, file: Path, name: str, stretch: float) -> tuple[Clocked, Clocked, Host]:
    """Run a scenario over sockets, and simulate it."""
    real, host = over_sockets(load(file), folder / f"{name}-real", stretch)
    return real, simulated(file, folder / f"{name}-virtual", real), host
