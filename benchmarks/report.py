"""How long the report of a large run takes to make and to open, and how large it is.

    python benchmarks/report.py [ROUNDS] [DEVICES] [-o FILE]

A made-up run of ROUNDS rounds (1000) with DEVICES invited devices each (1000) is written as a real one is,
then summarised, reported, and the report opened in headless Chromium, at the width of a desk and of a phone,
until the page is laid out and painted. Printed are the seconds of each step and the bytes of the report; with
-o the report is kept.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS.parent), str(TESTS / "metrics"), str(TESTS / "report")]

from browser import NAMES, Browser, installed  # noqa: E402
from large_run import write_large_run  # noqa: E402

from coordinator.results.report.page import report_of  # noqa: E402
from coordinator.results.summary import summarise  # noqa: E402
from coordinator.results.tables.reader import open_run  # noqa: E402

WIDTHS = (1280, 390)


async def opened_s(browser: Browser, path: Path, width: int) -> float:
    """Return the seconds from the request for a page until its second frame, when the first is on screen."""
    async with browser.page() as page:
        started_s = time.perf_counter()
        await page.open(path, width=width)
        await page.painted()
        taken_s = time.perf_counter() - started_s
        if page.problems:
            raise SystemExit(f"the report has problems in the browser: {page.problems}")
        return taken_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=1000)
    parser.add_argument("devices", type=int, nargs="?", default=1000)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        directory = Path(folder) / "large"
        directory.mkdir()
        started_s = time.perf_counter()
        write_large_run(directory, chosen.rounds, chosen.devices)
        written_s = time.perf_counter()
        summarise(open_run(directory))
        summarised_s = time.perf_counter()
        report = report_of([directory]).encode()
        reported_s = time.perf_counter()
        print(f"{chosen.rounds * chosen.devices:,} device rounds")
        print(f"written in    {written_s - started_s:6.2f} s")
        print(f"summarised in {summarised_s - written_s:6.2f} s")
        print(f"reported in   {reported_s - summarised_s:6.2f} s (summary included), {len(report):,} bytes")
        path = Path(folder) / "report.html" if chosen.output is None else chosen.output
        path.write_bytes(report)
        program = installed()
        if program is None:
            print(f"not opened: no browser on PATH, of {', '.join(NAMES)}")
            return
        with Browser(program, Path(folder) / "profile") as browser:
            for width in WIDTHS:
                print(f"opened in     {asyncio.run(opened_s(browser, path, width)):6.2f} s, {width} px wide")


if __name__ == "__main__":
    main()
