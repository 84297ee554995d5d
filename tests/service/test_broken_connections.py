"""Connections break, devices go away, peers are silent: what survives, and what does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from service_helpers import HANG_S, SMALL, Silent, loaded_text, payloads, rows_of, run_real, skip

from coordinator.engine.assembly import Assembly
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.scenario.load import LoadedScenario
from coordinator.service.conducting import RealTime
from coordinator.service.hooks import ServiceObserver
from coordinator.service.local_devices import LocalDevices
from coordinator.service.local_work import DeviceWork
from edge.core.vocabulary import Direction, Reason
from edge.network.sockets.device_client import DeviceClient
from edge.wire.messages import Accept, AnyMessage, MaskedInput, Model
from edge.wire.session import Session
from edge.wire.session_frames import (
    PROTOCOL,
    Ack,
    Goodbye,
    Hello,
    Note,
    Ping,
    Pong,
    SessionFrame,
    Welcome,
    pack,
    unpack,
)

MASKED = "secure_aggregation: {mode: secagg-plus, clip: 1}\n"


class Watcher(ServiceObserver):
    """Counts who comes and goes, and lets a test do something when a message passes."""

    def __init__(self, passing: Callable[[int, Direction, AnyMessage], None] = lambda *_: None) -> None:
        self.passing = passing
        self.joins = self.resumes = self.breaks = 0
        self.leaves: list[tuple[int, Reason, str]] = []
        self.refusals: list[str] = []
        self.left = asyncio.Event()

    def on_join(self, device: int) -> None:
        self.joins += 1

    def on_resume(self, device: int) -> None:
        self.resumes += 1

    def on_disconnect(self, device: int, why: str) -> None:
        self.breaks += 1

    def on_leave(self, device: int, reason: Reason, why: str) -> None:
        self.leaves.append((device, reason, why))
        self.left.set()

    def on_refusal(self, device: int | None, remote: str, why: str) -> None:
        self.refusals.append(why)

    def on_frame(
        self, round_number: int, device: int, direction: Direction, message: AnyMessage, reason: Reason
    ) -> None:
        self.passing(device, direction, message)


class Fleet:
    """The devices of a test, which it can break off."""

    def __init__(self, without: tuple[int, ...] = ()) -> None:
        self.without = without
        self.devices: LocalDevices
        self.url = ""

    def break_off(self, device: int) -> None:
        self.devices.clients[device].break_off()

    @asynccontextmanager
    async def company(self, url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        self.url = url
        ids = [device for device in range(assembly.fleet.n) if device not in self.without]
        self.devices = LocalDevices(url, ids, shaped=False, known=(loaded, assembly))
        async with asyncio.TaskGroup() as group:
            group.create_task(self.devices.run())
            yield


def run_watched(
    loaded: LoadedScenario, target: Path, fleet: Fleet, watcher: Watcher, wait_for: int | None = None
) -> RunOutcome:
    assembly = assemble(loaded)
    wanted = assembly.fleet.n if wait_for is None else wait_for
    conductor = RealTime(wait_for=wanted, company=fleet.company, observer=watcher)
    return run_assembled(loaded, assembly, target=target, observer=Silent(), conductor=conductor)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(4))
def test_connections_that_break_anywhere_change_nothing(tmp_path: Path, seed: int) -> None:
    loaded = loaded_text(tmp_path, SMALL + MASKED)
    chance, fleet = random.Random(seed), Fleet()
    broken = 0

    def passing(device: int, direction: Direction, message: AnyMessage) -> None:
        nonlocal broken
        if chance.random() < 0.15 and fleet.devices.clients[device].connected:
            broken += 1
            asyncio.get_running_loop().call_soon(fleet.break_off, device)

    watcher = Watcher(passing)
    stormy = run_watched(loaded, tmp_path / "stormy", fleet, watcher)
    calm = run_real(loaded, tmp_path / "calm")
    assert broken > 10
    assert watcher.joins == 12
    assert watcher.resumes > 10
    assert [reason for _, reason, _ in watcher.leaves] == [Reason.SESSION_ENDED] * 12
    assert payloads(stormy) == payloads(calm)
    for row in rows_of(stormy, "rounds"):
        assert (row["outcome"], row["completed"], row["lost_bytes"]) == ("completed", 6, 0)
    with np.load(stormy.directory / "model.npz") as first, np.load(calm.directory / "model.npz") as second:
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.slow
def test_what_is_sent_again_is_told(tmp_path: Path) -> None:
    loaded = loaded_text(tmp_path, SMALL)
    fleet, struck = Fleet(), []

    def passing(device: int, direction: Direction, message: AnyMessage) -> None:
        # The model has left, and its acknowledgement has not come: it never will.
        if isinstance(message, Model) and not struck:
            struck.append(device)
            asyncio.get_running_loop().call_soon(
                asyncio.get_running_loop().call_soon, fleet.break_off, device
            )

    outcome = run_watched(loaded, tmp_path / "run", fleet, Watcher(passing))
    sent_again = [row for row in rows_of(outcome, "events") if row["retransmitted_bytes"]]
    assert {row["device"] for row in sent_again} <= set(struck)
    for row in rows_of(outcome, "device_rounds"):
        assert row["outcome"] == "completed"


def test_a_device_that_does_not_come_back_is_gone(tmp_path: Path) -> None:
    text = SMALL.replace("keep_alive: true", "keep_alive: true, sockets: {resume_window: 0.1 s}")
    text = text.replace("count: 3", "count: 1").replace("cohort: 6", "cohort: 12, quorum: 6")
    loaded = loaded_text(tmp_path, text)
    fleet, struck = Fleet(), []

    def passing(device: int, direction: Direction, message: AnyMessage) -> None:
        if isinstance(message, Accept) and not struck:
            struck.append(device)
            client = fleet.devices.clients[device]
            client._backoff = type(client._backoff)(200.0, 10.0, 1.0, 10.0)
            client._url = "http://127.0.0.1:1/v1/join"
            asyncio.get_running_loop().call_soon(fleet.break_off, device)

    watcher = Watcher(passing)
    assembly = assemble(loaded)

    @asynccontextmanager
    async def company(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        fleet.devices = LocalDevices(url, range(12), shaped=False, known=(loaded, assembly))
        task = asyncio.get_running_loop().create_task(fleet.devices.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    conductor = RealTime(wait_for=12, company=company, observer=watcher)
    outcome = run_assembled(loaded, assembly, target=tmp_path / "run", observer=Silent(), conductor=conductor)
    (row,) = rows_of(outcome, "rounds")
    assert (row["outcome"], row["completed"], row["dropped"]) == ("completed", 11, 1)
    (lost,) = [row for row in rows_of(outcome, "device_rounds") if row["outcome"] == "dropped"]
    assert (lost["device"], lost["stage"], lost["reason"]) == (struck[0], "download", "connection-lost")
    assert (struck[0], Reason.CONNECTION_LOST) in [leave[:2] for leave in watcher.leaves]


def test_a_secure_sum_goes_on_without_a_device_whose_session_is_over(tmp_path: Path) -> None:
    text = SMALL.replace("count: 3", "count: 1").replace("cohort: 6", "cohort: 12, quorum: 6") + MASKED
    loaded = loaded_text(tmp_path, text)
    fleet, struck = Fleet(), []

    def passing(device: int, direction: Direction, message: AnyMessage) -> None:
        if isinstance(message, MaskedInput) and not struck:
            struck.append(device)
            client = fleet.devices.clients[device]
            assert client._conversation is not None
            client._session._control.append(Goodbye("my battery is low"))
            client._conversation.wake()

    watcher = Watcher(passing)
    outcome = run_watched(loaded, tmp_path / "run", fleet, watcher)
    (row,) = rows_of(outcome, "rounds")
    assert row["outcome"] == "completed"
    assert (struck[0], Reason.SESSION_ENDED, "my battery is low") in watcher.leaves


# -- peers that are not ours -----------------------------------------------------------------------------


class Stranger:
    """A WebSocket that speaks session frames by hand."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, frame: SessionFrame) -> None:
        await self.socket.send_bytes(pack(frame))

    async def hear(self) -> Any:
        message = await self.socket.receive()
        return unpack(message.data) if message.type is aiohttp.WSMsgType.BINARY else message.type

    async def join(self, device: int, session: str = "", received: int = 0) -> Any:
        await self.say(Hello(PROTOCOL, device, "", session, "", received))
        answer = await self.hear()
        if isinstance(answer, Welcome):
            assert isinstance(await self.hear(), Ping)
        return answer

    async def is_heard(self) -> None:
        """Wait until the coordinator has taken all that was said: it hears nothing from then on."""
        await self.say(Ping(0))
        assert await self.hear() == Pong(0)


def with_strangers(
    tmp_path: Path, tell: Callable[[Any], Any], *, sockets: str = "", watcher: Watcher | None = None
) -> Watcher:
    """Serve a run that waits for more devices than there are, and let a test speak with the coordinator."""
    watcher = Watcher() if watcher is None else watcher
    setting = f"keep_alive: true, sockets: {{{sockets}}}" if sockets else "keep_alive: true"
    loaded = loaded_text(tmp_path, SMALL.replace("keep_alive: true", setting))

    class OverError(Exception):
        """The test has seen what it wanted."""

    @asynccontextmanager
    async def company(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:

            async def story() -> None:
                async with aiohttp.ClientSession() as http:

                    async def connect() -> Stranger:
                        return Stranger(await http.ws_connect(url + "/v1/join", compress=0))

                    await tell(connect)
                raise OverError

            group.create_task(story())
            yield

    conductor = RealTime(wait_for=12, company=company, observer=watcher)
    try:
        run_assembled(
            loaded, assemble(loaded), target=tmp_path / "run", observer=Silent(), conductor=conductor
        )
    except BaseExceptionGroup as group:
        problems = [error for error in group.exceptions if not isinstance(error, OverError)]
        if problems:
            raise problems[0] from None
    return watcher


def test_a_silent_device_is_asked_then_broken_off_then_gone(tmp_path: Path) -> None:
    async def tell(connect: Any) -> None:
        stranger = await connect()
        welcome = await stranger.join(3)
        assert isinstance(welcome, Welcome)
        await stranger.is_heard()
        skip(20.0)
        assert isinstance(await stranger.hear(), Ping)
        skip(30.0)
        assert await stranger.hear() is aiohttp.WSMsgType.CLOSE
        skip(40.0)
        await watcher.left.wait()
        again = await connect()
        assert await again.join(3, welcome.session) == Goodbye("the session is over")

    watcher = Watcher()
    sockets = "heartbeat: 20 s, idle_timeout: 50 s, resume_window: 40 s"
    with_strangers(tmp_path, tell, sockets=sockets, watcher=watcher)
    assert watcher.leaves[0][:2] == (3, Reason.CONNECTION_LOST)


def test_one_that_answers_stays(tmp_path: Path) -> None:
    async def tell(connect: Any) -> None:
        stranger = await connect()
        await stranger.join(3)
        for _ in range(5):
            await stranger.is_heard()
            skip(40.0)
            ping = await stranger.hear()
            assert isinstance(ping, Ping)
            await stranger.say(Pong(ping.number))

    watcher = with_strangers(tmp_path, tell, sockets="heartbeat: 20 s, idle_timeout: 50 s")
    assert (watcher.joins, watcher.resumes) == (1, 0)
    assert [why for _, _, why in watcher.leaves] == ["the run was stopped"]


def test_hello_in_time_or_not_at_all(tmp_path: Path) -> None:
    async def tell(connect: Any) -> None:
        stranger = await connect()
        skip(20.0)
        message = await stranger.socket.receive()
        assert message.type is aiohttp.WSMsgType.CLOSE
        # It may try again: neither a slow link nor a busy host is an intruder.
        assert (message.data, message.extra) == (aiohttp.WSCloseCode.TRY_AGAIN_LATER, "no hello in time")

    watcher = with_strangers(tmp_path, tell, sockets="join_timeout: 20 s")
    assert watcher.refusals == ["no hello in time"]


def test_a_device_has_one_session(tmp_path: Path) -> None:
    async def tell(connect: Any) -> None:
        first, second = await connect(), await connect()
        assert isinstance(await first.join(3), Welcome)
        refused = asyncio.create_task(second.join(3))
        asked = await first.hear()
        assert isinstance(asked, Ping)
        await first.say(Pong(asked.number))
        assert await refused == Goodbye("device 3 has joined already")
        stolen = await connect()
        assert await stolen.join(3, "guessed") == Goodbye("the session is over")
        await first.is_heard()

    watcher = with_strangers(tmp_path, tell)
    assert watcher.joins == 1


def test_a_half_open_connection_is_taken_over(tmp_path: Path) -> None:
    async def tell(connect: Any) -> None:
        first, second = await connect(), await connect()
        welcome = await first.join(3)
        back = asyncio.create_task(second.join(3, welcome.session))
        # It is asked whether it is still there, and does not answer.
        assert isinstance(await first.hear(), Ping)
        skip(3.0)
        again = await back
        assert (again.session, again.text == "") == (welcome.session, False)
        assert await first.hear() is aiohttp.WSMsgType.CLOSE
        await second.is_heard()

    watcher = with_strangers(tmp_path, tell)
    assert (watcher.joins, watcher.resumes) == (1, 1)


def test_a_device_that_never_got_its_welcome_begins_anew(tmp_path: Path) -> None:
    """Or was started again: to the coordinator its old connection is open, and nobody is there."""

    async def tell(connect: Any) -> None:
        first, second = await connect(), await connect()
        welcome = await first.join(3)
        again = asyncio.create_task(second.join(3))
        assert isinstance(await first.hear(), Ping)
        skip(3.0)
        anew = await again
        assert isinstance(anew, Welcome)
        assert anew.session != welcome.session
        await second.is_heard()

    watcher = with_strangers(tmp_path, tell)
    assert (watcher.joins, watcher.resumes) == (2, 0)
    assert watcher.leaves[0] == (3, Reason.CONNECTION_LOST, "the device began a new session")


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [b"", b"garbage", pack(Ping(1)), pack(Hello(99, 3, "", "", "", 0)), pack(Hello(1, 12, "", "", "", 0))],
    ids=["empty", "garbage", "no hello", "another protocol", "unknown device"],
)
def test_a_bad_greeting_is_refused(tmp_path: Path, data: bytes) -> None:
    async def tell(connect: Any) -> None:
        stranger = await connect()
        await stranger.socket.send_bytes(data)
        assert isinstance(await stranger.hear(), Goodbye)
        assert await stranger.hear() is aiohttp.WSMsgType.CLOSE

    watcher = with_strangers(tmp_path, tell)
    assert watcher.joins == 0
    assert len(watcher.refusals) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "data", [b"garbage", pack(Hello(1, 3, "", "", "", 0)), "text"], ids=["garbage", "hello twice", "text"]
)
def test_a_device_that_breaks_the_protocol_is_out(tmp_path: Path, data: bytes | str) -> None:
    async def tell(connect: Any) -> None:
        stranger = await connect()
        await stranger.join(3)
        if isinstance(data, str):
            await stranger.socket.send_str(data)
        else:
            await stranger.socket.send_bytes(data)
        assert isinstance(await stranger.hear(), Goodbye)

    watcher = with_strangers(tmp_path, tell)
    assert watcher.leaves[0][:2] == (3, Reason.GARBAGE)


def test_an_oversize_message_is_refused_by_its_header(tmp_path: Path) -> None:
    async def tell(connect: Any) -> None:
        stranger = await connect()
        await stranger.join(3)
        # A header that announces a gigabyte, and not a byte of it.
        transport = stranger.socket.get_extra_info("transport") or stranger.socket._conn.transport
        transport.write(bytes([0x82, 0xFF]) + (1 << 30).to_bytes(8, "big") + bytes(4))
        message = await stranger.socket.receive()
        assert message.type is aiohttp.WSMsgType.CLOSE
        assert message.data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG

    watcher = with_strangers(tmp_path, tell)
    assert watcher.joins == 1


# -- time ------------------------------------------------------------------------------------------------


def test_a_long_computation_is_not_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes longer than silence may last; all the while its process answers."""
    silence_s, idle_s = 40.0, 50.0
    update, connected = DeviceWork.update, Session.connected
    sessions: list[Session] = []
    loops: list[asyncio.AbstractEventLoop] = []

    def noted(session: Session, peer_received: int, now_s: float) -> Any:
        sessions.append(session)
        loops.append(asyncio.get_running_loop())
        return connected(session, peer_received, now_s)

    async def heartbeat() -> None:
        skip(silence_s)
        now_s = loops[0].time()
        while any(session._heard_s < now_s for session in sessions):
            await asyncio.sleep(0.01)

    def slow(work: DeviceWork, model: Model) -> Any:
        # What computes holds a thread, not the loop.
        for _ in range(2):
            asyncio.run_coroutine_threadsafe(heartbeat(), loops[0]).result(HANG_S)
        return update(work, model)

    monkeypatch.setattr(Session, "connected", noted)
    monkeypatch.setattr(DeviceWork, "update", slow)
    text = SMALL.replace("cohort: 6, deadline: 60 s", "cohort: 2, deadline: 1 h").replace(
        "count: 3", "count: 1"
    )
    times = f"heartbeat: 20 s, idle_timeout: {idle_s} s, computing_timeout: {idle_s} s"
    loaded = loaded_text(
        tmp_path, text.replace("keep_alive: true", f"keep_alive: true, sockets: {{{times}}}")
    )
    watcher = Watcher()
    outcome = run_watched(loaded, tmp_path / "run", Fleet(), watcher)
    assert (watcher.joins, watcher.breaks) == (12, 0)
    for row in rows_of(outcome, "device_rounds"):
        assert row["outcome"] == "completed"
        assert row["compute_s"] >= 2 * silence_s > idle_s


def test_a_silent_device_that_computes_is_given_more_time(tmp_path: Path) -> None:
    async def tell(connect: Any) -> None:
        idle, computing = await connect(), await connect()
        await idle.join(3)
        await computing.join(4)
        await computing.say(Note(1, 2, -1.0))
        assert isinstance(await computing.hear(), Ack)
        for stranger in (idle, computing):
            await stranger.is_heard()
        skip(50.0)
        assert await idle.hear() is aiohttp.WSMsgType.CLOSE
        assert isinstance(await computing.hear(), Ping)
        skip(250.0)
        assert await computing.hear() is aiohttp.WSMsgType.CLOSE

    with_strangers(tmp_path, tell, sockets="heartbeat: 20 s, idle_timeout: 50 s, computing_timeout: 300 s")


def test_a_connection_has_a_longest_life_and_the_session_goes_on(tmp_path: Path) -> None:
    async def tell(connect: Any) -> None:
        first = await connect()
        welcome = await first.join(3)
        await first.is_heard()
        skip(20.0)
        assert await first.hear() is aiohttp.WSMsgType.CLOSE
        second = await connect()
        again = await second.join(3, welcome.session)
        assert isinstance(again, Welcome)
        assert again.session == welcome.session

    watcher = with_strangers(tmp_path, tell, sockets="heartbeat: 30 s, total_timeout: 20 s")
    assert (watcher.joins, watcher.resumes) == (1, 1)


def test_a_late_hello_of_one_device_does_not_end_a_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet = DeviceClient._greet
    late: list[int] = []

    async def slowly(client: DeviceClient, socket: aiohttp.ClientWebSocketResponse) -> None:
        if client.device == 3 and not late:
            late.append(client.device)
            # The others have been welcomed: their own wait for that is as long.
            while sum(one.connected for one in fleet.devices.clients.values()) < 11:
                await asyncio.sleep(0.01)
            skip(10.0)
            while not watcher.refusals:
                await asyncio.sleep(0.01)
        await greet(client, socket)

    monkeypatch.setattr(DeviceClient, "_greet", slowly)
    watcher, fleet = Watcher(), Fleet()
    outcome = run_watched(loaded_text(tmp_path, SMALL), tmp_path / "run", fleet, watcher)
    assert watcher.refusals == ["no hello in time"]
    assert watcher.joins == 12
    assert [row["completed"] for row in rows_of(outcome, "rounds")] == [6, 6, 6]
