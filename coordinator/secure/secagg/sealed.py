"""The sealed shares of a round, kept from the moment they come until they are delivered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coordinator.secure.secagg.cohort import Flags, NeighbourGraph
from edge.secagg.checks import OCTETS, Octets, expect_arrays, read
from edge.secagg.sealing import COMMITMENTS_BYTES, SEALED_BYTES
from edge.wire.messages import Arrays, SealedShares


class SealedStore:
    """What devices sealed for their neighbours, which only those can open.

    Parameters
    ----------
    cohort : who takes part.

    Attributes
    ----------
    commitments : uint8[n, k + 1, 32], of each owner to the shares of each of its holders; zeros for an owner
        that did not share.
    """

    def __init__(self, cohort: NeighbourGraph) -> None:
        self._cohort = cohort
        self._sealed: Octets = np.empty((*cohort.holders.shape, SEALED_BYTES), dtype=np.uint8)
        self.commitments: Octets = np.zeros((*cohort.holders.shape, COMMITMENTS_BYTES), dtype=np.uint8)

    def take(self, at: int, message: SealedShares) -> None:
        """Keep what the device at a position sealed.

        Raises ``MalformedMessageError``, ``WrongLengthError`` and ``WrongDtypeError``.
        """
        cohort = self._cohort
        expect_arrays(message.arrays, "sealed", "commitments")
        rows = read(message.arrays, "sealed", OCTETS, (cohort.k, SEALED_BYTES))
        self.commitments[at] = read(message.arrays, "commitments", OCTETS, (cohort.k + 1, COMMITMENTS_BYTES))
        # A device holds a share of its own secrets too, but seals none for itself.
        own = int(np.searchsorted(cohort.holders[at], at))
        self._sealed[at, :own] = rows[:own]
        self._sealed[at, own + 1 :] = rows[own:]

    def deliveries(self, shared: Flags) -> Iterator[tuple[int, Arrays]]:
        """Yield for each device in ``shared``, bool[n], what its neighbours in there sealed for it."""
        cohort = self._cohort
        for at in np.flatnonzero(shared).tolist():
            holders = cohort.holders[at]
            columns = np.flatnonzero(shared[holders] & (holders != at))
            senders = holders[columns]
            arrays: Arrays = {
                "senders": cohort.devices[senders],
                "sealed": self._sealed[senders, cohort.slots[at, columns]],
                "commitments": self.commitments[senders, cohort.slots[at, columns]],
            }
            yield int(cohort.devices[at]), arrays
