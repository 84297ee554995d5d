"""The section ``faults``: what goes wrong on purpose, when, and for whom."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, create_model

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.model import MadeWhenAsked, Section, random_settings
from coordinator.scenario.secure_section import Masking, SecureAggregation
from device_profiles.fields import (
    Form,
    NonNegativeInt,
    OnDemand,
    PositiveFraction,
    PositiveSeconds,
    Seconds,
    StrictBool,
    Text,
    describe_value,
)
from device_profiles.quantities import UnitError
from edge.core.plugins import FAULTS, View, generation
from edge.core.rng import Draws
from edge.core.vocabulary import Stage, label

STAGE_ORDER: Final = (
    Stage.INVITE,
    Stage.DOWNLOAD,
    Stage.COMPUTE,
    Stage.REPORT,
    Stage.ADVERTISE_KEYS,
    Stage.SHARE_KEYS,
    Stage.MASKED_INPUT,
    Stage.CONSISTENCY,
    Stage.UNMASK,
    Stage.ACKNOWLEDGE,
)
"""The stages as a device comes to them."""
STAGE_OF_LABEL: Final = {label(stage): stage for stage in Stage}
EVERYWHERE: Final = frozenset(STAGE_ORDER)

_EVERY_MODE: Final = (Stage.INVITE, Stage.DOWNLOAD, Stage.COMPUTE)
_MASKING: Final = (*_EVERY_MODE, Stage.ADVERTISE_KEYS, Stage.SHARE_KEYS, Stage.MASKED_INPUT)


def _labels(*stages: Stage) -> tuple[str, ...]:
    return tuple(label(stage) for stage in (*stages, Stage.ACKNOWLEDGE))


STAGES_OF_MODE: Final = {
    "off": _labels(*_EVERY_MODE, Stage.REPORT),
    "secagg": _labels(*_MASKING, Stage.UNMASK),
    "secagg-plus": _labels(*_MASKING, Stage.UNMASK),
    "active": _labels(*_MASKING, Stage.CONSISTENCY, Stage.UNMASK),
    "ckks": _labels(*_EVERY_MODE, Stage.MASKED_INPUT, Stage.UNMASK),
}
"""The stages at which a device can be struck, by the mode of secure aggregation."""


def stages_of(section: SecureAggregation) -> tuple[str, ...]:
    """Return the stages at which a device can be struck where updates are summed as ``section`` says."""
    stages = STAGES_OF_MODE[section.mode]
    mixed = isinstance(section, Masking) and section.shielded is not None
    return (*stages, label(Stage.REPORT)) if mixed else stages


def _read_phases(value: object) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise UnitError(f"{describe_value(value)} where phases belong; write a name, or a list of names")
    return tuple(str(name) for name in names)


def _write_phases(names: tuple[str, ...]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


Phases = Annotated[
    tuple[str, ...],
    Form(
        "text, or list of text",
        _write_phases,
        _read_phases,
        {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "string"}}]},
    ),
]

# Words of Python that are keys of a scenario; read them by the properties below.
if TYPE_CHECKING:

    class _ByClass(Section):
        pass

    class _Lasting(Section):
        pass

else:
    _ByClass = create_model(
        "_ByClass",
        __base__=Section,
        **{"class": (Text | None, Field(default=None, description="only devices of this profile"))},
    )
    _Lasting = create_model(
        "_Lasting",
        __base__=Section,
        **{
            "for": (
                PositiveSeconds | None,
                Field(default=None, description="how long it lasts, from `at`, or from the stage on"),
            )
        },
    )


class Victims(_ByClass):
    """Which devices a fault strikes: of the invited ones that all filters admit, an exact share."""

    fraction: PositiveFraction = Field(
        default=1.0, description="exact share of those that the filters admit, drawn by the seed"
    )
    network: Text | None = Field(default=None, description="only devices on this network")
    region: Text | None = Field(default=None, description="only devices of this region, `region-0` …")
    devices: tuple[NonNegativeInt, ...] | None = Field(default=None, description="only these, by number")
    slowest: PositiveFraction | None = Field(
        default=None, description="only this share of them, those that compute the longest in the round"
    )
    fixed: StrictBool = Field(
        default=False,
        description="draw once among the whole fleet, so that the same devices are struck in every round",
    )

    @property
    def device_class(self) -> str | None:
        """The device profile, the key ``class``."""
        found: str | None = getattr(self, "class")
        return found

    def _problems(self) -> Iterator[FieldProblem]:
        if self.fixed and self.slowest is not None:
            message = "who is slowest is known only in a round; leave one of 'fixed' and 'slowest' out"
            yield FieldProblem(("fixed",), message, None, of_key=True)
        if self.devices is not None and not self.devices:
            yield FieldProblem(("devices",), "names nobody; write numbers such as [0, 7], or leave it out")
        seen: set[int] = set()
        for place, device in enumerate(self.devices or ()):
            if device in seen:
                yield FieldProblem(("devices", place), f"device {device} a second time; leave it out")
            seen.add(device)


class FaultSettings(Section):
    """The settings of a kind of fault, and what a scenario may ask of it.

    A section per kind: its docstring says in one sentence what happens; the reference of scenario files shows
    it.
    """

    key: ClassVar[str]
    """The key of a fault that says that this happens."""
    summary: ClassVar[str]
    """What happens, in a few words."""
    directed: ClassVar[bool] = False
    """Whether it may strike one direction alone."""
    stages: ClassVar[frozenset[Stage]] = EVERYWHERE
    """The stages that it can be pinned to."""
    elsewhere: ClassVar[str] = ""
    """Why it cannot be pinned to stages other than those."""
    of_devices: ClassVar[bool] = True
    """Whether it strikes devices, and not the coordinator."""
    of_links: ClassVar[bool] = False
    """Whether it befalls links, and may do so beside others in one fault."""
    of_rounds: ClassVar[bool] = False
    """Whether it strikes the devices of a round together, and means nothing where there are no rounds."""
    of_updates: ClassVar[bool] = False
    """Whether it spoils updates."""
    of_items: ClassVar[bool] = False
    """Whether it aims at an item, :attr:`promoted_item`."""
    crashes: ClassVar[bool] = False
    """Whether it takes the coordinator down for some time."""
    lingers: ClassVar[bool] = False
    """Whether what it has done outlasts it."""
    lasting: ClassVar[bool] = False
    """Whether it can begin with a stage and last for some time."""
    must_begin: ClassVar[bool] = False
    """Whether a fault has to say when it begins, by a stage or a time."""
    must_end: ClassVar[bool] = False
    """Whether a fault has to say how long it lasts."""

    @property
    def neutral(self) -> bool:
        """Whether the settings change nothing, whomever they strike."""
        return False

    @property
    def momentary(self) -> bool:
        """Whether it happens once, at the time that it is given, and strikes no round that begins later."""
        return False

    @property
    def exceeds_bound(self) -> bool:
        """Whether updates may be larger than the bound on their norms."""
        return False

    @property
    def promoted_item(self) -> str | None:
        """The item that it aims at, as the data calls it; None of a kind that aims at none."""
        return None

    @property
    def pinnable(self) -> frozenset[Stage]:
        """The stages that it can be pinned to with these settings."""
        return self.stages

    @property
    def directable(self) -> bool:
        """Whether it may strike one direction alone with these settings."""
        return self.directed

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault, with paths relative to it."""
        return iter(())

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings as a scenario writes them, for the swarm."""
        return random_settings(cls, draws)


class Fault(_Lasting):
    """Something that goes wrong. One of the keys from `vanish` on says what; those of links go together.

    It does so in the rounds of some phases, in a stretch of time, or always; at one stage or at all.
    """

    name: Text = Field(description="names the fault, and its random draws")
    during: Phases | None = Field(
        default=None, description="phases whose rounds are struck; by default the whole run"
    )
    at: Seconds | None = Field(default=None, description="simulated time at which it begins")
    at_stage: Text | None = Field(
        default=None, description="stage of the round: `download`, `compute`, `masked-input` …"
    )
    on: Annotated[Victims, OnDemand()] = Field(default=Victims.model_construct(), description="which devices")
    direction: Literal["up", "down", "both"] | None = Field(
        default=None, description="way that is struck, of faults of links and frames; by default both"
    )

    def __reduce__(self) -> tuple[Any, ...]:
        # Its class is made from the registry, anew in every process.
        return _blank, (), self.__getstate__()

    @property
    def lasts_s(self) -> float | None:
        """How long it lasts, the key ``for``."""
        found: float | None = getattr(self, "for")
        return found

    @property
    def window_s(self) -> tuple[float, float]:
        """From when until when it can strike, absolute seconds; everywhere without ``at``."""
        if self.at is None:
            return -math.inf, math.inf
        if self.lasts_s is not None:
            return self.at, self.at + self.lasts_s
        return self.at, self.at if self.at_stage is None and self.kind.momentary else math.inf

    @property
    def key(self) -> str:
        """The key that says what happens; the first of several."""
        return self.keys[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that say what happens."""
        return tuple(name for name in KINDS if getattr(self, name, None) is not None)

    @property
    def kind(self) -> FaultSettings:
        """What happens; the first of several things that befall links."""
        return self.kinds[0]

    @property
    def kinds(self) -> tuple[FaultSettings, ...]:
        """All that happens: one thing, or several that befall the same links."""
        return tuple(getattr(self, name) for name in self.keys)

    def _problems(self) -> Iterator[FieldProblem]:
        if not self.keys:
            yield FieldProblem((), f"says not what happens; write one of {', '.join(KINDS)}")
            return
        first, *others = self.keys
        for name in others:
            if not (KINDS[first].of_links and KINDS[name].of_links):
                message = f"a second thing that happens beside {first}; write a fault for each"
                yield FieldProblem((name,), message, None, of_key=True)
        kind = self.kind
        if self.at is not None and self.during is not None:
            yield FieldProblem(("at",), "contradicts during; write one of the two", None, of_key=True)
        if self.lasts_s is not None and self.at is None and not (kind.lasting and self.at_stage is not None):
            begins = "'at' or 'at_stage'" if kind.lasting else "'at'"
            yield FieldProblem(("for",), f"says not from when; write {begins}", None, of_key=True)
        if self.direction is not None and not kind.directed:
            message = f"{self.key} has no direction; leave it out"
            yield FieldProblem(("direction",), message, None, of_key=True)
        if not kind.of_devices and self.on != Victims():
            message = f"{self.key} strikes the coordinator; leave it out"
            yield FieldProblem(("on",), message, None, of_key=True)
        for kind in self.kinds:
            yield from kind.problems(self)


KINDS: Final[Mapping[str, type[FaultSettings]]] = View(FAULTS)
"""Every kind of fault by its key, in the order of the reference."""


def fault_section() -> type[Fault]:
    """Return the section of a fault, with a key for every kind that is registered."""
    return _with_kinds(generation())


@cache
def _with_kinds(number: int) -> type[Fault]:
    kinds: dict[str, Any] = {
        name: (Annotated[kind, OnDemand()] | None, Field(default=None, description=kind.summary))
        for name, kind in KINDS.items()
    }
    made = create_model("Fault", __base__=Fault, __module__=__name__, __doc__=Fault.__doc__, **kinds)
    # In the reference the keys that are common to all faults come first.
    made.__annotations__ = inspect.get_annotations(Fault) | inspect.get_annotations(made)
    return made


def _blank() -> Fault:
    """Return a fault without values, to be unpickled into."""
    section = fault_section()
    return section.__new__(section)


Faults = tuple[Annotated[Fault, MadeWhenAsked(fault_section)], ...]
