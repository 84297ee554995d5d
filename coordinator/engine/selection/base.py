"""The interface of selection, and how a policy is made from its section.

A policy draws devices for a round. Its input is what the coordinator has: how many examples a device says
that it holds, what it reported before (:class:`~coordinator.engine.selection.experience.Experience`), and,
for policies that say so, the figures of its profile. What the simulator alone knows (who will vanish, who has
no battery, how long a computation is going to take) is none of its business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, get_args

import numpy as np
import numpy.typing as npt

from coordinator.engine.fleet import Fleet
from coordinator.engine.selection.experience import Experience
from coordinator.engine.selection.pool import Accept, Pool
from coordinator.scenario.registered_sections import AvailableSettings, PolicySettings
from edge.core.plugins import SELECTORS, PluginKind, get
from edge.core.rng import stream

__all__ = ["KIND", "AvailableSettings", "Knowledge", "Policy", "PolicySettings", "Selector", "make_selector"]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What policies may draw on.

    Attributes
    ----------
    seed : the run's seed.
    fleet : which devices there are, and which are free and available.
    experience : what was seen of each device; None where neither selection nor pacing learns.
    examples : returns how many examples each device of int64 [n] says that it holds, int64 [n].
    predicted_s : returns how long a round is going to take each device of int64 [n], float64 [n] seconds, by
        the figures of its profile.
    deadline_s : returns how long a round waits, seconds, by its number and the time at which it begins.
    """

    seed: int
    fleet: Fleet
    experience: Experience | None
    examples: Callable[[Ids], Ids]
    predicted_s: Callable[[Ids], Floats]
    deadline_s: Callable[[int, float], float]

    @property
    def seen(self) -> Experience:
        """What was seen of each device, for policies that learn from it."""
        assert self.experience is not None, "whoever learns is given something to learn from"
        return self.experience


class Policy:
    """Draws the devices of each round; one object a run.

    A policy has a class attribute ``Settings``, its section, whose docstring says in one sentence who is
    drawn, and the method :meth:`draw`.

    Attributes
    ----------
    knowledge : what it may draw on.
    pool : the devices that can be drawn.
    settings : its section, an instance of ``Settings``.
    """

    Settings: ClassVar[type[PolicySettings]] = PolicySettings

    def __init__(self, knowledge: Knowledge, pool: Pool, settings: Any) -> None:
        self.knowledge = knowledge
        self.pool = pool
        self.settings = settings

    def generator(self, round_number: int, attempt: int) -> np.random.Generator:
        """Return the source of all chance of a draw, the stream ``"selection", round_number, attempt``."""
        return stream(self.knowledge.seed, "selection", round_number, attempt)

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices, int64 [n], each once; fewer when there are no more.

        ``attempt`` counts the draws for the round, from 0.
        """
        raise NotImplementedError


def _lacks(policy: type[Policy]) -> Iterator[str]:
    field = policy.Settings.model_fields.get("policy")
    if field is None or len(get_args(field.annotation)) != 1:
        yield "has no Settings with a field 'policy: Literal[\"its-name\"]'"
    if policy.draw is Policy.draw:
        yield "has no method 'draw'"


def _name_of(policy: type[Policy]) -> str:
    return str(get_args(policy.Settings.model_fields["policy"].annotation)[0])


KIND: Final = PluginKind("selector", Policy, _name_of, _lacks)
"""The extension point."""


class Selector:
    """Draws the devices of each round by the policy of the scenario.

    Parameters
    ----------
    pool : the devices that can be drawn.
    policy : made for that pool.
    experience : receives every invitation; None where nobody learns.
    """

    def __init__(self, pool: Pool, policy: Policy, experience: Experience | None) -> None:
        self._pool = pool
        self._policy = policy
        self.experience = experience

    def draw(
        self,
        wanted: int,
        round_number: int,
        attempt: int,
        now_s: float,
        among: Accept | None = None,
    ) -> Ids:
        """Return up to ``wanted`` devices, int64 [n], in the order drawn; fewer when there are no more.

        ``among`` restricts the draw; ``attempt`` counts the draws for this round, from 0.
        """
        self._pool.restriction = among
        return self._policy.draw(wanted, round_number, attempt, now_s)

    def invited(self, ids: Ids) -> None:
        """Record who is invited; not everybody who is drawn need be."""
        if self.experience is not None:
            self.experience.invite(ids)

    def next_chance_s(self, now_s: float, round_number: int) -> float:
        """Return when some sampled device is first available from ``now_s`` on, or ``inf``."""
        return self._pool.next_chance_s(now_s, round_number)


def make_selector(section: PolicySettings, knowledge: Knowledge) -> Selector:
    """Return the selector of a scenario's section ``rounds.selection``."""
    pool = Pool(knowledge.fleet, knowledge.seed, available_only=section.draws_available)
    policy: Policy = get(SELECTORS, section.name)(knowledge, pool, section)
    return Selector(pool, policy, knowledge.experience)
