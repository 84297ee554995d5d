"""When Ctrl-C strikes a process that waits for workers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def handles_signals() -> bool:
    """Whether this thread is the one that sets handlers, and that Ctrl-C strikes."""
    return threading.current_thread() is threading.main_thread()


class Interrupts:
    """Ctrl-C, which strikes while workers are waited for and at no other moment: there nothing is lost.

    Between the message of a worker and what is noted of it, a ``KeyboardInterrupt`` would lose a result.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._asked = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._waiting:
            raise KeyboardInterrupt
        self._asked = True

    @contextmanager
    def strike(self) -> Iterator[None]:
        """Let Ctrl-C strike within, and one that came since the last time at once."""
        self._waiting = True
        try:
            if self._asked:
                self._asked = False
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Let Ctrl-C strike waits alone; where a shell has it ignored it stays so."""
        previous = signal.getsignal(signal.SIGINT)
        if not handles_signals() or previous is signal.SIG_IGN:
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Let a process be born deaf to Ctrl-C."""
    if not handles_signals():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
