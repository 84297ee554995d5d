"""DP-MF: item factors under differential privacy of single ratings, by perturbing the objective.

Sources: Chaudhuri, Monteleoni and Sarwate 2011, "Differentially Private Empirical Risk Minimization"; Hua,
Xia and Zhong 2015, "Differentially Private Matrix Factorization" (IJCAI), which applies it to item factors.
With user factors p_u fixed, the factors of item j are released as the exact minimiser of

    J_j(q) = ½·Σ_u (t_uj − p_u·q)² + ½λ|q|² + η_j·q,      density of η_j ∝ exp(−ε|η|/Δ)

**Theorem.** Let neighbours differ in the value of one rating. Then all item factors together are
ε-differentially private (pure, δ = 0), if

1. |p_u| ≤ 1 for every user;
2. values lie in a public range of width Δ;
3. the p_u do not depend on the values that are protected;
4. λ > 0;
5. what is released is the exact minimiser, and
6. it is released once.

Proof. At the minimiser η_j = Σ_u (t_uj − p_u·q)·p_u − λq. Given q, a value that changes by at most Δ (2)
moves η_j by at most Δ·|p_u| ≤ Δ (1, 3), so its density changes by e^ε at most. By (4, 5) η_j ↔ q is one to
one, and its Jacobian, Σ p_u p_uᵀ + λI, has no values in it. A value is in one item's problem, and the η_j are
independent.

Condition 3 is what published uses get wrong: user factors that were fitted to the same ratings break the
theorem, as do alternating sweeps. Here p_u is made of which items somebody has rated and what is public of
these, never of a value. What is hidden is a rating's value, neither that it was given nor anything else of a
user, whose n ratings together have n·ε.

A device sends, once, the summands of Σ p_u p_uᵀ and Σ t_uj p_u; the coordinator, which is trusted with their
sums, has begun with −η_j in the place of 0 and solves for the minimiser. Devices download no factors: what is
released is the model that the run leaves.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from device_profiles.fields import Number, PositiveFloat, PositiveInt
from edge.core.errors import LocalProtocolError
from edge.core.rng import stream_bytes
from edge.crypto.noise import gaussian
from edge.crypto.prg import SEED_BYTES
from edge.learning import fedrecon_kernels as kernels
from edge.learning import layers
from edge.learning.base import WORK_KINDS, OptimizerState, Problem, RatingBatch, State, Work
from edge.learning.method_settings import MethodSettings
from edge.learning.methods.fedrecon.algorithm import FACTORS
from edge.learning.row_uploads import RowRecommender, RowUploads
from edge.learning.updates import ITEMS, ROWS, Aggregate, Array, UpdateBatch

HESSIAN, MOMENT, COMPONENTS = "hessian", "moment", "item_components"
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_FLOAT_BYTES = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))
_GRADIENT_SLACK = 1e-9
"""Of the gradient at the solution, beside what it is made of: what solving in float64 leaves."""


def minimiser(hessian: Floats, right: Floats) -> Floats:
    """Return the factors of every item, [items, k], from ``hessian`` [items, k, k] and ``right`` [items, k].

    Raises ``LocalProtocolError`` where the gradient there is not 0: condition 5.
    """
    found = np.asarray(np.linalg.solve(hessian, right[:, :, None])[:, :, 0], np.float64)
    gradient = np.einsum("ikl,il->ik", hessian, found) - right
    largest = float(np.abs(gradient).max(initial=0.0))
    if not largest <= _GRADIENT_SLACK * (1.0 + float(np.abs(right).max(initial=0.0))):
        raise LocalProtocolError(
            f"the gradient at the solution is {largest:g}, so it is no minimiser; write a larger λ"
        )
    return found


def objective_noise(items: int, width: int, scale: float, seed: bytes) -> Floats:
    """Return η, [items, width], of density ∝ exp(−|η|/scale): a uniform direction, its length Gamma(width).

    Both come from Gaussians: half a sum of 2·``width`` squares is Gamma(``width``, 1).

    Raises ``LocalProtocolError`` for another length of the ``seed`` than 16 bytes.
    """
    if len(seed) != SEED_BYTES:
        raise LocalProtocolError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    draws = gaussian(seed, 1.0, 3 * items * width).reshape(items, 3 * width)
    direction = draws[:, :width]
    length = 0.5 * np.einsum("ik,ik->i", draws[:, width:], draws[:, width:])
    norm = np.sqrt(np.einsum("ik,ik->i", direction, direction))
    return np.asarray(direction * (scale * length / norm)[:, None])


class DPMFSettings(MethodSettings):
    """Settings of DP-MF."""

    algorithm: Literal["dp-mf"]
    epsilon: PositiveFloat = Field(default=10.0, description="ε of the value of one rating, δ = 0")
    lowest: Number = Field(
        default=1.0, description="lowest rating that can be given, public; devices take a lower one for it"
    )
    highest: Number = Field(
        default=5.0, description="highest rating that can be given, public; devices take a higher one for it"
    )
    factors: PositiveInt = Field(default=5, description="length k of p_u, its constant included")
    regularization: PositiveFloat = Field(default=10.0, description="λ of the item factors")
    bias_regularization: PositiveFloat = Field(
        default=5.0, description="λ of a user's bias, which its device fits and keeps to itself"
    )
    upload: Literal["sparse", "dense"] = Field(
        default="sparse", description="upload the rated items' rows and their numbers, or the whole table"
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> DPMFSettings:
        if self.lowest >= self.highest:
            raise ValueError(f"highest is above lowest ({self.lowest:g}), not {self.highest:g}")
        return self


class DPMF(RowRecommender):
    """DP-MF; see the module and :class:`DPMFSettings`.

    State: ``hessian`` float64 [items, k(k + 1)/2], the upper triangle of Σ p pᵀ by rows; ``moment`` float64
    [items, k], Σ t p − η; ``item_factors`` [items, k]. Downloaded once: ``item_components`` [items, k − 1];
    in a round: nothing. Upload: ``item_rows`` [n, k(k + 3)/2], the summands of both, t in units of half the
    range, so that no number is above 1; and when sparse ``items`` [n]. A device keeps whether it has sent
    them, [1], and sends zeros from then on.

    p_u = (1, x_u)/√(1 + |x_u|²), with x_u the mean, over the items that u has rated, of the first k − 1
    principal components of the features. A rating is predicted as middle + p_u·q_i + b_u.
    """

    Settings = DPMFSettings
    needs_features = True
    hides_values = True
    local_width = 1
    settings: DPMFSettings

    def __init__(self, settings: DPMFSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        if problem.features is None:
            raise ValueError("dp-mf needs item features; this problem has none")
        super().__init__(settings, problem)
        self.dtype = np.dtype(dtype)
        self.middle = (settings.lowest + settings.highest) / 2
        self.reach = (settings.highest - settings.lowest) / 2
        """Half of Δ, the width of the range."""
        self.components = _components(problem.features, settings.factors - 1).astype(self.dtype)
        self._triangle = np.triu_indices(settings.factors)
        self.layout = RowUploads(
            problem.n_items,
            len(self._triangle[0]) + settings.factors,
            self.dtype,
            dense=settings.upload == "dense",
        )

    @classmethod
    def uniform(cls, settings: Any) -> bool:
        """Return True: a summand counts once, whatever else its user has rated."""
        return True

    def value_epsilon(self, rounding: float) -> float:
        """Return ε of the value of one rating: what rounding adds to Δ is counted, in all k numbers."""
        return self.settings.epsilon * (1.0 + rounding * math.sqrt(self.settings.factors))

    def initial_state(self, seed: int) -> State:
        """Return no summands, −η in the place of 0, and the minimiser of that: noise alone."""
        s, items = self.settings, self.problem.n_items
        secret = stream_bytes(seed, "learning", "objective_noise")[:SEED_BYTES]
        noise = objective_noise(items, s.factors, 2 * self.reach / s.epsilon, secret)
        return self._solved(np.zeros((items, len(self._triangle[0]))), -noise)

    def initial_optimizer_state(self, state: State) -> OptimizerState:
        """Return nothing: there is no optimiser."""
        return {}

    def broadcast(self, state: State) -> dict[str, Array]:
        """Return nothing: what a device sends depends on no model, and factors are released once."""
        return {}

    def fixed(self) -> dict[str, Array]:
        """Return what a device downloads once: the principal components of the items' features."""
        return {COMPONENTS: self.components} if self.components.size else {}

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return what a round costs users with this many ratings.

        One gather and sum of the components, p pᵀ (k²), and k products a rating; the rest of a row is copied.
        Memory: the components, the rated rows, the upload.
        """
        n, k, width = len(examples), self.settings.factors, self.layout.width
        rows = examples.astype(np.float64)
        flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
        moved[:, _GATHER] = 2.0 * rows * (k - 1) * _FLOAT_BYTES
        ops[:, _GATHER] = 1.0
        flops[:, _DENSE] = rows * (2.0 * k - 1) + k * (k + 1.0)
        moved[:, _DENSE] = rows * (k - 1 + 2.0 * width) * _FLOAT_BYTES
        ops[:, _DENSE] = 5.0
        sent = float(self.problem.n_items) if self.settings.upload == "dense" else rows
        memory = _FLOAT_BYTES * (self.components.size + rows * (k + 2.0) + sent * (width + 1.0))
        whole = np.asarray(np.ceil(memory), np.int64) * np.ones(n, np.int64)
        return Work(flops, moved, ops, np.ones(n), whole)

    def scoring_work(self, scored: Ints) -> Work:
        """Return what it costs to predict so many items: p·q, and two additions."""
        n, k = len(scored), self.settings.factors
        rows = scored.astype(np.float64)
        flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
        flops[:, _SCORING] = rows * (2.0 * k + 1.0)
        moved[:, _SCORING] = rows * (k + 1.0) * _FLOAT_BYTES
        ops[:, _SCORING] = 2.0
        return Work(flops, moved, ops, np.ones(n), (_FLOAT_BYTES * scored).astype(np.int64))

    def users(self, batch: RatingBatch) -> Floats:
        """Return p_u of the users of a batch, float64 [n, k]; no rating is looked at."""
        rows = layers.embedding(self.components, batch.items).astype(np.float64)
        counts = np.maximum(np.diff(batch.indptr), 1)
        means = layers.row_sums(rows, batch.indptr.tolist()) / counts[:, None]
        made = np.concatenate([np.ones((len(means), 1)), means], axis=1)
        return np.asarray(made / np.sqrt(np.einsum("uk,uk->u", made, made))[:, None])

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ints | None = None,
        steps: Ints | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Compute what each device sends once; see :meth:`edge.learning.base.Recommender.client_update`.

        The loss is 0: a device has no model to compare its ratings with, and a loss would give them away.

        Raises
        ------
        ValueError : ``steps`` is given; there are no steps.
        """
        if steps is not None:
            raise ValueError("dp-mf has no local steps; leave steps out")
        s, counts = self.settings, np.diff(batch.indptr)
        held = kernels.ClientUsers.of(client_keys, clients)
        own = self.users(batch)
        left, right = self._triangle
        ratings = np.clip(batch.ratings.astype(np.float64), s.lowest, s.highest)
        of_user = np.concatenate([own[:, left] * own[:, right], own], axis=1)
        if local is not None:
            of_user *= local == 0
        rows = of_user.repeat(counts, axis=0)
        rows[:, len(left) :] *= ((ratings - self.middle) / self.reach)[:, None]
        items, offsets = batch.items.astype(self.layout.item_dtype, copy=False), batch.indptr
        sent, kept = rows.astype(self.dtype), np.ones((len(counts), 1), self.dtype)
        if clients is not None:
            owners = np.repeat(held.owners, counts)
            items, sent, offsets = kernels.merge_users(items, sent, owners, len(held.per_client))
            counts = np.bincount(held.owners, counts, minlength=len(held.per_client)).astype(np.int64)
        return self.layout.batch(
            {
                "stacked": {},
                "ragged": {ITEMS: items, ROWS: sent},
                "offsets": offsets,
                "weights": np.asarray(counts > 0, np.float64),
                "examples": counts,
                "losses": np.zeros(len(counts)),
                "local": kept,
                "local_offsets": np.arange(len(kept) + 1) if clients is None else clients,
            }
        )

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Add the sums up and solve for the minimiser."""
        total = aggregate.sums[ROWS].astype(np.float64)
        width = len(self._triangle[0])
        solved = self._solved(
            state[HESSIAN] + total[:, :width], state[MOMENT] + self.reach * total[:, width:]
        )
        return solved, optimizer_state

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Predict the ``query`` ratings from p_u of ``support`` and a bias fitted to it, [N of query]."""
        users = self.reconstruct(state, support, client_keys).repeat(np.diff(query.indptr), axis=0)
        rows = layers.embedding(state[FACTORS], query.items)
        k = self.settings.factors
        return np.asarray(layers.row_products(rows, np.ascontiguousarray(users[:, :k])) + users[:, k])

    def reconstruct(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[Any]:
        """Return p_u of users and middle + b_u, which is fitted to ``support``, [n, k + 1]."""
        own, counts = self.users(support), np.diff(support.indptr)
        rows = layers.embedding(state[FACTORS], support.items).astype(np.float64)
        shared = layers.row_products(rows, own.repeat(counts, axis=0))
        rest = support.ratings - self.middle - shared
        bias = layers.device_sums(rest, counts) / (counts + self.settings.bias_regularization)
        found = np.concatenate([own, (self.middle + bias)[:, None]], axis=1)
        return np.asarray(found.astype(self.dtype))

    def _solved(self, hessian: Floats, moment: Floats) -> State:
        """Return the state of these sums: with the minimiser, which is the model."""
        k = self.settings.factors
        whole = np.zeros((len(hessian), k, k))
        left, right = self._triangle
        whole[:, left, right] = hessian
        whole[:, right, left] = hessian
        whole[:, np.arange(k), np.arange(k)] += self.settings.regularization
        factors = minimiser(whole, moment).astype(self.dtype)
        return {HESSIAN: hessian, MOMENT: moment, FACTORS: factors}


def _components(features: npt.NDArray[np.float32], width: int) -> Floats:
    """Return the first principal components of items, float64 [items, width], of variance 1; 0 beyond d.

    The sign of each is such that its largest entry is positive.
    """
    found = np.zeros((len(features), width))
    if width == 0:
        return found
    centred = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    known = min(width, int(np.count_nonzero(values > 1e-9 * max(float(values.max(initial=0.0)), 1.0))))
    left = left[:, :known]
    largest = left[np.abs(left).argmax(axis=0), np.arange(known)]
    found[:, :known] = left * (np.sign(largest) * math.sqrt(len(features)))
    return found
