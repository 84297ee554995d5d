"""Whom a scenario's selection and pacing invite, and when to look again for devices that are not there."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.fleet import Fleet
from coordinator.engine.pacing.tiers import SpeedTiers
from coordinator.engine.predictions import PartialWork, Predictions
from coordinator.engine.selection.base import Knowledge, make_selector
from coordinator.engine.selection.experience import Experience
from coordinator.engine.selection.pool import Accept
from coordinator.engine.workload import Workload
from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.registered_sections import default_selection
from coordinator.scenario.rounds_section import PartialWorkPacing, Tiers
from coordinator.scenario.schema import ScenarioSettings
from edge.core.vocabulary import RoundKind, finished_rounds
from edge.crypto.entropy import SecretSource, fresh_seed

Ids = npt.NDArray[np.int64]

SHORTEST_WAIT_S = 1.0
"""Simulated time between the first two looks for devices while too few are available; it doubles."""
_LONGEST_WAIT_S = 600.0


class Invitations:
    """Draws devices for rounds and server steps.

    Parameters
    ----------
    scenario, fleet, workload : what is run.
    model_bytes : what devices download in every round.
    secrets : where the draw comes from, if it counts as privacy that nobody knows it; else it follows from
        the seed.
    """

    def __init__(
        self,
        scenario: ScenarioSettings,
        fleet: Fleet,
        workload: Workload,
        model_bytes: int,
        secrets: SecretSource,
    ) -> None:
        rounds = scenario.rounds
        self._rounds = rounds
        self.experience = Experience(fleet.n) if rounds.learns else None
        """Observations of each device; None where no policy uses them."""
        predictions = Predictions(fleet, workload, model_bytes, scenario.connection.handshakes)
        pacing = rounds.pacing
        self.partial_work: PartialWork | None = None
        """How many local steps devices take; None: all of them."""
        if isinstance(pacing, PartialWorkPacing):
            margin = pacing.margin
            self.partial_work = PartialWork(
                fleet, workload, predictions, lambda phase: margin * scenario.deadline_in(phase)
            )
        self._tiers: SpeedTiers | None = None
        if isinstance(pacing, Tiers):
            assert self.experience is not None, "tiers learn"
            self._tiers = SpeedTiers(self.experience, scenario.seed, pacing)
        privacy = scenario.privacy
        amplified = isinstance(privacy, CentralGaussian) and privacy.amplification == "sampling"
        # Nobody may know who is drawn where that counts as privacy.
        secret = amplified and secrets is SecretSource.SYSTEM
        knowledge = Knowledge(
            fresh_seed() if secret else scenario.seed,
            fleet,
            self.experience,
            workload.examples,
            predictions.seconds,
            functools.partial(_deadline_s, scenario),
        )
        self._selector = make_selector(rounds.selection, knowledge)
        self._asked = {
            RoundKind.EVALUATION: scenario.evaluation_rounds,
            RoundKind.MEAN_QUERY: scenario.query_rounds,
        }
        # Whoever a policy prefers would measure another model than the others have.
        even = rounds.selection if rounds.selection.even else default_selection()
        self._evaluators = make_selector(even, replace(knowledge, experience=None))

    def of_round(self, number: int, attempt: int, now_s: float) -> Ids | None:
        """Invite devices to a round, int64 [n]; None where there are fewer than it needs.

        To any but a round of training, which its number tells, all devices are as likely to be invited.
        ``attempt`` counts the looks for devices for this round, from 0.
        """
        found = self._drawn(number, attempt, now_s)
        if found is not None and RoundKind.of(number) is RoundKind.TRAINING:
            self._selector.invited(found)
        return found

    def _drawn(self, number: int, attempt: int, now_s: float) -> Ids | None:
        rounds = self._asked.get(RoundKind.of(number))
        if rounds is not None:
            ids = self._evaluators.draw(rounds.invited, number, attempt, now_s)
            return ids if len(ids) >= rounds.quorum_reports else None
        rounds = self._rounds
        if self._tiers is None:
            ids = self._selector.draw(rounds.invited, number, attempt, now_s)
            return ids if len(ids) >= rounds.quorum_reports else None
        for place, (tier, members) in enumerate(self._tiers.choices(number)):
            # Every tier that is tried draws anew.
            nth = attempt * (self._tiers.most + 1) + place
            ids = self._selector.draw(rounds.invited, number, nth, now_s, members)
            if len(ids) >= rounds.quorum_reports:
                self._tiers.spend(tier)
                return ids
        return None

    def of_step(self, wanted: int, number: int, attempt: int, now_s: float, among: Accept) -> Ids:
        """Invite up to ``wanted`` of some devices while a server step is under way, int64 [n]."""
        ids = self._selector.draw(wanted, number, attempt, now_s, among)
        self._selector.invited(ids)
        return ids

    def memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return what has been learnt, arrays by name; nothing where nobody learns.

        What a policy makes of it, it makes of it again.
        """
        memory: dict[str, npt.NDArray[Any]] = {}
        if self.experience is not None:
            memory |= {f"experience.{name}": array for name, array in self.experience.memory().items()}
        if self._tiers is not None:
            memory |= {f"tiers.{name}": array for name, array in self._tiers.memory().items()}
        return memory

    def recall(self, memory: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with what :meth:`memory` returned."""
        for part, learner in (("experience.", self.experience), ("tiers.", self._tiers)):
            if learner is not None:
                mine = {name.removeprefix(part): a for name, a in memory.items() if name.startswith(part)}
                learner.recall(mine)

    def wait_s(self, now_s: float, number: int, attempt: int) -> float:
        """Return when to look for devices again, seconds from now, after ``attempt`` + 1 looks in vain."""
        shortest_s = min(SHORTEST_WAIT_S * 2.0 ** min(attempt, 10), _LONGEST_WAIT_S)
        chance_s = self._selector.next_chance_s(now_s, number)
        return min(max(chance_s - now_s, shortest_s), _LONGEST_WAIT_S)


def _deadline_s(scenario: ScenarioSettings, number: int, now_s: float) -> float:
    """Return how long the round, or evaluation, of a number waits that begins at a time."""
    return scenario.deadline_in(scenario.phase_at(max(finished_rounds(number) - 1, 0), now_s))
