"""The privacy of a run, from scenarios as they are written: the noise on sums, and the ε that is spent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from privacy_statistics import distance_to_normal, zcdp_epsilon

from coordinator.engine.device_sums import DeviceSums
from coordinator.engine.privacy import RunPrivacy
from coordinator.engine.secure_sums import SecureSums
from coordinator.scenario.load import load
from coordinator.scenario.protection import ckks_config, masking_config
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.secure_section import Ckks, Masking
from coordinator.secure.sums.encrypted import EncryptedSums
from coordinator.secure.sums.masked import MaskedSums
from edge.core.vocabulary import RoundKind
from edge.crypto.entropy import SecretSource, SeededEntropy
from edge.crypto.noise import Sampler
from edge.homomorphic.schemes import ModelledScheme
from edge.learning.updates import Aggregate
from edge.privacy import accounting
from edge.privacy.accounting import (
    Accountant,
    DiscreteGaussianRelease,
    GaussianRelease,
    Neighbours,
    Release,
    Sampling,
)
from edge.privacy.ledger import Epsilon
from edge.secagg.cryptography import REAL
from edge.secagg.inputs import Sums, decode_sum, encode_input

pytestmark = pytest.mark.skipif(not accounting.available(), reason="needs recfleet[dp]")

CLIP, Z, DELTA = 0.5, 1.5, 1e-6
DEVICES = 500
CENTRAL, LOCAL, DISTRIBUTED = "central-gaussian", "local-gaussian", "distributed-discrete-gaussian"

TEXT = """
format: 2
seed: {seed}
data: {{source: synthetic-ratings, users: 500, items: 40, ratings_per_user: 10}}
fleet: {{mix: global_android_2024}}
learning: {{algorithm: fedrecon, factors: 4, upload: dense, weighting: uniform}}
secure_aggregation: {secure}
privacy: {{mechanism: {mechanism}, clip_norm: 0.5, noise_multiplier: {z}, delta: 1e-6{more}}}
rounds: {{count: 5, cohort: 40, over_select: 125%, quorum: 60%, deadline: 60 s, selection: random}}
"""
LENGTHS = [("factors", 150), ("bias", 10)]
ELEMENTS = 160
OFF, MASKS = "{mode: off}", "{mode: secagg-plus, corrupt: 20%, bits: 32}"
ENCRYPTED = "{mode: ckks, crypto: modelled}"


def scenario(
    folder: Path, mechanism: str, *, secure: str = OFF, seed: int = 7, z: float = Z, more: str = ""
) -> ScenarioSettings:
    file = folder / "run.yaml"
    file.write_text(TEXT.format(mechanism=mechanism, secure=secure, seed=seed, z=z, more=more))
    return load(file).scenario


def sums_of(scenario: ScenarioSettings) -> SecureSums | None:
    section = scenario.secure_aggregation
    if isinstance(section, Masking):
        masks = masking_config(scenario, section, LENGTHS)
        return MaskedSums(masks, section.stage_deadlines, REAL, seed=7, devices=DEVICES)
    if isinstance(section, Ckks):
        ckks = ckks_config(scenario, section, LENGTHS)
        return EncryptedSums(ckks, section.stage_deadlines, ModelledScheme())
    return None


def privacy_of(folder: Path, mechanism: str, **changes: Any) -> tuple[RunPrivacy, SecureSums | None]:
    read = scenario(folder, mechanism, **changes)
    sums = sums_of(read)
    return RunPrivacy(read, {"": sums}, np.full(DEVICES, 10), ELEMENTS), sums


def zeros(n: int) -> Aggregate:
    return Aggregate({"factors": np.zeros((n, 2), np.float32), "bias": np.zeros(n)}, 40.0, 40, 400, 0.5)


def noised_from(privacy: RunPrivacy, secrets: SecretSource) -> Aggregate:
    privacy.draw_from(secrets)
    return privacy.noised(zeros(20_000), 1, frozenset())


def spent(neighbours: Neighbours, *releases: Release) -> float:
    accountant = Accountant(neighbours)
    for release in releases:
        accountant.compose(release)
    return accountant.epsilon(DELTA)


def check_standard_deviation(values: npt.NDArray[Any], sd: float) -> None:
    """Within six standard deviations of its own: a sample's variance has one of √(2/n) of it."""
    flat = values.astype(np.float64).ravel()
    assert float(np.mean(flat**2)) == pytest.approx(sd**2, rel=6 * math.sqrt(2 / flat.size))
    assert abs(float(flat.mean())) < 6 * sd / math.sqrt(flat.size)


# -- the noise on a sum ----------------------------------------------------------------------------------


def test_central_noise_is_on_the_sum_whatever_number_of_devices_is_in_it(tmp_path: Path) -> None:
    privacy, _ = privacy_of(tmp_path, CENTRAL)
    noised = privacy.noised(zeros(40_000), 1, frozenset())
    for array in noised.sums.values():
        check_standard_deviation(array, Z * CLIP)
        assert distance_to_normal(array.ravel() / (Z * CLIP)) < 2.7
    assert {name: array.dtype for name, array in noised.sums.items()} == {
        "factors": np.dtype(np.float32),
        "bias": np.dtype(np.float64),
    }
    assert noised.sums["factors"].shape == (40_000, 2)
    assert (noised.weight, noised.clients, noised.examples, noised.loss) == (40.0, 40, 400, 0.5)


def test_central_noise_is_added_to_what_is_there(tmp_path: Path) -> None:
    privacy, _ = privacy_of(tmp_path, CENTRAL)
    ones = Aggregate({"bias": np.full(1000, 100.0)}, 40.0, 40, 400, 0.5)
    none = Aggregate({"bias": np.zeros(1000)}, 40.0, 40, 400, 0.5)
    difference = (
        privacy.noised(ones, 3, frozenset()).sums["bias"] - privacy.noised(none, 3, frozenset()).sums["bias"]
    )
    np.testing.assert_allclose(difference, 100.0, rtol=0, atol=1e-12)
    assert ones.sums["bias"].tolist() == [100.0] * 1000


def test_central_noise_from_the_system_is_left_when_what_the_scenario_gives_is_subtracted(
    tmp_path: Path,
) -> None:
    privacy, _ = privacy_of(tmp_path, CENTRAL)
    seeded, first, again = (
        noised_from(privacy, source).sums["bias"]
        for source in (SecretSource.SEED, SecretSource.SYSTEM, SecretSource.SYSTEM)
    )
    check_standard_deviation(first, Z * CLIP)
    # Independent noise adds up, and a round that is repeated has noise of its own.
    check_standard_deviation(first - seeded, math.sqrt(2) * Z * CLIP)
    check_standard_deviation(first - again, math.sqrt(2) * Z * CLIP)


def test_central_noise_is_fresh_in_every_round_and_follows_from_the_seed(tmp_path: Path) -> None:
    drawn = {
        (seed, number): privacy_of(tmp_path, CENTRAL, seed=seed)[0]
        .noised(zeros(20_000), number, frozenset())
        .sums["bias"]
        for seed in (7, 8)
        for number in (1, 2)
    }
    again = privacy_of(tmp_path, CENTRAL)[0].noised(zeros(20_000), 2, frozenset()).sums["bias"]
    assert again.tolist() == drawn[7, 2].tolist()
    vectors = np.array(list(drawn.values()))
    correlations = np.corrcoef(vectors) - np.eye(4)
    assert np.abs(correlations).max() < 6 / math.sqrt(20_000)


def test_central_noise_of_nothing_changes_nothing(tmp_path: Path) -> None:
    privacy, _ = privacy_of(tmp_path, CENTRAL, z=0)
    aggregate = zeros(10)
    assert privacy.noised(aggregate, 1, frozenset()) is aggregate


@pytest.mark.parametrize(("mechanism", "secure"), [(LOCAL, OFF), (LOCAL, MASKS), (DISTRIBUTED, MASKS)])
def test_the_coordinator_adds_nothing_where_the_devices_do(
    tmp_path: Path, mechanism: str, secure: str
) -> None:
    privacy, _ = privacy_of(tmp_path, mechanism, secure=secure)
    aggregate = zeros(10)
    assert privacy.noised(aggregate, 1, frozenset()) is aggregate


# -- what devices do -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "secure", "noise_sd", "bare"),
    [
        (CENTRAL, OFF, 0.0, False),
        (CENTRAL, MASKS, 0.0, False),
        (LOCAL, OFF, Z * CLIP, True),
        (LOCAL, MASKS, Z * CLIP, True),
        (DISTRIBUTED, MASKS, 0.0, True),
    ],
)
def test_what_devices_do_to_their_updates(
    tmp_path: Path, mechanism: str, secure: str, noise_sd: float, bare: bool
) -> None:
    protection = privacy_of(tmp_path, mechanism, secure=secure)[0].protection(3)
    assert (protection.clip_norm, protection.noise_sd, protection.bare) == (CLIP, noise_sd, bare)


def test_every_device_has_noise_of_its_own_in_every_round(tmp_path: Path) -> None:
    privacy, _ = privacy_of(tmp_path, LOCAL)
    other, _ = privacy_of(tmp_path, LOCAL, seed=8)
    draws = {
        one.entropy(device, number).bytes(32)
        for one in (privacy, other)
        for device in (0, 1, 499)
        for number in (0, 1, 2)
    }
    assert len(draws) == 18
    assert privacy.entropy(1, 2).bytes(32) == privacy_of(tmp_path, LOCAL)[0].entropy(1, 2).bytes(32)


def test_shares_of_noise_make_the_whole_with_the_fewest_honest_devices(tmp_path: Path) -> None:
    """Of 40 devices 8 may be corrupt: at 24 that must contribute (the quorum), 16 are honest."""
    read = scenario(tmp_path, DISTRIBUTED, secure=MASKS)
    sums = sums_of(read)
    assert isinstance(sums, MaskedSums)
    config = sums.config
    assert (config.n_max, config.min_contributors, config.honest_contributors) == (40, 24, 16)
    # Masks cancel and are left out here; each of the sixteen encodes an update of zeros.
    totals = []
    for number in range(60):
        total = config.ring.zeros(config.length)
        for device in range(16):
            entropy = SeededEntropy(bytes(16), device, number)
            values = {name: np.zeros(length, np.float32) for name, length in LENGTHS}
            config.ring.add_into(total, encode_input(config, values, 1, entropy).vector)
        decoded: Sums = decode_sum(config, total)
        totals.append(np.concatenate([decoded.reals[name] for name, _ in LENGTHS]))
    check_standard_deviation(np.array(totals), Z * CLIP)


# -- ε ---------------------------------------------------------------------------------------------------

FIRST, SECOND, BOTH = frozenset({3}), frozenset({4}), frozenset({3, 4})


def both(*releases: Release) -> Epsilon:
    return Epsilon(spent(Neighbours.ZERO_OUT, *releases), spent(Neighbours.REPLACE_ONE, *releases))


@pytest.mark.parametrize("secure", [OFF, MASKS, ENCRYPTED])
@pytest.mark.parametrize("amplified", [False, True])
def test_the_epsilon_of_central_noise(tmp_path: Path, secure: str, amplified: bool) -> None:
    more = ", amplification: sampling" if amplified else ""
    privacy, sums = privacy_of(tmp_path, CENTRAL, secure=secure, more=more)
    # Rounding adds to what one user can do to the sum, and noise to as much more.
    rounding = 0.0 if sums is None else sums.rounding_norm
    assert (rounding == 0) == (secure == OFF)
    assert rounding < 0.01 * CLIP
    release = GaussianRelease(Z * CLIP / (CLIP + rounding), Sampling(DEVICES, 50) if amplified else None)
    for count in (1, 2, 3):
        privacy.spend("", FIRST)
        assert privacy.epsilon() == both(*[release] * count)
    plain = spent(Neighbours.REPLACE_ONE, *[GaussianRelease(Z)] * 3)
    epsilon = privacy.epsilon()
    assert epsilon is not None
    assert not amplified or epsilon.replace_one < 0.5 * plain, "50 of 500 devices are invited"


def test_no_more_devices_are_drawn_than_there_are(tmp_path: Path) -> None:
    read = scenario(tmp_path, CENTRAL, more=", amplification: sampling")
    privacy = RunPrivacy(read, {"": None}, np.full(30, 10), ELEMENTS)
    privacy.spend("", FIRST)
    assert privacy.epsilon() == both(GaussianRelease(Z, Sampling(30, 30)))


@pytest.mark.parametrize("secure", [OFF, MASKS])
def test_the_epsilon_of_local_noise_is_that_of_one_report(tmp_path: Path, secure: str) -> None:
    """A sum, and what rounding does to it, come after the noise: they cannot tell more."""
    privacy, _ = privacy_of(tmp_path, LOCAL, secure=secure)
    for count in (1, 2):
        privacy.spend("", BOTH)
        assert privacy.epsilon() == both(*[GaussianRelease(Z)] * count)


def test_the_epsilon_of_noise_in_shares_counts_on_the_honest_only(tmp_path: Path) -> None:
    privacy, sums = privacy_of(tmp_path, DISTRIBUTED, secure=MASKS)
    assert isinstance(sums, MaskedSums)
    release = DiscreteGaussianRelease.of(sums.config, CLIP, 16)
    for count in (1, 2):
        privacy.spend("", BOTH)
        assert privacy.epsilon() == both(*[release] * count)
    # As good as the noise were central: what rounding and the ring cost is little.
    central = zcdp_epsilon(2 / (2 * Z**2), DELTA)
    assert central < spent(Neighbours.ZERO_OUT, *[release] * 2) < 1.01 * central


@pytest.mark.parametrize(
    ("mechanism", "secure"), [(CENTRAL, OFF), (CENTRAL, MASKS), (LOCAL, OFF), (DISTRIBUTED, MASKS)]
)
def test_epsilon_is_that_of_the_device_that_reported_most(
    tmp_path: Path, mechanism: str, secure: str
) -> None:
    privacy, _ = privacy_of(tmp_path, mechanism, secure=secure)
    once = privacy_of(tmp_path, mechanism, secure=secure)[0]
    assert privacy.epsilon() == Epsilon(0.0, 0.0)
    once.spend("", BOTH)
    for devices in (FIRST, SECOND, frozenset({7, 8, 9})):
        privacy.spend("", devices)
        assert privacy.epsilon() == once.epsilon()
    privacy.spend("", frozenset())
    assert privacy.epsilon() == once.epsilon()
    privacy.spend("", SECOND)
    twice, one = privacy.epsilon(), once.epsilon()
    assert twice is not None
    assert one is not None
    assert twice.zero_out > one.zero_out
    assert twice.replace_one > one.replace_one > one.zero_out
    assert privacy.facts()["most_releases"] == 2
    assert privacy.facts()["counted_for"] == "the device that reported most"


def test_where_the_draw_is_hidden_a_round_counts_for_every_device(tmp_path: Path) -> None:
    privacy, _ = privacy_of(tmp_path, CENTRAL, more=", amplification: sampling")
    privacy.spend("", FIRST)
    privacy.spend("", SECOND)
    release = GaussianRelease(Z, Sampling(DEVICES, 50))
    assert privacy.epsilon() == both(release, release)
    assert privacy.facts()["counted_for"] == "every device"


def test_phases_that_sum_in_other_ways_add_up(tmp_path: Path) -> None:
    read = scenario(tmp_path, CENTRAL)
    sums = sums_of(scenario(tmp_path, CENTRAL, secure=MASKS))
    assert sums is not None
    privacy = RunPrivacy(read, {"clear": None, "masked": sums}, np.full(DEVICES, 10), ELEMENTS)
    masked, clear = GaussianRelease(Z * CLIP / (CLIP + sums.rounding_norm)), GaussianRelease(Z)
    privacy.spend("clear", FIRST)
    privacy.spend("masked", SECOND)
    assert privacy.epsilon() == both(masked), "the heavier of two devices"
    privacy.spend("masked", FIRST)
    assert privacy.epsilon() == both(clear, masked)
    again = RunPrivacy(read, {"clear": None, "masked": sums}, np.full(DEVICES, 10), ELEMENTS)
    again.recall(privacy.memory())
    assert again.epsilon() == privacy.epsilon()


@pytest.mark.parametrize(("mechanism", "secure"), [(CENTRAL, OFF), (LOCAL, OFF), (DISTRIBUTED, MASKS)])
def test_epsilon_is_not_asked_for(tmp_path: Path, mechanism: str, secure: str) -> None:
    privacy, _ = privacy_of(tmp_path, mechanism, secure=secure, more=", accounting: false")
    privacy.spend("", BOTH)
    assert privacy.epsilon() is None
    assert privacy.facts()["epsilon"] is privacy.facts()["epsilon_replace_one"] is None


def test_no_noise_is_no_privacy(tmp_path: Path) -> None:
    privacy, _ = privacy_of(tmp_path, CENTRAL, z=0)
    privacy.spend("", FIRST)
    assert privacy.epsilon() == (math.inf, math.inf)
    assert privacy.facts()["epsilon"] == "infinite"


# -- how noise is sampled --------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [CENTRAL, LOCAL])
@pytest.mark.parametrize("written", [None, Sampler.DISCRETE, Sampler.FLOATING_POINT])
def test_noise_is_discrete_on_the_real_clock_unless_the_scenario_says_how(
    tmp_path: Path, mechanism: str, written: Sampler | None
) -> None:
    more = "" if written is None else f", sampler: {written.value}"
    privacy, _ = privacy_of(tmp_path, mechanism, more=more)
    for secrets, by_clock in (
        (SecretSource.SEED, Sampler.FLOATING_POINT),
        (SecretSource.SYSTEM, Sampler.DISCRETE),
    ):
        privacy.draw_from(secrets)
        expected = by_clock if written is None else written
        assert privacy.facts()["sampler"] == expected.value
        assert mechanism == CENTRAL or privacy.protection(3).sampler is expected


def test_what_rounding_to_the_grid_adds_is_accounted_for(tmp_path: Path) -> None:
    privacy, _ = privacy_of(tmp_path, CENTRAL, more=", sampler: discrete")
    privacy.spend("", FIRST)
    # 0.75 is from 2^-1 to 2^0, and has 2^30 steps or more.
    rounding = 2.0**-31 * math.sqrt(ELEMENTS)
    assert privacy.epsilon() == both(GaussianRelease(Z * CLIP / (CLIP + rounding)))


def test_an_evaluation_spends_beside_the_rounds_and_may_be_counted_beforehand(tmp_path: Path) -> None:
    read = scenario(tmp_path, "local-gaussian")
    workload: Any = None
    asked = {RoundKind.EVALUATION: DeviceSums(read.evaluation_rounds, workload, {"": None}, noisy=True)}
    privacy = RunPrivacy(read, {"": None}, np.full(DEVICES, 10), ELEMENTS, asked)
    privacy.spend("", frozenset({3}))
    trained = privacy.epsilon()
    at_most = privacy.memory_at_most("", np.array([3, 4]), RoundKind.EVALUATION)["spent"]
    assert privacy.epsilon() == trained, "nothing is spent yet"
    privacy.spend("", frozenset({3, 4}), RoundKind.EVALUATION)
    np.testing.assert_array_equal(at_most, privacy.memory()["spent"])
    both = privacy.epsilon()
    assert both is not None
    assert trained is not None
    assert both.zero_out > trained.zero_out
