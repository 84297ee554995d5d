"""Each device's share of the noise: planned for, added before masking, and what the sum has of it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secagg_harness import Fleet, small_config

from edge.core.errors import LocalProtocolError
from edge.crypto.entropy import SeededEntropy
from edge.crypto.errors import OverflowingConfigError
from edge.crypto.noise_scale import share_sd
from edge.secagg import config as config_module
from edge.secagg.config import NOISE_TAIL_SD, CountPart, RealPart, SecAggConfig
from edge.secagg.inputs import decode_sum, encode_input

KEY = bytes(range(16))


def noisy_config(noise_sd: float, *, n_max: int = 20, length: int = 20_000, **changes: Any) -> SecAggConfig:
    parts = (RealPart("model", length, 1.0, noise_sd), RealPart("plain", 4, 2.0), CountPart("seen", 3, 1))
    return SecAggConfig(**{"parts": parts, "n_max": n_max, "weight_max": 2} | changes)


def inputs(config: SecAggConfig, device: int) -> dict[str, Any]:
    model = np.random.default_rng(device).uniform(-0.5, 0.5, config.parts[0].length)
    return {"model": model, "plain": np.full(4, 0.25), "seen": np.array([1, 0, device % 2])}


@pytest.mark.parametrize(("bits", "noise_sd"), [(32, 0.3), (32, 2e-8), (64, 5.0)])
def test_the_sum_has_the_planned_variance(bits: int, noise_sd: float) -> None:
    n = 20
    config = noisy_config(noise_sd, bits=bits)
    quantizer = config.quantizers["model"]
    total, exact = config.ring.zeros(config.length), np.zeros(config.parts[0].length)
    for device in range(n):
        values, weight = inputs(config, device), device % 3
        vector, clipped, _ = encode_input(config, values, weight, SeededEntropy(KEY, device, 1))
        assert clipped == 0
        config.ring.add_into(total, vector)
        exact += weight * values["model"]
    sums = decode_sum(config, total)
    errors = sums.reals["model"] - exact
    # Noise of every device, whatever its weight, and between 0 and S**−2/4 of rounding from each.
    noise, rounding = n * noise_sd**2, n / (4 * quantizer.scale**2)
    spread = 6 * math.sqrt(2 / errors.size)
    assert noise * (1 - spread) < float(np.mean(errors**2)) < (noise + rounding) * (1 + spread)
    assert abs(float(errors.mean())) < 6 * math.sqrt((noise + rounding) / errors.size)
    # What has no noise in the plan has none in the sum.
    assert sums.reals["plain"] == pytest.approx([0.25 * sums.weight] * 4, abs=1e-5)
    assert sums.counts["seen"].tolist() == [n, 0, n // 2]
    assert (sums.weight, sums.contributors) == (sum(device % 3 for device in range(n)), n)


def test_shares_of_the_fewest_honest_devices_reach_the_noise_of_the_sum() -> None:
    multiplier, clip_norm, honest = 1.2, 0.8, 15
    config = noisy_config(share_sd(multiplier * clip_norm, honest))
    total = config.ring.zeros(config.length)
    zeros = {"model": np.zeros(20_000), "plain": np.zeros(4), "seen": np.zeros(3, np.int64)}
    for device in range(honest):
        config.ring.add_into(total, encode_input(config, zeros, 1, SeededEntropy(KEY, device, 1)).vector)
    deviation = float(np.std(decode_sum(config, total).reals["model"]))
    assert deviation == pytest.approx(multiplier * clip_norm, rel=6 / math.sqrt(2 * 20_000))


def test_noise_survives_the_protocol_and_a_dropout() -> None:
    noise_sd = 0.5
    fleet = Fleet(9, small_config(9, parts=(RealPart("factors", 5000, 2.0, noise_sd),), weight_max=1))
    fleet.advertise()
    fleet.deliver()
    fleet.deliver(silent=[4])
    fleet.deadline()
    fleet.run()
    fleet.check()
    assert fleet.server.result is not None
    survivors = fleet.server.result.survivors.tolist()
    assert survivors == [0, 1, 2, 3, 5, 6, 7, 8]
    sums = decode_sum(fleet.config, fleet.server.result.total)
    exact = sum(np.clip(fleet.values(device)["factors"], -2, 2) for device in survivors)
    deviation = float(np.std(sums.reals["factors"] - exact))
    assert deviation == pytest.approx(noise_sd * math.sqrt(8), rel=6 / math.sqrt(2 * 5000))


def test_devices_and_parts_have_noise_of_their_own() -> None:
    parts = (RealPart("a", 3000, 1.0, 1.0), RealPart("b", 3000, 1.0, 1.0))
    config = SecAggConfig(parts, n_max=3)
    zeros = {"a": np.zeros(3000), "b": np.zeros(3000)}
    first, again, second, later = (
        decode_sum(config, encode_input(config, zeros, 1, SeededEntropy(KEY, device, number)).vector).reals
        for device, number in ((1, 1), (1, 1), (2, 1), (1, 2))
    )
    assert np.array_equal(first["a"], again["a"])
    limit = 6 / math.sqrt(3000)
    for one, other in ((first["a"], first["b"]), (first["a"], second["a"]), (first["a"], later["a"])):
        assert abs(float(np.mean(one * other))) < limit


class CountingEntropy:
    def __init__(self) -> None:
        self.asked: list[int] = []

    def bytes(self, n: int) -> bytes:
        self.asked.append(n)
        return bytes(n)


def test_without_noise_nothing_more_is_drawn() -> None:
    quiet, noisy = noisy_config(0.0, length=5), noisy_config(0.1, length=5)
    for config, seeds in ((quiet, 2), (noisy, 3)):
        entropy = CountingEntropy()
        encode_input(config, inputs(config, 1), 1, entropy)
        assert entropy.asked == [16] * seeds


# -- the plan --------------------------------------------------------------------------------------------


@given(
    st.sampled_from([32, 64]),
    st.integers(2, 10**4),
    st.integers(1, 5),
    st.floats(0.01, 100),
    st.floats(0, 100),
)
@settings(deadline=None)
def test_values_and_noise_fit_together(bits: int, n: int, weight: int, clip: float, noise_sd: float) -> None:
    parts = (RealPart("model", 3, clip, noise_sd),)
    try:
        config = SecAggConfig(
            parts, n_max=n, weight_max=weight, bits=bits, sparse=False, corrupt=0, dropout=0
        )
    except OverflowingConfigError:
        # Even one step with its noise is too much, or the noise is lost between two steps.
        step = weight + Fraction(NOISE_TAIL_SD * noise_sd) / Fraction(clip)
        largest = (2 ** (bits - 1) - 1) // n
        assert step > largest - 2 or 2 * noise_sd / clip * largest / step < 1.001
        return
    quantizer = config.quantizers["model"]
    assert n * (weight * quantizer.levels + quantizer.noise_levels) <= config.ring.largest
    assert quantizer.noise_levels >= NOISE_TAIL_SD * noise_sd * quantizer.scale * (1 - 1e-12)
    extreme = {"model": np.full(3, -clip)}
    signed = config.ring.to_signed(encode_input(config, extreme, weight, SeededEntropy(KEY, 1, 1)).vector)
    assert int(np.abs(signed[:3]).max()) <= weight * quantizer.levels + quantizer.noise_levels


def test_noise_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowingConfigError, match="less noise"):
        noisy_config(1e9)
    assert noisy_config(1e9, bits=64).quantizers["model"].levels > 1
    with pytest.raises(OverflowingConfigError, match="less noise"):
        noisy_config(1e18, bits=64)


def test_noise_lost_between_two_steps_is_refused() -> None:
    step = 1 / noisy_config(0.0).quantizers["model"].scale
    with pytest.raises(OverflowingConfigError, match=r"noise of 0\.4 steps.*less than 0\.5"):
        noisy_config(0.4 * step)
    noisy_config(0.51 * step)
    noisy_config(0.4 * step, bits=64)


@pytest.mark.parametrize("noise_sd", [-0.1, math.nan, math.inf])
def test_noise_that_is_none_is_refused(noise_sd: float) -> None:
    with pytest.raises(LocalProtocolError, match="part 'model' has noise_sd"):
        noisy_config(noise_sd)


def test_noise_is_bound_into_the_configuration() -> None:
    hashes = {noisy_config(noise_sd).hash for noise_sd in (0.0, 0.25, 0.5)}
    assert len(hashes) == 3
    whole = SecAggConfig((RealPart("a", 1, 2, 1),), n_max=4)
    assert whole.encoded == SecAggConfig((RealPart("a", 1, 2.0, 1.0),), n_max=4).encoded


def test_a_draw_beyond_the_planned_room_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # With room for 2 σ instead of 12, one draw in 22 is.
    monkeypatch.setattr(config_module, "NOISE_TAIL_SD", 2)
    config = SecAggConfig((RealPart("model", 20_000, 1.0, 0.01),), n_max=4)
    quantizer = config.quantizers["model"]
    vector = encode_input(config, {"model": np.zeros(20_000)}, 1, SeededEntropy(KEY, 1, 1)).vector
    signed = config.ring.to_signed(vector)[:20_000]
    assert int(np.abs(signed).max()) <= quantizer.noise_levels
    # A Gaussian cut at 2 σ has √(1 − 4·φ(2)/(2Φ(2) − 1)) = 0.8796 of its standard deviation; four of the
    # estimate's own are 2 %.
    assert float(np.std(signed)) / (0.01 * quantizer.scale) == pytest.approx(0.8796, rel=0.02)
