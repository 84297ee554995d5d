from __future__ import annotations

import hypothesis
import pytest

# How long an example takes says something of the machine, not of the code.
hypothesis.settings.register_profile("recfleet", deadline=None)
hypothesis.settings.load_profile("recfleet")


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no width of a terminal reach the tests, be it the caller's or that of whoever runs them."""
    monkeypatch.delenv("COLUMNS", raising=False)
