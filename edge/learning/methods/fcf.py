"""FCF: implicit alternating least squares, the users' half solved on the devices and thrown away.

Source: Ammad-ud-din et al., "Federated Collaborative Filtering for Privacy-Preserving Personalized
Recommendation System" (arXiv 1901.09888), which is Hu, Koren and Volinsky, "Collaborative Filtering for
Implicit Feedback Datasets" (ICDM 2008), by gradient steps on the items. With a preference p_ui of 1 for an
item that the user took to and 0 for every other, and a confidence c_ui = 1 + α·v(r_ui), or 1 for every other:

    J = Σ_u [ Σ_i c_ui (p_ui − x_u·y_i)² + λ_u |x_u|² ] + n λ_y Σ_i |y_i|²          n users, all items i

A round on a device: x_u = (YᵀC_uY + λ_u I)⁻¹ YᵀC_u p_u, with YᵀC_uY = YᵀY + Σ_rated (c − 1) y yᵀ, YᵀY from
the coordinator. The paper has a device upload f_ui = c_ui (p_ui − x_u·y_i) x_u for every item. What is needed
is their sum, and it has two parts, of which a device computes what its rated items cost, not all items:

    Σ_u f_ui = −(Σ_u x_u x_uᵀ) y_i + Σ_{u rated i} (c_ui − (c_ui − 1) x_u·y_i) x_u

A device uploads x_u x_uᵀ and its summands of the second. The coordinator moves Y by its optimiser along
mean_u f_ui − λ_y y_i, which is −∂J/∂y_i / 2n for a cohort of all n users. The λ of the paper is n λ_y here,
so that what the items shrink by does not depend on the size of a cohort.

What an upload reveals. Everything: x_u x_uᵀ has rank one and gives x_u up to its sign, a row is a multiple of
x_u whose size gives c_ui, hence the rating, and rows that are not zero name the rated items. (The paper's
form gives the same away: f_ui of all items has rank one, and those of unrated ones are known multiples.) A
dense upload can be summed under masks, and then nothing but the sum is seen.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import NonNegativeFloat, PositiveFloat, PositiveInt
from edge.core.rng import stream
from edge.learning import fedrecon_kernels as kernels
from edge.learning import layers
from edge.learning.base import WORK_KINDS, OptimizerState, Problem, RatingBatch, State, Work
from edge.learning.least_squares import ridge, segment_grams
from edge.learning.method_settings import MethodSettings
from edge.learning.methods.fedrecon.algorithm import FACTORS
from edge.learning.row_uploads import RowRecommender, RowUploads
from edge.learning.server_optimizers import AdamSettings, ConstantSchedule, Schedule, ServerOptimizer
from edge.learning.updates import ITEMS, ROWS, Aggregate, Array, UpdateBatch

ITEM_GRAM, USER_GRAM = "item_gram", "user_gram"
Ints = npt.NDArray[np.int64]
_FLOAT_BYTES = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))


class FCFSettings(MethodSettings):
    """Settings of FCF."""

    algorithm: Literal["fcf"]
    factors: PositiveInt = Field(default=32, description="length k of the user and item factors")
    confidence: PositiveFloat = Field(
        default=10.0, description="α: an item that somebody took to counts 1 + α·v, every other 1"
    )
    strength: Literal["one", "log", "rating"] = Field(
        default="one",
        description="v of a rating r: 1, log(1 + r) as for counts of plays, or r itself",
    )
    user_regularization: PositiveFloat = Field(default=30.0, description="λ of a user's factors")
    item_regularization: NonNegativeFloat = Field(
        default=0.03,
        description="λ of an item's factors: that of the sum over users, by their number",
    )
    initial_scale: PositiveFloat = Field(
        default=0.1, description="standard deviation of the item factors before the first round"
    )
    upload: Literal["sparse", "dense"] = Field(
        default="sparse", description="upload the rated items' rows and their numbers, or the whole table"
    )
    optimizer: ServerOptimizer = AdamSettings.model_construct(kind="adam")
    learning_rate: PositiveFloat = Field(default=0.05, description="server learning rate")
    schedule: Schedule = ConstantSchedule.model_construct()


class _Fit(NamedTuple):
    """Some users and what they were fitted to."""

    rows: Array
    """y_i of the rated items, [N, k]."""
    extra: Array
    """c_ui − 1 of them, [N]; 0 of a rating that is not positive."""
    liked: Array
    """p_ui of them, [N]."""
    users: Array
    """x_u, [n, k]."""


class FCF(RowRecommender):
    """FCF; see the module and :class:`FCFSettings`.

    State: ``item_factors`` [items, k]. Download: that, and ``item_gram`` [k, k], YᵀY. Upload: ``user_gram``
    [k(k + 1)/2], the upper triangle of x xᵀ by rows, and ``item_rows`` [n, k], f of the rated items; and
    when sparse ``items`` [n]; every client weighs 1. All arithmetic in ``dtype``.
    """

    Settings = FCFSettings
    row_arrays = (FACTORS,)
    settings: FCFSettings

    def __init__(self, settings: FCFSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        if problem.n_items < 1:
            raise ValueError("fcf learns from ratings; this problem has no items")
        super().__init__(settings, problem)
        self.n_items = problem.n_items
        self.dtype = np.dtype(dtype)
        self._triangle = np.triu_indices(settings.factors)
        self.layout = RowUploads(
            self.n_items,
            settings.factors,
            self.dtype,
            dense=settings.upload == "dense",
            whole={USER_GRAM: len(self._triangle[0])},
        )

    @classmethod
    def uniform(cls, settings: Any) -> bool:
        """Return True: J has a summand of every user, whatever the number of its ratings."""
        return True

    @classmethod
    def only_ranks(cls, settings: Any) -> bool:
        """Return True: a preference is no rating."""
        return True

    @classmethod
    def draws_items(cls, settings: Any) -> bool:
        """Return False: all items count, and none is drawn."""
        return False

    def initial_state(self, seed: int) -> State:
        """Return item factors ~ N(0, ``initial_scale``²)."""
        draws = stream(seed, "learning", "item_factors").standard_normal(
            (self.n_items, self.settings.factors)
        )
        return {FACTORS: (self.settings.initial_scale * draws).astype(self.dtype)}

    def broadcast(self, state: State) -> dict[str, Array]:
        """Return the item factors and YᵀY."""
        return {FACTORS: state[FACTORS], ITEM_GRAM: self._item_gram(state)}

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return what a round costs users with this many ratings.

        A Gram matrix and a moment of the rated rows (k(k + 1) + 2k flops a row), one solve (⅔k³ + 2k²), x xᵀ,
        and 4k a row for the upload. Memory: the download, twice the rated rows, the Gram matrices, the
        upload.
        """
        n, k = len(examples), self.settings.factors
        rows = examples.astype(np.float64)
        flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
        moved[:, _GATHER] = 2.0 * rows * k * _FLOAT_BYTES
        ops[:, _GATHER] = 1.0
        flops[:, _DENSE] = rows * (k * (k + 1) + 2.0 * k) + 2.0 / 3.0 * k**3 + 3.0 * k**2
        moved[:, _DENSE] = (2.0 * rows * k + 5.0 * k * k) * _FLOAT_BYTES
        ops[:, _DENSE] = 5.0
        flops[:, _SCORING] = 4.0 * rows * k
        moved[:, _SCORING] = 2.0 * rows * k * _FLOAT_BYTES
        ops[:, _SCORING] = 3.0
        sent = float(self.n_items) if self.settings.upload == "dense" else rows
        memory = _FLOAT_BYTES * (self.n_items * k + 4.0 * k * k + rows * (2.0 * k + 2.0) + sent * (k + 1.0))
        whole = np.asarray(np.ceil(memory), np.int64) * np.ones(n, np.int64)
        return Work(flops, moved, ops, np.ones(n), whole)

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ints | None = None,
        steps: Ints | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Fit every user and compute its part of the items' gradient.

        See :meth:`edge.learning.base.Recommender.client_update`. A client of several users uploads the mean
        of theirs. The loss is a user's summand of J without penalties, for each rated item, the user fitted.

        Raises
        ------
        ValueError : ``steps`` is given; there are no steps.
        """
        if steps is not None:
            raise ValueError("fcf has no local steps; leave steps out")
        k, counts = self.settings.factors, np.diff(batch.indptr)
        users = len(counts)
        held = kernels.ClientUsers.of(client_keys, clients)
        owners = held.owners
        gram = self._item_gram(state)
        rows = np.empty((len(batch.items), k), self.dtype)
        triangles = np.empty((users, len(self._triangle[0])), self.dtype)
        losses = np.zeros(users)
        share = held.weights("uniform", counts).astype(self.dtype)
        for first, end in kernels.blocks(batch.indptr):
            part = slice(int(batch.indptr[first]), int(batch.indptr[end]))
            fit = self._fitted(state, gram, batch, first, end)
            here = counts[first:end]
            spread = fit.users.repeat(here, axis=0)
            scores = layers.row_products(fit.rows, spread)
            rest = (1 + fit.extra) * fit.liked - fit.extra * scores
            rest *= share[first:end].repeat(here)
            np.multiply(spread, rest[:, None], out=rows[part])
            left, right = self._triangle
            triangles[first:end] = fit.users[:, left] * fit.users[:, right] * share[first:end, None]
            losses[first:end] = self._losses(gram, fit, scores, here)
        items, offsets = batch.items.astype(self.layout.item_dtype, copy=False), batch.indptr
        if clients is not None:
            items, rows, offsets = kernels.merge_users(
                items, rows, np.repeat(owners, counts), len(held.per_client)
            )
            triangles = layers.row_sums(triangles, clients.tolist())
            losses = np.asarray(np.bincount(owners, losses, minlength=len(held.per_client)))
            counts = np.bincount(owners, counts, minlength=len(held.per_client)).astype(np.int64)
        fields: dict[str, Any] = {
            "stacked": {USER_GRAM: triangles},
            "ragged": {ITEMS: items, ROWS: rows},
            "offsets": offsets,
            "weights": np.asarray(counts > 0, np.float64),
            "examples": counts,
            "losses": losses / np.maximum(counts, 1),
        }
        return self.layout.batch(fields)

    def initial_optimizer_state(self, state: State) -> OptimizerState:
        """Return the server optimiser's own arrays before the first round."""
        return self.settings.optimizer.initial({FACTORS: state[FACTORS]})

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply mean_u f − λ_y Y."""
        mean, items = aggregate.mean(), state[FACTORS]
        update = mean[ROWS] + self.of_all_items(items, mean[USER_GRAM])
        rate = self.settings.learning_rate * self.settings.schedule.factor(round_number)
        moved, optimizer_state = self.settings.optimizer.apply(
            {FACTORS: items}, optimizer_state, {FACTORS: update}, rate
        )
        return moved, optimizer_state

    def of_all_items(self, items: Array, triangle: Array) -> Array:
        """Return the part of the items' step that every item has, −Y·mean x xᵀ − λ_y Y, [items, k].

        ``items`` [items, k]; ``triangle`` [k(k + 1)/2], the mean of ``user_gram``.
        """
        k = self.settings.factors
        of_users = np.zeros((k, k), items.dtype)
        of_users[self._triangle] = triangle
        of_users.T[self._triangle] = triangle
        decay = items.dtype.type(self.settings.item_regularization)
        return np.asarray(-(items @ of_users) - decay * items)

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Fit users to ``support`` and return their preference x·y for ``query`` items, [N of query]."""
        users = self.reconstruct(state, support, client_keys)
        rows = layers.embedding(state[FACTORS], query.items)
        return layers.row_products(rows, users.repeat(np.diff(query.indptr), axis=0))

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Fit users to ``support`` and return their preference for every item, float32 [n, items]."""
        users = self.reconstruct(state, support, client_keys)
        table = np.ascontiguousarray(state[FACTORS].T)[None]
        return np.asarray(layers.vector_products(users, table), np.float32)

    def reconstruct(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[Any]:
        """Return the factors of users fitted to ``support``, [n, k]."""
        gram = self._item_gram(state)
        users = np.empty((len(support.indptr) - 1, self.settings.factors), self.dtype)
        for first, end in kernels.blocks(support.indptr):
            users[first:end] = self._fitted(state, gram, support, first, end).users
        return users

    def _item_gram(self, state: State) -> Array:
        """Return YᵀY, as it was received or from the items, [k, k]."""
        if ITEM_GRAM in state:
            return state[ITEM_GRAM]
        items = state[FACTORS].astype(np.float64)
        return np.asarray(items.T @ items).astype(self.dtype)

    def _fitted(self, state: State, gram: Array, batch: RatingBatch, first: int, end: int) -> _Fit:
        """Fit users ``first`` … ``end - 1`` to their ratings."""
        k = self.settings.factors
        part = slice(int(batch.indptr[first]), int(batch.indptr[end]))
        bounds = (batch.indptr[first : end + 1] - batch.indptr[first]).tolist()
        rows = layers.embedding(state[FACTORS], batch.items[part])
        ratings = batch.ratings[part].astype(self.dtype)
        liked = (ratings > 0).astype(self.dtype)
        extra = self.dtype.type(self.settings.confidence) * self._strength(ratings) * liked
        systems = np.empty((end - first, k, k), self.dtype)
        segment_grams(np.sqrt(extra)[:, None] * rows, bounds, systems)
        systems += gram
        moment = layers.weighted_sums((1 + extra) * liked, rows, bounds)
        penalty = np.full(k, self.settings.user_regularization, self.dtype)
        return _Fit(rows, extra, liked, ridge(systems, moment, penalty))

    def _strength(self, ratings: Array) -> Array:
        """Return v of ratings, [N]; of those that are not positive it is not looked at."""
        if self.settings.strength == "one":
            return np.ones_like(ratings)
        positive = np.maximum(ratings, 0)
        return np.log1p(positive) if self.settings.strength == "log" else positive

    def _losses(self, gram: Array, fit: _Fit, scores: Array, counts: Ints) -> npt.NDArray[np.float64]:
        """Return Σ_i c (p − x·y)² of each user, float64 [n]."""
        users = fit.users.astype(np.float64)
        of_all = layers.row_products(layers.vector_products(users, gram.astype(np.float64)[None]), users)
        square = np.square(scores.astype(np.float64))
        of_rated = (1.0 + fit.extra) * np.square(fit.liked - scores) - square
        return np.maximum(of_all + layers.device_sums(of_rated, counts), 0.0)
