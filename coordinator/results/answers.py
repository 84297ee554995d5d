"""What a person asks of a run: were promises kept, how long did rounds take, at what cost, and for what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from coordinator.engine.run_files import ENDED
from coordinator.results.analysis.learning_curves import TEST
from coordinator.results.tables.schemas import DIRECTIONS
from coordinator.scenario.metric_names import MetricKind
from device_profiles.units import format_bytes, format_duration

_NAMED: Final = 3
"""Missed promises, metrics, and pieces of advice that are named."""
_SHARES: Final = (MetricKind.EVENT.value, MetricKind.SHARE.value)


def answers(summary: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield question and answer, both in words, the most important first.

    Parameters
    ----------
    summary : from :func:`~coordinator.results.summary.summarise`, with its advice.
    verdicts : records of the verdicts, from :func:`~coordinator.results.verdicts.verdict_records`.
    """
    yield "promises", _promises(summary, verdicts)
    yield "rounds", _rounds(summary)
    if summary["device_rounds"]:
        yield "waste", _waste(summary)
        yield "bytes", _bytes(summary)
    for line in _model(summary):
        yield "model", line
    for advice in summary["advice"][:_NAMED]:
        yield "advice", advice["text"]


def _promises(summary: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> str:
    if not verdicts:
        return "none were made" if summary["status"] in ENDED else f"not judged: {summary['status']}"
    missed = [one for one in verdicts if not one["held"]]
    if not missed:
        count = "the only one held" if len(verdicts) == 1 else f"all {len(verdicts)} held"
        return "; ".join((count, *_closest(verdicts)))
    named = "; ".join(_missed(one) for one in missed[:_NAMED])
    more = f"; and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
    return f"{len(missed)} of {len(verdicts)} MISSED: {named}{more}"


def _missed(verdict: Mapping[str, Any]) -> str:
    if lacks_margin(verdict):
        return f"{verdict['threshold']} ({verdict['reason']})"
    return f"{verdict['threshold']}, by {_distance(verdict)} (it was {_figure(verdict, 'value')})"


def lacks_margin(verdict: Mapping[str, Any]) -> bool:
    """Return whether a verdict is explained by its reason alone: it has no margin, or is implicit."""
    return verdict["margin"] is None or bool(verdict["implicit"])


def narrowest(verdicts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the verdict with the least room, relative to its limit; None where there is no such thing."""
    room = [
        (one["margin"] / abs(one["limit"]), place)
        for place, one in enumerate(verdicts)
        if isinstance(one["margin"], float) and isinstance(one["limit"], float) and one["limit"]
        if one["operator"] != "==" and not _is_exact(one)
    ]
    return verdicts[min(room)[1]] if room else None


def _closest(verdicts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    closest = narrowest(verdicts)
    if closest is not None:
        was = _figure(closest, "value")
        yield f"most narrowly {closest['threshold']}, by {_distance(closest)} (it was {was})"


def _is_exact(verdict: Mapping[str, Any]) -> bool:
    """Return whether a promise leaves no room by itself, or a figure cannot be better: all, or none."""
    ends = (0.0, 1.0)
    return verdict["kind"] in _SHARES and (verdict["limit"] in ends or verdict["value"] in ends)


def _distance(verdict: Mapping[str, Any]) -> str:
    """Return how far a figure was from its limit; between shares lie percentage points."""
    margin = _figure(verdict, "margin").lstrip("+-")
    return margin.replace("%", " percentage points") if verdict["kind"] in _SHARES else margin


def _figure(verdict: Mapping[str, Any], name: str) -> str:
    """Return a figure of a verdict, three digits of it."""
    value, shown = verdict[name], str(verdict["shown"][name])
    if not isinstance(value, float) or verdict["aggregation"] == "count":
        return shown
    if verdict["kind"] in _SHARES:
        return f"{100 * value:.3g}%"
    return f"{value:.3g}" if verdict["kind"] == MetricKind.NUMBER.value else shown


def _rounds(summary: Mapping[str, Any]) -> str:
    rounds = summary["rounds"]
    reasons = ", ".join(f"{reason} {count}" for reason, count in rounds["abandoned_reasons"].items())
    ended = f"{rounds['completed']} completed, {rounds['abandoned']} abandoned"
    if reasons:
        ended += f" ({reasons})"
    took = rounds["duration_s"]
    if took is None:
        return ended
    return f"p50 {format_duration(took['p50'])}, p95 {format_duration(took['p95'])}; {ended}"


def _waste(summary: Mapping[str, Any]) -> str:
    sizes = summary["bytes"]
    moved = sizes["down"] + sizes["up"]
    said = f"{_share(sizes['wasted'], moved)} of {format_bytes(moved)}"
    computed = summary["compute_s"]
    if computed:
        wasted = _share(summary["wasted_compute_s"], computed)
        said += f", {wasted} of the computing"
    return said


def _share(part: float, whole: float) -> str:
    share = part / whole if whole else 0.0
    return f"{100 * share:.3g}%"


def _bytes(summary: Mapping[str, Any]) -> str:
    sizes, count = summary["bytes"], summary["device_rounds"]
    each = ", ".join(f"{format_bytes(sizes[way] / count)} {way}" for way in DIRECTIONS)
    devices = summary["participation"]["devices"]
    whole = format_bytes((sizes["down"] + sizes["up"]) / devices)
    return f"{each} a device and round; {whole} a device in the whole run"


def _model(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the model was before and is now, a line for each population of users and split."""
    lines: dict[tuple[str, str, int], list[str]] = {}
    for row in summary["accuracy"]:
        if not row["last_round"]:
            continue
        of = (row["split"], row["population"], row["last_round"])
        lines.setdefault(of, []).append(f"{row['metric']} {_course(row, summary['selected'])}")
    for (split, population, last_round), said in lines.items():
        yield f"{', '.join(said[:_NAMED])} after round {last_round} ({split}, {population} users)"
    if summary["unscored"] is not None:
        yield f"not evaluated: {summary['unscored']}"
    elif not lines and summary["loss"] is not None:
        yield f"training loss {summary['loss']['first']:.3g} → {summary['loss']['last']:.3g}"


def _course(row: Mapping[str, Any], selected: Mapping[str, Any] | None) -> str:
    last = "no number (diverged)" if row["last"] is None else f"{row['last']:.3g}"
    if selected is not None and row["split"] == TEST:
        return f"{last}, chosen by {selected['metric']} on validation,"
    return f"{row['first']:.3g} → {last}"
