"""Partial work: a device takes as many of its local steps as its deadline allows.

A device plans to have its report with the coordinator within ``margin`` of the deadline. It subtracts what
invitation, model and report are going to take by what its link promises, and fills the rest with steps: at
its own speed of the day, which it notices while it computes. What the link does beyond its promise (loss,
outages, congestion) can still make it late. It takes one step at least, and what does not come in steps
(fitting user factors, a mask) is always done.

The update is what those steps give, weighed by the share of the work that was done, as FedProx (Li et al.
2020, "Federated Optimization in Heterogeneous Networks") allows partial work and the weighting by steps of
FedNova (Wang et al. 2020) suggests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coordinator.engine.fleet import Fleet
from coordinator.engine.predictions import Predictions
from coordinator.engine.workload import Workload

Ids = npt.NDArray[np.int64]


class PartialWork:
    """Says how many local steps devices take.

    Parameters
    ----------
    fleet, workload, predictions : the devices, what they compute, and what they expect of their links.
    planned_s : the part of the deadline that a device plans to use, seconds.
    """

    def __init__(self, fleet: Fleet, workload: Workload, predictions: Predictions, planned_s: float) -> None:
        self._fleet = fleet
        self._workload = workload
        self._predictions = predictions
        self._planned_s = planned_s

    def steps(self, ids: Ids, round_number: int) -> Ids:
        """Return how many steps each of the devices ``ids`` (int64 [n]) takes in a round, int64 [n]."""
        full = self._workload.local_steps(ids)
        assert full is not None, "the scenario was checked"
        left_s = self._planned_s - self._predictions.link_seconds(ids)
        one = np.minimum(full, 1)
        least_s = self._fleet.compute_seconds(ids, self._workload.work(ids, one), round_number)
        most_s = self._fleet.compute_seconds(ids, self._workload.work(ids), round_number)
        # Time is convex in steps, for a hot device slows down: below the straight line between the two.
        step_s = (most_s - least_s) / np.maximum(full - 1, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.floor(np.where(most_s <= left_s, full, (left_s - least_s) / step_s))
        return np.asarray(np.clip(1 + np.nan_to_num(more), one, full), np.int64)
