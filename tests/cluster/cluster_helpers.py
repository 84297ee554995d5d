"""Workers of tests, and engines that they run on."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

NEEDS_RAY = "needs Ray: pip install 'recfleet[ray]'"
"""Why a test of Ray is skipped."""


class Counter:
    """Counts; a worker with a state."""

    def __init__(self, start: int = 0) -> None:
        self._count = start
        self._asked = threading.Event()

    def add(self, number: int) -> int:
        """Add, and return the sum."""
        self._count += number
        return self._count

    def process(self) -> int:
        """Return the id of the process."""
        return os.getpid()

    def variable(self, name: str) -> str | None:
        """Return a variable of the environment."""
        return os.environ.get(name)

    def echo(self, value: object) -> object:
        """Return the value."""
        return value

    def size(self, value: bytes) -> int:
        """Return the length."""
        return len(value)

    def fail(self, message: str) -> None:
        """Raise an error."""
        raise ValueError(message)

    def fail_in_a_way_of_its_own(self) -> None:
        """Raise an error that cannot be pickled."""

        class LocalError(Exception):
            pass

        raise LocalError("nobody else knows this class")

    def unsendable(self) -> object:
        """Return what cannot be pickled."""
        return threading.Lock()

    def die(self, code: int) -> None:
        """End the process."""
        os._exit(code)

    def write(self, text: str) -> None:
        """Write to standard error."""
        sys.stderr.write(text)
        sys.stderr.flush()

    def until_interrupted(self, begun: Path) -> str:
        """Return once :meth:`interrupt` has been called; write a file to say that it has begun."""
        begun.touch()
        return "interrupted" if self._asked.wait(600) else "nobody asked"

    def interrupt(self) -> None:
        """Let :meth:`until_interrupted` return."""
        self._asked.set()


class Broken:
    """A worker that cannot be made."""

    def __init__(self) -> None:
        raise ValueError("it cannot be made")


def wait_for(file: Path) -> None:
    """Return once a file is there."""
    until_s = time.monotonic() + 600
    while not file.exists():
        assert time.monotonic() < until_s, f"{file} was never written"
        time.sleep(0.01)
