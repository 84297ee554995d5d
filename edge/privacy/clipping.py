"""Client updates clipped to a norm, which bounds what one user can change (McMahan et al. 2018, eq. 2).

The L2 norm is taken over all arrays of an update together. An update above the bound is multiplied by
bound/norm; one within it is left as it is. The bound holds for the numbers as they are stored, exactly, not
only up to rounding: the accounting of a run takes it for granted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import NotFiniteError

_ROUNDING = 2.0**-53
SMALLEST_BOUND = 1e-30
"""Smallest norm to clip to: shared out among 10**14 elements, it leaves each a normal float32 (1.2e-38)."""


class ClippedUpdate(NamedTuple):
    """An update within the bound: new ``arrays``, whether it was ``clipped``, and its L2 ``norm`` before."""

    arrays: dict[str, npt.NDArray[Any]]
    clipped: bool
    norm: float


def clip_update(arrays: Mapping[str, npt.NDArray[Any]], clip_norm: float) -> ClippedUpdate:
    """Return an update whose L2 norm over all arrays together is at most ``clip_norm``.

    Parameters
    ----------
    arrays : float32 or float64 of any shape, by name. Row numbers have no place here: they would tell, past
        any noise, which items a user rated.
    clip_norm : C, the bound, in the units of the update; finite and at least 1e-30.

    Returns
    -------
    New arrays of the same dtypes and shapes. An update whose norm is within rounding of the bound (a relative
    2**−53 an element) counts as clipped, and one that was clipped is left alone the next time. A norm beyond
    float64 is given as infinite; the update is clipped all the same.

    Raises ``LocalProtocolError`` for another bound or an array of another dtype, ``NotFiniteError`` for a NaN
    or an infinite value.
    """
    if not SMALLEST_BOUND <= clip_norm < math.inf:
        raise LocalProtocolError(f"an update cannot be clipped to the norm {clip_norm}; write a positive one")
    for name, array in arrays.items():
        if array.dtype not in (np.float32, np.float64):
            raise LocalProtocolError(f"'{name}' is {array.dtype}; clipping takes float32 and float64 only")
        if not np.isfinite(array).all():
            raise NotFiniteError(f"'{name}' holds a value that is not finite")
    # In units of the largest value, so that squares neither overflow nor vanish.
    peak = max((float(np.abs(array).max()) for array in arrays.values() if array.size), default=0.0)
    if peak == 0:
        return ClippedUpdate({name: array.copy() for name, array in arrays.items()}, False, 0.0)
    units = {name: array.astype(np.float64) / peak for name, array in arrays.items()}
    relative_norm = math.sqrt(sum(float(np.vdot(unit, unit)) for unit in units.values()))
    norm = relative_norm * peak
    # What a sum of so many squares can be off by, relative to itself, with a few operations around it.
    margin = (sum(array.size for array in arrays.values()) + 16) * _ROUNDING
    if norm * (1 + margin) <= clip_norm:
        return ClippedUpdate({name: array.copy() for name, array in arrays.items()}, False, norm)
    factor = clip_norm / relative_norm * (1 - 3 * margin)
    return ClippedUpdate(
        {name: _towards_zero(unit * factor, arrays[name].dtype) for name, unit in units.items()}, True, norm
    )


def _towards_zero(values: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return ``values`` in another float dtype, rounded so that no absolute value grows."""
    rounded = values.astype(dtype)
    grown = np.abs(rounded) > np.abs(values)
    return np.where(grown, np.nextafter(rounded, dtype.type(0)), rounded)
