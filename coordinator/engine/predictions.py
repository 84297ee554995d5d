"""How long a round is going to take a device by the figures of its profile, before anything is drawn."""

from __future__ import annotations

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
    """What devices could tell of themselves: mean rates, round trips, and the speed of their processor.

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
