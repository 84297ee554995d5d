"""The sections of a scenario, as immutable models with a description and a default each.

The reference of scenario files, the JSON Schema for editors and the flattened form of a scenario are all made
from these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field

from coordinator.scenario.aggregation_section import Aggregation, MeanRule
from coordinator.scenario.data_section import Data, MeanQuerySection, SyntheticRegression
from coordinator.scenario.faults_section import Faults
from coordinator.scenario.fleet_section import Connection, CoordinatorLink, ScenarioFleet
from coordinator.scenario.model import Section
from coordinator.scenario.privacy_section import Privacy
from coordinator.scenario.registered_sections import Learning, method_name
from coordinator.scenario.rounds_section import (
    AdmissionSection,
    Audit,
    Compute,
    EvaluationSection,
    ExposureSection,
    InferenceSection,
    Limits,
    Phase,
    RecordSection,
    Rounds,
)
from coordinator.scenario.secure_section import NoSecureAggregation, SecureAggregation
from coordinator.scenario.sweep_section import SweepSection
from coordinator.scenario.thresholds import Threshold, parse_thresholds, written_thresholds
from device_profiles.fields import Form, NonNegativeInt, OnDemand, Text
from device_profiles.quantities import UnitError, quoted
from edge.core.plugins import ALGORITHMS, FAULTS, READERS, SELECTORS, Entry, used
from edge.core.vocabulary import MEAN_QUERIES
from edge.learning.registry import METHODS

FORMAT: Final = 2
"""The format that scenarios are written in; older files are read by :mod:`coordinator.scenario.formats`."""


def _read_format(value: object) -> int:
    if (isinstance(value, str) and value.strip() == str(FORMAT)) or (type(value) is int and value == FORMAT):
        return FORMAT
    raise UnitError(f"{quoted(value)} is a format that this version does not know; write '{FORMAT}'")


def _read_thresholds(value: object) -> tuple[Threshold, ...]:
    return value if isinstance(value, tuple) else parse_thresholds(value)


_EXPECTATIONS: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "object",
                        "properties": {
                            "expect": {"type": "string"},
                            "abort": {"enum": [True, False, "true", "false"]},
                            "after": {"type": "string"},
                        },
                        "required": ["expect"],
                        "additionalProperties": False,
                    },
                ]
            },
        },
    ]
}

_SAY_WHAT_IS_DRAWN: Final = (
    ("data",),
    ("data", "negatives"),
    ("learning",),
    ("learning", "algorithm"),
    ("learning", "base"),
)
"""Beginnings of the paths of settings that decide whether devices draw items."""

FormatNumber = Annotated[int, Form(f"`{FORMAT}`", str, _read_format, {"enum": [FORMAT, str(FORMAT)]})]
Thresholds = Annotated[
    tuple[Threshold, ...],
    Form(
        "mapping from metric to expectations",
        written_thresholds,
        _read_thresholds,
        {"type": "object", "additionalProperties": _EXPECTATIONS},
    ),
]


class Sections(Section):
    """The sections of a scenario, and what follows from several of them; unchecked between each other."""

    format: FormatNumber = Field(description="version of this format")
    title: Text | None = Field(default=None, description="one line")
    description: Text | None = Field(default=None, description="what the scenario is for")
    seed: NonNegativeInt = Field(default=1, description="all randomness of the run follows from it")
    data: Data = Field(description="which ratings or samples the devices hold")
    fleet: Annotated[ScenarioFleet, OnDemand()] = Field(
        description="which devices there are, on which networks, and when"
    )
    coordinator: Annotated[CoordinatorLink, OnDemand()] = Field(
        default=CoordinatorLink.model_construct(), description="the coordinator's own link"
    )
    connection: Annotated[Connection, OnDemand()] = Field(
        default=Connection.model_construct(), description="how devices connect"
    )
    learning: Learning = Field(description="the method, by `algorithm`, and its settings")
    rounds: Annotated[Rounds, OnDemand()] = Field(description="rounds, cohort and waiting")
    admission: Annotated[AdmissionSection, OnDemand()] = Field(
        default=AdmissionSection.model_construct(),
        description="which devices may go on taking part in rounds",
    )
    phases: tuple[Annotated[Phase, OnDemand()], ...] = Field(
        default=(), description="named stretches of the run, for thresholds"
    )
    secure_aggregation: SecureAggregation = Field(
        default=NoSecureAggregation.model_construct(),
        description="how updates are summed so that only the sum is seen",
    )
    aggregation: Aggregation = Field(
        default=MeanRule.model_construct(),
        description="what is taken for the mean of updates, some of which may be poisoned",
    )
    privacy: Privacy | None = Field(
        default=None, description="noise that hides a single user, and how much; none by default"
    )
    faults: Faults = Field(default=(), description="what goes wrong on purpose, and when")
    baseline: Literal["same-seed-without-faults"] | None = Field(
        default=None, description="run the scenario without its faults first, for thresholds to compare with"
    )
    sweep: SweepSection | None = Field(
        default=None,
        description="settings that `recfleet sweep` varies; `recfleet run` leaves them as they are",
    )
    evaluation: Annotated[EvaluationSection, OnDemand()] = Field(
        default=EvaluationSection.model_construct(), description="when and on whom the model is measured"
    )
    audit: Annotated[Audit, OnDemand()] | None = Field(
        default=None, description="attacks on the masks of fedmmf, tried beside the run; none by default"
    )
    inference: Annotated[InferenceSection, OnDemand()] | None = Field(
        default=None,
        description="devices run their own models through onnxruntime, beside the run; none by default",
    )
    record: Annotated[RecordSection, OnDemand()] = Field(
        default=RecordSection.model_construct(), description="what the run leaves"
    )
    compute: Annotated[Compute, OnDemand()] = Field(
        default=Compute.model_construct(), description="how this host computes; never changes a result"
    )
    limits: Annotated[Limits, OnDemand()] = Field(default=Limits.model_construct(), description="bounds")
    expect: Literal["no-round-completed", "diverged"] | None = Field(
        default=None,
        description="the ending that is the success of this scenario, in place of a model that learns",
    )
    thresholds: Thresholds = Field(default=(), description="promises; the exit code says whether they held")

    @property
    def phase_rounds(self) -> int | None:
        """Rounds that the phases add up to; None without phases and for phases measured in time."""
        rounds = [phase.rounds for phase in self.phases if phase.rounds is not None]
        return sum(rounds) if rounds and len(rounds) == len(self.phases) else None

    @property
    def round_count(self) -> int | None:
        """Number of rounds; None when only the time of the phases limits the run."""
        return self.rounds.count if self.rounds.count is not None else self.phase_rounds

    @property
    def evaluation_rounds(self) -> Rounds:
        """How devices are asked to measure the model: the section ``rounds`` with the cohort of evaluations.

        A quorum in devices is no more than that cohort.
        """
        return self._rounds_of(self.evaluation.cohort)

    @property
    def mean_query(self) -> MeanQuerySection | None:
        """The question for the mean rating; None where devices are not asked."""
        return None if isinstance(self.data, SyntheticRegression) else self.data.mean_query

    @property
    def query_rounds(self) -> Rounds:
        """How devices are asked for the mean rating, likewise."""
        return self._rounds_of(None if self.mean_query is None else self.mean_query.cohort)

    def _rounds_of(self, cohort: int | None) -> Rounds:
        rounds = self.rounds
        if cohort is None:
            return rounds
        quorum = min(rounds.quorum, cohort) if isinstance(rounds.quorum, int) else rounds.quorum
        return rounds.model_copy(update={"cohort": cohort, "quorum": quorum})

    @property
    def promoted_item(self) -> str | None:
        """The item that faults promote, as the data calls it; None where none does."""
        items = (kind.promoted_item for fault in self.faults for kind in fault.kinds)
        return next((item for item in items if item is not None), None)

    @property
    def exposure(self) -> ExposureSection | None:
        """The item whose exposure is measured, as asked for or of a fault; None where there is none.

        Devices that measure the model report none.
        """
        asked, item = self.evaluation.exposure, self.promoted_item
        if asked is not None or item is None or self.evaluation.on_devices:
            return asked
        return ExposureSection(item=item)

    @property
    def answers_count(self) -> int | None:
        """Most rounds, evaluations and queries that a device can be invited to; None if unknown."""
        count = self.round_count
        if count is None:
            return None
        queries = 0 if self.mean_query is None else MEAN_QUERIES
        # An evaluation before the first round and one after the last, at most, beside those in between.
        evaluations = count // self.evaluation.every + 2 if self.evaluation.on_devices else 0
        return count + evaluations + queries

    @property
    def phase_time_s(self) -> float | None:
        """Simulated time that the phases add up to, seconds; None unless they are measured in time."""
        times = [phase.time for phase in self.phases if phase.time is not None]
        return sum(times) if times and len(times) == len(self.phases) else None

    def phase_at(self, round_number: int, time_s: float) -> str:
        """Return the name of the phase of a round, or ``""`` without phases.

        Parameters
        ----------
        round_number : counted from 0.
        time_s : simulated time at which the round starts.
        """
        position = float(round_number)
        for phase in self.phases:
            if phase.time is not None:
                position = time_s if phase is self.phases[0] else position
            position -= phase.rounds if phase.rounds is not None else (phase.time or 0.0)
            if position < 0:
                return phase.name
        return self.phases[-1].name if self.phases else ""

    @property
    def draws_items(self) -> bool:
        """Whether devices draw items that their users have not rated, as zeros or as negatives."""
        if isinstance(self.data, SyntheticRegression):
            return False
        method = METHODS[method_name(self.learning)]
        return self.data.negatives is not None or method.draws_items(self.learning)

    @property
    def may_draw_items(self) -> bool:
        """Whether devices draw such items, or may do so in a cell of the sweep."""
        axes = () if self.sweep is None else self.sweep.axes
        varied = (setting.path[:2] for axis in axes for settings in axis for setting in settings)
        return self.draws_items or any(path in _SAY_WHAT_IS_DRAWN for path in varied)

    def plain(self) -> Self:
        """Return the scenario with the default for what changes nothing: equal requests, equal scenarios."""
        if isinstance(self.data, SyntheticRegression) or self.may_draw_items:
            return self
        default = type(self.data).model_fields["held_out_negatives"].default
        return self.model_copy(update={"data": self.data.model_copy(update={"held_out_negatives": default})})

    @property
    def plugins(self) -> tuple[Entry, ...]:
        """The plug-ins that it uses, without what is built in."""
        faults = ((FAULTS, key) for fault in self.faults for key in fault.keys)
        method, selector = (ALGORITHMS, method_name(self.learning)), (SELECTORS, self.rounds.selection.name)
        return used((method, selector, (READERS, getattr(self.data, "source", "")), *faults))

    def deadline_in(self, phase: str) -> float:
        """Return how long a round of a phase waits, seconds; the phase is ``""`` where there are none."""
        for one in self.phases:
            if one.name == phase and one.deadline is not None:
                return one.deadline
        return self.rounds.deadline

    def secure_in(self, phase: str) -> SecureAggregation:
        """Return how updates are summed in a phase, by its name; ``""`` where there are no phases."""
        for one in self.phases:
            if one.name == phase and one.secure_aggregation is not None:
                return one.secure_aggregation
        return self.secure_aggregation
