from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from device_profiles import catalogue
from device_profiles.profile import CryptoProfile
from edge.device.compute_model import CryptoCosts, CryptoSpecs
from edge.secagg.participant import CryptoWork

CORE = CryptoProfile(
    name="core",
    key_pair_s=1e-3,
    key_exchange_s=2e-3,
    seal_s=5e-4,
    sign_s=3e-3,
    verify_s=7e-3,
    expand_bytes_per_s=1e7,
    quantise_elements_per_s=2e6,
    share_products_per_s=4e6,
    ckks_encrypt_s=0.04,
    ckks_decrypt_s=0.02,
)
QUICK = CryptoProfile("quick", 1e-5, 2e-5, 3e-6, 4e-5, 5e-5, 1e9, 1e8, 5e8, 6e-3, 7e-3)
BOARD = dataclasses.replace(catalogue.load().device("sbc_pi4"), crypto=CORE)
PHONE = dataclasses.replace(BOARD, crypto=QUICK)

ONE_OF_EACH = {
    "key_pairs": ("key_pair_s", 1e-3),
    "exchanges": ("exchange_s", 2e-3),
    "seals": ("seal_s", 5e-4),
    "signatures": ("signature_s", 3e-3),
    "verifications": ("verification_s", 7e-3),
    "expanded_bytes": ("expanded_byte_s", 1e-7),
    "quantised": ("quantised_s", 5e-7),
    "share_products": ("share_product_s", 2.5e-7),
    "encryptions": ("encryption_s", 0.04),
    "decryptions": ("decryption_s", 0.02),
}
"""Count -> its cost, and what one unit of it takes ``CORE``: no two take the same."""


def test_the_counts_the_costs_and_the_columns_have_one_order() -> None:
    assert CryptoWork._fields == tuple(ONE_OF_EACH)
    assert CryptoCosts._fields == tuple(cost for cost, _ in ONE_OF_EACH.values())
    assert tuple(field.name for field in dataclasses.fields(CryptoSpecs)) == CryptoCosts._fields


@pytest.mark.parametrize("count", ONE_OF_EACH)
def test_each_count_is_charged_at_its_own_cost(count: str) -> None:
    cost, one_s = ONE_OF_EACH[count]
    (costs,) = CryptoSpecs.of([BOARD]).rows()
    assert getattr(costs, cost) == one_s
    assert costs.seconds(CryptoWork(**{count: 1})) == one_s
    assert costs.seconds(CryptoWork(**{count: 1000})) == pytest.approx(1000 * one_s, rel=1e-15)


def test_every_cost_of_a_profile_is_charged() -> None:
    work = CryptoWork(*[1] * len(CryptoWork._fields))
    before_s = CryptoCosts.of(CORE).seconds(work)
    numbers = [f.name for f in dataclasses.fields(CryptoProfile) if f.name not in ("name", "sources")]
    assert len(numbers) == len(CryptoWork._fields)
    for name in numbers:
        changed = dataclasses.replace(CORE, **{name: 2 * getattr(CORE, name)})
        after_s = CryptoCosts.of(changed).seconds(work)
        assert after_s < before_s if name.endswith("_per_s") else after_s > before_s, name


def test_the_work_of_one_round_by_hand() -> None:
    work = CryptoWork(
        key_pairs=2,
        exchanges=60,
        seals=60,
        signatures=2,
        verifications=30,
        expanded_bytes=31 * 400_000,
        quantised=100_000,
        share_products=2 * 31 * 21 * 16,
    )
    seconds = 0.002 + 0.12 + 0.03 + 0.006 + 0.21 + 1.24 + 0.05 + 0.005208
    assert CryptoCosts.of(CORE).seconds(work) == pytest.approx(seconds, rel=1e-14)
    ciphertexts = CryptoWork(encryptions=7, decryptions=7)
    assert CryptoCosts.of(CORE).seconds(ciphertexts) == pytest.approx(0.42, rel=1e-14)


def test_no_work_takes_no_time() -> None:
    assert CryptoCosts.of(CORE).seconds(CryptoWork()) == 0.0


def test_the_sum_is_rounded_once() -> None:
    # Added one after the other, as sum does before Python 3.12, the small ones vanish beside 1.
    free = dataclasses.replace(CORE, key_pair_s=1.0, key_exchange_s=2.0**-53, seal_s=2.0**-53)
    work = CryptoWork(key_pairs=1, exchanges=1, seals=1)
    assert CryptoCosts.of(free).seconds(work) == 1.0 + 2.0**-52


def test_a_table_of_classes_becomes_a_row_per_device() -> None:
    table = CryptoSpecs.of([BOARD, PHONE])
    assert table.key_pair_s.tolist() == [1e-3, 1e-5]
    assert table.quantised_s.tolist() == [1 / 2e6, 1 / 1e8]
    devices = table.take(np.array([1, 0, 1], np.uint8))
    assert devices.verification_s.tolist() == [5e-5, 7e-3, 5e-5]
    for field in dataclasses.fields(devices):
        column = getattr(devices, field.name)
        assert (column.dtype, column.shape) == (np.dtype(np.float64), (3,))
    quick, core = CryptoCosts.of(QUICK), CryptoCosts.of(CORE)
    assert devices.rows() == [quick, core, quick]


def test_the_costs_of_one_device_are_plain_floats() -> None:
    (costs,) = CryptoSpecs.of([BOARD]).rows()
    assert [type(cost) for cost in costs] == [float] * 10
    assert type(costs.seconds(CryptoWork(seals=3))) is float


def test_no_devices_have_no_rows() -> None:
    assert CryptoSpecs.of([]).rows() == []
    assert CryptoSpecs.of([BOARD]).take(np.array([], np.int64)).rows() == []


def test_every_shipped_device_can_be_charged() -> None:
    devices = list(catalogue.load().devices.values())
    work = CryptoWork(*[1] * len(CryptoWork._fields))
    taken = {
        device.name: costs.seconds(work)
        for device, costs in zip(devices, CryptoSpecs.of(devices).rows(), strict=True)
    }
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in taken.values())
    assert taken["laptop_m1"] < taken["phone_flagship_2023"] < taken["phone_mid_2020"]
    assert taken["phone_mid_2020"] < taken["phone_entry_a53"] < taken["gateway_a7"] < taken["mcu_esp32c3"]
