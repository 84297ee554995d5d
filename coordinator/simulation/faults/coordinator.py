"""Faults of the coordinator: slow, or crashed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import SENDING, FaultKind, Strike
from device_profiles.fields import PositiveSeconds
from edge.core.rng import Draws
from edge.device.round_faults import Crash, Handling


class CoordinatorSlow(FaultKind):
    """The coordinator takes some time for every frame that arrives, one after the other."""

    key = "coordinator_slow"
    summary = "the coordinator cannot keep up"
    stages = frozenset()
    of_devices = False
    of_rounds = True
    elsewhere = "it is slow with every frame"

    handling: PositiveSeconds = Field(description="how long it takes for a frame")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"handling": draws.seconds(0.001, 5)}

    def strike(self, strike: Strike) -> None:
        """Slow the coordinator down."""
        start_s, end_s = strike.fault.window_s
        strike.faults.handlings.append(Handling(strike.number, start_s, end_s, self.handling))


class CoordinatorCrash(FaultKind):
    """The coordinator crashes: the round under way is lost; `for` later it goes on from its checkpoint.

    It does so ``at`` a time, or in a round when the first frame of a stage arrives. Connections are reset.
    The checkpoint is the model after the last round that was applied; the next round has the next number.
    """

    key = "coordinator_crash"
    summary = "the coordinator crashes, and comes back"
    crashes = True
    must_begin = True
    must_end = True
    stages = SENDING
    of_devices = False
    of_rounds = True
    lasting = True
    elsewhere = "no frame of it comes to the coordinator"

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if fault.lasts_s is None:
            message = "says not when the coordinator comes back; write 'for: ...' in the fault"
            yield FieldProblem(("coordinator_crash",), message, None, of_key=True)
        elif fault.at is not None and fault.at_stage is not None:
            yield FieldProblem(("at_stage",), "contradicts at; write one of the two", None, of_key=True)

    def strike(self, strike: Strike) -> None:
        """Let the coordinator crash at a stage of the round; what has a time of its own is not of a round."""
        lasts_s = strike.fault.lasts_s
        if strike.stage is not None and lasts_s is not None:
            strike.faults.crashes.append(Crash(strike.number, strike.stage, lasts_s))
