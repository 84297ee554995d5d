"""From a method and ratings to what devices serve from, as the method itself personalises.

There are three kinds of model, whatever the method: a factorisation, with a mask or without, whose users'
factors the method is asked for; NeuMF; and a model of the items' features alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge.core.errors import ExportError
from edge.learning.base import MEAN, RatingBatch, Recommender, State
from edge.learning.masks.base import limited
from edge.learning.masks.registry import MaskSettings
from edge.learning.methods.context_models import FactorizationMachineSettings, LinearSettings, NetworkSettings
from edge.learning.methods.federated_context import FederatedContext
from edge.learning.methods.fedmmf import FedMMF
from edge.learning.methods.fedncf.algorithm import FedNCF
from edge.learning.methods.fedncf.local import GMF, MLP, NETWORK
from edge.learning.methods.fedrecon.algorithm import BIAS, FACTORS
from edge.learning.methods.local_context import LocalContext
from edge.learning.neumf import network_of
from edge.learning.updates import Array
from edge.onnx.mask_graph import Features, MaskKind, Weights
from edge.onnx.own_masks import Masks
from edge.onnx.recommenders import Recommenders
from edge.onnx.score_graphs import ContextModels, Factorizations, ItemModel, NeuMFs, UserModels

_ORDERS: Final[dict[type, MaskKind]] = {
    LinearSettings: "one-order",
    FactorizationMachineSettings: "two-order",
    NetworkSettings: "high-order",
}
"""The masks that compute what a shared model of features does."""


def item_model(state: State) -> ItemModel:
    """Return the global half of the factorisation from the state of a method that factorises."""
    factors = state[FACTORS]
    bias = state.get(BIAS)
    if bias is None:
        bias = np.zeros(len(factors), np.float32)
    return ItemModel(factors, bias, float(state[MEAN][0]) if MEAN in state else 0.0)


def personal_models(
    algorithm: Recommender,
    state: State,
    batch: RatingBatch,
    keys: npt.NDArray[np.uint64],
    local: Array | None = None,
) -> Recommenders:
    """Return what devices of one user each make of their own ratings: their scores are the method's.

    Parameters
    ----------
    algorithm, state : the method and its global parameters.
    batch : the ratings of the n users.
    keys : uint64 [n], for a method that draws at random.
    local : the rows that the devices begin with, [n, …]; None where they have none.

    Raises
    ------
    ExportError
        For a method of whose models there is no graph.
    """
    if isinstance(algorithm, FederatedContext):
        kind = _ORDERS[type(algorithm.settings.model)]
        masks = Masks(kind, algorithm.masks(state, batch), algorithm.features)
        return ContextModels(masks, len(algorithm.features))
    if isinstance(algorithm, LocalContext):
        masks = _fitted(algorithm.settings.model, algorithm.masks(batch), algorithm.features)
        return ContextModels(masks, len(algorithm.features))
    if getattr(algorithm, "own_tables", False):
        raise ExportError(
            f"with {algorithm.name()} as it is set each device scores items with a table or a network of"
            " its own, of which there is no graph; let devices be measured by 'evaluation' instead"
        )
    reconstruct = getattr(algorithm, "reconstruct", None)  # a factorisation has it
    if reconstruct is None:
        advice = getattr(algorithm, "export_advice", "")
        raise ExportError(f"there is no graph of the models of {type(algorithm).__name__}{advice}")
    users: npt.NDArray[Any] = reconstruct(state, batch, keys, local)
    if isinstance(algorithm, FedNCF):
        network = network_of(algorithm.shape, state[NETWORK][None])
        return NeuMFs(algorithm.shape, state[GMF], state[MLP], network, users)
    k = state[FACTORS].shape[1]
    bias = users[:, k] if users.shape[1] > k else np.zeros(len(users), users.dtype)
    own = UserModels(np.ascontiguousarray(users[:, :k]), bias)
    if not isinstance(algorithm, FedMMF):
        return Factorizations(item_model(state), own, None)
    masks = _fitted(algorithm.settings.mask, algorithm.masks(batch), algorithm.features)
    return Factorizations(item_model(state), own, masks)


def _fitted(settings: MaskSettings, weights: Weights, features: Features) -> Masks:
    """Return masks with the features as they read them."""
    if settings.kind == "zero-order":
        return Masks(settings.kind, weights, None)
    return Masks(settings.kind, weights, limited(features, settings.feature_limit))
