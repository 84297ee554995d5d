"""Which engine workers live on, and how many there are."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from coordinator.cluster.base import Cluster
from coordinator.cluster.local import LocalCluster
from coordinator.engine.host import processors
from device_profiles.dataclass import dataclass

EngineName: TypeAlias = Literal["local"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """Where work is done.

    Attributes
    ----------
    engine : ``local``: processes of this host.
    workers : at most so many; None: one a processor.
    """

    engine: EngineName = "local"
    workers: int | None = None

    def open(self) -> Cluster:
        """Return the cluster; a context manager."""
        return LocalCluster(processors() if self.workers is None else self.workers)
