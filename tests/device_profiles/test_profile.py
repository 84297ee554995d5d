from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from device_profiles.availability import (
    BatteryGated,
    Bernoulli,
    Diurnal,
    Exponential,
    HeavyTail,
    LogNormal,
    OnOffSessions,
    RegionalOutage,
)
from device_profiles.errors import ProfileError, UnknownProfileError
from device_profiles.profile import (
    CryptoProfile,
    DeviceProfile,
    FleetMix,
    NetworkProfile,
    OutageProfile,
    RadioProfile,
    SlowRateProfile,
    ThermalProfile,
)
from device_profiles.schema import FrozenMap

COOL = ThermalProfile("cool", floor=1.0, onset_s=0.0, tau_s=1.0)
CRYPTO = CryptoProfile("crypto", 1e-4, 2e-4, 3e-6, 1e-4, 4e-4, 1e9, 5e7, 1e8, 0.02, 0.005, {"seal_s": "x"})
RADIO = RadioProfile("radio", 0.26, 1.21, 10.0, 1.06, 0.0, 0.0, 1.2, 4.4e-7, 5.2e-8)
DEVICE = DeviceProfile(
    "phone", "a phone", 2e10, 4e10, 9e9, 2**32, 8e-6, 3.0, 0.2, 5e4, COOL, CRYPTO, {"ram_bytes": "x"}
)
NETWORK = NetworkProfile("net", 3e7, 8e6, 0.02, 0.005, 0.001, 0.6, 0.8, RADIO)
BATTERY = BatteryGated("b", 6e4, 0.2, 0.2, 1.0, 0.5, 10.0, 22.0, 8.0)


@pytest.mark.parametrize(
    ("profile", "change", "field", "part"),
    [
        (DEVICE, {"name": "A phone"}, "name", "small letters"),
        (DEVICE, {"flops_1_thread": 0.0}, "flops_1_thread", "above zero"),
        (DEVICE, {"flops_1_thread": 5e10}, "flops_all_threads", "slower than one thread"),
        (DEVICE, {"memory_bytes_per_s": float("nan")}, "memory_bytes_per_s", "finite"),
        (DEVICE, {"ram_bytes": 1.5}, "ram_bytes", "whole number"),
        (DEVICE, {"ram_bytes": True}, "ram_bytes", "finite number"),
        (DEVICE, {"op_overhead_s": -1.0}, "op_overhead_s", "zero or more"),
        (DEVICE, {"active_power_w": float("inf")}, "active_power_w", "finite"),
        (DEVICE, {"battery_j": 0.0}, "battery_j", "above zero"),
        (COOL, {"floor": 0.0}, "floor", "above 0"),
        (COOL, {"floor": 1.1}, "floor", "at most 1"),
        (COOL, {"tau_s": 0.0}, "tau_s", "above zero"),
        (CRYPTO, {"name": "Crypto"}, "name", "small letters"),
        (CRYPTO, {"key_pair_s": -1e-6}, "key_pair_s", "zero or more"),
        (CRYPTO, {"key_exchange_s": float("nan")}, "key_exchange_s", "finite"),
        (CRYPTO, {"seal_s": -1.0}, "seal_s", "zero or more"),
        (CRYPTO, {"sign_s": float("inf")}, "sign_s", "finite"),
        (CRYPTO, {"verify_s": "1 ms"}, "verify_s", "finite number"),
        (CRYPTO, {"expand_bytes_per_s": 0.0}, "expand_bytes_per_s", "above zero"),
        (CRYPTO, {"quantise_elements_per_s": float("inf")}, "quantise_elements_per_s", "finite"),
        (CRYPTO, {"share_products_per_s": -1.0}, "share_products_per_s", "above zero"),
        (CRYPTO, {"ckks_encrypt_s": True}, "ckks_encrypt_s", "finite number"),
        (CRYPTO, {"ckks_decrypt_s": -1.0}, "ckks_decrypt_s", "zero or more"),
        (RADIO, {"tail_w": -0.1}, "tail_w", "zero or more"),
        (NETWORK, {"down_bps": 0.0}, "down_bps", "above zero"),
        (NETWORK, {"loss": 1.0}, "loss", "below 1"),
        (NETWORK, {"rate_rho_1s": 1.01}, "rate_rho_1s", "between 0 and 1"),
        (NETWORK, {"device_sigma_log": -0.1}, "device_sigma_log", "zero or more"),
        (SlowRateProfile(0.4, 60.0), {"sigma_log": 0.0}, "sigma_log", "above zero"),
        (SlowRateProfile(0.4, 60.0), {"time_s": float("inf")}, "time_s", "finite"),
        (NETWORK, {"connect_success": 0.0}, "connect_success", "above 0"),
        (NETWORK, {"duty_cycle": 2.0}, "duty_cycle", "at most 1"),
        (OutageProfile(0.1, 3.0), {"fraction": 1.0}, "fraction", "below 1"),
        (OutageProfile(0.1, 3.0), {"mean_s": 0.0}, "mean_s", "above zero"),
        (Bernoulli("b", 0.1, 0.2, 0.5, 0.3), {"during_upload": 0.4}, "before_download", "sum to 1.1"),
        (Bernoulli("b", 0.1, 0.2, 0.5, 0.3), {"drop_probability": 1.5}, "drop_probability", "between"),
        (Diurnal("d", 0.15, 4.0, 2.0), {"peak_to_trough": 0.5}, "peak_to_trough", "1 or more"),
        (Diurnal("d", 0.15, 4.0, 2.0), {"peak_local_hour": 24.0}, "peak_local_hour", "hour of the day"),
        (Diurnal("d", 0.15, 4.0, 2.0), {"mean_available": 0.63}, "mean_available", "at most 0.625"),
        (BATTERY, {"start_charge_low": 0.9, "start_charge_high": 0.5}, "start_charge_low", "above"),
        (BATTERY, {"charge_power_w": 0.5}, "charge_power_w", "never charge"),
        (BATTERY, {"plugged_hours": 25.0}, "plugged_hours", "at most 24"),
        (RegionalOutage("r", 8, 1e5, 900.0), {"regions": 0}, "regions", "1 or more"),
        (HeavyTail("h", 0.1, 0.3, 0.86), {"top_participation": 0.2}, "top_participation", "at least that"),
        (HeavyTail("h", 0.1, 0.3, 0.86), {"top_share": 0.0}, "top_share", "above zero"),
        (Exponential(60.0), {"mean_s": 0.0}, "mean_s", "above zero"),
        (LogNormal(60.0, 0.9), {"sigma_log": -1.0}, "sigma_log", "zero or more"),
    ],
)
def test_a_bad_value_is_refused_at_its_field(
    profile: Any, change: dict[str, Any], field: str, part: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        dataclasses.replace(profile, **change)
    assert caught.value.field == field
    assert part in caught.value.problem
    assert f"{field}: " in str(caught.value)


@pytest.mark.parametrize(
    ("devices", "part"),
    [
        ({}, "is empty"),
        ({"a": 0.5, "b": 0.4}, "sum to 0.9"),
        ({"a": 0.5, "b": 0.500002}, "sum to 1"),
        ({"a": 1.0, "b": 0.0}, "above 0"),
        ({"a": 1.5}, "at most 1"),
    ],
)
def test_shares_that_do_not_make_a_whole(devices: dict[str, float], part: str) -> None:
    with pytest.raises(ProfileError, match=part):
        FleetMix("fleet", devices, {"net": 1.0}, "always_on")


def test_shares_within_the_tolerance_are_scaled_to_one_and_keep_their_order() -> None:
    mix = FleetMix("fleet", {"z": 0.3333333, "a": 0.6666668}, {"net": 1.0}, "always_on")
    assert list(mix.devices) == ["z", "a"]
    assert sum(mix.devices.values()) == pytest.approx(1.0, abs=1e-15)
    assert mix.devices["z"] == pytest.approx(0.3333333 / 1.0000001, rel=1e-12)


def test_profiles_are_immutable_hashable_and_survive_pickling() -> None:
    mix = FleetMix("fleet", {"phone": 1.0}, {"net": 1.0}, "always_on", {"devices": "mine"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        mix.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        mix.devices["phone"] = 0.5  # type: ignore[index]
    for profile in (mix, DEVICE, CRYPTO, NETWORK, OnOffSessions("o", Exponential(60.0), LogNormal(5.0, 0.9))):
        again = pickle.loads(pickle.dumps(profile))
        assert again == profile
        assert hash(again) == hash(profile)
    again = pickle.loads(pickle.dumps(DEVICE))
    assert (again.sources, again.crypto.sources) == ({"ram_bytes": "x"}, {"seal_s": "x"})


def test_a_free_primitive_is_allowed_and_where_a_number_is_from_does_not_tell_profiles_apart() -> None:
    free = dataclasses.replace(CRYPTO, key_pair_s=0.0, sources={})
    assert free.key_pair_s == 0.0
    assert free != CRYPTO
    assert dataclasses.replace(free, key_pair_s=CRYPTO.key_pair_s) == CRYPTO


def test_a_profile_does_not_share_the_mapping_it_was_given() -> None:
    devices = {"phone": 1.0}
    mix = FleetMix("fleet", devices, {"net": 1.0}, "always_on")
    devices["phone"] = 0.1
    assert mix.devices["phone"] == 1.0


def test_a_frozen_map_cannot_change() -> None:
    frozen = FrozenMap({"a": 1})
    with pytest.raises(AttributeError, match="cannot change"):
        frozen._items = {}
    assert frozen == {"a": 1}
    assert frozen == FrozenMap({"a": 1})
    assert frozen != FrozenMap({"a": 2})
    assert hash(FrozenMap({"a": 1, "b": 2})) == hash(FrozenMap({"b": 2, "a": 1}))


def test_errors_survive_pickling() -> None:
    for error in (ProfileError("device 'x'", "loss", "is bad"), UnknownProfileError("device", "x", "y")):
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert vars(again) == vars(error)
