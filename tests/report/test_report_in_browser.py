"""The report in headless Chromium: no error, no request, and the figures of the tables."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from browser import NAMES, Browser, Page, installed
from large_run import write_large_run
from metrics_samples import write_run
from report_reading import figures_of_tables

from coordinator.results.report.page import report_of
from coordinator.results.verdicts import read_verdicts

PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason=f"needs a browser, one of {', '.join(NAMES)}"),
]

FIGURES = """
Object.fromEntries([...document.querySelectorAll("[data-metric]")].map(
    (element) => [element.dataset.metric, Number(element.dataset.value)]))
"""
CUT = """
[...document.querySelectorAll(
    ".area, .x-ticks span, .y-ticks > span:not(.strut), h1, h2, figcaption, .tiles dd")]
    .filter((element) => {
        const box = element.getBoundingClientRect();
        return box.width > 0 && (box.left < -0.5 || box.right > innerWidth + 0.5);
    }).map((element) => element.textContent)
"""
SIDEWAYS = """
[...document.querySelectorAll(".scroll")].filter((table) => table.scrollWidth > table.clientWidth + 1)
    .map((table) => table.getAttribute("aria-label"))
"""
OVERLAPPING = """
[...document.querySelectorAll(".x-ticks, .y-ticks")].flatMap((axis) => {
    const boxes = [...axis.children].filter((child) => !child.classList.contains("strut"))
        .map((child) => [child.getBoundingClientRect(), child.textContent]);
    return boxes.flatMap(([a, text], index) => boxes.slice(index + 1)
        .filter(([b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        .map(([, other]) => `${text} and ${other}`));
})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path_factory.mktemp("profile")) as running:
        yield running


def opened(browser: Browser, path: Path, *expressions: str, **settings: Any) -> tuple[Page, list[Any]]:
    """Open a file and return the page, with its complaints, and the values of expressions."""

    async def story() -> tuple[Page, list[Any]]:
        async with browser.page() as page:
            await page.open(path, **settings)
            return page, [await page.evaluate(expression) for expression in expressions]

    return asyncio.run(story())


def test_the_browser_shows_the_figures_of_the_tables(browser: Browser, finished: Path) -> None:
    report = finished / "report.html"
    page, (figures,) = opened(browser, report, FIGURES)
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith("data:")] == [report.as_uri()]
    expected = figures_of_tables(finished)
    assert {name: figures.get(name) for name in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_or_overlaps_at_any_width(
    browser: Browser, finished: Path, width: int, dark: bool
) -> None:
    page, (wide, cut, overlapping, sideways, background) = opened(
        browser,
        finished / "report.html",
        "document.querySelectorAll('details').forEach((table) => { table.open = true; }), "
        "document.documentElement.scrollWidth",
        CUT,
        OVERLAPPING,
        SIDEWAYS,
        "getComputedStyle(document.body).backgroundColor",
        width=width,
        dark=dark,
    )
    assert page.problems == []
    assert wide <= width
    assert cut == []
    assert overlapping == []
    assert sideways == []
    red = int(background.split("(")[1].split(",")[0])
    assert red < 60 if dark else red > 200


def test_charts_answer_to_pointer_and_keys(browser: Browser, finished: Path) -> None:
    async def story() -> tuple[Page, list[Any]]:
        async with browser.page() as page:
            await page.open(finished / "report.html")
            await page.evaluate("document.querySelector('#rounds .area').scrollIntoView({block: 'center'})")
            x, y, width, height = await page.evaluate(
                "(({x, y, width, height}) => [x, y, width, height])"
                "(document.querySelector('#rounds .area').getBoundingClientRect())"
            )
            said = [await page.evaluate("document.getElementById('tip').hidden")]
            await page.point_at(x + width * 0.99, y + height / 2)
            said.append(await page.evaluate("document.getElementById('tip').textContent"))
            await page.evaluate("document.querySelector('#rounds .area').focus()")
            await page.press("Home")
            said.append(await page.evaluate("document.getElementById('tip').textContent"))
            await page.press("ArrowRight")
            said.append(await page.evaluate("document.getElementById('tip').textContent"))
            await page.press("Escape")
            said.append(await page.evaluate("document.getElementById('tip').hidden"))
            return page, said

    page, (hidden, last, first, second, hidden_again) = asyncio.run(story())
    assert page.problems == []
    assert (hidden, hidden_again) == (True, True)
    assert last.startswith("round 6: ")
    assert first.startswith("round 1: ")
    assert second.startswith("round 2: ")


def test_a_control_chooses_what_a_chart_shows(browser: Browser, finished: Path) -> None:
    shown = "[...document.querySelectorAll('#model-against figcaption')]"
    shown += ".filter((one) => one.checkVisibility()).map((one) => one.closest('[data-view]').dataset.view)"
    page, (before, _, after, labels) = opened(
        browser,
        finished / "report.html",
        shown,
        "document.querySelector('#model-against input[value=\"2\"]').click()",
        shown,
        "[...document.querySelectorAll('#model-against [data-view=\"2\"] .x-label')]"
        ".map((one) => one.textContent)",
    )
    assert page.problems == []
    # The training loss, and rmse, mae and accuracy, each a small chart.
    assert (before, after) == (["0"] * 4, ["2"] * 4)
    assert [label.split(" (")[0] for label in labels] == ["bytes sent"] * 4


def test_tables_are_copied_as_csv_with_all_digits(browser: Browser, finished: Path) -> None:
    page, (text, buttons) = opened(
        browser,
        finished / "report.html",
        "csv(document.querySelector('#promises table'))",
        "[...document.querySelectorAll('table')].filter((one) => one.querySelector('.tools button')).length"
        " === document.querySelectorAll('table').length",
    )
    assert page.problems == []
    assert buttons is True
    heads, *rows = csv.reader(io.StringIO(text))
    assert heads == ["threshold", "verdict", "value", "limit", "margin"]
    verdicts = {verdict["threshold"]: verdict for verdict in read_verdicts(finished)}
    assert {row[0]: float(row[2]) for row in rows} == {
        name: verdict["value"] for name, verdict in verdicts.items()
    }


def test_charts_are_saved_as_pictures(browser: Browser, finished: Path) -> None:
    async def story() -> tuple[Page, Any]:
        async with browser.page() as page:
            await page.open(finished / "report.html")
            # What a button would save is kept here instead.
            await page.evaluate("window.saved = {}; save = (address, name) => { saved[name] = address; }; 1")
            await page.evaluate(
                "document.querySelectorAll('#rounds [data-view=\"0\"] figcaption button')"
                ".forEach((one) => one.click())"
            )
            await page.until("Object.keys(saved).length === 2")
            return page, await page.evaluate("saved")

    page, saved = asyncio.run(story())
    assert page.problems == []
    name = "round-durations-by-stage-of-the-critical-path"
    assert set(saved) == {f"{name}.svg", f"{name}.png"}
    svg = ElementTree.fromstring(unquote(saved[f"{name}.svg"].partition(",")[2]))
    texts = [str(one.text) for one in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "Round durations by stage of the critical path" in texts
    assert {"compute", "round"} <= set(texts)
    assert any(text.startswith("duration (") for text in texts)
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) >= 4
    png = base64.b64decode(saved[f"{name}.png"].partition(",")[2])
    assert png.startswith(b"\x89PNG")


def axe() -> Path | None:
    """Return where axe-core lies: what RECFLEET_AXE names, or the package that npm has installed globally."""
    npm = shutil.which("npm")
    if os.environ.get("RECFLEET_AXE") or npm is None:
        named = os.environ.get("RECFLEET_AXE")
    else:
        root = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=True).stdout.strip()
        named = f"{root}/axe-core/axe.min.js"
    return Path(named) if named and Path(named).is_file() else None


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_no_accessibility_error(browser: Browser, finished: Path, width: int, dark: bool) -> None:
    script = axe()
    if script is None:
        pytest.skip("needs axe-core: npm install -g axe-core, or RECFLEET_AXE=…/axe.min.js")

    async def story() -> Any:
        async with browser.page() as page:
            await page.open(finished / "report.html", width=width, dark=dark)
            await page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            await page.evaluate(f"{script.read_text(encoding='utf-8')};1")
            await page.evaluate("axe.run().then((found) => { window.found = found; }); 1")
            await page.until("window.found !== undefined")
            return await page.evaluate(
                "[window.found.passes.length, window.found.violations.map("
                "(one) => [one.id, one.nodes.map((node) => node.failureSummary)])]"
            )

    passed, violations = asyncio.run(story())
    assert passed > 20
    assert violations == []


def test_what_strangers_wrote_does_not_run(browser: Browser, finished: Path) -> None:
    _, (title, heading, images) = opened(
        browser,
        finished / "report.html",
        "document.title",
        "document.querySelector('h1').textContent",
        "document.images.length",
    )
    assert heading == '<script>alert(1)</script> & "quotes" </title>'
    assert title.startswith(heading)
    assert images == 0


def test_reports_of_several_and_of_killed_runs_open_cleanly(
    browser: Browser, finished: Path, tmp_path: Path
) -> None:
    write_run(tmp_path / "killed", rounds=2, finish=False)
    for name, runs in (("both", [finished, tmp_path / "killed"]), ("one", [tmp_path / "killed"])):
        report = tmp_path / f"{name}.html"
        report.write_text(report_of(runs), encoding="utf-8")
        page, (sections,) = opened(browser, report, "document.querySelectorAll('section').length", width=390)
        assert page.problems == []
        assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
        assert sections >= 4


def test_the_report_of_a_million_device_rounds_is_small(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    write_large_run(tmp_path / "large", 1000, 1000)
    report = tmp_path / "large.html"
    report.write_text(report_of([tmp_path / "large"]), encoding="utf-8")
    assert report.stat().st_size < 3_000_000
    page, (elements, rows, opened_ms) = opened(
        browser,
        report,
        "document.querySelectorAll('*').length",
        "Number(document.querySelector('[data-metric=device_rounds]').dataset.value)",
        "performance.now()",
    )
    assert page.problems == []
    assert rows == 1_000_000
    assert 0 < opened_ms < 3000
    assert elements < 20_000


def test_errors_and_requests_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><img src='http://127.0.0.1:9/x.png'>"
        "<script>console.error('no'); nothing.here</script>",
        encoding="utf-8",
    )
    page, _ = opened(browser, bad, "1")
    assert any("x.png" in url for url in page.requests)
    assert any("nothing is not defined" in problem for problem in page.problems)
    assert any("'no'" in problem for problem in page.problems)
