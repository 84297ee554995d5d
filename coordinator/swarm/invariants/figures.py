"""Figures: what thresholds look at is what the tables hold, and privacy that was spent is not given back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.swarm.trial import Trial, rows
from edge.core.vocabulary import Outcome, Reason, RoundOutcome, label

_COMPLETED: Final = label(Outcome.COMPLETED)
_TIMES: Final = ("compute_s", "wait_s", "wasted_compute_s", "energy_compute_j", "energy_radio_j")
_CLOSE: Final = 1e-9


def consistent_figures(trial: Trial) -> Iterator[str]:
    """Check that counts, times and energy of rounds are those of their devices, and the thresholds' too."""
    devices = list(rows(trial.tables, "device_rounds", "round", "outcome", "reason", "stage", *_TIMES))
    rounds = list(rows(trial.tables, "rounds"))
    for row in rounds:
        number = row["round"]
        own = [device for device in devices if device["round"] == number]
        for outcome in Outcome:
            count = sum(device["outcome"] == label(outcome) for device in own)
            if count != row[label(outcome)]:
                yield f"round {number} counts {row[label(outcome)]} {label(outcome)}, its devices {count}"
        for name in ("compute_s", "wasted_compute_s"):
            total = math.fsum(device[name] for device in own)
            if not math.isclose(total, row[name], rel_tol=_CLOSE, abs_tol=_CLOSE):
                yield f"round {number} has {name} {row[name]!r}, its devices {total!r}"
        energy_j = math.fsum(device["energy_compute_j"] + device["energy_radio_j"] for device in own)
        if not math.isclose(energy_j, row["energy_j"], rel_tol=_CLOSE, abs_tol=_CLOSE):
            yield f"round {number} has {row['energy_j']!r} J, its devices {energy_j!r}"
        named = row["reason"] != label(Reason.NONE)
        if named != (row["outcome"] == label(RoundOutcome.ABANDONED)):
            yield f"round {number} is {row['outcome']}, for the reason {row['reason']}"
    for device in devices:
        done = device["outcome"] == _COMPLETED
        if done != (device["stage"] is None) or done != (device["reason"] == label(Reason.NONE)):
            yield (
                f"round {device['round']}: a device is {device['outcome']} at stage {device['stage']} "
                f"for the reason {device['reason']}"
            )
        negative = [name for name in _TIMES if not device[name] >= 0.0]
        if negative:
            yield f"round {device['round']}: {negative[0]} of a device is {device[negative[0]]!r}"
    yield from _of_thresholds(trial, rounds, devices)


def _of_thresholds(
    trial: Trial, rounds: list[dict[str, object]], devices: list[dict[str, object]]
) -> Iterator[str]:
    source = TableMetricSource(trial.tables)
    expected = {
        "round.completed": [float(row["outcome"] == label(RoundOutcome.COMPLETED)) for row in rounds],
        "device.completed": [float(row["outcome"] == _COMPLETED) for row in devices],
        "device.dropped": [float(row["outcome"] == label(Outcome.DROPPED)) for row in devices],
    }
    for metric, values in expected.items():
        if not np.array_equal(source.values(metric, {}), values):
            yield f"the metric {metric} is not what the tables hold"


def spent_privacy(trial: Trial) -> Iterator[str]:
    """Check that epsilon is there when it was asked for, never falls, and is no less against any update."""
    privacy = trial.loaded.scenario.privacy
    asked = privacy is not None and privacy.accounting
    last = 0.0
    for row in rows(trial.tables, "rounds", "round", "epsilon", "epsilon_replace_one", "outcome"):
        epsilon = row["epsilon"]
        if (epsilon is not None) != asked:
            yield f"round {row['round']}: epsilon is {epsilon!r}, and was {'' if asked else 'not '}asked for"
        if epsilon is None:
            continue
        if math.isnan(epsilon) or epsilon < last:
            yield f"round {row['round']}: epsilon is {epsilon!r} after {last!r}"
        if not row["epsilon_replace_one"] >= epsilon:
            yield f"round {row['round']}: replace-one is {row['epsilon_replace_one']!r}, zero-out {epsilon!r}"
        last = epsilon
