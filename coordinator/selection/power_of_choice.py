"""Power of choice: of some candidates, those on which the model is worst.

Source: Cho, Wang and Joshi 2020, "Client Selection in Federated Learning: Convergence Analysis and
Power-of-Choice Selection Strategies", section 4: (1) draw d candidates without replacement, client k with
probability p_k, its share of the data; (2) estimate their local losses; (3) select the m with the highest.

This is the variant that costs no extra communication, rpow-d: the loss of a candidate is the one in its last
report, and one that has never reported counts as infinite, so that it comes first. Among candidates of equal
loss the one drawn first is taken. The paper averages that loss over the client's local steps; here it is the
loss on all of its examples before the first step.
"""

from __future__ import annotations

import math

import numpy as np

from coordinator.selection.base import Ids, Knowledge
from coordinator.selection.pool import Pool, sample_by_weight
from edge.rng import stream

_TRIES = 20
"""Batches of draws before the whole fleet is looked through."""


class PowerOfChoice:
    """Draws candidates in proportion to their data and takes those of the highest loss.

    Parameters
    ----------
    candidates : candidates per device wanted, d/m, 1 or more.
    """

    def __init__(self, knowledge: Knowledge, pool: Pool, candidates: float) -> None:
        self._seed = knowledge.seed
        self._loss = knowledge.seen.loss
        self._pool = pool
        self._candidates = candidates
        self._weights = np.maximum(knowledge.examples(np.arange(pool.n)), 1).astype(np.float64)
        self._cumulated = np.cumsum(self._weights)

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices; see :class:`~coordinator.selection.base.Policy`."""
        generator = stream(self._seed, "selection", round_number, attempt)
        size = min(math.ceil(round(self._candidates * wanted, 9)), self._pool.n)
        drawn = self._draw_candidates(size, generator, now_s)
        loss = self._loss[drawn]
        order = np.argsort(-np.where(np.isnan(loss), np.inf, loss), kind="stable")
        return drawn[order[:wanted]]

    def _draw_candidates(self, size: int, generator: np.random.Generator, now_s: float) -> Ids:
        """Return up to ``size`` eligible devices, drawn one after the other in proportion to their data.

        Draws with replacement of which repetitions are ignored are draws without; so are those that are not
        eligible. Only where either is frequent is the whole fleet looked through.
        """
        found = np.zeros(0, np.int64)
        if 4 * size < self._pool.n:
            for _ in range(_TRIES):
                uniform = generator.random(2 * size + 16) * self._cumulated[-1]
                drawn = np.minimum(np.searchsorted(self._cumulated, uniform, side="right"), self._pool.n - 1)
                found = np.concatenate((found, self._pool.eligible(drawn, now_s)))
                _, first = np.unique(found, return_index=True)
                found = found[np.sort(first)]
                if len(found) >= size:
                    return found[:size]
        everybody = self._pool.eligible(np.arange(self._pool.n), now_s)
        rest = everybody[~np.isin(everybody, found)]
        more = sample_by_weight(rest, self._weights[rest], size - len(found), generator)
        return np.concatenate((found, more))
