"""ε of twelve configurations, under both relations between neighbours, against the package dp-accounting.

The package is asked for events of its own, from the settings of a scenario alone: nothing of the ledger or
the accountant of a run is used on its side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from coordinator.engine.privacy import RunPrivacy
from coordinator.engine.secure_sums import SecureSums
from coordinator.scenario.load import load
from coordinator.scenario.protection import masking_config
from coordinator.scenario.secure_section import Masking
from coordinator.secure.sums.masked import MaskedSums
from edge.crypto.entropy import SecretSource
from edge.privacy import accounting
from edge.secagg.cryptography import MODELLED

pytestmark = pytest.mark.skipif(not accounting.available(), reason="needs recfleet[dp]")

DEVICES, ELEMENTS = 400, 120
TEXT = """
format: 2
seed: 7
data: {{source: synthetic-ratings, users: 400, items: 30, ratings_per_user: 10}}
fleet: {{mix: global_android_2024}}
learning: {{algorithm: fedrecon, factors: 3, upload: dense, weighting: uniform}}
secure_aggregation: {secure}
privacy: {{{privacy}}}
rounds: {{count: 5, cohort: 40, quorum: 60%, deadline: 60 s, selection: random}}
"""
MASKS = "{mode: secagg-plus, corrupt: 20%, bits: 32, crypto: modelled}"
CENTRAL, LOCAL = "mechanism: central-gaussian", "mechanism: local-gaussian"
DISTRIBUTED = "mechanism: distributed-discrete-gaussian"
TIERS = (
    "mechanism: personal-gaussian, clip_norm: 1, tiers: [{name: few, up_to: 5, noise_multiplier: 8}, "
    "{name: many, noise_multiplier: 6}]"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration, how often the device was in a release that was in most, and what the package is told.

    Attributes
    ----------
    multiplier : noise on what one user changes, over the clip.
    sampled : whether the draw of 40 from 400 counts.
    bound : how much larger ε may be for what the bounds of Rényi divergences lose, and rounding adds.
    """

    privacy: str
    times: int
    multiplier: float
    delta: float = 1e-5
    sampled: bool = False
    secure: str = "{mode: off}"
    real: bool = False
    bound: float = 1e-6


CASES = {
    "central": Case(f"{CENTRAL}, clip_norm: 0.5, noise_multiplier: 1", 1, 1.0),
    "central, many rounds": Case(f"{CENTRAL}, clip_norm: 0.1, noise_multiplier: 1", 50, 1.0),
    "central, much noise": Case(f"{CENTRAL}, clip_norm: 3, noise_multiplier: 20, delta: 1e-8", 24, 20, 1e-8),
    "central, real clock": Case(f"{CENTRAL}, clip_norm: 1, noise_multiplier: 2", 10, 2.0, real=True),
    "central, claimed": Case(
        f"{CENTRAL}, clip_norm: 1, calibration: naive, claimed_epsilon: 2", 4, 0.5
    ),
    "central, masked": Case(
        f"{CENTRAL}, clip_norm: 1, noise_multiplier: 1.5", 8, 1.5, secure=MASKS, bound=1e-4
    ),
    "central, sampled": Case(
        f"{CENTRAL}, clip_norm: 1, noise_multiplier: 2, amplification: sampling", 30, 2.0, sampled=True
    ),
    "local": Case(f"{LOCAL}, clip_norm: 1, noise_multiplier: 4", 6, 4.0),
    "local, real clock": Case(
        f"{LOCAL}, clip_norm: 1, noise_multiplier: 10, delta: 1e-6", 20, 10, 1e-6, real=True
    ),
    "personal": Case(TIERS, 5, 6.0),
    "distributed": Case(
        f"{DISTRIBUTED}, clip_norm: 1, noise_multiplier: 1.5", 1, 1.5, secure=MASKS, bound=0.12
    ),
    "distributed, many rounds": Case(
        f"{DISTRIBUTED}, clip_norm: 1, noise_multiplier: 4", 30, 4.0, secure=MASKS, bound=0.12
    ),
}  # fmt: skip
assert len(CASES) == 12


def privacy_of(folder: Path, case: Case) -> RunPrivacy:
    (folder / "run.yaml").write_text(TEXT.format(privacy=case.privacy, secure=case.secure))
    scenario = load(folder / "run.yaml").scenario
    section, sums = scenario.secure_aggregation, None
    if isinstance(section, Masking):
        config = masking_config(scenario, section, [("item_rows", ELEMENTS)])
        sums = MaskedSums(config, section.stage_deadlines, MODELLED, seed=7, devices=DEVICES)
    by_phase: dict[str, SecureSums | None] = {"": sums}
    privacy = RunPrivacy(scenario, by_phase, np.full(DEVICES, 10), ELEMENTS)
    if case.real:
        privacy.draw_from(SecretSource.SYSTEM)
    return privacy


def of_the_package(case: Case, sensitivity: int) -> float:
    """Return ε of a user who changes what is released by ``sensitivity`` times the clip."""
    import dp_accounting  # noqa: PLC0415

    multiplier = case.multiplier / sensitivity
    if not case.sampled:
        return float(dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(case.times), case.delta))
    replace_one = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=replace_one)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        DEVICES, 40, dp_accounting.GaussianDpEvent(case.multiplier / 2)
    )
    accountant.compose(event, case.times)
    sampled = np.array(accountant.rdp)
    orders = np.array(accountant.orders)
    # An update of zeros is one of those that may be put in its place.
    return float(
        dp_accounting.rdp.compute_epsilon(
            orders, np.minimum(sampled, case.times * orders / (2 * multiplier**2)), case.delta
        )[0]
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_epsilon_is_that_of_the_package_under_both_relations(case: Case, tmp_path: Path) -> None:
    privacy = privacy_of(tmp_path, case)
    for _ in range(case.times):
        privacy.spend("", frozenset({3, 4}))
    if not case.sampled:
        privacy.spend("", frozenset({5}))  # of one that reported less often nothing depends on it
    found = privacy.epsilon()
    assert found is not None
    for value, sensitivity in ((found.zero_out, 1), (found.replace_one, 2)):
        exact = of_the_package(case, sensitivity)
        assert exact * (1 - 1e-9) <= value <= exact * (1 + case.bound)
    # Amplification is analysed for replaced users: its bound stands for both, where it is the smaller.
    assert found.zero_out == found.replace_one if case.sampled else found.zero_out < found.replace_one


def test_a_claim_and_a_choice_of_relation_change_what_is_printed_by_as_much_as_they_do() -> None:
    """The figures in the documentation: 24 rounds at z = 1, and one that was claimed to be 1."""
    accountants = {one: accounting.Accountant(one) for one in accounting.Neighbours}
    for accountant in accountants.values():
        accountant.compose(accounting.GaussianRelease(1.0), 24)
    zero_out, replace_one = (accountants[one].epsilon(1e-5) for one in accounting.Neighbours)
    assert zero_out == pytest.approx(32.2, abs=0.05)
    assert replace_one == pytest.approx(89.0, abs=0.5)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_device_counts_for_itself_what_the_coordinator_counts_for_it(tmp_path: Path, case: Case) -> None:
    privacy = privacy_of(tmp_path, case)
    if not privacy.on_devices:
        assert privacy.own_epsilon(3, case.times) is None
        return
    assert privacy.own_epsilon(3, 0) == 0.0
    for _ in range(case.times):
        privacy.spend("", frozenset({3}))
    counted = privacy.epsilon()
    assert counted is not None
    assert privacy.own_epsilon(3, case.times) == counted.replace_one
