from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cluster_helpers import NEEDS_RAY

from coordinator.cluster.base import Cluster
from coordinator.cluster.local import LocalCluster
from coordinator.cluster.on_ray import RayCluster


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """Ray on this host, which all clusters of the session use: it takes seconds to start."""
    ray = pytest.importorskip("ray", reason=NEEDS_RAY)
    with RayCluster(2):
        assert ray.is_initialized()
        yield


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.slow)])
def opened(request: pytest.FixtureRequest) -> Callable[[int], Cluster]:
    """What opens a cluster of at most so many workers, of each engine."""
    if request.param == "local":
        return LocalCluster
    request.getfixturevalue("ray_here")
    return RayCluster
