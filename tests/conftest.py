from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no width of a terminal reach the tests, be it the caller's or that of whoever runs them."""
    monkeypatch.delenv("COLUMNS", raising=False)
