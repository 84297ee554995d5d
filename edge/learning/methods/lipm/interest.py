"""What a user's recent behaviour says of them: the interest vector, and how far their ratings can be trusted.

A GRU (:mod:`edge.learning.methods.lipm.gru`) reads a user's last ratings in the order of time. Its last
state is the
interest vector u. A head of one line reads g from it, which is all that aggregation uses:

    x_t = [q_i | e]         factors of the item rated at t, and e = r − μ − b_i; both taken as given
    ê_t = h_t A · q_{i'}    what the next item i' is expected to be rated at, beyond μ + b_{i'}
    g_t = c·tanh(h_t·w / c)
    ℓ_t = ½·(exp(s_t)·(e' − ê_t)² − s_t) + ½τ·(h_t·w)²,    s_t = g_t + w₀

ℓ without its last term is the negative log-likelihood of the next rating under a Gaussian whose log-precision
is s (Nix and Weigend 1994): a proper score, least in expectation where exp(s) is one over the expected
squared error. So GRU and heads are learnt from next ratings alone, on the device, by one gradient; and
weights exp(g) are those of the inverse variance, which average unbiased estimates best. The level w₀ is the
fleet's: a softmax does not see it, and g keeps within ±c of it, whatever the ratings are measured in. A hard
clip would do as well for aggregation, but whoever is beyond it has no gradient to come back by. The term of τ
leaves to the level what all users have in common, and keeps it from driving everybody's g to the same end.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.learning.methods.lipm.gru import Floats, GRUWeights, gru_backward, gru_forward

GRU_INPUT, GRU_HIDDEN, GRU_BIAS = "gru_input", "gru_hidden", "gru_bias"
OUTLOOK, PRECISION = "outlook", "precision"
SHRINKAGE = 0.03
"""τ, the pull of everybody's g to the level."""
INTEREST_NAMES = (GRU_INPUT, GRU_HIDDEN, GRU_BIAS, OUTLOOK, PRECISION)
"""The parameters: W [k + 1, 3d], U [d, 3d], b [3d], A [d, k], and [w | w₀], [d + 1]."""


class Behaviour(NamedTuple):
    """The last ratings of some users, in the order of time: ``indptr`` int64 [n + 1], ``rows`` int64 [N].

    ``rows`` are positions in the batch that they were taken from.
    """

    indptr: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


class Interest(NamedTuple):
    """Of each user: ``vectors`` u [n, d], ``g`` [n], ``losses`` mean ℓ [n], ``gradient`` by name, [n, …].

    A user with fewer than two ratings has a loss and a gradient of zero; one without any, u = 0 and g = 0.
    """

    vectors: Floats
    g: Floats
    losses: Floats
    gradient: dict[str, Floats]


def recent(indptr: npt.NDArray[np.int64], timestamps: npt.NDArray[np.int64], window: int) -> Behaviour:
    """Return the last ``window`` ratings of each user by time; ratings of the same second by item.

    ``indptr`` int64 [n + 1]; ``timestamps`` int64 [N], items increasing within a user.
    """
    counts = np.diff(indptr)
    owners = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((timestamps, owners))
    kept = np.arange(len(owners)) >= np.repeat(indptr[1:] - window, counts)
    edges = np.zeros(len(indptr), np.int64)
    np.cumsum(np.minimum(counts, window), out=edges[1:])
    return Behaviour(edges, order[kept])


def interest(
    parameters: dict[str, Any],
    factors: Floats,
    targets: Floats,
    indptr: npt.NDArray[np.int64],
    bound: float,
) -> Interest:
    """Read every user's behaviour.

    Parameters
    ----------
    parameters : by the names of :data:`INTEREST_NAMES`, all of the dtype of ``factors``.
    factors : [N, k], q of the items in the order of time, one user after another.
    targets : [N], e = r − μ − b_i.
    indptr : int64 [n + 1].
    bound : c, 0 or more; with 0, g is 0 for everybody.
    """
    dtype = factors.dtype
    users = len(indptr) - 1
    weights = GRUWeights(*(parameters[name] for name in (GRU_INPUT, GRU_HIDDEN, GRU_BIAS)))
    outlook, head = parameters[OUTLOOK], parameters[PRECISION]
    x = np.concatenate([factors, targets[:, None]], axis=1)
    trace = gru_forward(weights, x, indptr)
    states = trace.states
    raw = np.einsum("nd,nd->n", states, np.broadcast_to(head[:-1], states.shape))
    if bound == 0:
        raw = np.zeros_like(raw)
    bent = np.tanh(raw / dtype.type(bound)) if bound > 0 else raw
    g_all = bent * dtype.type(bound)

    counts = np.diff(indptr)
    owners = np.repeat(np.arange(users), counts)
    # A step has a next one unless it is its user's last.
    inner = np.flatnonzero(owners[1:] == owners[:-1])
    share = (1.0 / np.maximum(counts - 1, 1)).astype(dtype)[owners[inner]]
    expected = np.empty_like(factors)
    edges = indptr.tolist()
    for start, end in itertools.pairwise(edges):
        if start < end:
            np.dot(states[start:end], outlook, out=expected[start:end])
    following = factors[inner + 1]
    miss = targets[inner + 1] - np.einsum("nk,nk->n", expected[inner], following)
    level = g_all[inner] + head[-1]
    precision = np.exp(level)
    squared = precision * miss * miss
    pulled = raw[inner]
    each = 0.5 * (squared - level + SHRINKAGE * pulled * pulled) * share
    losses = np.bincount(owners[inner], each, minlength=users).astype(dtype)

    by_expected = np.zeros_like(factors)
    by_expected[inner] = (-precision * miss * share)[:, None] * following
    by_level = np.zeros(len(factors), dtype)
    by_level[inner] = 0.5 * (squared - 1.0) * share
    by_raw = by_level * (1.0 - bent * bent) if bound > 0 else np.zeros_like(by_level)
    by_raw[inner] += SHRINKAGE * pulled * share
    d_states = by_raw[:, None] * head[:-1]
    gradient = {
        OUTLOOK: np.zeros((users, *outlook.shape), dtype),
        PRECISION: np.zeros((users, len(head)), dtype),
    }
    back = np.ascontiguousarray(outlook.T)
    for user, (start, end) in enumerate(itertools.pairwise(edges)):
        if start < end:
            d_states[start:end] += np.dot(by_expected[start:end], back)
            np.dot(states[start:end].T, by_expected[start:end], out=gradient[OUTLOOK][user])
            np.dot(by_raw[start:end], states[start:end], out=gradient[PRECISION][user, :-1])
            gradient[PRECISION][user, -1] = np.add.reduce(by_level[start:end])
    by_gru = gru_backward(weights, x, indptr, trace, d_states)
    gradient |= {GRU_INPUT: by_gru.input, GRU_HIDDEN: by_gru.hidden, GRU_BIAS: by_gru.bias}

    vectors = np.zeros((users, states.shape[1]), dtype)
    last = np.zeros(users, dtype)
    some = counts > 0
    vectors[some], last[some] = states[indptr[1:][some] - 1], g_all[indptr[1:][some] - 1]
    return Interest(vectors, last, losses, {name: gradient[name] for name in INTEREST_NAMES})
