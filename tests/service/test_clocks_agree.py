"""Stages begin and end with the same events on both clocks, so that their seconds can be compared."""

from __future__ import annotations

import importlib
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from service_helpers import SMALL, loaded_text, rows_of, run_real, run_virtual

from edge.core.vocabulary import Stage, label

ROOT = Path(__file__).parents[2]
HALF_ROUND_TRIP_S = 0.2
"""Of the network slow_wire."""
SLOW = (
    SMALL.replace("users: 12, items: 40", "users: 6, items: 200")
    .replace("ideal_wire", "slow_wire")
    .replace("interval: 0.2 s", "interval: 1 s")
)
MODES = {"clear": "", "secagg-plus": "secure_aggregation: {mode: secagg-plus, clip: 1}\n"}
Rows = list[dict[str, Any]]


def what_happened(events: Rows) -> Counter[tuple[Any, ...]]:
    """Count the transfers and computations of each device and stage.

    Connections are set up in a simulation's first round alone. Whose shares come too late to be
    needed is chance.
    """
    names = ("round", "device", "stage", "direction")
    return Counter(tuple(row[name] for name in names) for row in events if row["kind"] != "handshake")


def stages_of(events: Rows) -> dict[tuple[int, int, str], tuple[float, float]]:
    """Return the first start and the last end of what belongs to each round, device and stage."""
    spans: defaultdict[tuple[int, int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in events:
        spans[row["round"], row["device"], row["stage"]].append((row["start_s"], row["end_s"]))
    return {key: (min(s for s, _ in of), max(e for _, e in of)) for key, of in spans.items()}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_stages_begin_and_end_with_the_same_events(tmp_path: Path, mode: str) -> None:
    loaded = loaded_text(tmp_path, SLOW.replace("count: 3", "count: 1") + MODES[mode])
    real, virtual = (
        run_real(loaded, tmp_path / "real", shaped=True),
        run_virtual(loaded, tmp_path / "virtual"),
    )
    happened, simulated = what_happened(rows_of(real, "events")), what_happened(rows_of(virtual, "events"))
    if mode == "secagg-plus":  # when a device computes its update tells how much data it has
        simulated = Counter({key: n for key, n in simulated.items() if key[2] != "compute"})
    assert happened == simulated
    # Half a round trip, but for rounding: these hold however late the host is.
    way_s = HALF_ROUND_TRIP_S - 1e-6
    for run in (real, virtual):
        events = rows_of(run, "events")
        for row in events:
            # A transfer lasts from where it begins to where it ends; nothing is quicker than the way.
            assert row["end_s"] - row["start_s"] >= (0.0 if row["direction"] == "none" else way_s), row
            if row["direction"] == "up":
                assert row["end_s"] == row["time_s"]
        stages = stages_of(events)
        for row in rows_of(run, "device_rounds"):
            for name in map(label, Stage):
                span = stages.get((row["round"], row["device"], name), (None, None))
                assert (row[f"{name}_start_s"], row[f"{name}_end_s"]) == span
            # The model is sent in the moment in which the acceptance arrives.
            assert row["invite_end_s"] == row["download_start_s"]
    for row in rows_of(real, "events"):
        # What ends on a device has ended half a round trip before the coordinator hears of it.
        if row["direction"] != "up":
            assert row["time_s"] - row["end_s"] >= way_s, row


@pytest.fixture
def both_clocks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("both_clocks")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_stages_take_as_long_on_both_clocks(tmp_path: Path, both_clocks: ModuleType, mode: str) -> None:
    loaded_text(tmp_path, SLOW + MODES[mode])
    # Stretched, the host is four times as fast: what it takes is in the measured times.
    real, virtual, host = both_clocks.both(tmp_path, tmp_path / "scenario.yaml", mode, 4.0)
    slack_s = 2.0 * max(host.late_s)
    compared = 0
    for name in map(label, Stage):
        found, expected = real.stage_spans(name), virtual.stage_spans(name)
        if name == "compute" and mode == "secagg-plus":
            assert not len(found)
            continue
        assert len(found) == len(expected)
        for q in (50, 95) if len(expected) else ():
            simulated_s, measured_s = np.percentile(expected, q), np.percentile(found, q)
            if simulated_s > 0.05:
                compared += 1
                assert abs(measured_s - simulated_s) <= 0.15 * simulated_s + slack_s, (name, q)
    assert compared >= 2 * 4


@pytest.mark.slow
def test_stretched_time_leaves_what_is_imitated_as_it_is(tmp_path: Path) -> None:
    loaded = loaded_text(tmp_path, SMALL.replace("count: 3", "count: 1").replace("cohort: 6", "cohort: 2"))
    (row,) = rows_of(run_real(loaded, tmp_path / "real", shaped=True, stretch=3.0), "rounds")
    # Invitation, answer, model and report travel half a round trip of 100 ms each.
    assert row["duration_s"] >= 4 * 0.05
    assert row["wall_s"] >= 3 * 4 * 0.05
