"""The dashboard in headless Chromium, beside simulated and real runs: no error, the tables' figures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from browser import NAMES, Browser, Page, installed
from dashboard_helpers import STORMY, figures_of_tables, watched
from service_helpers import SMALL

from coordinator.service.admission.gate import Gate, local_gate
from coordinator.service.admission.limits import ArrivalLimits
from coordinator.service.app import Listening, guarded
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.routes import EVENTS, Dashboard
from coordinator.service.dashboard.watching import Watching
from edge.core.vocabulary import Direction, Reason
from edge.wire.messages import Accept

PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason=f"needs a browser, one of {', '.join(NAMES)}"),
]
LIMIT_S = 600
ROOT = Path(__file__).resolve().parents[2]

FIGURES = """
Object.fromEntries([...document.querySelectorAll("[data-figure]")]
    .filter((element) => element.dataset.value !== "")
    .map((element) => [element.dataset.figure, Number(element.dataset.value)]))
"""
CUT = """
[...document.querySelectorAll("h1, h2, figcaption, .tiles dt, .tiles dd, .facts div, .pill, "
    + ".bar-name, .bar-total, .area, .y-ticks span:not(.strut), .x-ticks span")]
    .filter((element) => {
        const box = element.getBoundingClientRect();
        const wider = element.clientWidth > 0 && element.scrollWidth > element.clientWidth + 1;
        return box.width > 0 && (box.left < -0.5 || box.right > innerWidth + 0.5 || wider);
    }).map((element) => element.className + ": " + element.textContent)
"""
OVER = "document.body?.dataset.over === 'true'"
STATES = """
Object.fromEntries([...document.querySelectorAll("[data-figure^='state.']")]
    .map((element) => [element.dataset.figure, Number(element.dataset.value)]))
"""
VERDICTS = "[...document.querySelectorAll('#threshold-rows tr')].map((row) => row.children[1].textContent)"
PROMISES = """
thresholds:
  round.completed: ["rate == 100%"]
  round.duration: ["max < 1 us"]
"""
"""As long as it goes on, what is shown has 'so far' behind it."""
UNNAMED = """
[...document.querySelectorAll("section, [role=region], [role=img], progress")]
    .filter((element) => {
        const title = document.getElementById(element.getAttribute("aria-labelledby"));
        return !element.ariaLabel && !title?.textContent;
    }).map((element) => element.outerHTML.slice(0, 80))
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path_factory.mktemp("profile")) as running:
        yield running


def asked_elsewhere(page: Page, url: str) -> list[str]:
    """Return the addresses that the page asked for and that are not its server's."""
    return [
        one
        for one in page.requests
        if not one.startswith("data:") and urlsplit(one).netloc != urlsplit(url).netloc
    ]


@contextlib.contextmanager
def command(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run recfleet, and give its process and the address of its dashboard."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator.cli", *arguments],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("dashboard: "):
                break
        assert "dashboard: http://127.0.0.1:" in said, said
        yield process, line.removeprefix("dashboard: ").strip()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        assert process.stdout is not None
        process.stdout.close()


def seen_at_the_end(browser: Browser, url: str, *expressions: str, **settings: Any) -> tuple[Page, list[Any]]:
    async def story() -> tuple[Page, list[Any]]:
        async with browser.page() as page:
            await page.open(url, **settings)
            await page.until(OVER)
            return page, [await page.evaluate(expression) for expression in expressions]

    return asyncio.run(story())


def of(figures: dict[str, float], expected: dict[str, float]) -> dict[str, float | None]:
    return {name: figures.get(name) for name in expected}


def test_a_simulated_run_beside_which_the_page_stays(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "stormy.yaml").write_text(STORMY)
    with command(tmp_path, "run", "stormy.yaml", "--watch", "--quiet", "--out", "out") as (process, url):
        page, (figures, title, heading, verdicts, status, images) = seen_at_the_end(
            browser, url, FIGURES, "document.title", "document.querySelector('h1').textContent",
            VERDICTS,
            "document.querySelector('#status-word').textContent", "document.querySelectorAll('h1 *').length",
        )  # fmt: skip
        # A late reader sees the same.
        _, (late,) = seen_at_the_end(browser, url, FIGURES)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 3  # a threshold was missed
    assert page.problems == []
    assert asked_elsewhere(page, url) == []
    expected = figures_of_tables(tmp_path / "out")
    assert len(expected) > 25
    assert of(figures, expected) == pytest.approx(expected, rel=1e-12)
    assert late == figures
    assert (heading, images) == ('<b>stormy</b> & "quoted"', 0)
    assert title.startswith(heading)
    assert status == "finished"
    assert verdicts == ["✓ held", "✗ missed", *["✓ held"] * 4]


def test_a_run_over_real_sockets(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    arguments = ("run", "small.yaml", "--clock", "real", "--watch", "--quiet", "--out", "out")
    with command(tmp_path, *arguments) as (process, url):
        page, (figures, clock) = seen_at_the_end(
            browser, url, FIGURES, "document.querySelector('#facts').textContent"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert page.problems == []
    assert asked_elsewhere(page, url) == []
    expected = figures_of_tables(tmp_path / "out")
    assert of(figures, expected) == pytest.approx(expected, rel=1e-12)
    assert expected["up.payload"] > 0
    assert "every time is measured" in clock
    assert (figures["sessions.begun"], figures["sessions.refused"]) == (12, 0)
    assert figures["sessions.handled"] >= 3 * 6 * 2


def test_a_service_is_watched_until_it_closes(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL + PROMISES)
    with command(
        tmp_path, "serve", "small.yaml", "--port", "0", "--quiet", "--wait-for", "12", "--out", "out"
    ) as (
        service,
        url,
    ):
        base = url.removesuffix("/dashboard")

        async def story() -> tuple[Page, list[Any]]:
            async with browser.page() as page:
                await page.open(url)
                await page.until("document.querySelector('#status-word').dataset.status === 'running'")
                devices = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "coordinator.cli", "device", base, "--count", "12",
                    cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                await page.until(OVER)
                assert await devices.wait() == 0
                shown = "document.querySelector('#status').textContent"
                return page, [await page.evaluate(one) for one in (FIGURES, shown, VERDICTS)]

        page, (figures, status, verdicts) = asyncio.run(story())
        assert service.wait(LIMIT_S) == 3  # a threshold was missed
    assert page.problems == []
    expected = figures_of_tables(tmp_path / "out")
    assert of(figures, expected) == pytest.approx(expected, rel=1e-12)
    assert status == ("finished all 3 rounds are over; the service has closed, and this page stays as it is")
    assert verdicts == ["✓ held", "✗ missed"]


def test_a_service_that_is_stopped_says_so_at_last(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    with command(tmp_path, "serve", "small.yaml", "--port", "0", "--quiet") as (service, url):

        async def story() -> tuple[Page, str]:
            async with browser.page() as page:
                await page.open(url)
                await page.until("document.querySelector('#status-word').dataset.status === 'running'")
                service.send_signal(signal.SIGTERM)
                await page.until(OVER)
                return page, await page.evaluate("document.querySelector('#status').textContent")

        page, status = asyncio.run(story())
        assert service.wait(LIMIT_S) == 4
    assert page.problems == []
    assert status.startswith("interrupted it ended early: stopped between two rounds; the service has closed")


@pytest.mark.parametrize("followed", [False, True], ids=["typed in", "a link of another site"])
def test_the_viewers_token_opens_the_page_and_is_seen_no_more(browser: Browser, followed: bool) -> None:
    token = "viewers-" * 5
    state = LiveState()
    asked: list[tuple[str, str]] = []

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked.append((request.path_qs, request.headers.get("Referer", "")))
        return await handler(request)

    async def elsewhere(request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><link rel=icon href=data:,>", content_type="text/html")

    async def story() -> tuple[Page, list[Any]]:
        gate = Gate(limits=ArrivalLimits(), view_token=token)
        app = web.Application(middlewares=[noted, guarded(gate)])
        Dashboard(state).add_to(app)
        other = web.Application()
        other.router.add_get("/", elsewhere)
        async with (
            Listening(app, gate, "127.0.0.1", 0, 5.0) as listening,
            Listening(other, local_gate(), "127.0.0.1", 0, 5.0) as far,
            browser.page() as page,
        ):
            address = f"{listening.url}/dashboard?token={token}"
            if followed:
                # Another name is another site.
                await page.open(far.url.replace("127.0.0.1", "localhost"))
                await page.evaluate(f"location.href = '{address}'")
            else:
                await page.open(address)
            await page.until("document.body?.dataset.version === '0'")
            state.refused(None, "192.0.2.7", "no token")
            await page.until("document.querySelectorAll('#log-rows tr').length === 1")
            return page, [
                await page.evaluate(one)
                for one in ("location.search", "document.cookie", "document.referrer")
            ]

    page, seen = asyncio.run(story())
    assert page.problems == []
    assert seen == ["", "", ""]
    assert [path for path, _ in asked] == [f"/dashboard?token={token}", "/dashboard", "/dashboard/events"]
    assert not any(token in referer for _, referer in asked)


@pytest.fixture(scope="module")
def stormy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of a dashboard with something in every section."""
    state = LiveState()
    watched(tmp_path_factory.mktemp("stormy"), STORMY, state)
    state.sessions.used = True
    state.refused(None, "192.0.2.7", "<img src=x onerror=alert(1)> " + "without-a-break" * 12)
    state.joined(3, again=False)
    with Watching(state) as watching:
        yield watching.url


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_at_any_width(
    browser: Browser, stormy: str, width: int, dark: bool, tmp_path: Path
) -> None:
    page, (wide, cut, background, images, unnamed) = seen_at_the_end(
        browser, stormy, "document.documentElement.scrollWidth", CUT,
        "getComputedStyle(document.body).backgroundColor", "document.images.length", UNNAMED,
        width=width, dark=dark,
    )  # fmt: skip
    assert page.problems == []
    assert wide <= width
    assert cut == []
    assert (images, unnamed) == (0, [])
    red = int(background.split("(")[1].split(",")[0])
    assert red < 60 if dark else red > 200


def test_thresholds_and_bytes_are_seen_whole_on_a_phone(browser: Browser, stormy: str) -> None:
    beside = """
        [...document.querySelectorAll(".promises, .bytes")]
            .filter((element) => element.scrollWidth > element.clientWidth + 1).length
    """
    lines = """
        [...document.querySelectorAll("#threshold-rows td")]
            .filter((element) => element.getClientRects().length !== 1 || element.clientHeight > 30)
            .map((element) => element.textContent)
    """
    rows = "document.querySelectorAll('#threshold-rows tr[role=row] td[role=cell]').length"
    _, seen = seen_at_the_end(browser, stormy, beside, lines, rows, width=390)
    assert seen == [0, [], 6 * 4]


def test_before_a_round_is_over_no_chart_is_empty(browser: Browser) -> None:
    async def story(url: str) -> list[str]:
        async with browser.page() as page:
            await page.open(url)
            await page.until("document.body?.dataset.version === '0'")
            found: list[str] = await page.evaluate(
                "['latency', 'bytes'].map((name) => document.getElementById(name).textContent)"
            )
            return found

    with Watching(LiveState()) as watching:
        shown = asyncio.run(story(watching.url))
    assert shown == ["Latency of reportsNo round is over yet.", "Bytes sentNo round is over yet."]


def test_the_page_follows_a_run_as_it_goes_on(browser: Browser) -> None:
    state = LiveState()

    async def story(url: str) -> tuple[Page, list[Any]]:
        seen = []
        async with browser.page() as page:
            await page.open(url)
            await page.until("document.body?.dataset.version === '0'")
            state.invited(1, [1, 2, 3], 100, 0.5)
            await page.until("document.querySelector('[data-figure=\"now.round\"]').dataset.value === '1'")
            seen.append(await page.evaluate(STATES))
            state.frame(1, 2, Direction.UP, Accept("run", 1, 2), Reason.NONE, 10, 0.7)
            await page.until(
                "document.querySelector('[data-figure=\"now.up_bytes\"]').dataset.value === '10'"
            )
            seen.append(await page.evaluate(STATES))
            state.refused(9, "192.0.2.7", "no such token")
            await page.until("document.querySelectorAll('#log-rows tr').length === 1")
            seen.append(await page.evaluate("document.querySelector('#log-rows').textContent"))
            return page, seen

    with Watching(state) as watching:
        page, (before, after, log) = asyncio.run(story(watching.url))
    assert page.problems == []
    assert (before["state.invited"], before["state.downloading or computing"]) == (3, 0)
    assert (after["state.invited"], after["state.downloading or computing"]) == (2, 1)
    assert log == "–9refused, from 192.0.2.7no such token"


def test_a_lost_connection_is_said_and_found_again(browser: Browser) -> None:
    state = LiveState()
    readers: list[asyncio.BaseTransport] = []

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == EVENTS and request.transport is not None:
            readers.append(request.transport)
        return await handler(request)

    async def story() -> tuple[str, str]:
        app = web.Application(middlewares=[noted])
        Dashboard(state).add_to(app)
        async with Listening(app, local_gate(), "127.0.0.1", 0, 5.0) as listening, browser.page() as page:
            await page.open(f"{listening.url}/dashboard")
            await page.until("document.body?.dataset.version === '0'")
            assert await page.evaluate("document.getElementById('lost').hidden")
            reader = readers.pop()
            assert isinstance(reader, asyncio.Transport)
            reader.abort()
            await page.until("!document.getElementById('lost').hidden")
            said = await page.evaluate("document.getElementById('lost').textContent")
            state.refused(None, "192.0.2.7", "meanwhile")
            await page.until("document.getElementById('lost').hidden")
            await page.until("document.querySelectorAll('#log-rows tr').length === 1")
            return said, await page.evaluate("document.querySelector('#log-rows').textContent")

    said, log = asyncio.run(story())
    assert said.startswith("The connection is lost; trying again.")
    assert "meanwhile" in log
