"""A part of the local steps gives what those steps alone would give, weighed by the part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learning_helpers import (
    Samples,
    assert_same_update,
    fedrecon,
    keys_for,
    offsets_of,
    random_ratings,
    take_users,
    trained_looking_state,
)

from edge.learning.base import Problem
from edge.learning.method_settings import GradientSteps, MiniBatches, rows_seen, step_counts, work_share
from edge.learning.methods.linear_regression import LinearRegression, LinearRegressionSettings
from edge.learning.updates import UpdateBatch

COUNTS = [7, 1, 12, 20, 3]
N_ITEMS = 40
SIX_STEPS = {"method": "gradient-steps", "steps": 6, "learning_rate": 0.3, "regularization": 0.05}
BATCHES = {
    "method": "mini-batches",
    "epochs": 3,
    "batch_size": 4,
    "learning_rate": 0.1,
    "regularization": 0.05,
}


def mean_of(update: UpdateBatch, client: int, name: str) -> Any:
    one = update.client(client)
    return one.arrays[name] / one.weight


def recommender(client: dict[str, Any], **settings: Any) -> tuple[Any, Any]:
    algorithm = fedrecon(N_ITEMS, factors=4, client=client, dtype=np.float64, **settings)
    return algorithm, trained_looking_state(algorithm, 5)


def regression(**local: Any) -> LinearRegression:
    settings = LinearRegressionSettings.model_validate({"algorithm": "linear-regression", "local": local})
    return LinearRegression(settings, Problem(n_features=3))


def samples() -> Samples:
    rng = np.random.default_rng(3)
    counts = np.array([9, 4, 13])
    return Samples(offsets_of(counts), rng.normal(size=(26, 3)), rng.normal(size=26))


@pytest.mark.parametrize("client", [SIX_STEPS, BATCHES], ids=["gradient-steps", "mini-batches"])
@pytest.mark.parametrize("more", [{}, {"weighting": "uniform"}, {"split": "support-query"}])
def test_all_steps_of_a_recommender_are_no_limit(client: dict[str, Any], more: dict[str, Any]) -> None:
    algorithm, state = recommender(client, **more)
    batch, keys = random_ratings(1, COUNTS, N_ITEMS), keys_for(2, len(COUNTS))
    all_steps = algorithm.local_steps(np.array(COUNTS))
    whole = algorithm.client_update(state, batch, keys)
    same = algorithm.client_update(state, batch, keys, steps=all_steps)
    for user in range(len(COUNTS)):
        assert_same_update(same, user, whole, user)


@pytest.mark.parametrize("taken", [1, 2, 5])
def test_some_gradient_steps_of_a_recommender(taken: int) -> None:
    algorithm, state = recommender(SIX_STEPS)
    shorter, _ = recommender({**SIX_STEPS, "steps": taken})
    batch, keys = random_ratings(1, COUNTS, N_ITEMS), keys_for(2, len(COUNTS))
    part = algorithm.client_update(state, batch, keys, steps=np.full(len(COUNTS), taken))
    alone = shorter.client_update(state, batch, keys)
    for user in range(len(COUNTS)):
        assert part.client(user).weight == pytest.approx(COUNTS[user] * taken / 6, rel=1e-12)
        np.testing.assert_allclose(
            mean_of(part, user, "item_rows"), mean_of(alone, user, "item_rows"), rtol=1e-12, atol=1e-15
        )


def test_whole_epochs_of_mini_batches_of_a_recommender() -> None:
    algorithm, state = recommender(BATCHES)
    shorter, _ = recommender({**BATCHES, "epochs": 2})
    batch, keys = random_ratings(1, COUNTS, N_ITEMS), keys_for(2, len(COUNTS))
    two_epochs = 2 * -(-np.array(COUNTS) // 4)
    part = algorithm.client_update(state, batch, keys, steps=two_epochs)
    alone = shorter.client_update(state, batch, keys)
    for user in range(len(COUNTS)):
        assert part.client(user).weight == pytest.approx(COUNTS[user] * 2 / 3, rel=1e-12)
        np.testing.assert_allclose(
            mean_of(part, user, "item_rows"), mean_of(alone, user, "item_rows"), rtol=1e-12, atol=1e-15
        )


def test_one_mini_batch_of_a_recommender_moves_the_items_of_that_batch_alone() -> None:
    algorithm, state = recommender(BATCHES)
    batch, keys = random_ratings(1, COUNTS, N_ITEMS), keys_for(2, len(COUNTS))
    part = algorithm.client_update(state, batch, keys, steps=np.ones(len(COUNTS), np.int64))
    for user, count in enumerate(COUNTS):
        moved = np.any(part.client(user).arrays["item_rows"] != 0, axis=1)
        assert moved.sum() == min(4, count)


def test_each_user_has_a_limit_of_its_own_whoever_else_is_in_the_batch() -> None:
    for client in (SIX_STEPS, BATCHES):
        algorithm, state = recommender(client)
        batch, keys = random_ratings(1, COUNTS, N_ITEMS), keys_for(2, len(COUNTS))
        steps = np.array([1, 1, 4, 5, 2])
        together = algorithm.client_update(state, batch, keys, steps=steps)
        for user in range(len(COUNTS)):
            alone = algorithm.client_update(
                state, take_users(batch, [user]), keys[[user]], steps=steps[[user]]
            )
            assert_same_update(alone, 0, together, user)


def test_clients_of_several_users_cannot_be_limited() -> None:
    algorithm, state = recommender(SIX_STEPS)
    batch = random_ratings(1, COUNTS, N_ITEMS)
    with pytest.raises(ValueError, match="several users"):
        algorithm.client_update(state, batch, keys_for(2, 1), np.array([0, 5]), steps=np.array([2]))


@pytest.mark.parametrize("taken", [1, 3])
def test_some_gradient_steps_of_a_regression(taken: int) -> None:
    local = {"method": "gradient-steps", "learning_rate": 0.1, "regularization": 0.01}
    state, keys = {"weights": np.array([0.3, -0.2, 0.1, 0.5])}, keys_for(4, 3)
    part = regression(**local, steps=4).client_update(state, samples(), keys, steps=np.full(3, taken))
    alone = regression(**local, steps=taken).client_update(state, samples(), keys)
    for client, count in enumerate((9, 4, 13)):
        assert part.client(client).weight == pytest.approx(count * taken / 4, rel=1e-12)
        np.testing.assert_allclose(
            mean_of(part, client, "weights"), mean_of(alone, client, "weights"), rtol=1e-12
        )


def test_mini_batches_of_a_regression_within_an_epoch() -> None:
    local = {"method": "mini-batches", "batch_size": 4, "learning_rate": 0.1}
    state, keys = {"weights": np.array([0.3, -0.2, 0.1, 0.5])}, keys_for(4, 3)
    two, one = regression(**local, epochs=2), regression(**local, epochs=1)
    # Three, one and four batches an epoch: the whole of two, half of them, and one more than half.
    part = two.client_update(state, samples(), keys, steps=np.array([6, 1, 5]))
    whole, epoch = two.client_update(state, samples(), keys), one.client_update(state, samples(), keys)
    assert_same_update(part, 0, whole, 0)
    np.testing.assert_allclose(mean_of(part, 1, "weights"), mean_of(epoch, 1, "weights"), rtol=1e-12)
    assert part.client(1).weight == pytest.approx(4 / 2)
    assert part.client(2).weight == pytest.approx(13 * 5 / 8)
    for whole_epochs in (whole, epoch):
        assert not np.allclose(mean_of(part, 2, "weights"), mean_of(whole_epochs, 2, "weights"), rtol=1e-6)


def test_a_gradient_is_no_step() -> None:
    algorithm = regression(method="gradient")
    assert algorithm.local_steps(np.array([9, 4, 13])) is None
    with pytest.raises(ValueError, match="a gradient is no step"):
        algorithm.client_update(
            {"weights": np.zeros(4)}, samples(), keys_for(4, 3), steps=np.ones(3, np.int64)
        )


@pytest.mark.parametrize("client", [SIX_STEPS, BATCHES], ids=["gradient-steps", "mini-batches"])
def test_less_work_is_what_fewer_steps_would_cost(client: dict[str, Any]) -> None:
    algorithm, _ = recommender(client)
    examples = np.array(COUNTS)
    all_steps = algorithm.local_steps(examples)
    whole, same = algorithm.work(examples), algorithm.work(examples, all_steps)
    for name in ("flops", "moved_bytes", "ops", "steps", "memory_bytes"):
        np.testing.assert_allclose(getattr(same, name), getattr(whole, name), rtol=1e-12)
    less = algorithm.work(examples, np.ones_like(examples))
    spent = (less.flops * less.steps[:, None]).sum(axis=1)
    assert (spent < (whole.flops * whole.steps[:, None]).sum(axis=1)).all()
    assert (less.steps == whole.steps - (all_steps - 1)).all()


def test_counts_of_steps_and_rows() -> None:
    batches = MiniBatches.model_validate(BATCHES)
    steps = GradientSteps.model_validate(SIX_STEPS)
    rows = np.array([0, 4, 9])
    assert step_counts(batches, rows).tolist() == [0, 3, 9]
    assert step_counts(steps, rows).tolist() == [6, 6, 6]
    # Nine rows in batches of 4, 4 and 1.
    for taken, seen in ((1, 4), (2, 8), (3, 9), (4, 13), (9, 27)):
        assert rows_seen(batches, np.array([9]), np.array([taken])).tolist() == [seen]
    assert rows_seen(steps, rows, np.array([1, 2, 3])).tolist() == [0, 8, 27]
    assert work_share(None, rows) == 1.0
    np.testing.assert_array_equal(
        work_share(np.array([1, 3, 12]), np.array([0, 6, 6])), np.array([0.0, 0.5, 1.0])
    )
