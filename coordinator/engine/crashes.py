"""Crashes of the coordinator: how long it is away, and what the rounds that they struck tell of them."""

from __future__ import annotations

import asyncio
import math

from coordinator.engine.backend import Clock
from coordinator.engine.facts import FaultStrike
from coordinator.scenario.schema import Scenario


class Crashes:
    """The crashes of one run.

    Parameters
    ----------
    scenario : whose faults they are.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._down_until_s = -math.inf
        self._strikes: dict[int, list[FaultStrike]] = {}
        """By the round that was under way, or was next."""

    def note(self, fault: int, number: int, now_s: float, down_s: float) -> None:
        """Record that ``fault`` has the coordinator crash in round ``number``, or before it."""
        self._down_until_s = max(self._down_until_s, now_s + down_s)
        section = self._scenario.faults[fault]
        strike = FaultStrike(section.name, section.key, None, None, now_s, now_s, 1)
        self._strikes.setdefault(number, []).append(strike)

    async def until_up(self, loop: Clock) -> None:
        """Wait until the coordinator is back."""
        while loop.now_s < self._down_until_s:
            await asyncio.sleep(self._down_until_s - loop.now_s)

    def of_round(self, number: int) -> list[FaultStrike]:
        """Return the crashes of round ``number``; they count as told from now on."""
        return self._strikes.pop(number, [])

    def untold(self) -> list[tuple[int, list[FaultStrike]]]:
        """Return those that no round has told of, with the round that would have."""
        return sorted(self._strikes.items())
