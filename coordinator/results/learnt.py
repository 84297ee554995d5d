"""Whether a run that went to its end has learnt anything: a promise that every scenario makes, unwritten.

A run that completed no round is no success, and neither is one whose model diverged: the model, or the last
value of a metric, is not finite, or that value is more than ten times worse than before the first round; see
:mod:`coordinator.engine.divergence`.

A run has diverged, too, when in its last rounds more reports were refused as out of range than arrived
within: honest devices send such updates when the model runs away, and no metric need see it, for nothing of
theirs is applied. It takes as many rounds in a row as strikes suspend a device (or all, of fewer), so that
the few hostile devices of a fleet do not end a run so; and such rounds give no strikes.

What counts are the metrics of all users that were evaluated after a round; where there are none, the training
loss. A method that keeps parameters on devices is evaluated with them, so they count, too. A scenario that is
meant to learn nothing says so with ``expect``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coordinator.engine.divergence import TIMES_WORSE, diverged, worst_value
from coordinator.engine.run_files import Status
from coordinator.engine.stop_reason import StopReason
from coordinator.results.analysis.learning_curves import AUDIT_PREFIX
from coordinator.results.tables.functions import call_function, rows_where, subset
from coordinator.results.tables.metric_source import Tables
from coordinator.scenario.dump import resolved
from coordinator.scenario.metric_names import higher_is_better, is_accuracy
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.threshold_evaluation import ThresholdResult
from coordinator.scenario.thresholds import parse_expectation
from device_profiles.documents import Node
from edge.core.vocabulary import Outcome, Reason, RoundOutcome, label

_CAUSES_NAMED: Final = 2
_COUNTED: Final = tuple(label(one) for one in (Outcome.COMPLETED, Outcome.SURPLUS, Outcome.ABANDONED))
"""How participations end that did not fail by themselves."""

_SETTINGS: Final[Mapping[Reason, tuple[str, ...]]] = {
    Reason.UNAVAILABLE: ("fleet.availability", "rounds.selection"),
    Reason.SESSION_ENDED: ("fleet.availability",),
    Reason.BATTERY: ("fleet.availability",),
    Reason.VANISHED: ("faults", "fleet.availability"),
    Reason.MEMORY: ("fleet", "learning"),
    Reason.NO_DATA: ("data",),
    Reason.CONNECTION_LOST: ("fleet", "faults"),
    Reason.CONNECTION_RESET: ("fleet", "faults"),
    Reason.RETRIES_EXHAUSTED: ("fleet", "rounds.retry"),
    Reason.DEADLINE: ("rounds.deadline",),
    Reason.QUORUM: ("rounds.quorum",),
    Reason.THRESHOLD: ("secure_aggregation.threshold",),
    Reason.GARBAGE: ("faults",),
    Reason.OUT_OF_RANGE: ("faults", "learning"),
    Reason.WRONG_SUM: ("faults",),
    Reason.PROTOCOL: ("faults",),
    Reason.COORDINATOR_CRASH: ("faults",),
}
"""What to look at in a scenario whose rounds, or devices, fail for a reason; see :func:`_settings_of`."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a run has come to.

    Attributes
    ----------
    status : ``finished``, ``no-round-completed`` or ``diverged``.
    ending : what happened, since when, and the likely setting; None of a finished run.
    verdict : on the unwritten promise where it was broken, and on ``expect`` where there is one; else None.
    """

    status: Status
    ending: str | None = None
    verdict: ThresholdResult | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Series:
    """The values of one metric of all users by round, int64 and float64 [n]; NaN where it was no number."""

    metric: str
    tags: tuple[tuple[str, str], ...]
    rounds: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    users: int
    more_is_better: bool

    @property
    def limit(self) -> float | None:
        """Ten times worse than the first value; None where that says nothing."""
        first = float(self.values[0]) if len(self.values) else np.nan
        return worst_value(first, self.users, more_is_better=self.more_is_better)

    @property
    def beyond(self) -> npt.NDArray[np.bool_]:
        """Where a value is not finite or more than ten times worse, bool [n]."""
        return diverged(self.values, self.limit, more_is_better=self.more_is_better)

    @property
    def ran_away(self) -> bool:
        """Whether the last value is beyond."""
        return bool(self.beyond[-1:].any())

    def verdict(self, *, kept: bool, held: bool, reason: str | None, value: float | None) -> ThresholdResult:
        """Return the verdict on its last value being within the limit (``kept``) or beyond it."""
        side = {True: ">=", False: "<"} if self.more_is_better else {True: "<=", False: ">"}
        times = f"{1 / TIMES_WORSE:g}" if self.more_is_better else str(TIMES_WORSE)
        text = f"last {side[kept]} {times} * first"
        threshold, limit = parse_expectation(self.metric, self.tags, text), self.limit
        margin: float | None = None
        if limit is not None and value is not None and not np.isnan(value):
            margin = value - limit if side[kept].startswith(">") else limit - value
        return ThresholdResult(threshold, held, value, limit, margin, len(self.values), reason, implicit=True)


def judge_learning(scenario: ScenarioSettings, run: Tables, stop: StopReason) -> Learnt:
    """Return what a run that went to its end has come to.

    Parameters
    ----------
    scenario, run : the scenario and the tables of its run.
    stop : why training ended.
    """
    rounds = run.read("rounds", ["round", "outcome", "reason", "loss"])
    completed = rows_where(rounds, "outcome", label(RoundOutcome.COMPLETED))
    refused = _refused_since(run, scenario.admission.strikes)
    if not completed.num_rows and refused is None:
        ending = _no_round(scenario, run, rounds, stop)
        return Learnt("no-round-completed", ending, _of_rounds(scenario, "no-round-completed", 0, ending))
    series = _series(run, completed)
    broken = next((one for one in series if one.ran_away), None)
    if broken is not None:
        shown, value, ending = broken, float(broken.values[-1]), _ran_away(broken)
    elif refused is not None:
        shown, value, ending = series[0], np.nan, refused
    elif stop is StopReason.DIVERGED:
        shown, value = series[0], np.nan
        ending = (
            "the model, or what a device makes of it, holds values that are not finite after round "
            f"{completed['round'][-1]}"
        )
    else:
        return Learnt("finished", None, _unexpected(scenario, series[0], completed.num_rows))
    ending = f"{ending}; likely {_rates(scenario)}"
    if scenario.expect == "no-round-completed":
        verdict = _of_rounds(scenario, "diverged", completed.num_rows, ending)
    elif scenario.expect == "diverged":
        verdict = shown.verdict(kept=False, held=True, reason=None, value=value)
    else:
        verdict = shown.verdict(kept=True, held=False, reason=ending, value=value)
    return Learnt("diverged", ending, verdict)


def _unexpected(scenario: ScenarioSettings, first: _Series, completed: int) -> ThresholdResult | None:
    """Return the verdict on ``expect`` of a run that finished; None where there is no such expectation."""
    if scenario.expect is None:
        return None
    reason = f"the scenario expects {scenario.expect}, and the run finished"
    if scenario.expect == "no-round-completed":
        return _of_rounds(scenario, "finished", completed, reason)
    value = float(first.values[-1]) if len(first.values) else None
    return first.verdict(kept=False, held=False, reason=reason, value=value)


def _of_rounds(scenario: ScenarioSettings, status: Status, completed: int, said: str) -> ThresholdResult:
    """Return the verdict on rounds having completed, or on none having where that is expected."""
    expected = scenario.expect == "no-round-completed"
    threshold = parse_expectation("round.completed", (), "count == 0" if expected else "count > 0")
    held = expected and status == "no-round-completed"
    if not held and scenario.expect is not None and status != "finished":
        said = f"the scenario expects {scenario.expect}: {said}"
    margin = -float(completed) if expected else float(completed)
    reason = None if held else said
    return ThresholdResult(threshold, held, float(completed), 0.0, margin, completed, reason, implicit=True)


def _series(run: Tables, completed: Any) -> list[_Series]:
    """Return the metrics evaluated after a round; the training loss where there are none."""
    columns = ["round", "metric", "split", "population", "tag", "value", "users"]
    rows = run.read("evaluations", columns)
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows_where(rows, "tag", "all").to_pylist():
        if not row["metric"].startswith(AUDIT_PREFIX) and is_accuracy(row["metric"]):
            found.setdefault((row["metric"], row["split"], row["population"]), []).append(row)
    several = len({population for _, _, population in found}) > 1
    series = [
        _Series(
            f"model.{metric}",
            (("users", population),) if several else (),
            np.array([row["round"] for row in each]),
            np.array([np.nan if row["value"] is None else row["value"] for row in each]),
            each[-1]["users"],
            higher_is_better(metric),
        )
        for (metric, _, population), each in found.items()
        if each[-1]["round"] > 0
    ]
    if series:
        return series
    known = subset(completed, call_function("is_valid", [completed["loss"]]))
    loss = np.asarray(known["loss"].to_numpy(), dtype=np.float64)
    return [_Series("model.loss", (), np.asarray(known["round"].to_numpy()), loss, 0, more_is_better=False)]


def _refused_since(run: Tables, strikes: int) -> str | None:
    """Return since when most reports have been out of range, in words; None: they are not, or too shortly."""
    columns = ["round", "reason", "latency_s"]
    devices = run.read("device_rounds", columns)
    number = devices["round"].to_numpy()
    refused_so = call_function("equal", [devices["reason"], label(Reason.OUT_OF_RANGE)])
    outside = refused_so.to_numpy(zero_copy_only=False)
    reported = call_function("is_valid", [devices["latency_s"]])
    within = reported.to_numpy(zero_copy_only=False) & ~outside
    numbers, place = np.unique(number[outside | within], return_inverse=True)
    refused = np.bincount(place, outside[outside | within])
    bad = refused > np.bincount(place, within[outside | within])
    if not bad.any():
        return None
    tail = len(bad) if bad.all() else int(bad[::-1].argmin())
    if tail < min(strikes, len(bad)):
        return None
    total = int(np.count_nonzero((outside | within) & (number >= numbers[-tail])))
    return (
        f"{int(refused[-tail:].sum())} of {total} reports since round {numbers[-tail]} were out of range, "
        "as those of honest devices are once the model has run away"
    )


def _ran_away(series: _Series) -> str:
    """Return since when a metric has been how bad, in words."""
    at = int(series.beyond.argmax())
    last, first = float(series.values[-1]), float(series.values[0])
    name = series.metric.removeprefix("model.")
    whose = "".join(f" ({users} users)" for _, users in series.tags)
    before = "before training" if series.rounds[0] == 0 else f"in round {series.rounds[0]}"
    if np.isnan(last):
        return f"{name}{whose} is no number since round {series.rounds[at]}; it was {first:.5g} {before}"
    bad = "not finite" if series.limit is None else f"more than {TIMES_WORSE} times worse"
    return (
        f"{name}{whose} was {first:.5g} {before} and is {last:.5g} after round {series.rounds[-1]}, "
        f"{bad} since round {series.rounds[at]}"
    )


def _rates(scenario: ScenarioSettings) -> str:
    """Return what makes a model diverge, as far as the scenario has it."""
    document = resolved(scenario)
    rates = [path for path in _paths(document.get("learning"), "learning") if path.endswith("learning_rate")]
    causes = []
    if any(fault.kind.of_updates for fault in scenario.faults):
        causes.append("the poisoned updates of faults (see aggregation)")
    if rates:
        rates.sort(key=lambda path: -float(str(_value(document, path))))
        lower = "lower it" if len(rates) == 1 else "lower one of them"
        causes.append(f"{_with_values(document, rates)} ({lower})")
    if scenario.privacy is not None:
        causes.append("the noise of privacy")
    return ", or ".join(causes or ["learning"])


def _paths(node: Node, path: str) -> Iterator[str]:
    """Yield the paths of all values below a node."""
    if not isinstance(node, dict):
        yield path
        return
    for key, inner in node.items():
        yield from _paths(inner, f"{path}.{key}")


def _no_round(scenario: ScenarioSettings, run: Tables, rounds: Any, stop: StopReason) -> str:
    """Return why no round completed, in words: how rounds and devices ended, and the likely settings."""
    document = resolved(scenario)
    if not rounds.num_rows:
        limit = ("rounds.simulated_time_limit",) if stop is StopReason.TIME_LIMIT else ()
        settings = (*limit, "fleet.availability", "rounds.cohort", "rounds.max_wait")
        return f"no round began ({stop}); likely {_with_values(document, settings)}"
    reasons = Counter(rounds["reason"].to_pylist())
    devices = run.read("device_rounds", ["outcome", "reason"])
    ended = Counter(zip(devices["outcome"].to_pylist(), devices["reason"].to_pylist(), strict=True))
    failed = {key: count for key, count in ended.most_common() if key[0] not in _COUNTED}
    causes = [*[reason for _, reason in failed][:_CAUSES_NAMED], reasons.most_common(1)[0][0]]
    names = {label(reason): reason for reason in Reason}
    settings_of = [_settings_of(names[cause], scenario, document) for cause in dict.fromkeys(causes)]
    likely = dict.fromkeys(path for settings in settings_of for path in settings)
    how = [f"{count} × {reason}" for reason, count in reasons.most_common()]
    who = [f"{count} {outcome} ({reason})" for (outcome, reason), count in failed.items()]
    shown = ", ".join(who[:_CAUSES_NAMED])
    of_devices = f"; of {devices.num_rows} device rounds {shown}" if who else ""
    count = "the only round" if rounds.num_rows == 1 else f"all {rounds.num_rows} rounds"
    since = f", from round {rounds['round'][0]} on" if rounds.num_rows > 1 else ""
    said = f"{count} abandoned{since}: {', '.join(how)}{of_devices}"
    return f"{said}; likely {_with_values(document, likely)}" if likely else said


def _settings_of(reason: Reason, scenario: ScenarioSettings, document: Mapping[str, Node]) -> tuple[str, ...]:
    if reason is Reason.NOT_FINITE:
        rates = _paths(document.get("learning"), "learning")
        return tuple(path for path in rates if path.endswith("learning_rate"))
    return tuple(path for path in _SETTINGS.get(reason, ()) if path != "faults" or scenario.faults)


def _with_values(document: Mapping[str, Node], paths: Iterable[str]) -> str:
    """Return settings, each with its value where that is one word."""
    return ", ".join(_with_value(document, path) for path in paths)


def _with_value(document: Mapping[str, Node], path: str) -> str:
    node = _value(document, path)
    return f"{path} {node}" if isinstance(node, str) else path


def _value(document: Mapping[str, Node], path: str) -> Node:
    node: Node = dict(document)
    for key in path.split("."):
        node = node.get(key) if isinstance(node, dict) else None
    return node
