"""What devices draw from the catalogue beside their own ratings, and what they may not draw."""

from __future__ import annotations

from typing import NamedTuple

from edge.data.split import Split
from edge.data.store import RatingStore
from edge.learning.zero_one import ZeroOne


class DrawnItems(NamedTuple):
    """How a scenario has items drawn.

    ``zeros`` for each rating, which then is a one; None: ratings are what they are. ``spare_held_out``: what
    is kept back for validation and test is never drawn.
    """

    zeros: int | None = None
    spare_held_out: bool = True

    def spared(self, split: Split) -> RatingStore | None:
        """Return what must not be drawn beside a user's own ratings; None where there is nothing."""
        return split.held_out if self.spare_held_out else None

    def most_spared(self, split: Split) -> int:
        """Return the most that is spared of any user."""
        spared = self.spared(split)
        return 0 if spared is None else int(spared.counts.max(initial=0))

    def zero_one(self, split: Split) -> ZeroOne | None:
        """Return how ones and zeros are made of a split's ratings; None where they stay what they are."""
        if self.zeros is None:
            return None
        return ZeroOne(self.zeros, split.train.n_items, self.most_spared(split))
