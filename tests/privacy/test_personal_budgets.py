"""Personal budgets: who is in which tier, what is done to updates, what they weigh, and what is spent."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from coordinator.engine.privacy import PersonalBudgets
from coordinator.scenario.privacy_section import PersonalGaussian
from edge.crypto.entropy import SeededEntropy
from edge.crypto.noise import Sampler
from edge.learning.updates import ClientUpdate
from edge.privacy.protection import Protection

ACTIVITY = np.array([1, 50, 51, 200, 201, 4000])
TIERS = (("casual", 50, 4.0), ("regular", 200, 2.0), ("heavy", None, 1.0))


def budgets(clip_norm: float = 0.5, noise: float = 1.0) -> PersonalBudgets:
    tiers = [
        {"name": name, "noise_multiplier": str(z * noise)} | ({"up_to": str(bound)} if bound else {})
        for name, bound, z in TIERS
    ]
    written = {"mechanism": "personal-gaussian", "clip_norm": str(clip_norm), "tiers": tiers}
    return PersonalBudgets(PersonalGaussian.model_validate(written), ACTIVITY)


def protection(device: int, noise: float = 1.0, clip_norm: float = 0.5) -> Protection:
    mine = budgets(clip_norm, noise)
    return mine.protections(Sampler.FLOATING_POINT)[int(mine.tier[device])]


def update(values: npt.NDArray[np.float32], weight: float = 1.0) -> ClientUpdate:
    return ClientUpdate({"rows": values, "attention": np.ones(1, np.float32)}, weight, 10, 0.5)


def test_a_device_adds_the_noise_of_its_tier_and_then_the_weight() -> None:
    found = [protection(device) for device in range(6)]
    assert [one.noise_sd for one in found] == [2.0, 2.0, 1.0, 1.0, 0.5, 0.5]
    assert [one.weight for one in found] == [0.0625, 0.0625, 0.25, 0.25, 1.0, 1.0]
    assert all(one.bare and one.clip_norm == 0.5 for one in found)


def test_sensitivity_is_what_is_left_after_clipping_times_the_weight_and_noise_with_it() -> None:
    large = update(np.full(20_000, 3.0, np.float32))
    protected, clipped = protection(0).apply(large, SeededEntropy(bytes(16), 0, 1))
    noise_free, _ = protection(0, 0.0).apply(large, SeededEntropy(bytes(16), 0, 1))
    assert clipped
    norm = math.sqrt(
        sum(float(np.sum(array.astype(np.float64) ** 2)) for array in noise_free.arrays.values())
    )
    assert norm == pytest.approx(0.5, rel=1e-6)
    assert norm <= 0.5
    rest = protected.arrays["rows"] - 0.0625 * noise_free.arrays["rows"]
    assert float(rest.std()) == pytest.approx(0.0625 * 2.0, rel=0.03)
    assert (protected.weight, protected.examples, protected.loss) == (1.0, 0, 0.0)


def test_without_noise_and_bound_an_update_stays_as_it_is_bit_for_bit() -> None:
    plain = update(np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32))
    for device in range(6):
        protected, clipped = protection(device, 0.0, 1e30).apply(plain, SeededEntropy(bytes(16), 0, 1))
        assert not clipped
        assert {name: array.tobytes() for name, array in protected.arrays.items()} == {
            name: array.tobytes() for name, array in plain.arrays.items()
        }


def test_the_weighted_mean_has_the_least_variance_there_is() -> None:
    """Of unbiased values with noise σ_i: one over the sum of 1/σ_i²."""
    mine = budgets(clip_norm=1.0)
    protections = [protection(device, clip_norm=1.0) for device in range(6)]
    means = np.zeros(40_000)
    for device, one in enumerate(protections):
        zero = ClientUpdate({"rows": np.zeros(40_000)}, 1.0, 1, 0.0)
        means += one.apply(zero, SeededEntropy(bytes(16), device, 1))[0].arrays["rows"]
    means /= mine.weight(frozenset(range(6)))
    best = 1.0 / sum(1.0 / one.noise_sd**2 for one in protections)
    assert float(means.var()) == pytest.approx(best, rel=6 * math.sqrt(2 / 40_000))


def test_a_sum_weighs_what_its_devices_do_in_any_order() -> None:
    assert budgets().weight(frozenset({0, 2, 5})) == 0.0625 + 0.25 + 1.0
    assert budgets().weight(frozenset({5, 0, 2})) == budgets().weight(frozenset({2, 5, 0}))
    assert budgets().weight(frozenset()) == 0.0
