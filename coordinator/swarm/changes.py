"""What may be worse than a scenario says: further faults, another fleet, another seed, each of some strength.

A change has a grid of strengths, two digits each, from hardly any to the bound of the search. It is written
as the scenario would write it, and told in words.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from coordinator.scenario.faults_section import KINDS, stages_of
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.references import availabilities_of, regions_of_fleet
from coordinator.scenario.rounds_section import Buffered
from coordinator.swarm.storms import Fault
from device_profiles import catalogue
from device_profiles.units import format_duration, write_ratio
from edge.core.rng import Draws
from edge.core.vocabulary import label

Grid = tuple[float, ...]

MOST_SEEDS: Final = 2**31 - 1
_NAME: Final = "swarm"
"""What the faults of the search are called; a number follows."""
_SHARE: Final = "fraction"
_LENGTH: Final = "for"


def two_digits(least: float, most: float) -> Grid:
    """Return the numbers of two digits between two, both included."""
    found, exponent = [], math.floor(math.log10(least)) - 1
    while 10.0 ** (exponent + 1) <= most:
        found += [float(f"{mantissa}e{exponent}") for mantissa in range(10, 100)]
        exponent += 1
    return tuple(value for value in found if least <= value <= most)


def _as_share(value: float) -> str:
    return write_ratio(value)


def _as_seconds(value: float) -> str:
    return f"{value:g} s"


def _as_number(value: float) -> str:
    return f"{value:g}"


@dataclass(frozen=True, slots=True)
class Knob:
    """How strong a fault of some kind is.

    Attributes
    ----------
    setting : below the key of the kind; ``fraction`` of the devices, or ``for`` how long, is the fault's own.
    grid : strengths, the weakest first.
    write : writes a strength as a scenario does.
    words : what happens, with ``{}`` for the strength.
    settings : others of the kind, fixed.
    """

    setting: str
    grid: Grid
    write: Callable[[float], str]
    words: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def shown(self, value: float) -> str:
        """Return a strength for people."""
        return format_duration(value) if self.write is _as_seconds else self.write(value)


_PROBABILITY: Final = two_digits(0.001, 0.5)
_FRACTION: Final = two_digits(0.01, 0.6)
_KEPT: Final = tuple(reversed(two_digits(0.01, 0.99)))

KNOBS: Final[Mapping[str, Knob]] = {
    "bandwidth": Knob("scale", _KEPT, _as_share, "links that carry {} of what they did"),
    "latency": Knob("mean", two_digits(0.001, 5), _as_seconds, "packets {} longer on their way"),
    "loss": Knob("probability", _PROBABILITY, _as_share, "{} more packet loss"),
    "blackout": Knob(_SHARE, _FRACTION, _as_share, "dead links of {} of the devices"),
    "flapping": Knob("up", _KEPT, _as_share, "links that are up {} of every ten seconds", {"period": "10 s"}),
    "vanish": Knob(_SHARE, _FRACTION, _as_share, "{} of the devices disappearing"),
    "slowdown": Knob("factor", two_digits(1.1, 100), _as_number, "computing that takes {} times as long"),
    "battery_drain": Knob(
        _SHARE, _FRACTION, _as_share, "empty batteries of {} of the devices", {"level": "0%"}
    ),
    "memory_pressure": Knob(
        _SHARE, _FRACTION, _as_share, "no memory left on {} of the devices", {"factor": "0.000001%"}
    ),
    "clock_skew": Knob("ahead", two_digits(0.1, 200), _as_seconds, "clocks that are {} ahead"),
    "flash_crowd": Knob("after", two_digits(0.1, 60), _as_seconds, "devices that all come at once, after {}"),
    "poisoned_updates": Knob(
        _SHARE,
        _FRACTION,
        _as_share,
        "updates of {} of the devices pointing the wrong way",
        {"kind": "sign-flip"},
    ),
    "late": Knob("by", two_digits(0.01, 60), _as_seconds, "frames that come {} later"),
    "duplicate": Knob("probability", _PROBABILITY, _as_share, "{} of the frames coming twice"),
    "reorder": Knob("probability", _PROBABILITY, _as_share, "{} of the frames overtaken"),
    "corrupt": Knob("probability", _PROBABILITY, _as_share, "{} of the frames arriving as garbage"),
    "reset": Knob("probability", _PROBABILITY, _as_share, "{} of the frames tearing their connection down"),
    "coordinator_slow": Knob(
        "handling", two_digits(0.0001, 1), _as_seconds, "a coordinator that takes {} for a frame"
    ),
    "coordinator_crash": Knob(
        _LENGTH, two_digits(0.1, 600), _as_seconds, "a coordinator that is down for {}"
    ),
}
"""By the key of a kind of fault."""

_POINTS: Final = two_digits(0.01, 0.9)


class Change(ABC):
    """One thing that is worse than the scenario says."""

    grid: Grid
    at: int
    """The strength, by its position in the grid."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What is changed, in a word."""

    @abstractmethod
    def words(self) -> str:
        """Return what is worse."""

    @abstractmethod
    def strength(self) -> str:
        """Return the strength alone."""

    @abstractmethod
    def with_strength(self, at: int) -> Change:
        """Return the change with another strength of its grid."""

    @abstractmethod
    def written(self, document: dict[str, Any]) -> None:
        """Put the change into what is laid over the scenario: top-level keys with their values."""


@dataclass(frozen=True)
class OtherSeed(Change):
    """Another seed: other draws of everything."""

    seed: int
    grid: Grid = (1.0,)
    at: int = 0

    @property
    def kind(self) -> str:
        """What is changed, in a word."""
        return "seed"

    def words(self) -> str:
        """Return what is worse."""
        return f"seed {self.seed}"

    def strength(self) -> str:
        """Return the seed, which is neither strong nor weak."""
        return str(self.seed)

    def with_strength(self, at: int) -> OtherSeed:
        """Return the same."""
        return self

    def written(self, document: dict[str, Any]) -> None:
        """Write the seed."""
        document["seed"] = str(self.seed)


@dataclass(frozen=True)
class OtherShares(Change):
    """More of one network or device class in the fleet, taken from all others alike.

    Attributes
    ----------
    section : ``networks`` or ``devices``.
    name : of the profile.
    shares : of the scenario, by name.
    """

    section: str
    name: str
    shares: Mapping[str, float]
    grid: Grid
    at: int

    @property
    def kind(self) -> str:
        """What is changed, in a word."""
        return self.section

    def words(self) -> str:
        """Return what is worse."""
        return (
            f"{self.strength()} more devices {'on' if self.section == 'networks' else 'of class'} {self.name}"
        )

    def strength(self) -> str:
        """Return how much more of the fleet that is."""
        return f"{100 * self.grid[self.at]:g} percentage points"

    def with_strength(self, at: int) -> OtherShares:
        """Return the change with another strength of its grid."""
        return replace(self, at=at)

    def written(self, document: dict[str, Any]) -> None:
        """Write all shares of the section."""
        more = self.grid[self.at]
        had = self.shares.get(self.name, 0.0)
        kept = (1.0 - had - more) / (1.0 - had)
        made = {name: share * kept for name, share in self.shares.items() if name != self.name}
        made[self.name] = had + more
        document.setdefault("fleet", {})[self.section] = {
            name: f"{100 * share:.8g}%" for name, share in made.items()
        }


@dataclass(frozen=True)
class FurtherFault(Change):
    """A fault that the scenario has not.

    Attributes
    ----------
    fault : as the scenario would write it, but for its strength.
    key : its kind.
    """

    fault: Fault
    key: str
    knob: Knob
    at: int

    @property
    def kind(self) -> str:
        """What is changed, in a word."""
        return self.key

    @property
    def grid(self) -> Grid:  # type: ignore[override]
        """Strengths, the weakest first."""
        return self.knob.grid

    def words(self) -> str:
        """Return what is worse."""
        said = self.knob.words.format(self.strength())
        on = self.fault.get("on", {})
        named = {"network": "on {}", "class": "on {} devices", "region": "in {}"}
        said += "".join(f" {words.format(on[key])}" for key, words in named.items() if key in on)
        if "at_stage" in self.fault:
            said += f" at {self.fault['at_stage']}"
        return said + (f" (phase {self.fault['during']})" if "during" in self.fault else "")

    def strength(self) -> str:
        """Return the strength alone."""
        return self.knob.shown(self.grid[self.at])

    def with_strength(self, at: int) -> FurtherFault:
        """Return the change with another strength of its grid."""
        return replace(self, at=at)

    def written(self, document: dict[str, Any]) -> None:
        """Add the fault to those of the scenario."""
        made, value = dict(self.fault), self.knob.write(self.grid[self.at])
        if self.knob.setting == _SHARE:
            made["on"] = {**made.get("on", {}), _SHARE: value}
        elif self.knob.setting == _LENGTH:
            made[_LENGTH] = value
        else:
            made[self.key] = {**made[self.key], self.knob.setting: value}
        document["faults"] = [*document.get("faults", []), made]


class Surroundings:
    """What there may be around a scenario.

    Parameters
    ----------
    loaded : the scenario.
    lasts_s : simulated time that its run takes, seconds.
    """

    def __init__(self, loaded: LoadedScenario, lasts_s: float) -> None:
        scenario = loaded.scenario
        self._lasts_s = lasts_s
        self._scenario = scenario
        known = catalogue.load(loaded.profile_layers)
        fleet = scenario.fleet
        mix = None if fleet.mix is None else known.fleet(fleet.mix)
        self._grouped = fleet.groups is not None or (mix is not None and bool(mix.groups))
        self._shares: dict[str, Mapping[str, float]] = {}
        for section in ("networks", "devices"):
            own = getattr(fleet, section)
            if own is not None:
                self._shares[section] = own
            elif mix is not None:
                self._shares[section] = getattr(mix, section)
            elif fleet.groups is not None:
                self._shares[section] = {getattr(one, section[:-1]): one.share for one in fleet.groups}
        self._every = {section: known.names()[section] for section in self._shares}
        availabilities = availabilities_of(fleet, known, loaded.folder(("fleet", "availability")))
        self._regions = regions_of_fleet(fleet, availabilities)
        self._phases = [phase.name for phase in scenario.phases]
        buffered = isinstance(scenario.rounds.pacing, Buffered)
        self._kinds = [
            key
            for key, kind in KINDS.items()
            if (key in KNOBS or kind.of_devices) and not kind.of_items and not (buffered and kind.of_rounds)
        ]

    def drawn(self, draws: Draws) -> tuple[Change, ...]:
        """Return one to three random changes."""
        found: list[Change] = []
        for number in range(draws.weighted({1: 6, 2: 2, 3: 1})):
            change = self._one(draws, number)
            # Of two seeds, or two fleets, one would stand.
            if isinstance(change, FurtherFault) or not any(type(one) is type(change) for one in found):
                found.append(change)
        return tuple(found)

    def _one(self, draws: Draws, number: int) -> Change:
        what = draws.weighted({"fault": 8, "shares": 0 if self._grouped else 2, "seed": 1})
        if what == "seed":
            return OtherSeed(draws.whole(0, MOST_SEEDS))
        if what == "shares":
            return self._of_fleet(draws)
        return self._fault(draws, number)

    def _of_fleet(self, draws: Draws) -> OtherShares:
        section = draws.one(("networks", "devices"))
        shares = self._shares[section]
        name = draws.one([name for name in self._every[section] if shares.get(name, 0.0) <= 0.95])
        grid = tuple(value for value in _POINTS if value < 1.0 - shares.get(name, 0.0))
        return OtherShares(section, name, shares, grid, draws.whole(0, len(grid) - 1))

    def _fault(self, draws: Draws, number: int) -> FurtherFault:
        key = draws.one(self._kinds)
        kind, knob = KINDS[key], KNOBS.get(key)
        if knob is None:  # of a plug-in
            words = f"{kind.summary} ({{}} of the devices)"
            knob = Knob(_SHARE, _FRACTION, _as_share, words, kind.drawn(draws))
        # No name of a fault that is there: a file of an earlier search may be searched around, too.
        made: Fault = {"name": f"{_NAME} {len(self._scenario.faults) + number + 1}"}
        phase = draws.one(self._phases) if self._phases and draws.chance(0.4) else None
        if phase is not None:
            made["during"] = phase
        if kind.must_end:
            # Once, and not in every round.
            made.pop("during", None)
            made["at"] = _as_seconds(float(f"{self._lasts_s * draws.between(0.01, 1):.3g}"))
        elif kind.must_begin:
            sums = self._scenario.secure_in(phase or (self._phases or [""])[0])
            pinnable = {label(stage) for stage in kind.stages}
            made["at_stage"] = draws.one([stage for stage in stages_of(sums) if stage in pinnable])
        group = self._group(draws) if kind.of_devices else {}
        if group:
            made["on"] = group
        made[key] = dict(knob.settings)
        return FurtherFault(made, key, knob, draws.whole(0, len(knob.grid) - 1))

    def _group(self, draws: Draws) -> dict[str, str]:
        several = {section: list(shares) for section, shares in self._shares.items() if len(shares) > 1}
        weights = {
            "": 2.0,
            "networks": 2.0 * ("networks" in several),
            "devices": 1.0 * ("devices" in several),
        }
        weights["region"] = 1.0 * (len(self._regions) > 1)
        match draws.weighted(weights):
            case "networks":
                return {"network": draws.one(several["networks"])}
            case "devices":
                return {"class": draws.one(several["devices"])}
            case "region":
                return {"region": draws.one(self._regions)}
        return {}


def laid_over(loaded: LoadedScenario, changes: Sequence[Change]) -> dict[str, Any]:
    """Return the top-level keys that changes write, with all of their values; lists are whole."""
    document: dict[str, Any] = {}
    own = loaded.document.root.get("faults")
    if own:
        document["faults"] = list(own) if isinstance(own, list) else own
    for change in changes:
        change.written(document)
    if not any(isinstance(change, FurtherFault) for change in changes):
        document.pop("faults", None)
    return document


def settings_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is laid over a scenario as ``--set`` takes it."""
    for key, value in document.items():
        yield f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


def in_words(changes: Sequence[Change]) -> str:
    """Return all changes in words."""
    return " and ".join(change.words() for change in changes)
