"""Accumulators for robust rules and norm bounds: updates held one by one, or refused above a norm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.schema import ScenarioSettings
from edge.core.errors import RemoteProtocolError
from edge.learning.robust_rules import Coordinatewise, Krum, Matrix, Rule, krum_choice, middle
from edge.learning.updates import Accumulator, Aggregate, Array, ClientUpdate, Layout, RowTable, UpdateBatch

_ROUNDING = 2.0**-53
BLOCK = 1 << 22
"""Numbers that a rule looks at together."""
Ids = npt.NDArray[np.int64]


def norm_of(arrays: Mapping[str, Array]) -> float:
    """Return the L2 norm of all real numbers of an update together; infinite where its square is."""
    with np.errstate(over="ignore"):
        flat = (
            array.ravel().astype(np.float64, copy=False)
            for array in arrays.values()
            if array.dtype.kind == "f"
        )
        return math.sqrt(sum(float(values.dot(values)) for values in flat))


def norms_of(batch: UpdateBatch) -> npt.NDArray[np.float64]:
    """Return :func:`norm_of` of every update of a batch but for rounding, float64 [n]."""
    squares = np.zeros(len(batch))
    with np.errstate(over="ignore"):
        for array in batch.stacked.values():
            if array.dtype.kind == "f":
                flat = array.reshape(len(batch), -1)
                squares += np.einsum("ij,ij->i", flat, flat, dtype=np.float64)
        for array in batch.ragged.values():
            if array.dtype.kind == "f":
                flat = array.reshape(len(array), -1)
                sums = np.append(np.einsum("ij,ij->i", flat, flat, dtype=np.float64), 0.0)
                squares += np.where(
                    np.diff(batch.offsets) > 0, np.add.reduceat(sums, batch.offsets[:-1]), 0.0
                )
        return np.sqrt(squares)


class PassedOn(Accumulator):
    """An accumulator in front of another, which everything is passed on to but what a subclass does itself.

    Parameters
    ----------
    accumulator : the other one.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self.groups = accumulator.groups

    def in_groups(self, groups: int) -> None:
        """Set the number of groups; before anything is added."""
        self.groups = groups
        self._accumulator.in_groups(groups)

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        return self._accumulator.layout

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        self._accumulator.check(arrays)

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch."""
        return self._accumulator.check_many(batch)

    def add(self, update: ClientUpdate, client: int) -> None:
        """Add one update, that of ``client``."""
        self._accumulator.add(update, client)

    def add_many(self, batch: UpdateBatch, places: Ids, clients: Ids) -> None:
        """Add the updates at ``places`` of a batch in that order."""
        self._accumulator.add_many(batch, places, clients)

    def partial(self) -> Any:
        """Return the sums of the groups that have any."""
        return self._accumulator.partial()

    def join(self, partial: Any) -> None:
        """Take over the sums of other groups."""
        self._accumulator.join(partial)

    def result(self) -> Aggregate:
        """Return what the accumulator makes of the updates so far."""
        return self._accumulator.result()


class BoundedUpdates(PassedOn):
    """An accumulator that refuses updates above a norm.

    Parameters
    ----------
    accumulator : takes the others.
    norm_bound : largest L2 norm of an update times its weight, over all its arrays.
    """

    def __init__(self, accumulator: Accumulator, norm_bound: float) -> None:
        super().__init__(accumulator)
        self._norm_bound = norm_bound

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``), or are above the bound.

        The norm is given the room that rounding needs here: what a device has clipped always passes.
        """
        super().check(arrays)
        norm = norm_of(arrays)
        room = (sum(array.size for array in arrays.values()) + 16) * _ROUNDING
        if norm > self._norm_bound * (1.0 + room):
            raise RemoteProtocolError(
                "malformed-update", f"an update has the norm {norm:g}, above the bound {self._norm_bound:g}"
            )

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch.

        That of an update refuses what is above the bound by more than rounding of either norm can explain.
        """
        if not super().check_many(batch):
            return False
        return bool((norms_of(batch) <= self._norm_bound * (1.0 + 8 * _ROUNDING)).all())


class HeldUpdates(PassedOn):
    """Makes an aggregate by a rule instead of a sum.

    The rule is given the updates by group, and in order of arrival within a group.

    Every update counts once: it is divided by the weight that it came with. What comes out is a sum all the
    same, the rule's estimate times the number of clients, over a weight of 1 each, so that a method's server
    update works as it does on a mean. For tables of which each update names some rows, a coordinate-wise rule
    is over the clients that sent the row, and the estimate is multiplied by their number.

    Parameters
    ----------
    accumulator : of the method, empty; it says how updates are laid out.
    rule : what to take for the mean.
    min_senders : a row that fewer clients sent is left as it is.
    """

    def __init__(self, accumulator: Accumulator, rule: Rule, min_senders: int = 1) -> None:
        super().__init__(accumulator)
        self._rule = rule
        self._min_senders = min_senders
        self._held: list[list[tuple[ClientUpdate, int]]] = []
        """Updates and clients of each group."""
        self.in_groups(accumulator.groups)

    def in_groups(self, groups: int) -> None:
        """Set the number of groups; before anything is added."""
        super().in_groups(groups)
        self._held = [[] for _ in range(groups)]

    def add(self, update: ClientUpdate, client: int) -> None:
        """Hold one update, that of ``client``."""
        self._held[client % self.groups].append((update, client))

    # Each is held by itself.
    add_many = Accumulator.add_many

    def partial(self) -> Any:
        """Return the updates of the groups."""
        return self._held

    def join(self, partial: Any) -> None:
        """Hold the updates of other groups, too."""
        for own, others in zip(self._held, partial, strict=True):
            own.extend(others)

    def result(self) -> Aggregate:
        """Return what the rule makes of the updates so far; called once."""
        held = [one for group in self._held for one in group]
        examples = sum(update.examples for update, _ in held)
        losses = 0.0
        for update, _ in held:
            losses += update.loss * update.examples
        loss = losses / examples if examples else float("nan")
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is noticed when it is applied
            single = [_weighing_one(update) for update, _ in held]
            if isinstance(self._rule, Krum):
                chosen = self._chosen(single, [client for _, client in held], self._rule)
                return dataclasses.replace(chosen, clients=len(single), examples=examples, loss=loss)
            sums = self._estimates([update.arrays for update in single], self._rule)
        return Aggregate(sums, float(len(single)), len(single), examples, loss)

    def _chosen(self, updates: list[ClientUpdate], clients: list[int], rule: Krum) -> Aggregate:
        """Return the sum of the updates that Krum takes."""
        n = len(updates)
        gram = np.zeros((n, n))
        for block in self._blocks([update.arrays for update in updates]):
            gram += block @ block.T
        false = rule.false(n)
        for index in krum_choice(gram, false, rule.kept(n)).tolist():
            self._accumulator.add(updates[index], clients[index])
        return self._accumulator.result()

    def _blocks(self, updates: list[Mapping[str, Array]]) -> Iterator[Matrix]:
        """Yield all updates side by side, float64 [clients, columns], some of the columns at a time."""
        n = max(len(updates), 1)
        for name in self.layout.dense:
            for columns in _columns(updates, name, BLOCK // n):
                yield np.ascontiguousarray(columns.T, dtype=np.float64)
        for table in self.layout.tables:
            sent = _Sent(table, updates)
            step = max(BLOCK // (n * max(table.width, 1)), 1)
            for first in range(0, table.rows, step):
                low, high = np.searchsorted(sent.index, (first, first + step))
                block = np.zeros((n, min(step, table.rows - first), table.width))
                block[sent.sender[low:high], sent.index[low:high] - first] = sent.rows[low:high]
                yield block.reshape(n, -1)

    def _estimates(self, updates: list[Mapping[str, Array]], rule: Coordinatewise) -> dict[str, Array]:
        n = len(updates)
        sums: dict[str, Array] = {}
        for name, (dtype, shape) in self.layout.dense.items():
            flat: Array = np.zeros(int(np.prod(shape, dtype=np.int64)), dtype)
            done = 0
            for columns in _columns(updates, name, BLOCK // max(n, 1)):
                flat[done : done + len(columns)] = middle(columns, rule.cut(n)) * n
                done += len(columns)
            sums[name] = flat.reshape(shape)
        for table in self.layout.tables:
            sums[table.name] = self._table(table, updates, rule)
        return sums

    def _table(self, table: RowTable, updates: list[Mapping[str, Array]], rule: Coordinatewise) -> Array:
        sums: Array = np.zeros((table.rows, table.width), table.dtype)
        if not updates:
            return sums
        sent = _Sent(table, updates)
        numbers, starts, counts = np.unique(sent.index, return_index=True, return_counts=True)
        for senders in np.unique(counts).tolist():
            if senders < self._min_senders:
                continue
            # Rows that were sent by equally many clients are looked at together.
            alike = np.flatnonzero(counts == senders)
            step = max(BLOCK // (senders * max(table.width, 1)), 1)
            for first in range(0, len(alike), step):
                part = alike[first : first + step]
                places = starts[part][:, None] + np.arange(senders)
                values = np.ascontiguousarray(sent.rows[places].transpose(0, 2, 1))
                sums[numbers[part]] = middle(values, rule.cut(senders)) * senders
        return sums


class _Sent:
    """The rows of one table that came in: ``index`` [N] in order, ``sender`` [N], ``rows`` [N, width]."""

    def __init__(self, table: RowTable, updates: list[Mapping[str, Array]]) -> None:
        lengths = [len(arrays[table.index]) for arrays in updates]
        index = np.concatenate([arrays[table.index] for arrays in updates] or [np.zeros(0, np.int64)])
        order = np.argsort(index, kind="stable")
        self.index: Ids = index[order].astype(np.int64)
        self.sender: Ids = np.repeat(np.arange(len(updates)), lengths)[order]
        rows = [arrays[table.name] for arrays in updates] or [np.zeros((0, table.width), table.dtype)]
        self.rows: Array = np.concatenate(rows)[order]


def _weighing_one(update: ClientUpdate) -> ClientUpdate:
    """Return the update divided by its weight; one that weighs nothing is taken as it is."""
    if update.weight == 1.0:
        return update
    weight = update.weight if update.weight > 0 else 1.0
    arrays = {
        name: array / array.dtype.type(weight) if array.dtype.kind == "f" else array
        for name, array in update.arrays.items()
    }
    return update._replace(arrays=arrays, weight=1.0)


def _columns(updates: list[Mapping[str, Array]], name: str, step: int) -> Iterator[Array]:
    """Yield a whole array of all updates, coordinate by coordinate: [coordinates, clients], new arrays."""
    if not updates:
        return
    flat = [arrays[name].ravel() for arrays in updates]
    step = max(step, 1)
    for first in range(0, len(flat[0]), step):
        yield np.stack([values[first : first + step] for values in flat], axis=-1)


def aggregating(accumulator: Accumulator, scenario: ScenarioSettings) -> Accumulator:
    """Return what updates in the clear go into: the method's empty accumulator, or one around it."""
    accumulator.in_groups(scenario.compute.sum_groups)
    section = scenario.aggregation
    rule = section.build()
    if rule is not None:
        accumulator = HeldUpdates(accumulator, rule, getattr(section, "min_senders", 1))
    bound = section.norm_bound
    if isinstance(scenario.privacy, CentralGaussian):
        bound = scenario.privacy.clip_norm  # other noise comes on top of what was clipped
    return accumulator if bound is None else BoundedUpdates(accumulator, bound)
