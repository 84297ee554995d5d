"""Scores of a factorisation, behind a mask or without: mask, factors, biases and mean in one score.

s_i = mask(x_i) + p·q_i + b_i + b_u + μ
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from edge.core.errors import ExportError
from edge.onnx import formulas
from edge.onnx.graph_writer import GraphWriter
from edge.onnx.metadata import ModelInfo
from edge.onnx.own_masks import Mask, Masks
from edge.onnx.recommenders import RECOMMENDER, Features, Weights, check_array
from edge.onnx.work import ScoreWork, factorization_work, sum_work


@dataclass(frozen=True, slots=True, eq=False)
class ItemModel:
    """The global model: what every device has.

    Attributes
    ----------
    factors : q, float32 [n_items, k].
    bias : b, float32 [n_items]; zeros for a model without.
    mean : μ, in the units of the ratings; 0 for a model without.

    Raises
    ------
    ExportError
        For other types or shapes, or values that are not finite.
    """

    factors: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    mean: float

    def __post_init__(self) -> None:
        if self.factors.ndim != 2 or min(self.factors.shape) < 1:
            raise ExportError(f"item factors are [items, k], both at least 1, not {list(self.factors.shape)}")
        check_array("item factors", self.factors, self.factors.shape)
        check_array("item bias", self.bias, (self.n_items,))
        if not np.isfinite(np.float32(self.mean)):
            raise ExportError(f"the mean rating is {self.mean}; it must be finite")

    @property
    def n_items(self) -> int:
        """Size of the catalogue."""
        return int(self.factors.shape[0])

    @property
    def width(self) -> int:
        """k, the number of factors."""
        return int(self.factors.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class UserModel:
    """What one device has: ``factors`` p, float32 [k], and ``bias`` b_u, 0 for a model without."""

    factors: npt.NDArray[np.float32]
    bias: float


@dataclass(frozen=True, slots=True, eq=False)
class UserModels:
    """What n devices have, one in each row: ``factors`` float32 [n, k], ``bias`` float32 [n]."""

    factors: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Factorizations:
    """The recommenders of n devices by a factorisation: ``masks`` is None for a model without."""

    items: ItemModel
    users: UserModels
    masks: Masks | None

    @classmethod
    def of_one(cls, items: ItemModel, user: UserModel, mask: Mask | None) -> Self:
        """Return that of one device as those of a single one."""
        users = UserModels(user.factors[None], np.array([user.bias], np.float32))
        return cls(items, users, None if mask is None else Masks.of_one(mask))

    def __len__(self) -> int:
        return len(self.users.bias)

    @property
    def kind(self) -> str:
        """``recommender``, or ``recommender/`` and the kind of the mask."""
        return RECOMMENDER if self.masks is None else f"{RECOMMENDER}/{self.masks.kind}"

    @property
    def n_items(self) -> int:
        """Size of the catalogue."""
        return self.items.n_items

    @property
    def features(self) -> Features | None:
        """What the masks read."""
        return None if self.masks is None else self.masks.features

    def shared(self) -> Weights:
        """Return the global model."""
        return {
            "item_factors": self.items.factors,
            "item_bias": self.items.bias,
            "mean_rating": np.array(self.items.mean, np.float32),
        }

    def own(self) -> Weights:
        """Return users' factors and biases, and the weights of their masks."""
        own = {"user_factors": self.users.factors, "user_bias": self.users.bias}
        return own if self.masks is None else {**own, **self.masks.weights}

    def part(self, rows: slice) -> Self:
        """Return some of the devices."""
        users = UserModels(self.users.factors[rows], self.users.bias[rows])
        return type(self)(self.items, users, None if self.masks is None else self.masks.part(rows))

    def check(self, info: ModelInfo) -> None:
        """Raise ``ExportError`` for users of another width, or not finite, and masks that do not fit."""
        check_array("user factors", self.users.factors, (len(self), self.items.width))
        check_array("user bias", self.users.bias, (len(self),))
        if self.masks is not None:
            self.masks.check(info)

    def add_scores(self, writer: GraphWriter, names: Mapping[str, str]) -> str:
        """Add p·q_i + b_i + b_u + μ, and the mask."""
        score = writer.product(names["item_factors"], names["user_factors"])
        for term in ("item_bias", "user_bias", "mean_rating"):
            score = writer.node("Add", score, names[term])
        if self.masks is not None:
            score = writer.node("Add", score, self.masks.add_scores(writer, names, self.n_items))
        return score

    def formula(self) -> npt.NDArray[np.float64]:
        """Return the scores, float64 [n, n_items]."""
        items, users = self.items, self.users
        scores = formulas.factorization_scores(
            items.factors, items.bias, items.mean, users.factors, users.bias
        )
        if self.masks is not None:
            scores += self.masks.formula(self.n_items)
        return scores

    def work(self) -> ScoreWork:
        """Return what the nodes of the factorisation and of a mask cost."""
        plain = factorization_work(self.n_items, self.items.width)
        if self.masks is None:
            return plain
        return plain + self.masks.work(self.n_items) + sum_work(self.n_items)
