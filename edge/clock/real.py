"""The real clock: asyncio's own event loop, whose time is that of a run.

``time()`` starts at 0.0 seconds, as on the virtual clock, so that whoever asks a loop for the time or sets a
timer need not know which of the two it is.

Time can be stretched (time dilation: Gupta et al., To infinity and beyond: time-warped network emulation,
NSDI 2006). A second of the run then takes several of the host's, which is as much faster in the run's time.
What is imitated, such as slow links and slow devices, stays as it is.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class _StretchedSelector(selectors.DefaultSelector):
    """Waits for ``stretch`` real seconds where a loop wants to wait for one."""

    def __init__(self, stretch: float) -> None:
        super().__init__()
        self._stretch = stretch

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events for as long as it takes the run's time to go on by ``timeout``."""
        return super().select(None if timeout is None else self._stretch * timeout)


class RealClockLoop(asyncio.SelectorEventLoop):
    """An event loop on real time, in seconds since the run began.

    Parameters
    ----------
    start_s : how long ago that was, when the loop is made; for a run that goes on in another process.
    stretch : real seconds that one of the run takes.
    """

    def __init__(self, start_s: float = 0.0, stretch: float = 1.0) -> None:
        self._stretch = stretch
        self._origin_s = time.monotonic() - stretch * start_s
        self._moment_s: float | None = None
        super().__init__(_StretchedSelector(stretch))

    def time(self) -> float:
        """Return the seconds since the run began."""
        if self._moment_s is not None:
            return self._moment_s
        return (time.monotonic() - self._origin_s) / self._stretch

    @property
    def now_s(self) -> float:
        """Return the seconds since the run began."""
        return self.time()

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Let time stand still: what an event causes happens at the time of the event, as in a simulation.

        For code that neither waits nor computes for long; within another moment it changes nothing.
        """
        before = self._moment_s
        self._moment_s = self.time()
        try:
            yield
        finally:
            self._moment_s = before


def runner(start_s: float = 0.0, stretch: float = 1.0) -> asyncio.Runner:
    """Return what runs one coroutine after the other on one new real clock, which stands between them.

    The clock begins ``start_s`` after the run did, and one of its seconds takes ``stretch`` real ones.
    """
    return asyncio.Runner(loop_factory=functools.partial(RealClockLoop, start_s, stretch))


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a new real clock and return its result."""
    with runner() as clock:
        return clock.run(main)
