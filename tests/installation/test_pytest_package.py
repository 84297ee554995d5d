"""A project outside the tree whose tests run scenarios: the files of the page, and recfleet installed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from installed import ROOT, Installation

PAGE = ROOT / "docs" / "pipelines.md"
SCENARIO = """\
format: 2
seed: 3
data: {source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 20}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedrecon, factors: 4}
rounds: {count: 3, cohort: 30, quorum: 1, deadline: 60 s}
thresholds:
  round.completed: [rate == 100%]
  device.up_bytes: [max < 64 KiB]
"""
MISSES = """
def test_a_promise_that_is_broken(recfleet_run):
    promises = {"round.duration": ["max < 1 ms", "max < 60 s"]}
    run = recfleet_run("../scenarios/launch.yaml", thresholds=promises)
    assert run.status == "finished"


def test_an_invalid_scenario(recfleet_run):
    recfleet_run("../scenarios/launch.yaml", rounds={"cohrt": 4})
"""
# Plug-ins of the environment that runs these tests warn where they are not configured.
SETTINGS = """\
[tool.pytest.ini_options]
filterwarnings = ["error"]
addopts = "-p no:asyncio -p no:cacheprovider"
"""
MISSED = "round.duration: max < 1 ms"

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a scenario and the test file that the page shows."""
    found = re.search(r"```python\n# (tests/\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    for name, text in {
        "pyproject.toml": SETTINGS,
        "scenarios/launch.yaml": SCENARIO,
        found[1]: found[2],
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_thresholds_that_hold_are_subtests_that_pass(project: Path, installation: Installation) -> None:
    done = installation.run("python -m pytest -q", project)
    assert done.returncode == 0, done.stdout
    assert "2 passed, 4 subtests passed in" in done.stdout


@pytest.mark.parametrize("processes", ["", "-n 2"])
def test_what_is_missed_fails_and_says_by_how_much(
    processes: str, project: Path, installation: Installation
) -> None:
    (project / "tests" / "test_broken.py").write_text(MISSES, encoding="utf-8")
    line = f"python -m pytest -q --junitxml=found.xml {processes} tests/test_broken.py"
    done = installation.run(line, project)
    assert done.returncode == 1, done.stdout
    assert re.search(rf"^MISSED {MISSED} \(it was .*s\)$", done.stdout, re.MULTILINE)
    report = re.search(r"^report: (.*)$", done.stdout, re.MULTILINE)
    assert report is not None
    assert Path(report[1]).is_file()
    assert "rounds.cohrt: unknown key" in done.stdout
    assert "3 subtests passed" in done.stdout
    failures = [failure.get("message") or "" for failure in ET.parse(project / "found.xml").iter("failure")]
    assert any(MISSED in message for message in failures), failures


def test_pytest_starts_without_the_rest_of_recfleet(project: Path, installation: Installation) -> None:
    (project / "tests" / "test_none.py").write_text(
        "import sys\n\n\ndef test_nothing_is_imported():\n    assert 'coordinator' not in sys.modules\n",
        encoding="utf-8",
    )
    done = installation.run("python -m pytest -q tests/test_none.py", project)
    assert done.returncode == 0, done.stdout
