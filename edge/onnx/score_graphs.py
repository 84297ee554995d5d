"""Graphs of scores: of a factorisation behind a mask or without, of NeuMF, or of features of the items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from edge.core.errors import ExportError
from edge.learning.neumf import NetworkShape, NetworkWeights
from edge.onnx import formulas
from edge.onnx.graph_writer import GraphWriter
from edge.onnx.metadata import ModelInfo
from edge.onnx.own_masks import Mask, Masks
from edge.onnx.recommenders import RECOMMENDER, Features, Weights, check_array
from edge.onnx.work import ScoreWork, factorization_work, neumf_work, sum_work

NEUMF: Final = f"{RECOMMENDER}/neumf"
CONTEXT: Final = f"{RECOMMENDER}/context"


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
    """The recommenders of n devices by a factorisation: s_i = mask(x_i) + p·q_i + b_i + b_u + μ.

    ``masks`` is None for a model without.
    """

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


@dataclass(frozen=True, slots=True, eq=False)
class NeuMFs:
    """The recommenders of n devices by NeuMF: the logit of every item, as in :mod:`edge.learning.neumf`.

        a₁ = relu(W₁ᵀ[u_m; q_m] + c₁)   a_l = relu(W_lᵀ a_{l−1} + c_l)   s = h_gᵀ(u_g ⊙ q_g) + h_mᵀ a_L + h₀

    The user's half of the first layer is one row, added to that of all items.

    Attributes
    ----------
    shape : sizes.
    gmf_items, mlp_items : q_g and q_m of every item, float32 [n_items, …].
    network : the weights that all share, with a leading axis of 1.
    users : u_g and u_m, float32 [n, gmf + mlp].
    """

    shape: NetworkShape
    gmf_items: npt.NDArray[np.float32]
    mlp_items: npt.NDArray[np.float32]
    network: NetworkWeights
    users: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.users)

    @property
    def kind(self) -> str:
        """``recommender/neumf``."""
        return NEUMF

    @property
    def n_items(self) -> int:
        """Size of the catalogue."""
        return len(self.gmf_items)

    @property
    def features(self) -> None:
        """None: nothing is read of the items."""
        return

    def _layers(self) -> list[str]:
        """Return the names of the dense layers after the first."""
        return [f"layer_{number}" for number in range(2, len(self.shape.hidden) + 1)]

    def shared(self) -> Weights:
        """Return the embeddings of the items and the network, its first layer in two halves."""
        network, mlp = self.network, self.shape.mlp
        first, *others = network.dense
        weights = {
            "gmf_items": self.gmf_items,
            "mlp_items": self.mlp_items,
            "layer_1_users": first[0, :mlp],
            "layer_1_items": first[0, mlp:],
            "layer_1_bias": network.biases[0][0],
        }
        for name, dense, bias in zip(self._layers(), others, network.biases[1:], strict=True):
            weights |= {name: dense[0], f"{name}_bias": bias[0]}
        return weights | {
            "gmf_output": network.gmf[0],
            "mlp_output": network.mlp[0],
            "output_bias": network.bias[0].reshape(()),
        }

    def own(self) -> Weights:
        """Return the embeddings of the users, of both halves."""
        return {"user_gmf": self.users[:, : self.shape.gmf], "user_mlp": self.users[:, self.shape.gmf :]}

    def part(self, rows: slice) -> Self:
        """Return some of the devices."""
        return type(self)(self.shape, self.gmf_items, self.mlp_items, self.network, self.users[rows])

    def check(self, info: ModelInfo) -> None:
        """Raise ``ExportError`` for other types or shapes than the sizes say, or values not finite."""
        check_array("item embeddings of the factorisation", self.gmf_items, (info.n_items, self.shape.gmf))
        check_array("item embeddings of the perceptron", self.mlp_items, (info.n_items, self.shape.mlp))
        check_array("user embeddings", self.users, (len(self), self.shape.width))
        for name, weights in self.shared().items():
            check_array(name, weights, weights.shape)

    def add_scores(self, writer: GraphWriter, names: Mapping[str, str]) -> str:
        """Add the perceptron, the factorisation and their sum."""
        row = writer.node("Unsqueeze", names["user_mlp"], writer.constant("rows", np.array([0], np.int64)))
        user = writer.node("Gemm", row, names["layer_1_users"], names["layer_1_bias"])
        sums = writer.node("Gemm", names["mlp_items"], names["layer_1_items"], user)
        activation = writer.node("Relu", sums)
        for name in self._layers():
            sums = writer.node("Gemm", activation, names[name], names[f"{name}_bias"])
            activation = writer.node("Relu", sums)
        weighted = writer.node("Mul", names["gmf_output"], names["user_gmf"])
        score = writer.node(
            "Add",
            writer.product(names["gmf_items"], weighted),
            writer.product(activation, names["mlp_output"]),
        )
        return writer.node("Add", score, names["output_bias"])

    def formula(self) -> npt.NDArray[np.float64]:
        """Return the scores, float64 [n, n_items]."""
        own = self.own()
        return formulas.neumf_scores(self.shared(), self._layers(), own["user_gmf"], own["user_mlp"])

    def work(self) -> ScoreWork:
        """Return what the nodes cost."""
        return neumf_work(self.n_items, self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class ContextModels:
    """The recommenders of n devices by features: ``masks`` of these, and how many items there are.

    A device's model is a mask that nothing is added to (:mod:`edge.onnx.mask_graph`): its own, or one that
    all share, in which the user's own features have gone into weights.
    """

    masks: Masks
    n_items: int

    def __len__(self) -> int:
        return len(next(iter(self.masks.weights.values())))

    @property
    def kind(self) -> str:
        """``recommender/context/`` and the kind of the mask."""
        return f"{CONTEXT}/{self.masks.kind}"

    @property
    def features(self) -> Features | None:
        """What they read of the items."""
        return self.masks.features

    def shared(self) -> Weights:
        """Return nothing: what is shared is in every device's own."""
        return {}

    def own(self) -> Weights:
        """Return the weights."""
        return self.masks.weights

    def part(self, rows: slice) -> Self:
        """Return some of the devices."""
        return type(self)(self.masks.part(rows), self.n_items)

    def check(self, info: ModelInfo) -> None:
        """Raise ``ExportError`` for weights that contradict each other or the features."""
        self.masks.check(info)

    def add_scores(self, writer: GraphWriter, names: Mapping[str, str]) -> str:
        """Add what the model says of every item."""
        return self.masks.add_scores(writer, names, self.n_items)

    def formula(self) -> npt.NDArray[np.float64]:
        """Return the scores, float64 [n, n_items]."""
        return self.masks.formula(self.n_items)

    def work(self) -> ScoreWork:
        """Return what the nodes cost."""
        return self.masks.work(self.n_items)
