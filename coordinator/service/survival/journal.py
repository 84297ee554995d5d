"""The journal of a run: SQLite in its directory, in which every step is whole or not there.

Three kinds of steps are kept, each in one transaction: a round begins, a round is over (with the model after
it), and rows of the tables are final. So a process that is killed between any two instructions leaves the
model after the last round that was applied, knows which rounds those were, and has the rows of each of them:
of a round whose devices were still busy, those of how far it had come (its *draft*).
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coordinator.run_directory import npz_bytes
from edge.errors import RecfleetError

JOURNAL: Final = "journal.sqlite3"
"""The file in the directory of a run that can be gone on with."""
_VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE round (
    number INTEGER PRIMARY KEY,
    phase TEXT NOT NULL,
    stands TEXT NOT NULL CHECK (stands IN ('begun', 'over', 'written')),
    applied INTEGER
) STRICT;
CREATE TABLE draft (round INTEGER NOT NULL, place INTEGER NOT NULL, name TEXT NOT NULL, rows BLOB NOT NULL,
    PRIMARY KEY (round, place)) STRICT;
CREATE TABLE batch (number INTEGER PRIMARY KEY, name TEXT NOT NULL, rows BLOB NOT NULL) STRICT;
CREATE TABLE arrays (name TEXT PRIMARY KEY, contents BLOB NOT NULL) STRICT;
"""

Arrays = Mapping[str, npt.NDArray[Any]]
Named = tuple[str, Any]
"""The name of a table of the run, and a ``pyarrow.RecordBatch`` of it."""


class JournalError(RecfleetError):
    """A journal that is none, or of another version; the message says which file."""


@dataclass(frozen=True, slots=True)
class JournaledRound:
    """A round as the journal knows it.

    ``stands`` is ``begun`` as long as nothing was decided, ``over`` once it was applied or abandoned, and
    ``written`` once its rows are final. ``applied`` is which application to the model it was, counted from 1;
    None where there was none.
    """

    number: int
    phase: str
    stands: Literal["begun", "over", "written"]
    applied: int | None


class Journal:
    """The journal in a run's directory; a context manager.

    Parameters
    ----------
    directory : of the run.
    create : whether to make it, rather than to open the one that is there.

    Raises
    ------
    JournalError : it cannot be made, or there is none of this version.
    """

    def __init__(self, directory: Path, *, create: bool) -> None:
        self.file = directory / JOURNAL
        if create == self.file.exists():
            raise JournalError(f"{self.file}: {'is there already' if create else 'there is no journal'}")
        self._rows: list[Named] = []
        """Rows that the next step makes final."""
        # Transactions are begun by name.
        self._connection = sqlite3.connect(self.file, isolation_level=None)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            if create:
                self._connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
                self._connection.execute(f"PRAGMA user_version = {_VERSION}")
            found = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if found != _VERSION:
                raise JournalError(f"{self.file}: version {found} of the journal; this is version {_VERSION}")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise JournalError(f"{self.file}: is no journal of a run ({error})") from None
        except JournalError:
            self._connection.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what no step has made final is not in it."""
        self._connection.close()

    # -- steps -------------------------------------------------------------------------------------------

    def add(self, name: str, batch: Any) -> None:
        """Let the next step make the rows of a ``pyarrow.RecordBatch`` final."""
        self._rows.append((name, batch))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Make what is kept within it, and the rows added before, final: all of it or nothing."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            for name, batch in self._rows:
                execute("INSERT INTO batch (name, rows) VALUES (?, ?)", (name, _packed(batch)))
            yield
        except BaseException:
            execute("ROLLBACK")
            raise
        execute("COMMIT")
        self._rows.clear()

    def begin(self, number: int, phase: str, draft: list[Named]) -> None:
        """Keep that a round begins, and its rows if nothing more becomes of it; within a step."""
        self._connection.execute("INSERT INTO round VALUES (?, ?, 'begun', NULL)", (number, phase))
        self._redraft(number, draft)

    def over(self, number: int, applied: int | None, draft: list[Named]) -> None:
        """Keep that a round is over, and its rows if nothing more is heard of its devices; within a step."""
        self._become(number, "begun", "over")
        self._connection.execute("UPDATE round SET applied = ? WHERE number = ?", (applied, number))
        self._redraft(number, draft)

    def written(self, number: int) -> None:
        """Keep that the rows of a round are final; within the step that adds them."""
        self._become(number, "over", "written")
        self._redraft(number, [])

    def accept_draft(self, round_: JournaledRound) -> None:
        """Make the draft of a round its final rows: nothing more can come. Within a step."""
        drafts = self._connection.execute(
            "SELECT name, rows FROM draft WHERE round = ? ORDER BY place", (round_.number,)
        ).fetchall()
        self._connection.executemany("INSERT INTO batch (name, rows) VALUES (?, ?)", drafts)
        self._become(round_.number, round_.stands, "written")
        self._redraft(round_.number, [])

    def _become(self, number: int, before: str, after: str) -> None:
        changed = self._connection.execute(
            "UPDATE round SET stands = ? WHERE number = ? AND stands = ?", (after, number, before)
        ).rowcount
        if changed != 1:
            raise JournalError(f"{self.file}: round {number} is not {before}, and cannot be {after}")

    def _redraft(self, number: int, draft: list[Named]) -> None:
        self._connection.execute("DELETE FROM draft WHERE round = ?", (number,))
        for place, (name, batch) in enumerate(draft):
            self._connection.execute(
                "INSERT INTO draft VALUES (?, ?, ?, ?)", (number, place, name, _packed(batch))
            )

    def keep_arrays(self, name: str, arrays: Arrays) -> None:
        """Keep arrays in place of those of that name; within a step."""
        self._connection.execute("INSERT OR REPLACE INTO arrays VALUES (?, ?)", (name, npz_bytes(arrays)))

    def keep_fact(self, name: str, value: str | float) -> None:
        """Keep a fact in place of that of that name; within a step."""
        self._connection.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, str(value)))

    # -- what is there -----------------------------------------------------------------------------------

    def rounds(self) -> list[JournaledRound]:
        """Return all rounds, in their order."""
        rows = self._connection.execute("SELECT number, phase, stands, applied FROM round ORDER BY number")
        return [JournaledRound(*row) for row in rows]

    def rows(self) -> Iterator[Named]:
        """Yield all final rows, in the order in which they became so."""
        for name, rows in self._connection.execute("SELECT name, rows FROM batch ORDER BY number"):
            yield name, _unpacked(rows)

    def last_rows(self, name: str) -> Any | None:
        """Return the final rows of a table that were added last; None if there are none."""
        found = self._connection.execute(
            "SELECT rows FROM batch WHERE name = ? ORDER BY number DESC LIMIT 1", (name,)
        ).fetchone()
        return None if found is None else _unpacked(found[0])

    def draft(self, number: int) -> list[Named]:
        """Return the rows of a round if nothing more becomes of it."""
        drafts = self._connection.execute("SELECT name, rows FROM draft WHERE round = ?", (number,))
        return [(name, _unpacked(rows)) for name, rows in drafts]

    def arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of that name.

        Raises
        ------
        JournalError : there are none.
        """
        found = self._connection.execute("SELECT contents FROM arrays WHERE name = ?", (name,)).fetchone()
        if found is None:
            raise JournalError(f"{self.file}: holds no '{name}'")
        with np.load(io.BytesIO(found[0]), allow_pickle=False) as file:
            return {key: file[key] for key in file.files}

    def fact(self, name: str) -> str | None:
        """Return a fact; None if it is not known."""
        found = self._connection.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])


def _packed(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _unpacked(rows: bytes) -> Any:
    with pa.ipc.open_stream(rows) as reader:
        return reader.read_next_batch()


def remove_journal(directory: Path) -> None:
    """Remove the journal of a run that has its results, if there is one."""
    for suffix in ("-wal", "-shm", ""):
        (directory / (JOURNAL + suffix)).unlink(missing_ok=True)
