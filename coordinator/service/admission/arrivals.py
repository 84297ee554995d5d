"""How many connections there may be, and how fast they may come: a state machine, time is handed to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from coordinator.service.admission.buckets import BucketPerAddress, Rate, TokenBucket, origin
from edge.errors import RecfleetError


class LimitsError(RecfleetError):
    """Limits that make no sense; the message names the option."""


@dataclass(frozen=True, slots=True)
class ArrivalLimits:
    """Limits on connections, each named after its option.

    Attributes
    ----------
    connections, connections_per_address : open at one time.
    arrivals_per_s, arrivals_per_s_per_address : new ones a second, in the long run.
    burst_s : how many seconds' worth of new ones may come at once.

    The defaults let a thousand devices of one host join within seconds, and come back after a broken network.
    """

    connections: int = 8192
    connections_per_address: int = 2048
    arrivals_per_s: float = 500.0
    arrivals_per_s_per_address: float = 200.0
    burst_s: float = 10.0

    def __post_init__(self) -> None:
        for name in (
            "connections",
            "connections_per_address",
            "arrivals_per_s",
            "arrivals_per_s_per_address",
        ):
            if not getattr(self, name) > 0:
                option = name.replace("_", "-")
                raise LimitsError(f"--{option} {getattr(self, name)} lets nobody in; write more than 0")

    def burst(self, per_s: float) -> Rate:
        """Return the rate of a bucket; one that lets a connection in at all holds at least one token."""
        return Rate(per_s, max(1.0, per_s * self.burst_s))


class Arrivals:
    """Counts connections from their arrival to their end.

    Parameters
    ----------
    limits : how many are let in.
    now_s : the time, seconds on any clock that does not go back.
    """

    def __init__(self, limits: ArrivalLimits, now_s: float) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()
        self._overall = TokenBucket(limits.burst(limits.arrivals_per_s), now_s)
        self._by_address = BucketPerAddress(limits.burst(limits.arrivals_per_s_per_address))
        self.turned_away: Counter[str] = Counter()
        """How many were not let in, by reason."""

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return self._open.total()

    def arrived(self, address: str, now_s: float) -> str | None:
        """Let a connection in, or return why not; :meth:`left` must be told when one that is in has ended."""
        why = self._objection(origin(address), now_s)
        if why is None:
            self._open[origin(address)] += 1
        else:
            self.turned_away[why] += 1
        return why

    def _objection(self, address: str, now_s: float) -> str | None:
        limits = self._limits
        if self._open.total() >= limits.connections:
            return "too many connections"
        if self._open[address] >= limits.connections_per_address:
            return "too many connections from one address"
        # The address's own bucket first: whoever is too fast must not empty that of all.
        if not self._by_address.take(address, now_s):
            return "connections come too fast from one address"
        if not self._overall.take(now_s):
            return "connections come too fast"
        return None

    def left(self, address: str) -> None:
        """Take note that a connection is over."""
        address = origin(address)
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]
