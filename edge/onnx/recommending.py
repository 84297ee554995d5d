"""Recommendations for one history from a stateless model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edge.core.errors import ExportError, ModelFileError
from edge.onnx.loading import LoadedModel
from edge.onnx.ratings_file import History
from edge.onnx.session import OnnxSession
from edge.onnx.stateless_graph import STATELESS, is_stateless


class Recommendation(NamedTuple):
    """An item by its index, and its predicted rating."""

    item: int
    score: float


def check_kind(model: LoadedModel) -> None:
    """Raise ``ModelFileError`` unless the model takes a history of ratings."""
    if not is_stateless(model.kind):
        raise ModelFileError(
            f"a model of kind {model.kind!r} takes no ratings; give one of kind {STATELESS!r}"
        )


def recommend(model: LoadedModel, history: History, top: int) -> list[Recommendation]:
    """Return the best ``top`` items that the history does not hold, best first; fewer if fewer are left.

    Raises
    ------
    ExportError
        If ``top`` is longer than the list that the model makes.
    ModelFileError
        For a model of another kind, or one that cannot be run or returns what a stateless model does not.
    """
    check_kind(model)
    session = OnnxSession(model.contents)
    outputs = session.run({"items": history.items, "ratings": history.ratings}).outputs
    items, scores = outputs.get("top_items"), outputs.get("top_scores")
    if items is None or scores is None or items.ndim != 1 or items.shape != scores.shape:
        raise ModelFileError("the model returns no list of items and scores; export it again")
    if items.dtype != np.int64 or scores.dtype != np.float32:
        raise ModelFileError(
            f"the model returns {items.dtype} items and {scores.dtype} scores; export it again"
        )
    if items.size and not (items.min() >= -1 and items.max() < model.info.n_items):
        raise ModelFileError(f"the model returns items outside its {model.info.n_items}; export it again")
    if top > items.size:
        raise ExportError(
            f"the model lists {items.size} items at most; ask for no more, or export it with --top {top}"
        )
    found = zip(items[:top].tolist(), scores[:top].tolist(), strict=True)
    return [Recommendation(item, score) for item, score in found if item >= 0]
