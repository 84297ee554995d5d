"""What a report says first: whether the promises of the scenario were kept, and the key figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.engine.run_files import on_real_clock
from coordinator.results.report.axes import show
from coordinator.results.report.blocks import SectionBlock, TableBlock, TableCell, Tile, Tiles
from coordinator.results.report.view import RunView
from coordinator.results.summary_tables import accuracy_line


def figure(value: float | str | None) -> float | None:
    """Return a figure of a verdict as a number; None for none and for what is infinite."""
    return None if isinstance(value, str) else value


def verdict_row(verdict: Mapping[str, Any]) -> tuple[TableCell, ...]:
    """Return the cells of one verdict: threshold, verdict, value, margin, limit."""
    key = f"threshold[{verdict['threshold']}]"
    shown = verdict["shown"]
    held = bool(verdict["held"])
    word = "✓ held" if held else "✗ missed"
    if not held and (verdict["margin"] is None or verdict["implicit"]):
        word = f"{word}: {verdict['reason']}"
    return (
        TableCell(verdict["threshold"]),
        TableCell(word, int(held), f"{key}.held", mood="good" if held else "bad"),
        TableCell(shown["value"], figure(verdict["value"]), f"{key}.value"),
        TableCell(
            shown["margin"], figure(verdict["margin"]), f"{key}.margin", mood="good" if held else "bad"
        ),
        TableCell(shown["limit"], figure(verdict["limit"]), f"{key}.limit"),
    )


def verdicts(view: RunView) -> SectionBlock | None:
    """Return the verdict on each threshold with its value and margin."""
    found = view.verdicts
    if not found:
        return None
    missed = sum(not verdict["held"] for verdict in found)
    title = f"{missed} of {len(found)} thresholds missed" if missed else f"All {len(found)} thresholds held"
    # What was missed comes first.
    rows = [verdict_row(verdict) for verdict in sorted(found, key=lambda verdict: verdict["held"])]
    table = TableBlock(
        "The margin is the distance from the limit, positive on the side that holds.",
        ("threshold", "verdict", "value", "margin", "limit"),
        tuple(rows),
        text_columns=2,
    )
    return SectionBlock("verdicts", title, (table,), wide=True)


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
    for row in summary["accuracy"]:
        who = f"{row['metric']} ({row['split']}, {row['population']} users)"
        key = f"accuracy[{row['metric']},{row['split']},{row['population']}]"
        yield f"{who}, last", f"{key}.last", row["last"], ""


def shown(value: float | int | None, unit: str) -> str:
    """Return a figure for people; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,}" if unit == "" and isinstance(value, int) else show(float(value), unit)


def _note(name: str, summary: Mapping[str, Any]) -> str:
    whole = summary["device_rounds"]
    sent = summary["bytes"]["down"] + summary["bytes"]["up"]
    match name:
        case "outcomes.completed" if whole:
            return f"{summary['outcomes']['completed'] / whole:.1%} of device rounds"
        case "bytes.wasted" if sent:
            return f"{summary['bytes']['wasted'] / sent:.1%} of all sent"
        case "wasted_compute_s" | "energy_j" if summary[name] is None:
            return "kept back: it follows from how much data devices have"
        case "wasted_compute_s" if summary["compute_s"]:
            return f"{summary['wasted_compute_s'] / summary['compute_s']:.1%} of all computing"
        case "energy_j" if on_real_clock(summary):
            return "the profiles' power over measured times"
        case "rounds.abandoned":
            reasons = summary["rounds"]["abandoned_reasons"]
            return ", ".join(f"{reason} {count}" for reason, count in reasons.items())
    for row in summary["accuracy"]:
        if name == f"accuracy[{row['metric']},{row['split']},{row['population']}].last":
            return accuracy_line(row, summary)
    return ""


def key_figures(view: RunView) -> SectionBlock | None:
    """Return the key figures of a run."""
    summary = view.summary
    tiles = tuple(
        Tile(name, shown(value, unit), path, value, _note(path, summary))
        for name, path, value, unit in figures(summary, view.time_name)
    )
    return SectionBlock("figures", "Key figures", (Tiles(tiles),), wide=True)
