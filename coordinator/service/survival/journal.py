"""The journal of a run: SQLite in its directory, in which every step is whole or not there.

Three kinds of steps are kept, each in one transaction: a round begins, a round is over (with the model after
it), and rows of the tables are final. So a process that is killed between any two instructions leaves the
model after the last round that was applied, knows how many rounds there were, and has the rows of each of
them: of a round whose devices were still busy, those of how far it had come (its *draft*).

It holds what is needed to go on, not the history. A round whose rows are final is a number; when enough
rows have gathered they are written as Parquet pieces of their tables, of which the journal keeps digests.

Damage is told from a crash by *seals*. The seal of a step is a digest over all that the journal holds and
over the seal before it. It is in the transaction of its step, and once more in the *mark*, a file of its own
that is replaced after each transaction. A crash leaves the seal of the mark or the one that follows it. What
does not agree with its seal has been damaged, and a journal that has not come as far as its mark has lost
steps; neither is gone on with. The database is changed in place, with SQLite's rollback journal (not a
write-ahead log): to lose the end of a file never undoes a step that was committed.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.engine.crashes import npz_bytes
from coordinator.engine.run_files import write_atomically
from coordinator.results.tables.writer import piece_path, remove_pieces, write_parquet
from edge.core.errors import RecfleetError

JOURNAL: Final = "journal.sqlite3"
"""The file in the directory of a run that can be gone on with."""
MARK: Final = "journal.mark"
"""The file that says how far the journal has come."""
_VERSION: Final = 3
_TABLES: Final = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE round (
    number INTEGER PRIMARY KEY,
    phase TEXT NOT NULL,
    stands TEXT NOT NULL CHECK (stands IN ('begun', 'over'))
) STRICT;
CREATE TABLE draft (round INTEGER NOT NULL, place INTEGER NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL,
    contents BLOB NOT NULL, PRIMARY KEY (round, place)) STRICT;
CREATE TABLE batch (number INTEGER PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL,
    contents BLOB NOT NULL) STRICT;
CREATE TABLE piece (name TEXT NOT NULL, number INTEGER NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (name, number)) STRICT, WITHOUT ROWID;
CREATE TABLE arrays (name TEXT PRIMARY KEY, digest TEXT NOT NULL, contents BLOB NOT NULL) STRICT;
CREATE TABLE seal (step INTEGER NOT NULL, before TEXT NOT NULL, digest TEXT NOT NULL) STRICT;
"""
_SEALED: Final = (
    "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name",
    "SELECT name, value FROM fact ORDER BY name",
    "SELECT number, phase, stands FROM round ORDER BY number",
    "SELECT round, place, name, digest FROM draft ORDER BY round, place",
    "SELECT number, name, digest FROM batch ORDER BY number",
    "SELECT name, number, digest FROM piece ORDER BY name, number",
    "SELECT name, digest FROM arrays ORDER BY name",
)
"""What a seal covers; the contents by way of their digests."""
_RUN_ID: Final = "run_id"
_ROUND: Final = "round"
_APPLIED: Final = "applied"
_EVALUATIONS: Final = "evaluations"
_EVALUATED_AT: Final = "evaluated_at"
_DIGEST_SIZE: Final = 16

Arrays = Mapping[str, npt.NDArray[Any]]
Named = tuple[str, Any]
"""The name of a table of the run, and a ``pyarrow.RecordBatch`` of it."""


class JournalError(RecfleetError):
    """A journal that is none, is damaged, of another version, or cannot be written; says which file."""


@dataclass(frozen=True, slots=True)
class OpenRound:
    """A round whose rows are not final.

    ``stands`` is ``begun`` as long as nothing was decided, and ``over`` once it was applied or abandoned.
    """

    number: int
    phase: str
    stands: Literal["begun", "over"]


class Mark(NamedTuple):
    """How far a journal had come: steps, rounds that were begun, rounds that were applied, and its seal."""

    step: int
    rounds: int
    applied: int
    seal: str

    def write(self, directory: Path) -> None:
        """Write the mark, in one step that outlasts a loss of power."""
        write_atomically(directory / MARK, self._text().encode())

    def _text(self) -> str:
        said = f"step {self.step} rounds {self.rounds} applied {self.applied} seal {self.seal}"
        return f"{said} check {_digest(said.encode())}\n"

    @classmethod
    def read(cls, directory: Path) -> Mark:
        """Return the mark of the journal in a directory.

        Raises
        ------
        JournalError : it is not there, or damaged.
        """
        file = directory / MARK
        try:
            text = file.read_bytes()
            words = text.split()
            mark = cls(int(words[1]), int(words[3]), int(words[5]), words[7].decode())
        except FileNotFoundError:
            raise JournalError(f"{file}: is missing") from None
        except (OSError, ValueError, IndexError) as error:
            raise JournalError(f"{file}: is damaged ({error})") from None
        if mark._text().encode() != text:
            raise JournalError(f"{file}: is damaged (its check does not agree)")
        return mark


class Journal:
    """The journal in a run's directory, made by :func:`create_journal`; a context manager.

    Attributes
    ----------
    piece_bytes : of packed rows that gather before they become a piece of each table.

    Raises
    ------
    JournalError : there is none of this version, it is damaged, or it has lost steps.
    """

    piece_bytes = 1 << 19

    def __init__(self, directory: Path) -> None:
        self.file = directory / JOURNAL
        self._directory = directory
        self._rows: list[Named] = []
        """Rows that the next step makes final."""
        if not self.file.is_file():
            raise JournalError(f"{self.file}: is missing")
        with self._trouble("is damaged"):
            # Transactions are begun by name.
            self._connection = sqlite3.connect(self.file, isolation_level=None)
            try:
                found = self._connection.execute("PRAGMA user_version").fetchone()[0]
                if found != _VERSION:
                    raise JournalError(
                        f"{self.file}: is of version {found} of the journal; this is version {_VERSION}"
                    )
                _make_durable(self._connection)
                self._verify()
            except BaseException:
                self._connection.close()
                raise

    def _verify(self) -> None:
        """Raise :class:`JournalError` unless all that was committed is there, and as it was."""
        faults = [row[0] for row in self._connection.execute("PRAGMA integrity_check(1)")]
        if faults != ["ok"]:
            raise JournalError(f"{self.file}: is damaged ({faults[0]})")
        seals = self._connection.execute("SELECT step, before, digest FROM seal").fetchall()
        if len(seals) != 1 or _seal(self._connection, *seals[0][:2]) != seals[0][2]:
            raise JournalError(f"{self.file}: is damaged (its seal does not agree)")
        for table in ("draft", "batch", "arrays"):
            for name, digest, contents in self._connection.execute(
                f"SELECT name, digest, contents FROM {table}"
            ):
                if not isinstance(contents, bytes) or _digest(contents) != digest:
                    raise JournalError(f"{self.file}: is damaged ({table} '{name}')")
        for name, number, digest in self._connection.execute("SELECT name, number, digest FROM piece"):
            _verify_piece(piece_path(self._directory, name, number), digest)
        (step, before, seal), mark = seals[0], Mark.read(self._directory)
        if step < mark.step:
            raise JournalError(
                f"{self.file}: is older than {MARK}: {mark.step - step} of {mark.step} committed steps are "
                f"missing, and it ends with round {self.rounds} of {mark.rounds}"
            )
        # One step more: the process ended before it had written the mark.
        if mark.seal != (seal if step == mark.step else before) or step > mark.step + 1:
            raise JournalError(f"{self.file}: does not belong to the {MARK} beside it")
        if step > mark.step:
            Mark(step, self.rounds, self.applied, seal).write(self._directory)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what no step has made final is not in it."""
        self._connection.close()

    @contextmanager
    def _trouble(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # SQLite quotes what it has found in its messages, which then may be no text.
            raise JournalError(f"{self.file}: {what} ({error})") from error

    # -- steps -------------------------------------------------------------------------------------------

    def add(self, name: str, batch: Any) -> None:
        """Let the next step make the rows of a ``pyarrow.RecordBatch`` final."""
        self._rows.append((name, batch))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Make what is kept within it, and the rows added before, final: all of it or nothing.

        Raises
        ------
        JournalError : it cannot be written, for example because the disk is full.
        """
        with self._transaction():
            for name, batch in self._rows:
                self._add_batch(name, _packed(batch))
                if name == _EVALUATIONS:
                    self.keep_fact(_EVALUATED_AT, batch.column("round")[-1].as_py())
            yield
        self._rows.clear()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._trouble("cannot be written"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                mark = self._sealed()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        mark.write(self._directory)

    def _sealed(self) -> Mark:
        """Seal what the transaction under way leaves; return the mark of it."""
        step, before = self._connection.execute("SELECT step + 1, digest FROM seal").fetchone()
        seal = _seal(self._connection, step, before)
        self._connection.execute("UPDATE seal SET step = ?, before = ?, digest = ?", (step, before, seal))
        return Mark(step, self.rounds, self.applied, seal)

    def _add_batch(self, name: str, contents: bytes) -> None:
        self._connection.execute(
            "INSERT INTO batch (name, digest, contents) VALUES (?, ?, ?)", (name, _digest(contents), contents)
        )

    def begin(self, number: int, phase: str, draft: list[Named]) -> None:
        """Keep that a round begins, and its rows if nothing more becomes of it; within a step."""
        self._connection.execute("INSERT INTO round VALUES (?, ?, 'begun')", (number, phase))
        self.keep_fact(_ROUND, number)
        self._redraft(number, draft)

    def over(self, number: int, applied: int | None, draft: list[Named]) -> None:
        """Keep that a round is over, and its rows if nothing more is heard of its devices; within a step.

        ``applied`` is which application to the model it was, counted from 1; None where there was none.
        """
        self._require(
            self._connection.execute(
                "UPDATE round SET stands = 'over' WHERE number = ? AND stands = 'begun'", (number,)
            ),
            f"round {number} is not begun, and cannot be over",
        )
        if applied is not None:
            if applied != self.applied + 1:
                raise JournalError(f"{self.file}: application {applied} cannot follow {self.applied}")
            self.keep_fact(_APPLIED, applied)
        self._redraft(number, draft)

    def measured(self, number: int, phase: str, draft: list[Named]) -> None:
        """Keep that a round of sums is over, and its draft, as :meth:`over` does; within a step."""
        self._connection.execute("INSERT INTO round VALUES (?, ?, 'over')", (number, phase))
        self._redraft(number, draft)

    def written(self, number: int) -> None:
        """Keep that the rows of a round are final; within the step that adds them."""
        self._require(
            self._connection.execute("DELETE FROM round WHERE number = ? AND stands = 'over'", (number,)),
            f"round {number} is not over, and cannot be written",
        )
        self._redraft(number, [])

    def _require(self, changed: sqlite3.Cursor, otherwise: str) -> None:
        if changed.rowcount != 1:
            raise JournalError(f"{self.file}: {otherwise}")

    def accept_draft(self, number: int) -> None:
        """Make the draft of an open round its final rows: nothing more can come. Within a step."""
        for name, contents in self._drafts(number):
            self._add_batch(name, contents)
        self._require(
            self._connection.execute("DELETE FROM round WHERE number = ?", (number,)),
            f"round {number} is not open",
        )
        self._redraft(number, [])

    def _redraft(self, number: int, draft: list[Named]) -> None:
        self._connection.execute("DELETE FROM draft WHERE round = ?", (number,))
        for place, (name, batch) in enumerate(draft):
            contents = _packed(batch)
            self._connection.execute(
                "INSERT INTO draft VALUES (?, ?, ?, ?, ?)", (number, place, name, _digest(contents), contents)
            )

    def keep_arrays(self, name: str, arrays: Arrays) -> None:
        """Keep arrays in place of those of that name; within a step."""
        contents = npz_bytes(arrays)
        self._connection.execute(
            "INSERT OR REPLACE INTO arrays VALUES (?, ?, ?)", (name, _digest(contents), contents)
        )

    def keep_fact(self, name: str, value: str | float) -> None:
        """Keep a fact in place of that of that name; within a step."""
        self._connection.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, str(value)))

    def fold(self) -> dict[str, int]:
        """Move the final rows into a piece of each table, if there are many; not within a step.

        Returns
        -------
        pieces : of the tables that have got one, how many they have now.
        """
        gathered = self._connection.execute("SELECT total(length(contents)) FROM batch").fetchone()[0]
        if gathered < self.piece_bytes:
            return {}
        before = self.pieces()
        batches: dict[str, list[Any]] = {}
        for name, batch in self.rows():
            batches.setdefault(name, []).append(batch)
        digests: dict[str, str] = {}
        for name, of_table in batches.items():
            # One that a process wrote before it was killed is in no step, and is written again.
            path = piece_path(self._directory, name, before.get(name, 0))
            write_parquet(path, name, of_table)
            digests[name] = _digest(path.read_bytes())
        with self._transaction():
            self._connection.execute("DELETE FROM batch")
            for name, digest in digests.items():
                self._connection.execute(
                    "INSERT INTO piece VALUES (?, ?, ?)", (name, before.get(name, 0), digest)
                )
        return {name: before.get(name, 0) + 1 for name in digests}

    # -- what is there -----------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's identity."""
        found = self.fact(_RUN_ID)
        if found is None:
            raise JournalError(f"{self.file}: does not say which run it is of")
        return found

    @property
    def rounds(self) -> int:
        """The last round that was begun; 0 for none."""
        return int(self.fact(_ROUND) or 0)

    @property
    def applied(self) -> int:
        """How many rounds were applied to the model."""
        return int(self.fact(_APPLIED) or 0)

    @property
    def evaluated_at(self) -> int:
        """The last round whose evaluation has final rows; −1 for none."""
        found = self.fact(_EVALUATED_AT)
        return -1 if found is None else int(found)

    def open_rounds(self) -> list[OpenRound]:
        """Return the rounds whose rows are not final, in their order."""
        rows = self._connection.execute("SELECT number, phase, stands FROM round ORDER BY number")
        return [OpenRound(*row) for row in rows]

    def pieces(self) -> dict[str, int]:
        """Return how many pieces there are of each table that has some."""
        return dict(self._connection.execute("SELECT name, count(*) FROM piece GROUP BY name"))

    def piece_rows(self) -> Iterator[Named]:
        """Yield the final rows that are in pieces; of each table, in the order in which they became so."""
        pieces = self._connection.execute("SELECT name, number FROM piece ORDER BY number, name")
        for name, number in pieces.fetchall():
            with pq.ParquetFile(str(piece_path(self._directory, name, number))) as file:
                for batch in file.iter_batches():
                    yield name, batch

    def rows(self) -> Iterator[Named]:
        """Yield the final rows that are in no piece yet, in the order in which they became so."""
        for name, contents in self._connection.execute("SELECT name, contents FROM batch ORDER BY number"):
            yield name, _unpacked(contents)

    def draft(self, number: int) -> list[Named]:
        """Return the rows of a round if nothing more becomes of it."""
        return [(name, _unpacked(contents)) for name, contents in self._drafts(number)]

    def _drafts(self, number: int) -> list[tuple[str, bytes]]:
        return self._connection.execute(
            "SELECT name, contents FROM draft WHERE round = ? ORDER BY place", (number,)
        ).fetchall()

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


def create_journal(directory: Path, run_id: str) -> None:
    """Make the journal of a new run in its directory, with its mark, and close it.

    Parameters
    ----------
    directory : of the run.
    run_id : the run's identity, which it keeps whenever it is gone on with.

    Raises
    ------
    JournalError : it cannot be made.
    """
    file = directory / JOURNAL
    before = secrets.token_hex(_DIGEST_SIZE)
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        _make_durable(connection)
        connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_VERSION};")
        connection.execute("INSERT INTO fact VALUES (?, ?)", (_RUN_ID, run_id))
        seal = _seal(connection, 0, before)
        connection.execute("INSERT INTO seal VALUES (0, ?, ?)", (before, seal))
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise JournalError(f"{file}: cannot be made ({error})") from error
    finally:
        connection.close()
    Mark(0, 0, 0, seal).write(directory)


def _make_durable(connection: sqlite3.Connection) -> None:
    """Let every transaction be on the disk before it counts, and none be half there."""
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    connection.execute("PRAGMA synchronous = FULL")
    # What was read from the file can be damaged.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _seal(connection: sqlite3.Connection, step: int, before: str) -> str:
    whole = hashlib.blake2b(repr((step, before)).encode(), digest_size=_DIGEST_SIZE)
    for query in _SEALED:
        for row in connection.execute(query):
            whole.update(repr(row).encode())
    return whole.hexdigest()


def _digest(contents: bytes) -> str:
    return hashlib.blake2b(contents, digest_size=_DIGEST_SIZE).hexdigest()


def _verify_piece(file: Path, digest: str) -> None:
    try:
        with file.open("rb") as opened:
            whole = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=_DIGEST_SIZE))
    except FileNotFoundError:
        raise JournalError(f"{file}: is missing") from None
    except OSError as error:
        raise JournalError(f"{file}: cannot be read ({error.strerror})") from None
    if whole.hexdigest() != digest:
        raise JournalError(f"{file}: is damaged")


def _packed(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    # The schema of a round's rows is longer than they are.
    with pa.CompressedOutputStream(sink, "zstd") as packed, pa.ipc.new_stream(packed, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _unpacked(contents: bytes) -> Any:
    with pa.CompressedInputStream(pa.BufferReader(contents), "zstd") as packed:
        return pa.ipc.open_stream(packed).read_next_batch()


def remove_journal(directory: Path) -> None:
    """Remove the journal of a run that has its results, if there is one, and the pieces it has kept."""
    remove_pieces(directory)
    for name in (MARK, f"{JOURNAL}-journal", JOURNAL):
        (directory / name).unlink(missing_ok=True)
