"""Updates that promote one item: what an attacker writes into the row of its target.

An attacker has no real users to please. It makes up some, and uploads the change that makes them like the
target t: the gradient of −log σ(s(u, t)) by the row of t, of users u that it draws itself (Rong, He & Chen
2022, IJCAI, "Poisoning Deep Learning Based Recommender Model in Federated Learning Scenarios"). With one user
each that is explicit boosting; where the users are made to dislike t first, the gradient is that of users who
are hard to win over (A-hum of the same paper).

It works on methods in which a user's score of an item is the product of a vector of its own with the item's
row, and the item's bias (:attr:`~edge.learning.base.Algorithm.row_arrays`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.rng import stream
from edge.learning.updates import ITEMS, ROWS, Array, ClientUpdate

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PromotedItem:
    """The item that is promoted.

    ``item`` is its index; ``arrays`` are the names of the model's arrays whose rows an upload changes: item
    factors [m, k] and, if there is one, item bias [m].
    """

    item: int
    arrays: tuple[str, ...]

    def row(self, model: Mapping[str, Array]) -> tuple[Floats, float | None]:
        """Return the factors float64 [k] and the bias of the item, None in a model without biases."""
        present = [model[name][self.item] for name in self.arrays if name in model]
        bias = float(present[1]) if len(present) > 1 else None
        return np.asarray(present[0], np.float64), bias


@dataclass(frozen=True, slots=True)
class Promotion:
    """How an item is promoted.

    Attributes
    ----------
    users : how many users an attacker makes up.
    spread : standard deviation of their factors.
    dislike_steps, dislike_rate : steps of gradient descent on −log(1 − σ(s)) that each user takes first, and
        their length; 0 steps: none.
    scale : factor on the gradient.
    norm_limit : largest L2 norm of the change of the row, before it is weighted; None: any.
    """

    users: int = 1
    spread: float = 0.1
    dislike_steps: int = 0
    dislike_rate: float = 0.1
    scale: float = 1.0
    norm_limit: float | None = None

    def drawn(self, factors: int, generator: np.random.Generator) -> Floats:
        """Return the factors of the users that an attacker makes up, float64 [users, factors]."""
        return self.spread * generator.standard_normal((self.users, factors))

    def change(self, factors: Floats, bias: float | None, users: Floats) -> Floats:
        """Return the change of an item's row, float64 [k], or [k + 1] with the bias last.

        Parameters
        ----------
        factors : float64 [k], the row as it was received.
        bias : of the item; None in a model without.
        users : float64 [users, k], as they are drawn.
        """
        offset = 0.0 if bias is None else bias
        for _ in range(self.dislike_steps):
            users = users - self.dislike_rate * _logistic(users @ factors + offset)[:, None] * factors
        unlikely = _logistic(-(users @ factors + offset))
        change = self.scale * (unlikely @ users) / len(users)
        if bias is not None:
            change = np.append(change, self.scale * unlikely.mean())
        norm = float(np.linalg.norm(change))
        if self.norm_limit is not None and norm > self.norm_limit:
            change *= self.norm_limit / norm
        return change


@dataclass(frozen=True, slots=True)
class Attacker:
    """An attacker's update: that of an honest device, but for the row of its target.

    ``names`` are those of the stream that its users are drawn from, under ``seed``: the same in all rounds.
    """

    promotion: Promotion
    target: PromotedItem
    seed: int
    names: tuple[str | int, ...]

    def update(self, honest: ClientUpdate, model: Mapping[str, Array]) -> ClientUpdate:
        """Return what it uploads, given the honest update and the model as it was received.

        Of a sparse update the target's row is one of the rows, rated or not.
        """
        factors, bias = self.target.row(model)
        users = self.promotion.drawn(len(factors), stream(self.seed, *self.names))
        change = honest.weight * self.promotion.change(factors, bias, users)
        rows = honest.arrays[ROWS]
        with np.errstate(over="ignore"):  # what overflows is refused as any such update is
            row = change.astype(rows.dtype)
        arrays: dict[str, Any] = dict(honest.arrays)
        place = self.target.item
        if ITEMS in arrays:
            items = arrays[ITEMS]
            place = int(np.searchsorted(items, self.target.item))
            if place == len(items) or items[place] != self.target.item:
                arrays[ITEMS] = np.insert(items, place, self.target.item)
                rows = np.insert(rows, place, 0, axis=0)
        rows = rows.copy()
        rows[place] = row
        arrays[ROWS] = rows
        return honest._replace(arrays=arrays)


def _logistic(x: Floats) -> Floats:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))
