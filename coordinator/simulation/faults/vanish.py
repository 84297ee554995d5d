"""Devices that disappear without a word."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import FaultKind, Strike
from edge.core.vocabulary import Reason


class Vanish(FaultKind):
    """The device disappears without a word, at a stage or `at` a time; it cannot be reached `for` as long.

    At a stage it does so while it downloads, computes, or sends what the stage asks for.
    """

    key = "vanish"
    summary = "devices disappear without a word"
    must_begin = True

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if fault.at_stage is None and fault.at is None:
            yield FieldProblem(("vanish",), "says not when; write 'at_stage' or 'at'", None, of_key=True)

    def strike(self, strike: Strike) -> None:
        """Let the devices go away; who is invited while it lasts cannot be reached."""
        strike.end(Reason.VANISHED)
        start_s, end_s = strike.fault.window_s
        if strike.stage is None and strike.fault.lasts_s is not None:
            now_s = strike.setting.now_s
            if start_s <= now_s < end_s:
                strike.setting.plan.reachable[strike.slots] = False
