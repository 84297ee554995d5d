"""A simulated run that is watched."""

from __future__ import annotations

from pathlib import Path

from coordinator.assembling import assemble
from coordinator.progress import Observers, RunObserver
from coordinator.runner import RunOutcome, run_assembled
from coordinator.scenario.load import LoadedScenario
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.watchers import LiveWitness
from coordinator.virtual_time import VirtualTime


def run_watched(
    loaded: LoadedScenario, *, target: Path, observer: RunObserver, live: LiveState
) -> RunOutcome:
    """Run a scenario on the virtual clock, and tell ``live`` what happens.

    Other parameters and errors are those of :func:`~coordinator.runner.run_scenario`.
    """
    return run_assembled(
        loaded,
        assemble(loaded),
        target=target,
        observer=Observers(observer, live),
        conductor=VirtualTime(LiveWitness(live)),
        feed=live,
    )
