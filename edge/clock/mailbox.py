"""A mailbox with one reader and a deadline, on the virtual clock."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

from edge.clock.virtual import Awaitable, VirtualClockLoop


class DeadlineExceededError(Exception):
    """The mailbox's deadline passed while its reader was waiting (or had passed before it asked)."""


class Mailbox(Awaitable):
    """A queue of messages for one reader: ``message = await mailbox``.

    Parameters
    ----------
    loop : the virtual loop.
    owner : who reads; its text is for a deadlock's message.
    limit : most messages held; one put beyond it is refused (``put`` returns False).

    ``set_deadline`` is absolute, in virtual seconds; from then on a wait without a message raises
    :class:`DeadlineExceededError`. Messages that arrived before are still read first.
    """

    __slots__ = ("_armed", "_deadline_s", "_limit", "_messages", "_owner")

    def __init__(self, loop: VirtualClockLoop, owner: object, limit: int = 1024) -> None:
        super().__init__(loop)
        self._owner = owner
        self._limit = limit
        self._messages: list[Any] = []
        self._deadline_s = math.inf
        self._armed = False
        """Whether a timer of this mailbox is set, at the deadline or at an earlier one that it replaced."""

    def describe(self) -> str:
        """Return what the reader waits for."""
        return f"a message to {self._owner}"

    def put(self, message: Any) -> bool:
        """Add ``message`` and wake the reader; return False when the mailbox is full.

        Only for callbacks of the loop (a frame that arrives): the reader runs before this returns.
        """
        if len(self._messages) >= self._limit:
            return False
        self._messages.append(message)
        callback, context = self._callback, self._context
        if callback is not None and context is not None:
            self._callback = None
            context.run(callback, self)
        return True

    def close(self) -> list[Any]:
        """Let go of the reader and return the messages that it has not read.

        A timer may hold the mailbox until its deadline; closed, it keeps nothing else alive.
        """
        messages, self._messages = self._messages, []
        self._owner = "a closed mailbox"
        self._callback = self._context = None
        return messages

    def set_deadline(self, when_s: float) -> None:
        """Let waits fail from ``when_s`` (absolute virtual seconds) on; it may only be moved back."""
        self._deadline_s = when_s

    def fire(self, when: float) -> None:
        """Pass the deadline, if a reader is waiting and it was not moved back; called by the loop."""
        self._armed = False
        if self._callback is None:
            return
        if when < self._deadline_s:
            self._arm()
        else:
            self._loop.now_s = when
            self._fail(DeadlineExceededError(str(self._owner)))

    def _arm(self) -> None:
        self._armed = True
        self._loop.push_timer(max(self._deadline_s, self._loop.now_s), self)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._messages:
            if self._loop.now_s >= self._deadline_s:
                raise DeadlineExceededError(str(self._owner))
            if not self._armed:
                self._arm()
            self._asyncio_future_blocking = True
            yield self
        return self._take()

    def _take(self) -> Any:
        """Return what the reader gets: the message that came first."""
        return self._messages.pop(0)
