"""Kernels on workers: in order, and whoever is lost."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coordinator.cluster.base import WorkerLostError
from coordinator.cluster.jobs import TRIES
from coordinator.cluster.kernels import ClusterExecutor
from coordinator.cluster.local import LocalCluster
from edge.device.compute import Clients


def squares(clients: Clients) -> list[int]:
    return [int(client) ** 2 for client in clients]


def dying(clients: Clients, marks: Path, deaths: int) -> list[int]:
    """Kill the process of the worker until as many have died; then return the squares."""
    for number in range(deaths):
        mark = marks / f"{clients[0]}-{number}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return squares(clients)


def test_results_come_in_order_whatever_the_number_of_parts() -> None:
    def kernel(clients: Clients) -> Callable[[], list[int]]:
        return functools.partial(squares, clients)

    with LocalCluster(3) as cluster:
        executor = ClusterExecutor(cluster)
        for count in (1, 2, 3, 10):
            clients = np.arange(count)[::-1]
            assert list(executor.run(kernel, clients)) == [client**2 for client in range(count)[::-1]]


def test_a_part_whose_worker_is_lost_is_computed_by_another(tmp_path: Path) -> None:
    def kernel(clients: Clients) -> Callable[[], list[int]]:
        return functools.partial(dying, clients, tmp_path, TRIES - 1)

    with LocalCluster(2) as cluster:
        executor = ClusterExecutor(cluster)
        assert list(executor.run(kernel, np.arange(5))) == [0, 1, 4, 9, 16]
        assert len(cluster.workers) == 2
    assert len(list(tmp_path.iterdir())) == 2 * (TRIES - 1)


def test_a_part_that_no_worker_survives_ends_the_run(tmp_path: Path) -> None:
    def kernel(clients: Clients) -> Callable[[], list[int]]:
        return functools.partial(dying, clients, tmp_path, TRIES)

    with LocalCluster(1) as cluster, pytest.raises(WorkerLostError, match="signal 9"):
        ClusterExecutor(cluster).run(kernel, np.arange(5))
