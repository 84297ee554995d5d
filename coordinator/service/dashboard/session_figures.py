"""Who has joined over sockets, who has gone, and who was not let in."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

from coordinator.service.dashboard.histogram import Histogram
from edge.core.vocabulary import Reason, label

HANDLING_BOUNDS_S: Final = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005,
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5,
)  # fmt: skip
MOST_REASONS: Final = 24
"""Different reasons of refusals that are distinguished: strangers have a say in their words."""
OTHER: Final = "other"
_NUMBER: Final = re.compile(r"\d+")
_MOST_CHARACTERS: Final = 120


def without_numbers(why: str) -> str:
    """Return a reason that is the same for every device."""
    return _NUMBER.sub("N", why)[:_MOST_CHARACTERS]


class SessionFigures:
    """The sessions of a service.

    Attributes
    ----------
    used : whether there are sessions at all; a simulation has none.
    begun, resumed, broken : sessions, and connections that came back or broke.
    ended : sessions that are over, by reason.
    refused : who was not let in, by reason without numbers; :data:`MOST_REASONS` at most, and the others.
    handling_s : time this host worked on a message from a device; measured.
    """

    def __init__(self) -> None:
        self.used = False
        self.begun = self.resumed = self.broken = 0
        self.ended: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.handling_s = Histogram(HANDLING_BOUNDS_S)
        self._connected: set[int] = set()
        self._away: set[int] = set()

    @property
    def connected(self) -> int:
        """How many devices are connected now."""
        return len(self._connected)

    @property
    def away(self) -> int:
        """How many sessions are without a connection, and may get another one."""
        return len(self._away)

    def joined(self, device: int, *, again: bool) -> None:
        """Count a new session, or a new connection of one that goes on."""
        self._connected.add(device)
        self._away.discard(device)
        if again:
            self.resumed += 1
        else:
            self.begun += 1

    def disconnected(self, device: int) -> None:
        """Count a connection that broke."""
        self.broken += 1
        self._connected.discard(device)
        self._away.add(device)

    def left(self, device: int, reason: Reason) -> None:
        """Count a session that is over."""
        self.ended[label(reason)] += 1
        self._connected.discard(device)
        self._away.discard(device)

    def refuse(self, why: str) -> None:
        """Count somebody who was not let in."""
        name = without_numbers(why)
        known = name in self.refused or len(self.refused) < MOST_REASONS
        self.refused[name if known else OTHER] += 1

    def record(self) -> dict[str, Any] | None:
        """Return it as a mapping of JSON types; None where there are no sessions."""
        if not self.used:
            return None
        count = self.handling_s.count
        return {
            "connected": self.connected,
            "away": self.away,
            "begun": self.begun,
            "resumed": self.resumed,
            "broken": self.broken,
            "ended": dict(self.ended),
            "refused": dict(self.refused),
            "handled": count,
            "handling_mean_s": self.handling_s.sum / count if count else None,
        }
