"""Objective perturbation: the conditions of its theorem, its noise, and what it promises, measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from objective_perturbation import perturbed_item_factors

from edge.core.errors import LocalProtocolError
from edge.core.rng import stream_bytes
from edge.learning.base import Problem, Ratings, State
from edge.learning.methods.dp_mf import DPMF, DPMFSettings, objective_noise

SEED = bytes(range(16))
INDPTR = np.array([0, 4, 4, 9])
RATERS = np.array([0, 1, 2, 3, 0, 1, 2, 4, 5])


def users(k: int = 3) -> npt.NDArray[np.float64]:
    drawn = np.random.default_rng(1).normal(size=(6, k))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1).max())


def solve(**changes: Any) -> npt.NDArray[np.float64]:
    values = np.array([1.0, 5.0, 3.0, 2.0, 4.0, 4.0, 1.0, 5.0, 2.0]) - 3.0
    settings: dict[str, Any] = {
        "users": users(), "indptr": INDPTR, "raters": RATERS, "values": values, "regularization": 0.5,
        "epsilon": 1.0, "lowest": -2.0, "highest": 2.0, "seed": SEED,
    } | changes  # fmt: skip
    return perturbed_item_factors(**settings)


def test_without_noise_it_is_ridge_regression() -> None:
    p = users()
    values = np.array([1.0, 5.0, 3.0, 2.0, 4.0, 4.0, 1.0, 5.0, 2.0]) - 3.0
    for item, part in ((0, slice(0, 4)), (2, slice(4, 9))):
        x = p[RATERS[part]]
        expected = np.linalg.solve(x.T @ x + 0.5 * np.eye(3), x.T @ values[part])
        np.testing.assert_allclose(solve(epsilon=math.inf)[item], expected, rtol=1e-10)
    assert not solve(epsilon=math.inf)[1].any(), "nobody has rated it"


@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_what_is_released_minimises_the_perturbed_objective(epsilon: float) -> None:
    p, noise = users(), objective_noise(3, 3, 4.0 / epsilon, SEED)
    values = np.array([1.0, 5.0, 3.0, 2.0, 4.0, 4.0, 1.0, 5.0, 2.0]) - 3.0
    for item, q in enumerate(solve(epsilon=epsilon)):
        part = slice(INDPTR[item], INDPTR[item + 1])
        x = p[RATERS[part]]
        gradient = x.T @ (x @ q - values[part]) + 0.5 * q + noise[item]
        np.testing.assert_allclose(gradient, 0.0, atol=1e-9 * (1 + np.abs(noise).max()))


def test_a_value_moves_the_noise_of_the_same_result_by_no_more_than_the_range() -> None:
    """The step of the proof that the conditions are for: any q, any rater, from one end to the other."""
    p, q = users(), np.array([0.3, -2.0, 5.0])
    x = p[RATERS[:4]]
    for rater in range(4):
        values = np.zeros(4)
        ends = []
        for value in (-2.0, 2.0):
            values[rater] = value
            ends.append(x.T @ (values - x @ q) - 0.5 * q)
        assert np.linalg.norm(ends[1] - ends[0]) <= 4.0 * (1 + 1e-12)


def test_the_length_of_the_noise_is_gamma_and_its_direction_uniform() -> None:
    n, k, scale = 40_000, 5, 3.0
    noise = objective_noise(n, k, scale, SEED)
    length = np.linalg.norm(noise, axis=1) / scale
    # Gamma(k): mean k, variance k, and a variance of the squared distance of 3k² + 6k − k².
    assert float(length.mean()) == pytest.approx(k, abs=6 * math.sqrt(k / n))
    assert float(length.var()) == pytest.approx(k, abs=6 * math.sqrt((2 * k * k + 6 * k) / n))
    mean = (noise / np.linalg.norm(noise, axis=1)[:, None]).mean(axis=0)
    assert np.abs(mean).max() < 6 / math.sqrt(k * n)
    assert abs(float(np.corrcoef(length, noise[:, 0])[0, 1])) < 6 / math.sqrt(n)


def test_what_is_released_keeps_the_promise_in_one_dimension() -> None:
    """Of one item, one rater and k = 1, at ±Δ/2: no interval is more than e^ε times as likely."""
    epsilon, n = 0.7, 60_000
    one = np.ones((1, 1))
    found = []
    for value, seed in ((-2.0, bytes(16)), (2.0, bytes([1] * 16))):
        # Items are independent, so n of them with the same rating are n releases.
        released = perturbed_item_factors(
            one, np.arange(n + 1), np.zeros(n, np.int64), np.full(n, value), regularization=0.5,
            epsilon=epsilon, lowest=-2.0, highest=2.0, seed=seed,
        )  # fmt: skip
        found.append(np.histogram(released, np.linspace(-8, 8, 9))[0])
    counts = np.array(found, np.float64)
    assert counts.min() > 300
    ratio = np.log(counts[0] / counts[1])
    noise = 5 * np.sqrt(1 / counts[0] + 1 / counts[1])
    assert np.all(np.abs(ratio) <= epsilon + noise)
    assert np.abs(ratio).max() > 0.9 * epsilon, "the bound is tight there"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": 1.01 * users()}, "condition 1: user factors have a norm of 1 at most, not 1.01"),
        ({"users": np.full((6, 3), np.nan)}, "condition 1"),
        ({"values": np.full(9, 2.1)}, "condition 2: a value is outside -2 to 2"),
        ({"values": np.full(9, np.nan)}, "condition 2"),
        ({"lowest": 2.0}, "condition 2"),
        ({"regularization": 0.0}, "condition 4: λ is positive and finite, not 0"),
        ({"regularization": math.inf}, "condition 4"),
        ({"epsilon": 0.0}, "epsilon is above 0"),
        ({"epsilon": math.nan}, "epsilon is above 0"),
        ({"seed": bytes(3)}, "a seed has 16 bytes, not 3"),
    ],
)
def test_conditions_that_do_not_hold_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        solve(**changes)


def test_a_solution_that_is_none_is_not_released() -> None:
    """Condition 5: with a λ far below rounding, and raters all alike, the system has no one solution."""
    p = np.full((6, 3), 0.5)
    with pytest.raises((LocalProtocolError, np.linalg.LinAlgError)):
        solve(users=p, regularization=1e-300, epsilon=1e-12)


def test_noise_is_that_of_its_seed() -> None:
    assert objective_noise(5, 2, 1.0, SEED).tolist() == objective_noise(5, 2, 1.0, SEED).tolist()
    assert objective_noise(5, 2, 1.0, SEED).tolist() != objective_noise(5, 2, 1.0, bytes(16)).tolist()


class TestTheMethod:
    """DP-MF as a method of scenarios, beside item factors that numpy solves for one by one."""

    ITEMS, COUNTS = 7, (3, 1, 5, 4)
    features = np.random.default_rng(2).normal(size=(ITEMS, 3)).astype(np.float32)

    def method(self, **settings: Any) -> DPMF:
        given = {"algorithm": "dp-mf", "factors": 3, "epsilon": 2.0, "regularization": 0.7, **settings}
        problem = Problem(n_items=self.ITEMS, features=self.features)
        return DPMF(DPMFSettings.model_validate(given), problem, np.float64)

    def ratings(self) -> Ratings:
        rng = np.random.default_rng(3)
        items = [np.sort(rng.choice(self.ITEMS, count, replace=False)) for count in self.COUNTS]
        bounds = np.cumsum([0, *self.COUNTS]).astype(np.int64)
        whole = np.concatenate(items).astype(np.uint16)
        return Ratings(bounds, whole, rng.integers(1, 6, len(whole)).astype(np.float32))

    def part(self, batch: Ratings, users: slice) -> Ratings:
        bounds = batch.indptr[users.start : users.stop + 1]
        rows = slice(int(bounds[0]), int(bounds[-1]))
        return Ratings(bounds - bounds[0], batch.items[rows], batch.ratings[rows])

    def after(self, method: DPMF, state: State, batch: Ratings, local: Any = None) -> State:
        n = len(batch.indptr) - 1
        updates = method.client_update(state, batch, np.arange(n, dtype=np.uint64), local=local)
        total = method.accumulator(state)
        total.add_many(updates, np.arange(n), np.arange(n))
        return method.server_update(state, {}, total.result(), 0)[0]

    @pytest.mark.parametrize("upload", ["sparse", "dense"])
    def test_rounds_of_some_end_at_the_minimiser_over_all(self, upload: str) -> None:
        method, batch = self.method(upload=upload), self.ratings()
        state = method.initial_state(5)
        for users in (slice(0, 1), slice(1, 4)):
            state = self.after(method, state, self.part(batch, users))
        # Whoever has sent its summands sends zeros.
        again = self.after(method, state, batch, np.ones((4, 1)))
        np.testing.assert_array_equal(again["item_factors"], state["item_factors"])

        centred = self.features.astype(float) - self.features.astype(float).mean(axis=0)
        variances, axes = np.linalg.eigh(centred.T @ centred / self.ITEMS)
        components = centred @ axes[:, ::-1][:, :2] / np.sqrt(variances[::-1][:2])
        components *= np.sign(components[np.abs(components).argmax(axis=0), [0, 1]])
        noise = objective_noise(self.ITEMS, 3, 4 / 2.0, stream_bytes(5, "learning", "objective_noise")[:16])
        hessian, right = [0.7 * np.eye(3) for _ in noise], [-one for one in noise]
        factors, users_p = np.empty((self.ITEMS, 3)), []
        for start, end in zip(batch.indptr[:-1], batch.indptr[1:], strict=True):
            p = np.append(1.0, components[batch.items[start:end]].mean(axis=0))
            users_p.append(p / np.linalg.norm(p))
            for item, rating in zip(batch.items[start:end], batch.ratings[start:end], strict=True):
                hessian[item] = hessian[item] + np.outer(users_p[-1], users_p[-1])
                right[item] = right[item] + (rating - 3.0) * users_p[-1]
        for item in range(self.ITEMS):
            factors[item] = np.linalg.solve(hessian[item], right[item])
        np.testing.assert_allclose(state["item_factors"], factors, rtol=1e-6, atol=1e-9)

        said = method.predict(state, batch, batch, np.zeros(4, np.uint64))
        for user, (start, end) in enumerate(zip(batch.indptr[:-1], batch.indptr[1:], strict=True)):
            shared = 3.0 + factors[batch.items[start:end]] @ users_p[user]
            bias = float((batch.ratings[start:end] - shared).sum()) / (end - start + 5.0)
            np.testing.assert_allclose(said[start:end], shared + bias, rtol=1e-6)

    def test_the_conditions_hold_by_construction(self) -> None:
        method, batch = self.method(), self.ratings()
        other = batch._replace(ratings=6 - batch.ratings)
        users = method.users(batch)
        np.testing.assert_array_equal(users, method.users(other))
        assert np.linalg.norm(users, axis=1).max() <= 1 + 1e-12
        state = method.initial_state(1)
        # One value from one end of the range to the other, and beyond: the moments move by Δ at most.
        moments = []
        for value in (1.0, 9.0):
            changed = batch.ratings.copy()
            changed[4] = value
            moments.append(self.after(method, state, batch._replace(ratings=changed)))
        moved = np.linalg.norm(moments[1]["moment"] - moments[0]["moment"])
        assert moved == pytest.approx(4.0)
        np.testing.assert_array_equal(moments[1]["hessian"], moments[0]["hessian"])
        assert method.broadcast(state) == {}, "factors are released once, at the end"

    def test_what_it_lacks_is_named(self) -> None:
        with pytest.raises(ValueError, match="needs item features"):
            DPMF(DPMFSettings.model_validate({"algorithm": "dp-mf"}), Problem(n_items=3))
        with pytest.raises(ValueError, match="highest is above lowest"):
            self.method(lowest=5.0)
