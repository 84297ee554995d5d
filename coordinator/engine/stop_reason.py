"""Why the training of a run ends."""

from __future__ import annotations

import enum
from typing import Protocol


class StopReason(enum.StrEnum):
    """Why training ended."""

    LAST_ROUND = "last round"
    TARGET = "target reached"
    NO_BETTER = "no better on validation for as many evaluations as 'evaluation.patience' says"
    CONVERGED = "converged"
    TIME_LIMIT = "time limit"
    NOBODY_AVAILABLE = "nobody available"
    NO_MEAN = "no query of devices for the mean rating came to a sum"
    THRESHOLD = "threshold missed"
    DIVERGED = "diverged: the model holds values that are not finite"
    STOPPED = "stopped between two rounds"


class StopRule(Protocol):
    """Ends a run early, by what has been recorded of it."""

    def missed(self, rounds: int, now_s: float) -> object | None:
        """Return what ends the run after so many rounds, at a time on its clock; None to go on."""
