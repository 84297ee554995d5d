from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from device_profiles import catalogue
from device_profiles.availability import TraceAvailability
from device_profiles.errors import CatalogueError
from device_profiles.profile import CryptoProfile

BOARD = """\
sources:
  bench: our own bench, June
devices:
  our_board:
    example: our board
    flops_1_thread: 2 GFLOP/s
    flops_all_threads: 8 GFLOP/s
    memory_rate: 1 GB/s
    ram: 1 GiB
    op_overhead: 20 us
    active_power: 4 W
    compute_sigma: 0.1
    thermal: board
    crypto: board
    sources: bench (five runs)
"""
CRYPTO = """\
crypto:
  our_core:
    key_pair: 1 ms
    key_exchange: 2 ms
    seal: 30 us
    sign: 3 ms
    verify: 5 ms
    expand_rate: 40 MB/s
    quantise_rate: 2 Mop/s
    share_rate: 7 Mop/s
    ckks_encrypt: 90 ms
    ckks_decrypt: 30 ms
    sources: assumption
"""
RADIO = """\
radios:
  lte:
    promotion: 1 s
    promotion_power: 1 W
    tail: 0 s
    tail_power: 0 W
    base_power: 1 W
    up_energy: 76.7 nJ/bit
    down_energy: 11.5 nJ/bit
    sources: s21pow
"""


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str) -> list[str]:
    path = write(folder, text)
    with pytest.raises(CatalogueError) as caught:
        catalogue.load([path])
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


def test_a_file_adds_profiles(tmp_path: Path) -> None:
    fleet = """\
fleets:
  ours:
    devices: {our_board: 60%, sbc_pi4: 40%}
    networks: {wifi_home: 100%}
    availability: always_on
    sources: assumption
"""
    loaded = catalogue.load([write(tmp_path, BOARD), write(tmp_path, fleet, "fleet.yaml")])
    assert loaded.device("our_board").flops_all_threads == 8e9
    assert loaded.device("our_board").thermal == loaded.thermals["board"]
    assert loaded.fleet("ours").devices == {"our_board": 0.6, "sbc_pi4": 0.4}
    row = loaded.describe("our_board")[1]
    assert (row.field, row.value, row.source) == ("flops_1_thread", "2 GFLOP/s", "bench (five runs)")
    assert row.citation == "our own bench, June"
    assert "our_board" not in catalogue.load().devices


def test_a_file_replaces_a_profile_and_what_refers_to_it_follows(tmp_path: Path) -> None:
    loaded = catalogue.load([write(tmp_path, RADIO)])
    assert loaded.network("4g_uk").radio.promotion_s == 1.0
    assert catalogue.load().network("4g_uk").radio.promotion_s == 0.26


def test_a_crypto_class_of_ones_own(tmp_path: Path) -> None:
    board = BOARD.replace("crypto: board", "crypto: our_core")
    loaded = catalogue.load([write(tmp_path, board), write(tmp_path, CRYPTO, "crypto.yaml")])
    assert loaded.device("our_board").crypto == CryptoProfile(
        "our_core", 1e-3, 2e-3, 30e-6, 3e-3, 5e-3, 40e6, 2e6, 7e6, 90e-3, 30e-3
    )
    rows = {row.field: row for row in loaded.describe("our_board")}
    assert (rows["crypto"].value, rows["crypto.share_rate"].value) == ("our_core", "7 Mop/s")
    assert rows["crypto.seal"].source == "assumption"


def test_a_replaced_crypto_class_reaches_the_shipped_devices(tmp_path: Path) -> None:
    loaded = catalogue.load([write(tmp_path, CRYPTO.replace("our_core", "phone_mid"))])
    assert loaded.device("phone_mid_2020").crypto.verify_s == 5e-3
    assert loaded.device("phone_flagship_2023").crypto == catalogue.load().cryptos["phone_fast"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("key_pair: 1 ms", "key_pair: 1", "3:15: crypto.our_core.key_pair: '1' has no unit; write '1 s'"),
        ("seal: 30 us", "seal: -30 us", "5:11: crypto.our_core.seal: '-30 us' is negative"),
        ("40 MB/s", "0 MB/s", "8:18: crypto.our_core.expand_rate: '0 MB/s' is zero"),
        ("2 Mop/s", "2", "9:20: crypto.our_core.quantise_rate: '2' has no unit; write '2 Mop/s'"),
        ("7 Mop/s", "7 M", "10:17: crypto.our_core.share_rate: '7 M': unknown unit 'M'; write one of Gop/s"),
        ("    ckks_encrypt: 90 ms\n", "", "2:3: crypto.our_core.ckks_encrypt: is missing"),
        ("seal:", "seals:", "5:5: crypto.our_core.seals: unknown key\n    did you mean 'seal'?"),
        (
            "sources: assumption",
            "sources: {seal: assumption}",
            "3:5: crypto.our_core.key_pair: has no source; write it under 'sources', if only as "
            "'key_pair: assumption'",
        ),
        ("our_core:", "Our Core:", '2:3: crypto."Our Core": use small letters'),
        ("crypto:", "crypt:", "1:1: crypt: unknown section\n    did you mean 'crypto'?"),
    ],
)
def test_a_problem_of_a_crypto_class_is_shown_where_it_stands(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert expected in "\n".join(problems(tmp_path, CRYPTO.replace(old, new, 1)))


def test_unknown_thermal_and_crypto_profiles_are_shown_at_once(tmp_path: Path) -> None:
    text = BOARD.replace("thermal: board", "thermal: bord").replace("crypto: board", "crypto: gatway")
    assert problems(tmp_path, text) == [
        "13:14: devices.our_board.thermal: unknown thermal profile 'bord'",
        "    did you mean 'board'?",
        "14:13: devices.our_board.crypto: unknown crypto profile 'gatway'",
        "    did you mean 'gateway'?",
    ]


def test_a_crypto_class_that_cannot_be_built_is_not_missed_by_its_devices(tmp_path: Path) -> None:
    text = BOARD.replace("crypto: board", "crypto: our_core") + CRYPTO.replace("30 us", "30")
    assert problems(tmp_path, text) == ["20:11: crypto.our_core.seal: '30' has no unit; write '30 s'"]


def test_an_empty_battery_is_mains_power_and_needs_no_source(tmp_path: Path) -> None:
    text = BOARD.replace("thermal: board", "battery:\n    thermal: board").replace(
        "bench (five runs)", "{}", 1
    )
    needed = [line for line in problems(tmp_path, text) if "has no source" in line]
    assert not any("battery" in line for line in needed)
    loaded = catalogue.load([write(tmp_path, BOARD.replace("thermal:", "battery:\n    thermal:"))])
    assert loaded.device("our_board").battery_j is None
    assert [row.value for row in loaded.describe("our_board") if row.field == "battery"] == ["none"]


def test_the_last_file_wins(tmp_path: Path) -> None:
    second = write(tmp_path, RADIO.replace("promotion: 1 s", "promotion: 2 s"), "second.yaml")
    assert catalogue.load([write(tmp_path, RADIO), second]).radios["lte"].promotion_s == 2.0


def test_recorded_sessions_relative_to_the_file(tmp_path: Path) -> None:
    entry = {"active": [10, 50], "inactive": [20, 60], "finish_time": 100}
    (tmp_path / "behave.pkl").write_bytes(pickle.dumps({1: entry}))
    text = "availability:\n  recorded:\n    kind: trace\n    file: behave.pkl\n"
    profile = catalogue.load([write(tmp_path, text)]).availability("recorded")
    assert isinstance(profile, TraceAvailability)
    assert profile.trace.starts_s.tolist() == [10.0, 50.0]
    assert problems(tmp_path, text.replace("behave", "other")) == [
        f"4:11: availability.recorded.file: {tmp_path / 'other.pkl'}: cannot be read: "
        "No such file or directory"
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("2 GFLOP/s", "2", "6:21: devices.our_board.flops_1_thread: '2' has no unit; write '2 GFLOP/s'"),
        (
            "1 GiB",
            "1 GB/s",
            "9:10: devices.our_board.ram: '1 GB/s' is a rate, not a size in bytes; write '1 GB'",
        ),
        (
            "20 us",
            "-20 us",
            "10:18: devices.our_board.op_overhead: '-20 us' is negative; a duration is zero or more",
        ),
        ("    ram: 1 GiB\n", "", "4:3: devices.our_board.ram: is missing"),
        ("    ram: 1 GiB", "    ram: 1 GiB\n    gpu: 3", "10:5: devices.our_board.gpu: unknown key"),
        ("ram:", "rams:", "9:5: devices.our_board.rams: unknown key\n    did you mean 'ram'?"),
        (
            "thermal: board",
            "thermal: bord",
            "13:14: devices.our_board.thermal: unknown thermal profile 'bord'\n    did you mean 'board'?",
        ),
        (
            "crypto: board",
            "crypto: bord",
            "14:13: devices.our_board.crypto: unknown crypto profile 'bord'\n    did you mean 'board'?",
        ),
        ("    crypto: board\n", "", "4:3: devices.our_board.crypto: is missing"),
        (
            "bench (five runs)",
            "bensh",
            "15:14: devices.our_board.sources: unknown source 'bensh'\n    did you mean 'bench'?",
        ),
        (
            "bench (five runs)",
            "{ram: bench}",
            "6:5: devices.our_board.flops_1_thread: has no source; write it under 'sources', if only as "
            "'flops_1_thread: assumption'",
        ),
        ("8 GFLOP/s", "1 GFLOP/s", "7:24: devices.our_board.flops_all_threads: all threads together"),
        ("our_board:", "Our Board:", '4:3: devices."Our Board": use small letters'),
        ("devices:", "device:", "3:1: device: unknown section\n    did you mean 'devices'?"),
        ("1 GiB", "0 B", "9:10: devices.our_board.ram: must be above zero, not 0"),
        (
            "    thermal: board",
            "    battery: 17\n    thermal: board",
            "13:14: devices.our_board.battery: '17' has no unit; write '17 J'",
        ),
        ("our own bench, June", "[x]", "2:10: sources.bench: expected a citation as text"),
    ],
)
def test_a_problem_is_shown_where_it_stands(tmp_path: Path, old: str, new: str, expected: str) -> None:
    found = "\n".join(problems(tmp_path, BOARD.replace(old, new, 1)))
    assert expected in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("devices: 3\n", "1:10: devices: expected a mapping"),
        ("devices:\n  a: 3\n", "2:6: devices.a: expected a mapping"),
        ("sources: 3\n", "1:10: sources: expected a mapping"),
        ("sources:\n  a b: text\n", '2:3: sources."a b": a source key has letters'),
        ("availability:\n  a: {kind: diurnl}\n", "did you mean 'diurnal'?"),
        ("availability:\n  a: {kind: [x]}\n", "2:13: availability.a.kind: must be the name of a kind"),
        ("availability:\n  a: {drop: 3}\n", "availability.a.kind: is missing"),
        (
            "availability:\n  a:\n    kind: on-off\n    session: {distribution: exponential, mean: 5}\n"
            "    gap: {distribution: exponential, mean: 5 s}\n    sources: assumption\n",
            "4:48: availability.a.session.mean: '5' has no unit; write '5 s'",
        ),
        (
            "availability:\n  a:\n    kind: on-off\n    session: {distribution: normal, mean: 5 s}\n"
            "    gap: {distribution: exponential, mean: 5 s}\n    sources: assumption\n",
            "4:14: availability.a.session: unknown distribution 'normal'; write one of 'exponential', "
            "'lognormal'",
        ),
        (
            "availability:\n  a: {kind: diurnal, mean_available: 90%, peak_to_trough: 4, peak_local_hour: 2,"
            " sources: assumption}\n",
            "2:38: availability.a.mean_available: 0.9 needs more than all devices at the peak",
        ),
        (
            "availability:\n  a: {kind: on-off, session: {mean: 5 s}, gap: 5 s, sources: assumption}\n",
            "2:30: availability.a.session: 'distribution' is missing",
        ),
        (
            "availability:\n  a: {kind: on-off, session: {mean: 5 s}, gap: 5 s, sources: assumption}\n",
            "2:48: availability.a.gap: expected a mapping; write its keys below it",
        ),
        ("networks:\n  n: {sources: }\n", "networks.n.sources: expected a mapping"),
        ("networks:\n  n: {outage: 3 s}\n", "2:15: networks.n.outage: expected a mapping"),
        (
            "fleets:\n  a:\n    devices: {sbc_pi4: 50%}\n    networks: {wifi_hom: 100%}\n"
            "    availability: always_on\n    sources: assumption\n",
            "4:16: fleets.a.networks.wifi_hom: unknown network 'wifi_hom'\n    did you mean 'wifi_home'?",
        ),
        (
            "fleets:\n  a:\n    devices: {sbc_pi4: 50%}\n    networks: {wifi_home: 100%}\n"
            "    availability: always_on\n    sources: assumption\n",
            "3:14: fleets.a.devices: shares sum to 0.5; they must sum to 1 (100%)",
        ),
    ],
)
def test_other_problems_are_shown_where_they_stand(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in "\n".join(problems(tmp_path, text))


def test_all_problems_are_shown_at_once_in_reading_order(tmp_path: Path) -> None:
    text = BOARD.replace("2 GFLOP/s", "2").replace("4 W", "4 V").replace("thermal: board", "thermal: 5")
    found = [line for line in problems(tmp_path, text) if not line.startswith("    ")]
    assert [line.split(":")[0] for line in found] == ["6", "11"]
    assert "write '4 W'" in found[1] or "a power" in found[1]


def test_a_file_that_cannot_be_read_is_the_only_problem(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(CatalogueError) as caught:
        catalogue.load([path])
    assert str(caught.value) == f"{path}:1:1: there is no such file"
    assert len(caught.value.problems) == 1


GROUPED = """\
fleets:
  ours:
    groups:
      - {device: sbc_pi4, network: dsl, share: 60%}
      - {device: sbc_pi4, network: wifi_home, share: 40%, availability: flaky_mobile}
    availability: always_on
    sources: assumption
"""


def test_a_fleet_of_groups_has_the_shares_they_come_to(tmp_path: Path) -> None:
    loaded = catalogue.load([write(tmp_path, GROUPED)])
    fleet = loaded.fleet("ours")
    assert (fleet.devices, fleet.networks) == ({"sbc_pi4": 1.0}, {"dsl": 0.6, "wifi_home": 0.4})
    assert [group.availability for group in fleet.groups] == [None, "flaky_mobile"]
    rows = {row.field: (row.value, row.basis) for row in loaded.describe("ours")}
    assert rows["groups[1].share"] == ("40%", "assumed")
    assert rows["groups[1].network"] == ("wifi_home", "")
    assert loaded.bases("fleets", "ours") == {"assumed": 2}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("60%", "50%", "4:7: fleets.ours.groups: the shares sum to 90%; make them sum to 100%"),
        ("network: dsl", "network: dls",
         "4:36: fleets.ours.groups[0].network: unknown network 'dls'\n    did you mean 'dsl'?"),
        ("flaky_mobile", "flaky",
         "5:73: fleets.ours.groups[1].availability: unknown availability 'flaky'"),
        ("share: 60%", "share: 60",
         "4:48: fleets.ours.groups[0].share: '60' is more than the whole; write '60%'"),
        ("share: 60%", "share: 60%, speed: 3", "4:53: fleets.ours.groups[0].speed: unknown key"),
        ("share: 60%", "share: 60%, link_trace: gone.csv", "4:65: fleets.ours.groups[0].link_trace: "),
        ("    groups:", "    devices: {sbc_pi4: 100%}\n    groups:",
         "3:5: fleets.ours.devices: 'groups' says which devices are on which networks; "
         "leave out 'devices' or 'groups'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_groups_of_a_fleet(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GROUPED
    path = write(tmp_path, GROUPED.replace(old, new, 1))
    with pytest.raises(CatalogueError) as caught:
        catalogue.load([path])
    assert str(caught.value).startswith(f"{path}:{message}")


def test_a_fleet_of_groups_may_be_like_one_of_shares(tmp_path: Path) -> None:
    text = GROUPED.replace("    groups:", "    like: uk_mobile_2024\n    groups:").replace(
        "    availability: always_on\n", ""
    )
    with pytest.raises(CatalogueError, match="an empty 'devices:' removes that of 'uk_mobile_2024'"):
        catalogue.load([write(tmp_path, text)])
    text = text.replace("    groups:", "    devices:\n    networks:\n    groups:")
    fleet = catalogue.load([write(tmp_path, text)]).fleet("ours")
    assert fleet.availability == "diurnal_charging"
    assert set(fleet.devices) == {"sbc_pi4"}
