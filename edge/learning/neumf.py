"""NeuMF, the network: its forward and backward passes, for many devices at once.

Source: He et al., "Neural Collaborative Filtering" (WWW 2017), section 3.4. A generalised matrix
factorisation and a perceptron, each with embeddings of its own, meet in the last layer:

    a₁ = relu(W₁ᵀ[u_m; q_m] + c₁)   a_l = relu(W_lᵀ a_{l−1} + c_l)   x = h_gᵀ(u_g ⊙ q_g) + h_mᵀ a_L + h₀

and σ(x) is the probability that user u takes to item i. u_g, u_m are the user's embeddings, q_g, q_m the
item's.

The user is the same in all rows of a device, so W₁ᵀ[u_m; q_m] is the user's part, once a device, plus the
item's; the gradient of the user's part of W₁ has rank one. That halves the work of the widest layer. The
item's part is the same for all who still have the network and the items that they were sent: it is computed
once an item (:func:`item_part`), whoever looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.learning import layers
from edge.learning.losses import Labelled, ScoreLoss, losses_and_slopes

Floats = npt.NDArray[Any]


class NetworkShape(NamedTuple):
    """Sizes: of the embeddings of both halves, and of the perceptron's layers after them."""

    gmf: int
    mlp: int
    hidden: tuple[int, ...]

    @property
    def width(self) -> int:
        """Length of a user's or an item's embeddings together."""
        return self.gmf + self.mlp

    @property
    def parts(self) -> Iterator[tuple[int, ...]]:
        """Shapes of the network's parts, in the order in which they lie in one vector of weights."""
        inputs = 2 * self.mlp
        for outputs in self.hidden:
            yield (inputs, outputs)
            yield (outputs,)
            inputs = outputs
        yield (self.gmf,)
        yield (inputs,)
        yield (1,)

    @property
    def weights(self) -> int:
        """Number of the network's weights."""
        return sum(int(np.prod(part)) for part in self.parts)


class NetworkWeights(NamedTuple):
    """The network's weights as views of their vectors, one for each device; see :func:`network_of`."""

    dense: tuple[Floats, ...]
    """W_l, [n, inputs, outputs]."""
    biases: tuple[Floats, ...]
    """c_l, [n, outputs]."""
    gmf: Floats
    """h_g, [n, gmf]."""
    mlp: Floats
    """h_m, [n, last layer]."""
    bias: Floats
    """h₀, [n, 1]."""


def network_of(shape: NetworkShape, vectors: Floats) -> NetworkWeights:
    """Return views of the parts of ``vectors`` [n, weights], which may be broadcast along the first axis."""
    found, start = [], 0
    for part in shape.parts:
        end = start + int(np.prod(part))
        found.append(vectors[:, start:end].reshape(len(vectors), *part))
        start = end
    layered = 2 * len(shape.hidden)
    gmf, mlp, bias = found[layered:]
    return NetworkWeights(tuple(found[:layered:2]), tuple(found[1:layered:2]), gmf, mlp, bias)


class Point(NamedTuple):
    """Where devices stand: all that is trained, for the rows that they look at."""

    gmf: Floats
    """q_g of each row, [R, gmf]."""
    mlp: Floats
    """q_m of each row, [R, mlp]."""
    network: Floats
    """[n, weights]."""
    users: Floats
    """[u_g, u_m], [n, gmf + mlp]."""
    first: Floats | None = None
    """The item's part of the first layer for each row, [R, first layer], where it is known."""


class Gradients(NamedTuple):
    """Gradients at a point, of its shapes; a block that was not asked for has none."""

    gmf: Floats | None
    mlp: Floats | None
    network: Floats | None
    users: Floats | None


class ExampleRows(NamedTuple):
    """The examples of a batch of devices."""

    bounds: list[int]
    counts: npt.NDArray[np.int64]
    labels: Floats
    """1 for an item that the user took to, 0 for a sampled one, [R]."""
    partner: npt.NDArray[np.int64] | None = None
    """That of :class:`~edge.learning.losses.Labelled`, [R]; None where nothing is compared."""


class _Pass(NamedTuple):
    """A forward pass, and what going back through it needs."""

    network: NetworkWeights
    activations: list[Floats]
    user: Floats
    """h_g ⊙ u_g, spread over rows, [R, gmf]."""
    last: Floats
    """h_m, spread over rows."""
    logits: Floats


def item_part(shape: NetworkShape, mlp: Floats, network: Floats) -> Floats:
    """Return the item's part of the first layer, [m, outputs], of the rows ``mlp`` [m, mlp] of items.

    ``network`` [1, weights]. An item's bits do not depend on the others.
    """
    return layers.vector_products(mlp, network_of(shape, network).dense[0][:, shape.mlp :])


def _forward(shape: NetworkShape, point: Point, rows: ExampleRows) -> _Pass:
    network = network_of(shape, point.network)
    counts, bounds = rows.counts, rows.bounds
    first = network.dense[0]
    users = layers.vector_products(point.users[:, shape.gmf :], first[:, : shape.mlp]) + network.biases[0]
    z = np.repeat(users, counts, axis=0)
    z += layers.products(point.mlp, first[:, shape.mlp :], bounds) if point.first is None else point.first
    activations = [layers.relu(z)]
    for weights, biases in zip(network.dense[1:], network.biases[1:], strict=True):
        z = layers.products(activations[-1], weights, bounds)
        z += np.repeat(biases, counts, axis=0)
        activations.append(layers.relu(z))
    user = np.repeat(network.gmf * point.users[:, : shape.gmf], counts, axis=0)
    last = np.repeat(network.mlp, counts, axis=0)
    logits = layers.row_products(point.gmf, user)
    logits += layers.row_products(activations[-1], last)
    logits += np.repeat(network.bias[:, 0], counts)
    return _Pass(network, activations, user, last, logits)


def logits(shape: NetworkShape, point: Point, rows: ExampleRows) -> Floats:
    """Return x of every row, [R]."""
    return _forward(shape, point, rows).logits


def losses_and_gradients(
    shape: NetworkShape,
    point: Point,
    rows: ExampleRows,
    regularization: float,
    *,
    shared: bool,
    local: bool,
    out: Floats | None = None,
    loss: ScoreLoss = "cross-entropy",
) -> tuple[Floats, Gradients]:
    """Return the loss of every row, and the gradients of each device's objective.

    A device's objective is the mean over its rows of loss + ½λ(|q_g|² + |q_m|² + |u_g|² + |u_m|²).

    Parameters
    ----------
    shape : sizes.
    point, rows : where devices stand, and their examples.
    regularization : λ.
    shared : whether gradients of item rows and network are wanted.
    local : whether gradients of users are wanted.
    out : where the network's gradient is written, [n, weights]; a new array if it is None.
    loss : of every row, or of positives beside their negatives; then ``rows`` are all rows of their devices.
    """
    forward = _forward(shape, point, rows)
    network, activations, bounds = forward.network, forward.activations, rows.bounds
    dtype = point.users.dtype
    partner = np.zeros(0, np.int64) if rows.partner is None else rows.partner
    losses, slopes = losses_and_slopes(loss, forward.logits, Labelled(rows.labels, partner), rows.counts)
    each = (1.0 / np.maximum(rows.counts, 1)).astype(dtype)
    slopes *= np.repeat(each, rows.counts)
    decay = dtype.type(regularization)
    of_user = layers.weighted_sums(slopes, point.gmf, bounds)
    vectors = None
    if shared:
        vectors = np.empty(point.network.shape, dtype) if out is None else out
    written = None if vectors is None else network_of(shape, vectors)
    if written is not None:
        np.multiply(point.users[:, : shape.gmf], of_user, out=written.gmf)
        written.mlp[:] = layers.weighted_sums(slopes, activations[-1], bounds)
        written.bias[:] = layers.row_sums(slopes[:, None], bounds)
    back = forward.last
    back *= slopes[:, None]
    for depth in range(len(activations) - 1, 0, -1):
        layers.relu_backward(activations[depth], back)
        if written is not None:
            layers.weight_gradients(activations[depth - 1], back, bounds, written.dense[depth])
            written.biases[depth][:] = layers.row_sums(back, bounds)
        back = layers.transposed_products(back, network.dense[depth], bounds)
    layers.relu_backward(activations[0], back)
    sums = layers.row_sums(back, bounds)
    gmf = mlp = users = None
    first = network.dense[0]
    if written is not None:
        layers.weight_gradients(point.mlp, back, bounds, written.dense[0][:, shape.mlp :])
        embeddings = point.users[:, shape.gmf :]
        np.multiply(embeddings[:, :, None], sums[:, None, :], out=written.dense[0][:, : shape.mlp])
        written.biases[0][:] = sums
        mlp = layers.transposed_products(back, first[:, shape.mlp :], bounds)
        gmf = forward.user
        gmf *= slopes[:, None]
        if decay:
            shrunk = np.repeat(each * decay, rows.counts)[:, None]
            mlp += shrunk * point.mlp
            gmf += shrunk * point.gmf
    if local:
        users = np.empty_like(point.users)
        np.multiply(network.gmf, of_user, out=users[:, : shape.gmf])
        users[:, shape.gmf :] = layers.transposed_vector_products(sums, first[:, : shape.mlp])
        if decay:
            users += decay * point.users
    return losses, Gradients(gmf, mlp, vectors, users)
