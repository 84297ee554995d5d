"""How a device that is not let in goes on: what is final ends it, all else it tries again, with pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from door_helpers import play, serving
from service_helpers import HANG_S

from coordinator.service.identities import ROSTER, fetch_roster
from edge.crypto.entropy import SystemEntropy
from edge.crypto.keys import Identity
from edge.network.sockets.device_client import Backoff, DeviceClient, JoinError
from edge.secagg.roster import Enrolled, Roster, RosterError
from edge.wire.session import Event
from edge.wire.session_frames import Goodbye, Hello, Welcome, pack, unpack

WELCOME = Welcome("a session", 0, 15.0, 60.0, 30.0, 1 << 20, "0" * 64, "", "a-run_01")
Answer = Callable[[web.WebSocketResponse, web.Request], Awaitable[None]]


async def later(socket: web.WebSocketResponse, request: web.Request) -> None:
    await socket.close(code=aiohttp.WSCloseCode.TRY_AGAIN_LATER, message=b"there is no time")


async def reset(socket: web.WebSocketResponse, request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def closed(socket: web.WebSocketResponse, request: web.Request) -> None:
    await socket.close()


async def over(socket: web.WebSocketResponse, request: web.Request) -> None:
    await socket.close(code=aiohttp.WSCloseCode.GOING_AWAY, message=b"the run is over")


async def welcome_then_reset(socket: web.WebSocketResponse, request: web.Request) -> None:
    await socket.send_bytes(pack(WELCOME))
    await reset(socket, request)


async def welcome_then_goodbye(socket: web.WebSocketResponse, request: web.Request) -> None:
    await socket.send_bytes(pack(WELCOME))
    await socket.send_bytes(pack(Goodbye("enough")))


def refusal(reason: str) -> Answer:
    async def answer(socket: web.WebSocketResponse, request: web.Request) -> None:
        await socket.send_bytes(pack(Goodbye(reason)))

    return answer


class Life:
    """Listens to a client."""

    def __init__(self) -> None:
        self.lost = 0

    def welcomed(self, welcome: Welcome) -> None:
        pass

    def session_lost(self) -> None:
        self.lost += 1

    def happened(self, event: Event) -> None:
        pass


class Coordinator:
    """Gives one answer after the other, the last one for ever, and keeps the hellos."""

    def __init__(self, *answers: Answer | int) -> None:
        self._answers = list(answers)
        self.hellos: list[Hello] = []
        self.times_s: list[float] = []

    async def join(self, request: web.Request) -> web.StreamResponse:
        self.times_s.append(asyncio.get_running_loop().time())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, int):
            return web.Response(status=answer)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        hello = unpack((await socket.receive()).data)
        assert isinstance(hello, Hello)
        self.hellos.append(hello)
        await answer(socket, request)
        return socket


@asynccontextmanager
async def listening(routes: dict[str, Any]) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """Serve something that is no coordinator of ours."""
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with aiohttp.ClientSession() as http:
            yield http, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def lived(coordinator: Coordinator, backoff: Backoff) -> tuple[str, Life]:
    """Let a device meet a coordinator; return the last words that it was told, and what became of it."""
    life, words = Life(), []

    async def story() -> None:
        async with listening({"/v1/join": coordinator.join}) as (http, url):
            client = DeviceClient(
                http, url, 3, token="", scenario="", listener=life, backoff=backoff, join_s=HANG_S,
                unacknowledged_bytes=1 << 20,
            )  # fmt: skip
            words.append(await client.run())

    play(story())
    return words[0], life


PATIENT = Backoff(HANG_S, 0.01, 1.0, 0.01)


TROUBLES = {"later": later, "reset": reset, "closed": closed, "502": 502, "503": 503}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_what_is_not_final_is_tried_again(trouble: Answer | int) -> None:
    coordinator = Coordinator(trouble, trouble, trouble, welcome_then_goodbye)
    assert lived(coordinator, PATIENT)[0] == "enough"
    assert len(coordinator.times_s) == 4


@pytest.mark.parametrize("trouble", [later, reset, closed], ids=["later", "reset", "closed"])
def test_a_session_outlives_it(trouble: Answer) -> None:
    coordinator = Coordinator(welcome_then_reset, trouble, trouble, welcome_then_goodbye)
    words, life = lived(coordinator, PATIENT)
    assert (words, life.lost) == ("enough", 0)
    assert [hello.session for hello in coordinator.hellos] == ["", *["a session"] * 3]


def test_pauses_grow_and_patience_has_an_end() -> None:
    coordinator = Coordinator(later)
    with pytest.raises(JoinError, match=r"device 3: .* lets nobody in for now: there is no time"):
        lived(coordinator, Backoff(0.5, 0.04, 2.0, 0.16))
    pauses_s = [
        after - before for before, after in zip(coordinator.times_s, coordinator.times_s[1:], strict=False)
    ]
    for pause_s, least_s in zip(pauses_s, [0.04, 0.08, 0.16, 0.16], strict=False):
        assert pause_s >= least_s
    # Less often on a slow host, never more often.
    assert 1 <= len(pauses_s) <= 4


@pytest.mark.parametrize("before", [(), (later,), (reset, later)])
def test_a_refusal_is_final_at_once(before: tuple[Answer, ...]) -> None:
    coordinator = Coordinator(*before, refusal("the token is not valid"))
    with pytest.raises(JoinError, match="device 3 is not let in: the token is not valid"):
        lived(coordinator, PATIENT)
    assert len(coordinator.hellos) == len(before) + 1


@pytest.mark.parametrize("before", [(), (later,), (welcome_then_reset,)], ids=["first", "late", "back"])
def test_who_comes_when_the_run_is_over_ends_as_the_others_do(before: tuple[Answer, ...]) -> None:
    assert lived(Coordinator(*before, over), PATIENT)[0] == "the run is over"


def test_a_service_that_closes_says_so_to_who_comes_late() -> None:
    async def story() -> None:
        async with serving() as service:
            await service.sessions.close("the run is over")
            client = DeviceClient(
                service.http, service.url, 3, token="", scenario="", listener=Life(), backoff=PATIENT,
                join_s=HANG_S, unacknowledged_bytes=1 << 20,
            )  # fmt: skip
            assert await client.run() == "the run is over"

    play(story())


class TestRoster:
    """It is fetched before the first hello, and no more is final there."""

    def fetched(self, *answers: int | bytes | None) -> Roster:
        """Fetch a roster; a status, a body, or a body that is cut off (None) are what comes."""
        held = [Identity.generate(SystemEntropy()) for _ in range(4)]
        roster = Roster.of(identity.public for identity in held)
        coming: Iterator[int | bytes | None] = iter([*answers, roster.encoded])
        found = []

        async def answer(request: web.Request) -> web.StreamResponse:
            what = next(coming)
            if isinstance(what, int):
                return web.Response(status=what)
            if what is not None:
                return web.Response(body=what)
            cut = web.StreamResponse(headers={"Content-Length": str(len(roster.encoded))})
            await cut.prepare(request)
            await cut.write(roster.encoded[:40])
            assert request.transport is not None
            request.transport.close()
            return cut

        async def story() -> None:
            async with listening({ROSTER: answer}) as (http, url):
                enrolled = Enrolled(held.__getitem__, roster.hash)
                found.append(await fetch_roster(http, url, 3, "a token", enrolled, PATIENT))

        play(story())
        assert found == [roster]
        return roster

    @pytest.mark.parametrize("trouble", [500, 502, 503, 504, None])
    def test_trouble_is_tried_again(self, trouble: int | None) -> None:
        self.fetched(trouble, trouble)

    @pytest.mark.parametrize("refused", [403, 404])
    def test_a_refusal_is_final(self, refused: int) -> None:
        with pytest.raises(RosterError):
            self.fetched(refused)
