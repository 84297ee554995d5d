"""The observations behind a scenario's thresholds, taken from the tables of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coordinator.results.tables.functions import call_function, cast, present, rows_where, subset
from coordinator.scenario.metric_names import MODEL_GROUP_TAGS, MODEL_TAGS
from edge.core.vocabulary import Outcome, RoundOutcome, Way, label

Values = npt.NDArray[np.float64]

_COMPLETED: Final = label(Outcome.COMPLETED)


def _equals(column: Any, value: Any) -> Any:
    return call_function("equal", [column, value])


def _greater(column: Any, value: Any) -> Any:
    return call_function("greater", [column, value])


def _is_valid(column: Any) -> Any:
    return call_function("is_valid", [column])


def _values(column: Any) -> Values:
    return np.asarray(cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _happened(condition: Any) -> Values:
    return _values(cast(condition, pa.int8()))


_ROUND_METRICS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Any], Values]]]] = {
    "round.completed": (
        ("outcome",),
        lambda rows: _happened(_equals(rows["outcome"], label(RoundOutcome.COMPLETED))),
    ),
    "round.duration": (("duration_s",), lambda rows: _values(rows["duration_s"])),
    "round.clipped": (("clipped_fraction",), lambda rows: _values(present(rows["clipped_fraction"]))),
    "privacy.epsilon": (("epsilon",), lambda rows: _values(present(rows["epsilon"]))),
    "privacy.epsilon_replace_one": (
        ("epsilon_replace_one",),
        lambda rows: _values(present(rows["epsilon_replace_one"])),
    ),
    "privacy.clipped": (
        ("clipped_updates_fraction",),
        lambda rows: _values(present(rows["clipped_updates_fraction"])),
    ),
    "secagg.sum_error": (("secagg_sum_error",), lambda rows: _values(present(rows["secagg_sum_error"]))),
    "secagg.double_reveal": (
        ("secagg_double_reveals",),
        lambda rows: _happened(_greater(present(rows["secagg_double_reveals"]), 0)),
    ),
}


def _energy(rows: Any) -> Values:
    rows = subset(rows, _is_valid(rows["energy_compute_j"]))
    return _values(rows["energy_compute_j"]) + _values(rows["energy_radio_j"])


def _wasted(rows: Any) -> Values:
    worked = subset(rows, _greater(rows["compute_s"], 0.0))
    return _happened(call_function("invert", [_equals(worked["outcome"], _COMPLETED)]))


_DEVICE_METRICS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Any], Values]]]] = {
    "device.completed": (("outcome",), lambda rows: _happened(_equals(rows["outcome"], _COMPLETED))),
    "device.dropped": (
        ("outcome",),
        lambda rows: _happened(_equals(rows["outcome"], label(Outcome.DROPPED))),
    ),
    "device.wasted_work": (("outcome", "compute_s"), _wasted),
    "device.shielded": (
        ("way",),
        lambda rows: _happened(_equals(present(rows["way"]), label(Way.CLEAR))),
    ),
    "device.work_share": (("work_share",), lambda rows: _values(present(rows["work_share"]))),
    "device.staleness": (("staleness",), lambda rows: _values(present(rows["staleness"]))),
    "device.latency": (("latency_s",), lambda rows: _values(present(rows["latency_s"]))),
    "device.up_bytes": (("up_bytes",), lambda rows: _values(rows["up_bytes"])),
    "device.down_bytes": (("down_bytes",), lambda rows: _values(rows["down_bytes"])),
    "device.energy": (("energy_compute_j", "energy_radio_j"), _energy),
}

_INFERENCE_METRICS: Final[Mapping[str, str]] = {
    "inference.latency": "latency_s",
    "inference.energy": "energy_j",
    "inference.max_error": "max_relative_error",
}
"""The column of ``inferences`` behind each metric."""

_INFERENCE_TAGS: Final = ("phase", "class", "network")
_DEVICE_TAGS: Final = ("phase", "class", "network", "region")
_WAY: Final = "way"
_MODEL: Final = "model."
_AUDIT: Final = "audit."
_LOSS: Final = "model.loss"
_USERS: Final = "users"

_PREFERENCES: Final = {"population": ("seen", "unseen"), "split": ("test", "validation", "train")}
"""Of rows that differ in one of these, a threshold without the tag means the first that the run has."""


class Tables(Protocol):
    """What :class:`~coordinator.results.tables.reader.RunTables` is to the reader of metrics."""

    def read(self, table: str, columns: Sequence[str] | None = None) -> Any:
        """Return a ``pyarrow.Table`` with the columns wanted, all by default."""
        ...


class TableMetricSource:
    """Gives the observations of a metric, narrowed by tags, in the order of the rounds.

    Parameters
    ----------
    run : the tables of a run.
    """

    def __init__(self, run: Tables) -> None:
        self._run = run

    def values(self, metric: str, tags: Mapping[str, str]) -> Values:
        """Return the observations, float64 [n], in base units (SI, bytes, 1 for happened and 0 for not).

        * ``round.…``, ``secagg.…`` and ``privacy.…``: one a round, where it has such a figure. Tag ``phase``.
        * ``device.…``: one a device round, ``device.latency`` only where a report arrived,
          ``device.wasted_work`` only where the device computed, ``device.shielded`` where an update arrived,
          ``device.work_share`` where one was made with partial work, ``device.staleness`` where one was
          applied with buffered pacing. Tags ``phase class network region way``.
        * ``inference.…``: one for each device that ran its own model, each time. Tags ``phase class
          network``.
        * ``model.loss`` : one a round with applied reports; with a device tag, the mean local loss of the
          applied reports of those devices, weighted by examples. With the tag ``users`` it is one of
          the next kind.
        * ``model.<metric>``: one an evaluation. Tags ``phase``, ``class network region activity popularity``,
          and ``users`` (``seen`` or ``unseen``); without ``users``: the seen ones, or the unseen in a run
          that evaluated no others. Without ``split`` (``test`` or ``validation``) test comes before
          validation.

        A tag value that never occurred gives no observations, nor do two of the groups together on a model
        metric: users are grouped by one at a time.

        Raises
        ------
        ValueError
            For an unknown metric, or a tag that it does not have.
        """
        if metric in _ROUND_METRICS:
            columns, compute = _ROUND_METRICS[metric]
            return compute(self._rows("rounds", columns, tags, ("phase",), metric))
        if metric in _DEVICE_METRICS:
            columns, compute = _DEVICE_METRICS[metric]
            return compute(self._rows("device_rounds", columns, tags, (*_DEVICE_TAGS, _WAY), metric))
        if metric in _INFERENCE_METRICS:
            column = _INFERENCE_METRICS[metric]
            return _values(self._rows("inferences", (column,), tags, _INFERENCE_TAGS, metric)[column])
        if metric == _LOSS and _USERS not in tags:
            return self._loss(tags)
        if metric.startswith(_MODEL) or metric.startswith(_AUDIT):
            return self._evaluation(metric, tags)
        known = ", ".join(
            [*_ROUND_METRICS, *_DEVICE_METRICS, *_INFERENCE_METRICS, _LOSS, f"{_MODEL}<metric>"]
        )
        raise ValueError(f"unknown metric {metric!r}; one of {known}")

    def _rows(
        self,
        table: str,
        columns: tuple[str, ...],
        tags: Mapping[str, str],
        known: tuple[str, ...],
        metric: str,
    ) -> Any:
        _check_tags(metric, tags, known)
        rows = self._run.read(table, list(dict.fromkeys([*columns, *tags])))
        return _narrow(rows, tags)

    def _loss(self, tags: Mapping[str, str]) -> Values:
        if set(tags) <= {"phase"}:
            rows = self._rows("rounds", ("loss",), tags, ("phase",), _LOSS)
            return _values(present(rows["loss"]))
        columns = ("round", "outcome", "loss", "examples")
        rows = self._rows("device_rounds", columns, tags, _DEVICE_TAGS, _LOSS)
        counted = call_function("and", [_equals(rows["outcome"], _COMPLETED), _is_valid(rows["loss"])])
        rows = subset(rows, counted)
        _, position = np.unique(rows["round"].to_numpy(), return_inverse=True)
        examples = _values(rows["examples"])
        total = np.bincount(position, examples * _values(rows["loss"]))
        weight = np.bincount(position, examples)
        return np.asarray(total[weight > 0] / weight[weight > 0], dtype=np.float64)

    def _evaluation(self, metric: str, tags: Mapping[str, str]) -> Values:
        _check_tags(metric, tags, MODEL_TAGS)
        groups = [name for name in MODEL_GROUP_TAGS if name in tags]
        if len(groups) > 1:
            return np.empty(0)
        rows = self._run.read("evaluations")
        wanted = {"metric": metric.removeprefix(_MODEL), "tag": "all"}
        if groups:
            wanted |= {"tag": groups[0], "group": tags[groups[0]]}
        if "phase" in tags:
            wanted["phase"] = tags["phase"]
        if _USERS in tags:
            wanted["population"] = tags[_USERS]
        if "split" in tags:
            wanted["split"] = tags["split"]
        rows = _narrow(rows, wanted)
        for column, preferred in _PREFERENCES.items():
            present = set(rows[column].to_pylist())
            chosen = next((name for name in preferred if name in present), None)
            if chosen is not None:
                rows = _narrow(rows, {column: chosen})
        # Over nobody there is nothing to observe; where a value of somebody is no number, null becomes NaN.
        observed = call_function("or", [_greater(rows["users"], 0), _is_valid(rows["value"])])
        rows = subset(rows, observed)
        return _values(rows["value"])


def _check_tags(metric: str, tags: Mapping[str, str], known: tuple[str, ...]) -> None:
    for tag in tags:
        if tag not in known:
            raise ValueError(f"{metric} cannot be narrowed by {tag!r} here; by {', '.join(known)}")


def _narrow(rows: Any, tags: Mapping[str, str]) -> Any:
    for column, name in tags.items():
        rows = rows_where(rows, column, name)
    return rows
