"""FedAvg for matrix factorisation: everything shared, a user's own row through the coordinator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
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
)
from pydantic import ValidationError

from edge.core.errors import RemoteProtocolError
from edge.learning import joint_descent
from edge.learning.base import Problem, Ratings
from edge.learning.fedrecon_kernels import CLIENT_DRAW
from edge.learning.joint_descent import Pair, PairShape
from edge.learning.least_squares import shuffled_ranks
from edge.learning.methods.fedavg_mf import FedAvgMF, FedAvgMFSettings
from edge.learning.updates import UpdateBatch

N_ITEMS, FACTORS, MEAN = 30, 3, 3.0
COUNTS = [9, 1, 14, 0, 6]
FULL = {"method": "gradient-steps", "steps": 3, "learning_rate": 0.5, "regularization": 0.05}
BATCHES = {
    "method": "mini-batches",
    "batch_size": 4,
    "epochs": 2,
    "learning_rate": 0.2,
    "regularization": 0.05,
}
PLAIN = {"optimizer": {"kind": "sgd"}, "learning_rate": 1}


def make(dtype: Any = np.float64, users: int = len(COUNTS), **written: Any) -> FedAvgMF:
    model = FedAvgMFSettings.model_validate({"algorithm": "fedavg-mf", "factors": FACTORS, **written})
    return FedAvgMF(model, Problem(n_items=N_ITEMS, rating_mean=MEAN, n_users=users), dtype)


def trained_state(algorithm: FedAvgMF, seed: int) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    state = dict(algorithm.initial_state(seed))
    for name in ("item_bias", "user_table"):
        if name in state:
            state[name] = rng.normal(0, 0.4, state[name].shape).astype(state[name].dtype)
    return state


def rows_of(algorithm: FedAvgMF, state: Any, users: list[int]) -> npt.NDArray[Any]:
    return np.asarray(algorithm.rows_of(state, np.array(users)))


def one_round(algorithm: FedAvgMF, state: Any, batch: Ratings, seed: int, number: int = 0) -> Any:
    users = list(range(len(batch.indptr) - 1))
    updates = algorithm.client_update(
        state, batch, keys_for(seed, len(users)), local=rows_of(algorithm, state, users)
    )
    accumulator = algorithm.accumulator(state)
    named = [
        update._replace(arrays=algorithm.named(update.arrays, user))
        for user, update in zip(users, updates, strict=True)
    ]
    for update in named:
        accumulator.check(update.arrays)
    add_all(accumulator, named)
    optimizer_state = algorithm.initial_optimizer_state(state)
    return algorithm.server_update(state, optimizer_state, accumulator.result(), number)[0]


@pytest.mark.parametrize("biases", [(True, True), (False, True), (True, False), (False, False)])
def test_gradient_is_that_of_the_objective(biases: tuple[bool, bool]) -> None:
    """Central differences in float64."""
    rng = np.random.default_rng(0)
    counts = np.array([4, 1, 6])
    shape = PairShape(FACTORS, 0.3)
    pair = Pair(rng.normal(size=(11, FACTORS + biases[0])), rng.normal(size=(3, FACTORS + biases[1])))
    targets = rng.normal(size=11)

    def objective(at: Pair) -> float:
        error = joint_descent.errors(at, targets, counts, FACTORS)
        total = 0.0
        for user, (first, count) in enumerate(zip(np.cumsum(counts) - counts, counts, strict=True)):
            rows = slice(int(first), int(first + count))
            squares = np.square(at.items[rows, :FACTORS]).sum(axis=1) + np.square(at.users[user, :3]).sum()
            total += 0.5 * np.mean(np.square(error[rows]) + 0.3 * squares)
        return total

    found = joint_descent.gradient(pair, joint_descent.Targets(targets), counts, shape)
    for side in (0, 1):
        for place in np.ndindex(pair[side].shape):
            moved = [Pair(pair.items.copy(), pair.users.copy()) for _ in range(2)]
            moved[0][side][place] += 1e-6
            moved[1][side][place] -= 1e-6
            slope = (objective(moved[0]) - objective(moved[1])) / 2e-6
            assert abs(slope - found[side][place]) < 1e-6


def by_hand(
    batch: Ratings, key: Any, q: Any, b: Any, p: Any, c: float, client: dict[str, Any], mu: float = 0.0
) -> tuple[Any, Any, Any, float]:
    """Descend on one user's loss, all parameters at once, as plain SGD would."""
    start = (q.copy(), b.copy(), p.copy(), c)
    items, ratings, n = batch.items.astype(int), batch.ratings, len(batch.items)
    parts = [np.arange(n)] * client.get("steps", 0)
    for epoch in range(client.get("epochs", 0)):
        order = np.argsort(shuffled_ranks(batch.indptr, key, CLIENT_DRAW, epoch))
        parts += [order[i : i + client["batch_size"]] for i in range(0, n, client["batch_size"])]
    for part in parts:
        gq, gb = mu * (q - start[0]), mu * (b - start[1])
        gp, gc = mu * (p - start[2]) + client["regularization"] * p, mu * (c - start[3])
        for place in part:
            i = items[place]
            error = ratings[place] - MEAN - b[i] - c - p @ q[i]
            gq[i] += (client["regularization"] * q[i] - error * p) / len(part)
            gb[i] -= error / len(part)
            gp = gp - error * q[i] / len(part)
            gc -= error / len(part)
        rate = client["learning_rate"]
        q, b, p, c = q - rate * gq, b - rate * gb, p - rate * gp, c - rate * gc
    return q, b, p, c


@pytest.mark.parametrize("client", [{**FULL, "steps": 1}, FULL, BATCHES], ids=["one", "full", "batches"])
@pytest.mark.parametrize("mu", [0.0, 0.6])
def test_one_client_is_stochastic_gradient_descent(client: dict[str, Any], mu: float) -> None:
    algorithm = make(users=1, client=client, proximal=mu, **PLAIN)
    state, batch = trained_state(algorithm, 1), random_ratings(1, [17], N_ITEMS, np.float64)
    q, b = state["item_factors"].copy(), state["item_bias"].copy()
    row = state["user_table"][0].copy()
    p, c = row[:FACTORS], float(row[FACTORS])
    for number in range(4):
        state = one_round(algorithm, state, batch, number, number)
        q, b, p, c = by_hand(batch, keys_for(number, 1), q, b, p, c, client, mu)
    np.testing.assert_allclose(state["item_factors"], q, rtol=0, atol=1e-10)
    np.testing.assert_allclose(state["item_bias"], b, rtol=0, atol=1e-10)
    np.testing.assert_allclose(state["user_table"][0], np.append(p, c), rtol=0, atol=1e-10)


def test_items_are_averaged_and_a_row_is_its_users_own() -> None:
    algorithm = make(client=FULL, **PLAIN)
    state, batch = trained_state(algorithm, 2), random_ratings(2, COUNTS, N_ITEMS, np.float64)
    after = one_round(algorithm, state, batch, 2)
    total = np.zeros((N_ITEMS, FACTORS))
    for user, count in enumerate(COUNTS):
        row = state["user_table"][user]
        if not count:
            np.testing.assert_array_equal(after["user_table"][user], row)
            continue
        alone = by_hand(
            take_users(batch, [user]),
            None,
            state["item_factors"],
            state["item_bias"],
            row[:3],
            float(row[3]),
            FULL,
        )
        total += count * (alone[0] - state["item_factors"])
        np.testing.assert_allclose(after["user_table"][user], np.append(alone[2], alone[3]), atol=1e-12)
    expected = state["item_factors"] + total / sum(COUNTS)
    np.testing.assert_allclose(after["item_factors"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("client", [FULL, BATCHES], ids=["full", "batches"])
def test_no_pull_is_the_plain_method_and_a_pull_is_not(client: dict[str, Any]) -> None:
    plain, none, some = (
        make(np.float32, client=client, **mu) for mu in ({}, {"proximal": 0}, {"proximal": 0.5})
    )
    state, batch, keys = trained_state(plain, 3), random_ratings(3, COUNTS, N_ITEMS), keys_for(3, 5)
    rows = state["user_table"]
    updates = [a.client_update(state, batch, keys, local=rows) for a in (plain, none, some)]
    for user in range(len(COUNTS)):
        assert_same_update(updates[0], user, updates[1], user)
    sizes = [np.linalg.norm(update.ragged["item_rows"]) for update in updates]
    assert sizes[2] < 0.95 * sizes[0]


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    client=st.sampled_from([FULL, BATCHES]),
    mu=st.sampled_from([0.0, 0.3]),
    limited=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_client_does_not_depend_on_the_others(
    counts: list[int], client: dict[str, Any], mu: float, limited: bool, seed: int
) -> None:
    n = len(counts)
    algorithm = make(np.float32, users=n, client=client, proximal=mu)
    state, batch, keys = trained_state(algorithm, seed), random_ratings(seed, counts, N_ITEMS), keys_for(1, n)
    steps = np.arange(1, n + 1) if limited else None
    rows = state["user_table"]
    whole = algorithm.client_update(state, batch, keys, steps=steps, local=rows)
    for user in range(n):
        one = algorithm.client_update(
            state,
            take_users(batch, [user]),
            keys[[user]],
            steps=None if steps is None else steps[[user]],
            local=rows[[user]],
        )
        assert_same_update(whole, user, one, 0)


def test_a_part_of_the_steps_weighs_a_part() -> None:
    whole, short = make(client=FULL), make(client={**FULL, "steps": 2})
    state, batch, keys = trained_state(whole, 5), random_ratings(5, [8], N_ITEMS, np.float64), keys_for(5, 1)
    (part,) = whole.client_update(state, batch, keys, steps=np.array([2]), local=state["user_table"][:1])
    (all_,) = short.client_update(state, batch, keys, local=state["user_table"][:1])
    assert part.weight == pytest.approx(8 * 2 / 3)
    np.testing.assert_allclose(part.arrays["item_rows"], all_.arrays["item_rows"] * 2 / 3, atol=1e-14)
    np.testing.assert_array_equal(part.arrays["user_row"], all_.arrays["user_row"])


def test_a_device_downloads_its_own_row_and_no_other() -> None:
    algorithm = make(np.float32)
    state = trained_state(algorithm, 6)
    sent = {**algorithm.broadcast(state), **algorithm.own(state, 2)}
    assert set(sent) == {"item_factors", "item_bias", "rating_mean", "user_row"}
    np.testing.assert_array_equal(sent["user_row"], state["user_table"][2:3])
    assert not algorithm.broadcast(state)["user_row"].any()
    # A device has nothing but what it was sent; the coordinator has the table.
    np.testing.assert_array_equal(algorithm.rows_of(sent, np.array([2])), state["user_table"][2:3])
    batch = random_ratings(6, [7], N_ITEMS)
    on_device = algorithm.client_update(sent, batch, keys_for(6, 1), local=sent["user_row"])
    simulated = algorithm.client_update(state, batch, keys_for(6, 1), local=state["user_table"][2:3])
    assert_same_update(on_device, 0, simulated, 0)


def test_declared_sizes_are_real_ones() -> None:
    algorithm = make(np.float32)
    state, batch = trained_state(algorithm, 7), random_ratings(7, COUNTS, N_ITEMS)
    declared = sum(spec.nbytes() for spec in algorithm.upload_spec(np.array(COUNTS)))
    updates = algorithm.client_update(state, batch, keys_for(7, 5), local=state["user_table"])
    assert [sum(a.nbytes for a in update.arrays.values()) for update in updates] == list(declared)
    more = algorithm.work(np.array([10, 20]))
    assert (more.flops[1] > more.flops[0])[2]
    assert (make(proximal=0.1).work(np.array([10])).flops > algorithm.work(np.array([10])).flops).any()


def garbage(update: Any, case: str) -> dict[str, Any]:
    arrays = dict(update.arrays)
    if case == "missing":
        del arrays["user_row"]
    elif case == "two rows":
        arrays["user_row"] = np.tile(arrays["user_row"], (2, 1))
    elif case == "nan":
        arrays["user_row"] = np.full_like(arrays["user_row"], np.nan)
    elif case == "other":
        arrays["more"] = np.zeros(1)
    else:
        arrays["items"] = arrays["items"][::-1]
    return arrays


@pytest.mark.parametrize("case", ["missing", "two rows", "nan", "other", "items"])
def test_malformed_reports_are_refused(case: str) -> None:
    algorithm = make(np.float32)
    state, batch = trained_state(algorithm, 8), random_ratings(8, [5], N_ITEMS)
    (update,) = algorithm.client_update(state, batch, keys_for(8, 1))
    accumulator = algorithm.accumulator(state)
    accumulator.check(update.arrays)
    with pytest.raises(RemoteProtocolError):
        accumulator.check(garbage(update, case))


def test_a_report_cannot_speak_for_another_user() -> None:
    algorithm = make(np.float32)
    lie = {"users": np.array([0]), "user_row": np.ones(4, np.float32)}
    assert algorithm.named(lie, 3)["users"].tolist() == [3]


def test_users_without_a_row_start_from_the_others_mean() -> None:
    mean, initial = make(), make(new_users="initial")
    state, batch, keys = trained_state(mean, 9), random_ratings(9, [6], N_ITEMS), keys_for(9, 1)
    table = state["user_table"].copy()
    table[3] = 0
    state["user_table"] = table
    for algorithm, row in ((mean, table[[0, 1, 2, 4]].mean(axis=0)), (initial, np.zeros(4))):
        expected = MEAN + state["item_bias"] + row[3] + state["item_factors"] @ row[:3]
        predicted = algorithm.predict(state, batch, batch, keys, rows_of(algorithm, state, [3]))
        np.testing.assert_allclose(predicted, expected[batch.items], rtol=1e-12)
        np.testing.assert_allclose(algorithm.scores(state, batch, keys)[0], expected, rtol=1e-6)
    own = mean.predict(state, batch, batch, keys, rows_of(mean, state, [1]))
    expected = MEAN + state["item_bias"] + table[1, 3] + state["item_factors"] @ table[1, :3]
    np.testing.assert_allclose(own, expected[batch.items], rtol=1e-12)
    untrained = {**state, "user_table": np.zeros_like(table)}
    expected = MEAN + state["item_bias"]
    np.testing.assert_allclose(mean.predict(untrained, batch, batch, keys), expected[batch.items])


def test_fine_tuned_rows_are_those_of_fedrecon() -> None:
    ridge = {"method": "ridge", "regularization": 4}
    algorithm = make(np.float32, fine_tuning=ridge)
    other = fedrecon(N_ITEMS, MEAN, factors=FACTORS, reconstruction=ridge)
    state, batch, keys = trained_state(algorithm, 10), random_ratings(10, COUNTS, N_ITEMS), keys_for(10, 5)
    np.testing.assert_array_equal(
        algorithm.predict(state, batch, batch, keys, state["user_table"]),
        other.predict(state, batch, batch, keys),
    )
    np.testing.assert_array_equal(
        algorithm.scores(state, batch, keys, state["user_table"]), other.scores(state, batch, keys)
    )


def test_training_beats_the_means() -> None:
    algorithm = make(
        np.float32,
        users=60,
        client={**FULL, "steps": 5, "learning_rate": 1, "regularization": 0.02},
        learning_rate=0.05,
        initial_scale=0.3,
    )
    batch = low_rank_ratings(11, 60, N_ITEMS, 20)
    state, keys = algorithm.initial_state(11), keys_for(11, 60)
    errors = []
    optimizer_state = algorithm.initial_optimizer_state(state)
    for number in range(60):
        rows = algorithm.rows_of(state, np.arange(60))
        predicted = algorithm.predict(state, batch, batch, keys, rows)
        errors.append(float(np.sqrt(np.mean((predicted - batch.ratings) ** 2))))
        updates: UpdateBatch = algorithm.client_update(state, batch, keys, local=rows)
        accumulator = algorithm.accumulator(state)
        for user, update in enumerate(updates):
            accumulator.add(update._replace(arrays=algorithm.named(update.arrays, user)), user)
        state, optimizer_state = algorithm.server_update(state, optimizer_state, accumulator.result(), number)
    assert errors[-1] < 0.6 * errors[0]


def test_several_users_a_client_are_refused() -> None:
    algorithm = make()
    batch = random_ratings(0, COUNTS, N_ITEMS)
    with pytest.raises(ValueError, match="one user a client"):
        algorithm.client_update(algorithm.initial_state(0), batch, keys_for(0, 2), np.array([0, 2, 5]))
    with pytest.raises(ValueError, match="has no items"):
        FedAvgMF(FedAvgMFSettings(algorithm="fedavg-mf"), Problem())


@pytest.mark.parametrize("written", [{"upload": "dense"}, {"weighting": "uniform"}, {"new_users": "median"}])
def test_bad_settings_are_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make(**written)
