"""What scenario files and catalogue files write alike: groups of a fleet, and link traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from device_profiles.fields import TEXT_TAG, Choice, Fraction, PositiveFraction, PositiveSeconds, Text
from device_profiles.importers.link_files import read_link_csv, read_mahimahi
from device_profiles.profile import FleetGroup, not_whole
from device_profiles.traces import RateTrace

CSV_MEANING: Final = "CSV file with `t_s,down_mbps,up_mbps,rtt_ms[,loss]`"
MAX_GROUPS: Final = 255
"""A device's group is a byte."""


class MahimahiTrace(BaseModel):
    """A pair of Mahimahi traces: the milliseconds at which a 1500-byte packet may pass."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["mahimahi"]
    down: Text = Field(description="trace towards the device, relative to the file that names it")
    up: Text = Field(description="trace from the device, relative to the file that names it")
    rtt: PositiveSeconds = Field(description="round trip, which the traces do not hold")
    loss: Fraction = Field(default=0.0, description="probability that a segment is lost")


def _tag(value: object) -> str:
    return "mahimahi" if isinstance(value, dict | MahimahiTrace) else TEXT_TAG


WrittenTrace = Annotated[
    Annotated[Text, Tag(TEXT_TAG)] | Annotated[MahimahiTrace, Tag("mahimahi")],
    Discriminator(_tag),
    Choice("kind", {"mahimahi": MahimahiTrace}, CSV_MEANING),
]


def file_keys(written: str | MahimahiTrace) -> tuple[tuple[str, ...], ...]:
    """Return where, inside a written trace, the names of its files stand."""
    return ((),) if isinstance(written, str) else (("down",), ("up",))


def trace_beside(written: str | MahimahiTrace | None, folder: Path) -> RateTrace | None:
    """Return a written trace, the names of whose files start at ``folder``; None where none is written.

    Raises
    ------
    TraceError : as :func:`read_link_trace`.
    """
    if written is None:
        return None
    names = (written,) if isinstance(written, str) else (written.down, written.up)
    return read_link_trace(written, [folder / name for name in names])


def read_link_trace(written: str | MahimahiTrace, files: Sequence[Path]) -> RateTrace:
    """Return the trace in ``files``, one for each of :func:`file_keys`.

    Raises
    ------
    TraceError : a file that cannot be used; the message says where in it.
    """
    if isinstance(written, str):
        return read_link_csv(files[0])
    down, up = files
    return read_mahimahi(down, up, rtt_s=written.rtt, loss=written.loss)


class FleetShare(BaseModel):
    """Devices of one kind on links of one kind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Text = Field(description="name of a device profile")
    network: Text = Field(description="name of a network profile")
    share: PositiveFraction = Field(description="share of the fleet")
    availability: Text | None = Field(
        default=None, description="name of an availability profile; by default that of the fleet"
    )
    link_trace: WrittenTrace | None = Field(
        default=None,
        description="trace that the links of the group follow; by default its network's, else the fleet's",
    )

    def build(self, trace: RateTrace | None) -> FleetGroup:
        """Return the group; ``trace`` is what was read of ``link_trace``."""
        return FleetGroup(self.device, self.network, self.share, self.availability, trace)


def problem_of(groups: Sequence[FleetShare]) -> str | None:
    """Return what is wrong with groups as a whole, or None."""
    if len(groups) > MAX_GROUPS:
        return f"{len(groups)} are too many; write {MAX_GROUPS} or fewer"
    return not_whole(math.fsum(group.share for group in groups))


def beside_groups(key: str) -> str:
    """Return what is wrong with ``key``, which groups stand in place of."""
    return f"'groups' says which devices are on which networks; leave out '{key}' or 'groups'"
