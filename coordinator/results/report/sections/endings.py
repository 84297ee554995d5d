"""How device rounds ended that were not completed: at which stage, and why."""

from __future__ import annotations

from collections import Counter

from coordinator.results.report.blocks import SectionBlock, TableBlock, TableCell
from coordinator.results.report.view import RunView
from coordinator.results.tables.schemas import STAGE_ORDER
from edge.core.vocabulary import label


def endings(view: RunView) -> SectionBlock | None:
    """Return a heat map of endings: stage by reason, and the outcomes."""
    found = view.summary["not_completed"]
    outcomes = {name: count for name, count in view.summary["outcomes"].items() if count}
    if not outcomes:
        return None
    whole = view.summary["device_rounds"]
    by_outcome = TableBlock(
        "Device rounds by outcome",
        ("outcome", "device rounds", "share"),
        tuple(
            (
                TableCell(name),
                TableCell(f"{count:,}", count, f"outcomes.{name}"),
                TableCell(f"{count / whole:.1%}", count / whole, strength=count / whole),
            )
            for name, count in outcomes.items()
        ),
    )
    if not found:
        return SectionBlock("endings", "How device rounds ended", (by_outcome,))
    counts: Counter[tuple[str, str]] = Counter()
    for row in found:
        counts[row["stage"] or "–", row["reason"]] += row["count"]
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
        wide=len(reasons) > 4,
    )
    return SectionBlock("endings", "How device rounds ended", (by_outcome, heat))
