"""A run that is killed or interrupted leaves its finished rounds, and can be run again."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from run_helpers import SCENARIOS

from coordinator.results.diff import diff_runs
from coordinator.results.run_directory import run_status
from coordinator.results.summary import summarise
from coordinator.results.tables.reader import RunTables, open_run
from coordinator.scenario.exit_codes import ExitCode

# Each round waits for all of its devices until the deadline, so the rounds before the last one are finished.
SETTINGS = ("rounds.over_select=100%", "evaluation.every=1", "evaluation.users=10")


@contextlib.contextmanager
def running(out: Path, *, rounds: int) -> Iterator[subprocess.Popen[str]]:
    """Run the quickstart's fleet for so many rounds in another process."""
    settings = (*SETTINGS, f"rounds.count={rounds}", "thresholds=null")
    with running_scenario(SCENARIOS / "quickstart.yaml", out, settings) as process:
        yield process


@contextlib.contextmanager
def running_scenario(file: Path, out: Path, settings: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a scenario in another process, which is killed on leaving."""
    command = [sys.executable, "-m", "coordinator.cli", "run", str(file), "--plain"]
    for setting in settings:
        command += ["--set", setting]
    with subprocess.Popen(
        [*command, "--out", str(out)],
        cwd=SCENARIOS.parent,
        env=dict(os.environ, OPENBLAS_NUM_THREADS="1"),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(out: Path, *, rounds: int) -> str:
    """Run to the end and return what was printed."""
    with running(out, rounds=rounds) as process:
        output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return output


def wait_for_round(stream: IO[str] | None, number: int) -> None:
    """Read what the run says until it has finished a round."""
    assert stream is not None
    for line in stream:
        if line.startswith(f"after round {number}:"):
            return
    raise AssertionError("the run ended before it was stopped")


def wait_for_rows(stream: IO[str] | None, partial: Path, rounds: int) -> int:
    """Read what the run says until its tables hold so many rounds; return how many it had finished then."""
    assert stream is not None
    for line in stream:
        said = re.match(r"after round (\d+):", line)
        if said and open_run(partial).read("rounds", ["round"]).num_rows >= rounds:
            return int(said[1])
    raise AssertionError("the run ended before it was stopped")


def check_prefix(stopped: RunTables, whole: RunTables, at_least: int) -> None:
    """Assert that a stopped run holds the first rounds of the whole one, all tables alike."""
    rounds = stopped.read("rounds", ["round", "invited"])
    numbers = rounds["round"].to_pylist()
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= at_least
    # The row of a round goes last: the kill may have come between the rows of its devices and its own.
    rows = [row for row in stopped.read("device_rounds", ["round"])["round"].to_pylist() if row in numbers]
    assert len(rows) == sum(rounds["invited"].to_pylist())
    events = set(stopped.read("events", ["round"])["round"].to_pylist())
    assert set(numbers) <= events <= {*numbers, len(numbers) + 1}
    difference = diff_runs(stopped, whole)
    # They agree until the shorter of the two ends.
    divergence = difference.divergence
    assert divergence is not None
    assert divergence.first is None or divergence.second is None
    assert difference.rows["rounds"] == min(len(numbers), whole.read("rounds", ["round"]).num_rows)


def test_a_killed_run_can_be_read_and_run_again(tmp_path: Path) -> None:
    partial = tmp_path / "run.partial"
    with running(tmp_path / "run", rounds=1_000_000) as process:
        # Rows are written a second's rounds at a time.
        assert wait_for_rows(process.stderr, partial, 7) >= 7
        process.kill()
        process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "run").exists()

    stopped = open_run(partial)
    assert not stopped.complete
    assert run_status(partial, stopped.manifest) == "killed"
    summary = summarise(stopped, "killed")
    assert summary["rounds"]["finished"] == stopped.read("rounds", ["round"]).num_rows

    finish(tmp_path / "other", rounds=6)
    check_prefix(stopped, open_run(tmp_path / "other"), at_least=7)

    output = finish(tmp_path / "run", rounds=6)
    assert str(tmp_path / "run") in output
    assert not partial.exists()
    assert diff_runs(open_run(tmp_path / "run"), open_run(tmp_path / "other")).identical


def test_ctrl_c_ends_a_run_in_order(tmp_path: Path) -> None:
    with running(tmp_path / "run", rounds=1_000_000) as process:
        wait_for_round(process.stderr, 5)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=600)
    assert process.returncode == ExitCode.INTERRUPTED, errors
    assert "interrupted by the user" in output
    partial = tmp_path / "run.partial"
    assert "Traceback" not in errors

    manifest = json.loads((partial / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    assert "digest" not in manifest or manifest["digest"] is None
    stopped = open_run(partial)
    finished = stopped.read("rounds", ["round"]).num_rows
    assert finished >= 4
    assert json.loads((partial / "summary.json").read_text())["rounds"]["finished"] == finished
    assert (partial / "model.npz").is_file()
