"""Sums of client updates in fixed groups of clients: a buffer a group, whatever the number of clients.

Contributions are added in the updates' own dtype, one after the other in the order in which they arrive
within a group (:class:`~edge.learning.updates.Accumulator`), and the groups in order at the close. Every sum
begins at zero, so none is ever −0, and a group or a row without contributions can be left out.

The bulk forms handle the j-th client of every group together: their rows never collide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.core.errors import RemoteProtocolError
from edge.learning.tables import NamedSums, TableRows, rows_as_elements, rows_at
from edge.learning.updates import (
    ITEMS,
    ROWS,
    Accumulator,
    Aggregate,
    Array,
    ClientUpdate,
    DenseUpdateBatch,
    Layout,
    RowTable,
    UpdateBatch,
)

VALUE_MAX: Final = 2.0**30
"""Largest absolute value of a real number in an update: sums of as many as there are devices stay finite."""
OUT_OF_RANGE: Final = "out-of-range"
"""The reason for which an update is refused that is well-formed but for the size of a number."""
WHOLE_BYTES: Final = 1 << 21
"""Tables of all groups that are no larger than this together, and so stay in the cache, are held whole."""
_FEW_VALUES: Final = 128
"""Values of an update up to which a call for each of them costs more than an index for each value."""
Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]


class _Totals:
    """The scalars every accumulator keeps, those that are rounded by group."""

    __slots__ = ("clients", "examples", "loss_sums", "weights")

    def __init__(self, groups: int) -> None:
        self.clients = 0
        self.examples = 0
        self.weights = [0.0] * groups
        self.loss_sums = [0.0] * groups

    def add(self, update: ClientUpdate, client: int) -> None:
        group = client % len(self.weights)
        self.clients += 1
        self.examples += update.examples
        self.weights[group] += update.weight
        self.loss_sums[group] += update.loss * update.examples

    def add_many(self, batch: UpdateBatch, places: Ints, clients: Ints) -> None:
        groups, examples = clients % len(self.weights), batch.examples[places]
        self.clients += len(places)
        self.examples += int(examples.sum())
        self.weights = _added(self.weights, groups, batch.weights[places])
        self.loss_sums = _added(self.loss_sums, groups, batch.losses[places] * examples)

    def partial(self) -> tuple[int, int, list[float], list[float]]:
        return self.clients, self.examples, self.weights, self.loss_sums

    def join(self, partial: tuple[int, int, list[float], list[float]]) -> None:
        clients, examples, weights, loss_sums = partial
        self.clients += clients
        self.examples += examples
        # One of the two is zero in each group.
        self.weights = [own + other for own, other in zip(self.weights, weights, strict=True)]
        self.loss_sums = [own + other for own, other in zip(self.loss_sums, loss_sums, strict=True)]

    def aggregate(self, sums: Mapping[str, Array]) -> Aggregate:
        loss = _in_order(self.loss_sums) / self.examples if self.examples else float("nan")
        return Aggregate(sums, _in_order(self.weights), self.clients, self.examples, loss)


def _added(sums: list[float], groups: Ints, values: npt.NDArray[np.float64]) -> list[float]:
    """Return the sums of groups with ``values`` [m] added in turn, each to that of its group [m]."""
    added = np.array(sums)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(added, groups, values)
    made: list[float] = added.tolist()
    return made


def _in_order(values: list[float]) -> float:
    """Return the sum from the first to the last: `sum` is compensated in some versions of Python."""
    total = 0.0
    for value in values:
        total += value
    return total


def _turns(groups: Ints) -> Places:
    """Return 0 … m − 1 in turns: the first of every group in its order, then the second of every group, ….

    ``groups`` is int64 [m].
    """
    narrow = groups.astype(np.uint16)  # so short keys are sorted by radix
    order = np.argsort(narrow, kind="stable")
    counts = np.bincount(narrow)
    turn = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.argsort(turn, kind="stable")]


def _add_rows(elements: Array, index: Places, rows: Array) -> None:
    """Add ``rows`` [n, width] to those of a table at ``index`` [n], none of which is there twice.

    ``elements`` is the table as :func:`rows_as_elements` returns it.
    """
    taken = elements.take(index)
    values = taken.view(rows.dtype).reshape(rows.shape)
    values += rows
    np.put(elements, index, taken)


def _malformed(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError("malformed-update", detail)


def _check_names(arrays: Mapping[str, Array], expected: Set[str]) -> None:
    if arrays.keys() != expected:
        wanted = ", ".join(sorted(expected))
        raise _malformed(f"an update has the arrays {wanted}, not {', '.join(sorted(arrays))}")


def _check_array(name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise _malformed(f"'{name}' is {dtype}{list(shape)}, not {array.dtype}{list(array.shape)}")
    if array.dtype.kind == "f":
        _check_values(name, array)


def _check_values(name: str, array: Array) -> None:
    # One pass without a temporary: a sum of squares bounds every value. Where it is too large, or no number,
    # and only there, every value is looked at.
    flat = array.ravel()
    with np.errstate(over="ignore"):
        if float(flat.dot(flat)) < VALUE_MAX**2 / 2:
            return
    if not np.isfinite(flat).all():
        raise _malformed(f"'{name}' holds a value that is not finite")
    if np.abs(flat).max() > VALUE_MAX:
        raise RemoteProtocolError(OUT_OF_RANGE, f"'{name}' holds a value beyond ±{VALUE_MAX:g}")


def _in_range(array: Array) -> bool:
    """Return whether :func:`_check_values` passes an array; the same of every part of one that it passes."""
    flat = array.ravel()
    if array.dtype.kind != "f" or not len(flat):
        return True
    with np.errstate(over="ignore"):
        if float(flat.dot(flat)) < VALUE_MAX**2 / 2:
            return True
    return bool(flat.max() <= VALUE_MAX and flat.min() >= -VALUE_MAX)  # neither holds of no number


def _is_array(array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    return array.dtype == dtype and array.shape == shape and _in_range(array)


class _Part(NamedTuple):
    """Rows of some clients, one client after another.

    ``groups`` and ``lengths`` are int64 [clients], ``numbers`` integers [n] and ``rows`` [n, width].
    """

    groups: Ints
    lengths: Ints
    numbers: Array
    rows: Array

    @classmethod
    def of(cls, offsets: Ints, index: Array, rows: Array, places: Ints, groups: Ints) -> _Part:
        """Return the rows of the clients at ``places`` of a batch, in order within each of ``groups``."""
        starts, lengths = offsets[places], offsets[places + 1] - offsets[places]
        if (places[1:] - places[:-1] == 1).all():
            part = slice(int(starts[0]), int(starts[-1] + lengths[-1]))
            return cls(groups, lengths, index[part], rows[part])
        order = _turns(groups)
        lengths = lengths[order]
        ends = np.cumsum(lengths)
        at = np.arange(ends[-1])
        at += np.repeat(starts[order] - ends + lengths, lengths)
        return cls(groups[order], lengths, index.take(at), rows_at(rows, at))

    def keys(self, of_groups: Ints) -> Places:
        """Return the number of each row plus that of its client in ``of_groups``, int64 [clients]."""
        keys = np.repeat(of_groups, self.lengths)
        keys += self.numbers
        return keys

    def add_to(self, elements: Array, places: Places) -> None:
        """Add the rows to those at ``places`` [n] of a table, which are others for each group."""
        bounds, first, seen = [0, *np.cumsum(self.lengths).tolist()], 0, set[int]()
        for at, group in enumerate(self.groups.tolist()):
            if group in seen:
                run = slice(bounds[first], bounds[at])
                _add_rows(elements, places[run], self.rows[run])
                first = at
                seen.clear()
            seen.add(group)
        run = slice(bounds[first], bounds[-1])
        _add_rows(elements, places[run], self.rows[run])


def _without(batch: UpdateBatch, names: Set[str]) -> UpdateBatch:
    """Return a batch of the same class without some of its arrays."""
    return dataclasses.replace(
        batch,
        stacked={name: array for name, array in batch.stacked.items() if name not in names},
        ragged={name: array for name, array in batch.ragged.items() if name not in names},
    )


class DenseAccumulator(Accumulator):
    """Adds whole arrays, in a buffer of the same shape for each group that adds anything.

    Parameters
    ----------
    shapes : dtype and shape of every array of an update, by name.
    """

    def __init__(self, shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        self._shapes = dict(shapes)
        self._sums: dict[str, Array] | None = None
        """The sum of each group, [groups, …] by name."""
        self._used = np.zeros(self.groups, np.bool_)
        self._totals = _Totals(self.groups)

    def in_groups(self, groups: int) -> None:
        """Set the number of groups; before anything is added."""
        self.groups = groups
        self._used = np.zeros(groups, np.bool_)
        self._totals = _Totals(groups)

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        return Layout(self._shapes)

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        _check_names(arrays, self._shapes.keys())
        for name, (dtype, shape) in self._shapes.items():
            _check_array(name, arrays[name], dtype, shape)

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch."""
        stacked, whole = batch.stacked, dict(self._shapes)
        if isinstance(batch, DenseUpdateBatch):
            dtype, shape = whole.pop(ROWS, (None, ()))
            rows, items = batch.ragged[ROWS], batch.ragged[ITEMS]
            if (
                dtype is None
                or shape[0] != batch.n_items
                or not _is_array(rows, dtype, (len(items), shape[1]))
            ):
                return False
        elif batch.ragged:
            return False
        return stacked.keys() == whole.keys() and all(
            _is_array(stacked[name], dtype, (len(batch), *shape)) for name, (dtype, shape) in whole.items()
        )

    def add(self, update: ClientUpdate, client: int) -> None:
        """Add one update, that of ``client``."""
        group = client % self.groups
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # a sum that overflows is noticed when it is applied
            for name, sums in self._buffers().items():
                total = sums[group, ...]
                np.add(total, update.arrays[name], out=total)
        self._used[group] = True
        self._totals.add(update, client)

    def add_many(self, batch: UpdateBatch, places: Ints, clients: Ints) -> None:
        """Add the updates at ``places`` of a batch in that order."""
        if not len(places):
            return
        groups = clients % self.groups
        with np.errstate(over="ignore", invalid="ignore"):
            for name, sums in self._buffers().items():
                if isinstance(batch, DenseUpdateBatch) and name == ROWS:
                    part = _Part.of(batch.offsets, batch.ragged[ITEMS], batch.ragged[ROWS], places, groups)
                    elements = rows_as_elements(sums.reshape(-1, sums.shape[-1]))
                    part.add_to(elements, part.keys(part.groups * batch.n_items))
                else:
                    _add_whole(sums, batch.stacked[name], places, groups)
        self._used[groups] = True
        self._totals.add_many(batch, places, clients)

    def partial(self) -> Any:
        """Return the sums of the groups that have any."""
        used = np.flatnonzero(self._used)
        sums = {name: sums[used] for name, sums in self._buffers().items()} if len(used) else {}
        return used, sums, self._totals.partial()

    def join(self, partial: Any) -> None:
        """Take over the sums of other groups."""
        used, sums, totals = partial
        for name, array in sums.items():
            self._buffers()[name][used] = array
        self._used[used] = True
        self._totals.join(totals)

    def result(self) -> Aggregate:
        """Return the sum so far."""
        used = np.flatnonzero(self._used).tolist()
        if not used:
            return self._totals.aggregate(
                {n: np.zeros(shape, dtype) for n, (dtype, shape) in self._shapes.items()}
            )
        totals = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for name, sums in self._buffers().items():
                totals[name] = total = sums[used[0], ...].copy()
                for group in used[1:]:
                    np.add(total, sums[group, ...], out=total)
        return self._totals.aggregate(totals)

    def _buffers(self) -> dict[str, Array]:
        if self._sums is None:
            self._sums = {
                name: np.zeros((self.groups, *shape), dtype) for name, (dtype, shape) in self._shapes.items()
            }
        return self._sums


def _add_whole(sums: Array, updates: Array, places: Ints, groups: Ints) -> None:
    """Add ``updates[places]`` to the sums of ``groups`` (int64 [m]), in that order within each group."""
    size = sums[0].size
    if size <= _FEW_VALUES:
        at = (groups[:, None] * size + np.arange(size)).ravel()
        np.add.at(sums.reshape(-1), at, updates[places].ravel())
        return
    # One group after the other: the sum that is added to stays in the cache.
    order = np.argsort(groups, kind="stable")
    for place, group in zip(places[order].tolist(), groups[order].tolist(), strict=True):
        total = sums[group, ...]
        np.add(total, updates[place], out=total)


class _WholeRows:
    """Sums of rows in a table for each group.

    Parameters
    ----------
    groups, table : how many, and what of.
    """

    def __init__(self, groups: int, table: RowTable) -> None:
        self._rows = table.rows
        self._sums: Array = np.zeros((groups * table.rows, table.width), table.dtype)
        self._elements = rows_as_elements(self._sums)

    def add(self, group: int, numbers: Array, rows: Array) -> None:
        """Add the rows of a client."""
        _add_rows(self._elements, np.add(numbers, group * self._rows, dtype=np.intp), rows)

    def add_many(self, part: _Part) -> None:
        """Add the rows of some clients."""
        part.add_to(self._elements, part.keys(part.groups * self._rows))

    def partial(self) -> tuple[Ints, Array]:
        """Return the groups that have sums, and their tables, [groups, rows, width]."""
        groups = self._sums.reshape(-1, self._rows, self._sums.shape[1])
        used = np.flatnonzero(groups.any(axis=(1, 2)))
        return used, groups[used]

    def join(self, partial: tuple[Ints, Array]) -> None:
        """Take over the tables of other groups."""
        used, tables = partial
        self._sums.reshape(-1, self._rows, self._sums.shape[1])[used] = tables

    def total(self) -> Array:
        """Return the sum over the groups, [rows, width]."""
        groups = self._sums.reshape(-1, self._rows, self._sums.shape[1])
        total: Array = groups[0].copy()
        for one in groups[1:]:
            np.add(total, one, out=total)
        return total


class _TouchedRows:
    """Sums of rows of which only those that are added to take memory, a row for each group that adds to it.

    A key is a row of the table and a group. Four bytes for every key there could be say which slot it has;
    they are reset by the keys that have one, so that they serve accumulator after accumulator.

    Parameters
    ----------
    groups, table : how many, and what of.
    """

    _spare: ClassVar[npt.NDArray[np.int32] | None] = None
    """A slot table free for reuse, all zero: no key has a slot. None: there is none."""
    _usual: ClassVar[int] = 4096
    """Slots that sums have room for at first: as many as the ones before needed."""

    def __init__(self, groups: int, table: RowTable) -> None:
        self._shift = (groups - 1).bit_length()
        self._bound = table.rows << self._shift
        self._n = table.rows
        self._slots: npt.NDArray[np.int32] | None = None
        self._count = 1
        """Slots in use; the first is no key's."""
        room = _TouchedRows._usual
        self._keys: Places = np.empty(room, np.intp)
        """The key of each slot, −1 of one that has none."""
        self._keys[0] = -1
        self._sums: Array = np.empty((room, table.width), table.dtype)
        self._elements = rows_as_elements(self._sums)

    def add(self, group: int, numbers: Array, rows: Array) -> None:
        """Add the rows of a client."""
        keys, table = numbers.astype(np.intp), self._table()
        keys <<= self._shift
        keys += group
        slots = table.take(keys)
        if not slots.all():
            new = np.flatnonzero(slots == 0)
            first, self._count = self._count, self._count + len(new)
            self._make_room()
            self._keys[first : self._count] = fresh = keys[new]
            self._sums[first : self._count] = 0
            slots[new] = given = np.arange(first, self._count, dtype=np.int32)
            np.put(table, fresh, given)
        _add_rows(self._elements, slots.astype(np.intp), rows)

    def add_many(self, part: _Part) -> None:
        """Add the rows of some clients."""
        keys, table = part.numbers.astype(np.intp), self._table()
        keys <<= self._shift
        keys += np.repeat(part.groups, part.lengths)
        slots = table.take(keys)
        if not slots.all():
            new = np.flatnonzero(slots == 0)
            fresh = keys[new]
            first, self._count = self._count, self._count + len(new)
            self._make_room()
            # Each row that is new gets a slot. Of a key that is new several times one stands; the others are
            # left without a key.
            given = np.arange(first, self._count, dtype=np.int32)
            np.put(table, fresh, given)
            slots[new] = standing = table.take(fresh)
            self._keys[first : self._count] = np.where(standing == given, fresh, -1)
            self._sums[first : self._count] = 0
        part.add_to(self._elements, slots.astype(np.intp))

    def total(self) -> TableRows:
        """Return the sum over the groups, and give the table of slots back."""
        slots = np.flatnonzero(self._keys[: self._count] >= 0)
        # Numbers of 63 bits, slots in the lower half, are in order of rows, and of groups for each row.
        both = (self._keys[slots] << 32) | slots
        both.sort()
        keys, slots = both >> 32, both & 0xFFFF_FFFF
        self._give_back(keys)
        rows = keys >> self._shift
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        counts = np.diff(firsts, append=len(rows))
        total = rows_at(self._sums, slots[firsts])
        for later in range(1, int(counts.max(initial=0))):
            several = np.flatnonzero(counts > later)
            total[several] += rows_at(self._sums, slots[firsts[several] + later])
        return TableRows(rows[firsts], total, self._n)

    def partial(self) -> tuple[Places, Array]:
        """Return the keys that have sums, and their rows; give the table of slots back."""
        slots = np.flatnonzero(self._keys[: self._count] >= 0)
        keys = self._keys[slots]
        self._give_back(keys)
        return keys, rows_at(self._sums, slots)

    def join(self, partial: tuple[Places, Array]) -> None:
        """Take over the rows of other keys."""
        keys, rows = partial
        first, self._count = self._count, self._count + len(keys)
        self._make_room()
        self._keys[first : self._count], self._sums[first : self._count] = keys, rows
        if self._slots is not None:
            np.put(self._slots, keys, np.arange(first, self._count, dtype=np.int32))

    def _give_back(self, keys: Places) -> None:
        table = self._table()
        np.put(table, keys, 0)
        _TouchedRows._spare, self._slots = table, None
        _TouchedRows._usual = max(self._count, 2)

    def _table(self) -> npt.NDArray[np.int32]:
        """Return the table of slots: a new one, or the spare one, with the slots that keys have by now."""
        if self._slots is None:
            table, _TouchedRows._spare = _TouchedRows._spare, None
            if table is None or len(table) != self._bound:
                table = np.zeros(self._bound, np.int32)
            slots = np.flatnonzero(self._keys[: self._count] >= 0)
            np.put(table, self._keys[slots], slots)
            self._slots = table
        return self._slots

    def _make_room(self) -> None:
        room = len(self._keys)
        if self._count > room:
            more = max(room, self._count - room)
            self._keys = np.concatenate([self._keys, np.empty(more, np.intp)])
            grown: Array = np.empty((room + more, self._sums.shape[1]), self._sums.dtype)
            grown[:room] = self._sums
            self._sums, self._elements = grown, rows_as_elements(grown)


class RowAccumulator(Accumulator):
    """Adds a few rows of one table, each update naming the rows it changes.

    Of a large table only rows that some update names take memory.

    Parameters
    ----------
    name : the array that holds an update's rows, [n, width], and the name of the sum.
    index_name : the array that holds the row numbers, [n], increasing.
    index_dtype, dtype : of the two arrays.
    rows, width : shape of the table.
    """

    def __init__(
        self,
        name: str,
        index_name: str,
        *,
        index_dtype: np.dtype[Any],
        dtype: np.dtype[Any],
        rows: int,
        width: int,
    ) -> None:
        self._table = RowTable(index_name, name, dtype, rows, width)
        self._names = frozenset((name, index_name))
        self._index_dtype = index_dtype
        self._sums: _WholeRows | _TouchedRows | None = None
        self._totals = _Totals(self.groups)

    def in_groups(self, groups: int) -> None:
        """Set the number of groups; before anything is added."""
        self.groups = groups
        self._totals = _Totals(groups)

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        return Layout({}, (self._table,))

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        of = self._table
        _check_names(arrays, self._names)
        index, rows = arrays[of.index], arrays[of.name]
        if index.ndim != 1:
            raise _malformed(f"'{of.index}' has {index.ndim} dimensions; it has 1")
        n = len(index)
        _check_array(of.index, index, self._index_dtype, (n,))
        _check_array(of.name, rows, of.dtype, (n, of.width))
        if n == 0:
            return
        if np.count_nonzero(index[1:] > index[:-1]) != n - 1:
            raise _malformed(f"'{of.index}' does not increase from row to row")
        if int(index[0]) < 0 or int(index[-1]) >= of.rows:
            raise _malformed(f"'{of.index}' names a row outside 0..{of.rows - 1}")

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch."""
        of = self._table
        if isinstance(batch, DenseUpdateBatch) or batch.stacked or batch.ragged.keys() != self._names:
            return False
        index, rows = batch.ragged[of.index], batch.ragged[of.name]
        n = len(index)
        if index.dtype != self._index_dtype or index.ndim != 1:
            return False
        if not _is_array(rows, of.dtype, (n, of.width)):
            return False
        if n == 0:
            return True
        rising = index[1:] > index[:-1]
        firsts = batch.offsets[1:-1]
        rising[firsts[(firsts > 0) & (firsts < n)] - 1] = True  # from one client to the next
        return bool(rising.all() and index.min() >= 0 and index.max() < of.rows)

    def add(self, update: ClientUpdate, client: int) -> None:
        """Add one update, that of ``client``."""
        index, rows = update.arrays[self._table.index], update.arrays[self._table.name]
        # A sum that overflows is noticed when it is applied.
        with np.errstate(over="ignore", invalid="ignore"):
            self._buffer().add(client % self.groups, index, rows)
        self._totals.add(update, client)

    def add_many(self, batch: UpdateBatch, places: Ints, clients: Ints) -> None:
        """Add the updates at ``places`` of a batch in that order."""
        if not len(places):
            return
        index, rows = batch.ragged[self._table.index], batch.ragged[self._table.name]
        with np.errstate(over="ignore", invalid="ignore"):
            self._buffer().add_many(_Part.of(batch.offsets, index, rows, places, clients % self.groups))
        self._totals.add_many(batch, places, clients)

    def _buffer(self) -> _WholeRows | _TouchedRows:
        if self._sums is None:
            of = self._table
            small = self.groups * of.rows * of.width * of.dtype.itemsize <= WHOLE_BYTES
            self._sums = (_WholeRows if small else _TouchedRows)(self.groups, of)
        return self._sums

    def partial(self) -> Any:
        """Return the sums of the groups that have any."""
        return None if self._sums is None else self._sums.partial(), self._totals.partial()

    def join(self, partial: Any) -> None:
        """Take over the sums of other groups."""
        sums, totals = partial
        if sums is not None:
            self._buffer().join(sums)
        self._totals.join(totals)

    def result(self) -> Aggregate:
        """Return the sum so far."""
        name = self._table.name
        with np.errstate(over="ignore", invalid="ignore"):
            total = self._buffer().total()
        if isinstance(total, TableRows):
            return self._totals.aggregate(NamedSums({}, {name: total}))
        return self._totals.aggregate({name: total})


class RowsAndWholeAccumulator(Accumulator):
    """Adds a few rows of one table, each update naming the rows it changes, and some whole arrays beside it.

    Parameters
    ----------
    name, index_name, index_dtype, dtype, rows, width : as for :class:`RowAccumulator`.
    whole : dtype and shape of every other array of an update, by name.
    """

    def __init__(
        self,
        name: str,
        index_name: str,
        *,
        index_dtype: np.dtype[Any],
        dtype: np.dtype[Any],
        rows: int,
        width: int,
        whole: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
    ) -> None:
        self._of_rows = frozenset((name, index_name))
        self._of_whole = frozenset(whole)
        self._rows = RowAccumulator(
            name, index_name, index_dtype=index_dtype, dtype=dtype, rows=rows, width=width
        )
        self._whole = DenseAccumulator(whole)

    def in_groups(self, groups: int) -> None:
        """Set the number of groups; before anything is added."""
        self.groups = groups
        self._rows.in_groups(groups)
        self._whole.in_groups(groups)

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        return Layout(self._whole.layout.dense, self._rows.layout.tables)

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        _check_names(arrays, self._of_rows | self._of_whole)
        self._rows.check({name: arrays[name] for name in self._of_rows})
        self._whole.check({name: arrays[name] for name in self._of_whole})

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch."""
        return self._rows.check_many(_without(batch, self._of_whole)) and self._whole.check_many(
            _without(batch, self._of_rows)
        )

    def add(self, update: ClientUpdate, client: int) -> None:
        """Add one update, that of ``client``."""
        self._rows.add(update, client)
        self._whole.add(update, client)

    def add_many(self, batch: UpdateBatch, places: Ints, clients: Ints) -> None:
        """Add the updates at ``places`` of a batch in that order."""
        self._rows.add_many(batch, places, clients)
        self._whole.add_many(batch, places, clients)

    def partial(self) -> Any:
        """Return the sums of the groups that have any."""
        return self._rows.partial(), self._whole.partial()

    def join(self, partial: Any) -> None:
        """Take over the sums of other groups."""
        rows, whole = partial
        self._rows.join(rows)
        self._whole.join(whole)

    def result(self) -> Aggregate:
        """Return the sum so far."""
        rows, whole = self._rows.result(), self._whole.result()
        return rows.beside(whole.sums)


class UserRowsAccumulator(Accumulator):
    """Adds what all clients share, and keeps a row of each client's user apart: nobody else changes it.

    Parameters
    ----------
    shared : takes the arrays that all clients change.
    row_name : the array that holds the change of a user's row, [width].
    user_name : the array that says whose row it is, int64 [1]; no row is changed twice.
    dtype, width : of a row.
    """

    def __init__(
        self, shared: Accumulator, row_name: str, user_name: str, *, dtype: np.dtype[Any], width: int
    ) -> None:
        self._shared = shared
        self._row_name, self._user_name = row_name, user_name
        self._own = frozenset((row_name, user_name))
        self._dtype, self._width = dtype, width
        self.in_groups(shared.groups)

    def in_groups(self, groups: int) -> None:
        """Set the number of groups; before anything is added."""
        self.groups = groups
        self._shared.in_groups(groups)
        self._kept: list[list[tuple[int, Array]]] = [[] for _ in range(groups)]
        """Users and rows of each group."""

    @property
    def layout(self) -> Layout:
        """How that part of an update is laid out that all clients change."""
        return self._shared.layout

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        if self._row_name not in arrays:
            raise _malformed(f"an update has the array '{self._row_name}'")
        _check_array(self._row_name, arrays[self._row_name], self._dtype, (self._width,))
        self._shared.check(self._of_all(arrays))

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch."""
        rows = batch.stacked.get(self._row_name)
        if rows is None or not _is_array(rows, self._dtype, (len(batch), self._width)):
            return False
        return self._shared.check_many(_without(batch, self._own))

    def add(self, update: ClientUpdate, client: int) -> None:
        """Add one update, that of ``client``."""
        own = int(update.arrays[self._user_name][0]), update.arrays[self._row_name]
        self._kept[client % self.groups].append(own)
        self._shared.add(update._replace(arrays=self._of_all(update.arrays)), client)

    def add_many(self, batch: UpdateBatch, places: Ints, clients: Ints) -> None:
        """Add the updates at ``places`` of a batch in that order."""
        users, rows = (
            batch.stacked[self._user_name][places, 0].tolist(),
            batch.stacked[self._row_name][places],
        )
        for group, user, row in zip((clients % self.groups).tolist(), users, rows, strict=True):
            self._kept[group].append((user, row))
        self._shared.add_many(_without(batch, self._own), places, clients)

    def partial(self) -> Any:
        """Return the sums of the groups that have any, and the users' rows of each."""
        return self._shared.partial(), self._kept

    def join(self, partial: Any) -> None:
        """Take over the sums and users' rows of other groups."""
        shared, kept = partial
        self._shared.join(shared)
        for own, others in zip(self._kept, kept, strict=True):
            own.extend(others)

    def result(self) -> Aggregate:
        """Return the sum so far, and the users' rows beside it: [m] and [m, width], by group."""
        aggregate = self._shared.result()
        kept = [own for group in self._kept for own in group]
        own = {
            self._user_name: np.array([user for user, _ in kept], np.int64),
            self._row_name: np.array([row for _, row in kept], self._dtype).reshape(-1, self._width),
        }
        return aggregate.beside(own)

    def _of_all(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {name: array for name, array in arrays.items() if name not in self._own}
