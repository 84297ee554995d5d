"""Kernels on workers: batches of devices' computations, split over the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from coordinator.cluster.base import Call, Cluster, Worker, WorkerLostError
from coordinator.cluster.jobs import TRIES
from edge.device.compute import Clients, Kernel, run_task

R = TypeVar("R")


class KernelWorker:
    """Runs the tasks of kernels."""

    def run(self, task: Callable[[], Iterable[R]]) -> list[R]:
        """Return the results of a task."""
        return list(run_task(task))


class ClusterExecutor:
    """Splits a batch over all workers that a cluster may have, and waits for them.

    A part whose worker is lost is computed by another; a kernel is a pure function, so it gives the same.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._workers: list[Worker] = []
        self._started = 0
        for _ in range(cluster.limit):
            self._workers.append(self._start())

    def _start(self) -> Worker:
        self._started += 1
        return self._cluster.start(f"kernels-{self._started}", KernelWorker)

    def run(self, kernel: Kernel[R], clients: Clients) -> Iterable[R]:
        """Return the results of ``clients``, in order, computed in parts."""
        parts = [part for part in np.array_split(clients, len(self._workers)) if len(part)]
        tasks = [kernel(part) for part in parts]
        calls = [
            self._cluster.call(worker, "run", task)
            for worker, task in zip(self._workers, tasks, strict=False)
        ]
        return [result for at, task in enumerate(tasks) for result in self._result(at, task, calls[at])]

    def _result(self, at: int, task: Callable[[], Iterable[Any]], call: Call) -> list[Any]:
        """Return the results of the part of worker ``at``; try again when it is lost."""
        for _ in range(TRIES - 1):
            try:
                results: list[Any] = self._cluster.gather([call])[0]
            except WorkerLostError:
                self._workers[at] = self._start()
                call = self._cluster.call(self._workers[at], "run", task)
            else:
                return results
        last: list[Any] = self._cluster.gather([call])[0]
        return last
