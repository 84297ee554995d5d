"""How many connections there may be, and how fast they may come: a state machine, time is handed to it."""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeVar

from coordinator.service.admission.buckets import BucketPerAddress, Rate, TokenBucket, origin
from coordinator.service.admission.limits import ArrivalLimits

T = TypeVar("T", str, int)
OF_DEVICE: Final = 4
"""Connections of one device that do not count for its address: older ones may be half open."""
COMES_BACK_S: Final = 10.0
"""How often each known device may come back, in the long run, however fast others come from its address."""


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
        """Of each address, those of devices that have proved who they are left out."""
        self._of_device: Counter[int] = Counter()
        self._address_of: dict[int, str] = {}
        """Where each known device was last."""
        self._known_at: Counter[str] = Counter()
        self._room: dict[str, TokenBucket] = {}
        """What is left for the known devices of an address when its own bucket is empty."""
        self._overall = TokenBucket(_rate(limits, limits.arrivals_per_s), now_s)
        self._by_address = BucketPerAddress(_rate(limits, limits.arrivals_per_s_per_address))

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return self._open.total() + self._of_device.total()

    def arrived(self, address: str, now_s: float) -> str | None:
        """Let a connection in, or return why not; :meth:`left` must follow when one that is in has ended."""
        why = self._objection(origin(address), now_s)
        if why is None:
            _count(self._open, origin(address), 1)
        return why

    def _objection(self, address: str, now_s: float) -> str | None:
        limits = self._limits
        if self.open >= limits.connections:
            return "too many connections"
        if self._open[address] >= limits.connections_per_address:
            return "too many connections from one address"
        # The address's own bucket first: whoever is too fast must not empty that of all.
        room = self._room.get(address)
        if not (self._by_address.take(address, now_s) or (room is not None and room.take(now_s))):
            return "connections come too fast from one address"
        if not self._overall.take(now_s):
            return "connections come too fast"
        return None

    def left(self, address: str) -> None:
        """Count a connection no longer: it is over."""
        _count(self._open, origin(address), -1)

    def proved(self, address: str, device: int, now_s: float) -> bool:
        """Count a connection for its device in place of its address; return whether that was done.

        Of one device :data:`OF_DEVICE` are counted so, and others stay with their addresses. If it was,
        :meth:`forgotten` must follow, before or after the connection is over.
        """
        if self._of_device[device] >= OF_DEVICE:
            return False
        address = origin(address)
        _count(self._open, address, -1)
        _count(self._of_device, device, 1)
        before = self._address_of.get(device)
        if before != address:
            self._address_of[device] = address
            self._make_room(address, 1, now_s)
            if before is not None:
                self._make_room(before, -1, now_s)
        return True

    def forgotten(self, address: str, device: int) -> None:
        """Count a connection for its address again: nothing more comes of its device's proof."""
        _count(self._of_device, device, -1)
        _count(self._open, origin(address), 1)

    def _make_room(self, address: str, more: int, now_s: float) -> None:
        """Let each device that is known at an address, ``more`` than before, come back in its time."""
        self._known_at[address] += more
        devices = self._known_at[address]
        rate = Rate(devices / COMES_BACK_S, float(devices))
        if not devices:
            del self._known_at[address], self._room[address]
        elif address in self._room:
            self._room[address].change(rate, now_s)
        else:
            self._room[address] = TokenBucket(rate, now_s)


def _count(counter: Counter[T], key: T, more: int) -> None:
    # Below 0 for a moment: a connection may be over before its device is forgotten.
    counter[key] += more
    if not counter[key]:
        del counter[key]


def _rate(limits: ArrivalLimits, per_s: float) -> Rate:
    """Return the rate of a bucket; one that lets a connection in at all holds at least one token."""
    return Rate(per_s, max(1.0, per_s * limits.burst_s))
