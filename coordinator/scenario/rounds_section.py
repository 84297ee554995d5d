"""The sections on rounds and phases, what is measured beside them and recorded, and limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from coordinator.scenario import MAX_WORKERS
from coordinator.scenario.errors import FieldProblem, FieldProblemsError
from coordinator.scenario.model import Section
from coordinator.scenario.registered_sections import Selection, default_selection
from coordinator.scenario.secure_section import SecureAggregation
from coordinator.scenario.thresholds import Threshold, parse_expectation, parse_metric
from device_profiles.fields import (
    Form,
    NonNegativeInt,
    PositiveBytes,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    PositiveSeconds,
    Ratio,
    Seconds,
    StrictBool,
    Text,
)
from device_profiles.quantities import UnitError, quoted
from device_profiles.units import parse_fraction, write_ratio
from edge.onnx import graph_writer

_WHOLE: Final = re.compile(r"\+?[0-9][0-9_]{0,14}")
_PHASE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class _InRounds(Section):
    """What all ways of pacing have in common that go round after round."""

    learns: ClassVar[bool] = False
    """Whether the coordinator needs to know what devices reported."""

    grace: PositiveSeconds | None = Field(
        default=None,
        description="close a round this long after its quorum was met; by default at its cohort or deadline",
    )


class Synchronous(_InRounds):
    """Round after round: each ends with the last report wanted, or at its deadline."""

    mode: Literal["synchronous"] = Field(default="synchronous", description="synchronous: round after round")


class PartialWorkPacing(_InRounds):
    """Round after round; each device takes as many local steps as its deadline allows, one at least."""

    mode: Literal["partial-work"]
    margin: PositiveFraction = Field(
        default=0.9, description="part of the deadline that a device plans to use, by what its link promises"
    )


class Tiers(_InRounds):
    """Round after round, each with devices of one tier of speed (TiFL, Chai et al. 2020)."""

    learns: ClassVar[bool] = True

    mode: Literal["tiers"]
    tiers: PositiveInt = Field(
        default=5, description="tiers of equal size that devices are put into by speed"
    )
    profiling: PositiveInt = Field(default=5, description="first rounds, which draw from the whole fleet")
    every: PositiveInt = Field(default=10, description="rounds after which devices are put into tiers anew")
    credits: PositiveInt = Field(
        default=10, description="rounds that a tier may have before all others have had as many"
    )


class Buffered(Section):
    """No rounds: a server step after every ``cohort`` reports, whatever model they began with (FedBuff)."""

    learns: ClassVar[bool] = False

    mode: Literal["buffered"]
    concurrency: PositiveInt = Field(description="devices at work at any time")
    staleness_limit: NonNegativeInt = Field(
        default=10, description="reports on a model that so many server steps have replaced still count"
    )
    staleness_weight: Literal["inverse-sqrt", "constant"] = Field(
        default="inverse-sqrt",
        description="what a report is multiplied by that is τ steps old: 1/√(1 + τ), or 1; a fresh one by 1",
    )


Pacing = Annotated[Synchronous | PartialWorkPacing | Tiers | Buffered, Field(discriminator="mode")]


def _read_whole_or(word: str, value: object) -> int | str:
    """Return a positive whole number, or ``word`` itself."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    text = value.strip() if isinstance(value, str) else ""
    if text == word:
        return word
    if _WHOLE.fullmatch(text) and int(text) > 0:
        return int(text)
    raise UnitError(f"{quoted(value)} is neither '{word}' nor a positive whole number; write one of them")


def _read_users(value: object) -> int | str:
    return _read_whole_or("all", value)


def _read_negatives(value: object) -> int | str:
    return _read_whole_or("full", value)


def _read_quorum(value: object) -> int | float:
    if isinstance(value, float) and 0 < value <= 1:
        return value
    if isinstance(value, str) and value.strip().endswith("%"):
        share = parse_fraction(value)
        if share <= 0:
            raise UnitError(f"{quoted(value)} is zero; write more, such as '80%', or '1'")
        return share
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    text = value.strip() if isinstance(value, str) else ""
    if _WHOLE.fullmatch(text) and int(text) > 0:
        return int(text)
    raise UnitError(
        f"{quoted(value)} is not a number of reports; write one such as '80', or '80%' of the cohort"
    )


def _write_quorum(value: float) -> str:
    return write_ratio(value) if isinstance(value, float) else str(value)


def _whole_or_schema(word: str) -> WithJsonSchema:
    whole = {"type": "string", "pattern": r"^\+?[0-9][0-9_]*$"}
    return WithJsonSchema({"anyOf": [{"const": word}, {"type": "integer", "minimum": 1}, whole]})


UserSample = Annotated[
    int | Literal["all"],
    BeforeValidator(_read_users),
    _whole_or_schema("all"),
    Form("`all` or a whole number", str),
]


Negatives = Annotated[
    int | Literal["full"],
    BeforeValidator(_read_negatives),
    _whole_or_schema("full"),
    Form("`full` or a whole number", str),
]


Quorum = Annotated[
    int | float,
    BeforeValidator(_read_quorum),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\s*[0-9_.]+\s*%?\s*$"},
            ]
        }
    ),
    Form("whole number, or percentage of the cohort", _write_quorum),
]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure of an evaluation at which training may stop, such as ``model.rmse <= 0.92``."""

    threshold: Threshold

    def __str__(self) -> str:
        return f"{self.threshold.key} {self.threshold.operator} {self.threshold.limit.value!r}"

    def reached(self, value: float) -> bool:
        """Return whether a newly evaluated value of the metric meets the target."""
        limit = self.threshold.limit.value
        return value <= limit if self.threshold.operator == "<=" else value >= limit


_TARGET: Final = re.compile(r"(model\.[^\s<>=]+)\s*(<=|>=)\s*([^\s*]+)")


def _read_target(value: object) -> Target:
    if isinstance(value, Target):
        return value
    match = _TARGET.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UnitError(
            f"{quoted(value)} is not a target; write 'model.rmse <= 0.92' or 'model.ndcg@10 >= 0.2'"
        )
    try:
        metric, tags = parse_metric(match.group(1))
    except FieldProblemsError as error:
        problem = error.problems[0]
        hint = f" ({problem.suggestion})" if problem.suggestion else ""
        raise UnitError(f"{problem.message}{hint}") from None
    threshold = parse_expectation(metric, tags, f"last {match.group(2)} {match.group(3)}")
    if threshold.limit.relative_to is not None:
        raise UnitError(f"{quoted(match.group(3))} is no figure to reach; write a number, such as '0.92'")
    return Target(threshold)


TargetText = Annotated[
    Target,
    BeforeValidator(_read_target),
    WithJsonSchema({"type": "string", "pattern": _TARGET.pattern, "examples": ["model.rmse <= 0.92"]}),
    Form("target, like `model.rmse <= 0.92`", str),
]


class Retry(Section):
    """How a device repeats a transfer that failed."""

    attempts: PositiveInt = Field(default=3, description="tries of one transfer, the first included")
    first_backoff: Seconds = Field(default=1.0, description="pause before the second try")
    factor: PositiveFloat = Field(
        default=2.0, description="each further pause is this many times the one before"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if self.factor < 1:
            yield FieldProblem(("factor",), f"{self.factor:g} would shrink the pauses; write 1 or more")
        if self.attempts > 20:
            yield FieldProblem(
                ("attempts",), f"{self.attempts} tries are more than the limit; write 20 or less"
            )


class Rounds(Section):
    """How many rounds, with how many devices, and how long the coordinator waits."""

    count: PositiveInt | None = Field(
        default=None, description="number of rounds; left out when phases count them"
    )
    cohort: PositiveInt = Field(description="reports wanted per round")
    over_select: Ratio = Field(default=1.0, description="devices invited per report wanted, 100% or more")
    quorum: Quorum = Field(default=1, description="with fewer reports than this, the round is abandoned")
    deadline: PositiveSeconds = Field(
        default=60.0, description="simulated time from invitation to last report"
    )
    selection: Selection = Field(default_factory=default_selection, description="who is invited")
    pacing: Pacing = Field(default=Synchronous(), description="how stragglers are dealt with")
    max_wait: Seconds = Field(
        default=86400.0, description="longest wait for devices when nobody is available; then the run stops"
    )
    interval: Seconds = Field(default=0.0, description="pause between the end of a round and the next")
    retry: Retry = Field(default=Retry(), description="how a device repeats a failed transfer")
    simulated_time_limit: PositiveSeconds | None = Field(
        default=None, description="end the run at this simulated time; none by default"
    )
    target: TargetText | None = Field(
        default=None, description="stop once an evaluation reaches this figure; none by default"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if self.over_select < 1:
            yield FieldProblem(
                ("over_select",),
                f"{write_ratio(self.over_select)} invites fewer than wanted; write 100% or more",
            )
        elif self.over_select > 100:
            yield FieldProblem(("over_select",), "more than 100 devices per report; write 10000% or less")
        if isinstance(self.quorum, int) and self.quorum > self.cohort:
            yield FieldProblem(
                ("quorum",),
                f"{self.quorum} is more than the cohort of {self.cohort}; write {self.cohort} or less",
            )

    @property
    def quorum_reports(self) -> int:
        """Reports that a round needs to count."""
        if isinstance(self.quorum, int):
            return self.quorum
        # Rounded before the ceiling: 30% of 10 is 3, whatever 0.3 * 10 is in binary.
        return max(1, math.ceil(round(self.quorum * self.cohort, 9)))

    @property
    def learns(self) -> bool:
        """Whether what devices reported before decides who is invited."""
        return self.selection.learns or self.pacing.learns

    @property
    def grace_s(self) -> float | None:
        """How long a round goes on once its quorum is met, seconds; None: to its cohort or deadline."""
        return None if isinstance(self.pacing, Buffered) else self.pacing.grace

    @property
    def invited(self) -> int:
        """Devices invited per round."""
        return math.ceil(round(self.over_select * self.cohort, 9))


class Phase(Section):
    """A stretch of the run with a name, which thresholds can refer to."""

    name: Text = Field(description="letters, digits, '-' and '_'")
    rounds: PositiveInt | None = Field(default=None, description="its length in rounds")
    time: PositiveSeconds | None = Field(
        default=None, description="its length in simulated time, instead of `rounds`"
    )
    secure_aggregation: SecureAggregation | None = Field(
        default=None, description="how updates are summed in this phase, in place of the scenario's section"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if not _PHASE_NAME.fullmatch(self.name):
            yield FieldProblem(
                ("name",), f"{quoted(self.name)} is no name of a phase; write letters, digits, '-' and '_'"
            )
        if self.rounds is None and self.time is None:
            yield FieldProblem(("rounds",), "missing; write the phase's length as 'rounds' or 'time'")
        if self.rounds is not None and self.time is not None:
            yield FieldProblem(("time",), "contradicts rounds; write one of the two", None, of_key=True)


class Ranking(Section):
    """Ranking metrics: hit rate, NDCG, recall and precision."""

    k: tuple[PositiveInt, ...] = Field(default=(10,), description="cut-offs", min_length=1)
    negatives: Negatives = Field(
        default="full",
        description="rank all items, or (leave-one-out splits only) the held-out one among this many that the"
        " user never rated",
    )


class EvaluationSection(Section):
    """When and on whom the model is measured."""

    every: PositiveInt = Field(default=10, description="rounds from one evaluation to the next")
    users: UserSample = Field(
        default="all", description="users evaluated, or the size of a seeded sample of them"
    )
    on: Literal["test", "validation"] = Field(
        default="test", description="which of the kept-back ratings are scored"
    )
    ranking: Ranking | None = Field(default=None, description="measure rankings too; not by default")
    final: StrictBool = Field(default=True, description="evaluate after the last round in any case")


class RecordSection(Section):
    """What a run leaves beside its summary and its tables of rounds and devices."""

    events: Literal["all", "none"] = Field(
        default="all", description="write every event to the event table, or suspensions alone"
    )
    trace_devices: NonNegativeInt = Field(default=50, description="devices shown in the trace")


class Compute(Section):
    """How this host computes; never changes a result."""

    batch: PositiveInt = Field(default=256, description="client updates computed together")
    workers: NonNegativeInt = Field(default=0, description="worker processes; 0 computes in the main process")

    def _problems(self) -> Iterator[FieldProblem]:
        if self.workers > MAX_WORKERS:
            message = f"{self.workers} processes are too many; write {MAX_WORKERS} or less"
            yield FieldProblem(("workers",), message)


class AdmissionSection(Section):
    """Which devices may go on taking part."""

    strikes: PositiveInt = Field(
        default=3,
        description="a device that broke the protocol, or reported what cannot be, in so many rounds is "
        "suspended: it is not invited any more",
    )


class Limits(Section):
    """Bounds that protect a run."""

    frame_bytes: PositiveBytes = Field(
        default=67108864, description="largest message between coordinator and device"
    )


class Audit(Section):
    """Attacks on the masks of FedMMF, by somebody who saw every masked rating."""

    recovery: tuple[PositiveFloat, ...] = Field(
        default=(0.5, 1.0), description="a rating counts as recovered within this many stars", min_length=1
    )
    ranking: PositiveInt = Field(default=10, description="favourites that are looked for")


class InferenceSection(Section):
    """Devices that rank the catalogue with their own models; needs the extra `export`.

    It stands beside the simulated time, as an evaluation does: it costs no round a second.
    """

    every: PositiveInt = Field(default=10, description="rounds from one inference to the next")
    devices: PositiveInt = Field(
        default=50, description="size of the seeded sample of devices that run theirs"
    )
    top: PositiveInt = Field(default=10, description="length of each list")
    sessions: Literal["shared", "own"] = Field(
        default="shared",
        description="shared: one onnxruntime session, fed each device's weights; own: a file and a session "
        "for each device, opened together. Only what is measured here differs",
    )
    tolerance: PositiveFloat = Field(
        default=1e-5,
        description="a score may be apart from numpy's by this, and this share of the larger of the two; "
        "beyond it the run ends with an error",
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if not graph_writer.available():
            message = "writing the graphs needs the package onnx"
            yield FieldProblem(
                (), message, "install it with \"pip install 'recfleet[export]'\", or leave it out"
            )
        if self.tolerance >= 1:
            message = f"{self.tolerance:g} lets any score pass; write a number below 1, such as '1e-5'"
            yield FieldProblem(("tolerance",), message)
