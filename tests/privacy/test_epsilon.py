from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_statistics import zcdp_epsilon

from edge.core.errors import LocalProtocolError, MissingExtraError, RecfleetError
from edge.crypto.noise_scale import share_sd
from edge.privacy import accounting
from edge.privacy.accounting import (
    Accountant,
    DiscreteGaussianRelease,
    GaussianRelease,
    Neighbours,
    NoisyPart,
    Release,
    Sampling,
)
from edge.secagg.config import CountPart, RealPart, SecAggConfig

ROOT = Path(__file__).resolve().parents[2]
DELTA = 1e-5

needs_extra = pytest.mark.skipif(not accounting.available(), reason="needs recfleet[dp]")


def spent(*releases: Release, neighbours: Neighbours = Neighbours.ZERO_OUT, delta: float = DELTA) -> float:
    accountant = Accountant(neighbours)
    for release in releases:
        accountant.compose(release)
    return accountant.epsilon(delta)


def renyi(*releases: Release, neighbours: Neighbours = Neighbours.ZERO_OUT, delta: float = DELTA) -> float:
    """Return ε from the Rényi divergences alone."""
    import dp_accounting  # noqa: PLC0415

    accountant = Accountant(neighbours)
    for release in releases:
        accountant.compose(release)
    return float(dp_accounting.rdp.compute_epsilon(accounting.orders(), accountant.spent, delta)[0])


def exact_gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Return the smallest ε of one Gaussian release (Balle and Wang 2018, Theorem 8), by bisection."""

    def normal(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    low, high = 0.0, 1e4
    for _ in range(200):
        epsilon = (low + high) / 2
        # exp(ε)·Φ(−a) in logarithms: Φ is tiny where exp(ε) is huge.
        a = epsilon * multiplier + 0.5 / multiplier
        tail = normal(-a)
        second = math.exp(epsilon + math.log(tail)) if tail > 0 else 0.0
        if normal(0.5 / multiplier - epsilon * multiplier) - second > delta:
            low = epsilon
        else:
            high = epsilon
    return high


# -- Gaussian --------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_extra
@pytest.mark.parametrize(
    ("multiplier", "rounds", "printed"), [(1.0, 1, 4.38), (1.0, 50, 54.4), (3.73, 1, 1.0), (26.4, 50, 1.0)]
)
def test_gaussian_rounds_cost_what_the_exact_formula_and_the_package_say(
    multiplier: float, rounds: int, printed: float
) -> None:
    import dp_accounting  # noqa: PLC0415
    from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415

    releases = [GaussianRelease(multiplier)] * rounds
    epsilon = spent(*releases)
    assert epsilon == pytest.approx(printed, rel=0.005)
    assert epsilon == pytest.approx(exact_gaussian_epsilon(multiplier / math.sqrt(rounds), DELTA), rel=1e-9)
    one = dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(rounds), DELTA)
    assert epsilon == pytest.approx(one, rel=1e-9)
    losses = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, value_discretization_interval=1e-3
    ).self_compose(rounds)
    assert epsilon == pytest.approx(losses.get_epsilon_for_delta(DELTA), rel=1e-4)
    # What the conversion from Rényi divergences would add.
    rho = rounds / (2 * multiplier**2)
    assert zcdp_epsilon(rho, DELTA) <= renyi(*releases) * (1 + 1e-9) < zcdp_epsilon(rho, DELTA) * 1.01
    assert epsilon < renyi(*releases)


@needs_extra
def test_an_amplified_release_among_them_leaves_the_bound() -> None:
    accountant = Accountant(Neighbours.REPLACE_ONE)
    accountant.compose(GaussianRelease(4.0))
    exact = accountant.epsilon(DELTA)
    assert exact == spent(GaussianRelease(2.0))
    accountant.compose(GaussianRelease(4.0, Sampling(10_000, 1)))
    assert exact < accountant.epsilon(DELTA)
    assert accountant.epsilon(DELTA) == pytest.approx(
        renyi(GaussianRelease(4.0), neighbours=Neighbours.REPLACE_ONE), rel=1e-3
    )


@needs_extra
def test_replacing_a_user_moves_the_sum_twice_as_far() -> None:
    replaced = spent(GaussianRelease(2.0), neighbours=Neighbours.REPLACE_ONE)
    assert replaced == spent(GaussianRelease(1.0))


@needs_extra
def test_no_noise_is_no_privacy() -> None:
    assert spent(GaussianRelease(0.0)) == math.inf
    assert spent(GaussianRelease(1e-200)) == math.inf
    for multiplier in (0.0, 1e-200):
        sampled = GaussianRelease(multiplier, Sampling(100, 10))
        assert spent(sampled, neighbours=Neighbours.REPLACE_ONE) == math.inf
    assert spent() == 0.0


# -- sampling --------------------------------------------------------------------------------------------


@needs_extra
def test_sampling_is_what_the_package_says_of_half_the_multiplier() -> None:
    import dp_accounting  # noqa: PLC0415

    direct = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 20, dp_accounting.GaussianDpEvent(1.1 / 2))
    direct.compose(event, 30)
    release = GaussianRelease(1.1, Sampling(1000, 20))
    epsilon = spent(*[release] * 30, neighbours=Neighbours.REPLACE_ONE)
    assert epsilon == pytest.approx(direct.get_epsilon(DELTA), rel=1e-9)
    assert epsilon < 0.5 * spent(*[GaussianRelease(1.1)] * 30, neighbours=Neighbours.REPLACE_ONE)


@pytest.mark.few(1)
@needs_extra
@pytest.mark.parametrize("multiplier", [0.001, 0.3, 1.0, 300.0, 1e6])
def test_sampling_never_costs(multiplier: float) -> None:
    plain = GaussianRelease(multiplier).rdp(Neighbours.REPLACE_ONE)
    before = np.zeros(plain.size)
    for sample in (1, 10, 100, 900, 1000):
        sampled = GaussianRelease(multiplier, Sampling(1000, sample)).rdp(Neighbours.REPLACE_ONE)
        assert np.all(sampled <= plain)
        assert np.all(before <= sampled * (1 + 1e-12))
        before = sampled
    assert before == pytest.approx(plain, rel=1e-12)


@needs_extra
@pytest.mark.parametrize("sample", [20, 1000])
def test_a_bound_for_replaced_users_holds_for_zeros_as_well(sample: int) -> None:
    release = GaussianRelease(1.0, Sampling(1000, sample))
    found = release.rdp(Neighbours.ZERO_OUT)
    replaced, plain = release.rdp(Neighbours.REPLACE_ONE), GaussianRelease(1.0).rdp(Neighbours.ZERO_OUT)
    assert found.tolist() == np.minimum(replaced, plain).tolist()
    assert (found < plain).any() == (sample == 20)
    few, many = (spent(*[release] * 30, neighbours=one) for one in Neighbours)
    assert few <= many


# -- discrete Gaussian in the ring -----------------------------------------------------------------------


def one_part(length: int, sigma: float, honest: int, *, clip_norm: float = 1.0) -> DiscreteGaussianRelease:
    """Return a release in ring units: scale 1."""
    return DiscreteGaussianRelease(clip_norm, (NoisyPart(length, 1.0, sigma),), honest)


@needs_extra
def test_fine_steps_cost_what_the_gaussian_costs() -> None:
    multiplier, clip_norm, honest = 1.3, 2.0, 80
    part = NoisyPart(27_000, 1e9, share_sd(multiplier * clip_norm, honest))
    epsilon = spent(DiscreteGaussianRelease(clip_norm, (part,), honest))
    gaussian = renyi(GaussianRelease(multiplier))
    assert gaussian < epsilon < gaussian * (1 + 1e-6)


@needs_extra
@pytest.mark.parametrize(
    ("length", "scale", "sigma", "honest"),
    [(1, 1.0, 3.0, 1), (27_000, 500.0, 8.0, 60), (10, 1.0, 0.5, 3), (500, 3.0, 0.9, 20)],
)
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_formula_of_the_distributed_discrete_gaussian(
    length: int, scale: float, sigma: float, honest: int, neighbours: Neighbours
) -> None:
    clip_norm = 1.7
    tau = 10 * sum(math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, honest))
    distance = neighbours.value * (scale * clip_norm + math.sqrt(length)) / (math.sqrt(honest) * sigma)
    alpha = accounting.orders()
    expected = np.minimum(
        alpha / 2 * (distance + tau * math.sqrt(length)) ** 2, alpha / 2 * distance**2 + tau * length
    )
    release = DiscreteGaussianRelease(clip_norm, (NoisyPart(length, scale, sigma / scale),), honest)
    assert release.rdp(neighbours) == pytest.approx(expected, rel=1e-12)


def true_divergence(sigma: float, honest: int, shift: int, alpha: float) -> float:
    """Return the Rényi divergence between the sum of discrete Gaussians and the same, moved, by its pmf."""
    x = np.arange(-math.ceil(25 * sigma), math.ceil(25 * sigma) + 1, dtype=np.float64)
    share = np.exp(-x * x / (2 * sigma * sigma))
    share /= share.sum()
    total: npt.NDArray[Any] = share
    for _ in range(honest - 1):
        total = np.convolve(total, share)
    first, second = total[shift:], total[:-shift]
    # Far out, where float64 ends, nothing counts any more.
    shown = (first > 1e-290) & (second > 1e-290)
    logs = alpha * np.log(first[shown]) + (1 - alpha) * np.log(second[shown])
    peak = float(logs.max())
    return (peak + math.log(float(np.exp(logs - peak).sum()))) / (alpha - 1)


@needs_extra
@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.8, 1.2])
@pytest.mark.parametrize("honest", [1, 2, 5, 8])
@pytest.mark.parametrize("shift", [1, 2])
def test_the_bound_holds_for_the_true_distribution(sigma: float, honest: int, shift: int) -> None:
    # √d of the rounding is part of the sensitivity: a shift of that many steps is a norm of one less.
    norm = shift - 1 or 1e-12
    release = one_part(1, sigma, honest, clip_norm=norm)
    alpha = accounting.orders()
    bounds = release.rdp(Neighbours.ZERO_OUT)
    for index in (0, 4, 9, 29, 99):
        true = true_divergence(sigma, honest, shift, float(alpha[index]))
        assert true <= bounds[index] * (1 + 1e-9)


def test_the_bound_needs_its_slack() -> None:
    # Without τ, as for one Gaussian of variance nσ², it would not hold: the divergence is 16 % above.
    assert true_divergence(0.5, 5, 1, 1.01) > 1.1 * 1.01 / (2 * 5 * 0.5**2)
    assert true_divergence(1.5, 1, 1, 2.0) == pytest.approx(2.0 / (2 * 1.5**2), rel=1e-9)


@needs_extra
def test_parts_of_one_scale_are_one_part() -> None:
    whole = DiscreteGaussianRelease(1.0, (NoisyPart(300, 50.0, 0.05),), 9)
    split = DiscreteGaussianRelease(1.0, (NoisyPart(100, 50.0, 0.05), NoisyPart(200, 50.0, 0.05)), 9)
    assert split.rdp(Neighbours.ZERO_OUT) == pytest.approx(whole.rdp(Neighbours.ZERO_OUT), rel=1e-12)
    # The norm may all lie in the part with the least noise.
    uneven = DiscreteGaussianRelease(1.0, (NoisyPart(100, 50.0, 0.05), NoisyPart(200, 50.0, 5.0)), 9)
    alone = DiscreteGaussianRelease(1.0, (NoisyPart(100, 50.0, 0.05),), 9)
    assert np.all(alone.rdp(Neighbours.ZERO_OUT) < uneven.rdp(Neighbours.ZERO_OUT))
    assert np.all(uneven.rdp(Neighbours.ZERO_OUT) < split.rdp(Neighbours.ZERO_OUT))


@needs_extra
def test_a_release_of_a_round_of_secure_aggregation() -> None:
    clip_norm, honest = 2.0, 40
    sd = share_sd(1.1 * clip_norm, honest)
    config = SecAggConfig(
        (RealPart("items", 20_000, clip_norm, sd), RealPart("bias", 50, clip_norm, sd)), n_max=100
    )
    release = DiscreteGaussianRelease.of(config, clip_norm, honest)
    scales = {name: quantizer.scale for name, quantizer in config.quantizers.items()}
    assert release.parts == (NoisyPart(20_000, scales["items"], sd), NoisyPart(50, scales["bias"], sd))
    gaussian = renyi(GaussianRelease(1.1))
    assert gaussian < spent(release) < 1.001 * gaussian


def test_sums_that_say_more_than_the_noise_hides_are_refused() -> None:
    noisy, plain, counts = RealPart("a", 5, 1.0, 0.1), RealPart("b", 5, 1.0), CountPart("c", 5, 1)
    for parts, weight_max, message in (
        ((noisy, plain), 1, "noise of at least 0.5 ring units"),
        ((noisy, counts), 1, "counts of part 'c' are released without noise"),
        ((noisy,), 2, "weights up to 2 is released without noise"),
    ):
        config = SecAggConfig(parts, n_max=4, weight_max=weight_max)
        with pytest.raises(LocalProtocolError, match=message):
            DiscreteGaussianRelease.of(config, 1.0, 3)


# -- more noise, fewer rounds ----------------------------------------------------------------------------

multipliers = st.floats(0.05, 1000)


@needs_extra
@given(multipliers, multipliers, st.integers(1, 100), st.floats(1e-9, 0.5), st.floats(1e-9, 0.5))
@settings(deadline=None, max_examples=50)
def test_epsilon_falls_with_noise_and_delta_and_grows_with_rounds(
    one: float, other: float, rounds: int, first_delta: float, second_delta: float
) -> None:
    accountant = Accountant()
    before = 0.0
    for _ in range(rounds):
        accountant.compose(GaussianRelease(one))
        assert before <= accountant.epsilon(DELTA)
        before = accountant.epsilon(DELTA)
    low, high = sorted((one, other))
    assert spent(*[GaussianRelease(high)] * rounds) <= spent(*[GaussianRelease(low)] * rounds)
    few, many = sorted((first_delta, second_delta))
    assert accountant.epsilon(many) <= accountant.epsilon(few)


@needs_extra
@given(st.floats(0.5, 1e6), st.floats(0.5, 1e6), st.integers(1, 300), st.integers(1, 300))
@settings(deadline=None, max_examples=50)
def test_the_distributed_epsilon_falls_with_noise_and_devices(
    one: float, other: float, few: int, many: int
) -> None:
    low, high = sorted((one, other))
    assert spent(one_part(50, high, few)) <= spent(one_part(50, low, few))
    # τ grows with the number of devices, for narrow noise faster than the noise: wide noise only.
    least, most = sorted((few, many))
    if low >= 2:
        assert spent(one_part(50, low, most)) <= spent(one_part(50, low, least))


@needs_extra
def test_without_limit_noise_leaves_nothing_to_tell() -> None:
    assert spent(GaussianRelease(1e9)) == 0.0
    assert spent(one_part(10, 1e9, 5)) == 0.0
    sampled = GaussianRelease(1e9, Sampling(1000, 20))
    assert spent(sampled, neighbours=Neighbours.REPLACE_ONE) == 0.0
    assert spent(GaussianRelease(1e300, Sampling(1000, 1000)), neighbours=Neighbours.REPLACE_ONE) == 0.0


@needs_extra
def test_mechanisms_add_up_in_one_run() -> None:
    mixed = Accountant()
    for release in (GaussianRelease(2.0), one_part(1, 50.0, 4), GaussianRelease(2.0)):
        mixed.compose(release)
    ratio = (1 + 1) / (50.0 * 2)
    rho = 2 / (2 * 2.0**2) + ratio**2 / 2
    assert mixed.epsilon(DELTA) == pytest.approx(zcdp_epsilon(rho, DELTA), rel=0.01)


# -- what is refused -------------------------------------------------------------------------------------


@needs_extra
@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_deltas_that_are_refused(delta: float) -> None:
    with pytest.raises(LocalProtocolError, match="above 0 and below 1"):
        spent(GaussianRelease(1.0), delta=delta)


@pytest.mark.parametrize("multiplier", [-1.0, math.nan, math.inf])
def test_multipliers_that_are_refused(multiplier: float) -> None:
    with pytest.raises(LocalProtocolError, match="0 or more and finite"):
        GaussianRelease(multiplier)


@pytest.mark.parametrize(("population", "sample"), [(10, 0), (10, 11), (0, 0), (10, -1)])
def test_samples_that_are_refused(population: int, sample: int) -> None:
    with pytest.raises(LocalProtocolError, match="without replacement"):
        Sampling(population, sample)


@pytest.mark.parametrize(
    ("clip_norm", "part", "honest", "message"),
    [
        (0.0, NoisyPart(5, 1.0, 1.0), 3, "clipping norm"),
        (math.inf, NoisyPart(5, 1.0, 1.0), 3, "clipping norm"),
        (math.nan, NoisyPart(5, 1.0, 1.0), 3, "clipping norm"),
        (1.0, NoisyPart(5, 1.0, 1.0), 0, "0 honest devices"),
        (1.0, None, 3, "0 parts"),
        (1.0, NoisyPart(0, 1.0, 1.0), 3, "cannot be accounted for"),
        (1.0, NoisyPart(5, 1.0, 0.49), 3, "at least 0.5 ring units"),
        (1.0, NoisyPart(5, 1.0, 0.0), 3, "at least 0.5 ring units"),
        (1.0, NoisyPart(5, 1.0, math.nan), 3, "at least 0.5 ring units"),
        (1.0, NoisyPart(5, 1.0, math.inf), 3, "at least 0.5 ring units"),
    ],
)
def test_sums_that_cannot_be_accounted_for(
    clip_norm: float, part: NoisyPart | None, honest: int, message: str
) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        DiscreteGaussianRelease(clip_norm, (part,) if part is not None else (), honest)


# -- the optional package --------------------------------------------------------------------------------


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert not accounting.available()
    with pytest.raises(MissingExtraError, match=r"pip install 'recfleet\[dp\]'") as caught:
        Accountant()
    assert isinstance(caught.value, RecfleetError)
    with pytest.raises(MissingExtraError):
        GaussianRelease(1.0).rdp(Neighbours.ZERO_OUT)
    with pytest.raises(MissingExtraError):
        one_part(1, 1.0, 2).rdp(Neighbours.ZERO_OUT)


def test_the_package_is_imported_when_it_is_used() -> None:
    program = (
        "import sys\n"
        "from edge.privacy import accounting\n"
        "accounting.available()\n"
        "accounting.GaussianRelease(1.0)\n"
        "sys.exit(any(name in sys.modules for name in ('dp_accounting', 'scipy', 'absl')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == 0
