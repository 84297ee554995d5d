"""Thresholds: promises about a run, written as ``metric{tag=value}: [aggregation operator limit]``.

The form follows k6's thresholds. An expectation is text such as ``p95 < 20 s``, ``rate >= 99%``,
``last <= 0.9 * first`` or ``p95 < 2 * baseline``; several expectations of one metric are a list, and each of
them has to hold. The long form ``{expect: p99 < 90 s, abort: true, after: 2 rounds}`` ends a run that misses
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from coordinator.scenario.errors import FieldProblem, FieldProblemsError, did_you_mean
from coordinator.scenario.metric_names import (
    MODEL_GROUP_TAGS,
    Metric,
    MetricKind,
    find_metric,
    metric_examples,
)
from device_profiles.errors import Path
from device_profiles.quantities import DURATION, UnitError, quoted
from device_profiles.units import parse_number, parse_ratio

OPERATORS: Final = ("<=", ">=", "==", "<", ">")
EVENT_AGGREGATIONS: Final = ("rate", "count")
VALUE_AGGREGATIONS: Final = ("count", "min", "max", "mean", "med", "p50", "p95", "p99", "first", "last")
"""The usual ones; ``p`` may be followed by any percentage from 0 to 100, such as ``p99.9``."""

_KEY: Final = re.compile(r"([^{}\s]+)\s*(?:\{([^{}]*)\})?")
_EXPECTATION: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.]*)\s*(<=|>=|==|<|>)\s*(\S.*)")
_RELATIVE: Final = re.compile(r"(?:(\S+)\s*\*\s*)?([A-Za-z][A-Za-z0-9_.]*)")
_PERCENTILE: Final = re.compile(r"p([0-9]{1,3}(?:\.[0-9]{1,6})?)")
_ROUNDS: Final = re.compile(r"([0-9]{1,9})\s+rounds?")
_LONG_FORM: Final = ("expect", "abort", "after")

BASELINE: Final = "baseline"
"""On the right-hand side: the same metric, tags and aggregate of the run without faults."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The right-hand side: ``value`` in base units, or that many times the aggregate ``relative_to``.

    ``relative_to`` is an aggregation of the same run, or ``baseline``.
    """

    value: float
    relative_to: str | None = None


@dataclass(frozen=True, slots=True)
class AbortRule:
    """A missed threshold ends the run, once so many rounds and so much simulated time have passed.

    Attributes
    ----------
    after_rounds : rounds that must have been run.
    after_s : simulated seconds that must have passed.
    text : both as written, for example ``2 rounds``; None where nothing was.
    """

    after_rounds: int = 0
    after_s: float = 0.0
    text: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Threshold:
    """One promise.

    Attributes
    ----------
    metric : name of the metric.
    tags : pairs of tag and value that narrow it, sorted by tag.
    aggregation : ``rate count min max mean med first last`` or a percentile such as ``p95``.
    operator : one of ``< <= > >= ==``.
    limit : what the aggregate is compared with.
    text : the expectation as written.
    abort : when missing it ends the run; None where it never does.
    written_path : where it was written, below ``thresholds``: a key, and in a list an index.
    """

    metric: str
    tags: tuple[tuple[str, str], ...]
    aggregation: str
    operator: str
    limit: Limit
    text: str
    abort: AbortRule | None = None
    written_path: Path = field(default=(), compare=False)

    @property
    def written_key(self) -> str:
        """The key it was written under, where an error about its metric belongs."""
        return str(self.written_path[0])

    @property
    def kind(self) -> MetricKind:
        """What the values of the metric are."""
        return self._known.kind

    @property
    def measured(self) -> bool:
        """Whether the metric is measured on this host, and so differs between identical runs."""
        return self._known.measured

    @property
    def _known(self) -> Metric:
        metric = find_metric(self.metric)
        if metric is None:
            raise LookupError(f"unknown metric {self.metric!r}")
        return metric

    @property
    def key(self) -> str:
        """The metric and its tags, as the key of a threshold is written."""
        tags = ",".join(f"{name}={value}" for name, value in self.tags)
        return f"{self.metric}{{{tags}}}" if tags else self.metric

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


def percentile_of(aggregation: str) -> float | None:
    """Return the percentage of an aggregation such as ``p95``, 50 for ``med``, None for any other.

    Raises
    ------
    UnitError : a percentage above 100.
    """
    if aggregation == "med":
        return 50.0
    match = _PERCENTILE.fullmatch(aggregation)
    if match is None:
        return None
    percentage = float(match.group(1))
    if percentage > 100:
        raise UnitError(f"{quoted(aggregation)} is no percentile; write 'p0' to 'p100'")
    return percentage


def parse_thresholds(written: object) -> tuple[Threshold, ...]:
    """Return the thresholds of a mapping from metric to expectations.

    Raises
    ------
    FieldProblemsError : every unknown metric, tag or aggregation, wrong unit or malformed expectation.
    """
    if not isinstance(written, dict):
        raise FieldProblemsError(
            [FieldProblem((), "thresholds are a mapping; write 'round.completed: [rate == 100%]'")]
        )
    problems: list[FieldProblem] = []
    found: list[Threshold] = []
    for key, expectations in written.items():
        try:
            metric, tags = parse_metric(str(key))
        except FieldProblemsError as error:
            problems += [problem._replace(path=(key,), of_key=True) for problem in error.problems]
            continue
        for path, expectation, abort in _expectations(key, expectations, problems):
            try:
                threshold = parse_expectation(metric, tags, expectation)
            except ValueError as error:
                problems.append(FieldProblem(path, str(error)))
                continue
            if abort is not None and threshold.measured:
                message = f"{metric} is measured on this host, and how a run goes on must not depend on it"
                problems.append(FieldProblem(path, f"{message}; leave 'abort' out"))
            else:
                found.append(replace(threshold, abort=abort, written_path=path))
    if problems:
        raise FieldProblemsError(problems)
    return tuple(found)


def parse_metric(key: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the metric and the sorted tags of a key such as ``device.latency{phase=storm,network=4g}``.

    Raises
    ------
    FieldProblemsError : malformed, an unknown metric, or a tag that the metric does not have.
    """
    match = _KEY.fullmatch(key.strip())
    if match is None:
        raise FieldProblemsError(
            [FieldProblem((), f"{quoted(key)} is not a metric; write 'metric{{tag=value}}'")]
        )
    metric = find_metric(match.group(1))
    if metric is None:
        hint = did_you_mean(match.group(1), metric_examples(), listed="known metrics")
        raise FieldProblemsError([FieldProblem((), f"unknown metric {quoted(match.group(1))}", hint)])
    tags: dict[str, str] = {}
    for pair in (match.group(2) or "").split(",") if match.group(2) is not None else ():
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value):
            raise FieldProblemsError(
                [FieldProblem((), f"{quoted(pair.strip())} is not a tag; write 'tag=value'")]
            )
        if name not in metric.tags:
            hint = did_you_mean(name, metric.tags, listed="known tags")
            raise FieldProblemsError([FieldProblem((), f"{metric.name} has no tag {quoted(name)}", hint)])
        if name in tags:
            raise FieldProblemsError([FieldProblem((), f"the tag {quoted(name)} is given twice; keep one")])
        tags[name] = value
    groups = [name for name in MODEL_GROUP_TAGS if name in tags]
    if metric.name.startswith("model.") and len(groups) > 1:
        message = f"{metric.name} is measured by one of {', '.join(groups)} at a time; keep one"
        raise FieldProblemsError([FieldProblem((), message)])
    return metric.name, tuple(sorted(tags.items()))


def _expectations(
    key: str, written: object, problems: list[FieldProblem]
) -> Iterator[tuple[Path, str, AbortRule | None]]:
    """Yield every expectation of a metric with its path; what is none of them goes to ``problems``."""
    if isinstance(written, str):
        yield (key,), written, None
        return
    if not isinstance(written, list) or not written:
        problems.append(
            FieldProblem((key,), "expectations are a list; write '[p95 < 20 s]' or '[rate >= 99%]'")
        )
        return
    for index, entry in enumerate(written):
        path: Path = (key, index)
        if isinstance(entry, dict):
            yield from _from_mapping(path, entry, problems)
        elif isinstance(entry, str):
            yield path, entry, None
        else:
            problems.append(FieldProblem(path, "an expectation is text; write one such as 'p95 < 20 s'"))


def _from_mapping(
    path: Path, entry: Mapping[str, object], problems: list[FieldProblem]
) -> Iterator[tuple[Path, str, AbortRule | None]]:
    """Yield the expectation of the long form ``{expect: p99 < 90 s, abort: true, after: 2 rounds}``."""
    for name in entry:
        if name not in _LONG_FORM:
            hint = did_you_mean(name, _LONG_FORM, listed="known keys")
            problems.append(FieldProblem((*path, name), "unknown key", hint, of_key=True))
    abort: AbortRule | None = None
    try:
        abort = _parse_abort(entry)
    except FieldProblemsError as error:
        problems += [problem._replace(path=(*path, *problem.path)) for problem in error.problems]
    expectation = entry.get("expect")
    if isinstance(expectation, str):
        yield (*path, "expect"), expectation, abort
    else:
        problems.append(FieldProblem((*path, "expect"), "missing; write 'expect: p99 < 90 s'"))


def _parse_abort(entry: Mapping[str, object]) -> AbortRule | None:
    """Return when an expectation in its long form ends the run; raise FieldProblemsError."""
    written = entry.get("abort", False)
    wanted = written if isinstance(written, bool) else {"true": True, "false": False}.get(str(written))
    if wanted is None:
        message = f"{quoted(str(written))} is not a truth value; write 'true' or 'false'"
        raise FieldProblemsError([FieldProblem(("abort",), message)])
    if "after" not in entry:
        return AbortRule() if wanted else None
    if not wanted:
        message = "says when a missed threshold ends the run; write 'abort: true' beside it"
        raise FieldProblemsError([FieldProblem(("after",), message, None, of_key=True)])
    text = str(entry["after"]).strip()
    rounds = _ROUNDS.fullmatch(text)
    if rounds is not None:
        return AbortRule(after_rounds=int(rounds.group(1)), text=text)
    try:
        return AbortRule(after_s=DURATION.parse(text), text=text)
    except UnitError:
        message = f"{quoted(text)} is neither rounds nor simulated time; write '2 rounds' or '10 min'"
        raise FieldProblemsError([FieldProblem(("after",), message)]) from None


def parse_expectation(metric: str, tags: tuple[tuple[str, str], ...], text: str) -> Threshold:
    """Return the threshold of one expectation such as ``p95 < 20 s``.

    Raises
    ------
    ValueError : malformed, an aggregation that the metric does not have, or a wrong unit.
    """
    match = _EXPECTATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{quoted(text)} is not an expectation; write one such as 'p95 < 20 s'")
    aggregation, operator, right = match.groups()
    found = find_metric(metric)
    if found is None:
        raise ValueError(f"unknown metric {quoted(metric)}")
    check_aggregation(aggregation, found.kind)
    limit = _parse_limit(right.strip(), aggregation, found.kind)
    return Threshold(metric, tags, aggregation, operator, limit, text.strip())


def check_aggregation(name: str, kind: MetricKind) -> None:
    """Raise ``ValueError`` for an aggregation that metrics of a kind do not have."""
    allowed = EVENT_AGGREGATIONS if kind is MetricKind.EVENT else VALUE_AGGREGATIONS
    if name in allowed:
        return
    if kind is not MetricKind.EVENT and percentile_of(name) is not None:
        return
    hint = did_you_mean(name, allowed)
    raise ValueError(
        f"this metric has no {quoted(name)}; write one of {', '.join(allowed)}{f' ({hint})' if hint else ''}"
    )


def _parse_limit(text: str, aggregation: str, kind: MetricKind) -> Limit:
    relative = _RELATIVE.fullmatch(text)
    if relative is not None:
        factor, reference = relative.groups()
        if reference != BASELINE:
            check_aggregation(reference, kind)
        return Limit(1.0 if factor is None else parse_ratio(factor), reference)
    if aggregation == "count":
        return Limit(float(parse_number(text)))
    return Limit(kind.parse_limit(text))


def written_thresholds(thresholds: tuple[Threshold, ...]) -> dict[str, list[str | dict[str, str]]]:
    """Return the mapping that :func:`parse_thresholds` reads back to ``thresholds``."""
    written: dict[str, list[str | dict[str, str]]] = {}
    for threshold in thresholds:
        entry: str | dict[str, str] = threshold.text
        if threshold.abort is not None:
            entry = {"expect": threshold.text, "abort": "true"}
            if threshold.abort.text is not None:
                entry["after"] = threshold.abort.text
        written.setdefault(threshold.key, []).append(entry)
    return written
