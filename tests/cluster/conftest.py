from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.cluster.base import Cluster
from coordinator.cluster.local import LocalCluster


@pytest.fixture(params=["local"])
def opened(request: pytest.FixtureRequest) -> Callable[[int], Cluster]:
    """What opens a cluster of at most so many workers, of each engine."""
    return LocalCluster
