"""What is Ray's own: places for workers, nodes, logs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from cluster_helpers import NEEDS_RAY, Counter

from coordinator.cluster.base import Cluster, ClusterError
from coordinator.cluster.hosting import unpack
from coordinator.cluster.on_ray import RayCluster, _Actor, share_of_processors
from coordinator.engine.host import host_facts


@pytest.fixture
def two(ray_here: None) -> Iterator[Cluster]:
    with RayCluster(2) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("processors", "workers", "share"),
    [
        ([2.0], 1, 1.0),
        ([2.0], 2, 1.0),
        ([2.0], 3, 0.6666),
        ([2.0], 7, 0.2857),
        # Of 6/7 of a processor, each node has room for three.
        ([3.0, 3.0], 7, 0.75),
        ([16.0, 0.0], 4, 1.0),
        ([0.0], 4, 0.0),
    ],
)
def test_all_workers_find_a_place(processors: list[float], workers: int, share: float) -> None:
    assert share_of_processors(processors, workers) == share
    assert share == 0.0 or sum(int(of / share + 1e-9) for of in processors) >= workers


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_more_workers_than_processors_live_at_a_time() -> None:
    with RayCluster(5) as cluster:
        workers = [cluster.start(f"w-{number}", Counter) for number in range(5)]
        assert len(set(cluster.gather(cluster.call_all(workers, "process")))) == 5


@pytest.mark.slow
def test_lines_on_standard_error_have_the_name_of_their_worker(
    two: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = two.start("shard-7", Counter)
    (process,) = two.gather([two.call(worker, "process")])
    two.gather([two.call(worker, "write", "one\n")])
    written, until_s = "", time.monotonic() + 60
    # Ray passes them on when it finds them.
    while f"(shard-7 pid={process})" not in written and time.monotonic() < until_s:
        written += capfd.readouterr().err
        time.sleep(0.1)
    assert f"(shard-7 pid={process})" in written


@pytest.mark.parametrize(
    ("folder", "version", "said"),
    [
        ("/nowhere", str(host_facts()["recfleet"]), r"^one: /nowhere: No such file or directory on "),
        ("/", "0.0.1", r"^one: .+ has recfleet .+; install 0\.0\.1, the version that calls it$"),
    ],
)
def test_a_node_on_which_nothing_would_be_found_is_refused(folder: str, version: str, said: str) -> None:
    actor = _Actor("one")
    answers = [actor.make(b"never read", (), folder, version, ()), actor.answer(b"never read")]
    for answer in answers:
        with pytest.raises(ClusterError, match=said):
            unpack(answer).result()


@pytest.mark.slow
def test_nobody_at_the_address() -> None:
    pytest.importorskip("ray", reason=NEEDS_RAY)
    program = (
        "from coordinator.cluster.base import ClusterError\n"
        "from coordinator.cluster.on_ray import RayCluster\n"
        "try:\n"
        "    RayCluster(1, '127.0.0.1:1')\n"
        "except ClusterError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "no Ray cluster at '127.0.0.1:1' that takes this process" in done.stdout, done.stderr
