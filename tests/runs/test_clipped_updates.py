"""Whose updates were longer than the bound: the share of those that were applied, by round."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows_of, run_text
from secure_helpers import IDEAL_WIRE, secure

from coordinator.run.runner import RunOutcome
from edge.crypto.entropy import Entropy
from edge.learning.updates import ClientUpdate
from edge.privacy.protection import Protection

COHORT = 20
MASKED, ENCRYPTED = "mode: secagg-plus, crypto: modelled", "mode: ckks, crypto: modelled"
ONE_ROUND = "phases: [{name: only, rounds: 1}]\n"


def norms_of_run(
    folder: Path, section: str, clip: float, monkeypatch: pytest.MonkeyPatch, more: str = ONE_ROUND
) -> tuple[list[float], RunOutcome]:
    """Return the norm of every update before it is clipped, and the run."""
    norms: list[float] = []
    apply = Protection.apply

    def noted(self: Protection, update: ClientUpdate, entropy: Entropy) -> Any:
        norms.append(math.sqrt(sum(float((a.astype("f8") ** 2).sum()) for a in update.arrays.values())))
        return apply(self, update, entropy)

    bound = f"clip_norm: {clip!r}, noise_multiplier: 0, accounting: false"
    text = secure(
        section,
        rounds=f"cohort: {COHORT}, over_select: 150%, deadline: 60 s",
        fleet=IDEAL_WIRE,
        learning="algorithm: fedrecon, factors: 4, upload: dense, weighting: uniform",
        more=f"privacy: {{mechanism: central-gaussian, {bound}}}\n{more}",
    )
    with monkeypatch.context() as patch:
        patch.setattr(Protection, "apply", noted)
        return norms, run_text(folder, text, name=f"clip{clip:g}")


@pytest.mark.slow
def test_none_some_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms, above = norms_of_run(tmp_path, MASKED, 1e3, monkeypatch)
    assert rows_of(above, "rounds")[0]["clipped_updates_fraction"] == 0.0
    _, below = norms_of_run(tmp_path, MASKED, min(norms) / 2, monkeypatch)
    assert rows_of(below, "rounds")[0]["clipped_updates_fraction"] == 1.0
    # All thirty that were invited train; twenty of them are in the sum.
    assert len(norms) == COHORT * 3 // 2
    between = sorted(norms)[len(norms) // 2] * 1.0001
    clipped = sum(norm > between for norm in norms)
    for section in (MASKED, ENCRYPTED, "mode: off"):
        again, outcome = norms_of_run(tmp_path, section, between, monkeypatch)
        assert sorted(again) == sorted(norms)
        (round_,) = rows_of(outcome, "rounds")
        assert round_["completed"] == COHORT
        found = round_["clipped_updates_fraction"] * COHORT
        assert found == pytest.approx(round(found), abs=1e-9)
        # At most ten of the others were left out.
        assert clipped - COHORT // 2 <= round(found) <= min(clipped, COHORT)


def test_only_updates_that_were_applied_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = "faults: [{name: x, at_stage: masked-input, on: {fraction: 20%}, vanish: {}}]\n"
    norms, _ = norms_of_run(tmp_path, MASKED, 1e3, monkeypatch)
    _, outcome = norms_of_run(tmp_path, MASKED, min(norms) / 2, monkeypatch, ONE_ROUND + fault)
    (round_,) = rows_of(outcome, "rounds")
    assert 0 < round_["completed"] < COHORT
    assert round_["clipped_updates_fraction"] == 1.0


def test_of_an_abandoned_round_there_is_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = (
        "phases: [{name: calm, rounds: 1}, {name: storm, rounds: 1}]\n"
        "faults: [{name: x, during: storm, at_stage: masked-input, vanish: {}}]\n"
    )
    _, outcome = norms_of_run(tmp_path, MASKED, 1.0, monkeypatch, storm)
    told = [(row["outcome"], row["clipped_updates_fraction"]) for row in rows_of(outcome, "rounds")]
    assert told == [("completed", 0.0), ("abandoned", None)]
