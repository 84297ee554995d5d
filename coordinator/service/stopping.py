"""How a service is asked to stop: the first signal lets it finish what it is at, the second does not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def first_signal(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first Ctrl-C or request to terminate; the next one does what it did before.

    For code on ``loop``, in the main thread.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = False

    def restore() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])

    def hear() -> None:
        nonlocal heard
        if not heard:
            heard = True
            restore()
            stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, hear)
    try:
        yield
    finally:
        if not heard:
            restore()
