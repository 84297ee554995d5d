"""What the exit code of the command says."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of ``recfleet``; scripts rely on them, so none is ever renumbered."""

    HELD = 0
    """It worked, every threshold held, and the model learnt or did what the scenario expects instead."""
    INTERNAL_ERROR = 1
    """A bug of recfleet, or trouble of the system that it runs on, which the message names."""
    INVALID_SCENARIO = 2
    """The scenario, or something it refers to, is wrong; nothing was run."""
    THRESHOLD_MISSED = 3
    """At least one threshold did not hold, or nothing was learnt, in the run or in its baseline."""
    INTERRUPTED = 4
    """Stopped by the user or the system before it finished."""
    OUTPUT_CLOSED = 141
    """Whoever read the output closed it (``| head``): as a shell shows for programs that SIGPIPE ends."""
