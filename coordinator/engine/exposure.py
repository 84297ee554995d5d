"""How often a model recommends one item: the exposure ratio ER@k, what targeted poisoning is after.

ER@k is the share of users without the item in training whose first k of the full ranking contain it, what the
evaluation masks left out. The users are those of the evaluation, attackers among them: a fault takes a device
over, and the user behind it goes on reading lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.rng import stream
from edge.data.store import RatingStore
from edge.metrics.ranking import ItemLists, top_k

Ids = npt.NDArray[np.int64]
COLD = "cold"
"""Stands for an item that few have rated."""
_COLD_SHARE = 10
"""A cold item is one of the tenth of the rated items with the fewest ratings."""


def item_called(name: str, train: RatingStore, seed: int) -> int | None:
    """Return the index of an item by what the data calls it; None where there is no such item.

    ``cold`` is drawn by the seed among the tenth of the items of ``train`` with the fewest ratings, one at
    least; of equally many the lower index is colder. Items without training ratings are none of them.
    """
    if name == COLD:
        counts = train.item_counts()
        order = np.lexsort((np.arange(counts.size), counts))
        rated = order[counts[order] > 0]
        coldest = rated[: max(rated.size // _COLD_SHARE, 1)]
        return int(stream(seed, "fault", "target", "cold").choice(coldest)) if coldest.size else None
    if train.item_ids is None:
        return int(name) if name.isdecimal() and int(name) < train.n_items else None
    (found,) = np.nonzero(np.array([str(label) == name for label in train.item_ids.tolist()], np.bool_))
    return int(found[0]) if found.size else None


@dataclass(frozen=True, slots=True)
class Exposure:
    """The exposure of an item.

    Attributes
    ----------
    item : its index.
    k : the lengths of lists, at least one.
    """

    item: int
    k: Sequence[int]

    def counts(
        self, scores: npt.NDArray[Any], trained: ItemLists, masked: ItemLists
    ) -> tuple[npt.NDArray[np.float64], int]:
        """Return how many users' lists have the item, float64 [lengths], and how many users count.

        ``scores`` float [n, items]; of the n users ``trained`` has the training items and ``masked`` those
        that are no candidates. A user with the item in either does not count. Counts are NaN where a score
        is not finite: there are no lists.
        """
        free = self._without(trained) & self._without(masked)
        if not np.isfinite(scores).all():
            return np.full(len(self.k), np.nan), int(np.count_nonzero(free))
        found = top_k(scores, max(self.k), masked)[free] == self.item
        hits = [np.count_nonzero(found[:, :length]) for length in self.k]
        return np.array(hits, np.float64), int(np.count_nonzero(free))

    def ratios(self, hits: npt.NDArray[np.float64], users: int) -> dict[str, float]:
        """Return ER@k by name, from the counts over ``users`` users; NaN if there are none."""
        return {
            f"er@{length}": float(hit) / users if users else float("nan")
            for length, hit in zip(self.k, hits.tolist(), strict=True)
        }

    def _without(self, lists: ItemLists) -> npt.NDArray[np.bool_]:
        n = len(lists.indptr) - 1
        owners = np.repeat(np.arange(n), np.diff(lists.indptr))
        free = np.ones(n, np.bool_)
        free[owners[lists.items == self.item]] = False
        return free
