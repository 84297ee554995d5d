"""Backward passes of the layers and of NeuMF against central differences, and a reference loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edge.learning import layers, neumf
from edge.learning.neumf import ExampleRows, Gradients, NetworkShape, Point

SHAPE = NetworkShape(3, 4, (5, 6, 2))
COUNTS = np.array([4, 1, 0, 7])
BOUNDS = [0, 4, 5, 5, 12]
STEP = 1e-6
Floats = npt.NDArray[np.float64]


def differences(function: Callable[[], float], at: Floats) -> Floats:
    """Return the gradient of ``function`` by central differences, changing ``at`` in place."""
    gradient = np.empty_like(at)
    for index in np.ndindex(at.shape):
        value = at[index]
        at[index] = value + STEP
        above = function()
        at[index] = value - STEP
        below = function()
        at[index] = value
        gradient[index] = (above - below) / (2 * STEP)
    return gradient


def some_point(seed: int) -> tuple[Point, ExampleRows]:
    rng = np.random.default_rng(seed)
    n, rows = len(COUNTS), int(COUNTS.sum())
    point = Point(
        rng.normal(size=(rows, 3)),
        rng.normal(size=(rows, 4)),
        rng.normal(0, 0.6, (n, SHAPE.weights)),
        rng.normal(size=(n, 7)),
    )
    return point, ExampleRows(BOUNDS, COUNTS, rng.integers(0, 2, rows).astype(float))


def objective(point: Point, rows: ExampleRows, decay: float) -> float:
    """Return the sum over devices of their objectives, one example after another."""
    total = 0.0
    for device, count in enumerate(COUNTS.tolist()):
        network = neumf.network_of(SHAPE, point.network[device : device + 1])
        user = point.users[device]
        for row in range(BOUNDS[device], BOUNDS[device + 1]):
            a = np.concatenate([user[3:], point.mlp[row]])
            for weights, bias in zip(network.dense, network.biases, strict=True):
                a = np.maximum(a @ weights[0] + bias[0], 0)
            x = network.gmf[0] @ (user[:3] * point.gmf[row]) + network.mlp[0] @ a + network.bias[0, 0]
            probability = 1 / (1 + np.exp(-x))
            chance = probability if rows.labels[row] else 1 - probability
            squares = user @ user + point.gmf[row] @ point.gmf[row] + point.mlp[row] @ point.mlp[row]
            total += (-np.log(chance) + 0.5 * decay * squares) / count
    return float(total)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_gradients_of_the_network_are_those_of_central_differences(decay: float) -> None:
    point, rows = some_point(1)
    _, found = neumf.losses_and_gradients(SHAPE, point, rows, decay, shared=True, local=True)
    for name in Gradients._fields:
        expected = differences(lambda: objective(point, rows, decay), getattr(point, name))
        gradient = getattr(found, name)
        if name == "users":
            # A device without examples has no loss; its decay is left out of the reference.
            gradient, expected = np.delete(gradient, 2, axis=0), np.delete(expected, 2, axis=0)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6, err_msg=name)


def test_a_block_alone_has_the_same_gradient() -> None:
    point, rows = some_point(2)
    losses, both = neumf.losses_and_gradients(SHAPE, point, rows, 0.1, shared=True, local=True)
    _, shared = neumf.losses_and_gradients(SHAPE, point, rows, 0.1, shared=True, local=False)
    again, local = neumf.losses_and_gradients(SHAPE, point, rows, 0.1, shared=False, local=True)
    assert shared.users is None
    assert local.network is local.gmf is local.mlp is None
    assert again.tobytes() == losses.tobytes()
    for one, other in ((both.gmf, shared.gmf), (both.network, shared.network), (both.users, local.users)):
        assert one is not None
        assert other is not None
        assert one.tobytes() == other.tobytes()


def test_what_is_known_of_items_changes_nothing() -> None:
    point, rows = some_point(4)
    point = point._replace(network=np.broadcast_to(point.network[0], point.network.shape))
    first = neumf.item_part(SHAPE, point.mlp, point.network[:1])
    known = point._replace(first=first)
    out = np.full(point.network.shape, np.nan)
    losses, found = neumf.losses_and_gradients(SHAPE, point, rows, 0.1, shared=True, local=True)
    again, other = neumf.losses_and_gradients(SHAPE, known, rows, 0.1, shared=True, local=True, out=out)
    assert other.network is out
    np.testing.assert_allclose(again, losses, rtol=0, atol=1e-13)
    for one, gradient in zip(found, other, strict=True):
        assert one is not None
        assert gradient is not None
        np.testing.assert_allclose(gradient, one, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 5), (17, 8), (128, 128), (500, 33)])
def test_the_item_part_of_an_item_does_not_depend_on_the_others(
    inputs: int, outputs: int, dtype: type[np.floating[Any]]
) -> None:
    rng = np.random.default_rng(inputs)
    shape = NetworkShape(2, inputs, (outputs,))
    items = rng.normal(size=(23, inputs)).astype(dtype)
    network = rng.normal(size=(1, shape.weights)).astype(dtype)
    whole = neumf.item_part(shape, items, network)
    expected = items @ neumf.network_of(shape, network).dense[0][0, inputs:]
    np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-4 if dtype == np.float32 else 1e-12)
    for part in ([4], [22, 0], list(range(1, 20, 2))):
        assert neumf.item_part(shape, items[part], network).tobytes() == whole[part].tobytes()


def test_dense_layers_of_each_device() -> None:
    rng = np.random.default_rng(3)
    x, weights, d_out = rng.normal(size=(12, 3)), rng.normal(size=(4, 3, 2)), rng.normal(size=(12, 2))
    owners = np.repeat(np.arange(4), COUNTS)
    expected = np.einsum("ra,rab->rb", x, weights[owners])
    np.testing.assert_allclose(layers.products(x, weights, BOUNDS), expected, atol=1e-14)

    def loss() -> float:
        return float(np.sum(layers.products(x, weights, BOUNDS) * d_out))

    d_weights = np.empty_like(weights)
    layers.weight_gradients(x, d_out, BOUNDS, d_weights)
    np.testing.assert_allclose(d_weights, differences(loss, weights), atol=1e-8)
    d_x = layers.transposed_products(d_out, weights, BOUNDS)
    np.testing.assert_allclose(d_x, differences(loss, x), atol=1e-8)
    sums = layers.row_sums(d_out, BOUNDS)
    np.testing.assert_allclose(sums[2], 0.0)
    np.testing.assert_allclose(sums[3], d_out[5:].sum(axis=0))
    ones = np.ones(12)
    np.testing.assert_allclose(layers.weighted_sums(ones, d_out, BOUNDS), sums)
    rows = rng.normal(size=(4, 3))
    np.testing.assert_allclose(
        layers.vector_products(rows, weights), np.einsum("na,nab->nb", rows, weights), atol=1e-14
    )
    back = rng.normal(size=(4, 2))
    np.testing.assert_allclose(
        layers.transposed_vector_products(back, weights), np.einsum("nb,nab->na", back, weights), atol=1e-14
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cross_entropy_of_large_logits_is_finite_and_exact(dtype: Any) -> None:
    logits = np.array([-1000, -30, 0, 2, 30, 1000], dtype)
    for label in (0.0, 1.0):
        labels = np.full(6, label, dtype)
        loss = layers.cross_entropy(logits, labels)
        exact = np.logaddexp(0, -logits.astype(float) * (2 * label - 1))
        np.testing.assert_allclose(loss, exact, rtol=1e-6, atol=1e-12)
        assert loss.dtype == dtype
    np.testing.assert_allclose(layers.sigmoid(np.array([0, np.log(3)])), [0.5, 0.75])
    moving = np.array([-2.0, 0.5, 3.0])
    labels = np.array([1.0, 0.0, 1.0])
    expected = differences(lambda: float(layers.cross_entropy(moving, labels).sum()), moving)
    np.testing.assert_allclose(layers.cross_entropy_backward(moving, labels), expected, atol=1e-8)


def test_relu_has_no_slope_at_zero() -> None:
    activation = layers.relu(np.array([-1.0, 0.0, 2.0]))
    assert activation.tolist() == [0.0, 0.0, 2.0]
    assert layers.relu_backward(activation, np.array([5.0, 6.0, 7.0])).tolist() == [0.0, 0.0, 7.0]


def test_parts_of_the_network_are_views_that_cover_it_once() -> None:
    vectors = np.zeros((2, SHAPE.weights))
    network = neumf.network_of(SHAPE, vectors)
    for part in (*network.dense, *network.biases, network.gmf, network.mlp, network.bias):
        np.add(part, 1.0, out=part)
    assert (vectors == 1.0).all()
    spread = np.broadcast_to(vectors[0], (5, SHAPE.weights))
    assert neumf.network_of(SHAPE, spread).dense[0].strides[0] == 0
