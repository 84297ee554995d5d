"""Zero-order mask: a user's mean rating, shrunk to the global mean.

Source: Yang et al. 2021, section on mask models; the shrinkage is that of Koren, "Factor in the Neighbors"
(2010), section 2.1, for a bias.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import PositiveFloat
from edge.learning.base import RatingBatch, Work
from edge.learning.masks.base import FLOAT_BYTES, Features, MaskParameters, fitting_work
from edge.learning.method_settings import MethodSettings

MEAN = "mean"


class ZeroOrderSettings(MethodSettings):
    """Settings of the zero-order mask."""

    kind: Literal["zero-order"] = "zero-order"
    shrinkage: PositiveFloat = Field(
        default=5.0, description="ratings at the global mean that a user is taken to have given beforehand"
    )


class ZeroOrder:
    """f_u(i) = (Σ r + s·μ) / (n + s). Parameters: ``mean`` [n]."""

    def __init__(self, settings: ZeroOrderSettings) -> None:
        self.settings = settings

    def spec(self, d: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return name and shape of one user's parameters: one number, whatever ``d``."""
        return ((MEAN, ()),)

    def fit(
        self, batch: RatingBatch, features: Features, mean: float, keys: npt.NDArray[np.uint64]
    ) -> MaskParameters:
        """Fit every user's mean; features and keys play no part. See :class:`MaskModel`."""
        return {MEAN: shrunk_means(batch, mean, self.settings.shrinkage).astype(np.float32)}

    def predict(
        self,
        parameters: MaskParameters,
        features: Features,
        indptr: npt.NDArray[np.int64],
        items: npt.NDArray[Any],
    ) -> npt.NDArray[np.float32]:
        """Repeat each user's mean for its items, float32 [N]."""
        return np.repeat(parameters[MEAN], np.diff(indptr))

    def catalogue(self, parameters: MaskParameters, features: Features) -> npt.NDArray[np.float32]:
        """Repeat each user's mean for every item, float32 [n, items]."""
        return np.repeat(parameters[MEAN][:, None], len(features), axis=1)

    def work(self, examples: npt.NDArray[np.int64], d: int) -> Work:
        """Return the work of one pass over the ratings: an addition each, then three flops."""
        rows = examples.astype(np.float64)
        return fitting_work(
            flops=rows + 3.0,
            moved_bytes=(rows + 1.0) * FLOAT_BYTES,
            ops=np.ones(len(rows)),
            gathered_rows=np.zeros(len(rows)),
            width=0,
            steps=np.ones(len(rows)),
            memory_bytes=(rows + 1.0) * FLOAT_BYTES,
        )


def shrunk_means(batch: RatingBatch, mean: float, shrinkage: float) -> npt.NDArray[np.float64]:
    """Return (Σ r + s·μ) / (n + s) of every user, float64 [n], s = ``shrinkage`` > 0 and μ = ``mean``."""
    counts = np.diff(batch.indptr)
    owners = np.repeat(np.arange(len(counts)), counts)
    # bincount adds a user's ratings one after the other, in float64, whoever the others are.
    sums = np.bincount(owners, batch.ratings, minlength=len(counts))
    return np.asarray((sums + shrinkage * mean) / (counts + shrinkage))
