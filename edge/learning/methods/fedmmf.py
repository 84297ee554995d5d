"""FedMMF: federated matrix factorisation on ratings behind personalised masks.

Source: Yang et al. 2021, "Practical and Secure Federated Recommendation with Personalized Masks". Every
device fits a private model f_u on its own ratings and the public features of their items, the mask; the
factorisation is trained on what the mask leaves, r_ui − f_u(i), and a rating is predicted as
p_u·q_i + b_i + b_u + f_u(i). The mask never leaves the device. The factorisation here is FedRecon's: user
factors are reconstructed every round, or kept on the device
(:mod:`edge.learning.methods.fedrecon.algorithm`).

A mask depends on a user's own ratings alone, and no device keeps its own between rounds: it fits the same one
every time, and is charged for it every time. Here the fits of ratings seen before are remembered.

What an upload reveals is what FedRecon's reveals, of residuals in place of ratings. A mask is no protection
by itself: see the threat model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edge.learning.base import Problem, RatingBatch, Ratings, State, Work, together
from edge.learning.masks.base import MaskMemo, MaskParameters
from edge.learning.masks.registry import MaskSettings, create
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import ReconstructionSettings
from edge.learning.row_uploads import RowUploads
from edge.learning.updates import Array, ArraySpec, ClientUpdate, UpdateBatch, laid_out

FEATURES, MASK_MEAN = "item_features", "mask_mean"


class FedMMFSettings(ReconstructionSettings):
    """Settings of FedMMF: those of the factorisation, and the mask."""

    algorithm: Literal["fedmmf"]
    loss: Literal["squared-error"] = Field(default="squared-error", description="squared error alone")
    mask: MaskSettings = Field(description="the private model of each device, by `kind`")


class FedMMF(FedRecon):
    """FedRecon behind personalised masks; see the module and :class:`FedMMFSettings`.

    State and upload are those of :class:`~edge.learning.methods.fedrecon.algorithm.FedRecon` without a
    mean. What devices
    download once: ``item_features`` float32 [items, d] and ``mask_mean`` [1], the mean rating that masks
    shrink to.
    """

    Settings = FedMMFSettings
    needs_features = True
    has_masks = True
    settings: FedMMFSettings

    def __init__(self, settings: FedMMFSettings, problem: Problem) -> None:
        if problem.features is None:
            raise ValueError("fedmmf needs item features; this problem has none")
        super().__init__(settings, problem)
        self.mask = create(settings.mask)
        self.features: npt.NDArray[np.float32] = problem.features
        self.mean = problem.rating_mean
        self._masks = MaskMemo(self.mask, self.features, self.mean)

    @classmethod
    def begins_with_mean(cls, settings: FedMMFSettings) -> bool:
        """Return True: masks shrink to it."""
        return True

    def fixed(self) -> dict[str, Array]:
        """Return what a device downloads once: the features of the items and the mean rating."""
        return {FEATURES: self.features, MASK_MEAN: np.array([self.mean], np.float32)}

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return the cost of fitting the mask and of the factorisation's round."""
        mask = self.mask.work(examples, self.features.shape[1])
        return together(mask, super().work(examples, steps))

    def summed_spec(self) -> Sequence[ArraySpec]:
        """Return the whole table, whatever is uploaded in the clear."""
        whole = RowUploads(self.n_items, self.width, self.dtype, dense=True)
        return whole.specs(np.ones(1, np.int64))

    def summed(self, update: ClientUpdate) -> ClientUpdate:
        """Return a client's update as a secure sum takes it, whatever is uploaded in the clear."""
        return update if self.settings.upload == "dense" else laid_out(update, self.n_items)

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Mask every user's ratings and update the factorisation on the rest."""
        return super().client_update(state, self.masked(batch), client_keys, clients, steps, local)

    def masked(self, batch: RatingBatch) -> RatingBatch:
        """Return the ratings of a batch less what each user's own mask says of them."""
        known = self.mask_of(batch, batch.indptr, batch.items)
        return Ratings(batch.indptr, batch.items, batch.ratings - known)

    def masks(self, batch: RatingBatch) -> MaskParameters:
        """Return the parameters of the masks of a batch's users, by name; the leading axis is the users'."""
        return self._masks.of(batch)

    def mask_of(
        self, batch: RatingBatch, indptr: npt.NDArray[np.int64], items: npt.NDArray[Any]
    ) -> npt.NDArray[np.float32]:
        """Return what the masks fitted to ``batch`` say of each user's list of ``items``, float32 [N]."""
        return self.mask.predict(self.masks(batch), self.features, indptr, items)

    def reconstruct(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[Any]:
        """Return the factorisation's local parameters, fitted to what the masks leave of ``support``."""
        return super().reconstruct(state, self.masked(support), client_keys, local)

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Fit masks and user factors to ``support`` and predict the ``query`` ratings, [N of query]."""
        rest = super().predict(state, self.masked(support), query, client_keys, local)
        predictions: Array = rest + self.mask_of(support, query.indptr, query.items)
        return predictions

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Fit masks and user factors to ``support`` and predict every item, float32 [n, items]."""
        scores = super().scores(state, self.masked(support), client_keys, local)
        scores += self.mask.catalogue(self.masks(support), self.features)
        return scores
