"""Oort: devices whose data teaches much and that are quick, without forgetting the others.

Source: Lai, Zhu, Madhyastha and Chowdhury 2021, "Oort: Efficient Federated Learning via Guided Participant
Selection" (OSDI), equation 1 and algorithm 1. For a device i that has reported, with |B_i| examples, the
losses of these, and t_i the time its last report took:

    stat(i) = |B_i|·sqrt(mean loss²)                                                       (equation 1)
    util(i) = [ norm(stat(i)) + sqrt(0.1·ln R / L_i) ] · (T/t_i)^α where t_i > T, else without the last factor
    score(i) = (1 − f)·util(i) + f·fair(i)                                                 (section 4.4)

R is the round, L_i the round of its last report, T the preferred duration, α the penalty, f the fairness.

* Exploitation: the (1 − ε)·k best scores give a cut-off; devices above ``cutoff`` times it are drawn in
  proportion to their scores. Exploration: ε·k devices that have never reported. ε starts at ``exploration``
  and is multiplied by ``exploration_decay`` each round, down to ``exploration_floor``.
* Pacer: every ``pacer_window`` rounds, if these had less statistical utility than as many before them, T is
  widened.
* Outliers: statistical utility is clipped at its ``clip`` quantile, and a device that has reported
  ``blacklist_after`` times is invited only when there is nobody else.

Where this differs from the paper, as the authors' own implementation (FedScale) does: stat is brought to
[0, 1] over the known devices before the uncertainty is added, since the two have no common unit; T is a
quantile of the known durations instead of a number of seconds, and widened by a step of that quantile. And
of our own: a report holds the mean loss, so sqrt(mean loss²) is taken to be that; unexplored devices are
drawn uniformly, not by speed, which the coordinator does not know yet; fair(i) = 1 − reports_i / most
reports, in place of the difference, to be of the same size as the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from coordinator.engine.selection.base import AvailableSettings, Floats, Ids, Knowledge, Policy
from coordinator.engine.selection.pool import Bools, Pool, sample_by_weight
from coordinator.scenario.errors import FieldProblem
from device_profiles.fields import Fraction, NonNegativeFloat, PositiveFraction, PositiveInt
from device_profiles.units import write_ratio

_NARROWEST = 1e-4
"""Statistical utilities that differ by less are distinguished by less than their difference."""


class OortSettings(AvailableSettings):
    """Devices whose data teaches much and that are quick (Lai et al. 2021)."""

    learns = True
    needs_losses = True
    by_reports = True

    policy: Literal["oort"]
    exploration: Fraction = Field(
        default=0.9, description="share of a round's devices that have never reported, at first"
    )
    exploration_decay: PositiveFraction = Field(
        default=0.98, description="the share is multiplied by this each round"
    )
    exploration_floor: Fraction = Field(default=0.2, description="the share never falls below")
    penalty: NonNegativeFloat = Field(
        default=2.0, description="exponent α of the penalty on devices slower than preferred; 0 for none"
    )
    cutoff: PositiveFraction = Field(
        default=0.95, description="devices above this share of the cut-off utility are drawn from"
    )
    clip: PositiveFraction = Field(
        default=0.95, description="quantile at which statistical utility is clipped"
    )
    fairness: Fraction = Field(default=0.0, description="weight of having been asked rarely, against utility")
    blacklist_after: PositiveInt | None = Field(
        default=None,
        description="a device that reported so often is only invited if nobody else can be; never by default",
    )
    preferred: PositiveFraction = Field(
        default=0.3, description="quantile of the known durations that a device may take, at first"
    )
    pacer_step: Fraction = Field(default=0.05, description="how much the pacer widens that quantile")
    pacer_window: PositiveInt = Field(
        default=20, description="rounds whose utility the pacer compares with that of as many before"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if self.exploration_floor > self.exploration:
            message = (
                f"{write_ratio(self.exploration_floor)} is above the {write_ratio(self.exploration)} that"
                " exploration starts with; write less"
            )
            yield FieldProblem(("exploration_floor",), message)


class Oort(Policy):
    """Draws devices by utility, and some that nothing is known of."""

    Settings = OortSettings

    def __init__(self, knowledge: Knowledge, pool: Pool, settings: OortSettings) -> None:
        super().__init__(knowledge, pool, settings)
        self._seen = knowledge.seen
        self._round = 0
        self.exploration = settings.exploration
        """ε of the round drawn last."""
        self.preferred = settings.preferred
        """The quantile of the known durations that is T now."""

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices; see :class:`~coordinator.engine.selection.base.Policy`."""
        generator = self.generator(round_number, attempt)
        self._advance(round_number)
        known = self.pool.eligible(self._seen.known(), now_s)
        unexplored = self.pool.sample(wanted, generator, now_s, self._never_reported)
        explore = min(round(self.exploration * wanted), len(unexplored))
        # Too few of one kind: the other fills up.
        explore = max(explore, min(wanted - len(known), len(unexplored)))
        exploited = self._exploit(known, wanted - explore, round_number, generator)
        return np.concatenate((exploited, unexplored[:explore]))

    def _never_reported(self, ids: Ids) -> Bools:
        return np.asarray(self._seen.reports[ids] == 0)

    def _exploit(self, known: Ids, wanted: int, round_number: int, generator: np.random.Generator) -> Ids:
        wanted = min(wanted, len(known))
        if wanted <= 0:
            return known[:0]
        scores = self.scores(known, round_number)
        spent = self._blacklisted(known)
        fresh, of_fresh = known[~spent], scores[~spent]
        taken = fresh
        if len(fresh) > wanted:
            best = np.partition(of_fresh, len(fresh) - wanted)[len(fresh) - wanted]
            admitted = of_fresh >= self.settings.cutoff * best
            taken = sample_by_weight(fresh[admitted], of_fresh[admitted], wanted, generator)
        order = np.argsort(-scores[spent], kind="stable")[: wanted - len(taken)]
        return np.concatenate((taken, known[spent][order]))

    def _blacklisted(self, ids: Ids) -> Bools:
        most = self.settings.blacklist_after
        return np.zeros(len(ids), np.bool_) if most is None else self._seen.reports[ids] >= most

    def _advance(self, round_number: int) -> None:
        """Begin a round: exploration decays, and the pacer compares past rounds."""
        s = self.settings
        for number in range(self._round + 1, round_number + 1):
            if number > 1:
                self.exploration = max(self.exploration * s.exploration_decay, s.exploration_floor)
            past = number - 1
            if past >= 2 * s.pacer_window and past % s.pacer_window == 0:
                middle = past - s.pacer_window
                before = self._utility(middle - s.pacer_window, middle)
                if before > self._utility(middle, past):
                    self.preferred = min(self.preferred + s.pacer_step, 1.0)
        self._round = max(self._round, round_number)

    def _utility(self, after: int, until: int) -> float:
        """Return the statistical utility of the reports of rounds ``after + 1`` … ``until``."""
        of_round = self._seen.utility_of_round
        return math.fsum(of_round.get(number, 0.0) for number in range(after + 1, until + 1))

    def preferred_s(self) -> float:
        """Return T, seconds: a quantile of the durations of all devices that have reported."""
        return float(np.quantile(self._seen.duration_s[self._seen.known()], self.preferred))

    def scores(self, ids: Ids, round_number: int) -> Floats:
        """Return the scores of devices that have reported, positive, float64 [n]."""
        s, seen = self.settings, self._seen
        everybody = seen.statistical_utility(seen.known())
        lowest = 0.999 * float(everybody.min())
        span = max(float(everybody.max()) - lowest, _NARROWEST)
        clipped = np.minimum(seen.statistical_utility(ids), np.quantile(everybody, s.clip))
        score = (clipped - lowest) / span
        score += np.sqrt(0.1 * math.log(round_number) / np.maximum(seen.last_round[ids], 1))
        duration_s = seen.duration_s[ids].astype(np.float64)
        preferred_s = self.preferred_s()
        slow = duration_s > preferred_s
        score[slow] *= (preferred_s / duration_s[slow]) ** s.penalty
        if s.fairness > 0:
            fair = 1.0 - seen.reports[ids] / float(seen.reports.max())
            score = (1.0 - s.fairness) * score + s.fairness * fair
        return np.asarray(np.maximum(score, np.finfo(np.float64).tiny), np.float64)
