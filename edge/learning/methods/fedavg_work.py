"""What a round of FedAvg for matrix factorisation costs a device, counted from the shapes of its arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edge.learning.base import WORK_KINDS, Work
from edge.learning.local_steps import rows_seen, step_counts

if TYPE_CHECKING:
    from edge.learning.methods.fedavg_mf import SharedFactorizationSettings

_FLOAT_BYTES = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))


def fedavg_work(
    settings: SharedFactorizationSettings,
    n_items: int,
    examples: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64] | None = None,
    inner_steps: int = 1,
) -> Work:
    """Return the work of users with so many ratings (int64 [n]), or of the first ``steps`` of their steps.

    A step costs, for every rating that it looks at and w = k + 1 numbers: 2w for the error, 3w for the item's
    row, 2w for the user's; 3w more for the pull of FedProx; and 3w for the user's row itself. ``inner_steps``
    times that, where every step has inner ones.
    """
    n, width = len(examples), settings.factors + 1
    taken = step_counts(settings.client, examples) if steps is None else steps
    seen = inner_steps * rows_seen(settings.client, examples, taken).astype(np.float64)
    taken_steps = np.maximum(taken.astype(np.float64), 1.0)
    flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
    moved[:, _GATHER] = 2.0 * examples * width * _FLOAT_BYTES
    ops[:, _GATHER] = 1.0
    per_row = 10.0 if settings.proximal else 7.0
    flops[:, _SCORING] = seen * per_row * width + taken_steps * inner_steps * 3.0 * width
    moved[:, _SCORING] = seen * 4.0 * width * _FLOAT_BYTES
    ops[:, _SCORING] = 5.0 * taken_steps * inner_steps
    # The items, the user's ratings, their rows at the start and now, a gradient, and the upload.
    memory = _FLOAT_BYTES * (n_items * width + examples * (4.0 * width + 2.0) + 3.0 * width)
    per_step = taken_steps[:, None]
    return Work(
        flops / per_step, moved / per_step, ops / per_step, taken_steps, np.ceil(memory).astype(np.int64)
    )
