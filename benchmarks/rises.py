"""How much a device's loss rises at the worst point near its model, for FedNCF, FedRecon and FedRecGEL.

To first order that point lies ρ·g/‖g‖ away (see :mod:`edge.learning.sharpness`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.learning import fedrecon_kernels as kernels
from edge.learning.base import RatingBatch, State
from edge.learning.layers import device_means
from edge.learning.methods.fedncf.algorithm import FedNCF
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.neumf import Point
from edge.learning.sharpness import GradientFunction, Radii, step_lengths, worst_local, worst_shared
from edge.learning.updates import Array


def rises(
    algorithm: FedNCF | FedRecon,
    state: State,
    batch: RatingBatch,
    client_keys: npt.NDArray[np.uint64],
    local: Array | None,
    radii: Radii,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return how much users' losses rise at the worst point within ``radii``, float64 [n] each.

    The first is of the shared block, the second of the user's parameters, fitted as for a prediction. The
    loss of FedNCF is its own, that of the factorisations ½·mean(e²).
    """
    users = len(batch.indptr) - 1
    shared, own = np.empty(users), np.empty(users)
    if isinstance(algorithm, FedNCF):
        training = algorithm.training
        for start in training.starts(state, algorithm._examples(batch, client_keys), client_keys, local):
            those, rows = slice(start.first, start.end), start.rows
            point = training.personalised(start)
            shared[those], own[those] = _network_rises(training.plain(rows), point, rows.counts, radii)
        return shared, own
    table = algorithm._table(state)
    for first, end in kernels.blocks(batch.indptr):
        design, fitted = algorithm._reconstruct(table, batch, first, end, client_keys, local)
        counts = np.diff(batch.indptr[first : end + 1])
        shared[first:end], own[first:end] = _factor_rises(
            design, fitted, algorithm.settings.factors, algorithm.settings.item_bias, counts, radii
        )
    return shared, own


def _network_rises(
    gradients: GradientFunction,
    point: Point,
    counts: npt.NDArray[np.int64],
    radii: Radii,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return how much devices' mean losses rise at the worst shared and the worst local block, [n] each."""
    losses, found = gradients(point, shared=True, local=True)
    here = device_means(losses, counts)
    shared, _ = gradients(worst_shared(point, found, counts, radii.shared), shared=False, local=False)
    local, _ = gradients(worst_local(point, found, radii.local), shared=False, local=False)
    return device_means(shared, counts) - here, device_means(local, counts) - here


def _factor_rises(
    design: Array,
    fitted: Array,
    factors: int,
    item_bias: bool,
    counts: npt.NDArray[np.int64],
    radii: Radii,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the rise of ½·mean(e²) at the worst item rows and at the worst user parameters, [n] each."""
    spread = np.repeat(fitted, counts, axis=0).astype(np.float64)
    rows = design.astype(np.float64)
    sizes = np.maximum(counts, 1).astype(np.float64)

    error = -np.einsum("nk,nk->n", rows, spread)
    here = 0.5 * device_means(np.square(error), counts)
    # A row's gradient is −e·[p, 1]/N: along it e grows by ρ/‖g‖ · e·(|p|² + 1)/N, or |p|² without biases.
    lengths = np.square(spread[:, :factors]).sum(axis=1) + item_bias
    squares = device_means(np.square(error) * lengths, counts) / sizes
    away = np.repeat(step_lengths(squares, radii.shared) / sizes, counts)
    shared = 0.5 * device_means(np.square(error * (1.0 + away * lengths)), counts) - here
    # The user's gradient is −mean(e·x), x the row without its target.
    own = np.delete(rows, factors, axis=1)
    gradient = np.stack([-device_means(error * column, counts) for column in own.T], axis=1)
    steepness: npt.NDArray[np.float64] = np.square(gradient).sum(axis=1)
    direction = gradient * step_lengths(steepness, radii.local)[:, None]
    moved = error - np.einsum("nk,nk->n", own, np.repeat(direction, counts, axis=0))
    return shared, 0.5 * device_means(np.square(moved), counts) - here
