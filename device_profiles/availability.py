"""When devices can be reached: one frozen type per kind of availability.

These say what is wanted; ``edge.device.availability`` answers "available at t?" from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from device_profiles.errors import ProfileError
from device_profiles.profile import (
    NO_SOURCES,
    SHARE_TOLERANCE,
    above_zero_to_one,
    below_one,
    check_name,
    freeze_sources,
    non_negative,
    positive,
    probability,
)
from device_profiles.traces import AvailabilityTrace

HOURS_A_DAY = 24.0


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponentially distributed lengths; ``mean_s`` in seconds."""

    mean_s: float

    def __post_init__(self) -> None:
        positive("exponential length", mean_s=self.mean_s)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normally distributed lengths; ``median_s`` in seconds, ``sigma_log`` the sd of the log."""

    median_s: float
    sigma_log: float

    def __post_init__(self) -> None:
        positive("log-normal length", median_s=self.median_s)
        non_negative("log-normal length", sigma_log=self.sigma_log)


LengthDistribution = Exponential | LogNormal
"""How long a session, or the gap between two, lasts."""


@dataclass(frozen=True, slots=True)
class Always:
    """Every device, always."""

    kind: ClassVar[str] = "always"
    name: str
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_name("availability", self.name)
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Always reachable, but each participation is broken off with a probability of its own.

    Attributes
    ----------
    drop_probability : chance that an accepted participation ends early, in [0, 1].
    before_download, during_compute, during_upload : where it ends, given that it does; sum to 1.
    """

    kind: ClassVar[str] = "bernoulli"
    name: str
    drop_probability: float
    before_download: float
    during_compute: float
    during_upload: float
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("availability", self.name)
        probability(
            owner,
            drop_probability=self.drop_probability,
            before_download=self.before_download,
            during_compute=self.during_compute,
            during_upload=self.during_upload,
        )
        total = self.before_download + self.during_compute + self.during_upload
        if abs(total - 1) > SHARE_TOLERANCE:
            problem = f"the three stages sum to {total:.6g}; they must sum to 1 (100%)"
            raise ProfileError(owner, "before_download", problem)
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A share of devices that rises and falls with the local hour.

    Attributes
    ----------
    mean_available : share available over a whole day, in (0, 1].
    peak_to_trough : ratio of the share at the best hour to the share at the worst, 1 or more.
    peak_local_hour : local hour of the peak, in [0, 24).
    """

    kind: ClassVar[str] = "diurnal"
    name: str
    mean_available: float
    peak_to_trough: float
    peak_local_hour: float
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("availability", self.name)
        above_zero_to_one(owner, mean_available=self.mean_available)
        positive(owner, peak_to_trough=self.peak_to_trough)
        if self.peak_to_trough < 1:
            problem = (
                f"must be 1 or more, not {self.peak_to_trough!r}; 4 means a peak of four times the trough"
            )
            raise ProfileError(owner, "peak_to_trough", problem)
        hour_of_day(owner, "peak_local_hour", self.peak_local_hour)
        # A curve between trough a and peak r*a with mean (1 + r)a/2 peaks at 2*mean*r/(1 + r), a probability.
        most = (1 + self.peak_to_trough) / (2 * self.peak_to_trough)
        if self.mean_available > most:
            problem = (
                f"{self.mean_available:g} needs more than all devices at the peak; write at most {most:.4g}"
            )
            raise ProfileError(owner, "mean_available", problem)
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class OnOffSessions:
    """Sessions and gaps that follow each other, on each device for itself.

    Attributes
    ----------
    on, off : lengths of the sessions and of the gaps between them.
    """

    kind: ClassVar[str] = "on-off"
    name: str
    on: LengthDistribution
    off: LengthDistribution
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_name("availability", self.name)
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class BatteryGated:
    """Available while the battery holds enough; it drains by day and charges at night.

    Attributes
    ----------
    capacity_j : energy of a full battery, joules, for devices whose own profile names none.
    min_charge : state of charge below which a device declines, in [0, 1).
    start_charge_low, start_charge_high : state of charge at the start, uniform between the two, in [0, 1].
    idle_power_w : mean draw of the owner's own use and of standby, watts.
    charge_power_w : power into the battery while plugged in, watts; above ``idle_power_w``.
    plug_in_local_hour : local hour at which the owner plugs the device in, in [0, 24).
    plugged_hours : how long it stays plugged in, hours, in (0, 24].
    """

    kind: ClassVar[str] = "battery-gated"
    name: str
    capacity_j: float
    min_charge: float
    start_charge_low: float
    start_charge_high: float
    idle_power_w: float
    charge_power_w: float
    plug_in_local_hour: float
    plugged_hours: float
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("availability", self.name)
        positive(owner, capacity_j=self.capacity_j, charge_power_w=self.charge_power_w)
        non_negative(owner, idle_power_w=self.idle_power_w)
        below_one(owner, min_charge=self.min_charge)
        probability(owner, start_charge_low=self.start_charge_low, start_charge_high=self.start_charge_high)
        if self.start_charge_low > self.start_charge_high:
            problem = f"{self.start_charge_low:g} is above start_charge_high {self.start_charge_high:g}"
            raise ProfileError(owner, "start_charge_low", problem)
        if self.charge_power_w <= self.idle_power_w:
            problem = f"{self.charge_power_w:g} W does not exceed idle_power_w {self.idle_power_w:g} W"
            raise ProfileError(owner, "charge_power_w", f"{problem}, so the battery would never charge")
        hour_of_day(owner, "plug_in_local_hour", self.plug_in_local_hour)
        positive(owner, plugged_hours=self.plugged_hours)
        if self.plugged_hours > HOURS_A_DAY:
            raise ProfileError(owner, "plugged_hours", f"must be at most 24, not {self.plugged_hours!r}")
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class RegionalOutage:
    """Devices fall into regions; a region's outage takes all of its devices at once.

    Attributes
    ----------
    regions : number of regions, 1 or more.
    mean_between_s : mean time from the end of a region's outage to its next, seconds.
    mean_outage_s : mean length of an outage, seconds.
    """

    kind: ClassVar[str] = "regional-outage"
    name: str
    regions: int
    mean_between_s: float
    mean_outage_s: float
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("availability", self.name)
        if isinstance(self.regions, bool) or not isinstance(self.regions, int) or self.regions < 1:
            raise ProfileError(owner, "regions", f"must be a whole number, 1 or more, not {self.regions!r}")
        positive(owner, mean_between_s=self.mean_between_s, mean_outage_s=self.mean_outage_s)
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class HeavyTail:
    """A few devices take part in most rounds.

    Attributes
    ----------
    mean_failure : mean over devices of the chance that a participation fails, in [0, 1).
    top_share : the most active share of devices, in (0, 1).
    top_participation : share of all participations that those do, from ``top_share`` to below 1.
    """

    kind: ClassVar[str] = "heavy-tail"
    name: str
    mean_failure: float
    top_share: float
    top_participation: float
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("availability", self.name)
        below_one(owner, mean_failure=self.mean_failure, top_share=self.top_share)
        below_one(owner, top_participation=self.top_participation)
        positive(owner, top_share=self.top_share)
        if self.top_participation < self.top_share:
            problem = f"{self.top_participation:g} is below top_share {self.top_share:g}; write at least that"
            raise ProfileError(owner, "top_participation", problem)
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class TraceAvailability:
    """Recorded sessions, repeated; device i replays client i modulo the number of clients in the trace."""

    kind: ClassVar[str] = "trace"
    name: str
    trace: AvailabilityTrace
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_name("availability", self.name)
        freeze_sources(self, self.sources)


SimpleAvailability = (
    Always
    | Bernoulli
    | Diurnal
    | OnOffSessions
    | BatteryGated
    | RegionalOutage
    | HeavyTail
    | TraceAvailability
)
"""Any kind of availability that is not put together from others."""


@dataclass(frozen=True, slots=True)
class Combined:
    """Several profiles at once: a device is available when all of them say so, the earliest dropout counts.

    Attributes
    ----------
    parts : two or more, each of a name of its own, at most one of them with regional outages.
    """

    kind: ClassVar[str] = "combined"
    name: str
    parts: tuple[SimpleAvailability, ...]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("availability", self.name)
        names = [part.name for part in self.parts]
        if len(names) < 2:
            raise ProfileError(owner, "of", "name two profiles or more")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ProfileError(
                owner, "of", f"names {twice!r} twice, which would change nothing; name it once"
            )
        if sum(isinstance(part, RegionalOutage) for part in self.parts) > 1:
            raise ProfileError(owner, "of", "a device is in one region: name one profile of regional outages")
        freeze_sources(self, self.sources)


AvailabilityProfile = SimpleAvailability | Combined
"""Any kind of availability."""


def simple_parts(profile: AvailabilityProfile) -> tuple[SimpleAvailability, ...]:
    """Return what a profile is put together from: itself, unless it is a combined one."""
    return profile.parts if isinstance(profile, Combined) else (profile,)


def regions_of(profile: AvailabilityProfile) -> int | None:
    """Return the number of regions that a profile has outages in; None if it has no such outages."""
    return next((part.regions for part in simple_parts(profile) if isinstance(part, RegionalOutage)), None)


def hour_of_day(owner: str, field_name: str, value: float) -> None:
    """Raise ProfileError unless ``value`` lies in [0, 24)."""
    non_negative(owner, **{field_name: value})
    if value >= HOURS_A_DAY:
        problem = f"must be an hour of the day, 0 or more and below 24, not {value!r}"
        raise ProfileError(owner, field_name, problem)
