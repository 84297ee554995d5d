"""Who took part, how evenly, and how good the model is for each class of device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coordinator.results.report.blocks import Block, Fold, TableBlock, TableCell, Tile, Tiles
from coordinator.results.report.people import number, percent
from coordinator.results.report.view import RunView
from edge.core.vocabulary import Outcome, label


def participation(view: RunView) -> Fold | None:
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
        return TableCell(f"{percent(a / b)} of {b:,}", a / b, name, strength=a / b)

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
    return Fold("Participation and fairness", tuple(blocks))


def _fairness(view: RunView) -> Tiles:
    found = view.summary["participation"]

    def tile(name: str, key: str, note: str) -> Tile:
        value = found[key]
        return Tile(name, "–" if value is None else number(value), f"participation.{key}", value, note)

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
        return TableCell("–") if value is None else TableCell(number(value), value, key)

    return TableBlock(
        "Last value of each metric by device class; the spread is the largest minus the smallest",
        ("class", *(f"{row['metric']} ({row['split']}, {row['population']} users)" for row in found)),
        (
            *((TableCell(name), *(cell(row, name) for row in found)) for name in classes),
            (TableCell("spread"), *(TableCell(number(row["spread"]), row["spread"]) for row in found)),
        ),
    )
