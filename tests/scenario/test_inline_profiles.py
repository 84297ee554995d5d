"""Profiles that are written in the scenario itself: one reader, one form, and errors in the scenario."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from scenario_files import with_line, with_lines_after, write_files

from coordinator.scenario.dump import dump_resolved
from coordinator.scenario.json_schema import json_schema
from coordinator.scenario.load import LoadedScenario, ScenarioError, load
from coordinator.scenario.sweep import load_cells
from device_profiles import CATALOGUE_SECTIONS, catalogue
from device_profiles.availability import AVAILABILITY_SECTIONS
from device_profiles.catalogue import Catalogue
from device_profiles.profile import DeviceSection

FLEET = (
    "  devices: {ours: 100%}",
    "  profiles:",
    "    devices:",
    "      ours:",
    "        like: phone_mid_2020",
    "        flops_1_thread: 10 GFLOP/s",
    "        sources: assumption",
)
TEXT = with_lines_after(9, *FLEET)
TRACE = "t_s,down_mbps,up_mbps,rtt_ms\n0,8,4,100\n10,8,4,100\n"


def loaded(folder: Path, text: str = TEXT, *overrides: str, **others: str) -> LoadedScenario:
    files = {f"{name}.yaml": content for name, content in others.items()}
    return load(write_files(folder, {"s.yaml": text, **files}), overrides)


def known(scenario: LoadedScenario) -> Catalogue:
    return catalogue.load(scenario.profile_layers)


def errors(folder: Path, text: str, *overrides: str, **others: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        loaded(folder, text, *overrides, **others)
    return [line.replace(f"{folder}{os.sep}", "") for line in str(caught.value).splitlines()]


def test_an_inline_profile_is_the_one_of_a_file(tmp_path: Path) -> None:
    inline = known(loaded(tmp_path))
    (tmp_path / "ours.yaml").write_text(
        "devices:\n  ours: {like: phone_mid_2020, flops_1_thread: 10 GFLOP/s, sources: assumption}\n"
    )
    assert inline.device("ours") == catalogue.load([tmp_path / "ours.yaml"]).device("ours")
    assert inline.device("ours").flops_1_thread == 1e10
    assert inline.device("ours").ram_bytes == catalogue.load().device("phone_mid_2020").ram_bytes


def test_the_profile_in_the_guide_loads(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "adding-a-profile.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"```yaml\n(.*?)```", guide, re.S) if "  profiles:\n" in one]
    text = with_line(8, block.rstrip()).replace("  mix: global_android_2024\n", "")
    assert known(loaded(tmp_path, text)).device("our_phone").flops_1_thread == 1e10


def test_files_and_mappings_stand_in_one_list_and_the_last_wins(tmp_path: Path) -> None:
    listed = "  profiles: [more.yaml, {devices: {ours: {like: theirs, ram: 1 GiB, sources: assumption}}}]"
    more = "devices: {theirs: {like: sbc_pi4}, ours: {like: sbc_pi4}}\n"
    found = known(loaded(tmp_path, with_lines_after(9, FLEET[0], listed), more=more))
    assert found.device("theirs").ram_bytes == catalogue.load().device("sbc_pi4").ram_bytes
    assert found.device("ours").ram_bytes == 2**30


def test_what_is_shown_is_the_same_scenario(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, TEXT.replace("        flops", "        battery:\n        flops"))
    (tmp_path / "shown.yaml").write_text(dump_resolved(scenario.scenario))
    again = load(tmp_path / "shown.yaml")
    assert again.hash == scenario.hash
    assert known(again).device("ours") == known(scenario).device("ours")
    assert known(again).device("ours").battery_j is None


def test_the_profile_counts_for_the_hash(tmp_path: Path) -> None:
    plain = loaded(tmp_path)
    assert loaded(tmp_path).hash == plain.hash
    assert loaded(tmp_path, TEXT.replace("10 GFLOP", "11 GFLOP")).hash != plain.hash
    assert loaded(tmp_path, TEXT.replace("phone_mid_2020", "phone_low_2018")).hash != plain.hash


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("phone_mid_2020", "phone_mid_202",
         ["s.yaml:14:15: fleet.profiles.devices.ours.like: unknown device 'phone_mid_202'",
          "    did you mean 'phone_mid_2020'?"]),
        ("10 GFLOP/s", "10", ["s.yaml:15:25: fleet.profiles.devices.ours.flops_1_thread: "
                              "'10' has no unit; write '10 GFLOP/s'"]),
        ("flops_1_thread", "flops_1_threads",
         ["s.yaml:15:9: fleet.profiles.devices.ours.flops_1_threads: unknown key",
          "    did you mean 'flops_1_thread'?"]),
        ("    devices:", "    device:",
         ["s.yaml:12:5: fleet.profiles.device: unknown section", "    did you mean 'devices'?"]),
        ("        sources: assumption\n", "",
         ["s.yaml:15:9: fleet.profiles.devices.ours.flops_1_thread: has no source; write it under 'sources', "
          "if only as 'flops_1_thread: assumption'"]),
        ("sources: assumption", "sources: guess",
         ["s.yaml:16:9: fleet.profiles.devices.ours.sources.flops_1_thread: unknown source 'guess'",
          "    cite it in a section 'sources'"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_shown_in_the_scenario(
    tmp_path: Path, old: str, new: str, message: list[str]
) -> None:
    assert old in TEXT
    assert errors(tmp_path, TEXT.replace(old, new)) == message


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("mine.yaml", "s.yaml:10:13: fleet.profiles: 'mine.yaml' where a list or a mapping belongs; "),
        ("[[a]]", "s.yaml:10:14: fleet.profiles[0]: a list where the name of a file or a mapping belongs; "),
        ("[{devices: {x: 5}}]",
         "s.yaml:10:28: fleet.profiles[0].devices.x: expected a mapping; write the profile's keys"),
        ("[{devices: {x: }}]", "s.yaml:10:27: fleet.profiles[0].devices.x: expected a mapping; write"),
    ],
)  # fmt: skip
def test_other_values_are_refused(tmp_path: Path, written: str, message: str) -> None:
    (found,) = errors(tmp_path, with_lines_after(9, f"  profiles: {written}"))
    assert found.startswith(message)


def test_problems_of_profiles_are_shown_with_those_of_files(tmp_path: Path) -> None:
    text = TEXT.replace("10 GFLOP/s", "10").replace("  profiles:", "  link_trace: none.csv\n  profiles:")
    places = [line.split(": ")[1] for line in errors(tmp_path, text)]
    assert places == ["fleet.link_trace", "fleet.profiles.devices.ours.flops_1_thread"]


def test_profiles_merge_with_those_of_the_parent(tmp_path: Path) -> None:
    child = """\
extends: base.yaml
fleet:
  profiles:
    devices:
      ours: {ram: 2 GiB, battery: }
      gone:
"""
    base = TEXT.replace("      ours:", "      gone: {like: sbc_pi4}\n      ours:")
    assert "gone" in known(loaded(tmp_path, base)).devices
    found = known(loaded(tmp_path, child, base=base))
    ours = found.device("ours")
    # Null inside a profile is a value: no battery, whatever the phone has that it is like.
    assert (ours.flops_1_thread, ours.ram_bytes, ours.battery_j) == (1e10, 2 * 2**30, None)
    assert "gone" not in found.devices


def test_an_error_in_a_merged_profile_is_in_the_file_that_has_it(tmp_path: Path) -> None:
    child = "extends: base.yaml\nfleet: {profiles: {devices: {ours: {ram: 2}}}}\n"
    (found,) = errors(tmp_path, child, base=TEXT)
    assert found.startswith("s.yaml:2:42: fleet.profiles.devices.ours.ram: '2' has no unit")
    (found,) = errors(tmp_path, child.replace("2}", "2 GiB}"), base=TEXT.replace("10 GFLOP/s", "10"))
    assert found.startswith("base.yaml:15:25: fleet.profiles.devices.ours.flops_1_thread: '10' has no unit")


def test_names_of_files_start_at_the_scenario_that_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (below / "drive.csv").write_text(TRACE)
    recorded = "recorded: {like: wifi_home, link_trace: drive.csv, sources: assumption}"
    (below / "base.yaml").write_text(with_lines_after(9, f"  profiles: {{networks: {{{recorded}}}}}"))
    child = "extends: below/base.yaml\nfleet: {profiles: {networks: {recorded: {rtt: 9 ms}, other: {like: "
    child += "recorded}}}}\n"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(child)
    found = known(load("s.yaml"))
    for name in ("recorded", "other"):
        trace = found.network(name).trace
        assert trace is not None
        assert trace.period_s == 20.0
    assert found.network("other").rtt_s == 0.009


def test_a_relative_trace_of_a_file_is_found_by_a_profile_like_it_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    (tmp_path / "here" / "drive.csv").write_text(TRACE)
    (tmp_path / "here" / "a.yaml").write_text(
        "networks: {a: {like: wifi_home, link_trace: drive.csv, sources: assumption}}\n"
    )
    (tmp_path / "there" / "b.yaml").write_text("networks: {b: {like: a}}\n")
    monkeypatch.chdir(tmp_path)
    trace = catalogue.load([Path("here/a.yaml"), Path("there/b.yaml")]).network("b").trace
    assert trace is not None
    assert trace.period_s == 20.0


def test_a_setting_and_a_sweep_reach_into_a_profile(tmp_path: Path) -> None:
    key = "fleet.profiles.devices.ours.flops_1_thread"
    assert known(loaded(tmp_path, TEXT, f"{key}=5 GFLOP/s")).device("ours").flops_1_thread == 5e9
    (found,) = errors(tmp_path, TEXT, f"{key}=5")
    assert found.startswith(f"--set:1:{len(key) + 2}: {key}: '5' has no unit")
    cells = load_cells(loaded(tmp_path, TEXT + f"sweep:\n  {key}: [5 GFLOP/s, 8 GFLOP/s]\n"))
    runs = [cell.runs[0] for cell in cells]
    assert [known(run).device("ours").flops_1_thread for run in runs] == [5e9, 8e9]
    assert len({run.hash for run in runs}) == 2


def test_null_inside_a_profile_is_a_value_in_settings_and_sweeps_too(tmp_path: Path) -> None:
    whole = "fleet.profiles.devices.ours"
    for setting in (f"{whole}.battery=null", f"{whole}={{like: phone_mid_2020, battery: null}}"):
        found = known(loaded(tmp_path, TEXT, setting)).device("ours")
        assert (found.battery_j, found.flops_1_thread) == (None, 1e10)
    for axis in (f"{whole}.battery: [null, 1 Wh]", f"{whole}: [{{battery: null}}, {{battery: 1 Wh}}]"):
        cells = load_cells(loaded(tmp_path, TEXT + f"sweep:\n  {axis}\n"))
        assert [known(cell.runs[0]).device("ours").battery_j for cell in cells] == [None, 3600.0]
    # A profile as a whole is removed.
    removed = loaded(tmp_path, TEXT.replace("ours: 100%", "sbc_pi4: 100%"), f"{whole}=null")
    assert "ours" not in known(removed).devices


def test_a_wrong_value_of_a_sweep_is_shown_there(tmp_path: Path) -> None:
    sweep = "sweep:\n  fleet.profiles.devices.ours.flops_1_thread: [5 GFLOP/s, 8]\n"
    scenario = loaded(tmp_path, TEXT + sweep)
    with pytest.raises(ScenarioError) as caught:
        load_cells(scenario)
    line = len((TEXT + sweep).splitlines())
    (problem,) = caught.value.problems
    assert (problem.position.line, problem.position.column) == (line, 59)
    assert "'8' has no unit" in problem.message


def profiles_in(inline: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """Return the schemas of what may stand below a name in a section, but for null."""
    profiles = next(one for one in inline["properties"][section]["anyOf"] if one.get("type") == "object")
    return [one for one in profiles["additionalProperties"]["anyOf"] if one != {"type": "null"}]


def test_the_json_schema_knows_the_keys_of_profiles(tmp_path: Path) -> None:
    definitions: dict[str, Any] = json_schema()["$defs"]
    listed, alone, removed = definitions["ScenarioFleet"]["properties"]["profiles"]["anyOf"]
    assert alone == {"$ref": "#/$defs/InlineProfiles"}
    assert removed == {"type": "null"}
    assert alone in listed["items"]["anyOf"]
    assert definitions["InlineProfiles"] == {"$ref": "#/$defs/PartialInlineProfiles"}
    inline = definitions["PartialInlineProfiles"]
    assert set(inline["properties"]) == {"sources", *CATALOGUE_SECTIONS}
    device = profiles_in(inline, "devices")[0]
    assert set(device["properties"]) == {"like", *DeviceSection.model_fields}
    assert "required" not in device
    # Nor in what a profile holds: `outage: {mean: 1 s}` keeps the share of the one it is like.
    (network,) = profiles_in(inline, "networks")
    assert '"#/$defs/PartialOutageSection"' in json.dumps(network["properties"]["outage"])
    assert "required" not in definitions["PartialOutageSection"]
    assert len(profiles_in(inline, "availability")) == len(AVAILABILITY_SECTIONS)


def test_a_fleet_with_groups_stands_in_place_of_shares(tmp_path: Path) -> None:
    group = "{device: sbc_pi4, network: dsl, share: 100%}"
    fleet = f"{{groups: [{group}], availability: always_on, sources: assumption}}"
    inline = f"  profiles: {{fleets: {{ours: {fleet}}}}}"
    text = with_line(9, "  mix: ours", inline)
    assert known(loaded(tmp_path, text)).fleet("ours").devices == {"sbc_pi4": 1.0}
    (found,) = errors(tmp_path, with_line(9, "  mix: ours", "  devices: {sbc_pi5: 100%}", inline))
    assert found == "s.yaml:10:3: fleet.devices: the fleet 'ours' has groups; leave out 'mix' or 'devices'"
