"""The audit of what a coordinator sees of updates: the rated items that can be read off them.

Single updates are read as they are added up, sums as they are unmasked; :mod:`edge.privacy.uploads` has the
reading. The figures compare what is read with the training ratings, which the simulator has at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.aggregation.held import PassedOn
from coordinator.engine.facts import MetricValue
from coordinator.engine.workload import RatingWorkload
from edge.learning.updates import ITEMS, ROWS, Accumulator, Array, ClientUpdate, UpdateBatch
from edge.privacy.uploads import rated_rows

Ids = npt.NDArray[np.int64]


class RatedItemsAudit:
    """Counts how many of the items that are read off updates and sums are rated.

    What is read off a sum is compared with the ratings of each of its devices: a sum names none of them.

    Parameters
    ----------
    workload : the run's.
    drawn : whether devices draw items that their users have not rated.
    """

    def __init__(self, workload: RatingWorkload, *, drawn: bool) -> None:
        self._workload = workload
        self._drawn = drawn
        self._n_items = workload.split.train.n_items
        self._heard = np.zeros(workload.n_clients, np.bool_)
        self._devices = self._claimed = self._right = self._rated = self._union = self._alone = 0

    def look(self, arrays: Mapping[str, Array], clients: Iterable[int]) -> None:
        """Read an update of one of ``clients``, or a sum over several."""
        ids = np.array(sorted(clients), np.int64)
        found = rated_rows(arrays[ROWS], drawn=self._drawn)
        items = arrays[ITEMS][found] if ITEMS in arrays else np.flatnonzero(found)
        owned = self._workload.clients
        users = owned.gather(ids)[1] if self._workload.grouped else owned.users[ids]
        rated = self._workload.split.train.gather(users).items
        raters = np.bincount(rated, minlength=self._n_items)
        self._heard[ids] = True
        self._devices += len(ids)
        self._claimed += len(items) * len(ids)
        self._right += int(np.minimum(raters, len(ids))[items].sum())
        self._rated += int(np.minimum(raters, len(ids)).sum())
        self._union += int(np.count_nonzero(raters))
        self._alone += int(np.count_nonzero(raters == 1))

    def partial(self) -> Any:
        """Return what was counted, to be joined elsewhere."""
        counted = (self._devices, self._claimed, self._right, self._rated, self._union, self._alone)
        return np.flatnonzero(self._heard), counted

    def join(self, partial: Any) -> None:
        """Count what was counted elsewhere, too."""
        heard, (devices, claimed, right, rated, union, alone) = partial
        self._heard[heard] = True
        self._devices += devices
        self._claimed += claimed
        self._right += right
        self._rated += rated
        self._union += union
        self._alone += alone

    def values(self) -> list[MetricValue]:
        """Return the figures of all that was seen; NaN of nothing."""
        figures = {
            "precision": (self._right, self._claimed),
            "recall": (self._right, self._rated),
            "chance": (self._rated, self._devices * self._n_items),
            "singletons": (self._alone, self._union),
        }
        users = int(np.count_nonzero(self._heard))
        return [
            MetricValue(f"audit.rated_{name}", part / whole if whole else float("nan"), users, "train")
            for name, (part, whole) in figures.items()
        ]


class AuditedUpdates(PassedOn):
    """An accumulator whose updates are read as they are added.

    Parameters
    ----------
    accumulator : adds them up.
    audit : reads them.
    """

    def __init__(self, accumulator: Accumulator, audit: RatedItemsAudit) -> None:
        super().__init__(accumulator)
        self._audit = audit

    def add(self, update: ClientUpdate, client: int) -> None:
        """Read and add one update, that of ``client``."""
        self._audit.look(update.arrays, (client,))
        super().add(update, client)

    def add_many(self, batch: UpdateBatch, places: Ids, clients: Ids) -> None:
        """Read the updates at ``places`` of a batch, and add them in that order."""
        for place, client in zip(places.tolist(), clients.tolist(), strict=True):
            self._audit.look(batch.client(place).arrays, (client,))
        super().add_many(batch, places, clients)

    def partial(self) -> Any:
        """Return the sums of the groups that have any, and what was read."""
        return super().partial(), self._audit.partial()

    def join(self, partial: Any) -> None:
        """Take over the sums of other groups, and what was read."""
        sums, read = partial
        super().join(sums)
        self._audit.join(read)
