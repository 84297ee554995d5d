"""Durations of a round by the figures of a device's profile, and partial work, which follows from them.

Partial work: a device takes as many of its local steps as its deadline allows. It plans to have its report
with the coordinator within ``margin`` of the deadline. It subtracts what invitation, model and report are
going to take by what its link promises, and fills the rest with steps: at its own speed of the day, which it
notices while it computes. What the link does beyond its promise (loss, outages, congestion) can still make it
late. It takes one step at least, and what does not come in steps (fitting user factors, a mask) is always
done.

The update is what those steps give, weighed by the share of the work that was done, as FedProx (Li et al.
2020, "Federated Optimization in Heterogeneous Networks") allows partial work and the weighting by steps of
FedNova (Wang et al. 2020) suggests.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coordinator.engine.fleet import FRAMEWORK_STEP_S, Fleet
from coordinator.engine.workload import Workload
from edge.device.compute_model import step_seconds, throttled_seconds
from edge.learning.base import Work
from edge.network.cohort import small_round_trip_array
from edge.network.tcp import data_time_array

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Predictions:
    """Expected durations from public figures of devices: mean rates, round trips, and processor speed.

    Loss, jitter, outages, congestion and the noise of computations are not foreseen.

    Parameters
    ----------
    fleet, workload : the devices and what they compute.
    model_bytes : what is downloaded in every round.
    handshakes : round trips that opening a connection takes.
    """

    def __init__(self, fleet: Fleet, workload: Workload, model_bytes: int, handshakes: int) -> None:
        self._fleet = fleet
        self._workload = workload
        self._model_bytes = model_bytes
        self._handshakes = handshakes

    def seconds(self, ids: Ids) -> Floats:
        """Return the time from an invitation to the arrival of the report, float64 [n] seconds."""
        if not len(ids):
            return np.zeros(0)
        return self.link_seconds(ids) + self.compute_seconds(ids, self._workload.work(ids))

    def link_seconds(self, ids: Ids) -> Floats:
        """Return the part of it that is spent on the link: handshake, invitation, model and report."""
        specs = self._fleet.link_specs(ids)
        down_s = small_round_trip_array(specs.down_bps, specs.rtt_s)
        up_s = small_round_trip_array(specs.up_bps, specs.rtt_s)
        upload = self._workload.algorithm.upload_spec(self._workload.examples(ids))
        report_bytes = np.zeros(len(ids))
        for array in upload:
            report_bytes += array.nbytes()
        model_bytes = np.full(len(ids), float(self._model_bytes))
        # Half a round trip each for invitation, acceptance, model and report.
        small_s = specs.promotion_s + self._handshakes * down_s + down_s + up_s
        model_s = data_time_array(model_bytes, specs.down_bps, specs.rtt_s)
        return np.asarray(small_s + model_s + data_time_array(report_bytes, specs.up_bps, specs.rtt_s))

    def compute_seconds(self, ids: Ids, work: Work) -> Floats:
        """Return the part that the computation takes of a device that is cool at its start."""
        specs = self._fleet.compute_specs.take(self._fleet.device_class[ids])
        step_s = step_seconds(work, specs, framework_step_s=FRAMEWORK_STEP_S)
        return throttled_seconds(
            step_s * work.steps,
            np.zeros(len(ids)),
            specs.thermal_floor,
            specs.thermal_onset_s,
            specs.thermal_tau_s,
        )


class PartialWork:
    """Says how many local steps devices take.

    Parameters
    ----------
    fleet, workload, predictions : the devices, what they compute, and what they expect of their links.
    planned_s : returns the part of the deadline that a device plans to use in the rounds of a phase, seconds.
    """

    def __init__(
        self,
        fleet: Fleet,
        workload: Workload,
        predictions: Predictions,
        planned_s: Callable[[str], float],
    ) -> None:
        self._fleet = fleet
        self._workload = workload
        self._predictions = predictions
        self._planned_s = planned_s

    def steps(self, ids: Ids, round_number: int, phase: str) -> Ids:
        """Return how many steps each of the devices ``ids`` (int64 [n]) takes in a round, int64 [n]."""
        full = self._workload.local_steps(ids)
        assert full is not None, "the scenario was checked"
        left_s = self._planned_s(phase) - self._predictions.link_seconds(ids)
        one = np.minimum(full, 1)
        least_s = self._fleet.compute_seconds(ids, self._workload.work(ids, one), round_number)
        most_s = self._fleet.compute_seconds(ids, self._workload.work(ids), round_number)
        # Time is convex in steps, for a hot device slows down: below the straight line between the two.
        step_s = (most_s - least_s) / np.maximum(full - 1, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.floor(np.where(most_s <= left_s, full, (left_s - least_s) / step_s))
        return np.asarray(np.clip(1 + np.nan_to_num(more), one, full), np.int64)
