from __future__ import annotations

import atexit
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

# How long an example takes says something of the machine, not of the code: no deadline. The cases are the
# same everywhere and every time; RECFLEET_EXPLORE=1 has new ones drawn, to look for what they miss.
hypothesis.settings.register_profile(
    "recfleet", deadline=None, derandomize="RECFLEET_EXPLORE" not in os.environ
)
hypothesis.settings.load_profile("recfleet")

# Devices that tests start, also in processes of their own, remember nothing in the home of who runs them.
_STATE = tempfile.TemporaryDirectory(prefix="recfleet-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name
atexit.register(_STATE.cleanup)

# A shell that runs tests in the background has them ignore SIGINT, and all processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def not_flushed(fd: Any) -> None:
    """Take the place of ``os.fsync``: no test's machine loses power, and each wait for its disk is 10 ms."""
    os.fstat(fd if isinstance(fd, int) else fd.fileno())


os.fsync = not_flushed


def some_are_frozen() -> int:
    """Take the place of ``gc.get_freeze_count``: counting what the tests freeze takes each run 50 ms."""
    return 1


@pytest.fixture(autouse=True, scope="module")
def nothing_to_collect() -> Iterator[None]:
    """Let runs, which search for cycles when they begin, not search what other modules of tests have left."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no width of a terminal reach the tests, be it the caller's or that of whoever runs them."""
    monkeypatch.delenv("COLUMNS", raising=False)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have failures named when they happen: of a run that is cut off later they are all that is left."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(FailuresAtOnce(reporter))


class FailuresAtOnce:
    """Prints the name of each test that fails, and the first line of why."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a line if a test has failed."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = "" if crash is None else f": {crash.message.partition(chr(10))[0]}"
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED {report.nodeid} ({report.when}){why}")


def pytest_collection_finish() -> None:
    """Spare the cycle collector what was collected: each of its full searches would take some 0.2 s."""
    gc.freeze()
    gc.get_freeze_count = some_are_frozen


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave by default ``n`` of the cases of a test that is marked ``few(n)``, evenly spread.

    The others are slow.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one in cases.values():
        marker = of_one[0].get_closest_marker("few")
        assert marker is not None
        (wanted,) = marker.args
        kept = {index * len(of_one) // wanted for index in range(wanted)}
        for index, item in enumerate(of_one):
            if index not in kept:
                item.add_marker(pytest.mark.slow)
