"""Exact sums: what a round applied is the sum of its survivors' updates, and the model moved by it once.

The sums are added up here, from the updates as devices sent them (in the clear) or as they were before they
were hidden (under masks or encryption); whose they are is what the table of device rounds says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.schema import Scenario
from coordinator.sums.encrypted import EncryptedSums
from coordinator.sums.masked import MaskedSums
from coordinator.swarm.record import Applied, Input
from coordinator.swarm.trial import Trial
from coordinator.swarm.views import rows
from edge.learning.base import Aggregate, Array
from edge.learning.fedrecon import BIAS, FACTORS, ITEMS, ROWS
from edge.learning.server_optimizers import ConstantSchedule, SgdSettings
from edge.messages import Report
from edge.secagg.config import CountPart, RealPart
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
    return {number: sorted(devices) for number, devices in found.items()}


@dataclass(slots=True)
class _Expected:
    """The sum of the survivors' updates: by name the sum and by how much one made in floats may differ."""

    sums: dict[str, Floats]
    room: dict[str, Floats]
    clients: int = 0
    weight: float = 0.0
    examples: int = 0

    @classmethod
    def like(cls, aggregate: Aggregate) -> _Expected:
        """Return the sum of nobody's updates, of the shapes of ``aggregate``."""
        shapes = {name: array.shape for name, array in aggregate.sums.items()}
        sums = {name: np.zeros(shape) for name, shape in shapes.items()}
        return cls(sums, {name: np.zeros(shape) for name, shape in shapes.items()})

    def compare(self, aggregate: Aggregate) -> Iterator[str]:
        """Yield where ``aggregate`` is another."""
        told = {
            "number of devices": (self.clients, aggregate.clients),
            "weight": (self.weight, aggregate.weight),
            "number of examples": (self.examples, aggregate.examples),
        }
        for what, (expected, got) in told.items():
            if not math.isclose(expected, got, rel_tol=1e-12):
                yield f"the {what} of the survivors is {expected:g}, that of the sum {got:g}"
        for name, array in aggregate.sums.items():
            # What each addition rounds: half a unit of what has been added so far.
            room = self.room[name] + _unit(array) * np.abs(self.sums[name])
            yield from _differences(f"the sum of '{name}'", self.sums[name], array.astype(np.float64), room)


def exact_sums(trial: Trial) -> Iterator[str]:
    """Check that every completed round made the sum of its survivors' updates, of all and of no others."""
    phase_of = {row["round"]: row["phase"] for row in rows(trial.tables, "rounds", "round", "phase")}
    inputs: defaultdict[int, dict[int, Input]] = defaultdict(dict)
    for one in trial.record.inputs:
        if one.reason is Reason.NONE:
            inputs[one.round_number].setdefault(one.device, one)
    for number, survivors in sorted(survivors_of(trial).items()):
        made = trial.record.sums.get(number, [])
        if len(made) != 1:
            yield f"round {number} was completed and {len(made)} sums were made in it"
            continue
        missing = [device for device in survivors if device not in inputs[number]]
        if missing:
            yield f"round {number}: {missing} are said to be in the sum, and no update of theirs was accepted"
            continue
        taken = [inputs[number][device] for device in survivors]
        expected = _Expected.like(made[0].aggregate)
        _add_reports(expected, [one.report for one in taken if one.report is not None])
        hidden = [one.device for one in taken if one.report is None]
        found: list[str] = []
        if hidden:
            found += _add_hidden(expected, trial, phase_of[number], number, hidden)
        found += expected.compare(made[0].aggregate)
        yield from (f"round {number}: {sentence}" for sentence in found)


def _add_reports(expected: _Expected, reports: list[Report]) -> None:
    expected.clients += len(reports)
    expected.weight += math.fsum(report.weight for report in reports)
    expected.examples += sum(report.examples for report in reports)
    for name, total in expected.sums.items():
        size = np.zeros(total.shape)
        for report in reports:
            index = report.arrays.get(ITEMS)
            place: Any = slice(None) if index is None else index
            with np.errstate(all="ignore"):
                total[place] += report.arrays[name]
                size[place] += np.abs(report.arrays[name])
        eps = max((_unit(report.arrays[name]) for report in reports), default=0.0)
        expected.room[name] += (len(reports) + 1) * eps * size


def _add_hidden(
    expected: _Expected, trial: Trial, phase: str, number: int, devices: list[int]
) -> Iterator[str]:
    """Add the updates that devices have hidden, and yield what is wrong with the sum of these alone."""
    sums, made = trial.secure_sums[phase], trial.record.sums[number][0]
    assert sums is not None, "updates are hidden where they are summed securely"
    missing = [device for device in devices if (number, device) not in trial.record.vectors]
    if missing:
        yield f"the updates of {missing} are said to be in the sum, and they never gave one"
        return
    vectors = [trial.record.vectors[number, device] for device in devices]
    # Python's whole numbers: nothing overflows unless the ring says so.
    total = sum((vector.astype(object) for vector in vectors), np.zeros(len(vectors[0]), dtype=object))
    if isinstance(sums, MaskedSums):
        modulus = 2**sums.config.bits
        if made.survivors is None or made.total is None:
            yield "there is no sum in the ring"
            return
        if devices != sorted(made.survivors):
            yield f"the survivors are {devices} in the table, and {made.survivors} in the protocol"
        wrong = [
            i for i, (a, b) in enumerate(zip(total % modulus, made.total.tolist(), strict=True)) if a != b
        ]
        if wrong:
            yield f"the sum modulo 2^{sums.config.bits} is wrong in {len(wrong)} of {len(total)} elements"
        total = np.array([(value + modulus // 2) % modulus - modulus // 2 for value in total], dtype=object)
        units = {name: 1.0 / quantizer.scale for name, quantizer in sums.config.quantizers.items()}
    else:
        assert isinstance(sums, EncryptedSums)
        exact = total.astype(np.float64)
        if not any(
            np.array_equal(exact, one[: len(exact)]) for one in trial.record.decrypted.get(number, [])
        ):
            yield "no decrypted sum that was accepted is that of the survivors"
        reals = (part for part in sums.config.parts if isinstance(part, RealPart))
        units = {part.name: part.clip / sums.config.levels for part in reals}
    _decode(expected, sums.config.parts, total, units)


def _decode(
    expected: _Expected, parts: Sequence[RealPart | CountPart], total: Array, units: Mapping[str, float]
) -> None:
    """Add a sum of whole numbers to what is expected; an element of a real part counts ``units``."""
    start = 0
    for part in parts:
        values = total[start : start + part.length]
        start += part.length
        if part.name in expected.sums:
            shape = expected.sums[part.name].shape
            decoded = (values.astype(np.float64) * units[part.name]).reshape(shape)
            expected.sums[part.name] += decoded
            expected.room[part.name] += 1e-6 * np.abs(decoded) + units[part.name] * 1e-3
        elif part.name == EXAMPLES:
            expected.examples += int(values[0])
    weight, contributors = total[start : start + 2].tolist()
    expected.weight += weight
    expected.clients += contributors


def _unit(array: Array) -> float:
    """Return the distance from 1 to the next number of an array's dtype."""
    return float(np.spacing(array.dtype.type(1)))


def _differences(what: str, expected: Floats, got: Floats, room: Floats) -> Iterator[str]:
    with np.errstate(all="ignore"):
        beyond = np.abs(expected - got) > room
        # A sum that overflows has no value to compare.
        beyond &= np.isfinite(expected) & np.isfinite(got)
    if beyond.any():
        place = tuple(int(index) for index in np.argwhere(beyond)[0])
        yield (
            f"{what} is wrong in {int(np.count_nonzero(beyond))} of {beyond.size} elements: "
            f"at {list(place)} it is {float(got[place])!r}, and not {float(expected[place])!r}"
        )


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
        room = (8 * _unit(move.after[name])) * (np.abs(before) + np.abs(learning.learning_rate * change))
        what = f"after round {move.round_number} '{name}' of the model"
        yield from _differences(what, expected, after, room)
