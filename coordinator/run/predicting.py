"""What the model of a finished run predicts: a table of scored and ranked items, for anybody's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from coordinator.engine.evaluation import RankedItems, RatingEvaluator
from coordinator.engine.workload import RatingWorkload
from coordinator.results.export import read_finished
from coordinator.run.export_device import assembled_again
from edge.core.errors import ExportError

Split = Literal["test", "validation"]
FORMATS: Final = (".parquet", ".csv")
"""Endings of the files that predictions are written to."""
DEFAULT_TOP: Final = 100


@dataclass(frozen=True, slots=True)
class PredictionTable:
    """Ranked items of the users that a run evaluates.

    Attributes
    ----------
    schema : columns ``user`` and ``item`` (the ids of the data; indices where it has none), ``score`` (what
        the model predicts), ``rank`` (from 1), ``rating`` (what was kept back; null for an item of which
        nothing was) and ``population`` (``seen`` in training or ``unseen``).
    batches : ``pyarrow.RecordBatch`` of some hundred users each, computed as they are asked for.
    """

    schema: Any
    batches: Iterator[Any]

    def table(self) -> Any:
        """Compute all batches; return a ``pyarrow.Table``."""
        return pa.Table.from_batches(self.batches, self.schema)

    def write(self, file: Path) -> int:
        """Write a Parquet or CSV file, by its ending; return the number of rows.

        Raises
        ------
        ExportError : another ending.
        """
        check_format(file)
        rows = 0
        # Beside the file first: what is interrupted leaves no half of a table under its name.
        beside = file.with_name(f".{file.name}.partial")
        with ExitStack() as stack:
            stack.callback(beside.unlink, missing_ok=True)
            writer: Any = (
                pa.parquet.ParquetWriter(beside, self.schema)
                if file.suffix == ".parquet"
                else pa.csv.CSVWriter(beside, self.schema)
            )
            with writer:
                for batch in self.batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
            beside.replace(file)
        return rows


def check_format(file: Path) -> None:
    """Raise ``ExportError`` unless a file has the ending of a format that predictions are written in."""
    if file.suffix not in FORMATS:
        raise ExportError(f"{file}: predictions are written as {' or '.join(FORMATS)}; name such a file")


def predict(
    directory: Path,
    *,
    split: Split | None = None,
    top: int = DEFAULT_TOP,
    overrides: Sequence[str] = (),
) -> PredictionTable:
    """Score and rank items with the model of a finished run, for the users that its evaluation has.

    Parameters
    ----------
    directory : of the run.
    split : which of the kept-back ratings count; by default those of ``evaluation.on``.
    top : candidates of each user beside the kept-back ones, where the whole catalogue is ranked; where the
        scenario ranks among sampled items there are those.
    overrides : settings from the command line, such as where the ratings are now.

    Raises
    ------
    ExportError : the method ranks no items, or keeps rows of users on devices; nothing is kept back.
    ScenarioError, DataError : the ratings are not where the scenario says.
    """
    run = read_finished(directory)
    run.check_rows()
    # The model is there; no round is to be chosen any more.
    as_asked = () if split is None else (f"evaluation.on={split}",)
    on = ("evaluation.select=null", "evaluation.patience=null", *as_asked)
    _, assembly = assembled_again(run, (*overrides, *on))
    evaluator, workload = assembly.evaluator, assembly.workload
    assert isinstance(evaluator, RatingEvaluator)
    assert isinstance(workload, RatingWorkload)
    if evaluator.unscored is not None:
        raise ExportError(f"{directory}: {evaluator.unscored}")
    train = workload.split.train
    user, item = _labelled(train.user_ids), _labelled(train.item_ids)
    schema = pa.schema(
        [
            pa.field("user", user(np.zeros(0, np.int64)).type, nullable=False),
            pa.field("item", item(np.zeros(0, np.int64)).type, nullable=False),
            pa.field("score", pa.float32(), nullable=False),
            pa.field("rank", pa.int32(), nullable=False),
            pa.field("rating", pa.float32()),
            pa.field("population", pa.string(), nullable=False),
        ]
    )

    def batch(found: RankedItems) -> Any:
        columns = [
            user(found.users),
            item(found.items),
            pa.array(found.scores),
            pa.array(found.ranks.astype(np.int32)),
            pa.array(found.ratings, from_pandas=True),
            pa.array([found.population]).take(pa.array(np.zeros(len(found.users), np.int32))),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return PredictionTable(schema, map(batch, evaluator.rankings(run.state, top)))


def _labelled(labels: npt.NDArray[Any] | None) -> Callable[[npt.NDArray[np.int64]], Any]:
    """Return what makes an Arrow array of ids of one of indices."""
    if labels is None:
        as_they_are: Callable[[npt.NDArray[np.int64]], Any] = pa.array
        return as_they_are
    known = pa.array(labels)
    return lambda indices: known.take(pa.array(indices))
