"""What trackers of experiments are given of a run: its settings, series over rounds and time, its verdicts.

Each number of a round or of an evaluation is a point of a series, with the round as its step and the time of
the run, simulated or not, as its time: from the moment at which the run began here, so that a tracker's axis
of time is that of the run.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.results.run_directory import run_name
from coordinator.results.sinks import Sink
from device_profiles.documents import Node

__all__ = ["SeriesPoint", "Tracker", "safe_name"]

_BY_ROUND: Final = ("rounds", "evaluation_rounds")
_EVALUATIONS: Final = "evaluations"
_UNSAFE: Final = re.compile(r"[^\w./-]+")
_WORDS: Final = {
    "<=": "at most",
    ">=": "at least",
    "==": "equal to",
    "<": "below",
    ">": "above",
    "%": " percent",
}


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """A number of a run.

    Attributes
    ----------
    name : of the series: ``rounds/duration_s``, ``evaluations/rmse``, ``evaluations/ndcg_10.class.low``.
    value : as the table has it; not NaN.
    step : the round.
    time_s : on the clock of the run.
    """

    name: str
    value: float
    step: int
    time_s: float


def safe_name(text: str) -> str:
    """Return a text with ``_`` for what names in trackers cannot hold."""
    return _UNSAFE.sub("_", text).strip("_")


def points_of(table: str, batch: Any) -> Iterator[SeriesPoint]:
    """Yield the points of a ``pyarrow.RecordBatch`` of a table, row by row; none of tables about devices.

    A row of ``rounds`` gives a point for each column of numbers; one of ``evaluations`` a point for its
    metric, named by it and what it was measured on.
    """
    if table in _BY_ROUND:
        for row in batch.to_pylist():
            for column, value in row.items():
                if column != "round" and isinstance(value, int | float) and not math.isnan(value):
                    yield SeriesPoint(f"{table}/{column}", float(value), row["round"], row["end_s"])
    elif table == _EVALUATIONS:
        for row in batch.to_pylist():
            if row["value"] is not None and not math.isnan(row["value"]):
                parts = [row["metric"]]
                parts += [row["split"]] if row["split"] != "test" else []
                parts += [row["population"]] if row["population"] != "seen" else []
                parts += [row["tag"], row["group"]] if row["tag"] != "all" else []
                name = ".".join(map(safe_name, parts))
                yield SeriesPoint(f"{table}/{name}", float(row["value"]), row["round"], row["time_s"])


def flat(node: Node, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting of a scenario by its key, as text; a list is one setting, written as JSON."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from flat(value, f"{path}.{key}" if path else key)
    else:
        yield path, node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)


class Tracker(Sink):
    """Base of sinks that are trackers of experiments.

    Attributes
    ----------
    run_name : what the run is called: that of its directory, unless it was given another.
    began_s : seconds since 1970 at which it began here, to which the time of the run is added.
    """

    run_name: str
    began_s: float

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Begin the run in the tracker, with its settings."""
        self.began_s = time.time()
        self.run_name = run_name(facts["scenario"], facts["seed"], facts["scenario_hash"])
        settings = {safe_name(key): text for key, text in flat(facts["settings"])}
        self.open_run(facts, settings)

    def rows(self, table: str, batch: Any) -> None:
        """Give the tracker the points of the rows."""
        points = list(points_of(table, batch))
        if points:
            self.log_points(points)

    def end(self, status: str, verdicts: Sequence[Mapping[str, Any]], directory: Path) -> None:
        """Give the tracker the verdicts and the report, and end the run in it."""
        self.close_run(status, {_tag(one): _verdict(one) for one in verdicts}, verdicts, directory)

    def open_run(self, facts: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        """Begin a run, given the facts of :meth:`Sink.begin` and its settings by key."""
        raise NotImplementedError

    def log_points(self, points: Sequence[SeriesPoint]) -> None:
        """Take points, one or more."""
        raise NotImplementedError

    def close_run(
        self, status: str, tags: Mapping[str, str], verdicts: Sequence[Mapping[str, Any]], directory: Path
    ) -> None:
        """End the run, given its verdicts, as tags too, and the directory in which its report lies."""
        raise NotImplementedError


def _tag(verdict: Mapping[str, Any]) -> str:
    """Return the name of a verdict as a tag: ``threshold.round.duration.p95.below_2_s``."""
    text = verdict["threshold"].removeprefix(verdict["key"]).removeprefix(":").strip()
    for sign, word in _WORDS.items():
        text = text.replace(sign, word)
    tags = [f"{name}.{value}" for name, value in verdict["tags"].items()]
    parts = ["threshold", verdict["metric"], *tags, *text.split(" ", 1)]
    return ".".join(safe_name(part.replace("@", "_")) for part in parts)


def _verdict(verdict: Mapping[str, Any]) -> str:
    said = "held" if verdict["held"] else "missed"
    return f"{said}: {verdict['shown']['value']}"
