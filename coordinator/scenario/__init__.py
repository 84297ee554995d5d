"""Scenario files: schema, loading with positions, and thresholds."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

MAX_WORKERS: Final = 1024
"""Processes, or threads, of one command."""
EngineName: TypeAlias = Literal["local", "ray"]
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
"""Where the workers of a command may live."""
MAX_SUM_GROUPS: Final = 1024
"""Groups that updates are added up in."""
DEFAULT_FLEET: Final = "global_android_2024"
"""Fleet of a scenario to begin with."""
