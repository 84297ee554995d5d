"""The sections on rounds and phases, what is measured beside them and recorded, and limits."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from coordinator.scenario import MAX_SUM_GROUPS, MAX_WORKERS
from coordinator.scenario.errors import FieldProblem, FieldProblemsError, did_you_mean
from coordinator.scenario.metric_names import (
    ERROR_METRICS,
    find_metric,
    is_accuracy,
    ranking_examples,
    ranking_name,
)
from coordinator.scenario.model import Section
from coordinator.scenario.registered_sections import Selection, default_selection
from coordinator.scenario.secure_section import SecureAggregation
from coordinator.scenario.thresholds import Threshold, parse_expectation, parse_metric
from device_profiles.fields import (
    ByKey,
    Form,
    NonNegativeInt,
    OnDemand,
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
from edge.learning.updates import SUM_GROUPS
from edge.metrics.ranking import OF_LISTS

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


Pacing = Annotated[Synchronous | PartialWorkPacing | Tiers | Buffered, ByKey("mode")]


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


def _read_count_or_share(value: object, what: str, whole: str) -> int | float:
    """Return a number of ``what``, 1 or more, as an int; a share of ``whole`` as a float, 1 at most."""
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
    raise UnitError(f"{quoted(value)} is not a number of {what}; write one such as '80', or '80%' of {whole}")


def _read_quorum(value: object) -> int | float:
    return _read_count_or_share(value, "reports", "the cohort")


def _read_favourites(value: object) -> int | float:
    found = _read_count_or_share(value, "favourites", "a user's ratings")
    if isinstance(found, float) and found >= 1:
        raise UnitError(f"{quoted(value)}: if all are favourites there is nothing to find; write less")
    return found


def _write_count_or_share(value: float) -> str:
    return write_ratio(value) if isinstance(value, float) else str(value)


def _whole_or(word: str) -> Form:
    """Return the form of a positive whole number, or ``word``."""
    whole = {"type": "string", "pattern": r"^\+?[0-9][0-9_]*$"}
    schema = {"anyOf": [{"const": word}, {"type": "integer", "minimum": 1}, whole]}
    return Form(f"`{word}` or a whole number", str, functools.partial(_read_whole_or, word), schema)


_COUNT_OR_SHARE: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": r"^\s*[0-9_.]+\s*%?\s*$"},
    ]
}
UserSample = Annotated[int | Literal["all"], _whole_or("all")]
Negatives = Annotated[int | Literal["full"], _whole_or("full")]
Quorum = Annotated[
    int | float,
    Form("whole number, or percentage of the cohort", _write_count_or_share, _read_quorum, _COUNT_OR_SHARE),
]
Favourites = Annotated[
    int | float,
    Form(
        "whole number, or percentage of a user's ratings",
        _write_count_or_share,
        _read_favourites,
        _COUNT_OR_SHARE,
    ),
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
    Form(
        "target, like `model.rmse <= 0.92`",
        str,
        _read_target,
        {
            "type": "string",
            "pattern": rf"^\s*(?:{_TARGET.pattern})\s*$",
            "examples": ["model.rmse <= 0.92"],
        },
    ),
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
    pacing: Pacing = Field(default=Synchronous.model_construct(), description="how stragglers are dealt with")
    max_wait: Seconds = Field(
        default=86400.0, description="longest wait for devices when nobody is available; then the run stops"
    )
    interval: Seconds = Field(default=0.0, description="pause between the end of a round and the next")
    retry: Annotated[Retry, OnDemand()] = Field(
        default=Retry.model_construct(), description="how a device repeats a failed transfer"
    )
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
    deadline: PositiveSeconds | None = Field(
        default=None,
        description="simulated time from invitation to last report in the rounds of this phase, in place of"
        " `rounds.deadline`",
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


RankingMetric = Literal["hr", "ndcg", "recall", "precision", "mrr", "map", "coverage", "novelty", "auc"]


class Ranking(Section):
    """Ranking metrics: hit rate, NDCG, recall and precision, and others that are asked for."""

    k: tuple[PositiveInt, ...] = Field(default=(10,), description="cut-offs", min_length=1)
    negatives: Negatives = Field(
        default="full",
        description="rank all items but those a user trained on and, on the test, those kept back for"
        " validation; or (leave-one-out splits only) the held-out one among this many that the user never"
        " rated",
    )

    metrics: tuple[RankingMetric, ...] = Field(
        default=("hr", "ndcg", "recall", "precision"),
        description="which are measured; `auc` takes longer than all others together, `coverage` and"
        " `novelty` are of full rankings alone",
        min_length=1,
    )

    def _problems(self) -> Iterator[FieldProblem]:
        for index, metric in enumerate(self.metrics):
            if metric in OF_LISTS and self.negatives != "full":
                message = f"{metric!r} is of what is recommended, and sampled candidates are not"
                yield FieldProblem(("metrics", index), message, "leave it out, or write 'negatives: full'")


class ExposureSection(Section):
    """The item whose exposure is measured: ER@k, the share of users without it in whose first k it is."""

    item: Text = Field(
        default="cold", description="as the data calls it, or `cold`, as for faults that promote an item"
    )
    k: tuple[PositiveInt, ...] = Field(default=(5, 10, 20), description="lengths of lists", min_length=1)


class EvaluationSection(Section):
    """When and on whom the model is measured."""

    every: PositiveInt = Field(default=10, description="rounds from one evaluation to the next")
    users: UserSample = Field(
        default="all", description="users evaluated, or the size of a seeded sample of them"
    )
    on: Literal["test", "validation", "devices"] = Field(
        default="test",
        description="which of the kept-back ratings are scored, by the simulator and at no cost; or devices: "
        "a cohort of devices measures the model on its own test ratings, in rounds that cost time, bytes and "
        "energy, and only sums are seen",
    )
    cohort: PositiveInt | None = Field(
        default=None,
        description="with `on: devices`, reports wanted per evaluation; those of `rounds` by default",
    )
    error_max: PositiveFloat = Field(
        default=2.0,
        description="with `on: devices` and noise, the largest error that counts: a device's mean "
        "squared and absolute errors are cut off there",
    )
    ranking: Annotated[Ranking, OnDemand()] | None = Field(
        default=None, description="measure rankings too; not by default"
    )
    by: tuple[Literal["activity", "popularity"], ...] = Field(
        default=(),
        description="measure by groups, too: thirds of the users by their training ratings (`light`,"
        " `medium`, `heavy`); items by theirs (`head`, `middle`, `tail`, each with a third of all training"
        " ratings), the held-out ones of a group at a time",
    )
    exposure: Annotated[ExposureSection, OnDemand()] | None = Field(
        default=None,
        description="measure the exposure of an item; by default of the one that a fault promotes",
    )
    final: StrictBool = Field(default=True, description="evaluate after the last round in any case")
    select: Text | None = Field(
        default=None,
        description="choose the round by this metric of validation ratings, such as `ndcg@10` or `rmse`: they"
        " alone are scored as training goes on; the model of the best round is what the run leaves, and is"
        " scored on the test, once. By default the last round is what is reported",
    )
    patience: PositiveInt | None = Field(
        default=None,
        description="with `select`, end training after so many evaluations in a row without a better one;"
        " never by default",
    )

    @property
    def on_devices(self) -> bool:
        """Whether devices measure the model, in rounds of their own."""
        return self.on == "devices"

    @property
    def part(self) -> Literal["test", "validation"]:
        """Which of the kept-back ratings are scored."""
        return "validation" if self.on == "validation" else "test"

    @property
    def parts(self) -> tuple[str, ...]:
        """Which of the kept-back ratings are scored at all."""
        return (self.part,) if self.select is None else tuple(dict.fromkeys(("validation", self.part)))

    def _select_problems(self, select: str) -> Iterator[FieldProblem]:
        """Yield why a round cannot be chosen by a metric."""
        place = ("select",)
        if self.on_devices:
            message = "needs validation ratings, and devices measure on test ratings alone"
            yield FieldProblem(place, message, "leave it out, or write 'on: test'", of_key=True)
        metric = f"model.{select}"
        if find_metric(metric) is None or select == "loss" or not is_accuracy(select):
            known = [name.removeprefix("model.") for name in (*ERROR_METRICS, *ranking_examples())]
            fitting = [name for name in known if is_accuracy(name)]
            message = f"{quoted(select)} is no metric to choose a round by"
            yield FieldProblem(place, message, did_you_mean(select, fitting, listed="known metrics"))
            return
        name, ranking = ranking_name(metric), self.ranking
        if name is None:
            return
        negatives = None if ranking is None or ranking.negatives == "full" else int(ranking.negatives)
        if ranking is None or name.kind not in ranking.metrics or name.k not in (None, *ranking.k):
            message = f"{quoted(select)} is not measured"
            yield FieldProblem(place, message, "write its cut-off and its name in evaluation.ranking")
        elif name.negatives != negatives:
            message = f"{quoted(select)} is not measured: 'ranking.negatives' is {ranking.negatives}"
            hint = f"write '{select.partition('/')[0]}{'' if negatives is None else f'/{negatives}neg'}'"
            yield FieldProblem(place, message, hint)

    def _problems(self) -> Iterator[FieldProblem]:
        if self.select is not None:
            yield from self._select_problems(self.select)
        elif self.patience is not None:
            message = "is about the round that 'select' chooses, and nothing is selected; write 'select' too"
            yield FieldProblem(("patience",), message, None, of_key=True)
        if self.cohort is not None and not self.on_devices:
            message = "says how many devices measure the model, and the simulator does; write 'on: devices'"
            yield FieldProblem(("cohort",), message, None, of_key=True)
        if self.by and self.on_devices:
            message = "groups what the simulator sees of users and items; devices report sums alone"
            yield FieldProblem(("by",), message, "leave it out, or write 'on: test'", of_key=True)
        metrics = () if self.ranking is None or not self.on_devices else self.ranking.metrics
        for index, metric in enumerate(metrics):
            if metric in OF_LISTS:
                message = f"{metric!r} is of what everybody is recommended, which devices do not report"
                yield FieldProblem(("ranking", "metrics", index), message, "leave it out")
        if self.exposure is not None and self.on_devices:
            message = "is of everybody's lists, which devices do not report"
            yield FieldProblem(("exposure",), message, "leave it out, or write 'on: test'", of_key=True)
        if self.users != "all" and self.on_devices:
            message = "is a sample for the simulator; devices are drawn by 'cohort'"
            yield FieldProblem(("users",), message, None, of_key=True)


class RecordSection(Section):
    """What a run leaves beside its summary and its tables of rounds and devices."""

    events: Literal["all", "none"] = Field(
        default="all", description="write every event to the event table, or suspensions alone"
    )
    trace_devices: NonNegativeInt = Field(default=50, description="devices shown in the trace")


class Compute(Section):
    """How this host computes; only the groups of sums can be seen in a result, in its rounding."""

    batch: PositiveInt = Field(
        default=256,
        description="most client updates computed together; in the main process fewer are where so many "
        "would not stay in the cache",
    )
    sum_groups: PositiveInt = Field(
        default=SUM_GROUPS,
        description="groups of devices, by number modulo groups, whose updates are added up apart; a dense "
        "model is held once a group",
    )
    workers: NonNegativeInt = Field(default=0, description="worker processes; 0 computes in the main process")

    def _problems(self) -> Iterator[FieldProblem]:
        if self.workers > MAX_WORKERS:
            message = f"{self.workers} processes are too many; write {MAX_WORKERS} or less"
            yield FieldProblem(("workers",), message)
        if self.sum_groups > MAX_SUM_GROUPS:
            message = f"{self.sum_groups} groups are too many; write {MAX_SUM_GROUPS} or less"
            yield FieldProblem(("sum_groups",), message)


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
    """Attacks on the masks of FedMMF, by somebody who saw every masked rating, and on what is uploaded."""

    recovery: tuple[PositiveFloat, ...] = Field(
        default=(0.5, 1.0), description="a rating counts as recovered within this many stars", min_length=1
    )
    ranking: tuple[Favourites, ...] = Field(
        default=(10,), description="favourites of a user that are looked for", min_length=1
    )
    buckets: PositiveInt | None = Field(
        default=None,
        description="equal parts of 0 … 100%: the share of users whose own figure of an attack is in each; by"
        " default none, figures over all users alone",
    )
    rated_items: StrictBool = Field(
        default=False,
        description="read the rated items off every update or sum of updates that the coordinator sees; in a"
        " service that was started again, those seen since",
    )


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
        from edge.onnx import graph_writer  # noqa: PLC0415

        if not graph_writer.available():
            message = "writing the graphs needs the package onnx"
            yield FieldProblem(
                (), message, "install it with \"pip install 'recfleet[export]'\", or leave it out"
            )
        if self.tolerance >= 1:
            message = f"{self.tolerance:g} lets any score pass; write a number below 1, such as '1e-5'"
            yield FieldProblem(("tolerance",), message)
