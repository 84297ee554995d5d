"""Losses of ones and zeros: their values, slopes, and what methods make of them on devices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.learning import neumf
from edge.learning.base import Problem, Ratings
from edge.learning.joint_descent import Pair, PairShape, Targets, gradient
from edge.learning.losses import FLOPS_A_ROW, Labelled, log_odds, losses_and_slopes, partners
from edge.learning.registry import METHODS
from edge.learning.updates import ITEMS, ROWS

LOSSES = ("cross-entropy", "bpr", "sampled-softmax")
N_ITEMS, USERS, MEAN = 15, 4, 0.3
COUNTS = np.array([6, 3, 0, 9])
INDPTR = np.array([0, 6, 9, 9, 18])
KEYS = np.array([5, 6, 7, 8], np.uint64)
STEPS = {"method": "gradient-steps", "steps": 1, "learning_rate": 0.7, "regularization": 0.2}
FITTING = {"method": "gradient-steps", "steps": 3, "learning_rate": 0.4, "regularization": 0.3}
SETTINGS: dict[str, dict[str, Any]] = {
    "fedrecon": {"factors": 3, "reconstruction": FITTING, "client": STEPS},
    "fedmf": {"factors": 3, "reconstruction": FITTING, "client": STEPS},
    "fedavg-mf": {"factors": 3, "client": STEPS},
    "pfedme": {"factors": 3, "client": {**STEPS, "steps": 2}},
    "fedncf": {"gmf_factors": 2, "mlp_factors": 3, "layers": [4], "negatives": 2, "client": STEPS},
}


def ones_and_zeros() -> Ratings:
    """Return users with two, one, no and three ones among their examples."""
    rng = np.random.default_rng(2)
    items = np.concatenate([np.sort(rng.permutation(N_ITEMS)[:count]) for count in COUNTS])
    labels = np.concatenate([np.arange(6) < 2, np.arange(3) == 1, np.arange(9) % 3 == 0])
    return Ratings(INDPTR, items.astype(np.uint16), labels.astype(np.float32))


def made(name: str, loss: str, **more: Any) -> Any:
    method = METHODS[name]
    values = {"algorithm": name, "loss": loss, **SETTINGS[name], **more}
    return method(
        method.Settings.model_validate(values),
        Problem(n_items=N_ITEMS, rating_mean=MEAN, n_users=USERS),
        np.float64,  # type: ignore[call-arg]
    )


def state_of(algorithm: Any) -> dict[str, Any]:
    """Return a state whose tables are all random."""
    rng = np.random.default_rng(9)
    return {
        name: array if name == "rating_mean" else 0.5 * rng.normal(size=array.shape)
        for name, array in algorithm.initial_state(3).items()
    }


def rows_of(algorithm: Any, state: Any) -> Any:
    """Return the rows that devices begin with."""
    if algorithm.user_rows:
        return algorithm.rows_of(state, np.arange(USERS))
    width = algorithm.local_width
    return 0.3 * np.random.default_rng(1).normal(size=(USERS, width)) if width else None


def value_of(loss: str, scores: Any, labels: Any, partner: Any) -> float:
    """Return the loss of one user's examples by its definition, an example at a time."""
    total = 0.0
    for place, score in enumerate(scores):
        others = [scores[j] for j in range(len(scores)) if partner[j] == place and j != place]
        if loss == "cross-entropy":
            chance = 1 / (1 + np.exp(-score))
            total -= np.log(chance if labels[place] else 1 - chance)
        elif labels[place] and loss == "bpr":
            total -= sum(np.log(1 / (1 + np.exp(other - score))) for other in others)
        elif labels[place] and others:
            total -= np.log(np.exp(score) / (np.exp(score) + sum(np.exp(other) for other in others)))
    return float(total)


def slope_of(function: Any, at: Any, step: float = 1e-6) -> Any:
    """Return the gradient of ``function`` at an array, by central differences."""
    found = np.empty(at.shape)
    for place in np.ndindex(at.shape):
        ends = []
        for sign in (1, -1):
            moved = at.copy()
            moved[place] += sign * step
            ends.append(function(moved))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def test_values_of_a_positive_and_its_negatives_by_hand() -> None:
    # Scores 2 of the positive, 1 and 0 of the negatives, 5 of another positive without any.
    examples = Labelled(np.array([0.0, 1.0, 0.0, 1.0]), np.array([1, 1, 1, 3]))
    scores, counts = np.array([1.0, 2.0, 0.0, 5.0]), np.array([4])
    losses, slopes = losses_and_slopes("bpr", scores, examples, counts)
    np.testing.assert_allclose(losses, [0, np.log1p(np.exp(-1)) + np.log1p(np.exp(-2)), 0, 0])
    first, second = 1 / (1 + np.e), 1 / (1 + np.e**2)
    np.testing.assert_allclose(slopes, [first, -first - second, second, 0])
    losses, slopes = losses_and_slopes("sampled-softmax", scores, examples, counts)
    whole = np.exp([1, 2, 0]).sum()
    np.testing.assert_allclose(losses, [0, np.log(whole) - 2, 0, 0])
    np.testing.assert_allclose(slopes, [np.e / whole, np.e**2 / whole - 1, 1 / whole, 0], atol=1e-15)
    losses, _ = losses_and_slopes("cross-entropy", scores, examples, counts)
    np.testing.assert_allclose(losses, np.log1p(np.exp([1, -2, 0, -5])))


def test_large_scores_have_finite_losses_and_slopes() -> None:
    examples = Labelled(np.array([1.0, 0.0, 0.0], np.float32), np.array([0, 0, 0]))
    for scores in ([1e4, -1e4, 3e4], [-1e4, 1e4, 1e4]):
        for loss in LOSSES:
            found = losses_and_slopes(loss, np.array(scores, np.float32), examples, np.array([3]))
            assert all(np.isfinite(part).all() and part.dtype == np.float32 for part in found)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**20), loss=st.sampled_from(LOSSES))
def test_slopes_are_derivatives(seed: int, loss: Any) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 18).astype(float)
    examples = Labelled(labels, partners(INDPTR, labels, KEYS))
    scores = rng.normal(size=18) * 2

    def total(at: Any) -> float:
        return float(
            sum(
                value_of(loss, at[a:b], labels[a:b], examples.partner[a:b])
                for a, b in itertools.pairwise(INDPTR)
            )
        )

    losses, slopes = losses_and_slopes(loss, scores, examples, COUNTS)
    assert losses.sum() == pytest.approx(total(scores), abs=1e-12)
    np.testing.assert_allclose(slopes, slope_of(total, scores), atol=1e-8)


def test_negatives_are_dealt_evenly_and_by_the_users_own_key() -> None:
    labels = ones_and_zeros().ratings
    found = partners(INDPTR, labels, KEYS)
    for user, (a, b) in enumerate(itertools.pairwise(INDPTR)):
        own, label = found[a:b], labels[a:b]
        assert own[label > 0].tolist() == np.flatnonzero(label > 0).tolist()
        assert (label[own] > 0).all()
        share = np.bincount(own[label == 0], minlength=b - a)[label > 0]
        assert b == a or share.max() - share.min() <= 1
        alone = partners(np.array([0, b - a]), label, KEYS[user : user + 1])
        assert alone.tolist() == own.tolist()
    assert partners(np.array([0, 3]), np.zeros(3), KEYS[:1]).tolist() == [-1, -1, -1]
    dealt = {tuple(partners(INDPTR, labels, KEYS + np.uint64(shift))) for shift in range(20)}
    assert len(dealt) > 10


def user_objective(algorithm: Any, loss: str, state: Any, user: int, p: Any, table: Any, bias: Any) -> float:
    """Return Σ of the loss of one user's examples, from its factors (and bias) and its items' rows."""
    batch, k = ones_and_zeros(), 3
    part = slice(INDPTR[user], INDPTR[user + 1])
    partner = partners(INDPTR[user : user + 2], batch.ratings[part], KEYS[user : user + 1])
    offset = state["rating_mean"][0]
    scores = table @ p[:k] + offset + bias + (p[k] if len(p) > k else 0.0)
    return value_of(loss, scores, batch.ratings[part], partner)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["fedrecon", "fedmf"])
def test_steps_of_fedrecon_are_down_the_gradient(name: str, loss: str) -> None:
    algorithm = made(name, loss)
    assert algorithm.initial_state(0)["rating_mean"][0] == (log_odds(MEAN) if loss == LOSSES[0] else 0)
    state, batch, n = state_of(algorithm), ones_and_zeros(), COUNTS[3]
    local, items = rows_of(algorithm, state), ones_and_zeros().items[INDPTR[3] :]
    table = state["item_factors"][items]
    bias = state["item_bias"][items] if "item_bias" in state else np.zeros(n)
    width, fitting = 3 + algorithm.settings.user_bias, algorithm.settings.reconstruction
    p = np.zeros(width) if local is None else local[3].copy()
    rate, penalty = np.full(width, fitting.learning_rate), np.full(width, fitting.regularization)
    rate[3:], penalty[3:] = fitting.bias_learning_rate, fitting.bias_regularization
    for _ in range(fitting.steps):
        down = slope_of(lambda at: user_objective(algorithm, loss, state, 3, at, table, bias), p)
        p -= rate / (n + penalty) * (down + penalty * p)
    np.testing.assert_allclose(algorithm.reconstruct(state, batch, KEYS, local)[3], p, atol=1e-7)
    update = list(algorithm.client_update(state, batch, KEYS, local=local))[3]
    of_table = slope_of(lambda at: user_objective(algorithm, loss, state, 3, p, at, bias), table)
    expected = -0.7 / n * (of_table + 0.2 * table)
    assert update.arrays[ITEMS].tolist() == items.tolist()
    np.testing.assert_allclose(update.arrays[ROWS][:, :3] / n, expected, atol=1e-7)
    if "item_bias" in state:
        of_bias = slope_of(lambda at: user_objective(algorithm, loss, state, 3, p, table, at), bias)
        np.testing.assert_allclose(update.arrays[ROWS][:, 3] / n, -0.7 / n * of_bias, atol=1e-7)
    value = user_objective(algorithm, loss, state, 3, p, table, bias)
    assert update.loss == pytest.approx(value / n)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_joint_gradient_is_one(loss: Any) -> None:
    rng, batch = np.random.default_rng(4), ones_and_zeros()
    counts = COUNTS[[0, 1, 3]]
    pair = Pair(rng.normal(size=(18, 4)), rng.normal(size=(3, 4)))
    labels = batch.ratings.astype(float)
    partner = partners(INDPTR, labels, KEYS)
    shape = PairShape(3, 0.1, loss, -0.4)

    def objective(items: Any, users: Any) -> float:
        total, start = 0.0, 0
        for user, count in zip(users, counts, strict=True):
            rows, part = items[start : start + count], slice(start, start + count)
            scores = rows[:, :3] @ user[:3] + rows[:, 3] + user[3] - 0.4
            total += value_of(loss, scores, labels[part], partner[part]) / count
            total += 0.05 * float((rows[:, :3] ** 2).sum() / count + (user[:3] ** 2).sum())
            start += count
        return total

    found = gradient(pair, Targets(labels, partner), counts, shape)
    np.testing.assert_allclose(
        found.items, slope_of(lambda at: objective(at, pair.users), pair.items), atol=1e-8
    )
    np.testing.assert_allclose(
        found.users, slope_of(lambda at: objective(pair.items, at), pair.users), atol=1e-8
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_the_network_has_the_gradient_of_its_loss(loss: Any) -> None:
    rng, labels = np.random.default_rng(6), ones_and_zeros().ratings.astype(float)
    shape, counts = neumf.NetworkShape(2, 3, (4,)), COUNTS[[0, 1, 3]]
    partner = partners(INDPTR, labels, KEYS)
    rows = neumf.ExampleRows([0, 6, 9, 18], counts, labels, partner)
    point = neumf.Point(
        rng.normal(size=(18, 2)),
        rng.normal(size=(18, 3)),
        rng.normal(size=(3, shape.weights)),
        rng.normal(size=(3, shape.width)),
    )
    losses, found = neumf.losses_and_gradients(shape, point, rows, 0.0, shared=True, local=True, loss=loss)
    starts = np.cumsum(counts) - counts

    def objective(at: neumf.Point) -> float:
        scores = neumf.logits(shape, at, rows)
        parts = (slice(start, start + count) for start, count in zip(starts, counts, strict=True))
        return float(
            sum(
                value_of(loss, scores[part], labels[part], partner[part]) / (part.stop - part.start)
                for part in parts
            )
        )

    assert sum(losses / np.repeat(counts, counts)) == pytest.approx(objective(point))
    for name in ("gmf", "mlp", "network", "users"):
        at = getattr(point, name)
        expected = slope_of(lambda moved, name=name: objective(point._replace(**{name: moved})), at)
        np.testing.assert_allclose(getattr(found, name), expected, atol=1e-7)


def bits(update: Any) -> Any:
    arrays = {name: array.tobytes() for name, array in update.arrays.items()}
    return arrays, update.loss, None if update.local is None else update.local.tobytes()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", SETTINGS)
def test_an_update_does_not_depend_on_its_batch(name: str, loss: str) -> None:
    algorithm = made(name, loss)
    state, batch = state_of(algorithm), ones_and_zeros()
    local = rows_of(algorithm, state)
    if algorithm.samples_negatives:
        ones = batch.ratings > 0
        indptr = np.concatenate([[0], np.cumsum(ones)])[INDPTR]
        batch = Ratings(indptr, batch.items[ones], batch.ratings[ones])
    together = list(algorithm.client_update(state, batch, KEYS, local=local))
    order = [3, 1, 2, 0]
    parts = [slice(batch.indptr[user], batch.indptr[user + 1]) for user in order]
    turned = Ratings(
        np.concatenate([[0], np.cumsum([part.stop - part.start for part in parts])]),
        np.concatenate([batch.items[part] for part in parts]),
        np.concatenate([batch.ratings[part] for part in parts]),
    )
    more = None if local is None else local[order]
    found = list(algorithm.client_update(state, turned, KEYS[order], local=more))
    assert [bits(one) for one in found] == [bits(together[user]) for user in order]
    for place, user in enumerate(order):
        own = Ratings(
            np.array([0, parts[place].stop - parts[place].start]),
            batch.items[parts[place]],
            batch.ratings[parts[place]],
        )
        row = None if local is None else local[user : user + 1]
        (alone,) = algorithm.client_update(state, own, KEYS[user : user + 1], local=row)
        assert bits(alone) == bits(together[user])
    assert np.abs(together[3].arrays[ROWS]).max() > 0


@pytest.mark.parametrize("name", ["fedrecon", "fedmf", "fedavg-mf"])
def test_a_pull_and_a_limit_of_steps_hold_for_every_loss(name: str) -> None:
    many = {**STEPS, "steps": 3}
    algorithm = made(name, "bpr", client=many, proximal=0.4)
    state, batch = state_of(algorithm), ones_and_zeros()
    local = rows_of(algorithm, state)
    limited = list(algorithm.client_update(state, batch, KEYS, steps=np.array([1, 2, 3, 3]), local=local))
    for user, steps in ((0, 1), (1, 2), (3, 3)):
        fewer = made(name, "bpr", client={**many, "steps": steps}, proximal=0.4)
        whole = list(fewer.client_update(state, batch, KEYS, local=local))[user]
        rows = limited[user].arrays[ROWS] / limited[user].weight
        np.testing.assert_allclose(rows, whole.arrays[ROWS] / whole.weight, atol=1e-12)
    free = made(name, "bpr", client=many)
    without = list(free.client_update(state, batch, KEYS, local=local))[3]
    assert not np.allclose(limited[3].arrays[ROWS], without.arrays[ROWS], atol=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_loss_is_counted_in_the_work(name: str) -> None:
    examples = np.array([10, 40])
    plain = "cross-entropy" if name == "fedncf" else "squared-error"
    costs = {}
    for loss in {plain, *LOSSES}:
        work = made(name, loss).work(examples)
        costs[loss] = (work.flops.sum(axis=1) * work.steps).tolist()
    order = [plain, *(loss for loss in LOSSES if FLOPS_A_ROW[loss] > FLOPS_A_ROW[plain])]  # type: ignore[index]
    for one, other in itertools.pairwise(order):
        assert all(a <= b for a, b in zip(costs[one], costs[other], strict=True))
    assert costs["bpr"][1] > costs[plain][1]


@pytest.mark.parametrize(
    ("name", "more", "key"),
    [
        ("fedrecon", {"reconstruction": {"method": "ridge"}}, "reconstruction"),
        ("fedrecon", {"client": {"method": "mini-batches", "batch_size": 4}}, "client"),
        ("fedavg-mf", {"client": {"method": "mini-batches", "batch_size": 4}}, "client"),
        ("fedavg-mf", {"fine_tuning": {"method": "ridge"}}, "fine_tuning"),
        ("fedncf", {"client": {"method": "mini-batches", "batch_size": 4}}, "client"),
    ],
)
def test_other_ways_than_gradient_steps_are_refused(name: str, more: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"'bpr' goes down by gradient steps .*{key} is '"):
        made(name, "bpr", **more)


def test_a_loss_of_ones_needs_both() -> None:
    with pytest.raises(ValueError, match=r"needs some of both; their mean is 3\.5"):
        log_odds(3.5)
    for name in ("blur", "fedmmf", "fedrec", "lipm"):
        values: Any = {"algorithm": name, "loss": "bpr"}
        with pytest.raises(ValueError, match="squared-error"):
            METHODS[name].Settings.model_validate(values)
