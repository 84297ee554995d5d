"""Processes that judge scenarios, each with hash seeds of its own.

Nothing in a run may depend on the order of a set. That of text, and of objects, is another in a process with
another ``PYTHONHASHSEED``; so every process gets its own, and some runs are repeated in a second one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from coordinator.run.virtual_time import quiet_collector
from coordinator.swarm.verdict import Verdict, digest_of, judge
from edge.core import plugins

_HASH_SEED: Final = "PYTHONHASHSEED"


class WorkerError(RuntimeError):
    """A process that judged scenarios and failed itself; the message holds its traceback."""


class Judge(NamedTuple):
    """Asks for the verdict on a scenario of the swarm."""

    seed: int
    scenario: int
    thorough: bool = False


class Digest(NamedTuple):
    """Asks for the digest of a run of a scenario."""

    text: str


class _Failure(NamedTuple):
    text: str


Answer = Verdict | str


def _work(connection: Connection, given: Sequence[str]) -> None:
    """Answer requests until there is none; Ctrl-C is the business of the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plugins.load_all(given)
    with quiet_collector(), contextlib.suppress(EOFError):
        while True:
            request = connection.recv()
            try:
                answer: Answer | _Failure
                if isinstance(request, Judge):
                    answer = judge(request.seed, request.scenario, thorough=request.thorough)
                else:
                    answer = digest_of(request.text)
            except Exception:
                answer = _Failure(traceback.format_exc())
            connection.send(answer)


class Worker:
    """A process that answers one request after the other.

    Parameters
    ----------
    number : tells workers apart; it makes the seed of its hashes.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        context: Any = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, plugins.loaded()), daemon=True)
        with _hash_seed(number + 1):
            self._process.start()
        theirs.close()

    def ask(self, request: Judge | Digest) -> None:
        """Send a request; one at a time."""
        self.connection.send(request)

    def answer(self) -> Answer:
        """Wait for the answer.

        Raises
        ------
        WorkerError : the process has failed, or has died.
        """
        try:
            answer = self.connection.recv()
        except EOFError:
            raise WorkerError(f"process {self.number} of the swarm has died") from None
        if isinstance(answer, _Failure):
            raise WorkerError(f"process {self.number} of the swarm failed:\n{answer.text}")
        found: Answer = answer
        return found

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.connection.close()
        self._process.terminate()
        self._process.join()


@contextlib.contextmanager
def _hash_seed(seed: int) -> Iterator[None]:
    """Give the processes that are started meanwhile a seed for their hashes."""
    before = os.environ.get(_HASH_SEED)
    os.environ[_HASH_SEED] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_HASH_SEED]
        else:
            os.environ[_HASH_SEED] = before


@contextlib.contextmanager
def started(count: int, first: int = 0) -> Iterator[list[Worker]]:
    """Start workers, and end them in any case."""
    workers: list[Worker] = []
    try:
        workers += (Worker(first + number) for number in range(count))
        yield workers
    finally:
        for worker in workers:
            worker.stop()
