"""Methods, faults and selectors from files that are named on the command line, in every verb."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.entry import execute
from coordinator.scenario.load import load_text
from coordinator.swarm.failures import replay_command
from coordinator.swarm.generator import document, text_of
from edge.core import plugins

SAMPLES = Path(__file__).parents[1] / "plugin_package" / "recfleet_sample"
SCENARIO = """\
format: 2
seed: 3
data: {source: synthetic-ratings, users: 30, items: 20, ratings_per_user: 8}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: item-means}
rounds: {count: 2, cohort: 8, deadline: 60 s, selection: most-data}
faults:
  - {name: storm, on: {fraction: 50%}, solar_flare: {left: 20%}}
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Copy the samples beside a scenario that uses all three, in the current folder."""
    for name in ("item_means", "most_data", "solar_flare"):
        shutil.copy(SAMPLES / f"{name}.py", tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "s.yaml"


ALL = ["--plugin", "item_means.py", "--plugin", "most_data.py", "--plugin", "solar_flare.py"]


def test_a_scenario_alone_does_not_run_the_file_beside_it(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["validate", scenario]) == 2
    shown = capsys.readouterr().err
    assert "s.yaml:5:23: learning.algorithm: 'item-means' is not one of: fedrecon" in shown
    assert "s.yaml:6:58: rounds.selection: 'most-data' is none of: random" in shown
    assert "s.yaml:8:40: faults[0].solar_flare: unknown key" in shown
    assert shown.count("load it by --plugin FILE") == 3


def test_the_verbs_about_scenarios_have_them(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["validate", scenario, *ALL]) == 0
    assert capsys.readouterr().out == "s.yaml: ok\n"
    assert execute(["show", scenario, *ALL]) == 0
    shown = capsys.readouterr().out
    assert "left: 20%\n      loss: 5%" in shown
    assert "policy: most-data" in shown
    assert execute(["schema", *ALL]) == 0
    definitions = json.loads(capsys.readouterr().out)["$defs"]
    assert {"ItemMeansSettings", "MostDataSettings", "SolarFlare"} <= definitions.keys()
    assert execute(["schema"]) == 0
    assert "SolarFlare" not in capsys.readouterr().out


def test_they_are_listed(scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plugins", *ALL, "--json", "found.json"]) == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["plugins"]
    by_name = {one["name"]: one for one in found}
    assert by_name["solar_flare"]["origin"] == "solar_flare.py"
    assert len(by_name["solar_flare"]["hash"]) == 64
    assert by_name["vanish"]["origin"] == "recfleet"
    assert len(found) == sum(map(len, plugins.BUILT_IN.values())) + 3


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return found


def test_a_run_names_them_in_its_manifest_and_its_hash(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", scenario, "--quiet", *ALL]
    assert execute([*run, "--out", "a"]) == 0
    first = manifest(tmp_path / "a")
    assert [(one["kind"], one["name"]) for one in first["plugins"]] == [
        ("algorithms", "item-means"), ("faults", "solar_flare"), ("selectors", "most-data")
    ]  # fmt: skip
    with (tmp_path / "solar_flare.py").open("a", encoding="utf-8") as file:
        file.write("# another edition\n")
    assert execute([*run, "--out", "b"]) == 0
    second = manifest(tmp_path / "b")
    assert first["scenario_hash"] != second["scenario_hash"]
    assert first["digest"] == second["digest"]
    capsys.readouterr()
    assert execute(["diff", "a", "b"]) == 0
    one, other = (each["plugins"][1]["hash"][:12] for each in (first, second))
    assert (
        f"note: the runs used other plug-ins: plugins.faults.solar_flare is no version, {one} in the first"
        f" and no version, {other} in the second"
    ) in capsys.readouterr().out
    assert execute(["compare", "a", "b"]) == 0
    assert "plugins.faults.solar_flare" in capsys.readouterr().out


def test_the_swarm_draws_them(scenario: str) -> None:
    names = ("item_means.py", "most_data.py", "solar_flare.py")
    for name in names:
        plugins.load(name)
    made = [document(3, index) for index in range(150)]
    assert any(one["learning"]["algorithm"] == "item-means" for one in made)
    assert any(one["rounds"]["selection"] == {"policy": "most-data"} or
               one["rounds"]["selection"] == "most-data" for one in made)  # fmt: skip
    flares = [one for one in made if any("solar_flare" in fault for fault in one["faults"])]
    assert flares
    options = " ".join(f"--plugin {Path.cwd() / name}" for name in names)
    assert replay_command(3, 7) == f"recfleet swarm {options} --seed 3 --only 7"
    for index, one in enumerate(flares[:5]):
        load_text(text_of(one), f"swarm-{index}")


@pytest.mark.slow
def test_other_processes_load_them(scenario: str, tmp_path: Path) -> None:
    swept = f"{SCENARIO}compute: {{workers: 1}}\nsweep: {{rounds.cohort: [8]}}\n"
    (tmp_path / "sweep.yaml").write_text(swept, encoding="utf-8")
    assert execute(["sweep", "sweep.yaml", "--jobs", "1", "--out", "swept", *ALL]) == 0
    assert execute(["run", scenario, "--quiet", "--out", "here", *ALL]) == 0
    (there,) = (folder for folder in (tmp_path / "swept").iterdir() if folder.is_dir())
    assert manifest(there)["digest"] == manifest(tmp_path / "here")["digest"]
    assert execute(["swarm", "--scenarios", "2", "--workers", "1", *ALL]) == 0


def test_check_plugin_takes_a_file_or_a_name(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["check-plugin", "solar_flare.py"]) == 0
    assert execute(["check-plugin", "most-data", "--plugin", "most_data.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert all(line.endswith(": ok") for line in lines)
    assert execute(["check-plugin", "vanihs"]) == 2
    assert "there is no plug-in 'vanihs'; did you mean 'vanish'?" in capsys.readouterr().err


def test_one_that_fails_is_refused_with_its_line(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("import numpy\nnumpy.no_such_name\n", encoding="utf-8")
    for verb in (["run", scenario], ["validate", scenario], ["schema"], ["plugins"]):
        assert execute([*verb, "--plugin", "broken.py"]) == 2
        shown = capsys.readouterr().err
        assert shown.startswith(f"{tmp_path / 'broken.py'}:2: AttributeError")
