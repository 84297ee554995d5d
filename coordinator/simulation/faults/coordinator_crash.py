"""A coordinator that crashes and comes back."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import SENDING, FaultKind, Strike
from edge.device.round_faults import Crash


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
