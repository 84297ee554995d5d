"""Limits on connections, apart from what applies them: the command line shows their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from edge.core.errors import RecfleetError


class LimitsError(RecfleetError):
    """Limits that make no sense; the message names the option."""


@dataclass(frozen=True, slots=True)
class ArrivalLimits:
    """Limits on connections, each named after its option.

    Attributes
    ----------
    connections, connections_per_address : open at one time. One whose device has proved who it is counts for
        the device, and no longer for its address.
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
