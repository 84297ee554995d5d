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
from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from coordinator.engine.selection.base import AvailableSettings, Ids, Knowledge, Policy
from coordinator.engine.selection.pool import Pool, sample_by_weight
from coordinator.scenario.errors import FieldProblem
from device_profiles.fields import Ratio
from device_profiles.units import write_ratio

_TRIES = 20
"""Batches of draws before the whole fleet is looked through."""


class PowerOfChoiceSettings(AvailableSettings):
    """Of some candidates, those with the highest last known loss (Cho et al. 2020)."""

    learns = True
    needs_losses = True
    by_reports = True
    by_examples = True

    policy: Literal["power-of-choice"]
    candidates: Ratio = Field(
        default=2.0, description="candidates drawn per device invited, in proportion to their data"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if not 1 <= self.candidates <= 100:
            message = f"{write_ratio(self.candidates)} is not between 100% and 10000%; write 200%, or more"
            yield FieldProblem(("candidates",), message)


class PowerOfChoice(Policy):
    """Draws candidates in proportion to their data and takes those of the highest loss."""

    Settings = PowerOfChoiceSettings

    def __init__(self, knowledge: Knowledge, pool: Pool, settings: PowerOfChoiceSettings) -> None:
        super().__init__(knowledge, pool, settings)
        self._weights = np.maximum(knowledge.examples(np.arange(pool.n)), 1).astype(np.float64)
        self._cumulated = np.cumsum(self._weights)

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices; see :class:`~coordinator.engine.selection.base.Policy`."""
        generator = self.generator(round_number, attempt)
        size = min(math.ceil(round(self.settings.candidates * wanted, 9)), self.pool.n)
        drawn = self._draw_candidates(size, generator, now_s)
        loss = self.knowledge.seen.loss[drawn]
        order = np.argsort(-np.where(np.isnan(loss), np.inf, loss), kind="stable")
        return drawn[order[:wanted]]

    def _draw_candidates(self, size: int, generator: np.random.Generator, now_s: float) -> Ids:
        """Return up to ``size`` eligible devices, drawn one after the other in proportion to their data.

        Draws with replacement of which repetitions are ignored are draws without; so are those that are not
        eligible. Only where either is frequent is the whole fleet looked through.
        """
        found = np.zeros(0, np.int64)
        if 4 * size < self.pool.n:
            for _ in range(_TRIES):
                uniform = generator.random(2 * size + 16) * self._cumulated[-1]
                drawn = np.minimum(np.searchsorted(self._cumulated, uniform, side="right"), self.pool.n - 1)
                found = np.concatenate((found, self.pool.eligible(drawn, now_s)))
                _, first = np.unique(found, return_index=True)
                found = found[np.sort(first)]
                if len(found) >= size:
                    return found[:size]
        everybody = self.pool.eligible(np.arange(self.pool.n), now_s)
        rest = everybody[~np.isin(everybody, found)]
        more = sample_by_weight(rest, self._weights[rest], size - len(found), generator)
        return np.concatenate((found, more))
