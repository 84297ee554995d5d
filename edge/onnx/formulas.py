"""The formulas of :mod:`edge.onnx`'s graphs by numpy in float64: what exported ones are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Weights = Mapping[str, npt.NDArray[np.float32]]


def mask_scores(
    kind: str, weights: Weights, features: npt.NDArray[np.float32] | None, n_items: int
) -> npt.NDArray[np.float64]:
    """Return a mask's score of each item, float64 [n_items], as :mod:`edge.onnx.mask_graph` defines it.

    Weights with a leading axis of n devices give float64 [n, n_items].
    """
    w = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    if kind == "zero-order":
        return np.repeat(w["mean"][..., None], n_items, axis=-1)
    x = np.asarray(features, np.float64)
    scores: npt.NDArray[np.float64]
    if kind == "high-order":
        hidden = np.tanh(x @ w["hidden_weights"] + w["hidden_bias"][..., None, :])
        scores = (hidden @ w["output_weights"][..., None])[..., 0] + w["intercept"][..., None]
        return scores
    scores = w["intercept"][..., None] + w["weights"] @ x.T
    if kind == "two-order":
        product = x @ w["factors"]
        np.square(product, out=product)
        scores += 0.5 * (product.sum(axis=-1) - (w["factors"] ** 2).sum(axis=-1) @ (x**2).T)
    return scores


def factorization_scores(
    item_factors: npt.NDArray[Any],
    item_bias: npt.NDArray[Any],
    mean: float,
    user_factors: npt.NDArray[Any],
    user_bias: npt.NDArray[Any],
) -> npt.NDArray[np.float64]:
    """Return p·q_i + b_i + b_u + μ of every user and item, float64 [n, n_items].

    ``item_factors`` [n_items, k], ``item_bias`` [n_items], ``user_factors`` [n, k], ``user_bias`` [n].
    """
    scores: Floats = user_factors.astype(np.float64) @ item_factors.astype(np.float64).T
    scores += item_bias
    scores += user_bias[:, None]
    scores += mean
    return scores


def neumf_scores(
    shared: Weights, layers: Sequence[str], user_gmf: npt.NDArray[Any], user_mlp: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return the logit of every user and item, float64 [n, n_items], as :mod:`edge.onnx.score_graphs` does.

    Parameters
    ----------
    shared : what all users share, by its name in the graph.
    layers : names of the dense layers after the first.
    user_gmf, user_mlp : the users' embeddings, [n, …].
    """
    w = {name: np.asarray(array, np.float64) for name, array in shared.items()}
    of_items = w["mlp_items"] @ w["layer_1_items"]
    of_users = user_mlp.astype(np.float64) @ w["layer_1_users"] + w["layer_1_bias"]
    scores: Floats = (user_gmf.astype(np.float64) * w["gmf_output"]) @ w["gmf_items"].T
    for number, user in enumerate(of_users):
        activation = np.maximum(of_items + user, 0.0)
        for name in layers:
            activation = np.maximum(activation @ w[name] + w[f"{name}_bias"], 0.0)
        scores[number] += activation @ w["mlp_output"]
    scores += w["output_bias"]
    return scores
