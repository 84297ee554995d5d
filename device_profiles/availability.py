"""When devices can be reached: one frozen type per kind of availability, and how each is written in YAML.

These say what is wanted; ``edge.device.availability`` answers "available at t?" from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from device_profiles.errors import ProfileError
from device_profiles.fields import (
    BELOW_ONE,
    INSIDE_ONE,
    POSITIVE,
    Bounds,
    ByKey,
    Fraction,
    Joules,
    NonNegativeFloat,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    PositiveSeconds,
    Text,
    Watts,
)
from device_profiles.importers.fedscale import read_fedscale_availability
from device_profiles.profile import SHARE_TOLERANCE
from device_profiles.schema import (
    NO_SOURCES,
    Key,
    ProfileSection,
    WrittenPart,
    check_numbers,
    check_profile,
    part_of,
    section_of,
)
from device_profiles.traces import AvailabilityTrace

HOURS_A_DAY = 24.0
HOUR_OF_DAY: Final = Bounds(
    lambda value: 0 <= value < HOURS_A_DAY, "must be an hour of the day, 0 or more and below 24"
)
_PART_OF_DAY: Final = Bounds(lambda value: 0 < value <= HOURS_A_DAY, "must be above zero and at most 24")
_ONE_OR_MORE: Final = Bounds(
    lambda value: value >= 1, "must be 1 or more, where 4 means a peak of four times the trough"
)


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponentially distributed lengths."""

    distribution: ClassVar[str] = "exponential"
    mean_s: Annotated[PositiveSeconds, Key("Mean length.", "mean")]

    def __post_init__(self) -> None:
        check_numbers("exponential length", self)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normally distributed lengths."""

    distribution: ClassVar[str] = "lognormal"
    median_s: Annotated[PositiveSeconds, Key("Median length.", "median")]
    sigma_log: Annotated[NonNegativeFloat, Key("Sd of the log of the length.", "sigma")]

    def __post_init__(self) -> None:
        check_numbers("log-normal length", self)


LengthDistribution = Exponential | LogNormal
"""How long a session, or the gap between two, lasts."""
ExponentialLength = part_of(Exponential, "ExponentialLength", WrittenPart, "distribution")
LogNormalLength = part_of(LogNormal, "LogNormalLength", WrittenPart, "distribution")
_LENGTH: Final = Annotated[ExponentialLength | LogNormalLength, ByKey("distribution")]


@dataclass(frozen=True, slots=True)
class Always:
    """Every device, always."""

    kind: ClassVar[str] = "always"
    name: str
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_profile("availability", self)


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Always reachable, but each participation may be broken off.

    Where it ends, given that it does, is in shares that sum to 1.
    """

    kind: ClassVar[str] = "bernoulli"
    name: str
    drop_probability: Annotated[Fraction, Key("Chance that an accepted participation ends early.")]
    before_download: Annotated[Fraction, Key("Share of those that end before the download.")]
    during_compute: Annotated[Fraction, Key("Share of those that end during the computation.")]
    during_upload: Annotated[Fraction, Key("Share of those that end during the upload.")]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_profile("availability", self)
        total = self.before_download + self.during_compute + self.during_upload
        if abs(total - 1) > SHARE_TOLERANCE:
            problem = f"the three stages sum to {total:.6g}; they must sum to 1 (100%)"
            raise ProfileError(owner, "before_download", problem)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A share of devices that rises and falls with the local hour."""

    kind: ClassVar[str] = "diurnal"
    name: str
    mean_available: Annotated[PositiveFraction, Key("Share available over a whole day.")]
    peak_to_trough: Annotated[
        PositiveFloat, _ONE_OR_MORE, Key("Share at the best hour over share at the worst.")
    ]
    peak_local_hour: Annotated[NonNegativeFloat, HOUR_OF_DAY, Key("Local hour of the peak, 0 to below 24.")]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_profile("availability", self)
        # A curve between trough a and peak r*a with mean (1 + r)a/2 peaks at 2*mean*r/(1 + r), a probability.
        most = (1 + self.peak_to_trough) / (2 * self.peak_to_trough)
        if self.mean_available > most:
            problem = (
                f"{self.mean_available:g} needs more than all devices at the peak; write at most {most:.4g}"
            )
            raise ProfileError(owner, "mean_available", problem)


@dataclass(frozen=True, slots=True)
class OnOffSessions:
    """Sessions and gaps that follow each other, on each device for itself."""

    kind: ClassVar[str] = "on-off"
    name: str
    on: Annotated[LengthDistribution, Key("Lengths of the sessions.", "session", written=_LENGTH)]
    off: Annotated[LengthDistribution, Key("Lengths of the gaps between them.", "gap", written=_LENGTH)]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_profile("availability", self)


def _hours(seconds: float, folder: Path) -> float:
    return seconds / 3600


@dataclass(frozen=True, slots=True)
class BatteryGated:
    """Available while the battery holds enough; it drains by day and charges at night.

    The state of charge at the start is uniform between the two; ``charge_power_w`` is above ``idle_power_w``.
    """

    kind: ClassVar[str] = "battery-gated"
    name: str
    capacity_j: Annotated[
        Joules, POSITIVE, Key("Full battery of a device whose own profile names none.", "capacity")
    ]
    min_charge: Annotated[Fraction, BELOW_ONE, Key("State of charge below which a device declines.")]
    start_charge_low: Annotated[Fraction, Key("Least state of charge at the start.")]
    start_charge_high: Annotated[Fraction, Key("Greatest state of charge at the start.")]
    idle_power_w: Annotated[Watts, Key("Mean draw of the owner's own use and of standby.", "idle_power")]
    charge_power_w: Annotated[
        Watts, POSITIVE, Key("Power into the battery while plugged in.", "charge_power")
    ]
    plug_in_local_hour: Annotated[
        NonNegativeFloat, HOUR_OF_DAY, Key("Local hour of plugging in, 0 to below 24.")
    ]
    plugged_hours: Annotated[
        float,
        _PART_OF_DAY,
        Key("How long it stays plugged in, a day at most.", "plugged", PositiveSeconds, _hours),
    ]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_profile("availability", self)
        if self.start_charge_low > self.start_charge_high:
            problem = f"{self.start_charge_low:g} is above start_charge_high {self.start_charge_high:g}"
            raise ProfileError(owner, "start_charge_low", problem)
        if self.charge_power_w <= self.idle_power_w:
            problem = f"{self.charge_power_w:g} W does not exceed idle_power_w {self.idle_power_w:g} W"
            raise ProfileError(owner, "charge_power_w", f"{problem}, so the battery would never charge")


@dataclass(frozen=True, slots=True)
class RegionalOutage:
    """A region's outage takes all of its devices at once."""

    kind: ClassVar[str] = "regional-outage"
    name: str
    regions: Annotated[PositiveInt, Key("Number of regions.")]
    mean_between_s: Annotated[
        PositiveSeconds, Key("Mean time from the end of a region's outage to its next.", "mean_between")
    ]
    mean_outage_s: Annotated[PositiveSeconds, Key("Mean length of an outage.", "mean_outage")]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_profile("availability", self)


@dataclass(frozen=True, slots=True)
class HeavyTail:
    """A few devices take part in most rounds."""

    kind: ClassVar[str] = "heavy-tail"
    name: str
    mean_failure: Annotated[Fraction, BELOW_ONE, Key("Mean chance that a participation fails.")]
    top_share: Annotated[PositiveFraction, INSIDE_ONE, Key("The most active share of devices.")]
    top_participation: Annotated[PositiveFraction, BELOW_ONE, Key("Share of participations that those do.")]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_profile("availability", self)
        if self.top_participation < self.top_share:
            problem = f"{self.top_participation:g} is below top_share {self.top_share:g}; write at least that"
            raise ProfileError(owner, "top_participation", problem)


@dataclass(frozen=True, slots=True)
class TraceAvailability:
    """Recorded sessions, repeated; device i replays client i modulo the number of clients in the trace."""

    kind: ClassVar[str] = "trace"
    name: str
    trace: AvailabilityTrace
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_profile("availability", self)


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
        owner = check_profile("availability", self)
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


AvailabilityProfile = SimpleAvailability | Combined
"""Any kind of availability."""


def simple_parts(profile: AvailabilityProfile) -> tuple[SimpleAvailability, ...]:
    """Return what a profile is put together from: itself, unless it is a combined one."""
    return profile.parts if isinstance(profile, Combined) else (profile,)


def regions_of(profile: AvailabilityProfile) -> int | None:
    """Return the number of regions that a profile has outages in; None if it has no such outages."""
    return next((part.regions for part in simple_parts(profile) if isinstance(part, RegionalOutage)), None)


class AvailabilitySection(ProfileSection):
    """Common to every kind of availability."""

    words: ClassVar[frozenset[str]] = frozenset({"kind"})


class TraceSection(AvailabilitySection):
    """Sessions recorded by FedScale, replayed."""

    words: ClassVar[frozenset[str]] = frozenset({"kind", "file"})
    files: ClassVar[tuple[tuple[str, ...], ...]] = (("file",),)

    kind: Literal["trace"]
    file: Text = Field(description="FedScale's client_behave_trace, relative to the file that names it.")

    def build(self, name: str, folder: Path, known: Mapping[str, Any]) -> TraceAvailability:
        """Return the frozen profile; raises TraceError for a file that cannot be used."""
        trace = read_fedscale_availability(folder / self.file)
        return TraceAvailability(name, trace, self.field_sources())


class CombinedSection(AvailabilitySection):
    """Several profiles at once: available when all of them say so, broken off by any of them."""

    words: ClassVar[frozenset[str]] = frozenset({"kind", "of"})

    kind: Literal["combined"]
    of: tuple[Text, ...] = Field(description="Names of two or more other profiles.")

    def build(self, name: str, folder: Path, known: Mapping[str, Any]) -> Combined:
        """Return the frozen profile; raises ProfileError for a part that is a combined one itself."""
        parts: list[SimpleAvailability] = []
        for part in (known[part] for part in self.of):
            if isinstance(part, Combined):
                names = ", ".join(simple.name for simple in part.parts)
                problem = f"{part.name!r} is a combined profile itself; name its parts: {names}"
                raise ProfileError(f"availability {name!r}", "of", problem)
            parts.append(part)
        return Combined(name, tuple(parts), self.field_sources())


def _section(builds: Any, name: str) -> type[AvailabilitySection]:
    return section_of(builds, name, AvailabilitySection, "kind")


AlwaysSection = _section(Always, "AlwaysSection")
BernoulliSection = _section(Bernoulli, "BernoulliSection")
DiurnalSection = _section(Diurnal, "DiurnalSection")
OnOffSection = _section(OnOffSessions, "OnOffSection")
BatteryGatedSection = _section(BatteryGated, "BatteryGatedSection")
RegionalOutageSection = _section(RegionalOutage, "RegionalOutageSection")
HeavyTailSection = _section(HeavyTail, "HeavyTailSection")

AVAILABILITY_SECTIONS: dict[str, type[AvailabilitySection]] = {
    Always.kind: AlwaysSection,
    Bernoulli.kind: BernoulliSection,
    Diurnal.kind: DiurnalSection,
    OnOffSessions.kind: OnOffSection,
    BatteryGated.kind: BatteryGatedSection,
    RegionalOutage.kind: RegionalOutageSection,
    HeavyTail.kind: HeavyTailSection,
    TraceAvailability.kind: TraceSection,
    Combined.kind: CombinedSection,
}
"""``kind`` as written in YAML -> the model of its keys."""
