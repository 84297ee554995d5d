"""Workers that judge scenarios, each with hash seeds of its own.

Nothing in a run may depend on the order of a set. That of text, and of objects, is another in a process with
another ``PYTHONHASHSEED``; so every worker gets its own, and some runs are repeated by a second one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, TypeAlias

from coordinator.cluster.base import Cluster, Worker
from coordinator.cluster.opening import ClusterChoice
from coordinator.run.virtual_time import quiet_collector
from coordinator.swarm.verdict import Verdict, digest_of, judge

Digests: TypeAlias = Callable[[str], list[str]]
"""Gives the digests of a run of a scenario, by its text, in several other processes."""
PROCESSES: Final = 3
"""Processes that a run is repeated in where it has to be the same; the order of a set may agree in two."""


class JudgingWorker:
    """Judges scenarios of the swarm; as long as it lives, the cycle collector of its process looks rarely."""

    def __init__(self) -> None:
        self._quiet = ExitStack()
        self._quiet.enter_context(quiet_collector())

    def judge(self, seed: int, scenario: int, thorough: bool) -> Verdict:
        """Return the verdict on a scenario of the swarm."""
        return judge(seed, scenario, thorough=thorough)

    def digest(self, text: str) -> str:
        """Return the digest of a run of a scenario."""
        return digest_of(text)


def start_judging(cluster: Cluster, number: int) -> Worker:
    """Start a worker; ``number``, 1 or more, makes the seed of its hashes."""
    return cluster.start(f"swarm-{number}", JudgingWorker, environment={"PYTHONHASHSEED": str(number)})


@contextmanager
def digests_elsewhere(choice: ClusterChoice) -> Iterator[Digests]:
    """Start as many workers as a run is repeated in, wherever ``choice`` says, and end them."""
    with ClusterChoice(choice.engine, PROCESSES).open() as cluster:
        workers = [start_judging(cluster, number) for number in range(1, PROCESSES + 1)]
        yield lambda text: cluster.gather(cluster.call_all(workers, "digest", text))
