"""Why the training of a run ends."""

from __future__ import annotations

import enum


class StopReason(enum.StrEnum):
    """Why training ended."""

    LAST_ROUND = "last round"
    TARGET = "target reached"
    CONVERGED = "converged"
    TIME_LIMIT = "time limit"
    NOBODY_AVAILABLE = "nobody available"
    THRESHOLD = "threshold missed"
    DIVERGED = "diverged: the model holds values that are not finite"
    STOPPED = "stopped between two rounds"
