"""PFedRec: a user is its own score function, and tunes the items' table for itself.

Source: Zhang et al., "Dual Personalization on Federated Recommendation" (IJCAI 2023), algorithm 1, and the
published code (Zhangcx19/IJCAI-23-PFedRec). A score is σ(w_u·e_i + b_u), with no embedding of the user.
Shared: the table E of items. Kept on the device: w_u and b_u. A round on a device starts from E, and takes a
pass over its positives and as many negatives as the settings say, in mini-batches B:

    g_i = (σ(w·e_i + b) − y_i) / |B|
    w ← w − η (Σ g_i e_i + λ w),  b ← b − η Σ g_i            the items frozen
    g_i anew, with the new w and b
    e_i ← e_i − η_E (g_i w + λ e_i / |B|)                    the head frozen

and uploads how the rows changed; the coordinator adds the unweighted mean of the changes. η_E is η·80·items
in the published code: a change is divided by the cohort, of which few have the item.

The table that a device has tuned is the second personalisation, and what the paper scores. It is a function
of E, the kept head and the device's data, and the next round begins with E again: nothing of it has to be
kept. A device that serves its own table tunes it anew (``served_table: personal``).

What an upload reveals. The rows are multiples g_i·w of one vector, positive for what was drawn and negative
for what the user took to: the sign of their direction alone divides them. A sparse upload names them as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import PositiveFloat
from edge.learning import fedrecon_kernels as kernels
from edge.learning import layers
from edge.learning.base import WORK_KINDS, Problem, RatingBatch, State, Work
from edge.learning.head_recommender import TABLE, HeadRecommender, HeadSettings, Tuned
from edge.learning.joint_descent import selections
from edge.learning.method_settings import rows_seen, step_counts
from edge.learning.personal_heads import Heads, head_gradients, logits, mean_losses, row_gradients, slopes
from edge.learning.sampled_negatives import Examples
from edge.learning.updates import Array

Ints = npt.NDArray[np.int64]
_FLOAT_BYTES = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))


class PFedRecSettings(HeadSettings):
    """Settings of PFedRec."""

    algorithm: Literal["pfedrec"]
    item_learning_rate: PositiveFloat = Field(
        default=8.0, description="rate of the items in these steps, times the number of items"
    )
    served_table: Literal["personal", "server"] = Field(
        default="server",
        description="what predicts: the table tuned on the device's own data, or the coordinator's as it is",
    )


class PFedRec(HeadRecommender):
    """PFedRec; see the module and :class:`PFedRecSettings`.

    State and upload are those of :class:`~edge.learning.head_recommender.HeadRecommender`; a device keeps w
    and b.
    """

    Settings = PFedRecSettings
    settings: PFedRecSettings

    def __init__(self, settings: PFedRecSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        super().__init__(settings, problem, dtype)
        self.own_tables = settings.served_table == "personal"

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return what a round costs users with this many positives.

        A row costs 2d flops for each of two scores, 2d for the head's gradient and 2d for its own, and 2d
        more for the loss before the first step. Memory: the table as it came, twice the rows, and the upload.
        """
        d, client = self.settings.factors, self.settings.client
        counts = self.zero_one.counts(examples)
        rows = counts.astype(np.float64)
        taken = np.maximum(step_counts(client, counts) if steps is None else steps, 1).astype(np.float64)
        seen = rows_seen(client, counts, taken.astype(np.int64)).astype(np.float64)
        flops, moved, ops = (np.zeros((len(rows), len(WORK_KINDS))) for _ in range(3))
        moved[:, _GATHER] = 2.0 * rows * d * _FLOAT_BYTES
        ops[:, _GATHER] = 1.0
        flops[:, _SCORING] = 2.0 * d * rows + 8.0 * d * seen + taken * 4.0 * d
        moved[:, _SCORING] = (rows * d + 4.0 * seen * d) * _FLOAT_BYTES
        ops[:, _SCORING] = 3.0 + 9.0 * taken
        sent = float(self.n_items) if self.settings.upload == "dense" else rows
        memory = _FLOAT_BYTES * (self.n_items * d + rows * (2.0 * d + 3.0) + sent * (d + 1.0) + 3.0 * (d + 1))
        per_step = taken[:, None]
        return Work(
            flops / per_step, moved / per_step, ops / per_step, taken, np.ceil(memory).astype(np.int64)
        )

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Return the probability that users take to their ``query`` items, float64 [N of query].

        With ``served_table: personal`` head and table are tuned on ``support`` first.
        """
        counts = np.diff(query.indptr)
        if self.settings.served_table == "server":
            rows = layers.embedding(state[TABLE], query.items)
            heads = Heads.of(self.reconstruct(state, support, client_keys, local))
            return layers.sigmoid(logits(heads, rows, counts).astype(np.float64))
        found = np.empty(int(query.indptr[-1]), self.dtype)
        examples = self.examples(support, client_keys)
        asked = np.repeat(np.arange(len(counts)), counts) * self.n_items + query.items.astype(np.int64)
        for tuned in self.tuned(state, examples, client_keys, local):
            part = slice(int(query.indptr[tuned.first]), int(query.indptr[tuned.end]))
            rows = layers.embedding(state[TABLE], query.items[part])
            own = self._codes(examples, tuned)
            place = np.searchsorted(own, asked[part])
            place[place == len(own)] = 0
            tuned_ones = np.flatnonzero(own[place] == asked[part]) if len(own) else place[:0]
            rows[tuned_ones] = tuned.rows[place[tuned_ones]]
            found[part] = logits(tuned.heads, rows, counts[tuned.first : tuned.end])
        return layers.sigmoid(found.astype(np.float64))

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the logit of every item, float32 [n, items]; heads and table as in :meth:`predict`."""
        table = np.ascontiguousarray(state[TABLE].T)[None]
        if self.settings.served_table == "server":
            heads = Heads.of(self.reconstruct(state, support, client_keys, local))
            weights = np.ascontiguousarray(heads.weights)
            return np.asarray(layers.vector_products(weights, table) + heads.bias[:, None], np.float32)
        found = np.empty((len(support.indptr) - 1, self.n_items), np.float32)
        examples = self.examples(support, client_keys)
        for tuned in self.tuned(state, examples, client_keys, local):
            those = slice(tuned.first, tuned.end)
            weights = np.ascontiguousarray(tuned.heads.weights)
            found[those] = layers.vector_products(weights, table) + tuned.heads.bias[:, None]
            counts = np.diff(examples.indptr[tuned.first : tuned.end + 1])
            owners = np.repeat(np.arange(tuned.first, tuned.end), counts)
            found[owners, examples.items[tuned.part]] = logits(tuned.heads, tuned.rows, counts)
        return found

    def reconstruct(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[Any]:
        """Return w and b of users as their devices keep them, [n, d + 1]; the initial ones of new users."""
        return self.heads(state, len(support.indptr) - 1, local)

    def tuned(
        self,
        state: State,
        examples: Examples,
        keys: npt.NDArray[np.uint64],
        local: Array | None,
        steps: Ints | None = None,
    ) -> Iterator[Tuned]:
        """Take the users' steps, in each on the head and then on the rows."""
        s = self.settings
        everyone = self.heads(state, len(examples.indptr) - 1, local)
        rate, decay = self.dtype.type(s.client.learning_rate), s.client.regularization
        item_rate = self.dtype.type(s.item_learning_rate * self.n_items)
        for first, end in kernels.blocks(examples.indptr):
            part = slice(int(examples.indptr[first]), int(examples.indptr[end]))
            indptr = examples.indptr[first : end + 1] - examples.indptr[first]
            start = layers.embedding(state[TABLE], examples.items[part])
            rows, labels = start.copy(), examples.positive[part].astype(self.dtype)
            packed = everyone[first:end].copy()
            losses = mean_losses(Heads.of(packed), rows, labels, np.diff(indptr))
            limits = None if steps is None else steps[first:end]
            for active, places, sizes in selections(indptr, keys[first:end], s.client, limits):
                here, truth = rows.take(places, axis=0), labels.take(places)
                heads = Heads.of(packed.take(active, axis=0))
                gradient = head_gradients(heads, here, slopes(heads, here, truth, sizes), sizes, decay)
                heads = Heads(heads.weights - rate * gradient.weights, heads.bias - rate * gradient.bias)
                packed[active] = heads.packed()
                of_rows = row_gradients(heads, slopes(heads, here, truth, sizes), sizes)
                if decay:
                    share = (self.dtype.type(decay) / sizes.astype(self.dtype)).repeat(sizes)
                    of_rows += share[:, None] * here
                rows[places] = here - item_rate * of_rows
            yield Tuned(first, end, part, start, rows, packed, losses)

    def _codes(self, examples: Examples, tuned: Tuned) -> Ints:
        """Return user · items + item of a run's examples, int64 [R], increasing."""
        counts = np.diff(examples.indptr[tuned.first : tuned.end + 1])
        owners = np.repeat(np.arange(tuned.first, tuned.end), counts)
        return np.asarray(owners * self.n_items + examples.items[tuned.part])
