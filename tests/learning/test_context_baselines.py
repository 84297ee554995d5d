"""Models on features: federated and local, against loops, differences, pooled data, and each other."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import add_all, assert_same_update, keys_for, random_ratings, take_users

from edge.learning.base import Problem
from edge.learning.masks import network
from edge.learning.masks.registry import create as create_mask
from edge.learning.methods import context_models
from edge.learning.methods.context_models import FactorizationMachineSettings, LinearSettings, NetworkSettings
from edge.learning.methods.federated_context import FederatedContext, FederatedContextSettings
from edge.learning.methods.local_context import LocalContext, LocalContextSettings

N_ITEMS, D = 40, 5
MODELS: tuple[dict[str, Any], ...] = (
    {"kind": "linear"},
    {"kind": "factorization-machine", "factors": 3, "initial_scale": 0.3},
    {"kind": "network", "width": 4},
)
SETTINGS = (LinearSettings(), FactorizationMachineSettings(**MODELS[1]), NetworkSettings(**MODELS[2]))


def features() -> npt.NDArray[np.float32]:
    return np.random.default_rng(11).normal(size=(N_ITEMS, D)).astype(np.float32)


def federated(dtype: Any = np.float32, **more: Any) -> FederatedContext:
    model = FederatedContextSettings.model_validate({"algorithm": "federated-context", **more})
    return FederatedContext(model, Problem(n_items=N_ITEMS, rating_mean=3.4, features=features()), dtype)


def local(kind: str = "one-order") -> LocalContext:
    model = LocalContextSettings.model_validate({"algorithm": "local-context", "model": {"kind": kind}})
    return LocalContext(model, Problem(n_items=N_ITEMS, rating_mean=3.4, features=features()))


def small_problem() -> network.NetworkProblem:
    rng = np.random.default_rng(5)
    present = np.array([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    return network.NetworkProblem(rng.normal(size=(2, 4, D)), present, rng.normal(size=(2, 4)) * present)


def some_parameters(model: context_models.ContextModel) -> dict[str, npt.NDArray[Any]]:
    """Return other parameters for each of two clients, none of them zero."""
    rng = np.random.default_rng(6)
    return {
        name: np.stack([array + rng.normal(0, 0.4, array.shape) for _ in range(2)])
        for name, array in model.initial(D, 1).items()
    }


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.kind)
def test_slopes_are_those_of_the_loss(kind: Any) -> None:
    model, problem = context_models.create(kind), small_problem()
    p = some_parameters(model)

    def losses() -> npt.NDArray[Any]:
        return np.asarray(0.5 * (model.error(problem, p) ** 2).sum(axis=1))

    slopes = {name: array.copy() for name, array in model.slopes(problem, p).items()}
    assert slopes.keys() == p.keys()
    for name, array in p.items():
        for place in np.ndindex(array.shape):
            kept, h = array[place], 1e-5
            array[place] = kept + h
            above = losses()
            array[place] = kept - h
            below = losses()
            array[place] = kept
            difference = (above - below) / (2 * h)
            assert slopes[name][place] == pytest.approx(difference[place[0]], rel=1e-6, abs=1e-8)
            assert difference[1 - place[0]] == 0


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.kind)
def test_a_prediction_is_the_rating_plus_the_error(kind: Any) -> None:
    model, problem = context_models.create(kind), small_problem()
    p = some_parameters(model)
    error = model.error(problem, p)
    assert error[0, 3] == 0
    for client in range(2):
        said = model.evaluate({name: array[client] for name, array in p.items()}, problem.x[client])
        expected = (said - problem.targets[client]) * problem.present[client]
        np.testing.assert_allclose(error[client], expected, rtol=1e-12, atol=1e-14)


def test_a_factorization_machine_is_a_sum_over_pairs() -> None:
    model, x = context_models.create(SETTINGS[1]), np.random.default_rng(2).normal(size=(3, D))
    p = {name: array[0] for name, array in some_parameters(model).items()}
    for row, said in zip(x, model.evaluate(p, x), strict=True):
        expected = p["intercept"] + row @ p["weights"]
        for i, j in combinations(range(D), 2):
            expected += (p["factors"][i] @ p["factors"][j]) * row[i] * row[j]
        assert said == pytest.approx(expected, rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=7), st.integers(0, 2), st.integers(0, 99))
def test_a_client_does_not_depend_on_the_others(counts: list[int], which: int, seed: int) -> None:
    algorithm = federated(model=MODELS[which])
    state, batch, keys = algorithm.initial_state(3), random_ratings(seed, counts, N_ITEMS), keys_for(0, 9)
    together = algorithm.client_update(state, batch, keys[: len(counts)])
    predictions = algorithm.predict(state, batch, batch, keys)
    scores = algorithm.scores(state, batch, keys)
    for user in range(len(counts)):
        alone = take_users(batch, [user])
        assert_same_update(together, user, algorithm.client_update(state, alone, keys[user : user + 1]), 0)
        part = slice(int(batch.indptr[user]), int(batch.indptr[user + 1]))
        assert predictions[part].tobytes() == algorithm.predict(state, alone, alone, keys).tobytes()
        assert scores[user].tobytes() == algorithm.scores(state, alone, keys)[0].tobytes()


@pytest.mark.parametrize("which", range(3))
def test_one_step_of_everybody_is_a_step_on_the_pooled_ratings(which: int) -> None:
    step = {"method": "gradient-steps", "steps": 1, "learning_rate": 0.3}
    algorithm = federated(np.float64, model=MODELS[which], client=step, user_features=False)
    state = algorithm.initial_state(3)
    batch = random_ratings(1, [4, 9, 0, 17], N_ITEMS)
    accumulator = algorithm.accumulator(state)
    add_all(accumulator, list(algorithm.client_update(state, batch, keys_for(0, 4))))
    found, _ = algorithm.server_update(state, {}, accumulator.result(), 0)
    pooled = network.NetworkProblem(
        algorithm.features[batch.items][None],
        np.ones((1, 30)),
        (batch.ratings.astype(np.float64) - 3.4)[None],
    )
    start = {name: array if name == "intercept" else array[None] for name, array in state.items()}
    for name, slope in algorithm.model.slopes(pooled, start).items():
        expected = (start[name] - 0.3 * slope / 30).reshape(found[name].shape)
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-10)


def test_fewer_steps_are_the_first_ones_and_weigh_less() -> None:
    batch, keys = random_ratings(4, [6, 11], N_ITEMS), keys_for(0, 2)
    whole = federated(np.float64, client={"method": "gradient-steps", "steps": 4})
    state = whole.initial_state(1)
    part = whole.client_update(state, batch, keys, steps=np.array([1, 4]))
    one = federated(np.float64, client={"method": "gradient-steps", "steps": 1})
    assert part.weights.tolist() == [1.5, 11.0]
    first = one.client_update(state, batch, keys).client(0).arrays["weights"]
    np.testing.assert_allclose(part.client(0).arrays["weights"], first / 4, rtol=1e-12)
    assert_same_update(part, 1, whole.client_update(state, batch, keys), 1)


def test_weight_decay_spares_intercepts() -> None:
    client = {"method": "gradient-steps", "steps": 1, "learning_rate": 0.1, "regularization": 0.5}
    batch, keys = random_ratings(4, [6], N_ITEMS), keys_for(0, 1)
    decaying, plain = (
        federated(np.float64, client=client),
        federated(np.float64, client={**client, "regularization": 0}),
    )
    state = {name: array + 1.0 for name, array in decaying.initial_state(1).items()}
    found, without = (each.client_update(state, batch, keys).client(0).arrays for each in (decaying, plain))
    np.testing.assert_allclose(found["weights"], without["weights"] - 6 * 0.1 * 0.5, rtol=1e-12)
    np.testing.assert_array_equal(found["intercept"], without["intercept"])


def test_a_client_of_two_users_trains_on_the_ratings_of_both() -> None:
    algorithm = federated(user_features=False)
    state, batch = algorithm.initial_state(1), random_ratings(4, [6, 11, 3], N_ITEMS)
    grouped = algorithm.client_update(state, batch, keys_for(0, 2), clients=np.array([0, 2, 3]))
    assert grouped.examples.tolist() == [17, 3]
    pooled = batch._replace(indptr=np.array([0, 17, 20]))
    assert_same_update(grouped, 0, algorithm.client_update(state, pooled, keys_for(0, 2)), 0)


@pytest.mark.parametrize("which", range(3))
def test_declared_uploads_are_the_real_ones(which: int) -> None:
    algorithm = federated(model=MODELS[which])
    state = algorithm.initial_state(1)
    batch = random_ratings(4, [6, 0], N_ITEMS)
    specs = algorithm.upload_spec(np.array([6, 0]))
    for number, update in enumerate(algorithm.client_update(state, batch, keys_for(0, 2))):
        algorithm.accumulator(state).check(update.arrays)
        for spec in specs:
            array = update.arrays[spec.name]
            assert (array.dtype, array.nbytes) == (spec.dtype, int(spec.nbytes()[number]))
        assert any(array.any() for array in update.arrays.values()) is (number == 0)


def test_without_features_there_is_no_model() -> None:
    with pytest.raises(ValueError, match="needs item features"):
        FederatedContext(
            FederatedContextSettings(algorithm="federated-context"), Problem(n_items=N_ITEMS, rating_mean=3.0)
        )
    with pytest.raises(ValueError, match="needs item features"):
        LocalContext(local().settings, Problem(n_items=N_ITEMS, rating_mean=3.0))


@pytest.mark.parametrize("kind", ["zero-order", "one-order", "two-order", "high-order"])
def test_a_local_model_is_the_mask_alone_and_uploads_nothing(kind: str) -> None:
    algorithm, batch, keys = local(kind), random_ratings(4, [6, 0, 12], N_ITEMS), keys_for(0, 3)
    updates = algorithm.client_update({}, batch, keys)
    accumulator = algorithm.accumulator({})
    for client, update in enumerate(updates):
        assert update.arrays == {}
        accumulator.check(update.arrays)
        accumulator.add(update, client)
    assert algorithm.server_update({}, {}, accumulator.result(), 0) == ({}, {})
    assert algorithm.upload_spec(np.array([6, 0, 12])) == ()
    query = random_ratings(5, [3, 4, 2], N_ITEMS)
    predictions = algorithm.predict({}, batch, query, keys)
    mask = create_mask(algorithm.settings.model)
    fitted = mask.fit(batch, features(), 3.4, np.zeros(3, np.uint64))
    if kind != "high-order":  # whose start is drawn from a key of the user's ratings
        expected = mask.predict(fitted, features(), query.indptr, query.items)
        np.testing.assert_array_equal(predictions, expected)
    np.testing.assert_allclose(predictions[3:7], 3.4, rtol=1e-6)
    scores = algorithm.scores({}, batch, keys)
    np.testing.assert_allclose(scores[0][query.items[:3]], predictions[:3], rtol=1e-5)
    error = algorithm.predict({}, batch, batch, keys)[:6] - batch.ratings[:6]
    assert updates.losses[0] == pytest.approx(0.5 * float((error**2).mean()), rel=1e-5)
