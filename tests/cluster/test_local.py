"""What processes of this host do besides."""

from __future__ import annotations

import pytest
from cluster_helpers import Counter

from coordinator.cluster.base import ClusterError, WorkerLostError
from coordinator.cluster.local import LocalCluster
from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.host import processors


def test_what_was_returned_before_the_end_is_not_lost() -> None:
    with LocalCluster(1) as cluster:
        worker = cluster.start("one", Counter)
        calls = [
            cluster.call(worker, method, number) for method, number in (("add", 1), ("die", 7), ("add", 1))
        ]
        for _ in cluster.as_completed(calls):
            pass
        assert calls[0].result() == 1
        for call in calls[1:]:
            with pytest.raises(WorkerLostError, match="exit code 7"):
                call.result()


def test_lines_on_standard_error_begin_with_the_name_of_their_worker(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with LocalCluster(1) as cluster:
        worker = cluster.start("shard-7", Counter)
        cluster.gather([cluster.call(worker, "write", text) for text in ("one\ntw", "o\n\nthree\n")])
    assert capfd.readouterr().err.splitlines() == [
        "shard-7: one", "shard-7: two", "shard-7: ", "shard-7: three",
    ]  # fmt: skip


def test_one_worker_a_processor_unless_it_is_said() -> None:
    assert [ClusterChoice(workers=number).open().limit for number in (None, 3)] == [processors(), 3]


def test_an_address_is_that_of_another_engine() -> None:
    with pytest.raises(ClusterError, match="write --engine ray, or leave it out"):
        ClusterChoice(address="10.0.0.1:6379").open()
