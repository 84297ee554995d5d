"""Scores from the features of the items alone: models without factors of users or items.

A device's model is a mask that nothing is added to (:mod:`edge.onnx.mask_graph`): its own, or one that all
share, in which the user's own features have gone into weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from edge.onnx.graph_writer import GraphWriter
from edge.onnx.metadata import ModelInfo
from edge.onnx.own_masks import Masks
from edge.onnx.recommenders import RECOMMENDER, Features, Weights
from edge.onnx.work import ScoreWork

CONTEXT: Final = f"{RECOMMENDER}/context"


@dataclass(frozen=True, slots=True, eq=False)
class ContextModels:
    """The recommenders of n devices by features: ``masks`` of these, and how many items there are."""

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
