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
from edge.core.rng import hashed_bits_scalar
from edge.learning.base import Problem
from edge.learning.methods.colr import BASIS, CoLR, CoLRSettings
from edge.learning.methods.dp_mf import HESSIAN, MOMENT, DPMFSettings
from edge.learning.methods.fcf import USER_GRAM, FCFSettings
from edge.learning.methods.fedavg_mf import USER_ROW, USER_TABLE, USERS, SharedFactorizationSettings
from edge.learning.methods.fedmf import FedMFSettings
from edge.learning.methods.fedncf.local import GMF, MLP
from edge.learning.methods.fedncf.settings import FedNCFSettings
from edge.learning.methods.fedrap import FedRAPSettings
from edge.learning.methods.fedrec import UPDATES, FedRecSettings
from edge.learning.methods.fedrecon.algorithm import BIAS, FACTORS
from edge.learning.methods.gpfedrec import GRAPH, TABLE, GPFedRec, GPFedRecSettings
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
    if isinstance(learning, GPFedRecSettings):
        yield from _propagated(learning, move, aggregate)
        return
    if isinstance(learning, DPMFSettings):
        yield from _minimised(learning, move, aggregate)
        return
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
            if isinstance(learning, CoLRSettings):
                changes = _widened(learning, changes, move.before, aggregate.clients, kept)
            if isinstance(learning, FCFSettings):
                changes = _with_all_items(learning, changes, move.before[FACTORS])
        rate = learning.learning_rate
    for name, before in move.before.items():
        change = changes.get(name)
        what = f"after round {move.round_number} '{name}' of the model"
        if change is not None:
            yield from _stepped(what, before, move.after[name], rate * change)
        elif not np.array_equal(_untouched(learning, name, before, aggregate), move.after[name]):
            yield f"{what} is not what it has to be"


def _propagated(learning: GPFedRecSettings, move: Applied, aggregate: Aggregate) -> Iterator[str]:
    """Compare a step of GPFedRec with one by the matrix of its graph, applied row by row in float64."""
    before = move.before
    algorithm = GPFedRec(learning, Problem(n_items=len(before[TABLE]), n_users=len(before[USER_TABLE])))
    users = aggregate.sums[USERS]
    tables = before[TABLE].ravel() + aggregate.sums[USER_ROW]
    matrix = algorithm.graph(tables, users, int(before[GRAPH][0])).astype(np.float64)
    averaged = tables.astype(np.float64)
    for _ in range(learning.hops):
        averaged = np.array([sum(w * row for w, row in zip(line, averaged, strict=True)) for line in matrix])
    expected = {name: array.astype(np.float64) for name, array in before.items()}
    mean = averaged.mean(axis=0).reshape(before[TABLE].shape)
    expected[TABLE] = expected[TABLE] + learning.learning_rate * (mean - expected[TABLE])
    expected[USER_TABLE][users] = averaged
    for name, array in expected.items():
        what = f"after round {move.round_number} '{name}' of the model"
        if name == GRAPH:
            if hashed_bits_scalar(int(before[GRAPH][0]), 1) >> 1 != int(move.after[GRAPH][0]):
                yield f"{what} is not what it has to be"
            continue
        after = move.after[name].astype(np.float64)
        room = 64 * unit(move.after[name]) * (np.abs(array) + np.abs(tables).max(initial=1.0))
        yield from differences(what, array, after, room)


def _minimised(learning: DPMFSettings, move: Applied, aggregate: Aggregate) -> Iterator[str]:
    """Compare what DP-MF has added up with the sum, and its items, one by one, with their minimisers."""
    what = f"after round {move.round_number} "
    k, reach = learning.factors, (learning.highest - learning.lowest) / 2
    rows = aggregate.sums[ROWS].astype(np.float64)
    width = k * (k + 1) // 2
    for name, change in ((HESSIAN, rows[:, :width]), (MOMENT, reach * rows[:, width:])):
        yield from _stepped(f"{what}'{name}' of the model", move.before[name], move.after[name], change)
    upper = np.triu_indices(k)
    found = move.after[FACTORS].astype(np.float64)
    expected = np.empty_like(found)
    for item, (triangle, moment) in enumerate(zip(move.after[HESSIAN], move.after[MOMENT], strict=True)):
        system = np.zeros((k, k))
        system[upper] = triangle
        system = np.triu(system, 1).T + system + learning.regularization * np.eye(k)
        expected[item] = np.linalg.lstsq(system, moment, rcond=None)[0]
    room = 64 * unit(move.after[FACTORS]) * (1.0 + np.abs(expected))
    yield from differences(f"{what}'{FACTORS}' of the model", expected, found, room)


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
    if ROWS in found and not isinstance(learning, CoLRSettings):
        table = found.pop(ROWS)
        if isinstance(learning, FedNCFSettings):
            return {**found, GMF: table[:, : learning.gmf_factors], MLP: table[:, learning.gmf_factors :]}
        found[FACTORS] = table[:, : learning.factors]
        if getattr(learning, "item_bias", False):
            found[BIAS] = table[:, learning.factors]
    return found


def _widened(
    learning: CoLRSettings, changes: dict[str, Floats], before: Mapping[str, Array], clients: int, kept: float
) -> dict[str, Floats]:
    """Return the change of CoLR's items, of a mean in the subspace that the model before names."""
    narrow = learning.rank + learning.item_bias
    rows = changes[ROWS][:, :narrow]
    if learning.average == "touched":
        share = changes[ROWS][:, narrow:]
        rows = np.divide(kept * rows, share, out=np.zeros_like(rows), where=share > 0.01 * kept / clients)
    basis = CoLR(learning, Problem(n_items=len(rows))).basis(before).astype(np.float64)
    scale = math.sqrt(learning.factors / learning.rank)
    found = {FACTORS: scale * rows[:, : learning.rank] @ basis}
    return {**found, BIAS: rows[:, learning.rank]} if learning.item_bias else found


def _with_all_items(learning: FCFSettings, changes: dict[str, Floats], before: Array) -> dict[str, Floats]:
    """Return the change of FCF's items: of a sum it holds the rated ones' part, and the users' x xᵀ."""
    k, items = learning.factors, before.astype(np.float64)
    upper = np.zeros((k, k))
    upper[np.triu_indices(k)] = changes[USER_GRAM]
    of_users = upper + np.triu(upper, 1).T
    return {FACTORS: changes[FACTORS] - items @ of_users - learning.item_regularization * items}


def _untouched(learning: Any, name: str, before: Array, aggregate: Aggregate) -> Array:
    """Return what becomes of an array of the model that no mean of updates changes."""
    if isinstance(learning, FedRecSettings | FedRAPSettings) and name == UPDATES:
        return np.asarray(before + 1)
    if isinstance(learning, CoLRSettings) and name == BASIS:
        return np.array([hashed_bits_scalar(int(before[0]), 1) >> 1], np.int64)
    if isinstance(learning, SharedFactorizationSettings) and name == USER_TABLE:
        table = before.copy()
        rate = before.dtype.type(learning.user_learning_rate)
        for user, row in zip(aggregate.sums[USERS].tolist(), aggregate.sums[USER_ROW], strict=True):
            table[user] += rate * row
        return table
    return before
