"""Recommenders of devices, whatever they compute: one graph around the part that makes the scores.

    rated int64 [r] → scores float32 [n_items], top_items int64 [top], top_scores float32 [top]

The file holds what is the user's own: it is personal, and belongs on the user's device alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from edge.core.errors import ExportError
from edge.onnx.graph_writer import GraphWriter
from edge.onnx.metadata import ModelInfo
from edge.onnx.work import ScoreWork

NOTHING_LEFT = -1
"""Stands in ``top_items`` where no item is left; its score is −inf."""
RECOMMENDER = "recommender"
Weights = Mapping[str, npt.NDArray[np.float32]]
Features = npt.NDArray[np.float32]


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


class Recommenders(Protocol):
    """The recommenders of n devices of one kind: what all share, what is each one's own, how both score."""

    def __len__(self) -> int:
        """Return n."""
        ...

    @property
    def kind(self) -> str:
        """What their files are called in the metadata."""
        ...

    @property
    def n_items(self) -> int:
        """Size of the catalogue."""
        ...

    @property
    def features(self) -> Features | None:
        """What they read of the items, float32 [n_items, d]; None where they read nothing."""
        ...

    def shared(self) -> Weights:
        """Return what is the same for all, and may change between rounds, by its name in the graph."""
        ...

    def own(self) -> Weights:
        """Return what is each device's own, float32 [n, …], by its name in the graph."""
        ...

    def part(self, rows: slice) -> Self:
        """Return some of the devices."""
        ...

    def check(self, info: ModelInfo) -> None:
        """Raise ``ExportError`` for what contradicts itself, or the catalogue of ``info``."""
        ...

    def add_scores(self, writer: GraphWriter, names: Mapping[str, str]) -> str:
        """Add the nodes that make the scores, and return the name of these, float32 [n_items].

        ``names`` has the name in the graph of everything that is shared or a device's own.
        """
        ...

    def formula(self) -> npt.NDArray[np.float64]:
        """Return what the graph computes, by numpy in float64, [n, n_items]."""
        ...

    def work(self) -> ScoreWork:
        """Return what the nodes of :meth:`add_scores` cost one device."""
        ...


def blocks(models: Recommenders, size: int) -> Iterator[tuple[slice, Recommenders]]:
    """Yield runs of at most ``size`` devices, with their rows."""
    for start in range(0, len(models), size):
        rows = slice(start, min(start + size, len(models)))
        yield rows, models.part(rows)


def check_array(what: str, array: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise ``ExportError`` unless ``array`` is finite float32 of this shape."""
    if array.dtype != np.float32 or array.shape != shape:
        raise ExportError(f"{what}: float32 {list(shape)} is needed, not {array.dtype} {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ExportError(f"{what}: not finite everywhere")


def check_catalogue(n_items: int, info: ModelInfo) -> None:
    """Raise ``ExportError`` if model and metadata have different numbers of items."""
    if n_items != info.n_items:
        raise ExportError(f"the model has {n_items} items, its metadata {info.n_items}")


def info_for(features: Features | None, info: ModelInfo) -> ModelInfo:
    """Return ``info`` as a model with these features has it: without names where it reads none."""
    return info if features is not None else dataclasses.replace(info, feature_names=())


def recommender_model(
    models: Recommenders, info: ModelInfo, *, top: int, weights_as_inputs: bool = False
) -> bytes:
    """Return the serialised graph of the first device; see the module for its inputs and outputs.

    Parameters
    ----------
    models : of one device or more.
    info : goes into the metadata; names of features only where the model reads some.
    top : length of the list, fixed in the file. See :func:`edge.onnx.recommenders.add_top` for the outputs.
    weights_as_inputs : make everything that differs between devices or changes between rounds an input of
        the graph, under its name, so that one session serves every device of a whole run: ``shared`` and
        ``own`` of the models. Of what is given here only the shapes count, but for the features, which stay
        inside.

    Raises
    ------
    ExportError, MissingExtraError
    """
    info = info_for(models.features, info)
    check_catalogue(models.n_items, info)
    check_top(top)
    models.check(info)
    writer = GraphWriter()
    rated = writer.input("rated", np.int64, ["r"])
    weights = {**models.shared(), **{name: np.asarray(array[0]) for name, array in models.own().items()}}
    names = {
        name: writer.weight(name, values, as_input=weights_as_inputs) for name, values in weights.items()
    }
    score = models.add_scores(writer, names)
    add_top(writer, score, rated, n_items=models.n_items, top=top)
    return writer.model(info.properties(models.kind))
