"""One move: the model moves once a completed round, by what its method makes of the sum, and never else.

Where the server optimiser is plain SGD of a constant rate, the step is worked out here from the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from coordinator.scenario.privacy_section import CentralGaussian, PersonalGaussian
from coordinator.swarm.invariants.sums import Floats, differences, survivors_of, unit
from coordinator.swarm.record import Applied
from coordinator.swarm.trial import Trial
from edge.core.plugins import ALGORITHMS, BUILT_IN
from edge.learning.methods.fedavg_mf import USER_ROW, USER_TABLE, USERS, SharedFactorizationSettings
from edge.learning.methods.fedmf import FedMFSettings
from edge.learning.methods.fedncf.local import GMF, MLP
from edge.learning.methods.fedncf.settings import FedNCFSettings
from edge.learning.methods.fedrec import UPDATES, FedRecSettings
from edge.learning.methods.fedrecon.algorithm import BIAS, FACTORS
from edge.learning.methods.lipm.algorithm import ATTENTION, LIPMSettings
from edge.learning.methods.local_context import LocalContextSettings
from edge.learning.server_optimizers import ConstantSchedule, SgdSettings
from edge.learning.updates import ROWS, Aggregate, Array


def one_move(trial: Trial) -> Iterator[str]:
    """Check that the model moves once a completed round, by the mean of its sum, and at no other time."""
    record, survivors = trial.record, survivors_of(trial)
    numbers = [move.round_number for move in record.moves]
    if trial.error is None and numbers != sorted(survivors):
        yield f"sums were applied in the rounds {numbers}; completed were the rounds {sorted(survivors)}"
    at = "the start"
    current = trial.first
    for move in record.moves:
        if not _same(current, move.before):
            yield f"the model changed between {at} and the end of round {move.round_number}"
        sums = record.sums.get(move.round_number, [])
        if len(sums) == 1 and move.round_number in survivors:
            yield from _moved(trial, move, sums[0].aggregate, survivors[move.round_number])
        current, at = move.after, f"round {move.round_number}"
    if not _same(current, trial.last):
        yield f"the model changed after {at}"


def _same(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)


def _moved(trial: Trial, move: Applied, aggregate: Aggregate, devices: list[int]) -> Iterator[str]:
    """Compare a step of plain SGD with what the sum says; other optimisers keep a state of their own."""
    learning: Any = trial.loaded.scenario.learning
    if learning.algorithm not in BUILT_IN[ALGORITHMS]:
        return  # what a plug-in makes of a sum is its own affair
    learning = getattr(learning, "base", learning)
    if isinstance(learning, LocalContextSettings):
        changes: dict[str, Floats] = {}
        rate = 0.0
    else:
        plain = isinstance(learning.optimizer, SgdSettings) and learning.optimizer.momentum == 0.0
        noisy = isinstance(trial.loaded.scenario.privacy, CentralGaussian)
        if not plain or noisy or not isinstance(learning.schedule, ConstantSchedule):
            return
        weight, kept = _weight_and_shrinkage(trial, aggregate, devices)
        with np.errstate(all="ignore"):
            changes = _changes(learning, aggregate, weight, kept)
        rate = learning.learning_rate
    for name, before in move.before.items():
        change = changes.get(name)
        what = f"after round {move.round_number} '{name}' of the model"
        if change is not None:
            yield from _stepped(what, before, move.after[name], rate * change)
        elif not np.array_equal(_untouched(learning, name, before, aggregate), move.after[name]):
            yield f"{what} is not what it has to be"


def _stepped(what: str, before: Array, after: Array, step: Floats) -> Iterator[str]:
    start = before.astype(np.float64)
    with np.errstate(all="ignore"):
        room = 8 * unit(after) * (np.abs(start) + np.abs(step))
        expected = start + step
    yield from differences(what, expected, after.astype(np.float64), room)


def _weight_and_shrinkage(trial: Trial, aggregate: Aggregate, devices: list[int]) -> tuple[float, float]:
    """Return what the updates of a sum weigh, and which part of their mean is kept."""
    privacy = trial.loaded.scenario.privacy
    if not isinstance(privacy, PersonalGaussian):
        return aggregate.weight, 1.0
    least = min(tier.noise_multiplier for tier in privacy.tiers)
    weight = 0.0
    for device in devices:
        tier = next(tier for tier in privacy.tiers if tier.up_to is None or trial.held[device] <= tier.up_to)
        weight += (least / tier.noise_multiplier) ** 2 if least else 1.0
    return weight, 1.0 - privacy.shrinkage


def _changes(learning: Any, aggregate: Aggregate, weight: float, kept: float) -> dict[str, Floats]:
    """Return what a method makes of a sum: the change of each array of the model at a rate of 1."""
    sums = {name: array.astype(np.float64) for name, array in aggregate.sums.items()}
    divisor = weight
    if isinstance(learning, FedMFSettings):
        divisor = 1.0  # the gradients of all devices together
    elif isinstance(learning, LIPMSettings):
        attention = float(sums.pop(ATTENTION)[0]) / learning.attention_scale
        least = math.exp(-2.0 * learning.attention_bound) * weight
        divisor = min(max(attention, least), weight)
    elif isinstance(learning, SharedFactorizationSettings):
        sums = {ROWS: sums[ROWS]}
    found = {name: array * (kept / divisor) for name, array in sums.items()}
    if ROWS in found:
        table = found.pop(ROWS)
        if isinstance(learning, FedNCFSettings):
            return {**found, GMF: table[:, : learning.gmf_factors], MLP: table[:, learning.gmf_factors :]}
        found[FACTORS] = table[:, : learning.factors]
        if learning.item_bias:
            found[BIAS] = table[:, learning.factors]
    return found


def _untouched(learning: Any, name: str, before: Array, aggregate: Aggregate) -> Array:
    """Return what becomes of an array of the model that no mean of updates changes."""
    if isinstance(learning, FedRecSettings) and name == UPDATES:
        return np.asarray(before + 1)
    if isinstance(learning, SharedFactorizationSettings) and name == USER_TABLE:
        table = before.copy()
        rate = before.dtype.type(learning.user_learning_rate)
        for user, row in zip(aggregate.sums[USERS].tolist(), aggregate.sums[USER_ROW], strict=True):
            table[user] += rate * row
        return table
    return before
