from __future__ import annotations

import re

import pytest

from device_profiles import catalogue
from device_profiles.availability import Diurnal, HeavyTail, LogNormal, OnOffSessions
from device_profiles.errors import UnknownProfileError

SHIPPED = catalogue.load()
EVERY_PROFILE = [(section, name) for section, names in SHIPPED.names().items() for name in names]
WORDS = {"example", "note", "kind", "thermal", "crypto", "radio", "availability", "distribution"}


def test_the_shipped_catalogue_is_whole() -> None:
    counts = {section: len(names) for section, names in SHIPPED.names().items()}
    assert counts == {
        "devices": 20,
        "networks": 19,
        "availability": 8,
        "fleets": 7,
        "radios": 6,
        "thermal": 4,
        "crypto": 8,
    }


def test_it_is_read_once() -> None:
    assert catalogue.load() is SHIPPED


@pytest.mark.parametrize(("section", "name"), EVERY_PROFILE)
def test_every_number_has_a_source(section: str, name: str) -> None:
    rows = SHIPPED.describe(name, section)
    assert rows or (section, name) == ("availability", "always_on")
    for row in rows:
        if row.field.split(".")[-1] in WORDS:
            assert row.source == ""
            assert row.citation == ""
        else:
            assert row.citation, row


def test_what_the_documentation_calls_assumed_is() -> None:
    bases = [
        (row.field, row.basis)
        for section, name in EVERY_PROFILE
        for row in SHIPPED.describe(name, section)
        if row.basis and "." not in row.field
    ]
    for field in ("op_overhead", "compute_sigma", "battery", "jitter"):
        assert {basis for key, basis in bases if key == field} == {"assumed"}
    assert 0.3 < sum(basis == "measured" for _, basis in bases) / len(bases) < 0.5
    assert SHIPPED.bases("crypto", "x86_server") == {"measured": 10}


def test_no_source_is_left_unused() -> None:
    used = {row.source for section, name in EVERY_PROFILE for row in SHIPPED.describe(name, section)}
    text = " ".join(used)
    assert [key for key in SHIPPED.sources if not re.search(rf"\b{key}\b", text)] == []


def test_what_a_network_says() -> None:
    network = SHIPPED.network("4g_uk")
    assert network.down_bps == 29.5e6
    assert network.up_bps == 7.6e6
    assert network.rtt_s == 0.021
    assert network.loss == 0.001
    assert network.connect_success == 0.972
    assert network.outage is None
    assert network.radio.up_w_per_bps == 438.39e-9
    assert network.sources["down_bps"] == "ofcom23"
    rows = {row.field: row for row in SHIPPED.describe("4g_uk")}
    assert rows["down"].value == "29.5 Mbit/s"
    assert rows["rtt"].source.startswith("ofcom24")
    assert rows["rtt"].citation == "Ofcom, Mobile Matters 2024 (October 2023 to March 2024)"
    assert rows["radio.tail"].value == "10 s"
    assert rows["radio.tail"].citation.startswith("attdevsupport/VideoOptimzer")
    driving = SHIPPED.network("3g_umts_driving").outage
    assert driving is not None
    assert (driving.fraction, driving.mean_s) == (0.083, 3.2)
    assert {row.field for row in SHIPPED.describe("3g_umts_driving")} >= {"outage.fraction", "outage.mean"}


def test_what_a_device_says() -> None:
    phone = SHIPPED.device("phone_flagship_2023")
    assert phone.flops_1_thread == 37e9
    assert phone.memory_bytes_per_s == 17e9
    assert phone.ram_bytes == 8 * 2**30
    assert phone.op_overhead_s == 4e-6
    assert phone.battery_j == 17.325 * 3600
    assert phone.thermal.floor == 0.55
    assert phone.crypto.name == "phone_fast"
    assert phone.crypto.key_pair_s == 63e-6
    assert SHIPPED.device("laptop_m1").battery_j is None
    assert SHIPPED.device("mcu_esp32c3").ram_bytes == 400 * 1024


def test_what_a_crypto_class_says() -> None:
    server = SHIPPED.cryptos["x86_server"]
    assert server.key_pair_s == 42e-6
    assert server.key_exchange_s == 48.8e-6
    assert server.seal_s == 1.8e-6
    assert (server.sign_s, server.verify_s) == (39e-6, 139e-6)
    assert server.expand_bytes_per_s == 5e9
    assert server.quantise_elements_per_s == 190e6
    # A split into 100 shares with threshold 67 takes 0.24 ms.
    assert server.share_products_per_s == pytest.approx(100 * 67 * 16 / 0.24e-3, rel=1e-3)
    assert (server.ckks_encrypt_s, server.ckks_decrypt_s) == (5.2e-3, 1.3e-3)
    assert server.sources["expand_bytes_per_s"] == "own (100,000 elements of 32 bits)"
    rows = {row.field: row for row in SHIPPED.describe("sbc_pi4")}
    assert (rows["crypto"].value, rows["crypto"].source) == ("gateway", "")
    assert rows["crypto.expand_rate"].value == "50 MB/s"
    assert rows["crypto.expand_rate"].citation.startswith("ThomasKaiser/sbc-bench")
    assert rows["crypto.verify"].value == "2.085 ms"
    assert rows["crypto.verify"].citation == SHIPPED.sources["assumption"]


def test_every_device_has_a_crypto_class_and_every_class_but_the_measured_one_a_device() -> None:
    used = {device.crypto for device in SHIPPED.devices.values()}
    assert {profile.name for profile in used} == set(SHIPPED.cryptos) - {"x86_server"}
    assert used <= set(SHIPPED.cryptos.values())


@pytest.mark.parametrize("name", sorted(set(SHIPPED.cryptos) - {"x86_server"}))
def test_an_assumed_crypto_class_is_the_measured_one_at_the_scale_it_names(name: str) -> None:
    server, profile = SHIPPED.cryptos["x86_server"], SHIPPED.cryptos[name]
    scales = set()
    for field, source in profile.sources.items():
        named = re.fullmatch(r"assumption \(x86_server, times × ([\d.]+), rates / \1\)", source)
        if named is None:
            assert (name, field) == ("gateway", "expand_bytes_per_s")
            continue
        scale = float(named.group(1))
        ratio = getattr(profile, field) / getattr(server, field)
        # Three digits are written, so the ratio holds to half a per cent.
        assert ratio == pytest.approx(1 / scale if field.endswith("_per_s") else scale, rel=5e-3), field
        scales.add(scale)
    assert len(scales) == 1


def test_what_availability_and_fleets_say() -> None:
    assert SHIPPED.availability("diurnal_charging") == Diurnal("diurnal_charging", 0.15, 4.0, 2.0)
    assert SHIPPED.availability("onoff_sessions") == OnOffSessions(
        "onoff_sessions", LogNormal(22000.0, 0.9), LogNormal(30000.0, 0.9)
    )
    assert SHIPPED.availability("flash_heavy_tail") == HeavyTail("flash_heavy_tail", 0.1, 0.3, 0.86)
    fleet = SHIPPED.fleet("uk_mobile_2024")
    assert fleet.networks["4g_uk"] == pytest.approx(0.78)
    for mix in SHIPPED.fleets.values():
        assert sum(mix.devices.values()) == pytest.approx(1.0, abs=1e-12)
        assert set(mix.devices) <= set(SHIPPED.devices)
        assert set(mix.networks) <= set(SHIPPED.networks)
        assert mix.availability in SHIPPED.availabilities


@pytest.mark.parametrize(
    ("find", "name", "message"),
    [
        (SHIPPED.device, "phone_mid_2021", "unknown device 'phone_mid_2021'; did you mean 'phone_mid_2020'?"),
        (SHIPPED.network, "4g-uk", "unknown network '4g-uk'; did you mean '4g_uk'?"),
        (SHIPPED.availability, "always", "unknown availability 'always'; did you mean 'always_on'?"),
        (SHIPPED.fleet, "zzz", "unknown fleet 'zzz'; see them all with: recfleet profiles list"),
        (SHIPPED.describe, "starlnk", "unknown profile 'starlnk'; did you mean 'starlink'?"),
    ],
)
def test_a_name_that_is_not_there(find: object, name: str, message: str) -> None:
    assert callable(find)
    with pytest.raises(UnknownProfileError) as caught:
        find(name)
    assert str(caught.value) == message


def test_a_section_narrows_the_search() -> None:
    assert SHIPPED.describe("lte", "radios")[0].field == "promotion"
    assert SHIPPED.describe("board", "crypto")[0].field == "key_pair"
    with pytest.raises(UnknownProfileError):
        SHIPPED.describe("lte", "devices")


def test_several_sources_are_all_cited() -> None:
    cited = SHIPPED.cite("ookla (10 ms + more) + assumption (10 ms of Wi-Fi)")
    assert cited == f"{SHIPPED.sources['ookla']}; {SHIPPED.sources['assumption']}"
