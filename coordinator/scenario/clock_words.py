"""What the time of a run is called: the manifest's ``clock`` says whether it was simulated or measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

SIMULATED: Final = "simulated"
"""What the time of a run on the virtual clock is called."""
REAL: Final = "real"
"""What that of one on the real clock is."""


def on_real_clock(summary: Mapping[str, Any]) -> bool:
    """Return whether every time of a run was measured, by its summary; without a word it was simulated."""
    return bool(summary.get("clock") == "real")


def time_name(summaries: Iterable[Mapping[str, Any]]) -> str:
    """Return what the time of runs is called, by their summaries; of runs on both clocks it is of the run."""
    kinds = {on_real_clock(summary) for summary in summaries}
    if len(kinds) != 1:
        return "time of the run"
    return f"{REAL if kinds.pop() else SIMULATED} time"
