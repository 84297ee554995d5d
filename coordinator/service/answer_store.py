"""What real devices remember of the rounds that they have answered, in a file that outlives their process.

A device that was killed between its answer and the receipt, and is started again, still refuses that round.
So an answer is on the disk before the acceptance is sent: the whole file is written beside the old one, which
it then replaces. What several devices of a process answer at the same time is written together.

There is a file for each coordinator and run. It is text, and ends with a digest of itself: one that was
damaged, or is another run's, is refused, never taken for an empty one. That an old copy was put back cannot
be seen.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from coordinator.engine.run_files import written_whole
from edge.core.errors import RecfleetError
from edge.core.vocabulary import FIRST_QUERY, Reason
from edge.device.participation import objections

_VERSION: Final = "recfleet answered rounds, version 1"
_LINE: Final = re.compile(
    r"device (\d{1,19}) last (\d{1,20}) rounds (\d{1,20})(?: evaluation (\d{1,20}))?", re.ASCII
)
_SUFFIX: Final = ".answered"
_NAME_DIGITS: Final = 32


class AnswerStoreError(RecfleetError):
    """A memory of answered rounds that is damaged, or cannot be kept; says which file and what to do."""


class Answered(NamedTuple):
    """What one device has answered in a run: the highest round, 0 for none, how many, the highest evaluation.

    Evaluations count among how many.
    """

    last_round: int = 0
    rounds: int = 0
    last_evaluation: int = 0

    def last(self, round_number: int) -> int:
        """Return the highest of the series that a round is of."""
        return self.last_evaluation if round_number >= FIRST_QUERY else self.last_round

    def and_also(self, round_number: int) -> Answered:
        """Return this with one round, or evaluation, more."""
        if round_number >= FIRST_QUERY:
            return self._replace(rounds=self.rounds + 1, last_evaluation=round_number)
        return self._replace(rounds=self.rounds + 1, last_round=round_number)


class Claim(NamedTuple):
    """A device that wants to answer a round, of at most ``allowed`` in the run."""

    device: int
    round_number: int
    allowed: int


class AnswerStore:
    """The answered rounds of the devices of this process, in one run of one coordinator.

    Parameters
    ----------
    folder : holds the files; None: nothing outlives this process.
    url : of the coordinator; its scheme, host and port say which one it is.
    run_id : the run's identity.
    scenario : hash of the run's scenario, which stays the same.

    Raises
    ------
    AnswerStoreError : the file cannot be made or read, is damaged, or says that the run had another scenario.
    """

    def __init__(self, folder: Path | None, url: str, run_id: str, scenario: str) -> None:
        parts = urlsplit(url)
        coordinator = f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"
        self._heading = (_VERSION, f"coordinator {coordinator}", f"run {run_id}", f"scenario {scenario}")
        self._rows: dict[int, Answered] = {}
        self._claims: list[tuple[Claim, asyncio.Future[Reason]]] = []
        self._writing: asyncio.Task[None] | None = None
        self.file: Path | None = None
        """Where the memory is; None: nowhere."""
        if folder is not None:
            name = hashlib.sha256(f"{coordinator}\n{run_id}".encode()).hexdigest()[:_NAME_DIGITS]
            self.file = folder / f"{name}{_SUFFIX}"
            with self._locked(self.file):
                if os.path.lexists(self.file):
                    self._rows = self._read(self.file)
                else:
                    self._write(self.file, {})

    def answered(self, device: int) -> Answered:
        """Return what a device has answered."""
        return self._rows.get(device, Answered())

    async def claim(self, device: int, round_number: int, allowed: int) -> Reason:
        """Let a device answer a round, and return ``Reason.NONE`` once that is kept; else why it does not.

        Parameters
        ----------
        device, round_number : who answers what.
        allowed : how many rounds the device may answer in the run.

        Raises
        ------
        AnswerStoreError : it cannot be kept, so nothing may be answered.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reason] = loop.create_future()
        self._claims.append((Claim(device, round_number, allowed), future))
        if self._writing is None:
            self._writing = loop.create_task(self._keep(), name="answered rounds")
        return await future

    async def _keep(self) -> None:
        """Keep what is claimed, all that waits at once, until nothing does."""
        loop = asyncio.get_running_loop()
        while self._claims:
            waiting, self._claims = self._claims, []
            claims = [claim for claim, _ in waiting]
            try:
                reasons = await loop.run_in_executor(None, self._commit, claims)
            except Exception as error:
                for _, future in waiting:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), reason in zip(waiting, reasons, strict=True):
                if not future.done():  # a device that has left meanwhile has answered all the same
                    future.set_result(reason)
        self._writing = None

    def _commit(self, claims: Sequence[Claim]) -> list[Reason]:
        """Decide on claims, one after the other, and keep those that are granted."""
        if self.file is None:
            self._rows, reasons = _decided(self._rows, claims)
            return reasons
        with self._locked(self.file):
            # Devices of another process may have answered meanwhile.
            rows, reasons = _decided(self._read(self.file), claims)
            if Reason.NONE in reasons:
                self._write(self.file, rows)
            self._rows = rows
        return reasons

    @contextmanager
    def _locked(self, file: Path) -> Iterator[None]:
        """Keep other processes from the folder, which is made if need be."""
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise AnswerStoreError(
                f"{file.parent}: cannot hold what devices have answered ({error.strerror}); "
                "give another folder with --memory"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self, file: Path) -> dict[int, Answered]:
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            raise _damaged(file, "it is gone") from None
        except OSError as error:
            raise _damaged(file, f"it cannot be read: {error.strerror}") from error
        body, check = text[:-_CHECK_BYTES], text[-_CHECK_BYTES:]
        if _check(body) != check:
            raise _damaged(file, "its check does not agree")
        lines = body.decode().splitlines()
        heading = tuple(lines[: len(self._heading)])
        if heading[:-1] != self._heading[:-1]:
            raise _damaged(file, "it is of another coordinator, run or version")
        if heading != self._heading:
            raise AnswerStoreError(
                f"{file}: the coordinator sends another scenario for its {self._heading[2]} than before; "
                "the devices here take part in it no more"
            )
        rows = {}
        for line in lines[len(heading) :]:
            found = _LINE.fullmatch(line)
            if found is None:
                raise _damaged(file, f"{line[:40]!r} is no line of it")
            rows[int(found[1])] = Answered(int(found[2]), int(found[3]), int(found[4] or 0))
        return rows

    def _write(self, file: Path, rows: Mapping[int, Answered]) -> None:
        lines = [
            f"device {device} last {row.last_round} rounds {row.rounds}"
            + (f" evaluation {row.last_evaluation}" if row.last_evaluation else "")
            for device, row in rows.items()
        ]
        body = "".join(f"{line}\n" for line in (*self._heading, *lines)).encode()
        try:
            with written_whole(file) as temporary:
                # Made with the rights that it shall have, so that nobody else can ever read it.
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "wb") as opened:
                    opened.write(body + _check(body))
        except OSError as error:
            raise AnswerStoreError(
                f"{file}: cannot be written ({error.strerror}), so the devices here answer nothing; make "
                "room, or give another folder with --memory"
            ) from error


def _decided(
    rows: Mapping[int, Answered], claims: Sequence[Claim]
) -> tuple[dict[int, Answered], list[Reason]]:
    """Return what devices have answered after their claims, and why each claim is refused, if it is."""
    after, reasons = dict(rows), []
    for device, round_number, allowed in claims:
        row = after.get(device, Answered())
        reason = Reason(int(objections(round_number, row.last(round_number), row.rounds, allowed)))
        if reason is Reason.NONE:
            after[device] = row.and_also(round_number)
        reasons.append(reason)
    return after, reasons


def _check(body: bytes) -> bytes:
    return f"check {hashlib.sha256(body).hexdigest()}\n".encode()


_CHECK_BYTES: Final = len(_check(b""))


def _damaged(file: Path, why: str) -> AnswerStoreError:
    return AnswerStoreError(
        f"{file}: is damaged ({why}); which rounds of the run the devices here have answered is not known, "
        "and they take no part in it. Bring the file back from a copy of the same moment; to take part as if "
        "they had answered none, give another folder with --memory"
    )
