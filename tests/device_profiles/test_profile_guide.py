from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from device_profiles import CATALOGUE_SECTIONS, catalogue
from device_profiles.availability import AVAILABILITY_SECTIONS, Combined
from device_profiles.importers.link_files import read_link_csv

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-profile.md"
SECTIONS = ("sources:", *(f"{section}:" for section in CATALOGUE_SECTIONS))


@pytest.fixture(scope="module")
def guide() -> str:
    return GUIDE.read_text(encoding="utf-8")


def test_the_profiles_in_the_guide_load(guide: str, tmp_path: Path) -> None:
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", guide, re.S) if block.startswith(SECTIONS)]
    # The one that replays a file is left out: there is no such file.
    files = []
    write_link_trace(guide, tmp_path / "our_drive.csv")
    for index, block in enumerate(block for block in blocks if "kind: trace" not in block):
        files.append(tmp_path / f"{index}.yaml")
        files[-1].write_text(block, encoding="utf-8")
    loaded = catalogue.load(files)
    assert loaded.device("our_board").battery_j == 17.3 * 3600
    assert loaded.network("our_4g").down_bps == 24e6
    phone = loaded.device("our_phone")
    assert (phone.ram_bytes, phone.battery_j) == (4 * 2**30, None)
    assert phone.flops_1_thread == loaded.device("phone_mid_2020").flops_1_thread
    rural, shipped = loaded.network("our_rural_4g"), catalogue.load().network("4g_uk")
    assert (rural.down_bps, rural.rtt_s) == (8e6, 0.04)
    assert loaded.network("4g_uk") == replace(shipped, rtt_s=0.04, radio=loaded.network("4g_uk").radio)
    assert loaded.fleet("our_fleet").availability == "commuters"
    assert loaded.fleet("our_town").networks == {"wifi_home": 0.4, "our_4g": 0.6}
    assert "our_case" in loaded.thermals
    commute = loaded.network("our_commute").trace
    assert commute is not None
    assert commute.period_s == 2.0
    both = loaded.availability("commuters_that_drop_out")
    assert isinstance(both, Combined)
    assert [part.kind for part in both.parts] == ["diurnal", "bernoulli"]
    assert loaded.device("our_board").crypto == loaded.cryptos["our_core"]
    assert "our_radio" in loaded.radios


def test_the_guide_names_every_kind_of_availability_and_its_keys(guide: str) -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", guide, re.M)
    named = {kind: set(re.findall(r"`(\w+)`", keys)) for kind, keys in rows}
    common = {"kind", "sources", "note"}
    assert named == {kind: set(model.model_fields) - common for kind, model in AVAILABILITY_SECTIONS.items()}


def write_link_trace(guide: str, path: Path) -> None:
    found = re.search(r"```\n(t_s,.*?)```", guide, re.S)
    assert found is not None
    path.write_text(found.group(1), encoding="utf-8")


def test_the_link_trace_in_the_guide_loads(guide: str, tmp_path: Path) -> None:
    path = tmp_path / "link.csv"
    write_link_trace(guide, path)
    trace = read_link_csv(path)
    assert trace.period_s == 2.0
    assert trace.loss.tolist() == [0.0, 0.01]
