"""What a request to end does: Ctrl-C, and SIGTERM as CI systems and service managers send it.

While a command starts (imports, scenario files) there is nothing to end in order: it says so and exits. Once
a verb has begun what it has to end in order, both signals raise ``KeyboardInterrupt``, or, while an event
loop runs, cancel it between two steps.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from coordinator.scenario.exit_codes import ExitCode

_STANDARD_ERROR: Final = 2


def _end_at_once(number: int, frame: FrameType | None) -> None:
    # Neither an exception, which may strike an import and be lost there, nor sys.stderr, which may be locked.
    try:
        os.write(_STANDARD_ERROR, b"interrupted\n")
    finally:
        os._exit(int(ExitCode.INTERRUPTED))


def end_at_once_on_signals() -> None:
    """Let both signals end the process with exit code 4; one that a shell has it ignore stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_at_once)


def interrupt(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    """End what goes on, in order, as Ctrl-C does; a handler for :func:`signal.signal`, too."""
    # While an event loop runs, Ctrl-C has a handler that cancels between two steps, not within one.
    as_ctrl_c = signal.getsignal(signal.SIGINT)
    if not callable(as_ctrl_c) or as_ctrl_c is _end_at_once:
        raise KeyboardInterrupt
    as_ctrl_c(signal.SIGINT, frame)


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Let both signals end what goes on meanwhile in order."""
    terminate = signal.signal(signal.SIGTERM, interrupt)
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminate)
        if ctrl_c is _end_at_once:
            signal.signal(signal.SIGINT, ctrl_c)
