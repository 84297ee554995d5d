"""How each kind of availability is written in YAML: a model per ``kind``, which builds its frozen type."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from device_profiles import availability as kinds
from device_profiles.errors import ProfileError
from device_profiles.fields import (
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
from device_profiles.schema import ProfileSection

Known = Mapping[str, kinds.AvailabilityProfile]


class AvailabilitySection(ProfileSection):
    """Common to every kind of availability."""

    words: ClassVar[frozenset[str]] = frozenset({"kind"})

    @abc.abstractmethod
    def build(self, name: str, folder: Path, known: Known) -> kinds.AvailabilityProfile:
        """Return the frozen profile.

        Parameters
        ----------
        name : of the profile.
        folder : where relative file names start.
        known : the other profiles, by name.

        Raises
        ------
        ProfileError : numbers that cannot be.
        TraceError : a file that cannot be used.
        """


class AlwaysSection(AvailabilitySection):
    """Every device, always."""

    kind: Literal["always"]

    def build(self, name: str, folder: Path, known: Known) -> kinds.Always:
        """Return the frozen profile."""
        return kinds.Always(name, **self.attributes())


class BernoulliSection(AvailabilitySection):
    """Always reachable, but each participation may be broken off."""

    kind: Literal["bernoulli"]
    drop_probability: Fraction = Field(description="Chance that an accepted participation ends early.")
    before_download: Fraction = Field(description="Share of those that end before the download.")
    during_compute: Fraction = Field(description="Share of those that end during the computation.")
    during_upload: Fraction = Field(description="Share of those that end during the upload.")

    def build(self, name: str, folder: Path, known: Known) -> kinds.Bernoulli:
        """Return the frozen profile."""
        return kinds.Bernoulli(name, **self.attributes())


class DiurnalSection(AvailabilitySection):
    """A share of devices that rises and falls with the local hour."""

    kind: Literal["diurnal"]
    mean_available: PositiveFraction = Field(description="Share available over a whole day.")
    peak_to_trough: PositiveFloat = Field(description="Share at the best hour over share at the worst.")
    peak_local_hour: NonNegativeFloat = Field(description="Local hour of the peak, 0 to below 24.")

    def build(self, name: str, folder: Path, known: Known) -> kinds.Diurnal:
        """Return the frozen profile."""
        return kinds.Diurnal(name, **self.attributes())


class ExponentialLength(BaseModel):
    """Exponentially distributed lengths."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    distribution: Literal["exponential"]
    mean: PositiveSeconds = Field(description="Mean length.")

    def build(self) -> kinds.Exponential:
        """Return the frozen distribution."""
        return kinds.Exponential(self.mean)


class LogNormalLength(BaseModel):
    """Log-normally distributed lengths."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    distribution: Literal["lognormal"]
    median: PositiveSeconds = Field(description="Median length.")
    sigma: NonNegativeFloat = Field(description="Sd of the log of the length.")

    def build(self) -> kinds.LogNormal:
        """Return the frozen distribution."""
        return kinds.LogNormal(self.median, self.sigma)


Length = Annotated[ExponentialLength | LogNormalLength, Field(discriminator="distribution")]


class OnOffSection(AvailabilitySection):
    """Sessions and gaps that follow each other."""

    fields: ClassVar[dict[str, str]] = {"session": "on", "gap": "off"}

    kind: Literal["on-off"]
    session: Length = Field(description="Lengths of the sessions.")
    gap: Length = Field(description="Lengths of the gaps between them.")

    def build(self, name: str, folder: Path, known: Known) -> kinds.OnOffSessions:
        """Return the frozen profile."""
        return kinds.OnOffSessions(name, self.session.build(), self.gap.build(), self.field_sources())


class BatteryGatedSection(AvailabilitySection):
    """Available while the battery holds enough."""

    fields: ClassVar[dict[str, str]] = {
        "capacity": "capacity_j",
        "idle_power": "idle_power_w",
        "charge_power": "charge_power_w",
        "plugged": "plugged_hours",
    }

    kind: Literal["battery-gated"]
    capacity: Joules = Field(description="Full battery of a device whose own profile names none.")
    min_charge: Fraction = Field(description="State of charge below which a device declines.")
    start_charge_low: Fraction = Field(description="Least state of charge at the start.")
    start_charge_high: Fraction = Field(description="Greatest state of charge at the start.")
    idle_power: Watts = Field(description="Mean draw of the owner's own use and of standby.")
    charge_power: Watts = Field(description="Power into the battery while plugged in.")
    plug_in_local_hour: NonNegativeFloat = Field(description="Local hour of plugging in, 0 to below 24.")
    plugged: PositiveSeconds = Field(description="How long it stays plugged in, a day at most.")

    def build(self, name: str, folder: Path, known: Known) -> kinds.BatteryGated:
        """Return the frozen profile."""
        return kinds.BatteryGated(name, **{**self.attributes(), "plugged_hours": self.plugged / 3600})


class RegionalOutageSection(AvailabilitySection):
    """A region's outage takes all of its devices at once."""

    fields: ClassVar[dict[str, str]] = {"mean_between": "mean_between_s", "mean_outage": "mean_outage_s"}

    kind: Literal["regional-outage"]
    regions: PositiveInt = Field(description="Number of regions.")
    mean_between: PositiveSeconds = Field(description="Mean time from a region's outage to its next.")
    mean_outage: PositiveSeconds = Field(description="Mean length of an outage.")

    def build(self, name: str, folder: Path, known: Known) -> kinds.RegionalOutage:
        """Return the frozen profile."""
        return kinds.RegionalOutage(name, **self.attributes())


class HeavyTailSection(AvailabilitySection):
    """A few devices take part in most rounds."""

    kind: Literal["heavy-tail"]
    mean_failure: Fraction = Field(description="Mean chance that a participation fails.")
    top_share: PositiveFraction = Field(description="The most active share of devices.")
    top_participation: PositiveFraction = Field(description="Share of participations that those do.")

    def build(self, name: str, folder: Path, known: Known) -> kinds.HeavyTail:
        """Return the frozen profile."""
        return kinds.HeavyTail(name, **self.attributes())


class TraceSection(AvailabilitySection):
    """Sessions recorded by FedScale, replayed."""

    words: ClassVar[frozenset[str]] = frozenset({"kind", "file"})
    files: ClassVar[tuple[tuple[str, ...], ...]] = (("file",),)

    kind: Literal["trace"]
    file: Text = Field(description="FedScale's client_behave_trace, relative to the file that names it.")

    def build(self, name: str, folder: Path, known: Known) -> kinds.TraceAvailability:
        """Return the frozen profile; raises TraceError for a file that cannot be used."""
        trace = read_fedscale_availability(folder / self.file)
        return kinds.TraceAvailability(name, trace, self.field_sources())


class CombinedSection(AvailabilitySection):
    """Several profiles at once: available when all of them say so, broken off by any of them."""

    words: ClassVar[frozenset[str]] = frozenset({"kind", "of"})

    kind: Literal["combined"]
    of: tuple[Text, ...] = Field(description="Names of two or more other profiles.")

    def build(self, name: str, folder: Path, known: Known) -> kinds.Combined:
        """Return the frozen profile; raises ProfileError for a part that is a combined one itself."""
        parts: list[kinds.SimpleAvailability] = []
        for part in (known[part] for part in self.of):
            if isinstance(part, kinds.Combined):
                names = ", ".join(simple.name for simple in part.parts)
                problem = f"{part.name!r} is a combined profile itself; name its parts: {names}"
                raise ProfileError(f"availability {name!r}", "of", problem)
            parts.append(part)
        return kinds.Combined(name, tuple(parts), self.field_sources())


AVAILABILITY_SECTIONS: dict[str, type[AvailabilitySection]] = {
    "always": AlwaysSection,
    "bernoulli": BernoulliSection,
    "diurnal": DiurnalSection,
    "on-off": OnOffSection,
    "battery-gated": BatteryGatedSection,
    "regional-outage": RegionalOutageSection,
    "heavy-tail": HeavyTailSection,
    "trace": TraceSection,
    "combined": CombinedSection,
}
"""``kind`` as written in YAML -> the model of its keys."""
