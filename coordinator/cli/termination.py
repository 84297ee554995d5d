"""What a request to terminate does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Let a request to terminate (SIGTERM, as CI systems send it) end a run in order, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # While the event loop runs, Ctrl-C has a handler that cancels between two steps, not within one.
        as_ctrl_c = signal.getsignal(signal.SIGINT)
        if not callable(as_ctrl_c):
            raise KeyboardInterrupt
        as_ctrl_c(signal.SIGINT, frame)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
