"""Exact sums: what a round applied is the sum of its survivors' updates, or what a rule makes of them.

The sums are added up here, from the updates as devices sent them (in the clear) or as they were before they
were hidden (under masks or encryption); whose they are is what the table of device rounds says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator.engine.secure_sums import SecureSums
from coordinator.scenario.aggregation_section import KrumRule, MeanRule, MedianRule, TrimmedMeanRule
from coordinator.secure.sums.encrypted import EncryptedSums
from coordinator.secure.sums.masked import MaskedSums
from coordinator.swarm.invariants.rules import coordinatewise, single, taken_by_krum
from coordinator.swarm.record import Input
from coordinator.swarm.trial import Trial, rows
from edge.core.vocabulary import Outcome, Reason, RoundOutcome, label
from edge.learning.methods.fedavg_mf import USER_ROW, USERS
from edge.learning.updates import ITEMS, ROWS, Aggregate, Array
from edge.secagg.config import RealPart
from edge.secagg.inputs import EXAMPLES
from edge.wire.messages import Report

Floats = npt.NDArray[np.float64]


class Real(NamedTuple):
    """Real numbers of an input or a sum, [length], and what one ``unit`` of their encoding stands for."""

    values: Floats
    unit: float


class Decoded(NamedTuple):
    """One input, or a sum of some: the arrays by name, and the counts beside them."""

    reals: dict[str, Real]
    examples: int
    weight: int
    contributors: int


def decode(sums: SecureSums, encoded: npt.NDArray[Any]) -> Decoded:
    """Return what an input to ``sums`` stands for, or a sum of inputs.

    Parameters
    ----------
    sums : how updates are summed.
    encoded : whole numbers [L], of a sum beyond the ring as they are.
    """
    if isinstance(sums, MaskedSums):
        modulus, parts = 2**sums.config.bits, sums.config.parts
        units = {name: 1.0 / quantizer.scale for name, quantizer in sums.config.quantizers.items()}
        whole = [(int(value) + modulus // 2) % modulus - modulus // 2 for value in encoded]
    else:
        assert isinstance(sums, EncryptedSums)
        parts = sums.config.parts
        reals = (part for part in parts if isinstance(part, RealPart))
        units = {part.name: part.clip / sums.config.levels for part in reals}
        whole = [int(value) for value in encoded]
    found, examples, start = {}, 0, 0
    for part in parts:
        values = whole[start : start + part.length]
        start += part.length
        if isinstance(part, RealPart):
            found[part.name] = Real(np.array(values, np.float64) * units[part.name], units[part.name])
        elif part.name == EXAMPLES:
            examples = values[0]
    weight, contributors = whole[start : start + 2]
    return Decoded(found, examples, weight, contributors)


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
    sure: bool = True
    """Whether the sums are known; not where rounding decides whose updates a rule takes."""

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
        for name, array in aggregate.sums.items() if self.sure else ():
            if self.sums[name].shape != array.shape:
                yield f"the sum of '{name}' is {list(array.shape)}, not {list(self.sums[name].shape)}"
                continue
            # What each addition rounds: half a unit of what has been added so far.
            room = self.room[name] + unit(array) * np.abs(self.sums[name])
            yield from differences(f"the sum of '{name}'", self.sums[name], array.astype(np.float64), room)


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
        # By group, and in the order in which they came within a group.
        taken = [one for device, one in inputs[number].items() if device in survivors]
        taken.sort(key=lambda one: one.device % trial.loaded.scenario.compute.sum_groups)
        expected = _Expected.like(made[0].aggregate)
        reports = [one.report for one in taken if one.report is not None]
        rule = trial.loaded.scenario.aggregation
        if isinstance(rule, MeanRule):
            _add_reports(expected, reports)
        else:
            _estimate(expected, reports, rule)
        if USERS in expected.sums:
            expected.sums[USERS] = np.array([float(one.device) for one in taken])
            expected.sums[USER_ROW] = np.array([report.arrays[USER_ROW] for report in reports], np.float64)
            expected.room |= {name: np.zeros_like(expected.sums[name]) for name in (USERS, USER_ROW)}
        hidden = sorted(one.device for one in taken if one.report is None)
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
        if name in (USERS, USER_ROW):
            continue  # a user's row is changed by one device, and not summed
        size = np.zeros(total.shape)
        for report in reports:
            index = report.arrays.get(ITEMS) if name == ROWS else None
            place: Any = slice(None) if index is None else index
            with np.errstate(all="ignore"):
                total[place] += report.arrays[name]
                size[place] += np.abs(report.arrays[name])
        eps = max((unit(report.arrays[name]) for report in reports), default=0.0)
        expected.room[name] += (len(reports) + 1) * eps * size


def _estimate(
    expected: _Expected, reports: list[Report], rule: MedianRule | TrimmedMeanRule | KrumRule
) -> None:
    """Expect what a robust rule makes of the updates, each of which counts once."""
    updates = [single(report) for report in reports]
    shapes = {name: total.shape for name, total in expected.sums.items()}
    expected.clients += len(reports)
    expected.examples += sum(report.examples for report in reports)
    if isinstance(rule, KrumRule):
        chosen = taken_by_krum(updates, shapes, rule)
        taken = [reports[place]._replace(arrays=updates[place], weight=1.0) for place in chosen.places]
        clients, examples = expected.clients, expected.examples
        _add_reports(expected, taken)
        expected.clients, expected.examples, expected.sure = clients, examples, chosen.sure
        return
    expected.weight += len(reports)
    estimates, sizes = coordinatewise(updates, shapes, rule)
    for name, estimate in estimates.items():
        expected.sums[name] += estimate
        eps = max((unit(update[name]) for update in updates), default=0.0)
        expected.room[name] += (len(reports) + 4) * eps * sizes[name]


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
    else:
        assert isinstance(sums, EncryptedSums)
        exact = total.astype(np.float64)
        if not any(
            np.array_equal(exact, one[: len(exact)]) for one in trial.record.decrypted.get(number, [])
        ):
            yield "no decrypted sum that was accepted is that of the survivors"
    decoded = decode(sums, total)
    for name, real in decoded.reals.items():
        if name in expected.sums:
            expected.sums[name] += real.values.reshape(expected.sums[name].shape)
            room = 1e-6 * np.abs(real.values) + real.unit * 1e-3
            expected.room[name] += room.reshape(expected.sums[name].shape)
    expected.examples += decoded.examples
    expected.weight += decoded.weight
    expected.clients += decoded.contributors


def unit(array: Array) -> float:
    """Return the distance from 1 to the next number of an array's dtype."""
    return float(np.spacing(array.dtype.type(1)))


def differences(what: str, expected: Floats, got: Floats, room: Floats) -> Iterator[str]:
    """Yield where ``got`` is not what is expected, give or take ``room``."""
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
