"""What the coordinator tells a device whose report is of a round before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.engine.active_round import ActiveRound, Broadcast
from coordinator.engine.actor import Coordinator
from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.rounds import RoundPlan
from edge.core.vocabulary import Reason, RoundOutcome
from edge.device.participation import Participation
from edge.learning.accumulators import DenseAccumulator
from edge.wire.messages import Accept, Acknowledge, AnyMessage, Invite, Model, Report

RUN = "run"


class Devices:
    def __init__(self) -> None:
        self.devices = [7]

    def invite(self, round_: ActiveRound, invitation: Broadcast) -> None:
        message = invitation.message
        assert isinstance(message, Invite)
        self.invitation = message


class Wire:
    device = 7

    def __init__(self) -> None:
        self.sent: list[AnyMessage] = []

    def push(self, message: AnyMessage, frame_bytes: int, payload_bytes: int) -> None:
        self.sent.append(message)


@pytest.mark.asyncio
@pytest.mark.parametrize(("run", "number"), [(RUN, 1), ("another", 2)])
async def test_it_hears_of_its_own_round_and_goes_on_in_this_one(run: str, number: int) -> None:
    coordinator, devices, wire = Coordinator(RUN, "task", ReportRanges(10.0, 10)), Devices(), Wire()
    story = asyncio.ensure_future(
        coordinator.run_round(RoundPlan(RUN, 2, 1, 1, 60.0), devices, {}, DenseAccumulator({}))
    )
    await asyncio.sleep(0)
    part = Participation(7)
    answer = part.invited(devices.invitation, Reason.NONE)
    assert isinstance(answer, Accept)
    assert coordinator.frame_received(wire, answer) is Reason.NONE
    stale = Report(run, number, 7, 3, 3.0, 0.5, {})
    assert coordinator.frame_received(wire, stale) is Reason.STALE
    model, receipt = wire.sent
    assert receipt == Acknowledge(run, number, Reason.STALE)
    assert isinstance(model, Model)
    heard: Any = [part.received(message) for message in (receipt, model)]
    assert heard == [Reason.STALE, Reason.NONE]
    assert coordinator.frame_received(wire, part.computed({}, 3.0, 3, 0.5)) is Reason.NONE
    assert (await story).machine.outcome is RoundOutcome.COMPLETED
