"""Runs in shards that live in this process, one after the other: what a cluster does, without processes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coordinator.engine.crashes import npz_bytes
from coordinator.engine.progress import RunObserver
from coordinator.results.tables.writer import TableRecorder, TablesInMemory
from coordinator.results.threshold_watch import ThresholdWatch
from coordinator.run.assembling import assemble
from coordinator.run.runner import training_kind
from coordinator.run.shards import Shard, ShardedTime
from coordinator.run.virtual_time import VirtualTime
from coordinator.scenario.load import LoadedScenario
from coordinator.simulation.parts import Part, PartResult
from edge.crypto.entropy import SecretSource


class ShardsHere:
    """Shards in this process."""

    def __init__(self, loaded: LoadedScenario, count: int) -> None:
        self._shards = [Shard(loaded) for _ in range(count)]
        self.asked: list[list[int]] = []
        """Which shards were asked, call by call."""

    @property
    def count(self) -> int:
        return len(self._shards)

    def simulate(self, parts: Mapping[int, Part]) -> Mapping[int, PartResult]:
        self.asked.append(list(parts))
        # A thread may have a clock of its own beside the one that goes on in this.
        with ThreadPoolExecutor(1) as thread:
            return {
                number: thread.submit(self._shards[number].simulate, part).result()
                for number, part in parts.items()
            }


def outcome_of(loaded: LoadedScenario, shards: ShardsHere | None = None) -> tuple[str, bytes, str]:
    """Run a scenario in memory, in shards or without; return the digest of its tables, its model, its end."""
    assembly, tables = assemble(loaded), TablesInMemory()
    if assembly.privacy is not None:
        assembly.privacy.draw_from(SecretSource.SEED)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recorder = stack.enter_context(TableRecorder(tables, assembly.fleet.names))
        training = training_kind(loaded.scenario)(
            loaded.scenario,
            assembly,
            recorder,
            RunObserver(),
            ThresholdWatch((), None),
            folder,
            SecretSource.SEED,
        )
        conduct = VirtualTime() if shards is None else ShardedTime(shards=shards)
        stop = conduct(loaded, assembly, training)
    return tables.digest(), npz_bytes(dict(training.model)), str(stop)
