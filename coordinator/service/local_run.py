"""Runs of this process: with their own devices over real sockets, or simulated under a dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from coordinator.engine.assembly import Assembly
from coordinator.engine.progress import Observers, RunObserver
from coordinator.engine.run_files import DEVICES, PARTIAL_SUFFIX
from coordinator.run.assembling import assemble
from coordinator.run.conductor import RunFeed
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.run.virtual_time import VirtualTime
from coordinator.scenario.load import LoadedScenario
from coordinator.service.conducting import Company, RealTime, assembled
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.watchers import LiveProbe, LiveService
from coordinator.service.identities import enrol_all_here
from coordinator.service.local_devices import LocalDevices


def run_here(
    loaded: LoadedScenario,
    *,
    target: Path,
    observer: RunObserver,
    live: LiveState | None = None,
    feeds: Sequence[RunFeed] = (),
) -> RunOutcome:
    """Run a scenario with all of its devices in this process, over sockets on loopback.

    ``live`` receives what happens. Other parameters and errors are those of
    :func:`~coordinator.run.runner.run_scenario`.
    """
    assembly = assembled(loaded, None)
    memory = target.with_name(target.name + PARTIAL_SUFFIX) / DEVICES
    conductor = RealTime(wait_for=assembly.fleet.n, company=along(shaped=True, memory=memory))
    if live is not None:
        conductor.observer = LiveService(live)
        observer, feeds = Observers(observer, live), (live, *feeds)
    return run_assembled(loaded, assembly, target=target, observer=observer, conductor=conductor, feeds=feeds)


def along(*, shaped: bool, memory: Path | None = None) -> Company:
    """Return a company of all devices of the fleet.

    Parameters
    ----------
    shaped : makes them as slow as their profiles.
    memory : folder of what they remember of rounds; None: they do so in this process alone.
    """

    @asynccontextmanager
    async def company(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        enrol_all_here(assembly)
        everybody = range(assembly.fleet.n)
        devices = LocalDevices(url, everybody, shaped=shaped, known=(loaded, assembly), memory=memory)
        async with asyncio.TaskGroup() as group:
            group.create_task(devices.run(), name="devices")
            yield

    def made(url: str, loaded: LoadedScenario, assembly: Assembly) -> AbstractAsyncContextManager[None]:
        return company(url, loaded, assembly)

    return made


def run_watched(
    loaded: LoadedScenario,
    *,
    target: Path,
    observer: RunObserver,
    live: LiveState,
    feeds: Sequence[RunFeed] = (),
) -> RunOutcome:
    """Run a scenario on the virtual clock; ``live`` receives what happens.

    Other parameters and errors are those of :func:`~coordinator.run.runner.run_scenario`.
    """
    return run_assembled(
        loaded,
        assemble(loaded),
        target=target,
        observer=Observers(observer, live),
        conductor=VirtualTime(LiveProbe(live)),
        feeds=(live, *feeds),
    )
