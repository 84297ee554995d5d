"""The noise of every mechanism, as a run puts it into its model, has the distribution that is claimed.

On the virtual clock it follows from the seed. On the real clock it is the system's, so a test fails by chance
now and then: with probability below 1e-9 each, by the bounds on its statistics.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from privacy_statistics import distance_to_normal

from coordinator.engine.progress import RunObserver
from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.scenario.load import load
from coordinator.service.conducting import RealTime
from coordinator.service.local_run import along

DEVICES, ITEMS, WIDTH = 12, 800, 5
ELEMENTS = ITEMS * WIDTH
FEW = 7
"""Devices with six ratings to train on, or fewer."""
CLIP = 0.2
FARTHEST = math.sqrt(math.log(2e9) / 2)
"""√n times the Kolmogorov distance exceeds it with probability 1e-9 at most (Massart 1990)."""
CLEAR, MASKED = "{mode: off}", "{mode: secagg-plus, bits: 32}"
TEXT = """
format: 2
seed: 5
data: {{source: synthetic-ratings, users: 12, items: 800, ratings_per_user: 10}}
fleet: {{devices: {{ideal_device: 100%}}, networks: {{ideal_wire: 100%}}, profiles: [{profiles}]}}
connection: {{tls: false, keep_alive: true}}
learning: {{algorithm: fedrecon, factors: 4, upload: dense, weighting: uniform, optimizer: {{kind: sgd}},
  learning_rate: 1}}
secure_aggregation: {secure}
privacy: {{mechanism: {mechanism}, clip_norm: 0.2, accounting: false{noise}}}
rounds: {{count: 1, cohort: 12, quorum: 100%, deadline: 60 s, selection: random}}
evaluation: {{final: false}}
"""
PROFILES = Path(__file__).parents[1] / "runs" / "ideal_profiles.yaml"


def run_of(folder: Path, mechanism: str, secure: str, noise: str, *, real: bool) -> RunOutcome:
    folder.mkdir()
    text = TEXT.format(profiles=PROFILES, secure=secure, mechanism=mechanism, noise=noise)
    (folder / "run.yaml").write_text(text)
    loaded = load(folder / "run.yaml")
    assembly = assemble(loaded)
    conductor = RealTime(wait_for=DEVICES, company=along(shaped=False)) if real else None
    return run_assembled(loaded, assembly, target=folder / "out", observer=RunObserver(), conductor=conductor)


def change(noisy: RunOutcome, plain: RunOutcome) -> npt.NDArray[np.float64]:
    """Return what noise has changed of the mean update."""
    with np.load(noisy.directory / "model.npz") as model, np.load(plain.directory / "model.npz") as without:
        parts = [model[name].astype(np.float64) - without[name] for name in ("item_factors", "item_bias")]
    found = np.concatenate([part.ravel() for part in parts])
    assert found.size == ELEMENTS
    return found


TIERS = ", tiers: [{name: few, up_to: 6, noise_multiplier: 4}, {name: many, noise_multiplier: 2}]"
SILENT = TIERS.replace(": 4}", ": 4e-9}").replace(": 2}", ": 2e-9}")
"""The same weights, and next to no noise."""
MECHANISMS = [
    pytest.param("central-gaussian", CLEAR, ", noise_multiplier: 1.5", 1.5 / DEVICES, id="central"),
    pytest.param("local-gaussian", CLEAR, ", noise_multiplier: 1.5", 1.5 / math.sqrt(DEVICES), id="local"),
    # Twice the noise and a fourth of the weight, of those that have few ratings to train on.
    pytest.param(
        "personal-gaussian",
        CLEAR,
        TIERS,
        math.hypot(*[4.0 / 4] * FEW, *[2.0] * (DEVICES - FEW)) / (FEW / 4 + DEVICES - FEW),
        id="personal",
    ),
    # One of ten may be corrupt, so two of twelve, and a sum needs all twelve: ten honest ones make the noise.
    pytest.param(
        "distributed-discrete-gaussian",
        MASKED,
        ", noise_multiplier: 1.5",
        1.5 * math.sqrt(DEVICES / 10) / DEVICES,
        id="distributed",
    ),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("real", [False, True], ids=["virtual", "real"])
@pytest.mark.parametrize(("mechanism", "secure", "noise", "multiplier"), MECHANISMS)
def test_noise_is_what_is_claimed(
    mechanism: str, secure: str, noise: str, multiplier: float, real: bool, tmp_path: Path
) -> None:
    silent = SILENT if noise is TIERS else ", noise_multiplier: 0"
    plain = run_of(tmp_path / "plain", mechanism, secure, silent, real=False)
    noisy = run_of(tmp_path / "noisy", mechanism, secure, noise, real=real)
    held = np.array([row["examples"] for row in open_run(plain.directory).read("device_rounds").to_pylist()])
    assert np.count_nonzero(held <= 6) == FEW
    drawn = change(noisy, plain) / (multiplier * CLIP)
    assert distance_to_normal(drawn) < FARTHEST
    # The tails, too: beyond six standard deviations of 4,000 draws lies one with probability 8e-6.
    assert np.abs(drawn).max() < 8
    facts = json.loads((noisy.directory / "manifest.json").read_text(encoding="utf-8"))["privacy"]
    # Shares of noise are whole numbers on both clocks.
    assert facts["sampler"] == ("discrete" if real or secure == MASKED else "floating-point")


@pytest.mark.parametrize("sampler", ["discrete", "floating-point"])
def test_a_scenario_has_the_last_word_on_how_noise_is_sampled(sampler: str, tmp_path: Path) -> None:
    noise = f", noise_multiplier: 1.5, sampler: {sampler}"
    noisy = run_of(tmp_path / "noisy", "central-gaussian", CLEAR, noise, real=False)
    manifest = json.loads((noisy.directory / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["privacy"]["sampler"] == sampler
    plain = run_of(tmp_path / "plain", "central-gaussian", CLEAR, ", noise_multiplier: 0", real=False)
    assert distance_to_normal(change(noisy, plain) / (1.5 * CLIP / DEVICES)) < FARTHEST
