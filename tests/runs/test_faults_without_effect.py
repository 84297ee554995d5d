"""Faults that change nothing, of every kind in the registry: the run without them, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_helpers import run_text, tables_of

from coordinator.simulation.faults.base import FaultKind
from edge.core import plugins
from edge.core.rng import Draws

BASE = """\
format: 2
seed: 3
data: {source: synthetic-ratings, users: 40, items: 60, ratings_per_user: 10}
fleet: {mix: global_android_2024, availability: bernoulli_google}
learning: {algorithm: fedrecon, factors: 3}
rounds: {count: 3, cohort: 12, over_select: 130%, deadline: 10 s}
evaluation: {every: 3}
"""
KINDS = [name for name, entry in plugins.entries(plugins.FAULTS).items() if entry.built_in]
NEUTRAL: dict[str, dict[str, Any]] = {
    "bandwidth": {"scale": "100%"},
    "slowdown": {"factor": "1"},
    "battery_drain": {"level": "100%"},
    "memory_pressure": {"factor": "100%"},
    "poisoned_updates": {"kind": "huge-norm", "scale": "1"},
}
"""Settings with which a fault does nothing to whom it strikes; other kinds have none."""


def kind_of(name: str) -> type[FaultKind]:
    found: type[FaultKind] = plugins.get(plugins.FAULTS, name)
    return found


def run_with(folder: Path, *faults: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the digest of a run with faults, and its tables of devices by name."""
    named = [{"name": f"fault-{number}", **one} for number, one in enumerate(faults)]
    tables = tables_of(run_text(folder, f"{BASE}faults: {json.dumps(named)}\n"))
    return tables.manifest["digest"], {name: tables.read(name) for name in ("device_rounds", "events")}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    return run_with(tmp_path_factory.mktemp("calm"))


def test_lossy_links_are_among_those_of_the_run(calm: tuple[str, dict[str, Any]]) -> None:
    # Of a lost packet the moments are drawn, by another way where a fault meets the frame.
    invited = [row for row in calm[1]["events"].to_pylist() if row["kind"] == "invited"]
    assert any(row["retransmitted_bytes"] for row in invited)


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_settings_change_nothing(name: str, calm: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    assert run_with(tmp_path, {name: NEUTRAL[name]})[0] == calm[0]


def test_every_kind_that_has_neutral_settings_is_tried() -> None:
    assert {name for name in KINDS if kind_of(name).neutral is not FaultKind.neutral} == set(NEUTRAL)
    for name, settings in NEUTRAL.items():
        assert kind_of(name).model_validate(settings).neutral
        drawn = (kind_of(name).model_validate(kind_of(name).drawn(Draws(1, at))) for at in range(20))
        assert not all(one.neutral for one in drawn)


# Where the coordinator may crash at a moment, every frame is followed on its way.
@pytest.mark.parametrize("name", [name for name in KINDS if not kind_of(name).crashes])
def test_a_fault_whose_time_never_comes_changes_nothing(
    name: str, calm: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    kind = kind_of(name)
    digest, tables = run_with(tmp_path, {"at": "300 d", name: kind.drawn(Draws(1, name))})
    # Where an item is promoted its exposure is measured, too.
    assert digest == calm[0] or kind.of_items
    assert all(tables[table].equals(calm[1][table]) for table in tables)


@pytest.mark.parametrize("name", [name for name in KINDS if kind_of(name).of_devices])
def test_a_fault_that_strikes_nobody_changes_nothing(
    name: str, calm: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    kind = kind_of(name)
    when = {"at": "0 s"} if kind.must_begin or name == "reset" else {}
    digest, tables = run_with(
        tmp_path, {**when, "on": {"fraction": "0.1%"}, name: kind.drawn(Draws(1, name))}
    )
    assert digest == calm[0] or kind.of_items
    assert all(tables[table].equals(calm[1][table]) for table in tables)
