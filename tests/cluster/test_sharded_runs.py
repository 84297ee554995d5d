"""A run in shards survives the loss of any of them, and nothing in its results tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
from cluster_helpers import NEEDS_RAY

from coordinator.cluster.base import Cluster, Worker
from coordinator.cluster.local import LocalCluster
from coordinator.engine.progress import RunObserver
from coordinator.results.diff import diff_runs
from coordinator.results.tables.reader import open_run
from coordinator.run.on_cluster import LOSSES, ClusterShards, ShardLostError
from coordinator.run.runner import run_scenario
from coordinator.run.shards import Shard, ShardedTime
from coordinator.scenario.load import LoadedScenario, load
from coordinator.simulation.parts import Part, PartResult

Deaths: TypeAlias = Mapping[int, tuple[int, ...]]
LOST_NODE = Path(__file__).parent / "lost_node.py"
QUICKSTART = Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml"


class DyingShard(Shard):
    """A shard whose process is killed, before or after the work, the first time that it is at some rounds.

    Parameters
    ----------
    loaded : the run's scenario.
    folder : remembers the deaths.
    number, deaths : which shard it is, and the rounds in which each dies.
    """

    def __init__(self, loaded: LoadedScenario, folder: Path, number: int, deaths: Deaths) -> None:
        super().__init__(loaded)
        self._folder = folder
        self._number = number
        self._deaths = deaths.get(number, ())

    def simulate(self, part: Part) -> PartResult:
        """Simulate a part, unless it is time to die."""
        round_number = part.plan.round_number
        death = self._folder / f"{self._number}-{round_number}"
        dies = round_number in self._deaths and not death.exists()
        result = super().simulate(part) if round_number % 2 or not dies else None
        if dies or result is None:
            death.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        assert result is not None
        return result


class DyingShards(ClusterShards):
    """Shards that die in some rounds; parameters as for both."""

    def __init__(
        self, cluster: Cluster, loaded: LoadedScenario, count: int, folder: Path, deaths: Deaths
    ) -> None:
        self._folder, self._deaths = folder, deaths
        super().__init__(cluster, loaded, count)

    def _start(self, number: int, *, again: bool = False) -> Worker:
        arguments = (self._loaded, self._folder, number, self._deaths)
        return self._cluster.start(f"shard-{number}", DyingShard, *arguments, reserves=not again)


def loaded_short(rounds: int = 4) -> LoadedScenario:
    return load(QUICKSTART, [f"rounds.count={rounds}", "evaluation.every=2"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "deaths"
    made.mkdir()
    return made


def run(loaded: LoadedScenario, target: Path, conductor: ShardedTime | None = None) -> Path:
    return run_scenario(loaded, target=target, observer=RunObserver(), conductor=conductor).directory


def assert_same_run(first: Path, second: Path) -> None:
    difference = diff_runs(open_run(first), open_run(second))
    assert difference.identical
    assert difference.digests[0] == difference.digests[1] is not None
    assert (first / "model.npz").read_bytes() == (second / "model.npz").read_bytes()


def test_shards_of_any_engine_make_the_same_run(opened: Callable[[int], Cluster], tmp_path: Path) -> None:
    loaded = loaded_short()
    with opened(3) as cluster:
        sharded = run(loaded, tmp_path / "sharded", ShardedTime(shards=ClusterShards(cluster, loaded, 3)))
    assert_same_run(run(loaded, tmp_path / "whole"), sharded)


@pytest.mark.parametrize(
    "deaths",
    [{0: (1,), 1: (2,)}, pytest.param({0: (1, 3), 1: (1, 4), 2: (2, 3)}, marks=pytest.mark.slow)],
    ids=["one after the other", "together"],
)
def test_shards_that_are_killed_change_nothing(
    opened: Callable[[int], Cluster], deaths: Deaths, tmp_path: Path, folder: Path
) -> None:
    loaded = loaded_short()
    with opened(3) as cluster:
        shards = DyingShards(cluster, loaded, 3, folder, deaths)
        sharded = run(loaded, tmp_path / "sharded", ShardedTime(shards=shards))
    assert len(list(folder.iterdir())) == sum(map(len, deaths.values()))
    assert_same_run(run(loaded, tmp_path / "whole"), sharded)


@pytest.mark.slow
def test_a_run_goes_on_without_a_node_that_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason=NEEDS_RAY)
    command = [sys.executable, str(LOST_NODE), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "shard 1 was lost" in done.stderr or "shard 0 was lost" in done.stderr
    assert_same_run(tmp_path / "whole", tmp_path / "shards")


def test_a_shard_that_is_lost_too_often_ends_the_run(tmp_path: Path, folder: Path) -> None:
    loaded = loaded_short()
    with LocalCluster(2) as cluster:
        shards = DyingShards(cluster, loaded, 2, folder, {1: (1, 2, 3)})
        with pytest.raises(ShardLostError, match=rf"shard 1 of 2 was lost {LOSSES} times, the last time by"):
            run(loaded, tmp_path / "run", ShardedTime(shards=shards))
    (left,) = tmp_path.glob("run*")
    assert open_run(left).manifest["status"] == "failed"
