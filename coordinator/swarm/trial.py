"""One scenario of a swarm, run in memory and watched, and its tables as plain columns."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coordinator.engine.crashes import npz_bytes
from coordinator.engine.progress import RunObserver
from coordinator.engine.secure_sums import SecureSums
from coordinator.engine.stop_reason import StopReason
from coordinator.engine.training import Training
from coordinator.results.tables.digest import whole_columns
from coordinator.results.tables.metric_source import Tables
from coordinator.results.tables.writer import TableRecorder, TablesInMemory
from coordinator.results.threshold_watch import ThresholdWatch
from coordinator.run.assembling import assemble
from coordinator.run.virtual_time import simulate
from coordinator.scenario.load import LoadedScenario, load_text
from coordinator.swarm.record import FrozenError, Record
from edge.crypto.entropy import SecretSource
from edge.device.compute import InlineExecutor
from edge.learning.base import State

Columns = dict[str, list[Any]]
"""Columns by name, as plain values: labels as text, None where null."""
LONGEST_WAIT_S: Final = 120
"""Seconds on this host after which a run is held to be frozen; it takes a tenth of one."""
_SPURIOUS: Final = "invalid value encountered in (matmul|dot|matvec|vecmat)"


def columns(tables: Tables, table: str, *names: str) -> Columns:
    """Return columns of a table, all by default."""
    found: Columns = {}
    for name, column in whole_columns(tables.read(table, names or None)).items():
        if pa.types.is_dictionary(column.type):
            words = np.array([*column.dictionary.to_pylist(), None], dtype=object)
            codes = column.indices.fill_null(len(words) - 1).to_numpy()
            found[name] = words[codes].tolist()
        else:
            found[name] = column.to_pylist() if column.null_count else column.to_numpy().tolist()
    return found


def rows(tables: Tables, table: str, *names: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with the columns named, all by default."""
    found = columns(tables, table, *names)
    for values in zip(*found.values(), strict=True):
        yield dict(zip(found, values, strict=True))


@dataclass(slots=True)
class Trial:
    """A run, as the invariants look at it.

    ``error`` is what ended it before its end; then ``stop`` is None.
    """

    loaded: LoadedScenario
    tables: TablesInMemory
    record: Record
    secure_sums: dict[str, SecureSums | None]
    """How updates are summed, by phase."""
    first: State
    """The model before the first round."""
    last: State
    """The model after the last round."""
    held: npt.NDArray[np.int64]
    """How many ratings or samples each device holds to train on, [devices]."""
    stop: StopReason | None
    error: Exception | None

    def digest(self) -> str:
        """Return 32 hexadecimal digits, equal for runs with equal tables and models."""
        model = npz_bytes(dict(self.last))
        return hashlib.blake2b(self.tables.digest().encode() + model, digest_size=16).hexdigest()


def run_trial(text: str, name: str, *, batch: int | None = None, watched: bool = True) -> Trial:
    """Run the scenario in ``text``; what a run raises is kept, what is wrong with the scenario raised.

    Parameters
    ----------
    text, name : of the scenario.
    batch : devices that compute together, in place of the scenario's ``compute.batch``.
    watched : whether every frame is recorded, for which each device acts by itself; else they are computed in
        waves where that is possible, and the record is empty.

    Raises
    ------
    ScenarioError : the text is no valid scenario.
    """
    loaded = load_text(text, name)
    if batch is not None:
        compute = loaded.scenario.compute.model_copy(update={"batch": batch})
        loaded = replace(loaded, scenario=loaded.scenario.model_copy(update={"compute": compute}))
    assembly = assemble(loaded)
    tables, record = TablesInMemory(), Record()
    with _folder(loaded) as folder, TableRecorder(tables, assembly.fleet.names) as recorder:
        # Thresholds are no promises of the swarm: a scenario that misses one is no bug.
        watch = ThresholdWatch((), None)
        training = Training(
            loaded.scenario, assembly, recorder, RunObserver(), watch, folder, SecretSource.SEED
        )
        first = {name: array.copy() for name, array in training.state.items()}
        stop: StopReason | None = None
        error: Exception | None = None
        try:
            with _limit(), warnings.catch_warnings():
                # Nobody reads the warnings of ten thousand runs; one is a bug like any other.
                warnings.simplefilter("error")
                # But for this one, of finite products that are right, by a kernel of OpenBLAS 0.3.31.
                warnings.filterwarnings("ignore", _SPURIOUS, RuntimeWarning)
                stop = simulate(loaded, assembly, training, InlineExecutor(), record if watched else None)
                recorder.flush()
        except Exception as caught:
            error = caught
    return Trial(
        loaded=loaded,
        tables=tables,
        record=record,
        secure_sums=dict(assembly.secure_sums),
        first=first,
        last=training.state,
        held=assembly.workload.held(np.arange(assembly.workload.n_clients)),
        stop=stop,
        error=error,
    )


@contextlib.contextmanager
def _folder(loaded: LoadedScenario) -> Iterator[Path]:
    """Give a coordinator that may crash a folder for its checkpoint; a run leaves nothing else on disk."""
    if not any(fault.kind.crashes for fault in loaded.scenario.faults):
        yield Path()
        return
    with tempfile.TemporaryDirectory(prefix="recfleet-swarm-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    """Raise :class:`FrozenError` in a run that hangs; only where there can be an alarm, in a main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise FrozenError(f"the run has not come to its end after {LONGEST_WAIT_S} s on this host")

    previous: Any = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LONGEST_WAIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
