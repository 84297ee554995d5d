"""The dashboard's routes over real sockets: late and slow readers, metrics, and who is turned away."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from dashboard_helpers import merged
from prometheus_client.parser import text_string_to_metric_families
from service_helpers import skip

from coordinator.service.admission.gate import Gate, local_gate
from coordinator.service.admission.limits import ArrivalLimits
from coordinator.service.app import Listening, guarded
from coordinator.service.dashboard import routes
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.routes import Dashboard, dashboard_page
from coordinator.service.dashboard.watching import Watching
from coordinator.service.metrics import exposition
from edge.clock import real as real_clock
from edge.core.vocabulary import Direction, Reason
from edge.wire.messages import Accept

LIMIT_S = 600
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "dashboard.md"


@contextlib.asynccontextmanager
async def serving(
    state: LiveState, *, gate: Gate | None = None, patience_s: float = 60.0, **settings: Any
) -> AsyncIterator[tuple[str, Dashboard]]:
    gate = local_gate() if gate is None else gate
    app = web.Application(middlewares=[guarded(gate)])
    dashboard = Dashboard(state, **settings)
    dashboard.add_to(app)
    async with asyncio.timeout(LIMIT_S), Listening(app, gate, "127.0.0.1", 0, patience_s) as listening:
        yield listening.url, dashboard


async def next_event(answer: aiohttp.ClientResponse) -> tuple[str, Any]:
    name = ""
    while True:
        line = (await answer.content.readline()).decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
            return name, json.loads(data) if data else None


def told(
    story: Callable[[str, Dashboard, aiohttp.ClientSession], Awaitable[None]], state: LiveState, **how: Any
) -> None:
    async def main() -> None:
        async with serving(state, **how) as (url, dashboard), aiohttp.ClientSession() as session:
            await story(url, dashboard, session)

    asyncio.run(main())


def test_a_late_reader_gets_the_present_state_and_then_what_changes() -> None:
    state = LiveState()
    state.refused(None, "192.0.2.7", "too early")

    async def story(url: str, _: Dashboard, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/dashboard/events") as answer:
            assert answer.content_type == "text/event-stream"
            name, known = await next_event(answer)
            assert (name, known) == ("state", state.changes(-1))
            state.refused(None, "192.0.2.8", "too late")
            state.invited(1, [4, 5], 70, 0.25)
            while known["version"] < state.version:
                name, found = await next_event(answer)
                assert name == "change"
                assert "thresholds" not in found
                known = merged(known, found)
            assert known == state.changes(-1)
            assert [one["reason"] for one in known["log"]] == ["too early", "too late"]

    told(story, state)


def test_many_changes_come_together() -> None:
    state = LiveState()

    async def story(url: str, _: Dashboard, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/dashboard/events") as answer:
            await next_event(answer)
            state.invited(1, [7], 10, 0.0)
            for step in range(5000):
                state.frame(1, 7, Direction.UP, Accept("run", 1, 7), Reason.NONE, 10, step / 1000)
            events = 0
            found: dict[str, Any] = {"version": 0}
            while found["version"] < state.version:
                _, found = await next_event(answer)
                events += 1
            assert events <= 2
            assert found["now"]["frames"] == {"down": 1, "up": 5000}

    told(story, state)


def test_the_end_is_told_and_ends_the_stream() -> None:
    state = LiveState()

    async def story(url: str, dashboard: Dashboard, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/dashboard/events") as answer:
            await next_event(answer)
            state.on_end("interrupted")
            name, found = await next_event(answer)
            assert (name, found["run"]["status"]) == ("change", "interrupted")
            assert await next_event(answer) == ("over", None)
            assert await answer.content.read() == b"\n"
        async with session.get(f"{url}/dashboard/events") as answer:
            assert [(await next_event(answer))[0] for _ in range(2)] == ["state", "over"]
        assert dashboard.readers == 0

    told(story, state)


def test_a_service_that_closes_ends_its_streams_in_time() -> None:
    state = LiveState()

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            async with serving(state) as (url, _):
                answer = await session.get(f"{url}/dashboard/events")
                await next_event(answer)
            # One that did not end in time would be cut off without these words.
            assert (await next_event(answer))[1]["run"]["status"] == "ending"
            assert (await next_event(answer))[0] == "over"
            answer.close()

    asyncio.run(main())


def taking_nothing(url: str, path: str) -> socket.socket:
    """Ask for something, and read none of it."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
    reader.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return reader


def fill(state: LiveState) -> None:
    """Change as much of a state as one look takes."""
    for device in range(200):
        state.refused(device, "192.0.2.7", "x" * 200)


@pytest.mark.slow
def test_a_reader_that_takes_nothing_is_dropped_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "REFRESH_S", 0.005)
    state = LiveState()

    async def story(url: str, dashboard: Dashboard, session: aiohttp.ClientSession) -> None:
        slow = taking_nothing(url, "/dashboard/events")
        try:
            async with session.get(f"{url}/dashboard/events") as answer:
                _, known = await next_event(answer)
                while dashboard.readers < 2:
                    await asyncio.sleep(0.01)
                while dashboard.readers == 2:
                    fill(state)
                    _, found = await next_event(answer)  # the quick one is told all the while
                    known = merged(known, found)
                assert dashboard.readers == 1
                while known["version"] < state.version:
                    known = merged(known, (await next_event(answer))[1])
                assert known == state.changes(-1)
        finally:
            slow.close()

    told(story, state, stall_s=3.0)


@pytest.mark.parametrize("over", [False, True])
def test_a_connection_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
    monkeypatch.setattr(routes, "REFRESH_S", 0.005)
    # More than the system keeps for a connection.
    page = dashboard_page()._replace(html="x" * 30_000_000)
    monkeypatch.setattr(routes, "dashboard_page", lambda: page)
    gate = local_gate()
    state = LiveState()

    async def story() -> None:
        async with serving(state, gate=gate, stall_s=30.0) as (url, dashboard):
            reader = taking_nothing(url, "/dashboard/events" if over else "/dashboard")
            while not gate.open:
                await asyncio.sleep(0.01)
            if over:
                while not dashboard.readers:
                    await asyncio.sleep(0.01)
                state.on_end("finished")
            while gate.open:
                skip(1.0)
                await asyncio.sleep(0.01)
            assert dashboard.readers == 0
            reader.close()

    real_clock.run(story())


def test_a_reader_that_goes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "REFRESH_S", 0.01)
    monkeypatch.setattr(routes, "HEARTBEAT_S", 0.05)

    async def story(url: str, dashboard: Dashboard, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/dashboard/events") as answer:
            await next_event(answer)
            assert await answer.content.readline() == b"\n"
            assert await answer.content.readline() == b":\n"
            assert dashboard.readers == 1
        while dashboard.readers:
            await asyncio.sleep(0.01)

    told(story, LiveState())


def test_there_is_a_bound_on_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_READERS", 1)

    async def story(url: str, dashboard: Dashboard, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/dashboard/events") as first:
            await next_event(first)
            async with session.get(f"{url}/dashboard/events") as second:
                assert (second.status, second.headers["Retry-After"]) == (503, "10")
        assert dashboard.readers <= 1

    told(story, LiveState())


def test_the_page_may_do_nothing_but_ask_its_own_server() -> None:
    async def story(url: str, _: Dashboard, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/?token=abc") as answer:
            assert str(answer.url) == f"{url}/dashboard?token=abc"
            assert await answer.text() == dashboard_page().html
            policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert re.findall(r"connect-src [^;]*", policy) == ["connect-src 'self'"]
        html = dashboard_page().html
        assert "/* style */" not in html
        assert "/* script */" not in html
        assert re.findall(r"(?:src|href)=\"(?!data:|#)[^\"]*\"", html) == []
        assert [
            one for one in re.findall(r"https?://[^\"\s]*", html) if "www.w3.org/2000/svg" not in one
        ] == []

    told(story, LiveState())


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (one.name, *(part for pair in sorted(one.labels.items()) for part in pair)): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_metrics_say_what_the_state_says() -> None:
    state = LiveState()
    state.sessions.used = True
    state.invited(3, [1, 2], 100, 1.0)
    for device in range(50):
        state.joined(device, again=False)
        state.refused(device, "192.0.2.7", f"device {device} has joined already")
    state.disconnected(4, "reset")
    state.left(5, Reason.GARBAGE, "")
    state.handled(0.002)
    state.handled(5.0)

    async def story(url: str, _: Dashboard, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/metrics") as answer:
            assert answer.content_type == "text/plain"
            found = samples(await answer.text())
        assert found["recfleet_devices", "state", "invited"] == 2
        assert found["recfleet_sessions", "state", "connected"] == 48
        assert found["recfleet_sessions", "state", "away"] == 1
        assert found["recfleet_refused_total", "reason", "device N has joined already"] == 50
        assert found["recfleet_sessions_ended_total", "reason", "garbage"] == 1
        assert found["recfleet_handling_seconds_bucket", "le", "0.001"] == 0
        assert found["recfleet_handling_seconds_bucket", "le", "0.0025"] == 1
        assert found["recfleet_handling_seconds_bucket", "le", "+Inf"] == 2
        assert found["recfleet_handling_seconds_count",] == 2
        assert found["recfleet_handling_seconds_sum",] == pytest.approx(5.002)
        assert found["recfleet_process_resident_memory_bytes",] > 1e7
        assert found["recfleet_bytes_total", "direction", "up", "kind", "payload"] == 0
        assert not [key for key in found if "device" in key[1::2]]
        assert len(found) < 120

    told(story, state)


def test_every_metric_is_described() -> None:
    state = LiveState()
    state.sessions.used = True
    text = exposition(state)[0].decode()
    described = set(re.findall(r"`(recfleet_[a-z_]+)`", DOCUMENT.read_text(encoding="utf-8")))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert described == set(kinds)
    assert {kinds[name] for name in kinds if name.endswith("_total")} == {"counter"}


def test_metrics_of_a_simulation_have_no_sessions() -> None:
    async def story(url: str, _: Dashboard, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/metrics") as answer:
            text = await answer.text()
        assert "recfleet_rounds_total" in text
        assert "session" not in text

    told(story, LiveState())


def test_metrics_without_their_package_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    async def story(url: str, _: Dashboard, session: aiohttp.ClientSession) -> None:
        monkeypatch.setattr(builtins, "__import__", without)
        async with session.get(f"{url}/metrics") as answer:
            assert answer.status == 501
            assert "pip install 'recfleet[service]'" in await answer.text()
        async with session.get(f"{url}/dashboard") as answer:
            assert answer.status == 200

    told(story, LiveState())


def test_who_is_turned_away_sees_nothing() -> None:
    class Nobody(Gate):
        def turned_away(self, request: web.Request) -> web.StreamResponse | None:
            return web.Response(status=401)

    async def main() -> list[int]:
        nobody = Nobody(limits=ArrivalLimits())
        app = web.Application(middlewares=[guarded(nobody)])
        Dashboard(LiveState()).add_to(app)
        found = []
        async with (
            Listening(app, nobody, "127.0.0.1", 0, 5.0) as listening,
            aiohttp.ClientSession() as session,
        ):
            for path in ("/", "/dashboard", "/dashboard/events", "/metrics"):
                async with session.get(listening.url + path) as answer:
                    found.append(answer.status)
        return found

    assert asyncio.run(main()) == [401] * 4


def test_events_come_with_the_cookie_that_the_token_was_changed_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = "viewers-" * 5
    gate = Gate(limits=ArrivalLimits(), view_token=token)
    caplog.set_level("DEBUG")

    async def main() -> None:
        # A browser keeps cookies of addresses, too.
        jar = aiohttp.CookieJar(unsafe=True)
        async with (
            serving(LiveState(), gate=gate) as (url, _),
            aiohttp.ClientSession(cookie_jar=jar) as session,
        ):
            async with session.get(f"{url}/dashboard/events") as answer:
                assert answer.status == 401
            async with session.get(f"{url}/?token={token}") as answer:
                assert str(answer.url) == f"{url}/dashboard"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                assert token not in await answer.text()
            async with session.get(f"{url}/dashboard/events") as answer:
                assert (await next_event(answer))[0] == "state"
                assert token not in str(answer.headers)

    asyncio.run(main())
    assert token not in caplog.text


class TestBesideARun:
    def test_it_serves_from_a_thread_of_its_own_and_ends_with_the_context(self) -> None:
        state = LiveState()
        with Watching(state) as watching:
            assert watching.url.startswith("http://127.0.0.1:")
            assert "dashboard" in {thread.name for thread in threading.enumerate()}
            with urllib.request.urlopen(watching.url, timeout=LIMIT_S) as answer:
                assert answer.read().decode() == dashboard_page().html
        assert "dashboard" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(watching.url, timeout=LIMIT_S)

    def test_it_answers_under_no_other_name(self) -> None:
        with Watching(LiveState()) as watching:
            request = urllib.request.Request(watching.url, headers={"Host": "rebound.example"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(request, timeout=LIMIT_S)
            for name in ("localhost", "127.0.0.1:80", "[::1]:80"):
                request = urllib.request.Request(watching.url, headers={"Host": name})
                with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                    assert answer.status == 200

    def test_a_port_that_is_taken_is_an_error_at_once(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(OSError, match="in use"), Watching(LiveState(), port):
                pass
        assert "dashboard" not in {thread.name for thread in threading.enumerate()}
