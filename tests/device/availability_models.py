"""One model of every kind, for the tests that hold for all of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from device_profiles.availability import (
    Always,
    AvailabilityProfile,
    BatteryGated,
    Bernoulli,
    Combined,
    Diurnal,
    Exponential,
    HeavyTail,
    LogNormal,
    OnOffSessions,
    RegionalOutage,
    TraceAvailability,
)
from device_profiles.traces import AvailabilityTrace
from edge.device.availability import All, AvailabilityModel, Grouped, build

N_DEVICES: Final = 50_000
HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0

UTC_OFFSET_S: Final = (np.arange(N_DEVICES) % 25 - 11.0) * HOUR_S

TRACE: Final = AvailabilityTrace.from_sessions(
    [3, 5, 8, 13, 21],
    [
        [(100.0, 4000.5), (9000.0, 9100.25)],
        [(0.0, 500.0), (7000.0, 10_000.0)],  # one session that runs across the end of the period
        [(0.0, 77_777.7)],  # always
        [],  # never
        [(k * 61.3, k * 61.3 + 40.1) for k in range(100)],
    ],
    [10_000.0, 10_000.0, 77_777.7, 300.0, 6131.7],
)


def battery(name: str, *, idle_w: float, charge_w: float, plugged_hours: float, least: float) -> BatteryGated:
    return BatteryGated(name, 62_370.0, least, 0.1, 1.0, idle_w, charge_w, 22.0, plugged_hours)


PROFILES: Final[dict[str, AvailabilityProfile]] = {
    "always": Always("always"),
    "bernoulli": Bernoulli("bernoulli", 0.08, 0.2, 0.5, 0.3),
    "diurnal": Diurnal("diurnal", 0.15, 4.0, 2.0),
    "sessions": OnOffSessions("sessions", LogNormal(22_000.0, 0.9), LogNormal(30_000.0, 0.9)),
    "flaky": OnOffSessions("flaky", Exponential(60.0), Exponential(5.0)),
    "mixed": OnOffSessions("mixed", LogNormal(600.0, 0.0), Exponential(300.0)),
    "battery": battery("battery", idle_w=1.0, charge_w=10.0, plugged_hours=7.0, least=0.3),
    "battery-weak": battery("battery-weak", idle_w=0.9, charge_w=1.0, plugged_hours=8.0, least=0.2),
    "battery-plugged": battery("battery-plugged", idle_w=0.9, charge_w=1.0, plugged_hours=24.0, least=0.5),
    "outage": RegionalOutage("outage", 8, 7200.0, 900.0),
    "heavy-tail": HeavyTail("heavy-tail", 0.1, 0.3, 0.86),
    "trace": TraceAvailability("trace", TRACE),
}
PROFILES["combined"] = Combined(
    "combined",
    (
        OnOffSessions("part-sessions", LogNormal(600.0, 0.9), Exponential(900.0)),
        Bernoulli("part-bernoulli", 0.3, 0.2, 0.5, 0.3),
    ),
)


def model(kind: str, seed: int = 7) -> AvailabilityModel:
    if kind == "all":
        return All([model(part, seed) for part in ("mixed", "diurnal", "outage", "bernoulli", "heavy-tail")])
    if kind == "grouped":
        parts = ("diurnal", "flaky", "bernoulli", "combined")
        group = (np.arange(N_DEVICES) % 5 % len(parts)).astype(np.uint8)
        return Grouped(group, [model(part, seed) for part in parts])
    return build(PROFILES[kind], seed, utc_offset_s=UTC_OFFSET_S)


KINDS: Final = (*PROFILES, "all", "grouped")
