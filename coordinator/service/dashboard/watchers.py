"""Passes frames on to a live state: one watcher for each clock."""

from __future__ import annotations

import asyncio

from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.hooks import ServiceObserver
from coordinator.simulation.backend import SimulationProbe
from edge.core.vocabulary import Direction, Reason
from edge.device.simulated import SimulatedDevice
from edge.network.link import Delivery
from edge.wire.codec import measure
from edge.wire.messages import AnyMessage, Invite


class LiveService(ServiceObserver):
    """The watcher of a service."""

    def __init__(self, state: LiveState) -> None:
        self._state = state

    def on_join(self, device: int) -> None:
        """Pass it on."""
        self._state.joined(device, again=False)

    def on_resume(self, device: int) -> None:
        """Pass it on."""
        self._state.joined(device, again=True)

    def on_disconnect(self, device: int, why: str) -> None:
        """Pass it on."""
        self._state.disconnected(device, why)

    def on_leave(self, device: int, reason: Reason, why: str) -> None:
        """Pass it on."""
        self._state.left(device, reason, why)

    def on_refusal(self, device: int | None, remote: str, why: str) -> None:
        """Pass it on."""
        self._state.refused(device, remote, why)

    def on_frame(
        self, round_number: int, device: int, direction: Direction, message: AnyMessage, reason: Reason
    ) -> None:
        """Pass it on, with its size and the time."""
        time_s, frame_bytes = asyncio.get_running_loop().time(), measure(message)[0]
        if message.__class__ is Invite:
            self._state.invited(round_number, [device], frame_bytes, time_s)
        else:
            self._state.frame(round_number, device, direction, message, reason, frame_bytes, time_s)

    def on_handled(self, seconds: float) -> None:
        """Pass it on."""
        self._state.handled(seconds)


class LiveProbe(SimulationProbe):
    """The watcher of a simulation."""

    def __init__(self, state: LiveState) -> None:
        self._state = state

    def invited(self, round_number: int, devices: list[int], frame_bytes: int, now_s: float) -> None:
        """Pass it on."""
        self._state.invited(round_number, devices, frame_bytes, now_s)

    def sent(self, delivery: Delivery) -> None:
        """Pass on what is sent down, but for invitations; what is sent up is judged first."""
        message = delivery.message
        if delivery.direction is not Direction.DOWN or message.__class__ is Invite:
            return
        device = delivery.link
        assert isinstance(device, SimulatedDevice)
        frame_bytes = delivery.payload_bytes + delivery.framing_bytes
        self._state.frame(
            message.round_number, device.device, Direction.DOWN, message, Reason.NONE, frame_bytes,
            device.loop.now_s,
        )  # fmt: skip

    def judged(
        self, round_number: int, device: int, message: AnyMessage, reason: Reason, now_s: float
    ) -> None:
        """Pass it on, with its size."""
        self._state.frame(
            message.round_number, device, Direction.UP, message, reason, measure(message)[0], now_s
        )
