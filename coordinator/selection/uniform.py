"""Every device as likely as any other; what McMahan et al. 2017 (FedAvg, algorithm 1) ask for."""

from __future__ import annotations

from coordinator.selection.base import Ids, Knowledge
from coordinator.selection.pool import Pool
from edge.rng import stream


class Uniform:
    """Draws without repetition; whether only among the available is the pool's business."""

    def __init__(self, knowledge: Knowledge, pool: Pool) -> None:
        self._seed = knowledge.seed
        self._pool = pool

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices; see :class:`~coordinator.selection.base.Policy`."""
        generator = stream(self._seed, "selection", round_number, attempt)
        return self._pool.sample(wanted, generator, now_s)
