"""What it took runs to come to the same accuracy: simulated time, bytes, energy and ε until a common value.

The value is the least good of what the runs were at their best, so that all of them have reached it; whoever
is better sooner takes less, and who was there at its first evaluation took nothing. Where all were, there is
no race.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from coordinator.results.analysis.learning_curves import TRAINING_LOSS, Curve
from coordinator.results.figures import Figure
from coordinator.scenario.metric_names import MetricKind, higher_is_better


def costs_to_equal_accuracy(runs: Sequence[Sequence[Curve]]) -> tuple[list[dict[str, Figure]], list[str]]:
    """Return figures of each run by name, such as ``bytes to rmse ≤ 0.931``, and metrics without any.

    Only metrics that every run has are compared; training losses, which methods define as they like, are not.

    Parameters
    ----------
    runs : the curves of each run, one or more.
    """
    found: list[dict[str, Figure]] = [{} for _ in runs]
    without: list[str] = []
    by_run: list[Mapping[str, Curve]] = [
        {curve.name: curve for curve in curves if curve.metric != TRAINING_LOSS} for curves in runs
    ]
    for name in by_run[0]:
        curves = [known[name] for known in by_run if name in known]
        if len(curves) < len(runs):
            continue
        several = sum(curve.metric == curves[0].metric for curve in by_run[0].values()) > 1
        called = name if several else curves[0].metric
        costs = list(_costs(called, curves))
        if not costs:
            without.append(called)
            continue
        for figures, more in zip(found, costs, strict=True):
            figures.update(more)
    return found, without


def _costs(name: str, curves: Sequence[Curve]) -> Iterator[dict[str, Figure]]:
    """Yield what each run had spent when it reached what all reached; nothing where there is no race."""
    higher = higher_is_better(curves[0].metric)
    bests = [float(curve.value[curve.best]) for curve in curves]
    goal = min(bests) if higher else max(bests)
    reached = [int(np.argmax(curve.value >= goal if higher else curve.value <= goal)) for curve in curves]
    if not any(reached):
        return
    what = f"{name} {'≥' if higher else '≤'} {goal:.4g}"
    for curve, at in zip(curves, reached, strict=True):
        costs = {
            f"simulated time to {what}": Figure(float(curve.time_s[at]), MetricKind.DURATION.value),
            f"bytes to {what}": Figure(float(curve.bytes[at]), MetricKind.BYTES.value),
        }
        if not np.isnan(curve.energy_j[at]):
            costs[f"energy to {what}"] = Figure(float(curve.energy_j[at]), MetricKind.ENERGY.value)
        if not np.isnan(curve.epsilon[at]):
            costs[f"epsilon zero-out to {what}"] = Figure(float(curve.epsilon[at]), MetricKind.NUMBER.value)
        yield costs
