from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import (
    add_all,
    assert_same_update,
    fedrecon,
    keys_for,
    low_rank_ratings,
    random_ratings,
    take_users,
    trained_looking_state,
)

from edge.learning.base import Problem, Ratings
from edge.learning.fedrecon_kernels import split, support_sizes
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import FedReconSettings

N_ITEMS = 90
COUNTS = [7, 0, 1, 90, 33, 2, 64, 21, 5, 80, 12, 3]
RIDGE = {"method": "ridge", "regularization": 2.0, "bias_regularization": 0.5}
STEPS = {
    "method": "gradient-steps",
    "steps": 5,
    "learning_rate": 0.4,
    "regularization": 3.0,
    "bias_regularization": 0.5,
}
CLIENT_STEPS = {"method": "gradient-steps", "steps": 3, "learning_rate": 0.2, "regularization": 0.05}
BATCHES = {"method": "mini-batches", "batch_size": 5, "epochs": 2, "learning_rate": 0.2}
VARIANTS: dict[str, dict[str, Any]] = {
    "ridge": {"reconstruction": RIDGE},
    "ridge-wide": {"reconstruction": RIDGE, "factors": 33},
    "one-factor": {"reconstruction": RIDGE, "factors": 1},
    "steps": {"reconstruction": STEPS},
    "split": {"reconstruction": RIDGE, "split": "support-query", "support_fraction": "70%"},
    "uniform": {"reconstruction": STEPS, "weighting": "uniform", "client": CLIENT_STEPS},
    "published": {
        "reconstruction": BATCHES,
        "client": BATCHES,
        "split": "support-query",
        "item_bias": "false",
        "user_bias": "false",
        "subtract_mean": "false",
        "optimizer": {"kind": "sgd"},
        "learning_rate": "1.0",
    },
    "dense": {"reconstruction": RIDGE, "upload": "dense"},
}


def make(name: str, dtype: Any = np.float32) -> tuple[FedRecon, dict[str, Any]]:
    algorithm = fedrecon(N_ITEMS, **{"factors": 4, **VARIANTS[name]}, dtype=dtype)
    return algorithm, trained_looking_state(algorithm, 3)


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=25)
@given(chosen=st.lists(st.integers(0, len(COUNTS) - 1), min_size=1, max_size=8))
def test_an_update_does_not_depend_on_the_batch(name: str, chosen: list[int]) -> None:
    algorithm, state = make(name)
    batch, keys = random_ratings(1, COUNTS, N_ITEMS), keys_for(2, len(COUNTS))
    whole = algorithm.client_update(state, batch, keys)
    some = algorithm.client_update(state, take_users(batch, chosen), keys[chosen])
    for place, user in enumerate(chosen):
        assert_same_update(some, place, whole, user)


@pytest.mark.parametrize("name", ["ridge", "steps", "published"])
def test_large_batches_span_blocks_and_still_agree_with_single_users(name: str) -> None:
    counts = [80 + i % 11 for i in range(200)]
    algorithm, state = make(name)
    batch, keys = random_ratings(4, counts, N_ITEMS), keys_for(5, 200)
    whole = algorithm.client_update(state, batch, keys)
    for user in range(0, 200, 7):
        alone = algorithm.client_update(state, take_users(batch, [user]), keys[[user]])
        assert_same_update(alone, 0, whole, user)


@pytest.mark.parametrize("name", ["ridge", "steps", "published"])
def test_predictions_and_scores_do_not_depend_on_the_batch(name: str) -> None:
    algorithm, state = make(name)
    support, query = random_ratings(6, COUNTS, N_ITEMS), random_ratings(7, COUNTS[::-1], N_ITEMS)
    keys = keys_for(8, len(COUNTS))
    predictions = algorithm.predict(state, support, query, keys)
    scores = algorithm.scores(state, support, keys)
    assert predictions.dtype == scores.dtype == np.float32
    assert scores.shape == (len(COUNTS), N_ITEMS)
    owners = np.repeat(np.arange(len(COUNTS)), np.diff(query.indptr))
    np.testing.assert_allclose(scores[owners, query.items], predictions, rtol=1e-4, atol=1e-5)
    for user in range(len(COUNTS)):
        one = take_users(support, [user])
        part = slice(query.indptr[user], query.indptr[user + 1])
        alone = algorithm.predict(state, one, take_users(query, [user]), keys[[user]])
        assert alone.tobytes() == predictions[part].tobytes()
        assert algorithm.scores(state, one, keys[[user]])[0].tobytes() == scores[user].tobytes()


def ridge_by_hand(state: dict[str, Any], items: Any, ratings: Any, mean: float) -> tuple[Any, float]:
    q = state["item_factors"][items]
    x = np.hstack([q, np.ones((len(items), 1))])
    target = ratings - mean - state["item_bias"][items]
    penalty = np.diag([2.0] * q.shape[1] + [0.5])
    w = np.linalg.solve(x.T @ x + penalty, x.T @ target)
    return w[:-1], float(w[-1])


def test_ridge_solves_for_factors_and_bias_jointly() -> None:
    algorithm, state = make("ridge", np.float64)
    batch = random_ratings(9, COUNTS, N_ITEMS, np.float64)
    scores = algorithm.scores(state, batch, keys_for(1, len(COUNTS)))
    for user in range(len(COUNTS)):
        part = slice(batch.indptr[user], batch.indptr[user + 1])
        p, bias = ridge_by_hand(state, batch.items[part], batch.ratings[part], 3.0)
        expected = 3.0 + state["item_bias"] + bias + state["item_factors"] @ p
        np.testing.assert_allclose(scores[user], expected, rtol=1e-6)


def test_gradient_steps_minimise_the_same_loss_as_ridge_in_the_end() -> None:
    batch = random_ratings(10, [60, 45], N_ITEMS, np.float64)
    exact = fedrecon(
        N_ITEMS,
        factors=3,
        initial_scale=1.0,
        dtype=np.float64,
        reconstruction={"method": "ridge", "regularization": 1e-9, "bias_regularization": 1e-9},
    )
    slow = fedrecon(
        N_ITEMS,
        factors=3,
        initial_scale=1.0,
        dtype=np.float64,
        reconstruction={
            "method": "gradient-steps",
            "steps": 3000,
            "learning_rate": 0.3,
            "bias_learning_rate": 0.3,
            "regularization": 0,
            "bias_regularization": 0,
        },
    )
    state, keys = exact.initial_state(0), keys_for(0, 2)
    np.testing.assert_allclose(
        slow.scores(state, batch, keys), exact.scores(state, batch, keys), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", ["ridge", "steps", "split"])
def test_uploads_are_the_gradient_of_the_query_loss_with_the_user_frozen(name: str) -> None:
    plain = {"method": "gradient-steps", "steps": 1, "learning_rate": 1.0}
    algorithm = fedrecon(N_ITEMS, factors=4, dtype=np.float64, **{**VARIANTS[name], "client": plain})
    state = trained_looking_state(algorithm, 3)
    batch, keys = random_ratings(11, [9, 14], N_ITEMS, np.float64), keys_for(3, 2)
    support = query = batch
    if name == "split":
        support, query = split(batch, keys, 0.7)
    # What reconstruction finds at this state, read off the scores: local parameters stay there.
    base = algorithm.scores(state, support, keys)
    user_part = base - 3.0 - state["item_bias"]
    factors = np.linalg.lstsq(
        np.hstack([state["item_factors"], np.ones((N_ITEMS, 1))]), user_part.T.astype(np.float64), rcond=None
    )[0]

    def loss(user: int, item_factors: Any, item_bias: Any) -> float:
        part = slice(query.indptr[user], query.indptr[user + 1])
        items = query.items[part]
        predicted = 3.0 + item_bias[items] + item_factors[items] @ factors[:-1, user] + factors[-1, user]
        return 0.5 * float(np.mean((query.ratings[part] - predicted) ** 2))

    updates = algorithm.client_update(state, batch, keys)
    step = 1e-4
    for user in range(2):
        update = updates.client(user)
        assert update.loss == pytest.approx(loss(user, state["item_factors"], state["item_bias"]), rel=1e-5)
        for row, item in enumerate(update.arrays["items"]):
            numeric = []
            for column in range(5):
                ends = []
                for sign in (1, -1):
                    q, b = state["item_factors"].copy(), state["item_bias"].copy()
                    if column < 4:
                        q[item, column] += sign * step
                    else:
                        b[item] += sign * step
                    ends.append(loss(user, q, b))
                numeric.append((ends[0] - ends[1]) / (2 * step))
            got = -update.arrays["item_rows"][row] / update.weight
            np.testing.assert_allclose(got, numeric, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "client",
    [
        {"method": "gradient-steps", "steps": 3, "learning_rate": 0.5, "regularization": 0.1},
        {"method": "mini-batches", "batch_size": 4, "learning_rate": 0.5, "regularization": 0.1},
    ],
    ids=["steps", "mini-batches"],
)
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_client_steps_are_sequential_sgd_on_the_item_table(client: dict[str, Any], weighting: str) -> None:
    algorithm = fedrecon(
        N_ITEMS, factors=4, client=client, weighting=weighting, reconstruction=RIDGE, dtype=np.float64
    )
    state = trained_looking_state(algorithm, 3)
    batch, keys = random_ratings(12, [10], N_ITEMS, np.float64), keys_for(4, 1)
    p, bias = ridge_by_hand(state, batch.items, batch.ratings, 3.0)
    q, b = state["item_factors"].copy(), state["item_bias"].copy()
    update = algorithm.client_update(state, batch, keys).client(0)
    # With distinct items, only the size of a row's mini-batch matters: 4, 4 and 2 of the 10 rows. Find out
    # which rows were in the last one by trying both sizes.
    sizes = [10] if client["method"] == "gradient-steps" else [4, 2]
    chosen = []
    for row, item in enumerate(batch.items):
        candidates = []
        for size in sizes:
            row_q, row_b = q[item].copy(), b[item]
            for _ in range(client.get("steps", 1)):
                error = batch.ratings[row] - 3.0 - row_b - row_q @ p - bias
                row_q, row_b = row_q + 0.5 / size * (error * p - 0.1 * row_q), row_b + 0.5 / size * error
            candidates.append(np.append(row_q - q[item], row_b - b[item]))
        got = update.arrays["item_rows"][row] / (10.0 if weighting == "examples" else 1.0)
        fits = [np.allclose(got, candidate, rtol=1e-9, atol=1e-12) for candidate in candidates]
        assert sum(fits) == 1
        chosen.append(sizes[fits.index(True)])
    if len(sizes) == 2:
        assert sorted(chosen) == [2] * 2 + [4] * 8
    assert update.weight == (10.0 if weighting == "examples" else 1.0)


def test_a_split_is_exact_disjoint_and_its_own() -> None:
    batch, keys = random_ratings(13, COUNTS, N_ITEMS), keys_for(5, len(COUNTS))
    support, query = split(batch, keys, 0.7)
    for user, count in enumerate(COUNTS):
        whole = take_users(batch, [user]).items.tolist()
        left, right = take_users(support, [user]).items.tolist(), take_users(query, [user]).items.tolist()
        if count == 1:
            assert left == right == whole
            continue
        assert sorted(left + right) == whole
        assert left == sorted(left)
        assert len(left) == support_sizes(np.array([count]), 0.7)[0]
        assert count == 0 or min(len(left), len(right)) >= 1
    again, _ = split(batch, keys_for(6, len(COUNTS)), 0.7)
    assert again.items.tolist() != support.items.tolist()


def test_a_client_of_several_users_uploads_the_sum_of_its_users() -> None:
    algorithm, state = make("ridge")
    batch = random_ratings(14, COUNTS, N_ITEMS)
    clients = np.array([0, 5, 5, 12])
    grouped = algorithm.client_update(state, batch, keys_for(7, 3), clients)
    single = algorithm.client_update(state, batch, keys_for(8, len(COUNTS)))
    for client in range(3):
        users = range(clients[client], clients[client + 1])
        table = np.zeros((N_ITEMS, 5))
        for user in users:
            one = single.client(user).arrays
            table[one["items"]] += one["item_rows"]
        update = grouped.client(client)
        items = update.arrays["items"]
        assert (np.diff(items.astype(int)) > 0).all()
        np.testing.assert_allclose(update.arrays["item_rows"], table[items], rtol=1e-4, atol=1e-5)
        assert np.count_nonzero(np.delete(table, items, axis=0)) == 0
        assert update.examples == update.weight == sum(COUNTS[user] for user in users)


def test_a_client_of_several_users_with_uniform_weight_uploads_their_mean() -> None:
    algorithm = fedrecon(N_ITEMS, factors=4, reconstruction=RIDGE, weighting="uniform", upload="dense")
    state = trained_looking_state(algorithm, 3)
    batch = random_ratings(14, [20, 30, 40], N_ITEMS)
    grouped = algorithm.client_update(state, batch, keys_for(7, 1), np.array([0, 3])).client(0)
    single = [u.arrays["item_rows"] for u in algorithm.client_update(state, batch, keys_for(8, 3))]
    np.testing.assert_allclose(
        grouped.arrays["item_rows"], (single[0] + single[1] + single[2]) / 3, rtol=1e-4, atol=1e-6
    )
    assert grouped.weight == 1.0


@pytest.mark.parametrize("name", ["ridge", "split", "published"])
def test_grouped_clients_do_not_depend_on_the_batch(name: str) -> None:
    algorithm, state = make(name)
    batch, keys = random_ratings(15, COUNTS, N_ITEMS), keys_for(9, 3)
    whole = algorithm.client_update(state, batch, keys, np.array([0, 4, 9, 12]))
    alone = algorithm.client_update(state, take_users(batch, [4, 5, 6, 7, 8]), keys[[1]], np.array([0, 5]))
    assert_same_update(alone, 0, whole, 1)


@pytest.mark.parametrize("name", VARIANTS)
def test_uploads_have_the_declared_sizes(name: str) -> None:
    algorithm, state = make(name)
    batch = random_ratings(16, COUNTS, N_ITEMS)
    specs = algorithm.upload_spec(np.array(COUNTS))
    for user, update in enumerate(algorithm.client_update(state, batch, keys_for(1, len(COUNTS)))):
        declared = {spec.name: (spec.dtype, (int(spec.rows[user]), *spec.row_shape)) for spec in specs}
        assert declared == {name: (a.dtype, a.shape) for name, a in update.arrays.items()}
        assert sum(int(spec.nbytes()[user]) for spec in specs) == sum(
            array.nbytes for array in update.arrays.values()
        )


def test_sparse_updates_are_views_of_the_batch() -> None:
    algorithm, state = make("ridge")
    updates = algorithm.client_update(state, random_ratings(17, COUNTS, N_ITEMS), keys_for(1, len(COUNTS)))
    assert updates.client(3).arrays["item_rows"].base is updates.ragged["item_rows"]
    assert len(updates) == len(COUNTS)


def test_nothing_local_is_in_what_a_device_uploads() -> None:
    for name in VARIANTS:
        algorithm, state = make(name)
        update = algorithm.client_update(state, random_ratings(18, [30], N_ITEMS), keys_for(1, 1)).client(0)
        assert set(update.arrays) <= {"items", "item_rows"}
        assert set(algorithm.broadcast(state)) <= {"item_factors", "item_bias", "rating_mean"}


def test_the_server_moves_along_the_mean_delta() -> None:
    algorithm = fedrecon(
        N_ITEMS, factors=4, reconstruction=RIDGE, optimizer={"kind": "sgd"}, learning_rate="0.5"
    )
    state = trained_looking_state(algorithm, 3)
    accumulator = algorithm.accumulator(state)
    updates = algorithm.client_update(state, random_ratings(19, COUNTS, N_ITEMS), keys_for(1, len(COUNTS)))
    add_all(accumulator, updates)
    aggregate = accumulator.result()
    kept = {name: array.copy() for name, array in state.items()}
    new, _ = algorithm.server_update(state, algorithm.initial_optimizer_state(state), aggregate, 0)
    mean = aggregate.sums["item_rows"] / sum(COUNTS)
    np.testing.assert_allclose(new["item_factors"], state["item_factors"] + 0.5 * mean[:, :4], rtol=1e-5)
    np.testing.assert_allclose(new["item_bias"], state["item_bias"] + 0.5 * mean[:, 4], rtol=1e-5)
    assert all((state[name] == kept[name]).all() for name in kept)
    assert all(array.dtype == np.float32 for array in new.values())
    assert algorithm.converged(aggregate) is None


def test_the_same_seed_gives_the_same_state() -> None:
    algorithm, _ = make("ridge")
    one, other, third = (algorithm.initial_state(seed) for seed in (1, 1, 2))
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert (one["item_factors"] != third["item_factors"]).any()


@pytest.mark.parametrize("name", ["ridge", "steps", "split"])
def test_training_learns_a_low_rank_taste(name: str) -> None:
    ratings = low_rank_ratings(0, 150, N_ITEMS, 40)
    algorithm = fedrecon(
        N_ITEMS, factors=4, learning_rate="0.05", mean=float(ratings.ratings.mean()), **VARIANTS[name]
    )
    state = algorithm.initial_state(0)
    optimizer_state = algorithm.initial_optimizer_state(state)
    held_out = np.random.default_rng(1).random(len(ratings.items)) < 0.2
    before = np.concatenate([[0], np.cumsum(~held_out)])
    train = Ratings(before[ratings.indptr], ratings.items[~held_out], ratings.ratings[~held_out])
    after = np.concatenate([[0], np.cumsum(held_out)])
    test = Ratings(after[ratings.indptr], ratings.items[held_out], ratings.ratings[held_out])
    keys = keys_for(0, 150)

    def rmse() -> float:
        return float(np.sqrt(np.mean((algorithm.predict(state, train, test, keys) - test.ratings) ** 2)))

    first = rmse()
    for round_number in range(60):
        cohort = np.random.default_rng(round_number).choice(150, 50, replace=False).tolist()
        accumulator = algorithm.accumulator(state)
        add_all(
            accumulator, algorithm.client_update(state, take_users(train, cohort), keys_for(round_number, 50))
        )
        state, optimizer_state = algorithm.server_update(
            state, optimizer_state, accumulator.result(), round_number
        )
    # The taste has standard deviation 1.7 and the noise 0.3; item and user means explain next to nothing.
    assert first > 1.5
    assert rmse() < 0.6 * first


def test_work_counts_what_the_shapes_say() -> None:
    examples = np.array([100, 10, 1])
    ridge = fedrecon(N_ITEMS, factors=16, reconstruction=RIDGE).work(examples)
    np.testing.assert_array_equal(ridge.steps, [2, 2, 2])
    total = ridge.flops * ridge.steps[:, None]
    assert total[0, 1] == pytest.approx(100 * 18 * 19 + 2 / 3 * 17**3 + 2 * 17**2)
    assert total[0, 2] == 100 * (2 * 18 + 2 * 17)
    assert (total[:, 0] == 0).all()
    assert (ridge.moved_bytes[:, 0] * 2)[0] == 2 * 100 * 18 * 4
    published = fedrecon(N_ITEMS, factors=50, **VARIANTS["published"]).work(examples)
    np.testing.assert_array_equal(published.steps, [2 * 10 + 2 * 10, 2 * 1 + 2 * 1, 2 + 2])
    dense = fedrecon(N_ITEMS, factors=16, upload="dense").work(examples)
    assert (dense.memory_bytes > fedrecon(N_ITEMS, factors=16).work(examples).memory_bytes)[1:].all()
    for work in (ridge, published, dense):
        assert work.flops.shape == work.moved_bytes.shape == work.ops.shape == (3, 3)
        assert (work.memory_bytes > N_ITEMS * 16 * 4).all()


def test_a_catalogue_above_65535_items_uploads_int32_numbers() -> None:
    assert fedrecon(65_535).layout.item_dtype == np.uint16
    assert fedrecon(65_536).layout.item_dtype == np.int32


def test_a_problem_without_items_is_refused() -> None:
    with pytest.raises(ValueError, match="this problem has no items"):
        FedRecon(FedReconSettings(algorithm="fedrecon"), Problem(n_features=5))
