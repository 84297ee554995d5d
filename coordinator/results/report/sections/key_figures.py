"""The key figures of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.engine.run_files import on_real_clock
from coordinator.results.report.blocks import Fold, TableBlock, TableCell
from coordinator.results.report.people import percent, shown
from coordinator.results.report.view import RunView
from coordinator.results.summary_tables import accuracy_line, mean_origin


def figures(summary: Mapping[str, Any], time_name: str) -> Iterator[tuple[str, str, float | int | None, str]]:
    """Yield name, path of the figure in the summary, value and unit of the figures of a run."""
    rounds, sizes = summary["rounds"], summary["bytes"]
    seconds = rounds["duration_s"] or {}
    latency = summary["latency_s"] or {}
    yield "rounds completed", "rounds.completed", rounds["completed"], ""
    yield "rounds abandoned", "rounds.abandoned", rounds["abandoned"], ""
    yield time_name, "simulated_s", summary["simulated_s"], "s"
    yield "round duration, median", "rounds.duration_s.p50", seconds.get("p50"), "s"
    yield "round duration, p95", "rounds.duration_s.p95", seconds.get("p95"), "s"
    yield "device rounds", "device_rounds", summary["device_rounds"], ""
    yield "of these completed", "outcomes.completed", summary["outcomes"]["completed"], ""
    yield "report latency, median", "latency_s.p50", latency.get("p50"), "s"
    yield "report latency, p95", "latency_s.p95", latency.get("p95"), "s"
    yield "bytes down", "bytes.down", sizes["down"], "B"
    yield "bytes up", "bytes.up", sizes["up"], "B"
    yield "bytes wasted", "bytes.wasted", sizes["wasted"], "B"
    yield "computing wasted", "wasted_compute_s", summary["wasted_compute_s"], "s"
    yield "device energy", "energy_j", summary["energy_j"], "J"
    if summary["rating_mean"] is not None:
        yield (
            "mean rating that the method begins with",
            "rating_mean.value",
            summary["rating_mean"]["value"],
            "",
        )
    for row in summary["accuracy"]:
        who = f"{row['metric']} ({row['split']}, {row['population']} users)"
        key = f"accuracy[{row['metric']},{row['split']},{row['population']}]"
        yield f"{who}, last", f"{key}.last", row["last"], ""


def _note(name: str, summary: Mapping[str, Any]) -> str:
    whole = summary["device_rounds"]
    sent = summary["bytes"]["down"] + summary["bytes"]["up"]
    match name:
        case "outcomes.completed" if whole:
            return f"{percent(summary['outcomes']['completed'] / whole)} of device rounds"
        case "bytes.wasted" if sent:
            return f"{percent(summary['bytes']['wasted'] / sent)} of all sent"
        case "wasted_compute_s" | "energy_j" if summary[name] is None:
            return "kept back: it follows from how much data devices have"
        case "wasted_compute_s" if summary["compute_s"]:
            return f"{percent(summary['wasted_compute_s'] / summary['compute_s'])} of all computing"
        case "energy_j" if on_real_clock(summary):
            return "the profiles' power over measured times"
        case "rating_mean.value":
            return mean_origin(summary)
        case "rounds.abandoned":
            reasons = summary["rounds"]["abandoned_reasons"]
            return ", ".join(f"{reason} {count}" for reason, count in reasons.items())
    for row in summary["accuracy"]:
        if name == f"accuracy[{row['metric']},{row['split']},{row['population']}].last":
            return accuracy_line(row, summary)
    return ""


def key_figures(view: RunView) -> Fold:
    """Return the key figures of a run."""
    summary = view.summary
    rows = tuple(
        (TableCell(name), TableCell(shown(value, unit), value, path), TableCell(_note(path, summary)))
        for name, path, value, unit in figures(summary, view.time_name)
    )
    return Fold("Key figures", (TableBlock("Key figures", ("figure", "value", "note"), rows),))
