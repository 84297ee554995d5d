"""A line between a coordinator and one device, over each of the transports, for the conformance suite."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np

from coordinator.scenario.fleet_section import Sockets
from coordinator.service.admission.gate import local_gate
from coordinator.service.app import Listening, make_app
from coordinator.service.greeting import Offer
from coordinator.service.hooks import ServiceObserver
from coordinator.service.sessions import DeviceSession, Sessions, Transfer
from edge.clock import real as real_clock
from edge.clock import virtual as clock
from edge.clock.virtual import VirtualClockLoop
from edge.core.vocabulary import Direction, Reason
from edge.network.cohort import CohortLinks, Frame, LinkSpecs
from edge.network.conditions import LinkConditions
from edge.network.link import Delivery, DeviceLink, SimulatedNetwork
from edge.network.sockets.device_client import Backoff, DeviceClient
from edge.wire.codec import decode, encode, measure
from edge.wire.messages import AnyMessage
from edge.wire.session import Event, Noted, Received
from edge.wire.session_frames import Welcome


class Line(ABC):
    """What every transport gives: messages go down and up, and what has arrived is kept, in order."""

    def __init__(self) -> None:
        self.at_device: list[AnyMessage] = []
        self.at_coordinator: list[AnyMessage] = []
        self.down_bytes: list[tuple[int, int]] = []
        """Frame and payload of every message that has arrived, as the transport counts them."""
        self.up_bytes: list[tuple[int, int]] = []
        self.lost: list[AnyMessage] = []
        """Messages to the device that it will not receive."""
        self._changed = asyncio.Event()

    @abstractmethod
    def down(self, message: AnyMessage) -> None:
        """Let the coordinator send; returns at once."""

    @abstractmethod
    def up(self, message: AnyMessage) -> None:
        """Let the device send; returns at once."""

    @abstractmethod
    def vanish(self) -> None:
        """Let the device go away without a word."""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()


# -- the simulated link ----------------------------------------------------------------------------------


class _Link(DeviceLink):
    __slots__ = ("line",)

    line: SimulatedLine

    def arrived(self, delivery: Delivery) -> None:
        self.line.arrived(delivery, self.line.at_device, self.line.down_bytes)

    def delivered(self, delivery: Delivery) -> None:
        self.line.arrived(delivery, self.line.at_coordinator, self.line.up_bytes)


class SimulatedLine(Line):
    """One device on the simulated network."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        one = np.ones(1)
        specs = LinkSpecs(
            8e6 * one, 2e6 * one, 0.05 * one, 0.02 * one, 0.01 * one, 0.0 * one, 0.0 * one, np.zeros(1, bool)
        )
        ids = np.array([5])
        foreseen = [Frame(Direction.DOWN, np.ones(1, np.int64))]
        links = CohortLinks(1, ids, 1, specs, foreseen, 1, np.zeros(1, np.bool_))
        still = {"sigma_log": 0.0 * one, "rho_1s": one, "outage_fraction": 0.0 * one, "outage_mean_s": one}
        self._conditions = LinkConditions(1, ids, **still)
        self._conditions.prepare(np.arange(1), 0.0)
        self._network = SimulatedNetwork(loop, 1e9, 1e9, tls=False, congestion="cubic")
        self._link = _Link(loop, links, 0)
        self._link.line = self
        self._gone = False

    def arrived(self, delivery: Delivery, messages: list[AnyMessage], sizes: list[tuple[int, int]]) -> None:
        messages.append(delivery.message)
        sizes.append((delivery.payload_bytes + delivery.framing_bytes, delivery.payload_bytes))
        self._changed.set()

    def _send(self, direction: Direction, message: AnyMessage) -> None:
        self._network.transmit(self._link, self._conditions, direction, message, *measure(message))

    def down(self, message: AnyMessage) -> None:
        if self._gone:
            self.lost.append(message)
        else:
            self._send(Direction.DOWN, message)

    def up(self, message: AnyMessage) -> None:
        self._send(Direction.UP, message)

    def vanish(self) -> None:
        self._gone = True
        self.lost += [one.message for one in self._network.cut(self._link) if one.direction is Direction.DOWN]
        self._changed.set()


# -- WebSockets ------------------------------------------------------------------------------------------


class SocketLine(Line):
    """One device at the end of a WebSocket on loopback; listens at both of its ends."""

    def __init__(self) -> None:
        super().__init__()
        self.session: DeviceSession | None = None
        self.client: DeviceClient
        self.life: asyncio.Task[str]
        self._gone = False

    def down(self, message: AnyMessage) -> None:
        if self._gone:
            self.lost.append(message)
        else:
            assert self.session is not None
            self.session.push(message, *measure(message))

    def up(self, message: AnyMessage) -> None:
        self.client.send(encode(message))

    def vanish(self) -> None:
        self._gone = True
        self.life.cancel()

    # What the coordinator's sessions tell.

    def joined(self, session: DeviceSession) -> None:
        self.session = session
        self._changed.set()

    def pushed(self, session: DeviceSession, transfer: Transfer) -> None:
        """Ignore it: it has not arrived."""

    def acknowledged(self, session: DeviceSession, transfer: Transfer, arrival_s: float) -> None:
        self.down_bytes.append((transfer.frame_bytes, transfer.payload_bytes))
        self._changed.set()

    def received(self, session: DeviceSession, received: Received) -> None:
        message = decode(received.frame)
        self.at_coordinator.append(message)
        self.up_bytes.append((len(received.frame), measure(message)[1]))
        self._changed.set()

    def noted(self, session: DeviceSession, noted: Noted) -> None:
        """Ignore it: notes are no messages."""

    def left(self, session: DeviceSession, reason: Reason) -> None:
        self.lost[:0] = [transfer.message for transfer in session.close("it has left")]
        self._changed.set()

    # What the device's session tells.

    def welcomed(self, welcome: Welcome) -> None:
        self._changed.set()

    def session_lost(self) -> None:
        raise AssertionError("a session that is over is not begun anew here")

    def happened(self, event: Event) -> None:
        if isinstance(event, Received):
            self.at_device.append(decode(event.frame))
            self._changed.set()


@asynccontextmanager
async def socket_line() -> AsyncIterator[SocketLine]:
    line = SocketLine()

    def crashed(where: str, error: BaseException) -> None:
        raise error

    offer = Offer("a-run_01", "hash", "format: 2\n", 10, 1 << 26)
    settings = Sockets(resume_window="0.05 s")
    gate = local_gate()
    sessions = Sessions(offer, settings, gate, ServiceObserver(), line, crashed)
    app = make_app(sessions, gate)
    async with Listening(app, gate, "127.0.0.1", 0, 5.0) as service, aiohttp.ClientSession() as http:
        line.client = DeviceClient(
            http,
            service.url,
            5,
            token="",
            scenario="hash",
            listener=line,
            backoff=Backoff(0.5, 0.01, 1.0, 0.01),
            join_s=5.0,
            unacknowledged_bytes=1 << 28,
        )
        line.life = asyncio.get_running_loop().create_task(line.client.run())
        await line.until(lambda: line.session is not None and line.client.connected)
        yield line
        await sessions.close("over")
        await asyncio.gather(line.life, return_exceptions=True)


Story = Callable[[Line], Coroutine[Any, Any, None]]


def on_simulated_link(story: Story) -> None:
    """Tell a story on the simulated link."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        await story(SimulatedLine(loop))

    clock.run(main())


def on_websocket(story: Story) -> None:
    """Tell a story over a WebSocket."""

    async def main() -> None:
        async with asyncio.timeout(600), socket_line() as line:
            await story(line)

    real_clock.run(main())


TRANSPORTS = {"simulated": on_simulated_link, "websocket": on_websocket}
