"""A simulated run that is watched."""

from __future__ import annotations

from pathlib import Path

from coordinator.engine.progress import Observers, RunObserver
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.run.virtual_time import VirtualTime
from coordinator.scenario.load import LoadedScenario
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.watchers import LiveWitness


def run_watched(
    loaded: LoadedScenario, *, target: Path, observer: RunObserver, live: LiveState
) -> RunOutcome:
    """Run a scenario on the virtual clock, and tell ``live`` what happens.

    Other parameters and errors are those of :func:`~coordinator.run.runner.run_scenario`.
    """
    return run_assembled(
        loaded,
        assemble(loaded),
        target=target,
        observer=Observers(observer, live),
        conductor=VirtualTime(LiveWitness(live)),
        feed=live,
    )
