"""What a round of FedRecon costs a device, counted from the shapes of its arrays.

Multiplications and additions count one flop each. Bytes are those of every array an operator reads or
writes, at four bytes a number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.learning.base import WORK_KINDS, Work
from edge.learning.losses import FLOPS_A_ROW
from edge.learning.method_settings import Ridge, UserSteps, rows_seen, step_counts
from edge.learning.methods.fedrecon.settings import ReconstructionSettings

_FLOAT_BYTES = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))


def fedrecon_work(
    settings: ReconstructionSettings,
    n_items: int,
    query: npt.NDArray[np.int64],
    examples: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64] | None = None,
) -> Work:
    """Return the work of users with ``examples`` ratings, ``query`` of them in the query part, int64 [n].

    ridge: one Gram matrix (N·w² flops, symmetric, w = k + 2 columns) and one solve (⅔d³ + 2d²);
    gradient steps: one Gram matrix and 2d² a step; mini-batches: 4d a row and epoch, five operators a batch.
    The item steps: one product per row for the error (2w) and one for the delta (2(k + 1)), each epoch; or
    only the first ``steps`` of them, int64 [n]; 3(k + 1) more a row for the pull of FedProx. User factors
    that persist cost the memory of one more row; steps from them cost what steps from zero do. With another
    loss than squared error a step on the user costs 4d a row, as no Gram matrix stands for the rows, and
    every slope what :data:`~edge.learning.losses.FLOPS_A_ROW` says. Sampled negatives are among the ratings.
    """
    n = len(examples)
    k = settings.factors
    unknowns = k + settings.user_bias
    width = unknowns + 1
    support = examples if settings.split == "none" else np.where(examples >= 2, examples - query, examples)
    rows = support.astype(np.float64)
    query_rows = query.astype(np.float64)
    gathered = rows + (0.0 if settings.split == "none" else query_rows)

    flops = np.zeros((n, len(WORK_KINDS)))
    moved = np.zeros((n, len(WORK_KINDS)))
    ops = np.zeros((n, len(WORK_KINDS)))
    moved[:, _GATHER] = 2.0 * gathered * width * _FLOAT_BYTES
    ops[:, _GATHER] = 1.0 if settings.split == "none" else 2.0

    method = settings.reconstruction
    gram_numbers = float(width * width)
    slope = FLOPS_A_ROW[settings.loss]
    if settings.loss != "squared-error" and isinstance(method, UserSteps):
        gram_numbers = 0.0
        reconstruction_steps = np.full(n, float(method.steps))
        flops[:, _DENSE] = method.steps * (rows * (4.0 * unknowns + slope) + 4.0 * unknowns)
        moved[:, _DENSE] = 2.0 * method.steps * rows * width * _FLOAT_BYTES
        ops[:, _DENSE] = 5.0 * method.steps
    elif isinstance(method, Ridge | UserSteps):
        flops[:, _DENSE] = rows * width * (width + 1)
        moved[:, _DENSE] = (rows * width + gram_numbers) * _FLOAT_BYTES
        ops[:, _DENSE] = 1.0
        if isinstance(method, Ridge):
            reconstruction_steps = np.ones(n)
            flops[:, _DENSE] += 2.0 / 3.0 * unknowns**3 + 2.0 * unknowns**2
            moved[:, _DENSE] += 2.0 * gram_numbers * _FLOAT_BYTES
            ops[:, _DENSE] += 1.0
        else:
            reconstruction_steps = np.full(n, float(method.steps))
            flops[:, _DENSE] += method.steps * (2.0 * unknowns**2 + 6.0 * unknowns)
            moved[:, _DENSE] += method.steps * gram_numbers * _FLOAT_BYTES
            ops[:, _DENSE] += 5.0 * method.steps
    else:
        reconstruction_steps = method.epochs * np.ceil(rows / method.batch_size)
        flops[:, _DENSE] = method.epochs * rows * 4.0 * unknowns + reconstruction_steps * 4.0 * unknowns
        moved[:, _DENSE] = 2.0 * method.epochs * rows * width * _FLOAT_BYTES
        ops[:, _DENSE] = 5.0 * reconstruction_steps

    client_steps = step_counts(settings.client, query) if steps is None else steps
    seen = rows_seen(settings.client, query, client_steps).astype(np.float64)
    flops[:, _SCORING] = seen * (2.0 * width + 2.0 * (k + 1))
    flops[:, _SCORING] += seen * slope
    if settings.proximal:
        flops[:, _SCORING] += seen * 3.0 * (k + 1)
    moved[:, _SCORING] = seen * (2.0 * width + k + 1) * _FLOAT_BYTES
    ops[:, _SCORING] = 3.0 * client_steps

    all_steps = np.maximum(reconstruction_steps + client_steps, 1.0)
    model = n_items * (k + 1) * _FLOAT_BYTES
    upload_rows = np.full(n, float(n_items)) if settings.upload == "dense" else query_rows
    memory = model + _FLOAT_BYTES * (
        gathered * (width + 2) + query_rows * width + gram_numbers * 2 + upload_rows * (k + 2)
    )
    if settings.user_factors == "persistent":
        memory += unknowns * _FLOAT_BYTES
    per_step = all_steps[:, None]
    return Work(
        flops / per_step, moved / per_step, ops / per_step, all_steps, np.ceil(memory).astype(np.int64)
    )
