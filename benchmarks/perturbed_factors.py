"""Item factors under differential privacy of single ratings, by perturbing the objective.

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
6. it is released once: k releases cost k·ε.

Proof. At the minimiser η_j = Σ_u (t_uj − p_u·q)·p_u − λq. Given q, a value that changes by at most Δ (2)
moves η_j by at most Δ·|p_u| ≤ Δ (1, 3), so its density changes by e^ε at most. By (4, 5) η_j ↔ q is one to
one, and its Jacobian, Σ p_u p_uᵀ + λI, has no values in it. A value is in one item's problem, and the η_j are
independent.

Conditions 1, 2 and 4 are checked, and 5 by the gradient at the solution. **3 cannot be seen here.** It is
what published uses get wrong: user factors that were fitted to the same ratings break the theorem, as do
alternating sweeps. And what is hidden is a rating's value, neither that it was given nor anything else of a
user, whose n ratings together have n·ε.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError
from edge.crypto.noise import gaussian
from edge.crypto.prg import SEED_BYTES
from edge.learning.least_squares import segment_grams

Floats = npt.NDArray[np.float64]
_NORM_SLACK = 1e-12
_GRADIENT_SLACK = 1e-9
"""Of the gradient at the solution, beside what it is made of: what solving in float64 leaves."""


def perturbed_item_factors(
    users: npt.NDArray[Any],
    indptr: npt.NDArray[np.int64],
    raters: npt.NDArray[np.integer[Any]],
    values: npt.NDArray[Any],
    *,
    regularization: float,
    epsilon: float,
    lowest: float,
    highest: float,
    seed: bytes,
) -> Floats:
    """Return the factors of every item, float64 [items, k], ε-differentially private in each of ``values``.

    Parameters
    ----------
    users : p_u, [users, k], fixed in advance: see condition 3.
    indptr : int64 [items + 1], where each item's ratings start.
    raters : [N], the user of each rating, ordered by item.
    values : t_uj, [N], within ``lowest`` and ``highest``, which are public.
    regularization : λ, above 0.
    epsilon : ε, above 0; infinite adds no noise.
    seed : 16 secret bytes, used once.

    Raises
    ------
    LocalProtocolError : a condition of the theorem does not hold; the message says which.
    """
    factors = np.asarray(users, np.float64)
    targets = np.asarray(values, np.float64)
    _check(factors, targets, regularization, epsilon, lowest, highest)
    items, k = len(indptr) - 1, factors.shape[1]
    design = np.empty((len(targets), k + 1))
    design[:, :k] = factors[raters]
    design[:, k] = targets
    whole = np.empty((items, k + 1, k + 1))
    segment_grams(design, indptr.tolist(), whole)
    hessian = np.ascontiguousarray(whole[:, :k, :k])
    hessian[:, np.arange(k), np.arange(k)] += regularization
    right = whole[:, :k, k] - objective_noise(items, k, (highest - lowest) / epsilon, seed)
    found: Floats = np.linalg.solve(hessian, right[:, :, None])[:, :, 0]
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


def _check(
    users: Floats, values: Floats, regularization: float, epsilon: float, lowest: float, highest: float
) -> None:
    longest = math.sqrt(float(np.einsum("uk,uk->u", users, users).max(initial=0.0)))
    if not longest <= 1 + _NORM_SLACK:
        raise LocalProtocolError(f"condition 1: user factors have a norm of 1 at most, not {longest:g}")
    if not lowest < highest or not (np.all(values >= lowest) and np.all(values <= highest)):
        raise LocalProtocolError(f"condition 2: a value is outside {lowest:g} to {highest:g}")
    if not 0 < regularization < math.inf:
        raise LocalProtocolError(f"condition 4: λ is positive and finite, not {regularization}")
    if not epsilon > 0:
        raise LocalProtocolError(f"epsilon is above 0, not {epsilon}")
