"""Runs whose files were damaged: gone on with exactly, or refused by name; never from an earlier step."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_survival import FINISHED_SUFFIXES, check_same_rounds, recfleet, run_to_step

from coordinator.engine.run_files import MANIFEST, RESOLVED_SCENARIO
from coordinator.results.run_directory import RunDirectoryError
from coordinator.results.tables.reader import open_run
from coordinator.service.survival.journal import JOURNAL, MARK, Journal, JournalError, Mark
from coordinator.service.survival.survivor import DamageError, Survivor

pytestmark = pytest.mark.slow

HOT = f"{JOURNAL}-journal"
FACTS = ("began_at_s", "now_s", "looked_back", "stop", "resumed")
PIECE = "evaluations.0.parquet"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a coordinator has left that was killed twice; ``earlier`` beside it, what it had left at first."""
    folder = tmp_path_factory.mktemp("left")
    died = run_to_step(folder, 9, "after")
    assert died.returncode == 9, died.stderr
    with Journal(folder / "run.partial") as journal:
        journal.piece_bytes = 1
        assert PIECE.partition(".")[0] in journal.fold()
    shutil.copytree(folder / "run.partial", folder / "earlier")
    died = run_to_step(folder, 5, "after")
    assert died.returncode == 9, died.stderr
    return folder / "run.partial"


def content(directory: Path) -> dict[str, Any]:
    """Return all that a run is gone on with from."""
    with Journal(directory) as journal:
        return {
            "rounds": (journal.rounds, journal.applied, journal.evaluated_at),
            "open": journal.open_rounds(),
            "drafts": [
                (name, batch.to_pydict())
                for one in journal.open_rounds()
                for name, batch in journal.draft(one.number)
            ],
            "rows": [
                (name, str(batch.to_pydict()))
                for rows in (journal.piece_rows(), journal.rows())
                for name, batch in rows
            ],
            "facts": [journal.fact(name) for name in FACTS],
            "arrays": {
                f"{part}/{name}": array.tobytes()
                for part in ("model", "coordinator")
                for name, array in journal.arrays(part).items()
            },
        }  # fmt: skip


def damaged(size: int, every: int) -> Iterator[Callable[[bytes], bytes]]:
    """Yield ways to damage a file: a bit turned in every so many bytes, and cut short at as many places."""
    for place in range(0, size, every):
        for bit in (1 << place % 8, 0xFF):
            yield (
                lambda old, place=place, bit=bit: (  # type: ignore[misc]
                    old[:place] + bytes([old[place] ^ bit]) + old[place + 1 :]
                )
            )
        yield lambda old, place=place: old[:place]  # type: ignore[misc]


def damage_everywhere(directory: Path, copy: Path, names: list[str], every: int) -> tuple[int, int]:
    """Damage each file in many ways; return how often that was refused, and how often it did not matter.

    Whatever is not refused must be what the undamaged directory holds.
    """
    shutil.copytree(directory, copy)
    whole = content(copy)
    refused = harmless = 0
    for name in names:
        original = (directory / name).read_bytes()
        for change in damaged(len(original), every if len(original) > 1024 else 7):
            shutil.rmtree(copy)
            shutil.copytree(directory, copy)
            (copy / name).write_bytes(change(original))
            try:
                found = content(copy)
            except JournalError:
                refused += 1
                continue
            assert str(found) == str(whole), f"{name} was damaged, and other things were read from it"
            harmless += 1
    return refused, harmless


@pytest.mark.parametrize("every", [2039, 797])
def test_a_damaged_journal_mark_or_piece(left: Path, tmp_path: Path, every: int) -> None:
    refused, harmless = damage_everywhere(left, tmp_path / "copy", [JOURNAL, MARK, PIECE], every)
    # What matters is nearly all of it: the rest are pages and fields that SQLite does not use.
    assert refused > harmless


@pytest.mark.parametrize("every", [4093, 797])
def test_a_process_that_was_killed_in_a_transaction_and_damage_to_what_undoes_it(
    left: Path, tmp_path: Path, every: int
) -> None:
    """Some pages of the transaction are in the file already, and the rollback journal has the old ones."""
    hot = tmp_path / "hot"
    shutil.copytree(left, tmp_path / "working")
    with Journal(tmp_path / "working") as journal:
        journal._connection.execute("PRAGMA cache_size = 1")
        before = (tmp_path / "working" / JOURNAL).read_bytes()
        with journal.step():
            journal.keep_arrays("model", {"state/other": np.arange(2000.0)})
            for number in range(100, 120):
                journal.begin(number, "only", [])
            shutil.copytree(tmp_path / "working", hot)
    assert (hot / HOT).stat().st_size > 0
    assert (hot / JOURNAL).read_bytes() != before
    undone = tmp_path / "undone"
    shutil.copytree(hot, undone)
    assert str(content(undone)) == str(content(left))
    refused, _ = damage_everywhere(hot, tmp_path / "copy", [HOT, JOURNAL, MARK], every)
    assert refused
    (hot / HOT).unlink()
    with pytest.raises(JournalError, match="is damaged"):
        Journal(hot)


def test_a_process_that_was_killed_before_it_wrote_the_mark(left: Path, tmp_path: Path) -> None:
    shutil.copytree(left, tmp_path / "run")
    with Journal(tmp_path / "run") as journal:
        before = (tmp_path / "run" / MARK).read_bytes()
        with journal.step():
            journal.keep_fact("stop", "target")
    ahead = (tmp_path / "run" / MARK).read_bytes()
    (tmp_path / "run" / MARK).write_bytes(before)
    with Journal(tmp_path / "run") as journal:
        assert journal.fact("stop") == "target"
    assert (tmp_path / "run" / MARK).read_bytes() == ahead, "the next step may be one more"


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (JOURNAL, r"older than journal.mark: [0-9]+ of [0-9]+ committed steps are missing"),
        (MARK, "does not belong to the journal.mark beside it"),
        (PIECE, "is damaged"),
    ],
)
def test_an_older_copy_of_a_file(left: Path, tmp_path: Path, name: str, match: str) -> None:
    shutil.copytree(left, tmp_path / "run")
    other = "device_rounds.0.parquet" if name == PIECE else name
    shutil.copy(left.parent / "earlier" / other, tmp_path / "run" / name)
    with pytest.raises(JournalError, match=match):
        Journal(tmp_path / "run")


@pytest.mark.parametrize("name", [JOURNAL, MARK, PIECE])
def test_a_file_that_is_gone(left: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(left, tmp_path / "run.partial")
    (tmp_path / "run.partial" / name).unlink()
    with pytest.raises(DamageError, match=f"{name}: is missing; the run is damaged and not gone on with"):
        go_on(tmp_path, left)


def go_on(folder: Path, left: Path) -> dict[str, Any]:
    """Go on with the run in a folder, as far as its directory; return the manifest it has then."""
    known = json.loads((left / MANIFEST).read_text())
    manifest = {name: known[name] for name in known.keys() - {"host", "status", "schema_version", "resumed"}}
    survivor = Survivor(resume=True)
    with survivor.directory(folder / "run", (left / RESOLVED_SCENARIO).read_text(), manifest) as directory:
        survivor.writer(directory.path, record_events=True).close()
        written: dict[str, Any] = json.loads((directory.path / MANIFEST).read_text())
    return written


def test_a_damaged_manifest(left: Path, tmp_path: Path) -> None:
    partial = tmp_path / "run.partial"
    shutil.copytree(left, partial)
    whole = go_on(tmp_path, left)
    original = (left / MANIFEST).read_bytes()
    refused = 0
    for change in damaged(len(original), 11):
        shutil.rmtree(partial)
        shutil.copytree(left, partial)
        (partial / MANIFEST).write_bytes(change(original))
        try:
            found = go_on(tmp_path, left)
        except RunDirectoryError:
            assert (partial / MANIFEST).read_bytes() == change(original), "what is refused stays as it is"
            refused += 1
        else:
            assert found == whole
    assert refused > len(original) // 11
    (partial / MANIFEST).unlink()
    with pytest.raises(DamageError, match=r"manifest\.json: is missing"):
        go_on(tmp_path, left)


def test_streams_do_not_matter_for_they_are_written_again(left: Path, tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    assert run_to_step(undisturbed, 0, "").returncode == 0
    shutil.copytree(left, tmp_path / "run.partial")
    for place, stream in enumerate(sorted((tmp_path / "run.partial").glob("*.arrows"))):
        written = stream.read_bytes()
        stream.write_bytes(written[: len(written) // 2] if place % 2 else b"")
    (tmp_path / "run.partial" / RESOLVED_SCENARIO).write_text("")
    done = run_to_step(tmp_path, 0, "")
    assert done.returncode == 0, done.stderr
    check_same_rounds(tmp_path / "run", undisturbed / "run")
    assert {file.suffix for file in (tmp_path / "run").iterdir()} <= FINISHED_SUFFIXES


def test_what_is_left_of_a_damaged_run_and_what_to_do(left: Path, tmp_path: Path) -> None:
    shutil.copytree(left, tmp_path / "run.partial")
    shutil.copy(left.parent / "s.yaml", tmp_path)
    partial = tmp_path / "run.partial"
    mark = Mark.read(partial)
    file = partial / JOURNAL
    written = file.read_bytes().replace(mark.seal.encode(), mark.seal[::-1].encode())
    file.write_bytes(written)
    rounds = len(open_run(partial).read("rounds"))

    def serve() -> subprocess.CompletedProcess[str]:
        options = ("--out", "run", "--resume", "--quiet", "--with-data")
        return recfleet(tmp_path, "serve", "s.yaml", "--port", "0", *options)

    refused = serve()
    assert refused.returncode == 2, refused.stderr
    assert "journal.sqlite3: is damaged" in refused.stderr
    come = f"it had come to round {mark.rounds}, with {mark.applied} applied; its tables have {rounds} rounds"
    assert come in refused.stderr
    assert "move run.partial elsewhere" in refused.stderr
    assert file.read_bytes() == written
    report = recfleet(tmp_path, "report", "run.partial")
    assert report.returncode == 0, report.stderr
    for stream in partial.glob("rounds*"):
        stream.unlink()
    refused = serve()
    assert refused.returncode == 2, refused.stderr
    assert "its tables cannot be read" in refused.stderr
