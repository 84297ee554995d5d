"""Runs that outlive the process of their coordinator: killed between any two steps, stopped, gone on with."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from killed_coordinator import COMMAND, MODES, ROOT, Coordinator, Play
from service_helpers import HANG_S, SMALL

from coordinator.engine.run_files import MODEL
from coordinator.results.run_directory import RunDirectory, RunDirectoryError
from coordinator.results.tables.reader import open_run, read_manifest
from coordinator.results.tables.schemas import SCHEMAS
from coordinator.service.survival.journal import JOURNAL, MARK, Journal, JournalError, create_journal
from edge.privacy.accounting import gaussian_epsilon

SMALL_RUN = SMALL.replace("interval: 0.2 s", "interval: 0.05 s")
STEPS = 1 + 1 + 3 * 4 + 1
"""Of a run of three rounds: where it begins; the look at the first model; a round begins, is over, is
written, and looked back at; and the last evaluation."""
FINISHED_SUFFIXES = {".parquet", ".json", ".yaml", ".npz", ".html", ".gz"}
"""Of a finished run: neither a journal nor a stream is left."""
DIES = """
import os, sys
from pathlib import Path
from coordinator.scenario.load import load
from coordinator.service.survival.journal import Journal
from service_helpers import run_real
from coordinator.service.survival.survivor import Survivor

folder, dies_at, moment = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
Journal.piece_bytes = int(sys.argv[4])
steps = 0
step = Journal.step

def dying(journal):
    import contextlib
    @contextlib.contextmanager
    def within():
        global steps
        steps += 1
        with step(journal):
            yield
            if steps == dies_at and moment == "within":
                os._exit(9)
        if steps == dies_at and moment == "after":
            os._exit(9)
    return within()

Journal.step = dying
run_real(load(folder / "s.yaml"), folder / "run", survival=Survivor(resume=True))
print(steps)
"""

SPOILS = """
from coordinator.engine.actor import Coordinator
from edge.wire.messages import Report

judge = Coordinator.frame_received

def received(self, channel, message):
    if isinstance(message, Report) and message.device == 4:
        message = message._replace(weight=-8.0)
    return judge(self, channel, message)

Coordinator.frame_received = received
"""
"""Device 4 reports what cannot be."""


def run_to_step(
    folder: Path,
    dies_at: int,
    moment: str,
    *,
    text: str = SMALL_RUN,
    piece_bytes: int = Journal.piece_bytes,
    before: str = "",
) -> subprocess.CompletedProcess[str]:
    """Go on with a run, in a process that dies at a step of its journal; 0 for at none."""
    (folder / "s.yaml").write_text(text)
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "service")))
    arguments = (str(folder), str(dies_at), moment, str(piece_bytes))
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", before + DIES, *arguments],
        env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run_to_step(folder, 0, "")
    assert (done.returncode, done.stdout) == (0, f"{STEPS}\n"), done.stderr
    return folder / "run"


def run_id_in(directory: Path) -> str:
    found: str = read_manifest(directory)["run_id"]
    return found


def check_same_rounds(run: Path, undisturbed: Path) -> None:
    """Assert that a run has the rounds of another, but for one that was cut short, each once."""
    tables, whole = open_run(run), open_run(undisturbed)
    rows = tables.read("rounds").to_pylist()
    assert [row["round"] for row in rows] == [1, 2, 3]
    evaluated = tables.read("evaluations")["round"].to_pylist()
    assert evaluated == whole.read("evaluations")["round"].to_pylist()
    if all(row["outcome"] == "completed" for row in rows):
        # Nothing was lost, so nothing may differ: neither the model nor who took part.
        with np.load(run / MODEL) as model, np.load(undisturbed / MODEL) as other:
            assert {name: model[name].tobytes() for name in model} == {n: other[n].tobytes() for n in other}
        columns = ["round", "device", "outcome"]
        assert tables.read("device_rounds", columns).equals(whole.read("device_rounds", columns))
    else:
        (cut,) = [row for row in rows if row["outcome"] != "completed"]
        assert (cut["reason"], cut["completed"], cut["dropped"]) == ("coordinator-crash", 0, 6)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["within", "after"])
@pytest.mark.parametrize("dies_at", range(1, STEPS + 1))
def test_a_process_that_dies_at_a_step_loses_no_more_than_that(
    tmp_path: Path, undisturbed: Path, dies_at: int, moment: str
) -> None:
    died = run_to_step(tmp_path, dies_at, moment)
    assert died.returncode == 9, died.stderr
    began_as = run_id_in(tmp_path / "run.partial")
    done = run_to_step(tmp_path, 0, "")
    assert done.returncode == 0, done.stderr
    check_same_rounds(tmp_path / "run", undisturbed)
    assert run_id_in(tmp_path / "run") == began_as != run_id_in(undisturbed)
    assert {file.suffix for file in (tmp_path / "run").iterdir()} <= FINISHED_SUFFIXES
    assert len(list((tmp_path / "run").glob("*.parquet"))) == len(SCHEMAS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies_at", "queries"),
    [(1, [-3]), (2, [-2]), (3, [-3, -2]), (4, [-3]), (5, [-3]), (6, [-3])],
    ids=["as it begins", "as it asks", "before the answer is kept", "once it is", "at a look", "in a round"],
)
def test_devices_are_asked_for_the_mean_until_it_is_known_and_never_by_the_same_number(
    tmp_path: Path, dies_at: int, queries: list[int]
) -> None:
    text = SMALL_RUN.replace("upload: dense", "upload: dense, subtract_mean: true")
    text = text.replace("ratings_per_user: 8", "ratings_per_user: 8, mean_query: {range: [1, 5], cohort: 12}")
    assert run_to_step(tmp_path, dies_at, "after", text=text).returncode == 9
    done = run_to_step(tmp_path, 0, "", text=text)
    assert done.returncode == 0, done.stderr
    tables = open_run(tmp_path / "run")
    assert tables.read("evaluation_rounds")["round"].to_pylist() == queries
    found = tables.manifest["rating_mean"]
    assert found["devices"] == 12
    with np.load(tmp_path / "run" / MODEL) as model:
        assert model["rating_mean"] == np.float32(found["value"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies_at", "held"),
    [
        # What was measured is lost, and held again: devices, whose process it was, have forgotten it.
        (3, [0, 0, 2, 3]),
        (4, [0, 2, 3]),
    ],
    ids=["before its values are kept", "once they are"],
)
def test_the_rows_of_an_evaluation_outlive_a_process_that_dies_after_it(
    tmp_path: Path, dies_at: int, held: list[int]
) -> None:
    text = SMALL_RUN.replace("evaluation: {every: 2}", "evaluation: {every: 2, on: devices, cohort: 12}")
    assert run_to_step(tmp_path, dies_at, "after", text=text).returncode == 9
    done = run_to_step(tmp_path, 0, "", text=text)
    assert done.returncode == 0, done.stderr
    tables = open_run(tmp_path / "run")
    rows = tables.read("evaluation_rounds").to_pylist()
    assert [(row["round"], row["outcome"]) for row in rows] == [(number, "completed") for number in held]
    devices = tables.read("device_evaluations")["round"].to_pylist()
    assert devices == [row["round"] for row in rows for _ in range(row["invited"])]
    values = Counter(tables.read("evaluations")["round"].to_pylist())
    assert set(values) == {0, 2, 3}
    assert len(set(values.values())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dies_at", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_a_suspended_device_stays_so_when_the_run_is_gone_on_with(tmp_path: Path, dies_at: int) -> None:
    """The process dies when the first round, in which it was suspended, is over and not written yet."""
    text = SMALL_RUN.replace("cohort: 6", "cohort: 12, quorum: 6, selection: random")
    text += "admission: {strikes: 1}\n"
    assert run_to_step(tmp_path, dies_at, "within", text=text, before=SPOILS).returncode == 9
    done = run_to_step(tmp_path, 0, "", text=text)
    assert done.returncode == 0, done.stderr
    tables = open_run(tmp_path / "run")
    assert tables.read("rounds")["round"].to_pylist() == [1, 2, 3]
    rows = tables.read("device_rounds").to_pylist()
    assert [row["round"] for row in rows if row["device"] == 4] == [1]
    assert [row["round"] for row in rows if row["device"] == 3] == [1, 2, 3]
    events = tables.read("events").to_pylist()
    told = [(row["round"], row["device"], row["reason"]) for row in events if row["kind"] == "suspended"]
    assert told == [(1, 4, "out-of-range")]
    assert tables.manifest["suspended_devices"] == [4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies_at", "cut"),
    [
        (8, 6),  # while the second round is under way
        (9, 0),  # when it is over, and its rows are not final
    ],
)
@pytest.mark.slow
def test_what_may_have_been_seen_in_a_round_that_was_cut_short_is_spent(
    tmp_path: Path, dies_at: int, cut: int
) -> None:
    pytest.importorskip("dp_accounting")
    text = SMALL_RUN.replace("upload: dense", "upload: dense, weighting: uniform")
    text += "privacy: {mechanism: local-gaussian, clip_norm: 1, noise_multiplier: 3}\n"
    died = run_to_step(tmp_path, dies_at, "within", text=text)
    assert died.returncode == 9, died.stderr
    done = run_to_step(tmp_path, 0, "", text=text)
    assert done.returncode == 0, done.stderr
    tables = open_run(tmp_path / "run")
    rows = tables.read("device_rounds", ["round", "device", "outcome", "reason"]).to_pylist()
    lost = [row["device"] for row in rows if row["reason"] == "coordinator-crash"]
    assert len(lost) == cut
    # How far the devices of the lost round had come is not known: each of them may have been heard.
    times = Counter(row["device"] for row in rows if row["outcome"] == "completed") + Counter(lost)
    (most,) = [count for _, count in times.most_common(1)]
    spent = read_manifest(tmp_path / "run")["privacy"]
    assert spent["most_releases"] == most
    expected = gaussian_epsilon(math.sqrt(most) / 3, 1e-5), gaussian_epsilon(2 * math.sqrt(most) / 3, 1e-5)
    assert (spent["epsilon"], spent["epsilon_replace_one"]) == pytest.approx(expected, rel=1e-6)
    assert tables.read("rounds", ["epsilon"])["epsilon"].to_pylist()[-1] == spent["epsilon"]


@pytest.mark.slow
def test_a_run_goes_on_when_its_scenario_has_been_upgraded(tmp_path: Path) -> None:
    old = SMALL_RUN.replace("format: 2", "format: 1")
    assert run_to_step(tmp_path, 4, "within", text=old).returncode == 9
    new = SMALL_RUN.replace("rounds: {", "rounds: {selection: random, ")
    done = run_to_step(tmp_path, 0, "", text=new)
    assert done.returncode == 0, done.stderr
    assert open_run(tmp_path / "run").read("rounds")["round"].to_pylist() == [1, 2, 3]


@pytest.mark.slow
def test_a_run_that_dies_at_every_step_gets_to_its_end(tmp_path: Path) -> None:
    """Each process does one step of its own, after the two in which it takes up the run."""
    for _ in range(12):
        died = run_to_step(tmp_path, 3, "after")
        if died.returncode != 9:
            break
    assert died.returncode == 0, died.stderr
    rows = open_run(tmp_path / "run").read("rounds").to_pylist()
    assert [row["round"] for row in rows] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_coordinator_that_is_killed_again_and_again(tmp_path: Path, mode: str) -> None:
    play = Play(tmp_path, MODES[mode])
    with play.devices() as devices:
        for seconds, listening in ((0.3, False), (2.0, True), (0.0, True), (1.2, True), (0.9, False)):
            play.kill_after(seconds, listening=listening)
        play.end()
        assert devices.poll() is None or devices.returncode == 0
    play.check()
    assert play.findings.kills == 5


@pytest.mark.slow
def test_a_service_that_is_asked_to_stop_finishes_its_round_and_can_be_gone_on_with(tmp_path: Path) -> None:
    play = Play(tmp_path, ())
    with play.devices() as devices:
        play.end()
        _, errors = devices.communicate(timeout=HANG_S)
    assert devices.returncode == 0, errors
    tables = open_run(play.partial)
    first = tables.read("rounds")["outcome"].to_pylist()
    assert set(first) == {"completed"}
    assert tables.manifest["status"] == "interrupted"
    assert tables.manifest["stopped_by"] == "stopped between two rounds"
    with play.devices():
        play.end()
    assert len(open_run(play.partial).read("rounds")) > len(first)
    assert open_run(play.partial).manifest["resumed"] == 1
    play.check()


@pytest.mark.slow
def test_the_second_signal_does_not_wait_for_the_round(tmp_path: Path) -> None:
    """Devices that stand still hold the round up for an hour; whoever asks twice is not held up."""
    play = Play(tmp_path, ("rounds.deadline=3600 s", "connection.sockets.join_timeout=1 s"))
    with play.devices() as devices, play.coordinator() as life:
        assert life.listen(time.monotonic() + HANG_S, "after round")
        devices.send_signal(signal.SIGSTOP)
        life.process.send_signal(signal.SIGTERM)
        assert life.listen(time.monotonic() + HANG_S, "stops once the round under way is over")
        life.process.send_signal(signal.SIGTERM)
        life.listen(time.monotonic() + HANG_S)
        assert life.process.wait(HANG_S) == 4
    assert open_run(play.partial).manifest["status"] == "interrupted"


def recfleet(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_what_cannot_be_gone_on_with_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SMALL)
    serve = ("serve", "s.yaml", "--port", "0", "--out", "run", "--resume", "--quiet")
    # A run without a journal.
    with RunDirectory.create(tmp_path / "run", "seed: 1\n", {"seed": 1}):
        pass
    done = recfleet(tmp_path, *serve)
    assert done.returncode == 2
    assert "run.partial: has no journal" in done.stderr
    # One of another scenario.
    create_journal(tmp_path / "run.partial", "a-run_01")
    done = recfleet(tmp_path, *serve)
    assert done.returncode == 2
    assert "is another run (scenario_hash, seed, clock, data differ)" in done.stderr
    assert json.loads((tmp_path / "run.partial" / "manifest.json").read_text())["seed"] == 1


@pytest.mark.slow
def test_what_a_service_leaves_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the mask of the process is; what an earlier version left open is shut by the next process."""
    (tmp_path / "s.yaml").write_text(SMALL)
    arguments = [*COMMAND, "serve", "s.yaml", "--port", "0", "--out", "run", "--resume", "--quiet"]
    for wide in (False, True):
        with subprocess.Popen(
            arguments, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, umask=0,
            stderr=subprocess.PIPE, text=True,
        ) as service:  # fmt: skip
            life = Coordinator(service)
            assert life.listen(time.monotonic() + HANG_S, "listening at"), "".join(life.lines)
            service.kill()
        said = any("others on this host could read it; now only its owner can" in line for line in life.lines)
        assert said == wide
        partial = tmp_path / "run.partial"
        assert partial.stat().st_mode & 0o777 == 0o700
        modes = {file.name: file.stat().st_mode & 0o777 for file in partial.iterdir()}
        assert modes == dict.fromkeys(modes, 0o600)
        assert {JOURNAL, MARK, "manifest.json", "rounds.arrows"} <= modes.keys()
        for path in partial.iterdir():
            path.chmod(0o644)
        partial.chmod(0o755)


def test_a_living_run_is_not_gone_on_with(tmp_path: Path) -> None:
    with (
        RunDirectory.create(tmp_path / "run", "seed: 1\n", {"seed": 1}),
        pytest.raises(RunDirectoryError, match="another process is writing this run"),
    ):
        RunDirectory.reopen(tmp_path / "run")
    with RunDirectory.reopen(tmp_path / "run"):
        pass
    with pytest.raises(RunDirectoryError, match="nothing to go on with"):
        RunDirectory.reopen(tmp_path / "other")


@pytest.mark.slow
def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path, undisturbed: Path) -> None:
    done = run_to_step(undisturbed.parent, 0, "")
    assert "RunFinishedError" in done.stderr
    assert open_run(undisturbed).complete


def cut_short(journal: Journal) -> None:
    with journal.step():
        journal.begin(1, "only", [])
        journal.written(2)


def open_rounds(journal: Journal) -> list[tuple[int, str]]:
    return [(one.number, one.stands) for one in journal.open_rounds()]


class TestJournal:
    def test_a_step_is_whole_or_not_there(self, tmp_path: Path) -> None:
        create_journal(tmp_path, "a-run_01")
        with Journal(tmp_path) as journal:
            with pytest.raises(JournalError, match="round 2 is not over"):
                cut_short(journal)
            assert open_rounds(journal) == []
            with journal.step():
                journal.begin(1, "only", [])
        with Journal(tmp_path) as journal:
            assert open_rounds(journal) == [(1, "begun")]
            assert (journal.rounds, journal.applied) == (1, 0)

    def test_a_round_goes_one_way(self, tmp_path: Path) -> None:
        create_journal(tmp_path, "a-run_01")
        with Journal(tmp_path) as journal:
            with journal.step():
                journal.begin(1, "only", [])
                journal.over(1, 1, [])
            with (
                pytest.raises(JournalError, match="round 1 is not begun, and cannot be over"),
                journal.step(),
            ):
                journal.over(1, 2, [])
            with journal.step():
                journal.written(1)
            assert open_rounds(journal) == []
            assert (journal.rounds, journal.applied) == (1, 1)

    @pytest.mark.parametrize("wrong", [2, 0])
    def test_no_application_is_left_out_or_made_twice(self, tmp_path: Path, wrong: int) -> None:
        create_journal(tmp_path, "a-run_01")
        with Journal(tmp_path) as journal:
            with journal.step():
                journal.begin(1, "only", [])
            with (
                pytest.raises(JournalError, match=f"application {wrong} cannot follow 0"),
                journal.step(),
            ):
                journal.over(1, wrong, [])
            assert open_rounds(journal) == [(1, "begun")]

    def test_what_is_no_journal(self, tmp_path: Path) -> None:
        with pytest.raises(JournalError, match="is missing"):
            Journal(tmp_path)
        (tmp_path / JOURNAL).write_text("a shopping list, long enough to be read as one: " * 50)
        with pytest.raises(JournalError, match=r"is damaged \(file is not a database"):
            Journal(tmp_path)

    def test_one_of_another_version_is_left_as_it_is(self, tmp_path: Path) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / JOURNAL)) as other:
            other.execute("PRAGMA user_version = 1")
        before = (tmp_path / JOURNAL).read_bytes()
        with pytest.raises(JournalError, match="version 1 of the journal; this is version 3"):
            Journal(tmp_path)
        assert (tmp_path / JOURNAL).read_bytes() == before
