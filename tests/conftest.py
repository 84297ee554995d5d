from __future__ import annotations

import atexit
import gc
import os
import signal
import tempfile

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


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no width of a terminal reach the tests, be it the caller's or that of whoever runs them."""
    monkeypatch.delenv("COLUMNS", raising=False)


def pytest_collection_finish() -> None:
    """Spare the cycle collector what was collected: each of its full searches would take some 0.2 s."""
    gc.freeze()


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
