"""The frames that have reached a simulated device and wait for its actor."""

from __future__ import annotations

from typing import Any

from edge.mailbox import Mailbox
from edge.message_kinds import AnyMessage
from edge.transport.link import Delivery


class Inbox(Mailbox):
    """The frames that have arrived; ``await`` gives the message and remembers its delivery as ``last``."""

    __slots__ = ("last",)

    last: Delivery

    def _take(self) -> AnyMessage:
        self.last = self._messages.pop(0)
        return self.last.message

    def close(self) -> list[Any]:
        """Close the mailbox and let go of the last frame, and with it of the round."""
        if hasattr(self, "last"):
            del self.last
        return super().close()
