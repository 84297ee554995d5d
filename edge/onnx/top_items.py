"""The end of every recommender graph: the scores, and the best items that the user has not rated."""

from __future__ import annotations

import numpy as np

from edge.core.errors import ExportError
from edge.onnx.graph_writer import GraphWriter

NOTHING_LEFT = -1
"""Stands in ``top_items`` where no item is left; its score is −inf."""


def check_top(top: int) -> None:
    """Raise ``ExportError`` unless a list of ``top`` items can be asked for."""
    if top < 1:
        raise ExportError(f"a list has 1 item or more, not {top}")


def add_top(writer: GraphWriter, scores: str, rated: str, *, n_items: int, top: int) -> None:
    """Add the outputs ``scores`` float32 [n_items], ``top_items`` int64 [top], ``top_scores`` float32 [top].

    ``scores`` has every item, rated or not. Lists leave out the items in ``rated`` (int64 [r], may be empty);
    the best comes first, and of equals the one with the lower index. What cannot be filled is
    :data:`NOTHING_LEFT` with a score of −inf.
    """
    lowest = writer.constant("lowest", np.array(-np.inf, np.float32))
    writer.node("Identity", scores, name="scores")
    excluded = writer.node("Expand", lowest, writer.node("Shape", rated))
    left = writer.node("ScatterElements", "scores", rated, excluded, axis=0)
    if top > n_items:
        filler = writer.constant("filler", np.full(top - n_items, -np.inf, np.float32))
        left = writer.node("Concat", left, filler, axis=0)
    size = writer.constant("top", np.array([top], np.int64))
    best, indices = writer.nodes("TopK", (left, size), ("top_scores", "top_indices"), axis=0)
    nothing = writer.constant("nothing_left", np.array(NOTHING_LEFT, np.int64))
    writer.node("Where", writer.node("Equal", best, lowest), nothing, indices, name="top_items")
    writer.output("scores", np.float32, [n_items])
    writer.output("top_items", np.int64, [top])
    writer.output("top_scores", np.float32, [top])
