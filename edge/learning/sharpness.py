"""Hierarchical sharpness-aware minimisation: descend where the loss is worst nearby, block by block.

Source: Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization" (ICLR 2021),
equations 2 and 3; in two blocks as in FedRecGEL. To first order the worst point within ρ of θ is
θ + ρ·g/‖g‖ with g the gradient at θ; the gradient there is what is descended along. The shared block (item
rows and network, one vector for each device) and the local block (its users' parameters) have a ρ each, and
each is perturbed with the other where it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge.learning.layers import device_sums, squared_norms
from edge.learning.neumf import Gradients, Point

Floats = npt.NDArray[Any]


class Radii(NamedTuple):
    """ρ of the shared and of the local block; 0 leaves a block as it is."""

    shared: float = 0.0
    local: float = 0.0


class GradientFunction(Protocol):
    """Losses [R] and gradients of chosen blocks at a point."""

    def __call__(
        self, point: Point, *, shared: bool, local: bool, out: Floats | None = None
    ) -> tuple[Floats, Gradients]:
        """Return losses and gradients, that of the network written to ``out`` [n, weights] if it is given."""
        ...


def step_lengths(squares: npt.NDArray[np.float64], radius: float) -> npt.NDArray[np.float64]:
    """Return ρ/‖g‖ from ‖g‖², [n]; 0 where the gradient is 0, and every direction as good as another."""
    norms = np.sqrt(squares)
    return np.divide(radius, norms, out=np.zeros_like(norms), where=norms > 0)


def shared_squares(gradients: Gradients, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return ‖g‖² of each device's shared block, float64 [n]; ``counts`` are the rows of each."""
    assert gradients.gmf is not None
    assert gradients.mlp is not None
    assert gradients.network is not None
    of_rows = np.einsum("rk,rk->r", gradients.gmf, gradients.gmf)
    of_rows += np.einsum("rk,rk->r", gradients.mlp, gradients.mlp)
    squares = device_sums(of_rows, counts)
    squares += squared_norms(gradients.network)
    return squares


def worst_shared(point: Point, gradients: Gradients, counts: npt.NDArray[np.int64], radius: float) -> Point:
    """Return the point whose shared block is the worst within ``radius``, to first order."""
    lengths = step_lengths(shared_squares(gradients, counts), radius).astype(point.users.dtype)
    of_rows = np.repeat(lengths, counts)[:, None]
    gmf, mlp = of_rows * gradients.gmf, of_rows * gradients.mlp
    network = lengths[:, None] * gradients.network
    gmf += point.gmf
    mlp += point.mlp
    network += point.network
    return point._replace(gmf=gmf, mlp=mlp, network=network, first=None)


def worst_local(point: Point, gradients: Gradients, radius: float) -> Point:
    """Return the point whose local block is the worst within ``radius``, to first order."""
    assert gradients.users is not None
    lengths = step_lengths(squared_norms(gradients.users), radius).astype(point.users.dtype)
    return point._replace(users=point.users + lengths[:, None] * gradients.users)


def sharpness_aware(
    gradients: GradientFunction, counts: npt.NDArray[np.int64], radii: Radii
) -> GradientFunction:
    """Return the function that gives each block's gradient at that block's worst point.

    The losses are those at the point itself. With a radius of 0 a block's gradient is the plain one, bit for
    bit.
    """

    def at_worst(
        point: Point, *, shared: bool, local: bool, out: Floats | None = None
    ) -> tuple[Floats, Gradients]:
        losses, found = gradients(point, shared=shared, local=local, out=out)
        sharp = found
        if shared and radii.shared > 0:
            there = worst_shared(point, found, counts, radii.shared)
            _, other = gradients(there, shared=True, local=False, out=out)
            sharp = sharp._replace(gmf=other.gmf, mlp=other.mlp, network=other.network)
        if local and radii.local > 0:
            _, other = gradients(worst_local(point, found, radii.local), shared=False, local=True)
            sharp = sharp._replace(users=other.users)
        return losses, sharp

    return at_worst
