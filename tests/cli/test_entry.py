from __future__ import annotations

import inspect
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from coordinator.cli import scenarios
from coordinator.cli.entry import execute
from coordinator.cli.libraries import BLAS_THREAD_VARIABLES
from coordinator.cli.verbs import VerbWork, cli

ROOT = Path(__file__).resolve().parents[2]


def python(program: str, **environment: str) -> str:
    """Run a program in a fresh interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the verb ``schema`` raise an error."""

    def fail() -> str:
        raise error

    monkeypatch.setattr(scenarios, "schema_text", fail)


def verbs(group: click.Group = cli, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every verb, those of groups included: ``("enroll", "issue")``."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs(command, (*before, name))
        else:
            yield (*before, name)


def command_of(words: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--help"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    for name, verb in cli.commands.items():
        assert verb.help is not None
        assert f" {name} {' '.join(verb.help.partition('.')[0].split())}." in listed
    assert "To begin: recfleet run quickstart" in listed


@pytest.mark.parametrize("words", list(verbs()), ids=" ".join)
def test_every_verb_has_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*words, "--help"]) == 0
    assert f"recfleet {' '.join(words)}" in capsys.readouterr().out


@pytest.mark.parametrize("words", list(verbs()), ids=" ".join)
def test_the_work_of_a_verb_takes_its_arguments_and_options(words: tuple[str, ...]) -> None:
    command = command_of(words)
    assert isinstance(command.callback, VerbWork)
    values = {one.name: object() for one in command.params if one.expose_value}
    work = pkgutil.resolve_name(command.callback.target)
    taken = inspect.signature(work)
    taken.bind(**values)
    named = {one.name for one in taken.parameters.values() if one.kind is not one.VAR_KEYWORD}
    assert named <= set(values)


def test_run_imports_neither_sockets_nor_onnx() -> None:
    imported = python("import sys, coordinator.cli.run\nprint(*sys.modules)\n").split()
    assert "numpy" in imported
    assert {"aiohttp", "onnxruntime", "jinja2", "tenseal", "dp_accounting"}.isdisjoint(imported)


def test_blas_is_held_to_one_thread_before_numpy_is_imported() -> None:
    # Where a variable came too late, OpenBLAS would have started its threads by the end of this program.
    printed = python(
        "import os, sys, psutil\n"
        "from coordinator.cli.libraries import limit_blas_threads\n"
        "assert 'numpy' not in sys.modules\n"
        "limit_blas_threads()\n"
        "import numpy\n"
        "numpy.ones((500, 500)) @ numpy.ones((500, 500))\n"
        "print(psutil.Process().num_threads())\n",
        **dict.fromkeys(BLAS_THREAD_VARIABLES, "4"),
    )
    assert printed.strip() == "1"


def test_an_unknown_verb_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["valdiate"]) == 2
    assert "did you mean 'validate'?" in capsys.readouterr().err


def test_an_unknown_verb_far_from_any_is_answered_with_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["xyzzy"]) == 2
    assert "there are: run, scenarios," in capsys.readouterr().err


def test_an_unknown_option_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["schema", "--colour"]) == 2
    assert "--colour" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out.startswith("recfleet")


def test_an_internal_error_is_one_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fail_with(RuntimeError("boom\nand more"), monkeypatch)
    assert execute(["schema"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("internal error: RuntimeError: boom\n")
    assert "Traceback" not in shown
    (filed,) = tmp_path.iterdir()
    assert str(filed) in shown
    text = filed.read_text(encoding="utf-8")
    assert text.startswith("command: recfleet schema\n")
    assert "RuntimeError: boom\nand more" in text


def test_debug_shows_the_traceback_and_files_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fail_with(RuntimeError("boom"), monkeypatch)
    assert execute(["--debug", "schema"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_traceback_that_cannot_be_filed_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    fail_with(RuntimeError("boom"), monkeypatch)
    assert execute(["schema"]) == 1
    assert "could not be filed" in capsys.readouterr().err


def test_the_systems_refusals_are_not_called_bugs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fail_with(OSError(28, "No space left on device"), monkeypatch)
    assert execute(["schema"]) == 1
    errors = capsys.readouterr().err
    assert errors == "error: No space left on device; make room, or write to another place\n"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_exits_with_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert execute(["schema"]) == 4
    assert "interrupted" in capsys.readouterr().err
