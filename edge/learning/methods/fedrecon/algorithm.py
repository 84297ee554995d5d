"""FedRecon matrix factorisation: global item factors, user factors reconstructed on the device every round.

Source: Singhal et al., "Federated Reconstruction: Partially Local Federated Learning" (NeurIPS 2021),
algorithm 1, applied to r̂_ui = μ + b_i + b_u + p_u·q_i. Global: item factors q and item biases b_i. Local,
made anew every round and never uploaded: user factors p_u and user bias b_u.

With ``user_factors: persistent`` a device keeps p_u and b_u and takes its steps from there, as in federated
factorisation with state on the devices: Chai et al., "Secure Federated Matrix Factorization" (2019).

A round on a device: split the ratings into support and query (or use all for both); from zero, fit p_u and
b_u to the support with the items frozen, by ridge regression (b_u solved jointly) or gradient steps; with p_u
and b_u frozen, take gradient steps on the items of the query; upload how the item rows changed.

What an upload reveals. A *sparse* upload names the items it changes: whoever sees it learns which items were
rated (the query part of them, under a split), and the rows are multiples of p_u, so they give its direction
away as well. A *dense* upload is zero where nothing changed: seen in the clear it reveals just as much, but
it can be added up under masks, so that only the sum over the cohort is seen. An item that a single device of
a cohort rated stays exposed in that sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from edge.core.rng import stream
from edge.learning import fedrecon_kernels as kernels
from edge.learning.base import MEAN, OptimizerState, Problem, RatingBatch, Ratings, State, Work
from edge.learning.losses import Labelled, ScoreLoss, log_odds, partners
from edge.learning.method_settings import UserSteps, step_counts, work_share
from edge.learning.methods.fedrecon.settings import FedReconSettings, ReconstructionSettings
from edge.learning.methods.fedrecon.work import fedrecon_work
from edge.learning.proximal import Pull, proximal_item_steps, pull_of
from edge.learning.row_uploads import RowRecommender, RowUploads
from edge.learning.score_descent import fit_users, item_steps
from edge.learning.server_optimizers import SgdSettings
from edge.learning.tables import SpareArrays, TableRows, TableVersions, columns_of
from edge.learning.updates import (
    ITEMS,
    ROWS,
    Aggregate,
    Array,
    UpdateBatch,
)

FACTORS, BIAS = "item_factors", "item_bias"


def _subtracts_mean(settings: Any) -> bool:
    """Return whether the mean rating is subtracted; differences of scores have no mean."""
    wanted: bool = getattr(settings, "subtract_mean", False)
    return wanted and settings.loss in ("squared-error", "cross-entropy")


class FedRecon(RowRecommender):
    """FedRecon matrix factorisation; see the module for what it does and :class:`FedReconSettings`.

    State: ``item_factors`` [items, k], ``item_bias`` [items] (with ``item_bias``), ``rating_mean`` [1].
    Upload: ``item_rows`` [n, k + 1], the deltas of the factors and, with ``item_bias``, of the bias in the
    last column, times the weight; and, when sparse, ``items`` [n]. All arithmetic in ``dtype``.
    """

    Settings: ClassVar[type[BaseModel]] = FedReconSettings
    trained: ClassVar[tuple[str, ...]] = (FACTORS, BIAS)
    row_arrays: ClassVar[tuple[str, ...]] = (FACTORS, BIAS)
    settings: ReconstructionSettings

    def __init__(
        self, settings: ReconstructionSettings, problem: Problem, dtype: type[Any] = np.float32
    ) -> None:
        if problem.n_items < 1:
            raise ValueError(f"{self.name()} learns from ratings; this problem has no items")
        super().__init__(settings, problem)
        self.n_items = problem.n_items
        self.dtype = np.dtype(dtype)
        self.width = settings.factors + settings.item_bias
        self.layout = RowUploads(self.n_items, self.width, self.dtype, dense=settings.upload == "dense")
        self._rating_mean = problem.rating_mean if _subtracts_mean(settings) else 0.0
        if settings.loss == "cross-entropy" and self._rating_mean:
            self._rating_mean = log_odds(self._rating_mean)
        self.local_width = (
            settings.factors + settings.user_bias if settings.user_factors == "persistent" else 0
        )
        """Numbers that a device keeps of each of its users: p_u and b_u, or nothing."""
        self._factors, self._biases = TableVersions(), TableVersions()
        self._spare = SpareArrays()

    @classmethod
    def begins_with_mean(cls, settings: Any) -> bool:
        """Return whether it subtracts the mean rating."""
        return _subtracts_mean(settings)

    @classmethod
    def learns_ones(cls, settings: Any) -> bool:
        """Return whether its loss is another than squared error."""
        return getattr(settings, "loss", "squared-error") != "squared-error"

    def initial_state(self, seed: int) -> State:
        """Return item factors ~ N(0, ``initial_scale``²), biases 0 and the rating mean."""
        s = self.settings
        draws = stream(seed, "learning", "item_factors").standard_normal((self.n_items, s.factors))
        state = {
            FACTORS: (s.initial_scale * draws).astype(self.dtype),
            MEAN: np.array([self._rating_mean], self.dtype),
        }
        if s.item_bias:
            state[BIAS] = np.zeros(self.n_items, self.dtype)
        return state

    def local_steps(self, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many steps on the items users with this many ratings take."""
        return step_counts(self.settings.client, self.changed_rows(examples))

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return what a round costs users with this many ratings; see :mod:`work`."""
        return fedrecon_work(self.settings, self.n_items, self.changed_rows(examples), examples, steps)

    def changed_rows(self, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many rows users with this many ratings change: those of their queries."""
        if self.settings.split == "none":
            return examples
        support = kernels.support_sizes(examples, self.settings.support_fraction)
        return np.where(examples >= 2, examples - support, examples)

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Reconstruct every user and compute how its query ratings change the items.

        See :meth:`edge.learning.base.Recommender.client_update`. A client of several users uploads the sum of
        its users' deltas: weighted by their query ratings, or their mean with uniform weights.

        Raises
        ------
        ValueError : ``steps`` is given and clients hold several users.
        """
        s = self.settings
        table = self._table(state)
        users = len(batch.indptr) - 1
        held = kernels.ClientUsers.of(client_keys, clients, steps)
        owners, keys = held.owners, held.keys
        support: RatingBatch = batch
        query: RatingBatch = batch
        if s.split == "support-query":
            support, query = kernels.split(batch, keys, s.support_fraction)
        counts: npt.NDArray[np.int64] = np.diff(query.indptr)
        per_user = held.weights(s.weighting, counts)
        done = work_share(steps, step_counts(s.client, counts))
        per_user *= done
        scales = per_user.astype(self.dtype)
        rates = kernels.step_rates(query.indptr, keys, s.client, self.dtype, steps)
        pull = (
            pull_of(query.indptr, keys, s.client, s.proximal, kernels.CLIENT_DRAW, steps)
            if s.proximal
            else None
        )
        rows = np.empty((len(query.items), self.width), self.dtype)
        losses: npt.NDArray[Any] = np.zeros(users)
        kept = np.empty((users, self.local_width), self.dtype) if self.local_width else None
        for first, end in kernels.blocks(batch.indptr):
            design, fitted = self._reconstruct(table, support, first, end, keys, local)
            if kept is not None:
                kept[first:end] = kernels.unknowns_of(table, fitted)
            if query is not support:
                design = self._gather(table, query, first, end)
            part = slice(int(query.indptr[first]), int(query.indptr[end]))
            steps_of = (counts[first:end], rates[:, part], scales[first:end], rows[part])
            pulled = None if pull is None else pull.of(part)
            if s.loss == "squared-error":
                each = self._item_steps(design, fitted, *steps_of, pulled)
                np.square(each, out=each)
                each *= each.dtype.type(0.5)
            else:
                known = self._labelled(query, first, end, keys)
                each = self._item_steps_by_loss(s.loss, design, fitted, *steps_of, pulled, known)
            owner = np.repeat(np.arange(end - first), counts[first:end])
            losses[first:end] = np.bincount(owner, each, minlength=end - first)
        items = query.items.astype(self.layout.item_dtype, copy=False)
        offsets = query.indptr
        if clients is not None:
            items, rows, offsets = kernels.merge_users(
                items, rows, np.repeat(owners, counts), len(held.per_client)
            )
            losses = np.bincount(owners, losses, minlength=len(held.per_client))
            # Sums of whole numbers: exact in float64.
            counts = np.bincount(owners, counts, minlength=len(held.per_client)).astype(np.int64)
        weights = np.asarray(counts if s.weighting == "examples" else counts > 0, dtype=np.float64) * done
        fields: dict[str, Any] = {
            "stacked": {},
            "ragged": {ITEMS: items, ROWS: rows},
            "offsets": offsets,
            "weights": weights,
            "examples": counts,
            "losses": losses / np.maximum(counts, 1),
        }
        if kept is not None:
            fields["local"] = kept
            fields["local_offsets"] = np.arange(users + 1) if clients is None else clients
        return self.layout.batch(fields)

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the mean delta of the item rows."""
        return self.apply(state, optimizer_state, aggregate.mean_rows(ROWS), round_number)

    def apply(
        self,
        state: State,
        optimizer_state: OptimizerState,
        rows: Array | TableRows,
        round_number: int,
        others: Mapping[str, Array] = MappingProxyType({}),
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply a change of the item rows, [items, k (+ 1)] or some of them.

        And of the ``others``, further arrays of the state, by name: those of a method around this one.
        """
        s = self.settings
        if isinstance(rows, TableRows) and self._by_rows and not others:
            return self._apply_rows(state, rows, round_number), optimizer_state
        update = {FACTORS: columns_of(rows, slice(s.factors))}
        if s.item_bias:
            update[BIAS] = columns_of(rows, s.factors)
        update |= others
        rate = s.learning_rate * s.schedule.factor(round_number)
        trained = {name: state[name] for name in update}
        trained, optimizer_state = s.optimizer.apply(trained, optimizer_state, update, rate, self._spare.like)
        return {**state, **trained}, optimizer_state

    @property
    def _by_rows(self) -> bool:
        optimizer = self.settings.optimizer
        return isinstance(optimizer, SgdSettings) and optimizer.by_rows

    def _apply_rows(self, state: State, change: TableRows, round_number: int) -> State:
        """Apply a change of some item rows; the same bits as of all, at the cost of these."""
        s = self.settings
        step = s.learning_rate * s.schedule.factor(round_number) * change.rows
        moved = {FACTORS: self._factors.plus(state[FACTORS], change.index, step[:, : s.factors])}
        if s.item_bias:
            moved[BIAS] = self._biases.plus(state[BIAS], change.index, step[:, s.factors])
        return {**state, **moved}

    def finite(self, before: State, after: State, aggregate: Aggregate) -> bool:
        """Return whether a server update by ``aggregate`` has left finite numbers alone, as all were."""
        change = aggregate.rows(ROWS)
        if change is None or not self._by_rows:
            return super().finite(before, after, aggregate)
        tables = {FACTORS: self._factors, BIAS: self._biases}
        others = {name: array for name, array in after.items() if name not in tables}
        return super().finite(before, others, aggregate) and all(
            bool(np.isfinite(versions.changed(after[name], change.index)).all())
            for name, versions in tables.items()
            if name in after
        )

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Reconstruct users from all of ``support`` and predict their ``query`` ratings, [N of query]."""
        table = self._table(state)
        counts = np.diff(query.indptr)
        predictions = np.empty(int(query.indptr[-1]), self.dtype)
        for first, end in kernels.blocks(support.indptr):
            fitted = self._personalised(table, support, first, end, client_keys, local)
            part = slice(int(query.indptr[first]), int(query.indptr[end]))
            predictions[part] = kernels.predict_rows(table, fitted, query.items[part], counts[first:end])
        return predictions

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Reconstruct users from all of ``support`` and predict every item, float32 [n, items]."""
        table = self._table(state)
        scores = np.empty((len(support.indptr) - 1, self.n_items), np.float32)
        for first, end in kernels.blocks(support.indptr):
            fitted = self._personalised(table, support, first, end, client_keys, local)
            scores[first:end] = kernels.score_catalogue(table, fitted)
        return scores

    def predict_from(
        self, state: State, local: Array, items: npt.NDArray[Any], counts: npt.NDArray[np.int64]
    ) -> Array:
        """Predict each user's ``items`` from local parameters as they are, [sum of ``counts``].

        ``local`` is as :meth:`reconstruct` returns it.
        """
        extended = np.insert(local, self.settings.factors, -1.0, axis=1)
        return kernels.predict_rows(self._table(state), extended, items, counts)

    def reconstruct(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[Any]:
        """Reconstruct users from all of ``support``, from what they keep, and return their local parameters.

        They are [n, k + 1]: user factors, then the user bias; [n, k] without user biases.
        """
        table, s = self._table(state), self.settings
        users = np.empty((len(support.indptr) - 1, s.factors + s.user_bias), self.dtype)
        for first, end in kernels.blocks(support.indptr):
            fitted = self._personalised(table, support, first, end, client_keys, local)
            users[first:end] = kernels.unknowns_of(table, fitted)
        return users

    def _personalised(
        self,
        table: kernels.ItemTable,
        support: RatingBatch,
        first: int,
        end: int,
        keys: npt.NDArray[np.uint64],
        local: Array | None,
    ) -> Array:
        """Return what users are served with, [users, unknowns]: what is fitted to their ``support``."""
        return self._reconstruct(table, support, first, end, keys, local)[1]

    def _reconstruct(
        self,
        table: kernels.ItemTable,
        support: RatingBatch,
        first: int,
        end: int,
        keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> tuple[Array, Array]:
        """Return the gathered support rows of users ``first`` … ``end - 1`` and what was fitted to them.

        ``local`` [users, ``local_width``] is where each user starts; None: at zero.
        """
        design = self._gather(table, support, first, end)
        indptr = support.indptr[first : end + 1] - support.indptr[first]
        start, method = None if local is None else local[first:end], self.settings.reconstruction
        if self.settings.loss != "squared-error":
            assert isinstance(method, UserSteps), "the settings were checked"
            known = self._labelled(support, first, end, keys)
            return design, fit_users(design, table.factors, indptr, known, self.settings.loss, method, start)
        return design, kernels.reconstruct(table, design, indptr, keys[first:end], method, start)

    def _gather(self, table: kernels.ItemTable, batch: RatingBatch, first: int, end: int) -> Array:
        """Return the rows of some users; of another loss than squared error, with scores as of ratings 0."""
        if self.settings.loss == "squared-error":
            return kernels.gather(table, batch, first, end)
        zeros = Ratings(batch.indptr, batch.items, np.zeros(len(batch.items), np.float32))
        return kernels.gather(table, zeros, first, end)

    def _labelled(self, batch: RatingBatch, first: int, end: int, keys: npt.NDArray[np.uint64]) -> Labelled:
        """Return what is known of the examples of users ``first`` … ``end - 1``, for losses of them."""
        indptr = batch.indptr[first : end + 1]
        labels = batch.ratings[int(indptr[0]) : int(indptr[-1])].astype(self.dtype)
        return Labelled(labels, partners(indptr, labels, keys[first:end]))

    def _item_steps_by_loss(
        self,
        loss: ScoreLoss,
        design: Array,
        fitted: Array,
        counts: npt.NDArray[np.int64],
        rates: Array,
        scales: Array,
        out: Array,
        pull: Pull | None,
        examples: Labelled,
    ) -> Array:
        """Take the client's steps on the items; see :func:`~edge.learning.score_descent.item_steps`."""
        return item_steps(
            design,
            fitted,
            self.settings.factors,
            counts=counts,
            rates=rates,
            scales=scales,
            regularization=self.settings.client.regularization,
            out=out,
            examples=examples,
            loss=loss,
            pull=pull,
        )

    def _item_steps(
        self,
        design: Array,
        fitted: Array,
        counts: npt.NDArray[np.int64],
        rates: Array,
        scales: Array,
        out: Array,
        pull: Pull | None,
    ) -> Array:
        """Take the client's steps on the items; see :func:`~edge.learning.fedrecon_kernels.item_steps`."""
        how: dict[str, Any] = {
            "counts": counts,
            "rates": rates,
            "scales": scales,
            "regularization": self.settings.client.regularization,
            "out": out,
        }
        if pull is None:
            return kernels.item_steps(design, fitted, self.settings.factors, **how)
        return proximal_item_steps(design, fitted, self.settings.factors, pull=pull, **how)

    def _table(self, state: State) -> kernels.ItemTable:
        return kernels.item_table(
            state[FACTORS], state.get(BIAS), user_bias=self.settings.user_bias, mean=float(state[MEAN][0])
        )
