"""What fitting a mask costs a device, laid out as the compute model wants it.

Multiplications and additions count one flop each. Bytes are those of every array that an operator reads or
writes, at four bytes a number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.learning.base import WORK_KINDS, Work

FLOAT_BYTES = 4
_GATHER, _DENSE = WORK_KINDS.index("gather"), WORK_KINDS.index("dense")


def fitting_work(
    *,
    flops: npt.NDArray[np.float64],
    moved_bytes: npt.NDArray[np.float64],
    ops: npt.NDArray[np.float64],
    gathered_rows: npt.NDArray[np.float64],
    width: int,
    steps: npt.NDArray[np.float64],
    memory_bytes: npt.NDArray[np.float64],
) -> Work:
    """Return the work of one gather of feature rows and of dense arithmetic on them.

    Parameters
    ----------
    flops, moved_bytes, ops : float64 [n], the arithmetic of the whole fit.
    gathered_rows : float64 [n], rows of ``width`` features that are copied, once; no operator if zero.
    steps : float64 [n], at least 1: sweeps or epochs over which the totals are spread.
    memory_bytes : float64 [n], the peak beside the feature table, which is public and shared.
    """
    shape = (len(steps), len(WORK_KINDS))
    all_flops, all_moved, all_ops = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    all_moved[:, _GATHER] = 2.0 * gathered_rows * width * FLOAT_BYTES
    all_ops[:, _GATHER] = gathered_rows > 0
    all_flops[:, _DENSE], all_moved[:, _DENSE], all_ops[:, _DENSE] = flops, moved_bytes, ops
    per_step = steps[:, None]
    return Work(
        all_flops / per_step,
        all_moved / per_step,
        all_ops / per_step,
        steps,
        np.ceil(memory_bytes).astype(np.int64),
    )
