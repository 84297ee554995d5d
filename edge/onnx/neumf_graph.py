"""Scores of NeuMF, one user's embeddings inside: the logit of every item.

    a₁ = relu(W₁ᵀ[u_m; q_m] + c₁)   a_l = relu(W_lᵀ a_{l−1} + c_l)   s = h_gᵀ(u_g ⊙ q_g) + h_mᵀ a_L + h₀

as in :mod:`edge.learning.neumf`. The user's half of the first layer is one row, added to that of all items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from edge.learning.neumf import NetworkShape, NetworkWeights
from edge.onnx import formulas
from edge.onnx.graph_writer import GraphWriter
from edge.onnx.metadata import ModelInfo
from edge.onnx.recommenders import RECOMMENDER, Weights, check_array
from edge.onnx.work import ScoreWork, neumf_work

NEUMF: Final = f"{RECOMMENDER}/neumf"


@dataclass(frozen=True, slots=True, eq=False)
class NeuMFs:
    """The recommenders of n devices by NeuMF.

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
