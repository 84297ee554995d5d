"""Who drops out, at which stage, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from coordinator.results.report.blocks import (
    Bars,
    Block,
    Fold,
    SectionBlock,
    TableBlock,
    TableCell,
    Tile,
    choice,
)
from coordinator.results.report.charts import stacked_bars
from coordinator.results.report.people import percent
from coordinator.results.report.sections.timeline import timeline
from coordinator.results.report.view import RunView
from coordinator.scenario.faults_section import STAGE_ORDER
from edge.core.vocabulary import Outcome, label

QUESTION: Final = "Who drops out, and why?"
ENDINGS: Final = tuple(
    (label(outcome), style)
    for outcome, style in (
        (Outcome.COMPLETED, "p2"),
        (Outcome.DROPPED, "p4"),
        (Outcome.LATE, "p1"),
        (Outcome.FAILED, "p3"),
        (Outcome.UNREACHABLE, "p7"),
        (Outcome.DECLINED, "p5"),
        (Outcome.SURPLUS, "p0"),
        (Outcome.ABANDONED, "p6"),
    )
)
"""How device rounds end, with the styles of their fills."""
_DONE, _DROPPED = label(Outcome.COMPLETED), label(Outcome.DROPPED)


def outcome_bars(title: str, found: Mapping[str, Mapping[str, Any]]) -> Bars:
    """Return bars of how device rounds ended, by the name of each bar, each as long as the others.

    Parameters
    ----------
    title : of the chart.
    found : by name, how many device rounds came to which outcome.
    """
    rows, shown, cells = [], [], []
    for name, counts in found.items():
        whole = sum(counts[outcome] for outcome, _ in ENDINGS) or 1
        shares = [counts[outcome] / whole for outcome, _ in ENDINGS]
        texts = [
            f"{counts[outcome]:,} ({percent(share)})"
            for (outcome, _), share in zip(ENDINGS, shares, strict=True)
        ]
        rows.append((name, shares, f"{percent(counts[_DONE] / whole)} of {whole:,}"))
        shown.append(texts)
        cells.append(
            (TableCell(name), *(TableCell(text, share) for text, share in zip(texts, shares, strict=True)))
        )
    table = TableBlock(title, ("name", *(outcome for outcome, _ in ENDINGS)), tuple(cells))
    said = "; ".join(f"{name}: {total} completed" for name, _, total in rows)
    return stacked_bars(
        title, f"Bars of shares of device rounds by outcome. {said}.", rows, ENDINGS, shown, table
    )


def drops(view: RunView) -> SectionBlock | None:
    """Return how device rounds ended: by stage and reason, by class and network, and over the rounds."""
    summary = view.summary
    whole = summary["device_rounds"]
    if not whole:
        return None
    options: dict[str, tuple[Block, ...]] = {}
    lanes = timeline(view)
    by_class = outcome_bars("How device rounds ended, by class of device", summary["by_class"])
    found = summary["not_completed"]
    if found:
        options["by stage"] = (_by_stage(summary),)
    options["by class of device"] = (by_class,)
    options["by network"] = (outcome_bars("How device rounds ended, by network", summary["by_network"]),)
    if lanes is not None:
        options["over the rounds"] = (lanes,)
    outcomes = _outcomes(summary)
    dropped = summary["outcomes"][_DROPPED]
    share = percent(dropped / whole)
    others = ", ".join(
        f"{percent(count / whole)} {name}"
        for name, count in sorted(summary["outcomes"].items(), key=lambda pair: -pair[1])
        if count and name not in (_DONE, _DROPPED)
    )
    most = next((row for row in found if row["outcome"] == _DROPPED), None)
    why = "" if most is None else f", most of them {most['reason']} in the stage {most['stage']}"
    intro = f"{share} of {whole:,} device rounds ended because the device went away{why}."
    intro += f" Besides: {others}." if others else ""
    note = f"of {whole:,} device rounds{why}" + (f"; {others}" if others else "")
    blocks = (*choice("drops-by", "Show", options), Fold("All outcomes", (outcomes,)))
    answer = Tile("Dropped", share, note=note)
    return SectionBlock("drops", QUESTION, blocks, intro, wide=True, answers=(answer,))


def _outcomes(summary: Mapping[str, Any]) -> TableBlock:
    whole = summary["device_rounds"]
    return TableBlock(
        "Device rounds by outcome",
        ("outcome", "device rounds", "share"),
        tuple(
            (
                TableCell(name),
                TableCell(f"{count:,}", count, f"outcomes.{name}"),
                TableCell(percent(count / whole), count / whole, strength=count / whole),
            )
            for name, count in summary["outcomes"].items()
            if count
        ),
    )


def _by_stage(summary: Mapping[str, Any]) -> Bars:
    """Return the device rounds that were not completed by the stage at which they ended, and the reasons."""
    counts: Counter[tuple[str, str]] = Counter()
    by_outcome: Counter[tuple[str, str]] = Counter()
    for row in summary["not_completed"]:
        stage = row["stage"] or "–"
        counts[stage, row["reason"]] += row["count"]
        by_outcome[stage, row["outcome"]] += row["count"]
    reasons = sorted({reason for _, reason in counts})
    order = (*(label(stage) for stage in STAGE_ORDER), "–")
    stages = [name for name in order if any((name, reason) in counts for reason in reasons)]
    peak = max(counts.values())
    heat = TableBlock(
        "Device rounds that were not completed: the stage at which they ended, and the reason",
        ("stage", *reasons),
        tuple(
            (
                TableCell(stage),
                *(
                    TableCell(
                        f"{counts[stage, reason]:,}" if counts[stage, reason] else "",
                        counts[stage, reason],
                        f"not_completed[{stage},{reason}]",
                        strength=counts[stage, reason] / peak,
                    )
                    for reason in reasons
                ),
            )
            for stage in stages
        ),
    )
    rows, shown = [], []
    for stage in stages:
        ended = [by_outcome[stage, outcome] for outcome, _ in ENDINGS]
        why = [(counts[stage, reason], reason) for reason in reasons if counts[stage, reason]]
        most = max(why)
        rows.append(
            (stage, ended, f"{sum(ended):,}, most {most[1]}" if len(why) > 1 else f"{sum(ended):,} {most[1]}")
        )
        shown.append([f"{count:,}" for count in ended])
    said = "; ".join(f"{stage}: {total}" for stage, _, total in rows)
    return stacked_bars(
        "Device rounds that were not completed, by the stage at which they ended",
        f"Bars of device rounds that were not completed, by stage and outcome. {said}.",
        rows,
        ENDINGS,
        shown,
        heat,
    )
