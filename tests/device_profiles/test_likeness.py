"""``like``: a profile that takes everything from another, except what it writes itself."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from device_profiles import catalogue
from device_profiles.availability import Diurnal, Exponential, TraceAvailability
from device_profiles.catalogue_reading import MAX_CHAIN
from device_profiles.errors import CatalogueError

SHIPPED = catalogue.load()


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str) -> list[str]:
    path = write(folder, text)
    with pytest.raises(CatalogueError) as caught:
        catalogue.load([path])
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


def test_a_device_is_like_another_except_for_what_it_says(tmp_path: Path) -> None:
    keys = "like: phone_mid_2020, ram: 4 GiB, thermal: board, sources: assumption (a guess)"
    ours = catalogue.load([write(tmp_path, f"devices:\n  ours: {{{keys}}}\n")]).device("ours")
    other = SHIPPED.device("phone_mid_2020")
    assert ours == replace(other, name="ours", ram_bytes=4 * 2**30, thermal=SHIPPED.thermals["board"])
    assert ours.sources == {**other.sources, "ram_bytes": "assumption (a guess)"}


def test_empty_removes_and_mappings_merge(tmp_path: Path) -> None:
    text = """\
devices:
  plugged_in: {like: phone_mid_2020, battery: }
networks:
  steadier: {like: 4g_driving, outage: {mean: 1 s}, sources: {outage: mahi (share) + assumption (length)}}
  steady: {like: 4g_driving, outage: null}
availability:
  brisk: {like: flaky_mobile, session: {mean: 10 s}, sources: assumption}
"""
    loaded = catalogue.load([write(tmp_path, text)])
    assert SHIPPED.device("phone_mid_2020").battery_j is not None
    assert loaded.device("plugged_in").battery_j is None
    outage = loaded.network("steadier").outage
    assert outage is not None
    assert (outage.fraction, outage.mean_s) == (0.036, 1.0)
    assert loaded.network("steady").outage is None
    assert "outage" not in loaded.network("steady").sources
    assert getattr(loaded.availability("brisk"), "on", None) == Exponential(10.0)


def test_chains_across_files_and_a_file_that_refines_a_name(tmp_path: Path) -> None:
    first = write(tmp_path, "radios:\n  lte: {like: lte, tail: 1 s, sources: assumption}\n", "a.yaml")
    second = write(tmp_path, "radios:\n  lte: {like: lte, tail_power: 9 W, sources: assumption}\n", "b.yaml")
    third = write(tmp_path, "networks:\n  ours: {like: 4g_uk, rtt: 5 ms, sources: ofcom24}\n", "c.yaml")
    loaded = catalogue.load([first, second, third])
    radio = replace(SHIPPED.radios["lte"], tail_s=1.0, tail_w=9.0)
    assert loaded.radios["lte"] == radio
    assert loaded.network("ours") == replace(SHIPPED.network("4g_uk"), name="ours", rtt_s=0.005, radio=radio)


def test_a_fleet_and_an_availability(tmp_path: Path) -> None:
    text = """\
availability:
  night_owls: {like: diurnal_charging, peak_local_hour: 4, sources: assumption}
fleets:
  ours: {like: enterprise_wifi, networks: {wifi_enterprise: 50%, wifi_home: 50%}, availability: night_owls,
    sources: assumption}
"""
    loaded = catalogue.load([write(tmp_path, text)])
    assert loaded.availability("night_owls") == Diurnal("night_owls", 0.15, 4.0, 4.0)
    fleet = loaded.fleet("ours")
    assert fleet.devices == SHIPPED.fleet("enterprise_wifi").devices
    assert fleet.networks == {"wifi_enterprise": 0.5, "wifi_home": 0.5}
    assert fleet.availability == "night_owls"


def test_files_are_found_where_they_were_named(tmp_path: Path) -> None:
    entry = {"active": [10, 50], "inactive": [20, 60], "finish_time": 100}
    recorded = write(tmp_path / "data", "availability:\n  recorded: {kind: trace, file: behave.pkl}\n")
    (tmp_path / "data" / "behave.pkl").write_bytes(pickle.dumps({1: entry}))
    again = write(tmp_path / "else", "availability:\n  again: {like: recorded, note: the same}\n")
    profile = catalogue.load([recorded, again]).availability("again")
    assert isinstance(profile, TraceAvailability)
    assert profile.trace.starts_s.tolist() == [10.0, 50.0]


def test_the_resolved_profile_is_described_with_what_it_is_like(tmp_path: Path) -> None:
    loaded = catalogue.load(
        [write(tmp_path, "devices:\n  ours: {like: sbc_pi4, ram: 3 GiB, sources: sbc}\n")]
    )
    shown = {row.field: row for row in loaded.describe("ours")}
    other = {row.field: row for row in SHIPPED.describe("sbc_pi4")}
    assert (shown["like"].value, shown["like"].basis) == ("sbc_pi4", "")
    assert (shown["ram"].value, shown["ram"].source, shown["ram"].basis) == ("3 GiB", "sbc", "measured")
    assert {field: row for field, row in shown.items() if field not in ("like", "ram")} == {
        field: row for field, row in other.items() if field != "ram"
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "devices:\n  ours: {like: phone_mid_2021}\n",
            [
                "2:16: devices.ours.like: unknown device 'phone_mid_2021'",
                "    did you mean 'phone_mid_2020'?",
            ],
        ),
        (
            "networks:\n  a: {like: c}\n  b: {like: a}\n  c: {like: b}\n  d: {like: c}\n",
            ["2:13: networks.a.like: the profile is like itself: a -> c -> b -> a; remove one 'like'"],
        ),
        (
            "networks:\n  a: {like: a}\n",
            ["2:13: networks.a.like: the profile is like itself: a -> a; remove one 'like'"],
        ),
        (
            "networks:\n  a: {like: [4g_uk]}\n",
            ["2:13: networks.a.like: expected the name of the network that this one is like"],
        ),
        (
            "devices:\n  a: {like: sbc_pi4, ram: 4 GiB}\n",
            ["2:22: devices.a.ram: has no source; write it under 'sources', if only as 'ram: assumption'"],
        ),
        # Of the two that are like each other only the one that is wrong is reported.
        (
            "devices:\n  a: {like: sbc_pi4, ram: 4, sources: sbc}\n  b: {like: a}\n",
            ["2:27: devices.a.ram: '4' has no unit; write '4 KiB'"],
        ),
        # What is inherited has no place of its own in the file.
        (
            "devices:\n  a:\n    like: sbc_pi4\n    flops_1_thread: 9 TFLOP/s\n    sources: assumption\n",
            [
                "2:3: devices.a.flops_all_threads: all threads together (1.58e+10 flop/s) cannot be slower "
                "than one thread (9e+12 flop/s)"
            ],
        ),
        (
            "availability:\n  a: {like: diurnal_charging, kind: always}\n",
            [
                "2:37: availability.a.kind: the profile is like one of kind 'diurnal'; "
                "leave out 'kind', or 'like'"
            ],
        ),
    ],
)
def test_what_cannot_be_resolved_is_said_at_its_place(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert problems(tmp_path, text) == expected


def test_a_chain_has_an_end(tmp_path: Path) -> None:
    def chain(length: int) -> str:
        lines = ["  n1: {like: 4g_uk}", *(f"  n{i}: {{like: n{i - 1}}}" for i in range(2, length))]
        return "\n".join(["networks:", *lines, ""])

    last = catalogue.load([write(tmp_path, chain(MAX_CHAIN))]).network(f"n{MAX_CHAIN - 1}")
    assert last == replace(SHIPPED.network("4g_uk"), name=last.name)
    (found,) = problems(tmp_path, chain(MAX_CHAIN + 1))
    assert found.startswith(f"{MAX_CHAIN + 1}:14: networks.n{MAX_CHAIN}.like: more than {MAX_CHAIN} profiles")
