"""Masks that devices have fitted, inside a graph that scores the whole catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from edge.core.errors import ExportError
from edge.onnx import formulas
from edge.onnx.graph_writer import GraphWriter
from edge.onnx.mask_graph import (
    MASK_WEIGHTS,
    Features,
    MaskKind,
    Weights,
    add_mask,
    check_features,
    check_mask,
)
from edge.onnx.metadata import ModelInfo
from edge.onnx.work import ScoreWork, mask_work


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """One device's mask with the features that it reads: float32 [n_items, d], None for zero-order."""

    kind: MaskKind
    weights: Weights
    features: Features | None


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """The masks of n devices, of one kind: their weights have a leading axis of n."""

    kind: MaskKind
    weights: Weights
    features: Features | None

    @classmethod
    def of_one(cls, mask: Mask) -> Self:
        """Return the mask of one device as those of a single one."""
        weights = {name: np.asarray(array)[None] for name, array in mask.weights.items()}
        return cls(mask.kind, weights, mask.features)

    def part(self, rows: slice) -> Self:
        """Return the masks of some of the devices."""
        weights = {name: array[rows] for name, array in self.weights.items()}
        return type(self)(self.kind, weights, self.features)

    def one(self, row: int) -> Mask:
        """Return the mask of one device."""
        weights = {name: np.asarray(array[row]) for name, array in self.weights.items()}
        return Mask(self.kind, weights, self.features)

    def check(self, info: ModelInfo) -> None:
        """Raise ``ExportError`` for masks that contradict themselves or the catalogue; looks at the first."""
        check_own_mask(self.one(0), info)

    def add_scores(self, writer: GraphWriter, names: Mapping[str, str], n_items: int) -> str:
        """Add the nodes of a mask and return the name of what it says of every item, float32 [n_items]."""
        return add_own_mask(writer, self.kind, names, self.features, n_items)

    def formula(self, n_items: int) -> npt.NDArray[np.float64]:
        """Return what they say of every item, float64 [n, n_items]."""
        return formulas.mask_scores(self.kind, self.weights, self.features, n_items)

    def work(self, n_items: int) -> ScoreWork:
        """Return what the nodes of one cost."""
        sizes = {
            dim: size
            for name, dims in MASK_WEIGHTS[self.kind].items()
            for dim, size in zip(dims, self.weights[name].shape[1:], strict=True)
        }
        return mask_work(self.kind, n_items, sizes.get("d", 0), sizes.get("f", sizes.get("h", 0)))


def check_own_mask(mask: Mask, info: ModelInfo) -> None:
    """Raise ``ExportError`` for a mask that contradicts itself or the catalogue."""
    width = check_mask(mask.kind, mask.weights)
    if (width is None) != (mask.features is None):
        raise ExportError(f"features of a {mask.kind} mask: give {'None' if width is None else 'them'}")
    if width is not None and mask.features is not None:
        check_features(mask.features, width, info)


def add_own_mask(
    writer: GraphWriter, kind: MaskKind, names: Mapping[str, str], features: Features | None, n_items: int
) -> str:
    """Add a device's mask and return the name of what it says of every item, float32 [n_items].

    ``names`` has the name in the graph of each of its weights.
    """
    x = shape = ""
    if features is None:
        shape = writer.constant("catalogue", np.array([n_items], np.int64))
    else:
        x = writer.constant("features", features)
    return add_mask(writer, kind, names, x, shape)
