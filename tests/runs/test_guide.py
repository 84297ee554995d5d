"""What the guide says works as it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_helpers import SCENARIOS, Silent, rows_of, run_text

from coordinator.run.runner import run_scenario
from coordinator.scenario.faults_section import KINDS
from coordinator.scenario.load import load

GUIDE = (SCENARIOS.parent / "docs" / "guide.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("guide")
    loaded = load(SCENARIOS / "quickstart.yaml")
    run_scenario(loaded, target=made / "runs" / "first", observer=Silent())
    return made


def output_of(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_first_question_finds_who_was_last(folder: Path) -> None:
    counted = output_of(blocks("python")[0], folder)
    assert counted.startswith("Counter({")
    assert sum(int(number) for number in re.findall(r": (\d+)", counted)) == 20  # one device a round
    assert "'wifi_home'" not in counted  # the fastest network never holds a round up


def test_the_second_question_adds_up(folder: Path) -> None:
    lines = [line.split() for line in output_of(blocks("python")[1], folder).splitlines()]
    assert [line[0] for line in lines] == ["invite", "download", "compute", "report", "acknowledge"]
    down = {line[0]: int(line[1].replace(",", "")) for line in lines}
    up = {line[0]: int(line[3].replace(",", "")) for line in lines}
    assert max(down, key=lambda stage: down[stage]) == "download"
    assert max(up, key=lambda stage: up[stage]) == "report"
    assert down["compute"] == up["compute"] == 0


def test_the_timeline_that_is_explained_is_valid(tmp_path: Path) -> None:
    page = (SCENARIOS.parent / "docs" / "timeline.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    text = (SCENARIOS / "secagg_basic.yaml").read_text()
    file = tmp_path / "explained.yaml"
    file.write_text(text[: text.index("thresholds:")] + block)
    scenario = load(file, ["rounds.count=null"]).scenario
    assert [phase.name for phase in scenario.phases] == ["calm", "storm", "after"]
    assert [fault.key for fault in scenario.faults] == ["slowdown", "blackout", "vanish"]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    explained = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(explained) == sorted(KINDS)
    named = [f"{name}.yaml" for row in rows for name in re.findall(r"`(\w+)\.yaml`", row)]
    assert len(named) == 10
    assert all((SCENARIOS / name).is_file() for name in named)


@pytest.mark.slow
def test_the_thresholds_of_the_guide_are_valid(tmp_path: Path) -> None:
    (block,) = (block for block in blocks("yaml") if block.startswith("thresholds:"))
    text = (SCENARIOS / "quickstart.yaml").read_text()
    text = text[: text.index("thresholds:")] + block
    outcome = run_text(tmp_path, text)
    assert len(outcome.verdicts) == 3


@pytest.mark.slow
def test_silent_dropouts_hold_a_round_until_its_deadline(tmp_path: Path) -> None:
    text = (SCENARIOS / "quickstart.yaml").read_text()
    outcome = run_text(tmp_path, text, ["rounds.over_select=100%", "thresholds=null"])
    for row in rows_of(outcome, "rounds"):
        if row["dropped"]:
            assert row["duration_s"] == pytest.approx(10.0)
        else:
            assert row["duration_s"] < 10.0
