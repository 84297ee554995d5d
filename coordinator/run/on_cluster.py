"""One run over many workers: each simulates the devices of its sum groups."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from coordinator.cluster.base import Cluster, Worker, WorkerLostError
from coordinator.cluster.opening import ClusterChoice
from coordinator.run.shards import Shard, ShardedTime
from coordinator.scenario.load import LoadedScenario
from coordinator.simulation.parts import Part, PartResult

LOSSES: Final = 3
"""How often a shard of a run is lost before the run has failed."""
_LOGGER = logging.getLogger(__name__)


class ShardLostError(ChildProcessError):
    """A shard was lost so often that it would be lost again."""


class ClusterShards:
    """Shards that are workers of a cluster.

    A shard remembers nothing between two rounds. So one that is lost is started anew and asked for the same
    part again, and nothing in the results tells.

    Parameters
    ----------
    cluster : starts them.
    loaded, count : the run's scenario, and how many there are.
    """

    def __init__(self, cluster: Cluster, loaded: LoadedScenario, count: int) -> None:
        self._cluster = cluster
        self._loaded = loaded
        self._workers = [self._start(number) for number in range(count)]
        self._losses = [0] * count

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._workers)

    def _start(self, number: int, *, again: bool = False) -> Worker:
        # All wait for one that is started again, and its node may be gone, with the room that there was.
        return self._cluster.start(f"shard-{number}", Shard, self._loaded, reserves=not again)

    def simulate(self, parts: Mapping[int, Part]) -> Mapping[int, PartResult]:
        """Simulate parts, each on its shard.

        Raises
        ------
        ShardLostError : a shard was lost for the last time that is allowed.
        """
        waiting = {
            self._cluster.call(self._workers[number], "simulate", part): number
            for number, part in parts.items()
        }
        results: dict[int, PartResult] = {}
        while waiting:
            for call in self._cluster.wait(waiting):
                number = waiting.pop(call)
                try:
                    results[number] = call.result()
                except WorkerLostError as lost:
                    self._replace(number, lost)
                    waiting[self._cluster.call(self._workers[number], "simulate", parts[number])] = number
        return {number: results[number] for number in parts}

    def _replace(self, number: int, lost: WorkerLostError) -> None:
        self._losses[number] += 1
        if self._losses[number] >= LOSSES:
            raise ShardLostError(
                f"shard {number} of {self.count} was lost {LOSSES} times, the last time by {lost.how}; run"
                " the scenario again, with fewer shards if this host is short of memory"
            ) from lost
        _LOGGER.warning("shard %d was lost (%s): it is started again", number, lost.how)
        self._workers[number] = self._start(number, again=True)


@contextmanager
def sharded(loaded: LoadedScenario, choice: ClusterChoice) -> Iterator[ShardedTime]:
    """Give what conducts a run in as many shards as ``choice`` has workers, which end with the block."""
    assert choice.workers is not None, "the number of shards was chosen"
    with choice.open() as cluster:
        yield ShardedTime(shards=ClusterShards(cluster, loaded, choice.workers))
