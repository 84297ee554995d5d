"""The round whose model does best on validation ratings: looked for as training goes on, and tested once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coordinator.engine.evaluation import Evaluator
from coordinator.engine.facts import MetricValue
from coordinator.engine.kept_rows import KeptRows
from coordinator.engine.workload import RatingWorkload
from coordinator.scenario.metric_names import USER_GROUPS, higher_is_better
from edge.learning.base import State


class BestRound:
    """Keeps a copy of the best model so far, by a metric of validation ratings, and what devices kept then.

    Of equal values the earliest is the best; one that is no number never is. The figure is that of users that
    take part in training; where none of them has validation ratings, of those that never do.

    Parameters
    ----------
    metric : its name, such as ``ndcg@10``.
    patience : so many evaluations in a row without a better value end training; None: they do not.
    workload : of the run.

    Attributes
    ----------
    round : rounds finished before the best evaluation; None before the first.
    time_s : its simulated time.
    state : the model then.
    """

    def __init__(self, metric: str, patience: int | None, workload: RatingWorkload) -> None:
        self._metric = metric
        self._patience = patience
        self._workload = workload
        self._value = np.nan
        self._since = 0
        self._kept: KeptRows | None = None
        self.round: int | None = None
        self.time_s = 0.0
        self.state: State | None = None

    def offer(self, number: int, now_s: float, values: Iterable[MetricValue], state: State) -> bool:
        """Look at the evaluation of ``state`` after round ``number``; return whether training may end."""
        value, best = self._value_of(values), self._value
        higher = higher_is_better(self._metric)
        # No number is better or worse than another.
        if not np.isnan(value) and (np.isnan(best) or (value > best if higher else value < best)):
            self._value, self._since = value, 0
            self.round, self.time_s = number, now_s
            self.state = {name: np.array(array) for name, array in state.items()}
            self._kept = None if self._workload.kept is None else self._workload.kept.copy()
        elif not np.isnan(best):
            self._since += 1
        return self._patience is not None and self._since >= self._patience

    def _value_of(self, values: Iterable[MetricValue]) -> float:
        found = {
            value.population: value.value
            for value in values
            if value.metric == self._metric and value.tag == "all"
        }
        return next((found[users] for users in USER_GROUPS if users in found), np.nan)

    def tested(self, evaluator: Evaluator) -> list[MetricValue]:
        """Return what the best model is worth by ``evaluator``, with what devices kept at the time."""
        assert self.state is not None, "an evaluation has been offered"
        now = self._workload.kept
        self._workload.kept = self._kept
        try:
            return evaluator.evaluate(self.state)
        finally:
            self._workload.kept = now
