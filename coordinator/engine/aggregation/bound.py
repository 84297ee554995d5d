"""A bound on what one device can add to a sum, where the coordinator sees single updates.

Devices clip their updates to the bound. Where updates come in the clear, the coordinator measures what it is
sent and refuses what is above: an honest device never is. Under a secure sum nobody can look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from edge.core.errors import RemoteProtocolError
from edge.learning.updates import Accumulator, Aggregate, Array, ClientUpdate, Layout

_ROUNDING = 2.0**-53


def norm_of(arrays: Mapping[str, Array]) -> float:
    """Return the L2 norm of all real numbers of an update together; infinite where its square is."""
    with np.errstate(over="ignore"):
        flat = (
            array.ravel().astype(np.float64, copy=False)
            for array in arrays.values()
            if array.dtype.kind == "f"
        )
        return math.sqrt(sum(float(values.dot(values)) for values in flat))


class BoundedUpdates:
    """An accumulator that refuses updates above a norm.

    Parameters
    ----------
    accumulator : takes the others.
    norm_bound : largest L2 norm of an update times its weight, over all its arrays.
    """

    def __init__(self, accumulator: Accumulator, norm_bound: float) -> None:
        self._accumulator = accumulator
        self._norm_bound = norm_bound

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        return self._accumulator.layout

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``), or are above the bound.

        The norm is given the room that rounding needs here: what a device has clipped always passes.
        """
        self._accumulator.check(arrays)
        norm = norm_of(arrays)
        room = (sum(array.size for array in arrays.values()) + 16) * _ROUNDING
        if norm > self._norm_bound * (1.0 + room):
            raise RemoteProtocolError(
                "malformed-update", f"an update has the norm {norm:g}, above the bound {self._norm_bound:g}"
            )

    def add(self, update: ClientUpdate) -> None:
        """Add one update."""
        self._accumulator.add(update)

    def result(self) -> Aggregate:
        """Return what the accumulator makes of the updates so far."""
        return self._accumulator.result()
