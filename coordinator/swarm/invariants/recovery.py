"""Recovery: when the last fault is over, a healthy fleet closes rounds again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from coordinator.engine.stop_reason import StopReason
from coordinator.scenario.faults_section import Fault
from coordinator.scenario.schema import ScenarioSettings
from coordinator.swarm.trial import Trial, rows
from edge.core.vocabulary import RoundOutcome, label

_PATIENT_S: Final = 60.0
"""A deadline that healthy devices keep."""
_SURE_QUORUM: Final = 0.6
"""Share of the wanted reports that healthy devices send in any case."""
_SLOW_NETWORKS: Final = frozenset(
    {"edge_2g", "lorawan_sf7", "nbiot", "geo_satellite", "3g_slow", "4g_driving", "3g_umts_driving"}
)
_SMALL_DEVICES: Final = frozenset({"mcu_esp32c3", "mcu_esp32s3"})
_HEALTHY_FLEETS: Final = frozenset({"enterprise_wifi", "uk_mobile_2024", "uk_rural_2024", "iot_gateways"})


def recovers(trial: Trial) -> Iterator[str]:
    """Check that of the rounds after the last fault one is completed, where the fleet is healthy."""
    scenario = trial.loaded.scenario
    if trial.stop not in (StopReason.LAST_ROUND, StopReason.TIME_LIMIT) or not is_healthy(scenario):
        return
    over_s = max((ends_s(fault) for fault in scenario.faults), default=0.0)
    stormy = {phase for fault in scenario.faults for phase in fault.during or ()}
    quiet = [
        row
        for row in rows(trial.tables, "rounds", "round", "phase", "start_s", "outcome")
        if row["phase"] not in stormy and row["start_s"] >= over_s
    ]
    # Devices that the faults held up may still be at work in the first of them.
    if len(quiet) < 2:
        return
    if not any(row["outcome"] == label(RoundOutcome.COMPLETED) for row in quiet):
        yield (
            f"the last fault ended at {over_s:g} s; of the {len(quiet)} rounds after it none was completed"
        )


def ends_s(fault: Fault) -> float:
    """Return when a fault has struck for the last time, seconds; infinity if it goes on in some phase.

    A fault of a phase is over with the phase, which is not a time: 0.
    """
    if fault.during is not None:
        return 0.0
    if fault.at is None or fault.kind.lingers:
        return math.inf
    return fault.window_s[1]


def is_healthy(scenario: ScenarioSettings) -> bool:
    """Return whether rounds of a scenario can be relied on to close when nothing goes wrong on purpose."""
    fleet, rounds = scenario.fleet, scenario.rounds
    if rounds.pacing.mode == "tiers":
        return False  # who never answered is slow, and a tier of such devices may be asked for long
    if fleet.availability not in (None, "always_on") or (fleet.mix and fleet.availability is None):
        return False
    if fleet.mix is not None and fleet.mix not in _HEALTHY_FLEETS and fleet.networks is None:
        return False
    if fleet.groups is not None or fleet.link_trace is not None:
        return False  # written by hand: nothing is known of how fast or how often there such devices are
    if _SLOW_NETWORKS & set(fleet.networks or ()) or _SMALL_DEVICES & set(fleet.devices or ()):
        return False
    drained = any(fault.kind.lingers for fault in scenario.faults)
    shortest_s = min(scenario.deadline_in(phase) for phase in ("", *(one.name for one in scenario.phases)))
    patient = shortest_s >= _PATIENT_S and all(
        section.mode == "off" or min(
            section.stage_deadlines.share_keys,
            section.stage_deadlines.masked_input,
            section.stage_deadlines.consistency,
            section.stage_deadlines.unmask,
        ) >= _PATIENT_S / 4
        for section in (scenario.secure_in(phase.name) for phase in scenario.phases)
    )  # fmt: skip
    narrow = min(scenario.coordinator.up_rate, scenario.coordinator.down_rate) < 1e6
    return patient and not drained and not narrow and rounds.quorum_reports <= _SURE_QUORUM * rounds.cohort
