"""Whether a run held what its scenario promises, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from coordinator.results.answers import lacks_margin, narrowest
from coordinator.results.report.blocks import Bar, Bars, SectionBlock, TableBlock, TableCell, Tile
from coordinator.results.report.people import figure, verdict_texts
from coordinator.results.report.view import RunView

QUESTION: Final = "Did it hold what it promised, and by how much?"
_LIMIT_AT: Final = 75.0
"""Where the limit stands, in percent of the room of a bar."""


def verdict_row(verdict: Mapping[str, Any]) -> tuple[TableCell, ...]:
    """Return the cells of one verdict: threshold, verdict, value, limit, margin."""
    key = f"threshold[{verdict['threshold']}]"
    value, limit, margin = verdict_texts(verdict)
    held = bool(verdict["held"])
    mood = "good" if held else "bad"
    return (
        TableCell(verdict["threshold"]),
        TableCell(f"{_mark(held)} {'held' if held else 'missed'}", int(held), f"{key}.held", mood=mood),
        TableCell(value, figure(verdict["value"]), f"{key}.value"),
        TableCell(limit, figure(verdict["limit"]), f"{key}.limit"),
        TableCell(_reason(verdict) or margin, figure(verdict["margin"]), f"{key}.margin", mood=mood),
    )


def _mark(held: bool) -> str:
    return "✓" if held else "✗"


def _reason(verdict: Mapping[str, Any]) -> str:
    """Return the reason of a missed threshold without a margin; an empty text for all others."""
    return str(verdict["reason"]) if not verdict["held"] and lacks_margin(verdict) else ""


def _bar(verdict: Mapping[str, Any]) -> Bar:
    """Return a value beside its limit: all limits stand below each other."""
    shown, limit_shown, margin = verdict_texts(verdict)
    name = f"{_mark(verdict['held'])} {verdict['threshold']}"
    said = _reason(verdict) or margin
    total = f"{shown}, {said}"
    value, limit = figure(verdict["value"]), figure(verdict["limit"])
    if value is None or limit is None or value < 0 or limit <= 0:
        return Bar(name, total, ())
    part = value / limit  # of two finite numbers, and still infinite where they are far enough apart
    width = min(part * _LIMIT_AT, 100.0) if math.isfinite(part) else 100.0
    style = "good" if verdict["held"] else "bad"
    return Bar(name, total, ((style, width, f"{shown}, limit {limit_shown}"),), _LIMIT_AT)


def _closest(found: Sequence[Mapping[str, Any]]) -> str:
    """Return which threshold has the least to spare; nothing where none can tell."""
    verdict = narrowest(found)
    if verdict is None:
        return ""
    value, _, spare = verdict_texts(verdict)
    return f"{verdict['key']} {verdict['aggregation']} {value}, {spare}"


def promises(view: RunView) -> SectionBlock | None:
    """Return each threshold with its value beside the limit; what was missed comes first."""
    found = sorted(view.verdicts, key=lambda verdict: bool(verdict["held"]))
    if not found:
        return None
    missed = [verdict for verdict in found if not verdict["held"]]
    table = TableBlock(
        "The margin is what is left to the limit, of shares in percentage points.",
        ("threshold", "verdict", "value", "limit", "margin"),
        tuple(map(verdict_row, found)),
        text_columns=2,
    )
    bars = Bars(
        "Each value beside its limit, the upright line",
        "Bars of values as parts of their limits. "
        + "; ".join(f"{bar.name}: {bar.total}" for bar in map(_bar, found)),
        tuple(map(_bar, found)),
        (),
        table,
    )
    if missed:
        text = f"{len(missed)} of {len(found)} missed"
        note = f"{missed[0]['key']}: {_bar(missed[0]).total}"
    else:
        text, closest = f"all {len(found)} held", _closest(found)
        note = f"closest to its limit: {closest}" if closest else ""
    answer = Tile("Promises", text, note=note, mood="bad" if missed else "good")
    intro = f"{text[0].upper()}{text[1:]}{'; ' + note if note else ''}."
    return SectionBlock("promises", QUESTION, (bars,), intro, wide=True, answers=(answer,))
