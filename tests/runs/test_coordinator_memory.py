"""What the coordinator has learnt and spent goes through the arrays that outlive its process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.engine.assembly import Assembly
from coordinator.engine.crashes import npz_bytes
from coordinator.engine.invitations import Invitations
from coordinator.engine.progress import RunObserver
from coordinator.engine.snapshots import CoordinatorMemory, LostRound, Recalled
from coordinator.engine.training import Training
from coordinator.results.tables.writer import RunWriter, TableRecorder
from coordinator.results.threshold_watch import ThresholdWatch
from coordinator.run.assembling import assemble
from coordinator.scenario.load import load
from coordinator.scenario.schema import ScenarioSettings
from edge.core.vocabulary import Reason, RoundKind
from edge.crypto.entropy import SecretSource
from edge.wire.messages import Report

TEXT = """
format: 2
title: memory
seed: 5
data: {source: synthetic-ratings, users: 40, items: 30, ratings_per_user: 8}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05, weighting: uniform, upload: dense}
rounds: {count: 9, cohort: 8, deadline: 60 s, selection: random}
"""
LEARNING = (
    "rounds.selection={policy: oort}",
    "rounds.selection={policy: round-robin}",
    "rounds.pacing={mode: tiers, tiers: 3, profiling: 2, every: 3, credits: 4}",
)
PRIVATE = (
    "privacy={mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 2}",
    "privacy={mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 2, amplification: sampling}",
    "privacy={mechanism: local-gaussian, clip_norm: 1, noise_multiplier: 2}",
    "privacy={mechanism: personal-gaussian, clip_norm: 1, tiers: [{name: all, noise_multiplier: 4}]}",
)


def parts(folder: Path, setting: str) -> tuple[ScenarioSettings, Assembly, Invitations, CoordinatorMemory]:
    file = folder / "s.yaml"
    file.write_text(TEXT)
    loaded = load(file, [setting])
    assembly = assemble(loaded)
    invitations = Invitations(loaded.scenario, assembly.fleet, assembly.workload, 1000, SecretSource.SEED)
    return (
        loaded.scenario,
        assembly,
        invitations,
        CoordinatorMemory(assembly.fleet, invitations, assembly.privacy, assembly.mean_query),
    )


def kept(memory: CoordinatorMemory) -> dict[str, np.ndarray]:
    """Return what is remembered, copied as a file would copy it."""
    arrays = memory.arrays()
    assert len(npz_bytes(arrays)) > 0
    return {name: np.array(array) for name, array in arrays.items()}


@pytest.mark.parametrize("setting", LEARNING)
def test_who_is_invited_does_not_depend_on_a_new_process(tmp_path: Path, setting: str) -> None:
    _, assembly, invitations, memory = parts(tmp_path, setting)
    assert invitations.experience is not None
    for number in range(1, 7):
        ids = invitations.of_round(number, 0, float(number))
        assert ids is not None
        for device in ids.tolist():
            report = Report("run", number, device, 8, 1.0, 0.5 + device / 40, {})
            invitations.experience.learn(device, report, Reason.NONE, 1.0 + device % 7)
        assembly.fleet.spend(ids, np.full(len(ids), 3.0), float(number))
    _, again, fresh, of_fresh = parts(tmp_path, setting)
    of_fresh.recall(kept(memory))
    for number in (7, 8, 9):
        first, second = (one.of_round(number, 0, float(number)) for one in (invitations, fresh))
        assert first is not None
        assert second is not None
        assert first.tolist() == second.tolist()
    everybody = np.arange(assembly.fleet.n)
    drained = [one.fleet.drain(everybody, 1.0, 9.0).tolist() for one in (assembly, again)]
    assert drained[0] == drained[1]


@pytest.mark.parametrize("setting", PRIVATE)
def test_what_was_spent_stays_spent(tmp_path: Path, setting: str) -> None:
    pytest.importorskip("dp_accounting")
    _, assembly, _, memory = parts(tmp_path, setting)
    assert assembly.privacy is not None
    for devices in ({3}, {3, 4}, {4, 5}):
        assembly.privacy.spend("", frozenset(devices))
    spent = assembly.privacy.epsilon()
    _, again, _, of_fresh = parts(tmp_path, setting)
    of_fresh.recall(kept(memory))
    assert again.privacy is not None
    assert again.privacy.epsilon() == spent
    for privacy in (assembly.privacy, again.privacy):
        privacy.spend("", frozenset({4}))
    expected = assembly.privacy.epsilon()
    assert again.privacy.epsilon() == expected
    assert expected is not None
    assert spent is not None
    assert expected.zero_out > spent.zero_out
    assert expected.replace_one > spent.replace_one


@pytest.mark.parametrize(
    ("setting", "most"), [(PRIVATE[0], 2), (PRIVATE[1], 2), (PRIVATE[2], 3), (PRIVATE[3], 3)]
)
def test_what_may_have_been_seen_before_a_process_ended_is_spent(
    tmp_path: Path, setting: str, most: int
) -> None:
    pytest.importorskip("dp_accounting")
    scenario, assembly, _, memory = parts(tmp_path, setting)
    assert assembly.privacy is not None
    assembly.privacy.spend("", frozenset({1, 2, 3}))
    with RunWriter(tmp_path) as writer:
        watch = ThresholdWatch((), None)
        recorder = TableRecorder(writer, assembly.fleet.names)
        training = Training(scenario, assembly, recorder, RunObserver(), watch, tmp_path, SecretSource.SEED)
        lost = (
            # Each of those invited may have been in the sum, or have been heard.
            LostRound("", RoundKind.TRAINING, False, frozenset({1, 2})),
            # A sum that was made is in the memory; a device that was at work still may have been heard.
            LostRound("", RoundKind.TRAINING, True, frozenset({1})),
        )
        state = training.state
        training.recall(Recalled(state, {}, 1, 2, 2, 2, None, kept(memory), lost))
        writer.finish()
    facts = assembly.privacy.facts()
    assert facts["most_releases"] == most
    once = parts(tmp_path, setting)[1].privacy
    assert once is not None
    for _ in range(most):
        once.spend("", frozenset({4}))
    assert assembly.privacy.epsilon() == once.epsilon()


def test_a_draw_that_counts_as_privacy_does_not_follow_from_the_scenario(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(TEXT)

    def drawn(secrets: SecretSource, setting: str) -> list[tuple[int, ...]]:
        loaded = load(file, [setting])
        assembly = assemble(loaded)
        invitations = Invitations(loaded.scenario, assembly.fleet, assembly.workload, 1000, secrets)
        cohorts = [invitations.of_round(number, 0, 0.0) for number in range(1, 6)]
        return [() if cohort is None else tuple(cohort.tolist()) for cohort in cohorts]

    plain, amplified = PRIVATE[:2]
    seed, system = SecretSource.SEED, SecretSource.SYSTEM
    expected = drawn(seed, plain)
    assert drawn(seed, amplified) == drawn(system, plain) == expected
    # Of 8 in 40 there are 77 million cohorts.
    for others in (expected, drawn(system, amplified)):
        assert not set(drawn(system, amplified)) & set(others)
