"""Interfaces of a run: its conductor, its survival of a process, and its feed."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from coordinator.engine.assembly import Assembly
from coordinator.engine.fleet import Fleet
from coordinator.engine.stop_reason import StopReason
from coordinator.engine.training import Training
from coordinator.results.run_directory import RunDirectory
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.writer import RunWriter
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.threshold_evaluation import ThresholdResult
from edge.core.rng import stream_bytes
from edge.crypto.entropy import SecretSource, SystemEntropy

_RUN_ID_BYTES = 6

Verdicts: TypeAlias = tuple[ThresholdResult, ...]


def new_run_id(loaded: LoadedScenario, secrets: SecretSource) -> str:
    """Return the identity of a run that begins: 48 bits as 8 characters (RFC 4648, section 5).

    Random from the system; with the seed it follows from that and the scenario, so that a run replays.
    """
    if secrets is SecretSource.SYSTEM:
        identity = SystemEntropy().bytes(_RUN_ID_BYTES)
    else:
        identity = stream_bytes(loaded.scenario.seed, "run", "identity", loaded.hash)[:_RUN_ID_BYTES]
    return base64.urlsafe_b64encode(identity).decode()


class RunFeed(Protocol):
    """Is given what a run writes, while it does; nothing it does changes the run."""

    def on_begin(
        self, loaded: LoadedScenario, clock: Literal["virtual", "real"], baseline: TableMetricSource | None
    ) -> None:
        """Handle the scenario, and the metrics of its baseline where it has one."""

    def on_batch(self, table: str, batch: Any) -> None:
        """Take a ``pyarrow.RecordBatch`` that has been written to a table."""

    def on_verdicts(self, verdicts: Verdicts, reason: str | None, ending: str | None) -> None:
        """Take the verdicts of a run that is over, why it ended early, and why nothing was learnt.

        They are those of its baseline, if that ended it, and none of a run that was interrupted.
        """


class Survival(Protocol):
    """Lets a run outlive the process that it began in."""

    def directory(self, target: Path, resolved: str, manifest: Mapping[str, Any]) -> RunDirectory:
        """Return the directory of the run: a new one, or that which is gone on with."""

    def writer(self, directory: Path, *, record_events: bool) -> RunWriter:
        """Return what writes the tables into the run's directory."""

    def begin(self, training: Training, fleet: Fleet, writer: RunWriter) -> None:
        """Bring the training and the tables to where the run has come."""

    def finished(self, directory: Path) -> None:
        """Clear away what a run that has its results needs no more."""


class Conductor(Protocol):
    """Takes a training through its rounds, on one clock or the other."""

    clock: Literal["virtual", "real"]
    secrets: SecretSource
    """Source of the coordinator's noise, and of the draw of devices where amplification is claimed."""

    @property
    def survival(self) -> Survival | None:
        """What keeps the run, and goes on with it; None: a run that is cut short begins again."""

    def run_id(self, loaded: LoadedScenario) -> str:
        """Return the identity of the run, if it is a new one."""

    def unseen(self, assembly: Assembly) -> Collection[str]:
        """Return the metrics that are not observed, and so not judged."""

    def __call__(self, loaded: LoadedScenario, assembly: Assembly, training: Training) -> StopReason:
        """Train until a reason to stop, and return it."""
