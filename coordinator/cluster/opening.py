"""Which engine workers live on, where that is, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.cluster.base import Cluster, ClusterError
from coordinator.cluster.local import LocalCluster
from coordinator.engine.host import processors
from coordinator.scenario import EngineName


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """Where work is done.

    Attributes
    ----------
    engine : ``local``: processes of this host; ``ray``: actors of a Ray cluster.
    workers : at most so many; None: one a processor, of this host or of the cluster.
    address : of a Ray cluster that runs; see :class:`~coordinator.cluster.on_ray.RayCluster`.
    """

    engine: EngineName = "local"
    workers: int | None = None
    address: str | None = None

    def open(self) -> Cluster:
        """Return the cluster; a context manager.

        Raises
        ------
        ClusterError : there is none at the address, or the engine has no addresses.
        MissingExtraError : the engine is not installed.
        """
        if self.engine == "ray":
            from coordinator.cluster.on_ray import RayCluster  # noqa: PLC0415

            return RayCluster(self.workers, self.address)
        if self.address is not None:
            raise ClusterError("--address is that of a Ray cluster; write --engine ray, or leave it out")
        return LocalCluster(processors() if self.workers is None else self.workers)
