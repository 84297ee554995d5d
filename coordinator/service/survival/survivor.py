"""A run whose coordinator may be killed at any moment, and that another process goes on with."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordinator.engine.backend import RunningCohort
from coordinator.engine.facts import CohortFacts, RoundFacts
from coordinator.engine.finished_round import FinishedRound, lost_round
from coordinator.engine.fleet import Fleet
from coordinator.engine.run_files import MANIFEST, PARTIAL_SUFFIX
from coordinator.engine.snapshots import LostRound, Memory, Recalled, as_part, of_part
from coordinator.engine.training import Training
from coordinator.results.run_directory import RunDirectory, RunDirectoryError, shut_out_others
from coordinator.results.tables.batches import RoundRecord, evaluation_round_batches, round_batches
from coordinator.results.tables.reader import RunFormatError, open_run, read_manifest
from coordinator.results.tables.schemas import SCHEMA_VERSION, SCHEMAS
from coordinator.results.tables.writer import RunWriter, parquet_path
from coordinator.service.backend import SessionCohort
from coordinator.service.survival.journal import (
    JOURNAL,
    MARK,
    Journal,
    JournalError,
    Mark,
    Named,
    OpenRound,
    create_journal,
    remove_journal,
)
from edge.core.errors import RecfleetError
from edge.core.vocabulary import Reason, RoundKind, RoundOutcome, label
from edge.learning.base import OptimizerState, State

_MODEL: Final = "model"
_COORDINATOR: Final = "coordinator"
_BEGAN_AT_S: Final = "began_at_s"
"""Seconds since the epoch."""
_NOW_S: Final = "now_s"
"""Time of the run at the last step."""
_LOOKED_BACK: Final = "looked_back"
_STOP: Final = "stop"
_RESUMED: Final = "resumed"
"""How often an earlier process was gone on with."""
_OF_RUN: Final = ("scenario_hash", "seed", "clock", "data")
"""What of the manifest is the same when a run goes on."""


class RunFinishedError(RunDirectoryError):
    """A run that is to be gone on with has its results already."""


class DamageError(RunDirectoryError):
    """A run that was damaged on the disk and cannot be gone on with: what is left, and what to do."""


class JournaledWriter(RunWriter):
    """Writes the tables of a run, and keeps what it writes in the journal.

    Parameters
    ----------
    directory, record_events : as of :class:`RunWriter`.
    journal : keeps the rows; closed with the tables.
    """

    def __init__(self, directory: Path, *, record_events: bool, journal: Journal) -> None:
        super().__init__(directory, record_events=record_events, pieces=journal.pieces())
        self._journal = journal
        self._keep_row: Callable[[str, Any], None] = self._keep_new

    def _keep(self, table: str, batch: Any) -> None:
        self._keep_row(table, batch)

    def _keep_new(self, table: str, batch: Any) -> None:
        super()._keep(table, batch)
        self._journal.add(table, batch)

    def repeat(self) -> None:
        """Write again what the journal has, for the tables, their digest, and their observers."""
        self._keep_row = lambda _table, _batch: None  # they are in their pieces
        for table, batch in self._journal.piece_rows():
            self.write(table, batch)
        self._keep_row = super()._keep
        for table, batch in self._journal.rows():
            self.write(table, batch)
        self._keep_row = self._keep_new

    def fold(self) -> None:
        """Let rows of whole rounds go from the journal and the streams into pieces, if there are many."""
        self.cut(self._journal.fold())

    def close(self) -> None:
        """Close the streams and the journal."""
        try:
            super().close()
        finally:
            self._journal.close()


class Survivor:
    """Begins a run with a journal, or goes on with one.

    Parameters
    ----------
    resume : whether to go on with what an earlier process has left, if it has.
    tell : receives, in a line, what is gone on with.

    Attributes
    ----------
    start_s : how long ago the run began, seconds, the time included when nobody served it.
    run_id : the run's identity, once its directory is there: one that is gone on with has kept its own.
    """

    def __init__(self, *, resume: bool, tell: Callable[[str], None] = lambda _line: None) -> None:
        self._resume = resume
        self._tell = tell
        self._journal: Journal
        self.start_s = 0.0
        self.run_id: str | None = None

    def directory(self, target: Path, resolved: str, manifest: Mapping[str, Any]) -> RunDirectory:
        """Return the directory of the run: a new one, or that which is gone on with.

        Raises
        ------
        RunFinishedError : there is nothing left to do.
        RunDirectoryError : as from :meth:`RunDirectory.create`, or what is there is another run.
        """
        partial = target.with_name(target.name + PARTIAL_SUFFIX)
        if not self._resume:
            return self._new(target, resolved, manifest)
        if not partial.exists():
            if (target / MANIFEST).is_file():
                raise RunFinishedError(
                    f"{target}: is finished; to run it again, write --overwrite in place of --resume"
                )
            self._tell(f"{partial}: there is nothing to go on with; a new run begins")
            return self._new(target, resolved, manifest)
        directory = RunDirectory.reopen(target)
        with contextlib.ExitStack() as undo:
            undo.enter_context(directory)
            _require_same(partial, manifest)
            try:
                self._journal = Journal(partial)
            except JournalError as error:
                raise DamageError(_damage(partial, str(error))) from error
            undo.callback(self._journal.close)
            open_to_others = shut_out_others((partial, *partial.rglob("*")))
            if open_to_others:
                self._tell(f"{partial}: others on this host could read it; now only its owner can")
            self.run_id = self._journal.run_id
            resumed = int(self._journal.fact(_RESUMED) or 0) + 1
            with self._journal.step():
                self._journal.keep_fact(_RESUMED, resumed)
            directory.begin_again(resolved, {**manifest, "run_id": self.run_id, "resumed": resumed})
            undo.pop_all()
        return directory

    def _new(self, target: Path, resolved: str, manifest: Mapping[str, Any]) -> RunDirectory:
        self.run_id = str(manifest["run_id"])
        prepare = functools.partial(create_journal, run_id=self.run_id)
        directory = RunDirectory.create(target, resolved, manifest, prepare=prepare)
        self._journal = Journal(directory.path)
        return directory

    @staticmethod
    def finished(directory: Path) -> None:
        """Remove the journal of a run that has its results."""
        remove_journal(directory)

    def writer(self, directory: Path, *, record_events: bool) -> JournaledWriter:
        """Return what writes the tables into the run's directory."""
        for table in SCHEMAS:
            parquet_path(directory, table).unlink(missing_ok=True)  # made from the streams at the end
        return JournaledWriter(directory, record_events=record_events, journal=self._journal)

    def begin(self, training: Training, fleet: Fleet, writer: RunWriter) -> None:
        """Bring the training and the tables to where the run has come; what it does is kept from now on."""
        assert isinstance(writer, JournaledWriter)
        journal = self._journal
        began_at_s = journal.fact(_BEGAN_AT_S)
        unfinished: list[OpenRound] = []
        if began_at_s is not None:  # else it is new, or its process ended before anything was kept
            # Whatever a clock that was set meanwhile says, no time passes twice.
            self.start_s = max(time.time() - float(began_at_s), float(journal.fact(_NOW_S) or 0.0))
            unfinished = journal.open_rounds()
            training.recall(_recalled(journal, unfinished))
            for one in unfinished:
                _spend(fleet, *_round_and_devices(one, journal.draft(one.number)))
            self._tell(_gone_on_with(journal, unfinished))
        training.keep_snapshots(JournalStore(journal, fleet, unfinished, writer))
        writer.repeat()


class JournalStore:
    """Keeps a training in a journal; implements :class:`~coordinator.engine.snapshots.SnapshotStore`.

    Parameters
    ----------
    journal : where.
    fleet : whose devices take part.
    unfinished : rounds of an earlier process that nothing more can come of.
    writer : of the tables.
    """

    def __init__(
        self, journal: Journal, fleet: Fleet, unfinished: Iterable[OpenRound], writer: JournaledWriter
    ) -> None:
        self._journal = journal
        self._writer = writer
        self._fleet = fleet
        self._unfinished = unfinished

    def started(self, state: State, optimizer_state: OptimizerState, memory: Memory) -> None:
        """Keep where training begins, or goes on."""
        with self._journal.step():
            if self._journal.fact(_BEGAN_AT_S) is None:
                self._journal.keep_fact(_BEGAN_AT_S, time.time())
            for one in self._unfinished:
                self._journal.accept_draft(one.number)
            self._keep_model(state, optimizer_state)
            self._journal.keep_arrays(_COORDINATOR, memory)

    def began(self, cohort: RunningCohort, phase: str, start_s: float, memory: Memory) -> None:
        """Keep that a round begins: its number is not used again, whatever happens."""
        number = cohort.round_number
        draft = self._rows(cohort, lambda _devices: lost_round(number, phase, start_s))
        with self._step():
            self._journal.begin(number, phase, draft)
            self._journal.keep_arrays(_COORDINATOR, memory)

    def over(
        self, over: FinishedRound, state: State, optimizer_state: OptimizerState, applied: int, memory: Memory
    ) -> None:
        """Keep how a round went and the model after it, in one step: it is applied from now on."""
        completed = over.active.machine.outcome is RoundOutcome.COMPLETED
        draft = self._rows(over.cohort, over.facts)
        with self._step():
            self._journal.over(over.cohort.round_number, applied if completed else None, draft)
            if completed:
                self._keep_model(state, optimizer_state)
            self._journal.keep_arrays(_COORDINATOR, memory)

    def written(self, number: int, memory: Memory) -> None:
        """Keep the rows of a round whose devices are all done."""
        with self._step():
            self._journal.written(number)
            self._journal.keep_arrays(_COORDINATOR, memory)
        self._writer.fold()

    def measuring(self, memory: Memory) -> None:
        """Keep what is spent at most while devices report sums, or what was learnt from these."""
        with self._step():
            self._journal.keep_arrays(_COORDINATOR, memory)

    def measured(self, over: FinishedRound, memory: Memory) -> None:
        """Keep how a round in which devices report sums went, and what has been spent in it."""
        draft = self._rows(over.cohort, over.facts)
        with self._step():
            self._journal.measured(over.cohort.round_number, over.phase, draft)
            self._journal.keep_arrays(_COORDINATOR, memory)

    def looked_back(self, number: int, stop: str | None) -> None:
        """Keep what was measured after a round (0: before the first), and why training ends, if it does."""
        with self._step():
            self._journal.keep_fact(_LOOKED_BACK, number)
            if stop is not None:
                self._journal.keep_fact(_STOP, stop)

    @contextmanager
    def _step(self) -> Iterator[None]:
        with self._journal.step():
            yield
            self._journal.keep_fact(_NOW_S, asyncio.get_running_loop().time())

    def _keep_model(self, state: State, optimizer_state: OptimizerState) -> None:
        model = as_part("state", state) | as_part("optimizer", optimizer_state)
        self._journal.keep_arrays(_MODEL, model)

    def _rows(self, cohort: RunningCohort, facts: Callable[[CohortFacts], RoundFacts]) -> list[Named]:
        """Return the rows of a round if the process ends now."""
        assert isinstance(cohort, SessionCohort), "only runs on the real clock are kept"
        columns = cohort.log.columns()
        devices = cohort.interrupted(columns)
        told, names = facts(devices), self._fleet.names
        if RoundKind.of(cohort.round_number) is not RoundKind.TRAINING:
            return list(evaluation_round_batches(RoundRecord(told, devices, names, columns)).items())
        batches = round_batches(told, devices, names, columns)
        rows = [("device_rounds", batches.device_rounds), ("rounds", batches.rounds)]
        events = batches.kept_events(record_events=self._writer.record_events)
        return rows if events is None else [("events", events), *rows]


def _recalled(journal: Journal, unfinished: Iterable[OpenRound]) -> Recalled:
    model, memory = journal.arrays(_MODEL), journal.arrays(_COORDINATOR)
    looked_back = journal.fact(_LOOKED_BACK)
    return Recalled(
        state=of_part(model, "state"),
        optimizer_state=of_part(model, "optimizer"),
        applied=journal.applied,
        rounds_run=journal.rounds,
        looked_back=None if looked_back is None else int(looked_back),
        evaluated_at=journal.evaluated_at,
        stop=journal.fact(_STOP),
        memory=memory,
        lost=tuple(_lost(one, journal.draft(one.number)) for one in unfinished),
    )


def _lost(one: OpenRound, draft: Iterable[Named]) -> LostRound:
    """Return what is known of a round that was cut short; ``draft`` has its rows."""
    _, devices = _round_and_devices(one, draft)
    ids = devices.column("device").to_numpy()
    over = one.stands == "over"
    if over:
        ids = ids[np.array(devices.column("reason").to_pylist()) == label(Reason.COORDINATOR_CRASH)]
    return LostRound(one.phase, RoundKind.of(one.number), over, frozenset(ids.tolist()))


def _round_and_devices(one: OpenRound, draft: Iterable[Named]) -> tuple[Any, Any]:
    """Return the rows of a round and of its devices, of those in its draft."""
    rows = dict(draft)
    if RoundKind.of(one.number) is RoundKind.TRAINING:
        return rows["rounds"], rows["device_rounds"]
    return rows["evaluation_rounds"], rows["device_evaluations"]


def _spend(fleet: Fleet, round_: Any, devices: Any) -> None:
    """Take what a round that was cut short has cost out of the batteries, as far as that is known."""
    spent = (devices.column(name) for name in ("energy_compute_j", "energy_radio_j"))
    joules = sum(pc.fill_null(column, 0.0).to_numpy() for column in spent)
    ids = devices.column("device").to_numpy().astype(np.int64)
    fleet.spend(ids, joules, round_.column("end_s")[0].as_py())


def _gone_on_with(journal: Journal, unfinished: Iterable[OpenRound]) -> str:
    cut = [str(one.number) for one in unfinished if one.stands == "begun"]
    what = f"goes on after {journal.rounds} rounds, {journal.applied} of them applied"
    return f"{what}; round {', '.join(cut)} was cut short" if cut else what


def _require_same(partial: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse to go on with another run.

    Raises
    ------
    RunDirectoryError : it is one, or one that no service has begun.
    DamageError : nobody can say which run it is.
    """
    if not (partial / JOURNAL).exists() and not (partial / MARK).exists():
        raise RunDirectoryError(
            f"{partial}: has no journal, as runs of 'recfleet serve' have, so nothing can go on with it; "
            "leave out --resume to begin again, or give another --out"
        )
    try:
        before = read_manifest(partial)
    except RunFormatError as error:
        raise DamageError(_damage(partial, str(error))) from error
    if not before:
        raise DamageError(_damage(partial, f"{partial / MANIFEST}: is missing"))
    same = {"schema_version": SCHEMA_VERSION, **{name: manifest[name] for name in _OF_RUN}}
    other = [name for name, value in same.items() if before.get(name) != value]
    if other:
        raise RunDirectoryError(
            f"{partial}: is another run ({', '.join(other)} differ); "
            "give its own scenario and data, leave out --resume to begin again, or give another --out"
        )


def _damage(partial: Path, what: str) -> str:
    """Return why a damaged run is not gone on with, what is left of it, and what to do."""
    try:
        mark = Mark.read(partial)
        come = f"it had come to round {mark.rounds}, with {mark.applied} applied"
    except JournalError as error:
        come = f"how far it had come is not known ({error})"
    try:
        count = len(open_run(partial).read("rounds", ["round"]))
        left = f"its tables have {count} rounds, which 'recfleet report {partial}' shows"
    except (RecfleetError, pa.ArrowException, OSError, ValueError, LookupError):
        left = "its tables cannot be read"
    return (
        f"{what}; the run is damaged and not gone on with, for it would lose rounds or apply them twice. "
        f"What is left: {come}; {left}. Bring the file back from a copy of the same moment, or move "
        f"{partial} elsewhere, and the same command begins the run anew"
    )
