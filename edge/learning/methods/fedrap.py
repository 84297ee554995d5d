"""FedRAP: two tables of items are added up, one shared, one that never leaves the device.

Source: Li et al., "Federated Recommendation with Additive Personalization" (ICLR 2024), and the published
code (mtics/FedRAP). A score is σ(w_u·(D_i + C_i) + b_u): C is shared, D, w and b are kept on the device. A
device minimises, with a term that parts the two tables and one that makes C sparse,

    mean over its examples of [ cross-entropy − (λ/d)|D_i − C_i|² + (μ/d)|C_i|₁ + ½ρ(|D_i|² + |C_i|²) ] +
    ½ρ|w|²

by mini-batch steps on everything at once, and uploads how the rows of C changed; the coordinator adds their
mean. λ and μ grow from zero, tanh(t / ``curriculum_rounds``) times what they are set to in round t.

The parting term has no lower bound. Here it ends where the rows are apart by ``parting_limit``: beyond, its
gradient is zero.

What an upload reveals. The part of the cross-entropy is a multiple of w, one sign for positives and one for
negatives, as in PFedRec; the other terms are known to whoever knows D, which is nobody but the device, and
are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveFraction
from edge.learning import fedrecon_kernels as kernels
from edge.learning import layers
from edge.learning.base import WORK_KINDS, OptimizerState, Problem, RatingBatch, State, Work
from edge.learning.head_recommender import TABLE, HeadRecommender, HeadSettings, Tuned
from edge.learning.joint_descent import selections
from edge.learning.method_settings import rows_seen, step_counts
from edge.learning.personal_heads import Heads, head_gradients, logits, mean_losses, row_gradients, slopes
from edge.learning.sampled_negatives import Examples
from edge.learning.updates import Aggregate, Array

UPDATES = "updates"
Ints = npt.NDArray[np.int64]
_FLOAT_BYTES = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))


class FedRAPSettings(HeadSettings):
    """Settings of FedRAP."""

    algorithm: Literal["fedrap"]
    item_learning_rate: PositiveFloat = Field(
        default=0.3, description="rate of both tables in a device's steps, times the number of items"
    )
    parting: NonNegativeFloat = Field(
        default=0.0, description="λ, of the term that drives a device's table away from the shared one"
    )
    parting_limit: PositiveFloat = Field(
        default=10.0, description="distance of two rows from which that term drives them no further"
    )
    sparsity: NonNegativeFloat = Field(
        default=0.0, description="μ, of the L1 norm of the shared table's rows"
    )
    curriculum_rounds: NonNegativeInt = Field(
        default=10, description="rounds in which λ and μ come to 76 % of their values; 0: from the start"
    )
    batch_decay: PositiveFraction = Field(
        default=1.0, description="what each step of a round multiplies the device's rates by"
    )
    round_decay: PositiveFraction = Field(
        default=1.0, description="what each round multiplies the device's rates by"
    )


class FedRAP(HeadRecommender):
    """FedRAP; see the module and :class:`FedRAPSettings`.

    State: that of :class:`~edge.learning.head_recommender.HeadRecommender`, its table C, and ``updates``
    int64 [1], how often it has been updated. A device keeps D, then w and b: items · d + d + 1 numbers; D
    begins at zero.
    """

    Settings = FedRAPSettings
    own_tables = True
    settings: FedRAPSettings

    def __init__(self, settings: FedRAPSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        super().__init__(settings, problem, dtype)
        self.local_width += self.n_items * settings.factors

    def initial_state(self, seed: int) -> State:
        """Return C ~ N(0, ``initial_scale``²), the initial head, and no update."""
        return {**super().initial_state(seed), UPDATES: np.zeros(1, np.int64)}

    def held_bytes(self, examples: Ints) -> Ints:
        """Return what updates take in a batch, bytes: their rows, and the tables before and after."""
        return super().held_bytes(examples) + 2 * self.local_width * self.dtype.itemsize

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return what a round costs users with this many positives.

        A row costs 3d flops for its score, 2d for the head's gradient, d for its own, and 8d for terms and
        moves of two tables; and 3d for the loss before the first step. Memory: both tables, three times the
        rows, the upload.
        """
        d, client = self.settings.factors, self.settings.client
        counts = self.zero_one.counts(examples)
        rows = counts.astype(np.float64)
        taken = np.maximum(step_counts(client, counts) if steps is None else steps, 1).astype(np.float64)
        seen = rows_seen(client, counts, taken.astype(np.int64)).astype(np.float64)
        flops, moved, ops = (np.zeros((len(rows), len(WORK_KINDS))) for _ in range(3))
        moved[:, _GATHER] = 4.0 * rows * d * _FLOAT_BYTES
        ops[:, _GATHER] = 2.0
        flops[:, _SCORING] = 3.0 * d * rows + 14.0 * d * seen + taken * 4.0 * d
        moved[:, _SCORING] = (2.0 * rows * d + 8.0 * seen * d) * _FLOAT_BYTES
        ops[:, _SCORING] = 4.0 + 14.0 * taken
        sent = float(self.n_items) if self.settings.upload == "dense" else rows
        memory = _FLOAT_BYTES * (
            2.0 * self.n_items * d + rows * (3.0 * d + 3.0) + sent * (d + 1.0) + 3.0 * (d + 1)
        )
        per_step = taken[:, None]
        return Work(
            flops / per_step, moved / per_step, ops / per_step, taken, np.ceil(memory).astype(np.int64)
        )

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the mean change of C, and count the update."""
        moved, optimizer_state = super().server_update(state, optimizer_state, aggregate, round_number)
        return {**moved, UPDATES: state[UPDATES] + 1}, optimizer_state

    def tuned(
        self,
        state: State,
        examples: Examples,
        keys: npt.NDArray[np.uint64],
        local: Array | None,
        steps: Ints | None = None,
    ) -> Iterator[Tuned]:
        """Take the users' steps, each on the head and on both tables."""
        s, d = self.settings, self.settings.factors
        number = int(state[UPDATES][0])
        grown = np.tanh(number / s.curriculum_rounds) if s.curriculum_rounds else 1.0
        parting = self.dtype.type(2.0 * s.parting * grown / d)
        sparsity, limit = self.dtype.type(s.sparsity * grown / d), self.dtype.type(s.parting_limit)
        slowed = s.round_decay**number
        rate, item_rate = s.client.learning_rate * slowed, s.item_learning_rate * self.n_items * slowed
        decay = s.client.regularization
        for first, end in kernels.blocks(examples.indptr):
            part = slice(int(examples.indptr[first]), int(examples.indptr[end]))
            indptr = examples.indptr[first : end + 1] - examples.indptr[first]
            before = None if local is None else local[first:end]
            kept = self._rows(end - first, before)
            kept[:, -d - 1 :] = self.heads(state, end - first, before)
            place = np.repeat(np.arange(end - first), np.diff(indptr)), examples.items[part]
            start = layers.embedding(state[TABLE], examples.items[part])
            shared, own = start.copy(), self._tables(kept)[place]
            packed, labels = kept[:, -d - 1 :].copy(), examples.positive[part].astype(self.dtype)
            losses = mean_losses(Heads.of(packed), own + shared, labels, np.diff(indptr))
            limits = None if steps is None else steps[first:end]
            taken = np.zeros(end - first, np.int64)
            for active, places, sizes in selections(indptr, keys[first:end], s.client, limits):
                mine, ours = own.take(places, axis=0), shared.take(places, axis=0)
                heads, rows = Heads.of(packed.take(active, axis=0)), mine + ours
                of_logits = slopes(heads, rows, labels.take(places), sizes)
                gradient = head_gradients(heads, rows, of_logits, sizes, decay)
                slower = np.power(s.batch_decay, taken[active])
                step = (rate * slower).astype(self.dtype)
                heads_now = Heads(
                    heads.weights - step[:, None] * gradient.weights, heads.bias - step * gradient.bias
                )
                packed[active] = heads_now.packed()
                of_rows = row_gradients(heads, of_logits, sizes)
                share = (1 / sizes.astype(self.dtype)).repeat(sizes)[:, None]
                apart = mine - ours
                near = layers.row_products(apart, apart) < limit * limit
                apart *= (parting * near)[:, None] * share
                step = (item_rate * slower).astype(self.dtype).repeat(sizes)[:, None]
                weight = self.dtype.type(decay) * share
                own[places] = mine - step * (of_rows - apart + weight * mine)
                shared[places] = ours - step * (
                    of_rows + apart + sparsity * share * np.sign(ours) + weight * ours
                )
                taken[active] += 1
            self._tables(kept)[place] = own
            kept[:, -d - 1 :] = packed
            yield Tuned(first, end, part, start, shared, kept, losses)

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Return the probability that users take to their ``query`` items, float64 [N of query].

        By what their devices keep, and C: nothing is fitted to ``support``.
        """
        counts = np.diff(query.indptr)
        rows = layers.embedding(state[TABLE], query.items)
        if local is not None:
            owners = np.repeat(np.arange(len(counts)), counts)
            rows += self._tables(np.asarray(local, self.dtype))[owners, query.items.astype(np.int64)]
        heads = Heads.of(self.heads(state, len(counts), local))
        return layers.sigmoid(logits(heads, rows, counts).astype(np.float64))

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the logit of every item, float32 [n, items]; as in :meth:`predict`."""
        users = len(support.indptr) - 1
        heads = Heads.of(self.heads(state, users, local))
        tables = None if local is None else self._tables(np.asarray(local, self.dtype))
        found = np.empty((users, self.n_items), np.float32)
        for user, row in enumerate(found):
            table = state[TABLE] if tables is None else tables[user] + state[TABLE]
            row[:] = np.dot(table, np.ascontiguousarray(heads.weights[user]))
        return found + heads.bias.astype(np.float32)[:, None]

    def _rows(self, users: int, local: Array | None) -> Array:
        """Return a copy of what devices keep, [users, local_width]."""
        if local is None:
            return np.zeros((users, self.local_width), self.dtype)
        return np.array(local, self.dtype)

    def _tables(self, local: Array) -> Array:
        """Return D in rows [n, local_width], a view [n, items, d]."""
        d = self.settings.factors
        return local[:, : self.n_items * d].reshape(len(local), self.n_items, d)
