"""Trouble of the system that the command runs on: a message and an exit code, never an internal error."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import pytest
from cli_helpers import SCENARIO

from coordinator.cli import main
from coordinator.cli.entry import execute
from coordinator.cli.failures import report_failure
from coordinator.cli.libraries import BLAS_THREAD_VARIABLES
from coordinator.results.tables.reader import open_run
from coordinator.scenario.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "coordinator.cli"]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def command(
    *arguments: str | Path,
    environment: dict[str, str] | None = None,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=stdout,
        stderr=stderr,
    )


def done(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=300)
    return process.returncode, (out or b"").decode(), (errors or b"").decode()


def in_this_process(words: Sequence[str], stdout: BinaryIO, encoding: str = "utf-8") -> tuple[int, str]:
    """Run the command as a process of its own would, but for its start; return its exit code and errors."""
    errors = io.BytesIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch:
        for name in BLAS_THREAD_VARIABLES:
            patch.setenv(name, "1")
        patch.setattr(sys, "argv", ["recfleet", *words])
        patch.setattr(sys, "stdout", io.TextIOWrapper(stdout, encoding))
        patch.setattr(sys, "stderr", io.TextIOWrapper(errors, encoding))
        try:
            with pytest.raises(SystemExit) as ended:
                main()
            # What a stream lies on is closed with it.
            for stream in (sys.stdout, sys.stderr):
                assert isinstance(stream, io.TextIOWrapper)
                stream.detach()
            return int(ended.value.code or 0), errors.getvalue().decode()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def closed_pipe() -> int:
    """Return the end for writing of a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    return write


def at_their_places(verb: Sequence[str], scenario: Path, ready: Path, tmp_path: Path) -> list[str]:
    """Return the words of a command with true paths in place of SCENARIO, RUN, OTHER, TOKENS and NEW.

    RUN, OTHER and TOKENS are copies of those that are ``ready``.
    """
    places = {"SCENARIO": scenario, "NEW": tmp_path / "new"}
    for word in {"RUN", "OTHER", "TOKENS"}.intersection(verb):
        places[word] = tmp_path / word.lower()
        copy = shutil.copytree if (ready / word.lower()).is_dir() else shutil.copy
        copy(ready / word.lower(), places[word])
    return [str(places.get(word, word)) for word in verb]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, another one and tokens, which is only read."""
    folder = tmp_path_factory.mktemp("ready")
    (folder / "small.yaml").write_text(SCENARIO, encoding="utf-8")
    run = ["run", str(folder / "small.yaml"), "--quiet", "--out"]
    assert execute([*run, str(folder / "run")]) == 0
    assert execute([*run, str(folder / "other"), "--set", "rounds.cohort=7"]) == 0
    assert execute(["enroll", "issue", str(folder / "tokens"), "--devices", "0-9"]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [8, 40])
def test_a_file_that_cannot_grow_is_named_and_what_was_finished_is_read(
    scenario: Path, tmp_path: Path, blocks: int
) -> None:
    """A disk that fills up while tables are written, and one that does while the report is."""
    words = [*COMMAND, "run", str(scenario), "--out", str(tmp_path / "run")]
    limited = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", *words]
    process = subprocess.Popen(limited, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    code, _, errors = done(process)
    last = errors.splitlines()[-1]
    assert code == ExitCode.INTERNAL_ERROR
    assert last.startswith(f"error: {tmp_path / 'run.partial'}/")
    assert "File too large; raise the limit on the size of files (ulimit -f)" in last
    assert "traceback" not in errors.lower()
    assert not (tmp_path / "run").exists()
    assert not list((tmp_path / "run.partial").glob("*.tmp"))
    rounds = open_run(tmp_path / "run.partial").read("rounds", ["round"]).num_rows
    assert 0 <= rounds <= 3
    assert json.loads((tmp_path / "run.partial" / "manifest.json").read_text())["status"] == "failed"
    # It is in nobody's way.
    assert done(command("run", scenario, "--out", tmp_path / "run"))[0] == 0


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/tmp/x.parquet"),
            r"/tmp/x.parquet: No space left",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/tmp/x"), "/tmp/x: Disk quota exceeded ("),
        (OSError(errno.EROFS, "Read-only file system", "x"), "x: Read-only file system; change its mode"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files; raise the limit on open files"),
        (MemoryError(), "this machine has not enough memory; make the scenario smaller"),
    ],
)
def test_trouble_of_the_system_has_its_name_and_no_traceback(
    error: Exception, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report_failure(error, ["run"], show_traceback=False)
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {shown}")
    assert errors.count("\n") == 1
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        assert "free there); make room, or write to another place" in errors


def test_a_full_disk_behind_standard_output_is_said(scenario: Path) -> None:
    with open("/dev/full", "wb") as full:
        code, _, errors = done(command("show", scenario, stdout=full.fileno()))
    assert code == ExitCode.INTERNAL_ERROR
    assert errors == (
        "error: standard output: No space left on device; make room, or write to another place\n"
    )


VERBS: Sequence[Sequence[str]] = (
    ("--help",), ("show", "SCENARIO"), ("validate", "SCENARIO"), ("schema",), ("profiles", "list"),
    ("profiles", "show", "phone_mid_2020"), ("doctor",), ("diff", "RUN", "RUN"), ("report", "RUN"),
    ("run", "SCENARIO", "--out", "NEW", "--details"), ("export", "RUN", "--kind", "stateless", "-o", "NEW"),
    ("compare", "RUN", "OTHER"), ("swarm", "--scenarios", "1", "--out", "NEW"),
    ("enroll", "issue", "NEW", "--devices", "0-9"), ("enroll", "list", "TOKENS"),
    ("sweep", "SCENARIO", "--set", "sweep={rounds.cohort: [5, 6]}", "--out", "NEW"),
)  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_reader_that_goes_away_ends_every_verb_quietly(
    verb: Sequence[str], scenario: Path, ready: Path, tmp_path: Path
) -> None:
    words = at_their_places(verb, scenario, ready, tmp_path)
    with open(closed_pipe(), "wb") as pipe:
        code, errors = in_this_process(words, pipe)
    assert code == ExitCode.OUTPUT_CLOSED
    progress = ("round", "finished", "a minute")
    assert [line for line in errors.splitlines() if not any(part in line for part in progress)] == []
    if verb[0] == "run":
        assert json.loads((tmp_path / "new" / "manifest.json").read_text())["status"] == "finished"


def test_a_process_whose_reader_goes_away_ends_quietly(scenario: Path) -> None:
    pipe = closed_pipe()
    code, _, errors = done(command("show", scenario, stdout=pipe))
    os.close(pipe)
    assert (code, errors) == (ExitCode.OUTPUT_CLOSED, "")


@pytest.mark.slow
def test_a_run_whose_messages_nobody_reads_ends_in_order(scenario: Path, tmp_path: Path) -> None:
    pipe = closed_pipe()
    code, _, _ = done(command("run", scenario, "--out", tmp_path / "run", stdout=pipe, stderr=pipe))
    os.close(pipe)
    assert code == ExitCode.OUTPUT_CLOSED
    manifest = json.loads((tmp_path / "run.partial" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"


@pytest.mark.few(2)
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_can_write_to_an_ascii_terminal(
    verb: Sequence[str], scenario: Path, ready: Path, tmp_path: Path
) -> None:
    words = at_their_places(verb, scenario, ready, tmp_path)
    with io.BytesIO() as text, io.BytesIO() as plain:
        in_utf8, _ = in_this_process(words, text)
        if verb[0] == "run":
            words.append("--overwrite")
        in_ascii, errors = in_this_process(words, plain, "ascii")
        assert in_ascii == in_utf8
        assert plain.getvalue().isascii()
        assert errors.isascii()
        assert len(plain.getvalue().splitlines()) == len(text.getvalue().decode().splitlines())


@pytest.mark.slow
def test_the_columns_of_a_table_stay_straight_in_ascii(scenario: Path, tmp_path: Path) -> None:
    _, out, _ = done(command("run", scenario, "--out", tmp_path / "run", environment=ASCII))
    assert out.isascii()
    table = [line for line in out.splitlines() if line.startswith(("|", "+"))]
    assert any("->" in line for line in table)
    of_summary = table[: table.index(table[0], 1) + 1]
    assert len({len(line) for line in of_summary}) == 1


@pytest.mark.slow
def test_a_file_name_that_is_no_text_is_shown(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.yaml"
    code, _, errors = done(command("validate", os.fsdecode(name)))
    assert code == ExitCode.INVALID_SCENARIO
    assert "/caf\\xe9.yaml:1:1: there is no such file" in errors


@pytest.mark.few(4)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "verb",
    [
        ("run", "SCENARIO", "--out", "NEW"), ("run", "SCENARIO", "--out", "NEW", "--clock", "real"),
        ("sweep", "SCENARIO", "--out", "NEW"), ("serve", "SCENARIO", "--out", "NEW", "--port", "0"),
        ("device", "http://127.0.0.1:9"), ("swarm", "--scenarios", "1000"), ("compare", "RUN", "RUN"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_signal_while_the_command_starts_exits_with_4(
    verb: Sequence[str], number: signal.Signals, scenario: Path, tmp_path: Path
) -> None:
    """The verb's modules are imported from a pipe that never answers: it starts for ever."""
    slow = tmp_path / "path"
    slow.mkdir()
    fifo = slow / "started"
    os.mkfifo(fifo)
    # Numpy is what every verb needs first.
    (slow / "numpy.py").write_text(f"open({str(fifo)!r}, 'w').close()\nimport time\ntime.sleep(600)\n")
    places = {"SCENARIO": str(scenario), "RUN": str(tmp_path), "NEW": str(tmp_path / "new")}
    path = os.pathsep.join([str(slow), str(ROOT)])
    process = command(*[places.get(word, word) for word in verb], environment={"PYTHONPATH": path})
    fifo.open().close()
    process.send_signal(number)
    assert done(process) == (ExitCode.INTERRUPTED, "", "interrupted\n")
    assert not list(tmp_path.glob("*new*"))


@pytest.mark.parametrize("delay_s", [0.05, 0.4, 0.8, 1.2, 1.6])
@pytest.mark.slow
def test_a_signal_at_any_time_leaves_no_traceback(scenario: Path, tmp_path: Path, delay_s: float) -> None:
    process = command("run", scenario, "--out", tmp_path / "run", "--set", "rounds.count=100000")
    time.sleep(delay_s)
    process.terminate()
    code, _, errors = done(process)
    assert "Traceback" not in errors
    assert code in (ExitCode.INTERRUPTED, -signal.SIGTERM)  # the latter before Python runs anything


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("learning.factors=1000000000", "learning.factors: the model would take at least 1.16 TiB"),
        ("data.users=1000000000000", "data.users: the data would take at least 320 TiB"),
        ("compute.workers=100000", "compute.workers: 100000 processes are too many; write 1024 or less"),
        ("data.items=1000000000000", "data.items: items must be 2 … 1048576, not 1000000000000"),
        ("rounds.cohort=1000000000000", "rounds.cohort: 1000000000000 devices, but the data has 60 clients"),
    ],
)
def test_a_size_that_no_machine_has_is_refused_at_its_place(
    setting: str, message: str, scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert execute(["run", str(scenario), "--set", setting, "--out", str(out)]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"--set:1:{setting.index('=') + 2}: {message}")
    assert "write" in errors or " must be " in errors
    assert not list(tmp_path.glob("run*"))


@pytest.mark.parametrize("key", ["clients", "samples_per_client", "features"])
def test_samples_that_no_machine_holds_are_refused(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "regression.yaml"
    file.write_text(
        "format: 2\n"
        f"data: {{source: synthetic-regression, {key}: 1000000000000}}\n"
        "fleet: {mix: enterprise_wifi, availability: always_on}\n"
        "learning: {algorithm: linear-regression}\n"
        "rounds: {count: 2, cohort: 5, quorum: 1, deadline: 60 s}\n"
    )
    assert execute(["run", str(file), "--out", str(tmp_path / "run")]) == 2
    column = len(f"data: {{source: synthetic-regression, {key}: ") + 1
    assert f"{file}:2:{column}: data.{key}: the data would take at least" in capsys.readouterr().err


@pytest.mark.parametrize("rating", ["1e300", "-1e10", "nan", "inf"])
def test_a_rating_that_no_scale_has_is_refused_with_its_line(
    rating: str, scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "ratings.tsv"
    data.write_text(f"1\t1\t3\n1\t2\t{rating}\n")
    file = tmp_path / "of-a-file.yaml"
    made_up = next(line for line in scenario.read_text().splitlines() if line.startswith("data:"))
    file.write_text(scenario.read_text().replace(made_up, f"data: {{source: plain, path: {data.name}}}"))
    assert execute(["run", str(file), "--out", str(tmp_path / "run")]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {data}:2: rating ")


def test_a_parent_that_is_a_folder_is_refused_where_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = tmp_path / "child.yaml"
    child.write_text("# a child\nextends: .\n")
    assert execute(["validate", str(child)]) == 2
    assert capsys.readouterr().err.startswith(f"{child}:2:10: extends: ")


def test_a_finished_run_is_replaced_only_when_that_is_asked_for(
    ready: Path, scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = shutil.copytree(ready / "run", tmp_path / "finished")
    before = (finished / "manifest.json").read_bytes()
    again = ["run", str(scenario), "--seed", "8", "--quiet", "--out", str(finished)]
    assert execute(again) == 2
    assert (
        "holds a finished run; replace it with --overwrite, or give another --out" in capsys.readouterr().err
    )
    assert execute(["serve", str(scenario), "--out", str(finished), "--port", "0"]) == 2
    assert (finished / "manifest.json").read_bytes() == before
    assert execute([*again, "--overwrite"]) == 0
    assert json.loads((finished / "manifest.json").read_text())["seed"] == 8


@pytest.mark.parametrize("manifest", [None, "{}", "[]", '{"name": "an app", "version": "1"}', "\x00"])
def test_what_is_no_run_is_never_replaced(
    manifest: str | None, scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    assert execute(["run", str(scenario), "--out", str(folder), "--overwrite"]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    assert (folder / "thesis.txt").read_text() == "years of work"
