"""Section of a report on participation: outcomes, fairness, and accuracy by class of device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from coordinator.results.report.blocks import Block, SectionBlock, TableBlock, TableCell, Tile, Tiles
from coordinator.results.report.view import RunView
from coordinator.scenario.faults_section import STAGE_ORDER
from edge.core.vocabulary import Outcome, label


def participation(view: RunView) -> SectionBlock | None:
    """Return completed device rounds by class and network, indices of fairness, and accuracy by class."""
    rows = view.read("device_rounds", ["class", "network", "outcome"])
    if not len(rows):
        return None
    classes, networks = list(rows.counts("class")), list(rows.counts("network"))
    of_class = {name: code for code, name in enumerate(rows.names["class"])}
    of_network = {name: code for code, name in enumerate(rows.names["network"])}
    width = len(rows.names["network"])
    cell = rows.codes["class"].astype(np.int64) * width + rows.codes["network"]
    size = len(rows.names["class"]) * width
    invited = np.bincount(cell, minlength=size).reshape(-1, width)
    done = rows.equal("outcome", label(Outcome.COMPLETED))
    completed = np.bincount(cell[done], minlength=size).reshape(-1, width)

    def shown(a: int, b: int, name: str) -> TableCell:
        if not b:
            return TableCell("")
        return TableCell(f"{a / b:.0%} of {b:,}", a / b, name, strength=a / b)

    table_rows = []
    for device_class in classes:
        at = of_class[device_class]
        cells = [
            shown(
                int(completed[at, of_network[network]]),
                int(invited[at, of_network[network]]),
                f"participation[{device_class},{network}]",
            )
            for network in networks
        ]
        whole = shown(int(completed[at].sum()), int(invited[at].sum()), f"participation[{device_class}]")
        table_rows.append((TableCell(device_class), *cells, whole))
    heat = TableBlock(
        "Share of invitations that ended in an applied report, by device class and network",
        ("class", *networks, "together"),
        tuple(table_rows),
    )
    blocks: list[Block] = [_fairness(view), heat]
    accuracy = _accuracy(view)
    if accuracy is not None:
        blocks.append(accuracy)
    return SectionBlock("participation", "Participation and fairness", tuple(blocks), wide=True)


def _fairness(view: RunView) -> Tiles:
    found = view.summary["participation"]

    def tile(name: str, key: str, note: str) -> Tile:
        value = found[key]
        return Tile(name, "–" if value is None else f"{value:.3f}", f"participation.{key}", value, note)

    return Tiles(
        (
            Tile(
                "devices invited at least once",
                f"{found['devices']:,}",
                "participation.devices",
                found["devices"],
            ),
            tile("Jain index over devices", "jain_devices", "of applied reports; 1: the same for all"),
            tile("Jain index over classes", "jain_classes", "of the share of invitations completed"),
        )
    )


def _accuracy(view: RunView) -> TableBlock | None:
    found = view.summary["accuracy_by_class"]
    if not found:
        return None
    classes = sorted({name for row in found for name in row["by_class"]})

    def cell(row: Mapping[str, Any], name: str) -> TableCell:
        value = row["by_class"].get(name)
        key = f"accuracy[{row['metric']},{row['split']},{row['population']}].{name}"
        return TableCell("–") if value is None else TableCell(f"{value:.4g}", value, key)

    return TableBlock(
        "Last value of each metric by device class; the spread is the largest minus the smallest",
        ("class", *(f"{row['metric']} ({row['split']}, {row['population']} users)" for row in found)),
        (
            *((TableCell(name), *(cell(row, name) for row in found)) for name in classes),
            (TableCell("spread"), *(TableCell(f"{row['spread']:.4g}", row["spread"]) for row in found)),
        ),
    )


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
