"""The fleet: a row of arrays per device, and what a round will be like for those that are chosen.

A device is a row until it is invited. Nothing here loops over devices, and nothing is computed for the whole
fleet after it has been made: a round costs what its invited devices cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import FleetNames
from device_profiles.profile import DeviceProfile, NetworkProfile
from device_profiles.traces import RateTrace
from edge.core.rng import hashed_uniform, stream_key
from edge.core.vocabulary import Reason, Stage
from edge.device.availability.base import AvailabilityModel
from edge.device.compute_model import ComputeSpecs, CryptoSpecs, RadioSpecs, fits, task_seconds
from edge.device.participation import UNLIMITED, AnsweredRounds
from edge.device.simulated import CohortPlan
from edge.learning.base import Work
from edge.network.cohort import LinkSpecs
from edge.network.conditions import LinkConditions, MixedConditions
from edge.network.pace import Conditions
from edge.network.playback import TracePlayback
from edge.network.slow_rates import device_factors

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DAY_S = 86_400.0
"""Batteries are full again at midnight UTC, an assumption; ``battery-gated`` availability models charging."""
FRAMEWORK_STEP_S = 1e-3
"""c_fw of the compute model: what an on-device runtime spends on a training step besides its operations.
An assumption; op overheads come from the profiles."""


@dataclass(frozen=True, slots=True)
class NetworkTable:
    """The network profiles of a fleet by code, float64 [networks] each."""

    down_bps: Floats
    up_bps: Floats
    rtt_s: Floats
    loss: Floats
    jitter_s: Floats
    sigma_log: Floats
    rho_1s: Floats
    slow_sigma_log: Floats
    slow_time_s: Floats
    device_sigma_log: Floats
    outage_fraction: Floats
    outage_mean_s: Floats
    connect_success: Floats
    duty_cycle: Floats

    @classmethod
    def of(cls, profiles: list[NetworkProfile]) -> NetworkTable:
        """Return a row per profile."""

        def column(values: list[float]) -> Floats:
            return np.array(values, dtype=np.float64)

        outages = [profile.outage for profile in profiles]
        slow = [profile.slow_rate for profile in profiles]
        return cls(
            down_bps=column([p.down_bps for p in profiles]),
            up_bps=column([p.up_bps for p in profiles]),
            rtt_s=column([p.rtt_s for p in profiles]),
            loss=column([p.loss for p in profiles]),
            jitter_s=column([p.jitter_s for p in profiles]),
            sigma_log=column([p.rate_sigma_log for p in profiles]),
            rho_1s=column([p.rate_rho_1s for p in profiles]),
            slow_sigma_log=column([0.0 if rate is None else rate.sigma_log for rate in slow]),
            slow_time_s=column([1.0 if rate is None else rate.time_s for rate in slow]),
            device_sigma_log=column([p.device_sigma_log for p in profiles]),
            outage_fraction=column([0.0 if outage is None else outage.fraction for outage in outages]),
            outage_mean_s=column([1.0 if outage is None else outage.mean_s for outage in outages]),
            connect_success=column([p.connect_success for p in profiles]),
            duty_cycle=column([p.duty_cycle for p in profiles]),
        )

    def following(self, traces: Sequence[RateTrace | None]) -> NetworkTable:
        """Return the table with the mean rates, round trip and loss of a trace in each row that follows one.

        ``traces`` has one for each row, or None.
        """
        rows = np.array([trace is not None for trace in traces])
        recorded = [trace for trace in traces if trace is not None]

        def mean(trace: RateTrace, values: Floats) -> float:
            return float(np.average(values, weights=np.diff(np.append(trace.times_s, trace.period_s))))

        def column(before: Floats, values: list[float]) -> Floats:
            after = before.copy()
            after[rows] = values
            return after

        nothing, all_of_it = [0.0] * len(recorded), [1.0] * len(recorded)
        return replace(
            self,
            down_bps=column(self.down_bps, [t.bits_until(t.period_s, "down") / t.period_s for t in recorded]),
            up_bps=column(self.up_bps, [t.bits_until(t.period_s, "up") / t.period_s for t in recorded]),
            rtt_s=column(self.rtt_s, [mean(t, t.rtt_s) for t in recorded]),
            loss=column(self.loss, [mean(t, t.loss) for t in recorded]),
            sigma_log=column(self.sigma_log, nothing),
            slow_sigma_log=column(self.slow_sigma_log, nothing),
            device_sigma_log=column(self.device_sigma_log, nothing),
            outage_fraction=column(self.outage_fraction, nothing),
            duty_cycle=column(self.duty_cycle, all_of_it),
        )


@dataclass(frozen=True, slots=True)
class Makeup:
    """What the devices of a fleet are: a code into the profiles for each.

    Attributes
    ----------
    devices, networks : the profiles, each once.
    device_class, network : uint8[n], of each device.
    traces : the recorded links; those of one stand in for rates, round trip and loss of a network.
    link : of each kind of link its network, and its trace or -1: indices into ``networks`` and ``traces``.
    link_kind : uint8[n], the kind of link of each device.
    """

    devices: tuple[DeviceProfile, ...]
    networks: tuple[NetworkProfile, ...]
    device_class: npt.NDArray[np.uint8]
    network: npt.NDArray[np.uint8]
    traces: tuple[RateTrace, ...]
    link: tuple[tuple[int, int], ...]
    link_kind: npt.NDArray[np.uint8]


class Fleet:
    """All devices, as arrays.

    Parameters
    ----------
    seed : the run's seed.
    makeup : what each device is.
    regions : uint8 [n], the region of each device, an index into ``region_names``.
    availability : makes the model of when devices can be reached, given a function that returns each
        device's battery in joules, float64 [n], NaN on mains power.
    rounds : how many rounds a device answers at most.
    """

    def __init__(
        self,
        seed: int,
        makeup: Makeup,
        regions: npt.NDArray[np.uint8],
        region_names: tuple[str, ...],
        availability: Callable[[Callable[[], Floats]], AvailabilityModel],
        rounds: int = UNLIMITED,
    ) -> None:
        device_profiles, network_profiles = list(makeup.devices), list(makeup.networks)
        self.n = n = len(makeup.device_class)
        self.names = FleetNames(
            classes=tuple(profile.name for profile in device_profiles),
            networks=tuple(profile.name for profile in network_profiles),
            regions=region_names,
        )
        self.device_class = makeup.device_class
        self.network = makeup.network
        self.link_kind = makeup.link_kind
        """The kind of link of a device, a row of :attr:`network_table`."""
        self.region = regions
        self.busy = np.zeros(n, dtype=np.bool_)
        """Whether a device takes part in a round now."""
        self.joined: npt.NDArray[np.bool_] | None = None
        """Whether a device has a session on the real clock; None in a simulation, where all can be asked."""
        self.bare = np.zeros(n, dtype=np.bool_)
        """Whether a device still lacks what never changes and is sent only once; only where there is such."""
        self.connected = np.zeros(n, dtype=np.bool_)
        """Whether the connection of a device is open; only ever where connections are kept."""
        self.answered = AnsweredRounds(n, rounds)
        """The rounds that simulated devices have answered, in their own memory."""
        self.strikes = np.zeros(n, dtype=np.uint8)
        """In how many rounds a device broke the protocol or reported what cannot be; 255 are the most."""
        self.suspended = np.zeros(n, dtype=np.bool_)
        """Whether that was too often: such a device is not invited any more."""
        self._spent_j = np.zeros(n, dtype=np.float32)
        """Energy spent on rounds on the day in :attr:`_spent_on`, joules."""
        self._spent_on = np.zeros(n, dtype=np.uint16)
        self.compute_specs = ComputeSpecs.of(device_profiles, all_threads=False)
        self.crypto_specs = CryptoSpecs.of(device_profiles)
        traces = [None if trace < 0 else makeup.traces[trace] for _, trace in makeup.link]
        of_links = NetworkTable.of([network_profiles[network] for network, _ in makeup.link])
        self.network_table = of_links.following(traces)
        self.radio_specs = RadioSpecs.of([profile.radio for profile in network_profiles])
        self.active_power_w = np.array([p.active_power_w for p in device_profiles])
        self.battery_j = np.array([math.inf if p.battery_j is None else p.battery_j for p in device_profiles])
        self.availability = availability(self._batteries_j)
        self._ram_bytes = np.array([p.ram_bytes for p in device_profiles], dtype=np.int64)
        self._seed = seed
        self._traces = makeup.traces
        self._trace_of = np.array([trace for _, trace in makeup.link], dtype=np.int64)
        with np.errstate(divide="ignore"):
            self._log_failure = np.log1p(-self.network_table.connect_success)
        self._rates_differ = bool(self.network_table.device_sigma_log.any())
        self._flaky = (self.network_table.outage_fraction > 0.0) | (self._trace_of >= 0)
        self._tail_s = self.radio_specs.tail_s + self.radio_specs.tail2_s
        self._noise_key = stream_key(seed, "device", "compute")
        self._connect_key = stream_key(seed, "link", "connect")
        self._own_rate_key = stream_key(seed, "link", "device-rate")

    def _batteries_j(self) -> Floats:
        return np.where(np.isinf(self.battery_j), np.nan, self.battery_j)[self.device_class]

    def spend(self, ids: Ids, joules: Floats, now_s: float) -> None:
        """Take the energy of a round out of the batteries of ``ids`` (int64 [n])."""
        ordered = np.sort(ids)
        if (ordered[1:] == ordered[:-1]).any():
            # A device may be there twice where rounds overlap.
            ids, place = np.unique(ids, return_inverse=True)
            joules = np.asarray(np.bincount(place, joules), dtype=np.float64)
        self._spent_j[ids] = self._drained_j(ids, now_s) + joules
        self._spent_on[ids] = int(now_s // DAY_S)

    def strike(self, ids: Ids, allowed: int) -> Ids:
        """Count a strike for each of ``ids`` (int64 [n], each once); return who is suspended by it, int64.

        ``allowed`` is the number of strikes that suspends a device.
        """
        self.strikes[ids] = np.minimum(self.strikes[ids], np.iinfo(np.uint8).max - 1) + 1
        found = ids[(self.strikes[ids] >= allowed) & ~self.suspended[ids]]
        self.suspended[found] = True
        return found

    def memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return what rounds have changed for good, arrays by name: batteries, and who was struck."""
        return {
            "spent_j": self._spent_j,
            "spent_on": self._spent_on,
            "strikes": self.strikes,
            "suspended": self.suspended,
        }

    def recall(self, memory: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with what :meth:`memory` returned."""
        self._spent_j[:], self._spent_on[:] = memory["spent_j"], memory["spent_on"]
        if "strikes" in memory:  # a run that was begun before there were any has none
            self.strikes[:], self.suspended[:] = memory["strikes"], memory["suspended"]

    def device_rows(self, ids: Ids) -> dict[str, npt.NDArray[Any]]:
        """Return what taking part changes of the devices ``ids`` (int64 [n]), arrays [n] by name."""
        return {name: array[ids] for name, array in self._changing().items()}

    def put_device_rows(self, ids: Ids, rows: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what :meth:`device_rows` returned."""
        for name, array in self._changing().items():
            array[ids] = rows[name]

    def _changing(self) -> dict[str, npt.NDArray[Any]]:
        answered = self.answered
        return {
            "spent_j": self._spent_j,
            "spent_on": self._spent_on,
            "bare": self.bare,
            "connected": self.connected,
            "last_round": answered.last_round,
            "last_evaluation": answered.last_evaluation,
            "rounds": answered.rounds,
        }

    def _drained_j(self, ids: Ids, now_s: float) -> Floats:
        """Return what rounds took out of each battery since it was full: every device is charged at night."""
        today = self._spent_on[ids] == int(now_s // DAY_S)
        return np.where(today, self._spent_j[ids], 0.0).astype(np.float64)

    def drain(self, ids: Ids, level: float, now_s: float) -> Floats:
        """Let the batteries of ``ids`` fall to a level, a share of what they hold, if they are above it.

        Returns how long each computes on what is left, seconds, float64 [n]; ``inf`` on mains power.
        """
        code = self.device_class[ids]
        on_battery = np.isfinite(self.battery_j[code])
        drained, full_j = ids[on_battery], self.battery_j[code[on_battery]]
        left_j = np.full(len(ids), np.inf)
        left_j[on_battery] = np.minimum(full_j - self._drained_j(drained, now_s), full_j * level)
        self._spent_j[drained] = full_j - left_j[on_battery]
        self._spent_on[drained] = int(now_s // DAY_S)
        return np.asarray(np.maximum(left_j, 0.0) / self.active_power_w[code])

    def memory_fits(self, ids: Ids, memory_bytes: Ids, factor: float) -> npt.NDArray[np.bool_]:
        """Return whether each task fits in what ``factor`` leaves of the memory of ``ids``, bool [n]."""
        return fits(memory_bytes, (self._ram_bytes[self.device_class[ids]] * factor).astype(np.int64))

    def link_specs(self, ids: Ids) -> LinkSpecs:
        """Return what the links of the devices ``ids`` (int64 [n]) are like."""
        code, radio_code = self.link_kind[ids], self.network[ids]
        table, radio = self.network_table, self.radio_specs
        share = table.duty_cycle[code]
        if self._rates_differ:
            share = share * device_factors(self._own_rate_key, ids, table.device_sigma_log[code])
        return LinkSpecs(
            down_bps=table.down_bps[code] * share,
            up_bps=table.up_bps[code] * share,
            rtt_s=table.rtt_s[code],
            loss=table.loss[code],
            jitter_s=table.jitter_s[code],
            promotion_s=radio.promotion_s[radio_code],
            tail_s=self._tail_s[radio_code],
            flaky=self._flaky[code],
        )

    def link_conditions(self, ids: Ids) -> Conditions:
        """Return what changes about the links of ``ids`` (int64 [n]) over time, by place in ``ids``."""
        if not self._traces:
            return self._conditions_of(0, ids)
        # The links that follow no trace are the last kind.
        trace = self._trace_of[self.link_kind[ids]]
        kinds, kind = np.unique(np.where(trace < 0, len(self._traces), trace), return_inverse=True)
        parts = [self._conditions_of(int(code), ids[kind == part]) for part, code in enumerate(kinds)]
        return parts[0] if len(parts) == 1 else MixedConditions(kind, parts)

    def _conditions_of(self, trace: int, ids: Ids) -> Conditions:
        if trace < len(self._traces):
            uniform = hashed_uniform(stream_key(self._seed, "link", "trace-offset"), ids)
            followed = self._traces[trace]
            return TracePlayback(followed, uniform * followed.period_s)
        table, code = self.network_table, self.link_kind[ids]
        return LinkConditions(
            self._seed,
            ids,
            sigma_log=table.sigma_log[code],
            rho_1s=table.rho_1s[code],
            outage_fraction=table.outage_fraction[code],
            outage_mean_s=table.outage_mean_s[code],
            slow_sigma_log=table.slow_sigma_log[code],
            slow_time_s=table.slow_time_s[code],
        )

    def compute_seconds(self, ids: Ids, work: Work, round_number: int) -> Floats:
        """Return how long the computation of a round takes the devices ``ids`` (int64 [n]), float64 [n]."""
        return task_seconds(
            work,
            self.compute_specs.take(self.device_class[ids]),
            framework_step_s=FRAMEWORK_STEP_S,
            busy_s=np.zeros(len(ids)),
            noise_key=self._noise_key,
            device_ids=ids,
            task=round_number,
        )

    def plan(
        self,
        ids: Ids,
        now_s: float,
        round_number: int,
        work: Work,
        examples: Ids,
        *,
        cryptography: bool = False,
        shielded: npt.NDArray[np.bool_] | None = None,
    ) -> CohortPlan:
        """Return what the round will be like for the devices ``ids`` (int64 [n]), invited at ``now_s``.

        ``cryptography`` asks for what that costs each of them, too; ``shielded`` (bool [n]) says who reports
        in the clear all the same.
        """
        code = self.device_class[ids]
        seconds = self.compute_seconds(ids, work, round_number)
        empty = self._drained_j(ids, now_s) >= self.battery_j[code]
        too_large = ~fits(work.memory_bytes, self._ram_bytes[code])
        objections = self.answered.objections(ids, round_number)
        obstacle = objections.astype(np.int8)
        obstacle[empty] = Reason.BATTERY.value
        shortage = np.zeros(len(ids), np.int8)
        shortage[examples == 0] = Reason.NO_DATA.value
        shortage[too_large] = Reason.MEMORY.value
        dropout = self.availability.dropout(ids, round_number)
        drop_stage = dropout.stage
        if cryptography:
            # The masked input is what is as long as a report.
            masked = drop_stage == Stage.REPORT.value
            if shielded is not None:
                masked &= ~shielded
            drop_stage = np.where(masked, np.int8(Stage.MASKED_INPUT), drop_stage)
        leaves_s = self.availability.until(ids, now_s)
        return CohortPlan(
            reachable=leaves_s > now_s,
            failed_connects=self._failed_connects(ids, round_number),
            computes=~empty
            & ~too_large
            & (objections == 0)
            & (examples > 0)
            & ((drop_stage < 0) | (drop_stage > Stage.COMPUTE.value)),
            obstacle=obstacle,
            shortage=shortage,
            compute_s=seconds,
            drop_stage=drop_stage,
            drop_fraction=dropout.fraction,
            leaves_s=leaves_s,
            bare=self.bare[ids],
            crypto=self.crypto_specs.take(code).rows() if cryptography else [],
            shielded=[] if shielded is None else shielded.tolist(),
        )

    def _failed_connects(self, ids: Ids, round_number: int) -> npt.NDArray[np.int64]:
        """Return how many attempts to connect fail before one succeeds (geometric), int64 [n]."""
        uniform = hashed_uniform(self._connect_key, ids, round_number)
        # Where every attempt succeeds the divisor is minus infinity.
        return np.floor(np.log(uniform) / self._log_failure.take(self.link_kind[ids])).astype(np.int64)
