"""The side of a worker: it is made where its engine has it live, and does the calls that arrive as bytes."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

from edge.core import plugins
from edge.core.errors import RecfleetError

PICKLE_PROTOCOL: Final = 5
"""Of what goes to workers and comes back."""


class WorkerError(RecfleetError):
    """A worker failed in a way that cannot be sent as it is; the message says all that is known."""


class RemoteTraceback(Exception):  # noqa: N818
    """The traceback of a worker, as the cause of the error that it raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call ended: with a value, or with an error and its traceback as text."""

    value: Any = None
    error: Exception | None = None
    trace: str = ""

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is None:
            return self.value
        if self.trace:
            raise self.error from RemoteTraceback(self.trace)
        raise self.error


def _failure(error: Exception) -> CallOutcome:
    return CallOutcome(error=error, trace="".join(traceback.format_exception(error)))


def unpack(packed: bytes) -> CallOutcome:
    """Return an outcome, as a worker has pickled it."""
    outcome: CallOutcome = pickle.loads(packed)
    return outcome


def _pack(outcome: CallOutcome) -> bytes:
    """Pickle an outcome; of one that cannot be pickled, or not be read again, what it was."""
    try:
        packed = pickle.dumps(outcome, PICKLE_PROTOCOL)
        if outcome.error is not None:
            pickle.loads(packed)
    except Exception as error:
        said = outcome.trace or f"cannot be sent: {type(error).__name__}: {error}"
        return pickle.dumps(CallOutcome(error=WorkerError(said)), PICKLE_PROTOCOL)
    return packed


class HostedWorker:
    """Makes the worker, and does its calls."""

    def __init__(self) -> None:
        self._worker: object = None
        self._failed: CallOutcome | None = None
        self._interrupted = False
        self._lock = threading.Lock()

    def make(self, made_by: bytes, given: Sequence[str]) -> bytes:
        """Load the plug-ins that are ``given`` and make the worker; return the outcome, pickled."""
        try:
            plugins.load_all(given)
            factory, arguments = pickle.loads(made_by)
            worker = factory(*arguments)
        except Exception as error:
            return self.refuse(error)
        with self._lock:
            self._worker = worker
            if self._interrupted:
                self._pass_on()
        return _pack(CallOutcome())

    def refuse(self, error: Exception) -> bytes:
        """Let every call end with the error that kept the worker from being made; return it, pickled."""
        self._failed = _failure(error)
        return _pack(self._failed)

    def answer(self, request: bytes) -> bytes:
        """Do a call; return the outcome, pickled."""
        if self._failed is not None:
            return _pack(self._failed)
        try:
            method, arguments = pickle.loads(request)
            outcome = CallOutcome(getattr(self._worker, method)(*arguments))
        except Exception as error:
            outcome = _failure(error)
        return _pack(outcome)

    def interrupt(self) -> None:
        """Interrupt the worker, or as soon as it has been made; from another thread."""
        with self._lock:
            self._interrupted = True
            if self._worker is not None:
                self._pass_on()

    def _pass_on(self) -> None:
        interrupt = getattr(self._worker, "interrupt", None)
        if interrupt is not None:
            interrupt()


class NamedLines:
    """A text stream that writes a name before each line.

    Parameters
    ----------
    name : of the worker.
    stream : where lines go.
    """

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._at_start = True

    def write(self, text: str) -> int:
        """Write text."""
        if text:
            lines = "".join(f"{self._name}: {line}" for line in text.splitlines(keepends=True))
            self._stream.write(lines if self._at_start else lines.removeprefix(f"{self._name}: "))
            self._at_start = text.endswith("\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
