"""A model's metrics over simulated time and bytes, and how soon they got where they were going."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coordinator.results.analysis.rows import read_rows
from coordinator.results.tables.reader import RunTables
from coordinator.scenario.metric_names import higher_is_better, is_accuracy

Floats = npt.NDArray[np.float64]

FRACTIONS: Final = (0.5, 0.9, 0.99)
"""The parts of its way from the first to the chosen value after which the time of a metric is taken."""

AUDIT_PREFIX: Final = "audit."
TRAINING_LOSS: Final = "training loss"
TEST: Final = "test"


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of one metric over a run.

    Attributes
    ----------
    metric, split, population : what was computed, on which ratings, of whom; the last two are empty for the
        training loss.
    round : int64 [n], rounds finished before.
    time_s : float64 [n], simulated time.
    bytes : float64 [n], sent either way by then, waste included.
    energy_j : float64 [n], simulated energy of all devices by then; NaN once it is kept back.
    epsilon : float64 [n], spent by then, zero-out; NaN where it is not accounted for.
    value : float64 [n], never NaN.
    """

    metric: str
    split: str
    population: str
    round: npt.NDArray[np.int64]
    time_s: Floats
    bytes: Floats
    energy_j: Floats
    epsilon: Floats
    value: Floats

    @property
    def name(self) -> str:
        """The metric with whom it is about."""
        return f"{self.metric} ({self.split}, {self.population} users)" if self.split else self.metric

    @property
    def has_best(self) -> bool:
        """Whether one of its values is the best.

        False on test ratings: the best of them would be chosen by what is scored. False for a metric of what
        is recommended, such as coverage: it does not measure how good that is.
        """
        return self.split != TEST and is_accuracy(self.metric)

    @property
    def chosen(self) -> int:
        """Position of the value that the run comes to: the best, the first of equals, or else the last."""
        if not self.has_best:
            return len(self.value) - 1
        return int(self.value.argmax() if higher_is_better(self.metric) else self.value.argmin())


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """The mean of curves of one metric, round by round, and between which values they lie, float64 [n]."""

    curve: Curve
    low: Floats
    high: Floats


def mean_curve(curves: Sequence[Curve]) -> MeanCurve | None:
    """Return the mean over the rounds that all of the curves have; None if there is none.

    A round's time, bytes, energy and ε are means as well. The curves are of one metric, at least one.
    """
    common = functools.reduce(np.intersect1d, [curve.round for curve in curves])
    if not len(common):
        return None
    at = [np.searchsorted(curve.round, common) for curve in curves]

    def each(name: str) -> Floats:
        return np.stack([getattr(curve, name)[rows] for curve, rows in zip(curves, at, strict=True)])

    values = each("value")
    mean = replace(
        curves[0],
        round=common,
        **{name: each(name).mean(axis=0) for name in ("time_s", "bytes", "energy_j", "epsilon")},
        value=values.mean(axis=0),
    )
    return MeanCurve(mean, values.min(axis=0), values.max(axis=0))


def learning_curves(run: RunTables) -> list[Curve]:
    """Return the training loss, then every metric of all users in the order of ``evaluations``; no audits."""
    columns = ["round", "end_s", "loss", "down_bytes", "up_bytes", "energy_j", "epsilon"]
    rounds = read_rows(run, "rounds", columns).numbers
    order = np.argsort(rounds["round"], kind="stable")
    sent = np.cumsum((rounds["down_bytes"] + rounds["up_bytes"])[order]).astype(np.float64)
    energy_j = np.cumsum(rounds["energy_j"][order])
    epsilon = np.fmax.accumulate(rounds["epsilon"][order])
    counted = bool((~np.isnan(epsilon)).any())
    known = ~np.isnan(rounds["loss"][order])
    curves = []
    if known.any():
        numbers = rounds["round"][order][known].astype(np.int64)
        times_s, loss = rounds["end_s"][order][known], rounds["loss"][order][known]
        costs = (sent[known], energy_j[known], epsilon[known])
        curves.append(Curve(TRAINING_LOSS, "", "", numbers, times_s, *costs, loss))
    rows = read_rows(run, "evaluations", ["round", "time_s", "metric", "split", "population", "tag", "value"])
    chosen = rows.where(rows.equal("tag", "all") & ~np.isnan(rows.numbers["value"]))
    keys = [chosen.codes[name] for name in ("metric", "split", "population")]
    series = (
        np.unique(np.stack(keys), axis=1, return_index=True)[1] if len(chosen) else np.zeros(0, dtype=int)
    )
    for first in np.sort(series).tolist():
        metric, split, population = (chosen.label(n, first) for n in ("metric", "split", "population"))
        if metric is None or metric.startswith(AUDIT_PREFIX):
            continue
        same = np.logical_and.reduce([key == key[first] for key in keys])
        numbers = chosen.numbers["round"][same].astype(np.int64)
        finished = np.searchsorted(rounds["round"][order], numbers, side="right")
        curves.append(
            Curve(
                metric,
                split or "",
                population or "",
                numbers,
                chosen.numbers["time_s"][same],
                np.append(0.0, sent)[finished],
                np.append(0.0, energy_j)[finished],
                np.append(0.0 if counted else np.nan, epsilon)[finished],
                chosen.numbers["value"][same],
            )
        )
    return curves


def time_to_accuracy(curve: Curve) -> list[dict[str, Any]]:
    """Return when a metric had first come given fractions of its way from its first value to the chosen one.

    A row per fraction of ``FRACTIONS``: ``fraction``, ``value`` (what was to be reached), and the ``round``,
    ``time_s`` and ``bytes`` of the first evaluation at or beyond it. Empty when the chosen value
    (:attr:`Curve.chosen`) is no better than the first. Between evaluations nothing is interpolated, so a time
    is late by up to the interval of evaluations.
    """
    first, last = float(curve.value[0]), float(curve.value[curve.chosen])
    higher = higher_is_better(curve.metric)
    if not is_accuracy(curve.metric) or not (last > first if higher else last < first):
        return []
    found = []
    for fraction in FRACTIONS:
        wanted = first + fraction * (last - first)
        reached = curve.value >= wanted if higher else curve.value <= wanted
        # The chosen value is there, however the target was rounded.
        reached[curve.chosen] = True
        at = int(np.argmax(reached))
        found.append(
            {
                "fraction": fraction,
                "value": wanted,
                "round": int(curve.round[at]),
                "time_s": float(curve.time_s[at]),
                "bytes": int(curve.bytes[at]),
            }
        )
    return found
