"""Where the records of enrolment tokens are kept: SQLite in a directory that only its owner can read.

A service that runs sees at once what another process issues or revokes: it asks the file each time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from coordinator.results.run_directory import shut_out_others
from coordinator.service.admission.enrolment import Enrolment, EnrolmentError
from edge.secagg.roster import Roster, RosterError

_FILE: Final = "enrolment.sqlite3"
_BUSY_S: Final = 5.0
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS enrolment (
    key TEXT PRIMARY KEY,
    digest BLOB NOT NULL CHECK (length(digest) = 32),
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    issued_s REAL NOT NULL,
    expires_s REAL NOT NULL,
    revoked_s REAL
) STRICT, WITHOUT ROWID
"""
_ROSTER_TABLE: Final = """
CREATE TABLE IF NOT EXISTS roster (
    device INTEGER PRIMARY KEY,
    identity BLOB NOT NULL CHECK (length(identity) = 32)
) STRICT
"""
"""Public identities; what belongs to them is on the devices alone."""
_COLUMNS: Final = "key, digest, first, last, issued_s, expires_s, revoked_s"


class EnrolmentStore:
    """The records below a directory; a context manager.

    Parameters
    ----------
    directory : holds them.
    create : whether to make what is not there yet.

    Raises
    ------
    EnrolmentError : there are none, or the file is none of ours.
    """

    def __init__(self, directory: Path, *, create: bool) -> None:
        self.file = directory / _FILE
        if create:
            private_directory(directory)
            # Made before SQLite does, so that nobody else can ever read it; its journals get the same rights.
            with self._trouble():
                self.file.touch(mode=0o600, exist_ok=True)
        elif not self.file.is_file():
            raise EnrolmentError(
                f"{directory}: no tokens were issued here; 'recfleet enroll issue {directory}' does it"
            )
        # One statement is one transaction.
        with self._trouble():
            self._connection = sqlite3.connect(self.file, timeout=_BUSY_S, isolation_level=None)
        try:
            with self._trouble():
                # Readers are not held up by a writer.
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute(_TABLE)
                self._connection.execute(_ROSTER_TABLE)
        except EnrolmentError:
            self._connection.close()
            raise

    def __enter__(self) -> EnrolmentStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def add(self, records: Sequence[Enrolment], roster: Roster | None = None) -> None:
        """Keep the records of new tokens, and the roster of the devices they are for: all of it, or nothing.

        Raises
        ------
        EnrolmentError : there is a roster already; devices know it by its hash.
        """
        with self._trouble():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if roster is not None:
                    if self.roster() is not None:
                        raise EnrolmentError(
                            f"{self.file}: there is a roster here, and devices that were enrolled with it "
                            "would refuse another; use another directory"
                        )
                    self._connection.executemany("INSERT INTO roster VALUES (?, ?)", list(roster.items()))
                self._connection.executemany(
                    f"INSERT INTO enrolment ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [
                        (one.key, one.digest, one.first, one.last, one.issued_s, one.expires_s, one.revoked_s)
                        for one in records
                    ],
                )
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def roster(self) -> Roster | None:
        """Return the roster; None if no identities were issued."""
        with self._trouble():
            rows = self._connection.execute("SELECT device, identity FROM roster ORDER BY device").fetchall()
        if not rows:
            return None
        if [device for device, _ in rows] != list(range(len(rows))):
            raise EnrolmentError(f"{self.file}: devices are missing from the roster")
        try:
            return Roster.of(identity for _, identity in rows)
        except RosterError as error:
            raise EnrolmentError(f"{self.file}: {error}") from error

    def find(self, key: str) -> Enrolment | None:
        """Return the record of a token by its id; None if there is none."""
        with self._trouble():
            row = self._connection.execute(
                f"SELECT {_COLUMNS} FROM enrolment WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else Enrolment(*row)

    def all(self) -> list[Enrolment]:
        """Return all records, oldest first."""
        with self._trouble():
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM enrolment ORDER BY issued_s, first, key")
            return [Enrolment(*row) for row in rows]

    def revoke(self, keys: Sequence[str], now_s: float) -> None:
        """Revoke tokens by their ids: all of them, or none; one that is revoked stays so since then.

        Raises
        ------
        EnrolmentError : there is no such token.
        """
        unknown = [key for key in keys if self.find(key) is None]
        if unknown:
            raise EnrolmentError(
                f"{self.file}: there is no token {', '.join(unknown)}; 'recfleet enroll list' shows them"
            )
        with self._trouble():
            marks = ", ".join("?" * len(keys))
            self._connection.execute(
                f"UPDATE enrolment SET revoked_s = ? WHERE revoked_s IS NULL AND key IN ({marks})",
                (now_s, *keys),
            )

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, OSError) as error:
            raise EnrolmentError(f"{self.file}: {error}") from error


def private_directory(directory: Path) -> None:
    """Make a directory that only its owner can enter; :func:`shut` sees to one that is there already.

    Raises
    ------
    EnrolmentError : it cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EnrolmentError(f"{directory}: {error.strerror}; name a directory that can be made") from error


def shut(directory: Path) -> Iterator[str]:
    """Take the rights of others from the secrets in a directory; yield a line on all that others could read.

    Nothing but our own files is changed: the directory may hold what others have to read.
    """
    secret = (*directory.glob(f"{_FILE}*"), *directory.glob("*.pem"))
    for path in shut_out_others(secret):
        yield f"{path}: was open to others on this host; now it is its owner's alone"
    if directory.stat().st_mode & 0o077:
        yield f"{directory}: is open to others on this host; 'chmod 700 {directory}' changes that"
