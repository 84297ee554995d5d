"""What every engine does alike: starting workers, calling them, losing them, ending them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from cluster_helpers import Broken, Counter, wait_for

from coordinator.cluster.base import Cluster, WorkerLostError
from coordinator.cluster.hosting import WorkerError
from edge.core.errors import LocalProtocolError

Open = Callable[[int], Cluster]


@pytest.fixture
def two(opened: Open) -> Iterator[Cluster]:
    with opened(2) as cluster:
        yield cluster


def test_workers_keep_their_state_and_answer_in_order(two: Cluster) -> None:
    first, second = two.start("first", Counter, 10), two.start("second", Counter)
    calls = [two.call(worker, "add", number) for number in (1, 2) for worker in (first, second)]
    assert two.gather(calls) == [11, 1, 13, 3]
    assert two.gather(two.call_all([first, second], "add", 4)) == [17, 7]
    ids = two.gather(two.call_all([first, second], "process"))
    assert len({*ids, os.getpid()}) == 3


def test_arrays_come_back_equal_and_writable(two: Cluster) -> None:
    worker = two.start("one", Counter)
    sent = np.arange(300_000.0)
    (received,) = two.gather([two.call(worker, "echo", sent)])
    np.testing.assert_array_equal(received, sent)
    received[0] = 1.0


def test_large_requests_and_answers_do_not_wait_for_each_other(two: Cluster) -> None:
    worker = two.start("one", Counter)
    calls = [two.call(worker, "echo", bytes(3_000_000)) for _ in range(4)]
    assert [len(value) for value in two.gather(calls)] == [3_000_000] * 4


def test_no_more_workers_than_asked_for(two: Cluster) -> None:
    two.start("first", Counter)
    second = two.start("second", Counter)
    with pytest.raises(LocalProtocolError, match="third would be one worker more than the 2 asked for"):
        two.start("third", Counter)
    two.stop(second)
    third = two.start("third", Counter)
    assert two.gather([two.call(third, "add", 1)]) == [1]
    assert [worker.name for worker in two.workers] == ["first", "third"]


def test_an_error_is_raised_where_the_result_is_asked_for(two: Cluster) -> None:
    worker = two.start("one", Counter)
    failing, fine = two.call(worker, "fail", "far away"), two.call(worker, "add", 1)
    with pytest.raises(LocalProtocolError, match="wait for it first"):
        failing.result()
    with pytest.raises(ValueError, match="far away") as raised:
        two.gather([failing])
    assert "in fail" in str(raised.value.__cause__)
    assert two.gather([fine]) == [1]


def test_what_cannot_be_sent_says_what_it_was(two: Cluster) -> None:
    worker = two.start("one", Counter)
    with pytest.raises(WorkerError, match="nobody else knows this class"):
        two.gather([two.call(worker, "fail_in_a_way_of_its_own")])
    with pytest.raises(WorkerError, match=r"cannot be sent: TypeError: .*lock"):
        two.gather([two.call(worker, "unsendable")])
    assert two.gather([two.call(worker, "add", 1)]) == [1]


def test_a_worker_that_cannot_be_made_fails_every_call(two: Cluster) -> None:
    worker = two.start("broken", Broken)
    call = two.call(worker, "add", 1)
    for each in (worker.started, call):
        with pytest.raises(ValueError, match="it cannot be made"):
            two.gather([each])


def test_a_worker_that_is_killed_is_lost_alone(two: Cluster) -> None:
    first, second = two.start("first", Counter), two.start("second", Counter)
    (process,) = two.gather([two.call(first, "process")])
    os.kill(process, signal.SIGKILL)
    calls = [two.call(first, "add", 1), two.call(second, "add", 1)]
    assert {call.worker.name for call in two.as_completed(calls)} == {"first", "second"}
    with pytest.raises(WorkerLostError, match=r"worker first was lost \(.+\)") as lost:
        calls[0].result()
    assert (lost.value.worker, lost.value.how) == ("first", first.lost)
    assert calls[1].result() == 1
    assert two.workers == (second,)
    # It has made room, and a call of it ends at once.
    assert two.wait([two.call(first, "add", 1)])[0].worker is first
    third = two.start("third", Counter)
    assert two.gather([two.call(third, "add", 5)]) == [5]


def test_the_environment_of_a_worker_is_its_own(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECFLEET_TEST_SHARED", "shared")
    first = two.start("first", Counter, environment={"RECFLEET_TEST": "1", "PYTHONHASHSEED": "11"})
    second = two.start("second", Counter)
    for name, values in (("RECFLEET_TEST", ["1", None]), ("RECFLEET_TEST_SHARED", ["shared", "shared"])):
        assert two.gather(two.call_all([first, second], "variable", name)) == values
    assert two.gather([two.call(first, "variable", "PYTHONHASHSEED")]) == ["11"]
    assert "RECFLEET_TEST" not in os.environ


def test_an_interrupt_reaches_a_worker_that_is_at_a_call(two: Cluster, tmp_path: Path) -> None:
    worker = two.start("one", Counter)
    call = two.call(worker, "until_interrupted", tmp_path / "begun")
    wait_for(tmp_path / "begun")
    two.interrupt(worker)
    assert two.gather([call]) == ["interrupted"]


def test_an_interrupt_before_a_worker_is_made_is_kept_for_it(two: Cluster, tmp_path: Path) -> None:
    worker = two.start("one", Counter)
    two.interrupt(worker)
    assert two.gather([two.call(worker, "until_interrupted", tmp_path / "begun")]) == ["interrupted"]


def test_nothing_is_left_when_a_cluster_is_closed(opened: Open) -> None:
    with opened(2) as cluster:
        workers = [cluster.start("first", Counter), cluster.start("second", Counter)]
        processes = [psutil.Process(one) for one in cluster.gather(cluster.call_all(workers, "process"))]
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    with pytest.raises(WorkerLostError, match="stopped"):
        cluster.gather([cluster.call(workers[0], "add", 1)])
