"""The ``fleet`` section: what devices there are, on what networks, and when they can be reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.fleet_profiles import Profiles
from coordinator.scenario.model import Section, text_or_section
from device_profiles.availability import AVAILABILITY_SECTIONS, AvailabilitySection
from device_profiles.errors import Path
from device_profiles.fields import (
    BitsPerSecond,
    OnDemand,
    PositiveBytes,
    PositiveFraction,
    PositiveInt,
    PositiveSeconds,
    Seconds,
    StrictBool,
    Text,
)
from device_profiles.importers.link_files import WrittenTrace
from device_profiles.profile import FleetShare, beside_groups, not_whole, problem_of

MAX_REGIONS = 255
"""A device's region is a byte."""

if TYPE_CHECKING:
    Availability = str | AvailabilitySection
else:
    Availability = text_or_section(Text, "name of an availability profile", "kind", AVAILABILITY_SECTIONS)


class ScenarioFleet(Section):
    """Devices, networks and availability, drawn from the catalogue; one device a client."""

    mix: Text | None = Field(default=None, description="name of a fleet of the catalogue")
    devices: dict[str, PositiveFraction] | None = Field(
        default=None, description="share of each device profile, in place of the mix's"
    )
    networks: dict[str, PositiveFraction] | None = Field(
        default=None, description="share of each network profile, in place of the mix's"
    )
    groups: tuple[Annotated[FleetShare, OnDemand()], ...] | None = Field(
        default=None,
        description="which devices are on which networks, in place of shares of each that are drawn "
        "independently",
    )
    availability: Availability | None = Field(
        default=None,
        description="name of an availability profile, or one written out; by default the mix's, and without "
        "a mix every device is always available",
    )
    time_zones: PositiveInt = Field(
        default=1,
        description="time zones that the devices are spread over, a whole hour apart, for availability by "
        "local hour",
    )
    regions: PositiveInt = Field(
        default=1,
        description="regions that the devices are spread over, for faults; an availability with regional"
        " outages has its own",
    )
    profiles: Profiles = Field(
        default=(),
        description="further profiles: catalogue files, relative to the file that names them, and mappings of"
        " the same form, `devices`, `networks` and so on, in which `like` and what differs are enough",
    )
    link_trace: WrittenTrace | None = Field(
        default=None,
        description="trace that every device's link follows, in place of the rates of its network: a CSV "
        "file, relative to the file that names it, or a pair of Mahimahi traces; a network or a group may "
        "have its own",
    )

    @property
    def layers(self) -> tuple[tuple[Path, str | dict[str, Any]], ...]:
        """The further profiles, in order: the place of each in a scenario, and the name or mapping there."""
        place: Path = ("fleet", "profiles")
        if isinstance(self.profiles, dict):
            return ((place, self.profiles),)
        return tuple(((*place, index), one) for index, one in enumerate(self.profiles))

    def _problems(self) -> Iterator[FieldProblem]:
        yield from _shares("devices", self.devices)
        if self.time_zones > 24:
            yield FieldProblem(
                ("time_zones",), f"{self.time_zones} is more than the earth has; write 24 or less"
            )
        if self.regions > MAX_REGIONS:
            yield FieldProblem(("regions",), f"{self.regions} is too many; write {MAX_REGIONS} or less")
        yield from _shares("networks", self.networks)
        if self.groups is not None:
            yield from self._group_problems(self.groups)
        elif self.mix is None:
            for key, given in (("devices", self.devices), ("networks", self.networks)):
                if given is None:
                    yield FieldProblem((key,), "missing; write it, or name a fleet with 'mix'")

    def _group_problems(self, groups: tuple[FleetShare, ...]) -> Iterator[FieldProblem]:
        for key in ("mix", "devices", "networks"):
            if getattr(self, key) is not None:
                yield FieldProblem((key,), beside_groups(key), of_key=True)
        wrong = problem_of(groups)
        if wrong is not None:
            yield FieldProblem(("groups",), wrong)


def _shares(key: str, shares: Mapping[str, float] | None) -> Iterator[FieldProblem]:
    wrong = None if shares is None else not_whole(math.fsum(shares.values()))
    if wrong is not None:
        yield FieldProblem((key,), wrong)


class CoordinatorLink(Section):
    """The coordinator's own link, which all devices share."""

    down_rate: BitsPerSecond = Field(
        default=1e10, description="rate towards the coordinator: what devices upload"
    )
    up_rate: BitsPerSecond = Field(
        default=1e10, description="rate from the coordinator: what devices download"
    )


class Sockets(Section):
    """How sessions over real sockets are kept; plays no part on the virtual clock, and is not in the hash."""

    join_timeout: PositiveSeconds = Field(
        default=10.0, description="longest time from a new connection to its first frame"
    )
    heartbeat: PositiveSeconds = Field(
        default=15.0, description="silence after which either side asks for a sign of life"
    )
    idle_timeout: PositiveSeconds = Field(
        default=60.0, description="silence after which a connection counts as broken"
    )
    computing_timeout: PositiveSeconds = Field(
        default=600.0, description="the same for a device that has said that it computes"
    )
    resume_window: Seconds = Field(
        default=30.0, description="how long a device may take to come back before it counts as gone"
    )
    total_timeout: PositiveSeconds = Field(
        default=86400.0, description="longest life of one connection; the device comes back with a new one"
    )
    unacknowledged_bytes: PositiveBytes = Field(
        default=268435456, description="most that either side keeps for the other until it is acknowledged"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if self.heartbeat >= self.idle_timeout:
            message = (
                "the connection would be broken before a sign of life is asked for; "
                "write less than idle_timeout"
            )
            yield FieldProblem(("heartbeat",), message)
        if self.computing_timeout < self.idle_timeout:
            message = (
                "a device that computes would be given less time than one that does not; "
                "write idle_timeout or more"
            )
            yield FieldProblem(("computing_timeout",), message)


class Connection(Section):
    """How devices connect to the coordinator."""

    tls: StrictBool = Field(default=True, description="set up TLS 1.3 on a new connection")
    keep_alive: StrictBool = Field(
        default=False, description="keep the connection of a device open between rounds"
    )
    congestion: Literal["cubic", "reno"] = Field(default="cubic", description="TCP congestion control")
    sockets: Annotated[Sockets, OnDemand()] = Field(
        default=Sockets.model_construct(), description="sessions over real sockets"
    )

    @property
    def handshakes(self) -> int:
        """Round trips that opening a connection takes."""
        return 2 if self.tls else 1
