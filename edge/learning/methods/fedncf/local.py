"""What a device of FedNCF computes on its examples: steps on its users alone, then on everything.

Devices are taken in runs of a few thousand examples, all of a run together. All of them begin a round with
the same network and item tables, so the item's part of the network's first layer is computed once for each
item that anybody has, and looked up for each example, as long as nothing of it has moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.learning import fedrecon_kernels, layers, neumf
from edge.learning.base import State
from edge.learning.least_squares import shuffled_ranks
from edge.learning.losses import partners
from edge.learning.method_settings import GradientSteps, MiniBatches
from edge.learning.methods.fedncf.settings import FedNCFSettings
from edge.learning.neumf import ExampleRows, Gradients, NetworkShape, Point
from edge.learning.sampled_negatives import Examples
from edge.learning.sharpness import GradientFunction, Radii, sharpness_aware
from edge.learning.updates import Array

NETWORK = "network"
GMF, MLP = "gmf_items", "mlp_items"
# What a draw under a client's key is for; 3 are the negatives.
_ORDER_DRAW = 4
# Activations of so many examples fit in a processor's cache.
_ROWS_AT_ONCE = 2048
Ints = npt.NDArray[np.int64]
Index = slice | Ints


class Start(NamedTuple):
    """A run of users, their examples, and where they stand before their first step."""

    first: int
    end: int
    part: slice
    rows: ExampleRows
    point: Point


class ItemRows:
    """The rows of some items in the tables that devices were sent, and their part of the first layer."""

    def __init__(self, shape: NetworkShape, state: State, items: npt.NDArray[Any]) -> None:
        self.shape = shape
        self.state = state
        table = state[MLP]
        present = np.zeros(len(table), np.bool_)
        present[items] = True
        distinct = np.flatnonzero(present)
        # Of the places only those of these items are ever written or read.
        self._places = np.empty(len(table), np.int64)
        self._places[distinct] = np.arange(len(distinct))
        self._first = neumf.item_part(shape, layers.embedding(table, distinct), state[NETWORK][None])

    def point(self, items: npt.NDArray[Any], users: Array) -> Point:
        """Return where ``users`` [n, width] stand before their first step, looking at ``items`` [R]."""
        state = self.state
        return Point(
            layers.embedding(state[GMF], items),
            layers.embedding(state[MLP], items),
            np.broadcast_to(state[NETWORK], (len(users), self.shape.weights)),
            users,
            layers.embedding(self._first, self._places[items]),
        )


class LocalTraining:
    """The steps of devices; see :class:`~edge.learning.methods.fedncf.algorithm.FedNCF` for the arguments."""

    def __init__(
        self, settings: FedNCFSettings, shape: NetworkShape, dtype: np.dtype[Any], radii: Radii
    ) -> None:
        self.settings = settings
        self.shape = shape
        self.dtype = dtype
        self.radii = radii

    def starts(
        self, state: State, examples: Examples, keys: npt.NDArray[np.uint64], local: Array | None
    ) -> Iterator[Start]:
        """Cut users into runs that fit in the processor's cache, and say where they start.

        ``keys`` uint64 [users] deal negatives to positives, where they are compared; ``local`` [users, width]
        are the users' embeddings; None: zeros.
        """
        users = len(examples.indptr) - 1
        own = np.zeros((users, self.shape.width), self.dtype) if local is None else local
        items = ItemRows(self.shape, state, examples.items)
        for first, end in fedrecon_kernels.blocks(examples.indptr, _ROWS_AT_ONCE):
            part = slice(int(examples.indptr[first]), int(examples.indptr[end]))
            labels = examples.positive[part].astype(self.dtype)
            rows = rows_of(examples.indptr, first, end)._replace(labels=labels)
            if self.settings.loss != "cross-entropy":
                dealt = partners(examples.indptr[first : end + 1], labels, keys[first:end])
                rows = rows._replace(partner=dealt)
            point = items.point(examples.items[part], own[first:end].astype(self.dtype, copy=False))
            yield Start(first, end, part, rows, point)

    def plain(self, rows: ExampleRows) -> GradientFunction:
        """Return the gradients of devices' objectives on ``rows``, taken where they stand."""

        def gradients(
            point: Point, *, shared: bool, local: bool, out: Array | None = None
        ) -> tuple[Array, Gradients]:
            decay = self.settings.client.regularization
            return neumf.losses_and_gradients(
                self.shape,
                point,
                rows,
                decay,
                shared=shared,
                local=local,
                out=out,
                loss=self.settings.loss,
            )

        return gradients

    def personalised(self, start: Start) -> Point:
        """Return the point after the steps on the users alone."""
        point = start.point
        rate = self.dtype.type(self.settings.user_learning_rate)
        gradients = sharpness_aware(self.plain(start.rows), start.rows.counts, self.radii)
        for _ in range(self.settings.user_steps):
            _, found = gradients(point, shared=False, local=True)
            assert found.users is not None
            point = point._replace(users=point.users - rate * found.users)
        return point

    def descend(
        self, start: Start, point: Point, keys: npt.NDArray[np.uint64], limits: Ints | None, out: Array
    ) -> tuple[Gradients, Array]:
        """Take the client's steps from ``point``.

        Parameters
        ----------
        start, point : a run of devices, and where they stand.
        keys : uint64 [n], of which the order of mini-batches is drawn.
        limits : int64 [n], the first so many steps are taken; None: all.
        out : [n, weights], where the sum of the network's gradients is written.

        Returns
        -------
        The sums of the gradients of all steps, and the mean losses before the first, [n]. Everything has
        moved by minus the client's rate times its sum, users by minus their own rate times theirs.
        """
        client, rows = self.settings.client, start.rows
        rate = self.dtype.type(client.learning_rate)
        user_rate = self.dtype.type(self.settings.user_learning_rate)
        sums: Gradients | None = None
        before: Array | None = None
        if isinstance(client, MiniBatches):
            before = layers.device_means(self.plain(rows)(point, shared=False, local=False)[0], rows.counts)
            out[:] = 0
            zeros = (np.zeros_like(array) for array in (point.gmf, point.mlp, point.users))
            sums = Gradients(next(zeros), next(zeros), out, next(zeros))
        for step, (chosen, devices) in enumerate(_batches(client, rows, keys, limits)):
            if sums is None:
                # The first gradient step: everything, and nothing to add it to.
                losses, sums = self._gradients(rows)(point, shared=True, local=True, out=out)
                before = layers.device_means(losses, rows.counts)
                continue
            here = _taken(point, chosen, devices)
            if step > 0:
                here = _moved(here, sums, chosen, devices, rate, user_rate)
            those = rows
            if not isinstance(chosen, slice):
                owners = np.repeat(np.arange(len(rows.counts)), rows.counts)[chosen]
                counts = np.bincount(owners, minlength=len(rows.counts))[devices]
                partner = None if rows.partner is None else rows.partner[chosen]
                those = ExampleRows(_bounds(counts), counts, rows.labels[chosen], partner)
            _, found = self._gradients(those)(here, shared=True, local=True)
            for total, gradient, index in zip(sums, found, (chosen, chosen, devices, devices), strict=True):
                assert total is not None
                assert gradient is not None
                total[index] += gradient
        assert sums is not None
        assert before is not None
        return sums, before

    def _gradients(self, rows: ExampleRows) -> GradientFunction:
        return sharpness_aware(self.plain(rows), rows.counts, self.radii)


def rows_of(indptr: Ints, first: int, end: int) -> ExampleRows:
    """Return where the rows of users ``first`` … ``end - 1`` are; without labels."""
    counts = np.diff(indptr[first : end + 1])
    return ExampleRows(_bounds(counts), counts, np.zeros(0))


def _batches(
    method: GradientSteps | MiniBatches,
    rows: ExampleRows,
    keys: npt.NDArray[np.uint64],
    limits: Ints | None,
) -> Iterator[tuple[Index, Index]]:
    """Yield, for each step, the rows that it looks at and the devices that take it.

    They are slices where that is all of them. Devices go through their batches together; those that have no
    more, or whose ``limits`` (int64 [n]) are reached, stay.
    """
    n = len(rows.counts)
    owners = np.repeat(np.arange(n), rows.counts)
    if isinstance(method, GradientSteps):
        for step in range(method.steps):
            if limits is None or bool((limits > step).all()):
                yield slice(None), slice(None)
            else:
                going_on = limits > step
                yield np.flatnonzero(going_on[owners]), np.flatnonzero(going_on)
        return
    indptr = np.array(rows.bounds)
    per_epoch = -(-rows.counts // method.batch_size)
    for epoch in range(method.epochs):
        batch = shuffled_ranks(indptr, keys, _ORDER_DRAW, epoch) // method.batch_size
        if limits is not None:
            batch[batch >= (limits - epoch * per_epoch)[owners]] = np.iinfo(np.int64).max
        order = np.argsort(batch, kind="stable")
        ends = np.searchsorted(batch[order], np.arange(int(per_epoch.max(initial=0)) + 1))
        for first, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            yield order[first:end], np.unique(owners[order[first:end]])


def _taken(point: Point, rows: Index, devices: Index) -> Point:
    first = None if point.first is None else point.first[rows]
    return Point(point.gmf[rows], point.mlp[rows], point.network[devices], point.users[devices], first)


def _moved(
    point: Point, sums: Gradients, rows: Index, devices: Index, rate: np.floating[Any], user_rate: Any
) -> Point:
    """Return where devices and rows that started from ``point`` stand after the steps so far."""
    assert sums.gmf is not None
    assert sums.mlp is not None
    assert sums.network is not None
    assert sums.users is not None
    return Point(
        point.gmf - rate * sums.gmf[rows],
        point.mlp - rate * sums.mlp[rows],
        point.network - rate * sums.network[devices],
        point.users - user_rate * sums.users[devices],
    )


def _bounds(counts: Ints) -> list[int]:
    return [0, *np.cumsum(counts).tolist()]
