"""Graph of one user's recommender: mask, user and item factors, biases and mean in one score.

    s_i = mask(x_i) + p·q_i + b_i + b_u + μ

The file holds the user's factors: it is personal, and belongs on the user's device alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.serving.errors import ExportError
from edge.serving.graph_writer import GraphWriter
from edge.serving.mask_graph import (
    MASK_WEIGHTS,
    Features,
    MaskKind,
    Weights,
    add_mask,
    check_features,
    check_mask,
)
from edge.serving.metadata import ModelInfo
from edge.serving.top_items import add_top, check_top


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
class Mask:
    """One device's mask with the features that it reads: float32 [n_items, d], None for zero-order.

    The masks of n devices are one of these, too: their weights have a leading axis of n.
    """

    kind: MaskKind
    weights: Weights
    features: Features | None


def check_array(what: str, array: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise ``ExportError`` unless ``array`` is finite float32 of this shape."""
    if array.dtype != np.float32 or array.shape != shape:
        raise ExportError(f"{what}: float32 {list(shape)} is needed, not {array.dtype} {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ExportError(f"{what}: not finite everywhere")


def check_catalogue(items: ItemModel, info: ModelInfo) -> None:
    """Raise ``ExportError`` if model and metadata have different numbers of items."""
    if items.n_items != info.n_items:
        raise ExportError(f"the model has {items.n_items} items, its metadata {info.n_items}")


def recommender_model(
    items: ItemModel,
    user: UserModel,
    info: ModelInfo,
    *,
    mask: Mask | None,
    top: int,
    weights_as_inputs: bool = False,
) -> bytes:
    """Return the serialised graph: ``rated`` int64 [r] → ``scores``, ``top_items``, ``top_scores``.

    Parameters
    ----------
    items, user : the two halves of the factorisation.
    info : goes into the metadata.
    mask : added to the score; None for a model without.
    top : length of the list, fixed in the file. See :func:`edge.serving.top_items.add_top` for the outputs.
    weights_as_inputs : make everything that differs between devices or changes between rounds an input of
        the graph, under its name, so that one session serves every device of a whole run:
        :func:`item_inputs`, ``user_factors`` [k], ``user_bias`` [] and the mask's weights. Of what is given
        here only the shapes count, but for the features, which stay inside.

    Raises
    ------
    ExportError, MissingExtraError
    """
    check_catalogue(items, info)
    check_top(top)
    check_array("user factors", user.factors, (items.width,))
    if not np.isfinite(np.float32(user.bias)):
        raise ExportError(f"the user bias is {user.bias}; it must be finite")
    writer = GraphWriter()
    rated = writer.input("rated", np.int64, ["r"])
    weights: dict[str, npt.NDArray[np.float32]] = {
        **item_inputs(items),
        "user_factors": user.factors,
        "user_bias": np.array(user.bias, np.float32),
    }
    names = {
        name: writer.weight(name, values, as_input=weights_as_inputs) for name, values in weights.items()
    }
    score = writer.product(names["item_factors"], names["user_factors"])
    for term in ("item_bias", "user_bias", "mean_rating"):
        score = writer.node("Add", score, names[term])
    kind = "recommender"
    if mask is not None:
        kind = f"recommender/{mask.kind}"
        score = writer.node("Add", score, add_own_mask(writer, mask, info, as_inputs=weights_as_inputs))
    add_top(writer, score, rated, n_items=items.n_items, top=top)
    return writer.model(info.properties(kind))


def item_inputs(items: ItemModel) -> dict[str, npt.NDArray[np.float32]]:
    """Return the global model by the names that it has in the graph."""
    return {
        "item_factors": items.factors,
        "item_bias": items.bias,
        "mean_rating": np.array(items.mean, np.float32),
    }


def add_own_mask(writer: GraphWriter, mask: Mask, info: ModelInfo, *, as_inputs: bool = False) -> str:
    """Add a device's mask and return the name of what it says of every item, float32 [n_items].

    Its weights are initializers or, if asked for, inputs of the graph.
    Raises ``ExportError`` for a mask that contradicts itself or the catalogue.
    """
    width = check_mask(mask.kind, mask.weights)
    if (width is None) != (mask.features is None):
        raise ExportError(f"features of a {mask.kind} mask: give {'None' if width is None else 'them'}")
    x = shape = ""
    if width is None or mask.features is None:
        shape = writer.constant("catalogue", np.array([info.n_items], np.int64))
    else:
        check_features(mask.features, width, info)
        x = writer.constant("features", mask.features)
    names = {
        name: writer.weight(name, mask.weights[name], as_input=as_inputs) for name in MASK_WEIGHTS[mask.kind]
    }
    return add_mask(writer, mask.kind, names, x, shape)
