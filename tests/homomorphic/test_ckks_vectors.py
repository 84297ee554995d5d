"""The configuration, and vectors to whole numbers and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from homomorphic_harness import CLIP, long_config, small_config

from edge.core.errors import LocalProtocolError
from edge.crypto import errors
from edge.homomorphic.config import LEVELS_MAX, SLOTS, SUM_MAX, CkksConfig, ImpreciseSumError
from edge.homomorphic.schemes import Scheme, TensealScheme
from edge.homomorphic.vectors import decode_sum, encode_input, settle
from edge.secagg.config import CountPart, RealPart

REAL, COUNT = RealPart("factors", 2, CLIP), CountPart("touched", 2, 3)


def test_lengths() -> None:
    assert (small_config().length, small_config().ciphertexts) == (13, 1)
    assert (long_config().length, long_config().ciphertexts) == (4_102, 2)
    assert CkksConfig((RealPart("factors", SLOTS - 2, 1.0),), 2).ciphertexts == 1
    assert CkksConfig((RealPart("factors", SLOTS - 1, 1.0),), 2).ciphertexts == 2


def test_the_hash_is_of_everything_that_both_ends_must_agree_on() -> None:
    configs = [
        CkksConfig((REAL, COUNT), 9),
        CkksConfig((COUNT, REAL), 9),
        CkksConfig((REAL,), 9),
        CkksConfig((RealPart("factors", 2, 1.0), COUNT), 9),
        CkksConfig((REAL, CountPart("touched", 2, 4)), 9),
        CkksConfig((REAL, COUNT), 10),
        CkksConfig((REAL, COUNT), 9, weight_max=2),
        CkksConfig((REAL, COUNT), 9, min_contributors=3),
    ]
    assert len({config.hash for config in configs}) == len(configs)
    assert CkksConfig((REAL, COUNT), 9).hash == configs[0].hash
    assert len(configs[0].hash) == 32


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"parts": ()}, LocalProtocolError),
        ({"parts": (REAL, REAL)}, LocalProtocolError),
        ({"parts": (RealPart("", 1, 1.0),)}, LocalProtocolError),
        ({"parts": (RealPart("factors", 0, 1.0),)}, LocalProtocolError),
        ({"parts": (CountPart("touched", 1, 0),)}, LocalProtocolError),
        ({"parts": (RealPart("factors", 1, 1.0, noise_sd=0.1),)}, LocalProtocolError),
        ({"parts": (RealPart("factors", 1, 0.0),)}, errors.OverflowingConfigError),
        ({"parts": (RealPart("factors", 1, np.inf),)}, errors.OverflowingConfigError),
        ({"parts": (RealPart("factors", 1, np.nan),)}, errors.OverflowingConfigError),
        ({"parts": (REAL,), "weight_max": 0}, errors.OverflowingConfigError),
        ({"parts": (REAL,), "n_max": 0}, errors.OverflowingConfigError),
        ({"parts": (REAL,), "weight_max": SUM_MAX // 2 + 1}, errors.OverflowingConfigError),
        ({"parts": (CountPart("touched", 1, SUM_MAX // 2 + 1),)}, errors.OverflowingConfigError),
        ({"parts": (REAL,), "min_contributors": 1}, errors.TooFewContributorsError),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        CkksConfig(**({"n_max": 2} | arguments))


def test_as_many_steps_as_sums_are_exact_for() -> None:
    assert CkksConfig((REAL,), 2).levels == LEVELS_MAX
    assert CkksConfig((REAL,), SUM_MAX // LEVELS_MAX).levels == LEVELS_MAX
    assert CkksConfig((REAL,), SUM_MAX // LEVELS_MAX + 1).levels == LEVELS_MAX // 2
    assert CkksConfig((REAL,), 1_000, weight_max=1_000).levels == 2**24
    assert CkksConfig((REAL,), 2**20, weight_max=2**24).levels == 1
    assert CkksConfig((COUNT,), 2, weight_max=5).levels == LEVELS_MAX


def test_values_are_rounded_to_the_nearest_step() -> None:
    config = CkksConfig((REAL,), 2, weight_max=3)
    step = CLIP / config.levels
    values = np.array([0.4 * step, -0.6 * step])
    encoded = encode_input(config, {"factors": values}, 1)
    assert encoded.vector.tolist() == [0, -1, 1, 1]
    assert encode_input(config, {"factors": values}, 3).vector.tolist() == [1, -2, 3, 1]


def test_the_largest_values_do_not_lead_beyond_the_largest_sum() -> None:
    config = CkksConfig((RealPart("factors", 4, 0.1),), 2, weight_max=7)
    values = np.array([0.1, -0.1, np.nextafter(0.1, 1), 1e300])
    encoded = encode_input(config, {"factors": values}, 7)
    assert (encoded.clipped, encoded.nonzero) == (2, 4)
    assert np.abs(encoded.vector[:4]).tolist() == [7 * config.levels] * 4
    decode_sum(config, 2 * encoded.vector, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_weight_of_zero_adds_nothing_but_a_contributor(dtype: type[Any]) -> None:
    encoded = encode_input(CkksConfig((REAL,), 2), {"factors": np.array([1, -9], dtype=dtype)}, 0)
    assert encoded.vector.tolist() == [0, 0, 0, 1]
    assert encoded.clipped == 1


@pytest.mark.parametrize(
    ("changes", "weight", "error"),
    [
        ({}, -1, errors.WeightError),
        ({}, 4, errors.WeightError),
        ({}, 1.0, errors.WeightError),
        ({}, True, errors.WeightError),
        ({"loss": np.zeros(1)}, 1, errors.MalformedMessageError),
        ({"factors": np.zeros(3)}, 1, errors.WrongLengthError),
        ({"factors": np.zeros((1, 2))}, 1, errors.WrongLengthError),
        ({"factors": np.zeros(2, dtype=np.int64)}, 1, errors.WrongDtypeError),
        ({"factors": np.array([0, np.nan])}, 1, errors.NotFiniteError),
        ({"factors": np.array([0, -np.inf], dtype=np.float32)}, 1, errors.NotFiniteError),
        ({"touched": np.zeros(2)}, 1, errors.WrongDtypeError),
        ({"touched": np.array([0, 4])}, 1, errors.ValueRangeError),
        ({"touched": np.array([-4, 0])}, 1, errors.ValueRangeError),
        ({"touched": np.array([-128, 0], dtype=np.int8)}, 1, errors.ValueRangeError),
    ],
)
def test_an_input_that_is_not_planned_for_is_refused(
    changes: dict[str, Any], weight: Any, error: type[Exception]
) -> None:
    config = CkksConfig((REAL, COUNT), 2, weight_max=3)
    values = {"factors": np.zeros(2), "touched": np.zeros(2, dtype=np.int64)} | changes
    with pytest.raises(error):
        encode_input(config, values, weight)


def test_settling_takes_noise_off_and_the_sign_off_zero() -> None:
    settled = settle(np.array([-1e-9, 0.25, 6.75, -2.2, 2.0**44 + 0.01]))
    assert settled.tolist() == [0, 0, 7, -2, 2.0**44]
    assert not np.signbit(settled[0])


@pytest.mark.parametrize(
    ("number", "error"),
    [(0.26, ImpreciseSumError), (-3.5, ImpreciseSumError), (np.nan, ImpreciseSumError)],
)
def test_what_is_too_far_from_whole_is_not_believed(number: float, error: type[Exception]) -> None:
    with pytest.raises(error):
        settle(np.array([1.0, number]))


def test_a_decoded_sum() -> None:
    config = CkksConfig((REAL, COUNT), 2, weight_max=3)
    sums = decode_sum(config, np.array([config.levels, -3.0 * config.levels, 6, -1, 3, 2]), 2)
    assert sums.reals["factors"].tolist() == [CLIP, -3 * CLIP]
    assert sums.reals["factors"].dtype == np.float64
    assert sums.counts["touched"].tolist() == [6, -1]
    assert sums.counts["touched"].dtype == np.int64
    assert (sums.weight, sums.contributors) == (3, 2)


@pytest.mark.parametrize("devices", [2, 30])
def test_sums_of_the_largest_numbers_are_exact(tenseal_scheme: TensealScheme, devices: int) -> None:
    """At the limit of ``SUM_MAX``, in every slot, the noise is far from what would be refused."""
    random = np.random.default_rng(devices)
    largest = SUM_MAX // devices
    running = tenseal_scheme.public.running_sum()
    total = np.zeros(SLOTS)
    for device in range(devices):
        # Half of them with all signs equal: the worst for the coefficients of the polynomial.
        low = largest // 2 if device % 2 else -largest
        vector = random.integers(low, largest, SLOTS, endpoint=True).astype(np.float64)
        running.add(tenseal_scheme.secret.encrypt(vector))
        total += vector
    opened = tenseal_scheme.secret.decrypt(running.ciphertexts())
    assert np.abs(opened - total).max() < 0.05
    np.testing.assert_array_equal(settle(opened), total)


def test_small_sums_have_little_noise(tenseal_scheme: TensealScheme) -> None:
    vector = np.arange(100.0)
    running = tenseal_scheme.public.running_sum()
    for _ in range(10):
        running.add(tenseal_scheme.secret.encrypt(vector))
    error = np.abs(tenseal_scheme.secret.decrypt(running.ciphertexts())[:100] - 10 * vector).max()
    assert 0 < error < 1e-6


def test_encrypting_and_decrypting_fills_whole_ciphertexts(scheme: Scheme) -> None:
    vector = np.arange(SLOTS + 1.0)
    ciphertexts = scheme.secret.encrypt(vector)
    opened = scheme.secret.decrypt(ciphertexts)
    assert len(ciphertexts) == 2
    assert opened.shape == (2 * SLOTS,)
    np.testing.assert_allclose(opened, np.concatenate([vector, np.zeros(SLOTS - 1)]), atol=1e-6)
