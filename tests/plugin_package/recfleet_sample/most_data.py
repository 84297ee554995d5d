"""A selector: the devices that hold the most."""

from __future__ import annotations

from typing import Literal

import numpy as np

from coordinator.engine.selection.base import AvailableSettings, Ids, Policy


class MostDataSettings(AvailableSettings):
    """The devices that say that they hold the most examples, ties by number."""

    by_examples = True

    policy: Literal["most-data"]


class MostData(Policy):
    """Draws the free devices with the most examples."""

    Settings = MostDataSettings

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices."""
        free = self.pool.eligible(np.arange(self.pool.n), now_s)
        order = np.argsort(-self.knowledge.examples(free), kind="stable")
        return free[order[:wanted]]
