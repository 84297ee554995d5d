from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from coordinator.cli.entry import execute

ROOT = Path(__file__).resolve().parents[2]

BUG = """
from edge.learning import accumulators

for kind in (accumulators.DenseAccumulator, accumulators.RowAccumulator):
    def add(self, update, client, once=kind.add):
        once(self, update, client)
        once(self, update, client)
    kind.add = add
"""
"""Every report in the clear is added twice, in every process that finds this file."""


def command(folder: Path, *arguments: str, bug: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, with the bug or without."""
    path = str(ROOT)
    if bug:
        (folder / "bug").mkdir(exist_ok=True)
        (folder / "bug" / "sitecustomize.py").write_text(BUG)
        path = f"{folder / 'bug'}{os.pathsep}{path}"
    return subprocess.run(
        [sys.executable, "-m", "coordinator.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_swarm_that_finds_nothing(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        execute(["swarm", "--seed", "1", "--scenarios", "4", "--workers", "1", "--junit", "found.xml"]) == 0
    )
    shown = capsys.readouterr().out
    assert "rounds, by how updates were summed" in shown
    assert "4 scenarios in " in shown
    assert shown.rstrip().endswith("0 failed")
    assert ElementTree.parse("found.xml").getroot().attrib["failures"] == "0"
    assert not Path("swarm-failures").exists()


@pytest.mark.slow
def test_a_failure_is_kept_made_small_and_replayed(tmp_path: Path) -> None:
    found = command(tmp_path, "swarm", "--only", "6", "--junit", "found.xml", bug=True)
    assert found.returncode == 3, found.stderr
    assert "exact-sums does not hold: round 1: the number of devices of the survivors is" in found.stdout
    assert "as it was: recfleet swarm --seed 1 --only " in found.stdout
    line = next(line for line in found.stdout.splitlines() if "minimised: recfleet swarm --replay " in line)
    file = line.rpartition(" ")[2]
    assert (tmp_path / file).read_text().startswith("# Scenario ")
    assert ElementTree.parse(tmp_path / "found.xml").getroot().attrib["failures"] == "1"
    # The one line shows the failure again, and nothing once the bug is gone; the file is a scenario.
    again = command(tmp_path, "swarm", "--replay", file, bug=True)
    assert again.returncode == 3
    assert "exact-sums does not hold" in again.stdout
    fixed = command(tmp_path, "swarm", "--replay", file)
    assert (fixed.returncode, fixed.stdout) == (0, f"{file}: every invariant holds\n")
    run = command(tmp_path, "run", file, "--quiet")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--minutes", "1", "--seconds", "1"], "say the same"),
        (["--only", "1", "--scenarios", "1"], "leave --scenarios out"),
        (["--replay", "x.yaml", "--only", "1"], "--replay runs one file"),
        (["--scenarios", "0"], "x>=1"),
        (["--replay", "nowhere.yaml"], "there is no such file"),
    ],
)
def test_what_is_refused(
    arguments: list[str], says: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["swarm", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_file_that_is_no_scenario(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text("format: 2\nsede: 3\n")
    assert execute(["swarm", "--replay", "bad.yaml"]) == 2
    assert "did you mean 'seed'" in capsys.readouterr().err
