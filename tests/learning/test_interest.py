"""The GRU and its heads: against a plain reading, against differences, and what they learn."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from learning_helpers import offsets_of

from edge.learning.methods.lipm.gru import GRUWeights, gru_forward
from edge.learning.methods.lipm.interest import (
    GRU_BIAS,
    GRU_HIDDEN,
    GRU_INPUT,
    INTEREST_NAMES,
    OUTLOOK,
    PRECISION,
    interest,
    recent,
)

COUNTS = [5, 0, 1, 9, 2, 7, 1]


def behaviour(
    counts: list[int] = COUNTS, k: int = 4, seed: int = 0, dtype: Any = np.float64
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    indptr = offsets_of(np.array(counts))
    return (
        rng.normal(size=(indptr[-1], k)).astype(dtype),
        rng.normal(size=indptr[-1]).astype(dtype),
        indptr,
    )


def parameters(k: int = 4, d: int = 3, seed: int = 1, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {
        GRU_INPUT: (k + 1, 3 * d), GRU_HIDDEN: (d, 3 * d), GRU_BIAS: (3 * d,), OUTLOOK: (d, k),
        PRECISION: (d + 1,),
    }  # fmt: skip
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def read_one(p: dict[str, Any], factors: Any, targets: Any, bound: float) -> tuple[Any, float, float]:
    """Read one user's behaviour a number at a time, as the equations are printed."""
    d = len(p[GRU_HIDDEN])

    def sigmoid(a: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-a))

    h, losses = np.zeros(d), []
    g = 0.0
    for t in range(len(targets)):
        a = np.append(factors[t], targets[t]) @ p[GRU_INPUT] + p[GRU_BIAS]
        b = h @ p[GRU_HIDDEN]
        z, r = sigmoid(a[:d] + b[:d]), sigmoid(a[d : 2 * d] + b[d : 2 * d])
        candidate = np.tanh(a[2 * d :] + r * b[2 * d :])
        h = (1 - z) * candidate + z * h
        g = float(bound * np.tanh(h @ p[PRECISION][:-1] / bound)) if bound else 0.0
        if t + 1 < len(targets):
            miss = targets[t + 1] - h @ p[OUTLOOK] @ factors[t + 1]
            level = g + p[PRECISION][-1]
            pull = 0.03 * (h @ p[PRECISION][:-1]) ** 2 if bound else 0.0
            losses.append(0.5 * (np.exp(level) * miss**2 - level + pull))
    return h, g, float(np.mean(losses)) if losses else 0.0


@pytest.mark.parametrize("bound", [0.0, 0.4, 5.0])
def test_behaviour_is_read_as_the_equations_say(bound: float) -> None:
    factors, targets, indptr = behaviour()
    p = parameters()
    read = interest(p, factors, targets, indptr, bound)
    for user, (start, end) in enumerate(itertools.pairwise(indptr)):
        h, g, loss = read_one(p, factors[start:end], targets[start:end], bound)
        np.testing.assert_allclose(read.vectors[user], h, rtol=1e-12, atol=1e-14)
        assert read.g[user] == pytest.approx(g, rel=1e-12)
        assert read.losses[user] == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("bound", [1.0, 5.0])
def test_the_gradient_is_that_of_central_differences(bound: float) -> None:
    factors, targets, indptr = behaviour()
    p = parameters()
    gradient = interest(p, factors, targets, indptr, bound).gradient
    assert tuple(gradient) == INTEREST_NAMES
    step = 1e-6
    for name, array in p.items():
        numeric = np.empty_like(gradient[name])
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = {**p, name: array.copy()}
                moved[name][place] += sign * step
                ends.append(interest(moved, factors, targets, indptr, bound).losses)
            numeric[(slice(None), *place)] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(gradient[name], numeric, rtol=1e-6, atol=1e-8, err_msg=name)
        assert np.abs(gradient[name][[0, 3, 4, 5]]).max() > 1e-3, name
        assert not gradient[name][[1, 2, 6]].any(), "fewer than two ratings teach nothing"


def test_large_gates_neither_overflow_nor_leave_their_range() -> None:
    weights = GRUWeights(np.full((2, 3), 1e4), np.full((1, 3), -1e4), np.zeros(3))
    states = gru_forward(weights, np.array([[1.0, 1.0], [-1.0, -1.0], [5.0, 5.0]]), np.array([0, 3])).states
    assert np.isfinite(states).all()
    assert np.abs(states).max() <= 1


def test_recent_behaviour_is_the_last_by_time_then_by_item() -> None:
    indptr = np.array([0, 4, 4, 7])
    times = np.array([30, 10, 30, 20, 5, 5, 1])
    found = recent(indptr, times, 3)
    assert found.indptr.tolist() == [0, 3, 3, 6]
    assert found.rows.tolist() == [3, 0, 2, 6, 4, 5]
    assert recent(indptr, times, 2).rows.tolist() == [0, 2, 4, 5]


@pytest.mark.slow
def test_the_precision_learnt_is_one_over_the_noise_of_a_users_ratings() -> None:
    """Half of the users rate with noise of 0.2, half with 1.5; their log-precisions are 3.2 and −0.8."""
    rng = np.random.default_rng(3)
    users, length = 60, 20
    noise = np.where(np.arange(users) % 2 == 0, 0.2, 1.5)
    factors = rng.normal(size=(users * length, 2))
    targets = rng.normal(size=users * length) * np.repeat(noise, length)
    indptr = np.arange(users + 1) * length
    p = {name: 0.5 * array for name, array in parameters(k=2, d=6).items()}
    before = interest(p, factors, targets, indptr, 4.0).losses.mean()
    for _ in range(400):
        gradient = interest(p, factors, targets, indptr, 4.0).gradient
        p = {name: p[name] - 0.1 * gradient[name].mean(axis=0) for name in p}
    read = interest(p, factors, targets, indptr, 4.0)
    assert read.losses.mean() < before - 0.5
    steady, erratic = read.g[noise == 0.2], read.g[noise == 1.5]
    level = p[PRECISION][-1]
    assert steady.mean() + level == pytest.approx(-2 * np.log(0.2), abs=0.6)
    assert erratic.mean() + level == pytest.approx(-2 * np.log(1.5), abs=0.6)
    assert (steady > erratic.max()).mean() > 0.9
