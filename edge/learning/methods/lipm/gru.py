"""A gated recurrent unit over the sequences of many users at once, forwards and backwards through time.

Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", with the reset gate
applied after the product, as in Chung et al. 2014's common implementations:

    z_t = σ(W_z x_t + U_z h_{t−1} + b_z)            update gate
    r_t = σ(W_r x_t + U_r h_{t−1} + b_r)            reset gate
    c_t = tanh(W_c x_t + r_t ∘ U_c h_{t−1} + b_c)   candidate
    h_t = (1 − z_t) ∘ c_t + z_t ∘ h_{t−1},          h_0 = 0

The columns of a weight matrix are [z | r | c]. Sequences lie one after another, without padding: users are
taken in order of falling length, so that those who still have a step t are the first few. What does not
depend on a state is one product a user; what does is one vector-matrix product for each user and step. So a
user's bits do not depend on who else is in the batch.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]


class GRUWeights(NamedTuple):
    """The weights: ``input`` W [in, 3d], ``hidden`` U [d, 3d], ``bias`` b [3d]; in gradients, each [n, …]."""

    input: Floats
    hidden: Floats
    bias: Floats


class GRUTrace(NamedTuple):
    """What the way back needs: for every step ``[N, …]``, in the order of the sequences.

    ``states`` h_t and ``before`` h_{t−1}, [N, d]; ``gates`` [N, 3d], z, r and c; ``recurrent`` U_c h_{t−1},
    [N, d].
    """

    states: Floats
    before: Floats
    gates: Floats
    recurrent: Floats


class _Steps:
    """Which rows belong to step t, users by falling length."""

    def __init__(self, indptr: npt.NDArray[np.int64]) -> None:
        lengths = np.diff(indptr)
        order = np.argsort(-lengths, kind="stable")
        self._starts = indptr[:-1][order]
        self.count = int(lengths.max(initial=0))
        self._active = np.searchsorted(-lengths[order], -np.arange(self.count), side="left")

    def rows(self, step: int) -> npt.NDArray[np.int64]:
        """Return the row of every user that has a step ``step``, int64 [active]."""
        return np.asarray(self._starts[: self._active[step]] + step)


def gru_forward(weights: GRUWeights, x: Floats, indptr: npt.NDArray[np.int64]) -> GRUTrace:
    """Run over every user's sequence.

    Parameters
    ----------
    weights : float32 or float64, of the dtype of ``x``.
    x : [N, in], C order, each user's inputs in the order of time, one user after another.
    indptr : int64 [n + 1]; a user may have no input.
    """
    width = len(weights.hidden)
    trace = GRUTrace(*(np.empty((len(x), columns), x.dtype) for columns in (width, width, 3 * width, width)))
    gates = trace.gates
    for start, end in _segments(indptr):
        np.dot(x[start:end], weights.input, out=gates[start:end])
    gates += weights.bias
    steps = _Steps(indptr)
    state = np.zeros((len(indptr) - 1, width), x.dtype)
    for step in range(steps.count):
        rows = steps.rows(step)
        before = state[: len(rows)]
        product = np.matmul(before[:, None, :], weights.hidden)[:, 0, :]
        gate = gates.take(rows, axis=0)
        gate[:, : 2 * width] += product[:, : 2 * width]
        # σ(a) = ½(1 + tanh(a/2)) never overflows.
        gate[:, : 2 * width] = 0.5 * (1.0 + np.tanh(0.5 * gate[:, : 2 * width]))
        update, reset, recurrent = gate[:, :width], gate[:, width : 2 * width], product[:, 2 * width :]
        gate[:, 2 * width :] = np.tanh(gate[:, 2 * width :] + reset * recurrent)
        after = gate[:, 2 * width :] + update * (before - gate[:, 2 * width :])
        trace.before[rows], trace.gates[rows] = before, gate
        trace.recurrent[rows], trace.states[rows] = recurrent, after
        state = after
    return trace


def gru_backward(
    weights: GRUWeights, x: Floats, indptr: npt.NDArray[np.int64], trace: GRUTrace, d_states: Floats
) -> GRUWeights:
    """Return every user's gradient of a loss, given its derivative ``d_states`` [N, d] by each h_t."""
    width = len(weights.hidden)
    users = len(indptr) - 1
    back = np.ascontiguousarray(weights.hidden.T)
    at_input, at_hidden = np.empty_like(trace.gates), np.empty_like(trace.gates)
    steps = _Steps(indptr)
    carried = np.zeros((users, width), x.dtype)
    for step in reversed(range(steps.count)):
        rows = steps.rows(step)
        gate, before = trace.gates.take(rows, axis=0), trace.before.take(rows, axis=0)
        update, reset, candidate = (gate[:, part * width : (part + 1) * width] for part in range(3))
        by_state = carried[: len(rows)] + d_states.take(rows, axis=0)
        inner = np.empty_like(gate)
        inner[:, :width] = by_state * (before - candidate) * update * (1.0 - update)
        by_candidate = by_state * (1.0 - update) * (1.0 - candidate * candidate)
        by_reset = by_candidate * trace.recurrent.take(rows, axis=0)
        inner[:, width : 2 * width] = by_reset * reset * (1.0 - reset)
        inner[:, 2 * width :] = by_candidate
        at_input[rows] = inner
        inner[:, 2 * width :] *= reset
        at_hidden[rows] = inner
        carried[: len(rows)] = by_state * update + np.matmul(inner[:, None, :], back)[:, 0, :]
    gradient = GRUWeights(*(np.zeros((users, *weight.shape), x.dtype) for weight in weights))
    for user, (start, end) in enumerate(itertools.pairwise(indptr.tolist())):
        if start < end:
            np.dot(x[start:end].T, at_input[start:end], out=gradient.input[user])
            np.dot(trace.before[start:end].T, at_hidden[start:end], out=gradient.hidden[user])
            np.add.reduce(at_input[start:end], axis=0, out=gradient.bias[user])
    return gradient


def _segments(indptr: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    edges = indptr.tolist()
    return [(start, end) for start, end in itertools.pairwise(edges) if start < end]
