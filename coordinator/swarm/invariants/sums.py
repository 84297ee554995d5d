"""Exact sums: what a round applied is the sum of its survivors' updates, and the model moved by it once.

The sums are added up here, from the updates as devices sent them (in the clear) or as they were before they
were hidden (under masks or encryption); whose they are is what the table of device rounds says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.schema import Scenario
from coordinator.sums.encrypted import EncryptedSums
from coordinator.sums.masked import MaskedSums
from coordinator.swarm.record import Applied, Input, Summed
from coordinator.swarm.trial import Trial
from coordinator.swarm.views import rows
from edge.learning.base import Aggregate, Array
from edge.learning.fedrecon import BIAS, FACTORS, ITEMS, ROWS
from edge.learning.server_optimizers import ConstantSchedule, SgdSettings
from edge.secagg.config import RealPart
from edge.secagg.contribution import EXAMPLES
from edge.vocabulary import Outcome, Reason, RoundOutcome, label

Floats = npt.NDArray[np.float64]


def survivors_of(trial: Trial) -> dict[int, list[int]]:
    """Return the devices whose updates each completed round says it applied, by round."""
    found: dict[int, list[int]] = {
        row["round"]: []
        for row in rows(trial.tables, "rounds", "round", "outcome")
        if row["outcome"] == label(RoundOutcome.COMPLETED)
    }
    for row in rows(trial.tables, "device_rounds", "round", "device", "outcome"):
        if row["outcome"] == label(Outcome.COMPLETED) and row["round"] in found:
            found[row["round"]].append(row["device"])
    return found


def exact_sums(trial: Trial) -> Iterator[str]:
    """Check that every completed round made the sum of its survivors' updates, of all and of no others."""
    phase_of = {row["round"]: row["phase"] for row in rows(trial.tables, "rounds", "round", "phase")}
    reports: defaultdict[int, dict[int, Input]] = defaultdict(dict)
    for one in trial.record.inputs:
        if one.reason is Reason.NONE:
            reports[one.round_number].setdefault(one.device, one)
    for number, survivors in sorted(survivors_of(trial).items()):
        made = trial.record.sums.get(number, [])
        if len(made) != 1:
            yield f"round {number} was completed and {len(made)} sums were made in it"
            continue
        if made[0].aggregate.clients != len(survivors):
            yield f"round {number} says {len(survivors)} survivors, its sum {made[0].aggregate.clients}"
        sums = trial.secure_sums[phase_of[number]]
        if sums is None:
            found = _in_the_clear(made[0].aggregate, survivors, reports[number])
        else:
            missing = [device for device in survivors if (number, device) not in trial.record.vectors]
            if missing:
                yield f"round {number} says it has the updates of {missing}, who never gave one"
                continue
            vectors = [trial.record.vectors[number, device] for device in survivors]
            # Python's whole numbers: nothing overflows unless the ring says so.
            total = sum(
                (vector.astype(object) for vector in vectors), np.zeros(len(vectors[0]), dtype=object)
            )
            if isinstance(sums, MaskedSums):
                found = _under_masks(sums, made[0], survivors, total)
            else:
                assert isinstance(sums, EncryptedSums)
                found = _encrypted(sums, made[0], trial.record.decrypted.get(number, []), total)
        yield from (f"round {number}: {sentence}" for sentence in found)


def _in_the_clear(aggregate: Aggregate, survivors: list[int], reports: Mapping[int, Input]) -> Iterator[str]:
    missing = [device for device in survivors if device not in reports]
    if missing:
        yield f"the devices {missing} are said to be in the sum, and no report of theirs was accepted"
        return
    updates = [report for device in survivors if (report := reports[device].report) is not None]
    exact = {
        "weight": (math.fsum(update.weight for update in updates), aggregate.weight),
        "number of examples": (sum(update.examples for update in updates), aggregate.examples),
    }
    for what, (expected, told) in exact.items():
        if not math.isclose(expected, told, rel_tol=1e-12):
            yield f"the {what} of the survivors is {expected:g}, that of the sum {told:g}"
    for name, got in aggregate.sums.items():
        total, size = np.zeros(got.shape), np.zeros(got.shape)
        for update in updates:
            index = update.arrays.get(ITEMS)
            place: Any = slice(None) if index is None else index
            with np.errstate(all="ignore"):
                total[place] += update.arrays[name]
                size[place] += np.abs(update.arrays[name])
        # Each addition rounds to half a unit of what has been added so far.
        room = (len(updates) + 1) * float(np.finfo(got.dtype).eps) * size
        yield from _differences(f"the sum of '{name}'", total, got.astype(np.float64), room)


def _differences(what: str, expected: Floats, got: Floats, room: Floats | float) -> Iterator[str]:
    with np.errstate(all="ignore"):
        beyond = np.abs(expected - got) > room
        # A sum that overflows has no value to compare.
        beyond &= np.isfinite(expected) & np.isfinite(got)
    if beyond.any():
        place = tuple(int(index) for index in np.argwhere(beyond)[0])
        yield (
            f"{what} is wrong in {int(np.count_nonzero(beyond))} of {beyond.size} elements: "
            f"at {list(place)} it is {got[place]!r}, and not {expected[place]!r}"
        )


def _under_masks(sums: MaskedSums, made: Summed, survivors: list[int], total: Array) -> Iterator[str]:
    if made.survivors is None or made.total is None:
        yield "there is no sum in the ring"
        return
    if sorted(survivors) != sorted(made.survivors):
        yield f"the survivors are {survivors} in the table, and {made.survivors} in the protocol"
    modulus = 2**sums.config.bits
    wrong = [i for i, (a, b) in enumerate(zip(total % modulus, made.total.tolist(), strict=True)) if a != b]
    if wrong:
        yield f"the sum modulo 2^{sums.config.bits} is wrong in {len(wrong)} of {len(total)} elements"
        return
    signed = np.array([(value + modulus // 2) % modulus - modulus // 2 for value in total], dtype=object)
    units = {name: 1.0 / quantizer.scale for name, quantizer in sums.config.quantizers.items()}
    yield from _decoded(sums.config.parts, signed, units, made.aggregate)


def _encrypted(sums: EncryptedSums, made: Summed, decrypted: list[Array], total: Array) -> Iterator[str]:
    if not any(np.array_equal(total.astype(np.float64), one[: len(total)]) for one in decrypted):
        yield "no decrypted sum that was accepted is that of the survivors"
        return
    parts = sums.config.parts
    units = {part.name: part.clip / sums.config.levels for part in parts if isinstance(part, RealPart)}
    yield from _decoded(parts, total, units, made.aggregate)


def _decoded(parts: Any, total: Array, units: Mapping[str, float], aggregate: Aggregate) -> Iterator[str]:
    """Compare a sum of whole numbers with what was made of it; a real part has ``units`` a step."""
    start = 0
    for part in parts:
        values = total[start : start + part.length].astype(np.float64)
        start += part.length
        if part.name in aggregate.sums:
            got = aggregate.sums[part.name].astype(np.float64).reshape(-1)
            expected = values * units[part.name]
            room = 1e-6 * np.abs(expected) + units[part.name] * 1e-3
            yield from _differences(f"the decoded sum of '{part.name}'", expected, got, room)
        elif part.name == EXAMPLES and int(values[0]) != aggregate.examples:
            yield f"{int(values[0])} examples are in the sum, and {aggregate.examples} were decoded"
    weight, contributors = total[start : start + 2].tolist()
    if weight != aggregate.weight:
        yield f"the weight in the sum is {weight}, {aggregate.weight:g} was decoded"
    if contributors != aggregate.clients:
        yield f"{contributors} devices are in the sum, {aggregate.clients} were decoded"


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
        if len(sums) == 1:
            yield from _moved(trial.loaded.scenario, move, sums[0].aggregate)
        current, at = move.after, f"round {move.round_number}"
    if not _same(current, trial.last):
        yield f"the model changed after {at}"


def _same(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)


def _moved(scenario: Scenario, move: Applied, aggregate: Aggregate) -> Iterator[str]:
    """Compare a step of plain SGD with the mean of the sum; other optimisers keep a state of their own."""
    learning: Any = scenario.learning
    plain = isinstance(learning.optimizer, SgdSettings) and learning.optimizer.momentum == 0.0
    noisy = isinstance(scenario.privacy, CentralGaussian)
    if not plain or noisy or not isinstance(learning.schedule, ConstantSchedule):
        return
    with np.errstate(all="ignore"):
        mean = {name: array.astype(np.float64) / aggregate.weight for name, array in aggregate.sums.items()}
    if ROWS in mean:
        table = mean.pop(ROWS)
        mean[FACTORS] = table[:, : learning.factors]
        if learning.item_bias:
            mean[BIAS] = table[:, learning.factors]
    for name, change in mean.items():
        before, after = move.before[name].astype(np.float64), move.after[name].astype(np.float64)
        expected = before + learning.learning_rate * change
        eps = float(np.finfo(move.after[name].dtype).eps)
        room = 8 * eps * (np.abs(before) + np.abs(learning.learning_rate * change))
        what = f"after round {move.round_number} '{name}' of the model"
        yield from _differences(what, expected, after, room)
