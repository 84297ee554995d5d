"""FedRecGEL: where it takes its gradients, what it is without radii, and that it learns."""

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
from ncf_helpers import BATCHES, N_ITEMS, SMALL, STEPS, fedncf, planted, sharp, some_rows
from pydantic import ValidationError
from rises import rises

from edge.learning import neumf
from edge.learning.base import Ratings
from edge.learning.methods.fedncf.local import ItemRows
from edge.learning.methods.fedrecgel import FedRecGELSettings
from edge.learning.methods.fedrecon.algorithm import BIAS, FACTORS
from edge.learning.sharpness import Radii
from edge.learning.updates import ROWS

COUNTS = [7, 1, 30, 12, 0, 25, 3]
USER_STEPS = {"method": "gradient-steps", "steps": 3, "learning_rate": 0.7, "regularization": 3.0}
ITEM_STEPS = {"method": "gradient-steps", "steps": 2, "learning_rate": 0.4, "regularization": 0.05}
BASES: dict[str, dict[str, Any]] = {
    "fedncf": {"algorithm": "fedncf", **SMALL, "client": STEPS},
    "fedncf-batches": {"algorithm": "fedncf", **SMALL, "client": BATCHES, "user_embeddings": "reconstructed"},
    "fedrecon": {"algorithm": "fedrecon", "factors": 4, "reconstruction": USER_STEPS, "client": ITEM_STEPS},
    "fedmf": {
        "algorithm": "fedrecon",
        "factors": 4,
        "user_factors": "persistent",
        "reconstruction": USER_STEPS,
        "client": {**ITEM_STEPS, "steps": 1},
        "item_bias": "false",
    },
}


def plain(name: str) -> Any:
    written = {key: value for key, value in BASES[name].items() if key != "algorithm"}
    return fedncf(**written) if name.startswith("fedncf") else fedrecon(N_ITEMS, **written)


@pytest.mark.parametrize("name", BASES)
def test_without_radii_it_is_the_method_itself(name: str) -> None:
    algorithm, base = sharp(BASES[name], 0.0, 0.0), plain(name)
    state, batch, keys = base.initial_state(2), random_ratings(2, COUNTS, N_ITEMS), keys_for(2, 7)
    local = some_rows(base, 7) if base.local_width else None
    one = algorithm.client_update(state, batch, keys, local=local)
    other = base.client_update(state, batch, keys, local=local)
    for user in range(7):
        assert_same_update(one, user, other, user)
    predicted = algorithm.predict(state, batch, batch, keys, local)
    assert predicted.tobytes() == base.predict(state, batch, batch, keys, local).tobytes()
    assert algorithm.work(np.array(COUNTS)).flops.tolist() == base.work(np.array(COUNTS)).flops.tolist()
    assert algorithm.local_width == base.local_width


@pytest.mark.parametrize("name", BASES)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 2**31))
@settings(max_examples=8, deadline=None)
def test_a_device_does_not_depend_on_the_others(name: str, counts: list[int], seed: int) -> None:
    algorithm = sharp(BASES[name], 0.05, 0.03)
    state, batch = algorithm.initial_state(1), random_ratings(seed, counts, N_ITEMS)
    keys, rows = keys_for(seed, len(counts)), some_rows(algorithm, len(counts))
    local = rows if algorithm.local_width else None
    whole = algorithm.client_update(state, batch, keys, local=local)
    for user in range(len(counts)):
        own = None if local is None else rows[[user]]
        alone = algorithm.client_update(state, take_users(batch, [user]), keys[[user]], local=own)
        assert_same_update(whole, user, alone, 0)


def test_published_sizes_do_not_depend_on_the_batch_either() -> None:
    """Sums over tens of thousands of weights are cut up differently than small ones."""
    sizes = {"gmf_factors": 32, "mlp_factors": 128, "layers": [128, 64, 32], "negatives": 4}
    algorithm = sharp({"algorithm": "fedncf", **sizes}, 0.1, 0.1, n_items=400)
    state, batch, keys = (
        algorithm.initial_state(1),
        random_ratings(4, [40, 3, 79, 1, 11], 400),
        keys_for(4, 5),
    )
    rows = some_rows(algorithm, 5)
    whole = algorithm.client_update(state, batch, keys, local=rows)
    for user in range(5):
        alone = algorithm.client_update(state, take_users(batch, [user]), keys[[user]], local=rows[[user]])
        assert_same_update(whole, user, alone, 0)


def norm(gradients: Any, names: tuple[str, ...]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(getattr(gradients, name))) for name in names)))


@pytest.mark.parametrize("radii", [(0.3, 0.0), (0.0, 0.4), (0.3, 0.4)])
def test_each_block_of_fedncf_descends_from_its_own_worst_point(radii: tuple[float, float]) -> None:
    """One client and one step, a block at a time, with the other where it is."""
    base = {
        "algorithm": "fedncf",
        **SMALL,
        "user_steps": 0,
        "client": {"method": "gradient-steps", "steps": 1, "learning_rate": 1, "regularization": 0.1},
        "weighting": "uniform",
    }
    algorithm = sharp(base, *radii, dtype=np.float64)
    state, batch, keys = algorithm.initial_state(4), random_ratings(4, [8], N_ITEMS), keys_for(4, 1)
    user = some_rows(algorithm, 1).astype(float)
    examples = algorithm._examples(batch, keys)
    count = len(examples.items)
    rows = neumf.ExampleRows([0, count], np.array([count]), examples.positive.astype(float))
    point = neumf.Point(
        state["gmf_items"][examples.items], state["mlp_items"][examples.items], state["network"][None], user
    )

    def at(where: neumf.Point) -> Any:
        return neumf.losses_and_gradients(algorithm.shape, where, rows, 0.1, shared=True, local=True)[1]

    here = at(point)
    shared = ("gmf", "mlp", "network")
    length = radii[0] / norm(here, shared)
    moved = {name: getattr(point, name) + length * getattr(here, name) for name in shared}
    of_shared = at(point._replace(**moved))
    of_local = at(point._replace(users=user + radii[1] / norm(here, ("users",)) * here.users))
    (update,) = algorithm.client_update(state, batch, keys, local=user)
    expected = np.concatenate([of_shared.gmf, of_shared.mlp], axis=1)
    np.testing.assert_allclose(update.arrays["item_rows"], -expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(update.arrays["network"], -of_shared.network[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(update.local, user - 0.5 * of_local.users, rtol=0, atol=1e-12)


def of_one_user(
    batch: Ratings, q: Any, b: Any, mean: float, shared: float, local: float
) -> tuple[Any, Any, Any]:
    """Take a round of FedRecon for one user, its gradients spelled out; return how rows and biases move."""
    items, ratings, n = batch.items, batch.ratings.astype(float), len(batch.items)
    rows, targets = np.column_stack([q[items], np.ones(n)]), ratings - mean - b[items]
    penalty = np.array([3.0] * q.shape[1] + [1.0])
    rates = np.array([0.7] * q.shape[1] + [0.5])

    def of_user(w: Any) -> Any:
        return -rows.T @ (targets - rows @ w) + penalty * w

    w = np.zeros(rows.shape[1])
    for _ in range(3):
        g = of_user(w)
        w = w - rates / (n + penalty) * of_user(w + local * g / np.linalg.norm(g))
    p, bias = w[:-1], w[-1]

    def of_items(rows_q: Any, rows_b: Any) -> tuple[Any, Any]:
        error = ratings - mean - rows_b - bias - rows_q @ p
        return (0.05 * rows_q - error[:, None] * p) / n, -error / n

    q_now, b_now = q[items].copy(), b[items].copy()
    for _ in range(2):
        g_q, g_b = of_items(q_now, b_now)
        away = shared / np.sqrt(np.sum(g_q**2) + np.sum(g_b**2)) if shared else 0.0
        s_q, s_b = of_items(q_now + away * g_q, b_now + away * g_b)
        q_now, b_now = q_now - 0.4 * s_q, b_now - 0.4 * s_b
    return (q_now - q[items]) * n, (b_now - b[items]) * n, w


@pytest.mark.parametrize("radii", [(0.3, 0.0), (0.0, 0.4), (0.3, 0.4)])
def test_each_block_of_fedrecon_descends_from_its_own_worst_point(radii: tuple[float, float]) -> None:
    algorithm = sharp(BASES["fedrecon"], *radii, dtype=np.float64)
    state, batch, keys = (
        trained_looking_state(algorithm, 3),
        random_ratings(3, [9, 20], N_ITEMS),
        keys_for(3, 2),
    )
    updates = algorithm.client_update(state, batch, keys)
    fitted = algorithm.reconstruct(state, batch, keys)
    for user in range(2):
        q, b, w = of_one_user(take_users(batch, [user]), state[FACTORS], state[BIAS], 3.0, *radii)
        rows = updates.client(user).arrays[ROWS]
        np.testing.assert_allclose(fitted[user], w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(rows[:, :-1], q, rtol=0, atol=1e-12)
        np.testing.assert_allclose(rows[:, -1], b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["fedncf", "fedrecon", "fedmf"])
def test_sharpness_is_the_rise_at_the_worst_point_nearby(name: str) -> None:
    """No random direction of the same length makes the loss rise more; for small radii it is ρ·‖g‖."""
    algorithm = sharp(BASES[name], 0.0, 0.0, dtype=np.float64)
    state, batch, keys = algorithm.initial_state(5), random_ratings(5, COUNTS, N_ITEMS), keys_for(5, 7)
    found = [rises(algorithm, state, batch, keys, None, Radii(r, r)) for r in (1e-6, 2e-6, 0.02)]
    some = np.array(COUNTS) > 0
    for block in range(2):
        tiny, twice, larger = (np.asarray(rise[block])[some] for rise in found)
        assert (tiny > 0).all()
        np.testing.assert_allclose(twice / tiny, 2.0, rtol=1e-3)
        assert (larger > tiny).all()
        assert np.asarray(found[2][block])[~some] == pytest.approx(0.0)


def test_sharpness_of_fedncf_is_that_of_its_loss() -> None:
    algorithm = fedncf(dtype=np.float64, user_steps=0)
    state, batch, keys = algorithm.initial_state(6), random_ratings(6, [9], N_ITEMS), keys_for(6, 1)
    user = some_rows(algorithm, 1).astype(float)
    shared, own = rises(algorithm, state, batch, keys, user, Radii(0.1, 0.2))
    examples = algorithm._examples(batch, keys)
    labels = examples.positive.astype(float)
    rows = neumf.ExampleRows([0, len(labels)], np.array([len(labels)]), labels)
    point = ItemRows(algorithm.shape, state, examples.items).point(examples.items, user)

    def loss(at: neumf.Point) -> float:
        x = neumf.logits(algorithm.shape, at, rows)
        return float(np.mean(np.logaddexp(0, -x * (2 * labels - 1))))

    rng = np.random.default_rng(1)
    for _ in range(50):
        direction = rng.normal(size=user.shape)
        moved = point._replace(users=user + 0.2 * direction / np.linalg.norm(direction))
        assert loss(moved) - loss(point) < own[0]
    network = rng.normal(size=point.network.shape)
    there = loss(point._replace(network=point.network + 0.1 * network / np.linalg.norm(network)))
    assert there - loss(point) < shared[0]


def test_a_gradient_of_zero_has_no_worst_direction() -> None:
    algorithm = sharp(BASES["fedmf"], 0.1, 0.1)
    state: Any = {name: np.zeros_like(array) for name, array in algorithm.initial_state(1).items()}
    batch = Ratings(np.array([0, 2]), np.array([1, 4], np.uint16), np.zeros(2, np.float32))
    (update,) = algorithm.client_update(state, batch, keys_for(1, 1))
    assert not update.arrays[ROWS].any()


@pytest.mark.parametrize("name", ["fedncf", "fedrecon"])
def test_it_learns(name: str) -> None:
    users = 60
    if name == "fedncf":
        batch, _ = planted(1, users, 40, 8)
        base = {**BASES[name], "user_learning_rate": 3.0, "learning_rate": 0.05}
    else:
        batch = low_rank_ratings(1, users, 40, 12)
        base = {**BASES[name], "learning_rate": 0.05}
    algorithm = sharp(base, 0.02, 0.02, n_items=40)
    state: Any = algorithm.initial_state(1)
    optimizer_state, local, losses = algorithm.initial_optimizer_state(state), None, []
    for round_number in range(30):
        updates = algorithm.client_update(state, batch, keys_for(round_number, users), local=local)
        local = updates.local
        accumulator = algorithm.accumulator(state)
        add_all(accumulator, updates)
        losses.append(accumulator.result().loss)
        state, optimizer_state = algorithm.server_update(
            state, optimizer_state, accumulator.result(), round_number
        )
    assert losses[-1] < 0.6 * losses[0]


def test_a_sharp_step_costs_more() -> None:
    examples = np.array([20, 300])
    for base in (BASES["fedncf"], BASES["fedrecon"]):
        flops = [
            (work.flops.sum(axis=1) * work.steps).tolist()
            for work in (sharp(base, *radii).work(examples) for radii in ((0, 0), (1, 0), (0, 1), (1, 1)))
        ]
        for user in range(2):
            none, shared, local, both = (row[user] for row in flops)
            assert none < min(shared, local)
            assert max(shared, local) < both <= 3 * none


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ({"algorithm": "fedrecon"}, "'ridge' has no full gradient"),
        ({**BASES["fedrecon"], "client": {"method": "mini-batches", "batch_size": 5}}, "client: {method"),
        ({"algorithm": "linear-regression"}, "fedncf"),
    ],
)
def test_what_has_no_gradient_is_refused(base: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FedRecGELSettings.model_validate({"algorithm": "fedrecgel", "base": base})
