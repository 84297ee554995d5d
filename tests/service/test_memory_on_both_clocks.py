"""A coordinator that asks for a round twice, on either clock; and the identities of runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from service_helpers import SMALL, loaded_text, rows_of, run_real, run_virtual

from coordinator.engine.backend import Backend
from coordinator.engine.stop_reason import StopReason
from coordinator.engine.training import Training
from coordinator.results.tables.reader import read_manifest
from coordinator.run.assembling import assemble
from coordinator.run.conductor import new_run_id
from coordinator.run.runner import RunOutcome
from coordinator.service.conducting import RealTime
from edge.core.vocabulary import Reason
from edge.crypto.entropy import SecretSource
from edge.device.participation import AnsweredRounds, objections

ALL = np.arange(12)
NO_EVALUATION = "evaluation: {every: 2}"


async def asks_twice(training: Training, backend: Backend) -> StopReason:
    """Invite devices to round 2 twice, to one before, and to more rounds than the three of the scenario."""
    for number, ids in ((2, ALL), (2, ALL[1:]), (1, ALL[:2]), (3, ALL), (8, ALL[:3]), (9, ALL[:4])):
        await training._round(backend, number, ids)
        while training._open:
            await training._pause(None)
    return StopReason.LAST_ROUND


def declined(outcome: RunOutcome) -> list[tuple[int, int, str, str]]:
    keys = ("round", "device", "outcome", "reason")
    return [tuple(row[key] for key in keys) for row in rows_of(outcome, "device_rounds")]  # type: ignore[misc]


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_a_round_is_not_answered_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    monkeypatch.setattr(Training, "_rounds", asks_twice)
    text = SMALL.replace("count: 3, cohort: 6", "count: 3, cohort: 12, quorum: 1")
    run = run_virtual if clock == "virtual" else run_real
    loaded = loaded_text(tmp_path, text.replace(NO_EVALUATION, "evaluation: {final: false}"))
    outcome = run(loaded, tmp_path / "r")
    identity = read_manifest(outcome.directory)["run_id"]
    assert (identity == new_run_id(loaded, SecretSource.SEED)) == (clock == "virtual")
    taken = ("completed", "none")
    refused = ("declined", "already-answered")
    assert declined(outcome) == [
        *((2, device, *taken) for device in ALL),
        *((2, device, *refused) for device in ALL[1:]),
        *((1, device, *refused) for device in ALL[:2]),
        *((3, device, *taken) for device in ALL),
        *((8, device, *taken) for device in ALL[:3]),
        *((9, device, "declined", "budget-spent") for device in ALL[:3]),
        (9, ALL[3], *taken),
    ]
    rounds = [(row["round"], row["outcome"]) for row in rows_of(outcome, "rounds")]
    assert rounds == [
        (2, "completed"),
        (2, "abandoned"),
        (1, "abandoned"),
        (3, "completed"),
        *((n, "completed") for n in (8, 9)),
    ]


def test_more_rounds_than_the_scenario_has_are_declined_on_the_virtual_clock() -> None:
    memory = AnsweredRounds(3, allowed=2)
    ids = np.array([0, 1, 2])
    for device, number in ((0, 1), (0, 4), (1, 4)):
        assert memory.objections(ids, number)[device] == Reason.NONE
        memory.add(device, number)
    assert memory.objections(ids, 4).tolist() == [
        Reason.ALREADY_ANSWERED,
        Reason.ALREADY_ANSWERED,
        Reason.NONE,
    ]
    assert memory.objections(ids, 5).tolist() == [Reason.BUDGET_SPENT, Reason.NONE, Reason.NONE]
    assert int(objections(2**64 - 1, 2**63, 5, 6)) == Reason.NONE


def test_the_memory_of_a_fleet_is_a_few_bytes_a_device(tmp_path: Path) -> None:
    fleet = assemble(loaded_text(tmp_path, SMALL)).fleet
    assert (fleet.answered.last_round.nbytes + fleet.answered.rounds.nbytes) / fleet.n == 8
    assert fleet.answered.objections(ALL, 3).tolist() == [0] * 12


def test_runs_have_identities_from_the_seed_or_from_the_system(tmp_path: Path) -> None:
    """That a run keeps its own when it is gone on with: ``test_survival.py``."""
    one, other = (loaded_text(tmp_path, SMALL, [f"seed={n}"]) for n in (1, 2))
    seeded = {new_run_id(loaded, SecretSource.SEED) for loaded in (one, other, one)}
    real = {RealTime().run_id(one) for _ in range(9)}
    assert (len(seeded), len(real), len(seeded | real)) == (2, 9, 11)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{8}", found) for found in seeded | real)
