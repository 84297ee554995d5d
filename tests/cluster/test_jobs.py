"""Jobs on workers: spread, tried again when a worker is lost, given up, interrupted."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_helpers import Counter, wait_for

from coordinator.cluster import jobs as jobs_module
from coordinator.cluster.base import Cluster, Worker
from coordinator.cluster.jobs import TRIES, Job, run_jobs
from coordinator.cluster.local import LocalCluster

Open = Callable[[int], Cluster]


class Errand:
    """A worker whose calls leave marks in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._interrupted = threading.Event()

    def die_first(self, name: str, deaths: int) -> str:
        """Kill the process as often as ``deaths``, then return the name."""
        for number in range(deaths):
            mark = self._folder / f"{name}-{number}"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return name

    def rest(self, name: str) -> str:
        """Return once the worker is interrupted."""
        (self._folder / name).touch()
        return f"{name}, interrupted" if self._interrupted.wait(600) else name

    def interrupt(self) -> None:
        """Let :meth:`rest` return."""
        self._interrupted.set()


class Listed:
    """A list of jobs, and what became of each."""

    def __init__(self, *todo: Job) -> None:
        self._todo = list(todo)
        self.ended: list[tuple[str, Any]] = []
        self.by: list[str] = []
        self.losses = 0

    def next(self) -> Job | None:
        return self._todo.pop(0) if self._todo else None

    def done(self, job: Job, value: Any, worker: Worker) -> None:
        self.ended.append(("done", value))
        self.by.append(worker.name)

    def lost(self, job: Job, how: str) -> None:
        self.losses += 1

    def failed(self, job: Job, error: str) -> None:
        self.ended.append(("failed", error))


def errands(cluster: Cluster, folder: Path) -> Callable[[int], Worker]:
    return lambda number: cluster.start(f"errand-{number}", Errand, folder)


def test_a_job_is_tried_again_and_given_up_after_three_losses(opened: Open, tmp_path: Path) -> None:
    deaths = [0, TRIES - 1, TRIES, 0, 1]
    todo = Listed(*(Job("die_first", (f"job{number}", count)) for number, count in enumerate(deaths)))
    with opened(2) as cluster:
        assert not run_jobs(cluster, errands(cluster, tmp_path), todo)
        assert cluster.workers == ()
    done = sorted(value for how, value in todo.ended if how == "done")
    assert done == ["job0", "job1", "job3", "job4"]
    # Of the losses of the job that was given up, the last is no reason to try again.
    assert todo.losses == sum(deaths) - 1
    (error,) = (value for how, value in todo.ended if how == "failed")
    assert error.startswith(f"its worker died {TRIES} times, the last time (")


def test_no_worker_is_started_that_has_nothing_to_do(tmp_path: Path) -> None:
    todo = Listed(Job("die_first", ("only", 0)))
    started: list[int] = []
    with LocalCluster(8) as cluster:

        def start(number: int) -> Worker:
            started.append(number)
            return errands(cluster, tmp_path)(number)

        run_jobs(cluster, start, todo)
    assert started == [1]
    assert todo.ended == [("done", "only")]


def test_a_job_that_its_worker_shall_not_do_waits_for_another(tmp_path: Path) -> None:
    class Twice(Listed):
        """Each job once more, by another worker."""

        def done(self, job: Job, value: Any, worker: Worker) -> None:
            super().done(job, value, worker)
            if job.not_by is None:
                self._todo.append(Job(job.method, job.arguments, worker))

    todo = Twice(*(Job("die_first", (name, 0)) for name in "abc"))
    with LocalCluster(1) as cluster:
        run_jobs(cluster, errands(cluster, tmp_path), todo)
    # One worker at a time: a second one takes the place of the first when there is nothing else to do.
    assert [value for _, value in todo.ended] == [*"abc", *"abc"]
    assert todo.by == ["errand-1"] * 3 + ["errand-2"] * 3


def test_workers_that_never_come_up_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = Listed(*(Job("add", (number,)) for number in range(4)))
    monkeypatch.setattr(jobs_module, "runs_a_script", lambda: True)
    with LocalCluster(2) as cluster:
        run_jobs(cluster, lambda number: cluster.start("dead", os._exit, 9), todo)
    assert {how for how, _ in todo.ended} == {"failed"}
    (error,) = {error for _, error in todo.ended}
    assert len(todo.ended) == 4
    assert error.startswith("no worker could be started: 3 have died at once, the last by exit code 9")
    assert error.endswith("call it under if __name__ == '__main__':")


def test_an_error_of_a_job_ends_all(tmp_path: Path) -> None:
    todo = Listed(Job("fail", ("here",)))
    with LocalCluster(1) as cluster, pytest.raises(ValueError, match="here"):
        run_jobs(cluster, lambda number: cluster.start("one", Counter), todo)


def test_ctrl_c_ends_what_runs_in_order_and_begins_nothing_more(opened: Open, tmp_path: Path) -> None:
    todo = Listed(*(Job("rest", (f"job{number}",)) for number in range(5)))

    def interrupt() -> None:
        for name in ("job0", "job1"):
            wait_for(tmp_path / name)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with opened(2) as cluster:
        thread.start()
        assert run_jobs(cluster, functools.partial(errands(cluster, tmp_path)), todo)
    thread.join()
    assert sorted(todo.ended) == [("done", "job0, interrupted"), ("done", "job1, interrupted")]
