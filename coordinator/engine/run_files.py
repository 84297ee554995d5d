"""The files of a run directory: their names, the words in them that readers compare, and atomic writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

Status = Literal["running", "finished", "no-round-completed", "diverged", "interrupted", "failed"]
ENDED: Final = ("finished", "no-round-completed", "diverged")
"""What a run is called that went to its end and was judged: the model learnt, or it did not."""
MANIFEST: Final = "manifest.json"
RESOLVED_SCENARIO: Final = "scenario.resolved.yaml"
SUMMARY: Final = "summary.json"
REPORT: Final = "report.html"
MODEL: Final = "model.npz"
ITEMS: Final = "items.json"
VERDICTS: Final = "verdicts.json"
BASELINE: Final = "baseline"
"""The run without faults, a whole run directory inside that of the run."""
SWEEP_TABLE: Final = "sweep.json"
"""In a directory of runs: the table of the sweep that did them."""
DEVICES: Final = "devices"
"""What real devices that live in the process of the run remember of it."""
PARTIAL_SUFFIX: Final = ".partial"
SIMULATED: Final = "simulated"
"""What the time of a run on the virtual clock is called."""
REAL: Final = "real"
"""What that of one on the real clock is."""


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Let refusals of the operating system name the file that is written: those of a write do not.

    Raises
    ------
    OSError : of the same number, with the file's name.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Give the path at which to write a file that then takes its place in one step.

    Its bytes, then its name, have reached the disk. What cannot be written whole is removed: on a full disk
    it takes the room that others need.

    Raises
    ------
    OSError : with the name of ``target``.
    """
    temporary = target.with_name(target.name + ".tmp")
    try:
        with errors_name(target):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
            folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, contents: bytes) -> None:
    """Write a file so that its path holds the old contents or the new, whole, at any moment."""
    with written_whole(path) as temporary:
        temporary.write_bytes(contents)


def on_real_clock(summary: Mapping[str, Any]) -> bool:
    """Return whether every time of a run was measured, by its summary; without a word it was simulated."""
    return bool(summary.get("clock") == "real")


def time_name(summaries: Iterable[Mapping[str, Any]]) -> str:
    """Return what the time of runs is called, by their summaries; of runs on both clocks it is of the run."""
    kinds = {on_real_clock(summary) for summary in summaries}
    if len(kinds) != 1:
        return "time of the run"
    return f"{REAL if kinds.pop() else SIMULATED} time"
