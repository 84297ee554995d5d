"""Scenario files: schema, loading with positions, and thresholds."""

from __future__ import annotations

from typing import Final

MAX_WORKERS: Final = 1024
"""Processes, or threads, of one command."""
MAX_SUM_GROUPS: Final = 1024
"""Groups that updates are added up in."""
DEFAULT_FLEET: Final = "global_android_2024"
"""Fleet of a scenario to begin with."""
