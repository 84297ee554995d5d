"""A run in two shards on two nodes of Ray, one of which is lost: ``python lost_node.py FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ray.cluster_utils import Cluster as Nodes

from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.progress import RunObserver
from coordinator.run.on_cluster import sharded
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load
from coordinator.simulation.parts import Part, PartResult
from coordinator.simulation.sharded import Shards

QUICKSTART = Path(__file__).resolve().parents[2] / "scenarios" / "quickstart.yaml"
SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 2,
}


class ShardsLosingANode:
    """Shards after whose second answer a node is lost.

    Parameters
    ----------
    shards, lose : who answers, and what takes the node away.
    """

    def __init__(self, shards: Shards, lose: Callable[[], None]) -> None:
        self._shards = shards
        self._lose = lose
        self._answers = 0

    @property
    def count(self) -> int:
        """How many shards there are."""
        return self._shards.count

    def simulate(self, parts: Mapping[int, Part]) -> Mapping[int, PartResult]:
        """Simulate parts, each on its shard."""
        results = self._shards.simulate(parts)
        self._answers += 1
        if self._answers == 2:
            self._lose()
        return results


def main() -> None:
    """Run it, and once without shards."""
    folder, loaded = Path(sys.argv[1]), load(QUICKSTART, ["rounds.count=4"])
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": SOON})
    second = nodes.add_node(num_cpus=1)
    with sharded(loaded, ClusterChoice("ray", 2, nodes.address)) as conductor:
        assert conductor.shards is not None
        conductor.shards = ShardsLosingANode(
            conductor.shards, lambda: nodes.remove_node(second, allow_graceful=False)
        )
        run_scenario(loaded, target=folder / "shards", observer=RunObserver(), conductor=conductor)
    nodes.shutdown()
    run_scenario(loaded, target=folder / "whole", observer=RunObserver())


if __name__ == "__main__":
    main()
