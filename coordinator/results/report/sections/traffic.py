"""What travelled: bytes by kind and by stage, and what of it was wasted."""

from __future__ import annotations

from typing import Final

from coordinator.engine.run_files import on_real_clock
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
from coordinator.results.report.people import percent, show, shown
from coordinator.results.report.view import RunView
from coordinator.results.tables.schemas import DIRECTIONS, SPLITS
from coordinator.scenario.faults_section import STAGE_ORDER
from edge.core.vocabulary import Fate, label

QUESTION: Final = "Where do the bytes go?"


def _sizes(values: list[int]) -> list[str]:
    return [show(value, "B") for value in values]


def traffic(view: RunView) -> SectionBlock | None:
    """Return bytes by stage, kind and fate, and what each way to end cost."""
    numbers = view.rounds.numbers
    if not view.summary["device_rounds"] or not view.summary["bytes"]["down"] + view.summary["bytes"]["up"]:
        return None
    total = {name: int(values.sum()) for name, values in numbers.items() if name.endswith("_bytes")}
    kinds = [[total[f"{way}_{split}_bytes"] for split in SPLITS] for way in DIRECTIONS]
    by_kind = stacked_bars(
        "Bytes by kind",
        "Bars of bytes down and up by kind.",
        [(way, sizes, show(sum(sizes), "B")) for way, sizes in zip(DIRECTIONS, kinds, strict=True)],
        [(split.replace("_", "/").replace("tcp/ip", "TCP/IP"), f"p{at}") for at, split in enumerate(SPLITS)],
        [_sizes(sizes) for sizes in kinds],
        TableBlock(
            "Bytes by kind",
            ("direction", *SPLITS, "together"),
            tuple(
                (
                    TableCell(way),
                    *(
                        TableCell(show(size, "B"), size, f"bytes.{way}_{split}")
                        for size, split in zip(sizes, SPLITS, strict=True)
                    ),
                    TableCell(show(sum(sizes), "B"), sum(sizes)),
                )
                for way, sizes in zip(DIRECTIONS, kinds, strict=True)
            ),
        ),
    )
    names = [f"{label(stage)}_{way}_bytes" for stage in STAGE_ORDER for way in DIRECTIONS]
    devices = view.read("device_rounds", names).numbers
    stages = [
        (label(stage), [int(devices[f"{label(stage)}_{way}_bytes"].sum()) for way in DIRECTIONS])
        for stage in STAGE_ORDER
    ]
    stages = [(name, sizes) for name, sizes in stages if sum(sizes)]
    by_stage = stacked_bars(
        "Bytes by stage",
        "Bars of bytes by stage of the protocol, down and up.",
        [(name, sizes, show(sum(sizes), "B")) for name, sizes in stages],
        [("down", "p0"), ("up", "p1")],
        [_sizes(sizes) for _, sizes in stages],
        TableBlock(
            "Bytes by stage of the protocol, of all invited devices",
            ("stage", *DIRECTIONS),
            tuple(
                (
                    TableCell(name),
                    *(
                        TableCell(show(size, "B"), size, f"bytes.{name}.{way}")
                        for size, way in zip(sizes, DIRECTIONS, strict=True)
                    ),
                )
                for name, sizes in stages
            ),
        ),
    )
    fates = [total[f"{label(fate)}_bytes"] for fate in Fate]
    whole = sum(fates)
    by_fate = TableBlock(
        "What became of the bytes: delivered, lost and discarded are all that was sent",
        ("fate", "bytes", "share"),
        tuple(
            (
                TableCell(name),
                TableCell(show(size, "B"), size, f"bytes.{name}"),
                TableCell(percent(size / whole), size / whole),
            )
            for name, size in [
                *((label(fate), size) for fate, size in zip(Fate, fates, strict=True)),
                ("wasted", total["wasted_bytes"]),
            ]
        ),
    )
    wasted = percent(total["wasted_bytes"] / whole)
    each = show(whole / view.summary["device_rounds"], "B")
    down = percent(sum(kinds[0]) / whole)
    intro = f"{show(whole, 'B')} in all, {each} a device round; {down} went down. {wasted} was wasted."
    if on_real_clock(view.summary):
        intro += " Seen at the WebSocket: what TCP/IP adds below it is not seen, and counted as nothing."
    waste = _waste(view)
    options: dict[str, tuple[Block, ...]] = {
        "by stage": (by_stage,),
        "by kind": (by_kind,),
        "by how device rounds ended": (_by_outcome(view, waste),),
    }
    blocks = (*choice("bytes-by", "Show", options), Fold("What became of the bytes", (by_fate,)))
    answer = Tile("Bytes", show(whole, "B"), note=f"{each} a device round; {wasted} wasted")
    return SectionBlock("bytes", QUESTION, blocks, intro, wide=True, answers=(answer,))


def _by_outcome(view: RunView, table: TableBlock) -> Bars:
    found = view.summary["waste_by_outcome"]
    sizes = {name: [row["bytes"] - row["wasted_bytes"], row["wasted_bytes"]] for name, row in found.items()}
    return stacked_bars(
        "Bytes by how device rounds ended",
        "Bars of bytes by the outcome of device rounds, used and wasted.",
        [(name, each, show(sum(each), "B")) for name, each in sizes.items()],
        [("used", "p0"), ("wasted", "p4")],
        [_sizes(each) for each in sizes.values()],
        table,
    )


def _waste(view: RunView) -> TableBlock:
    rows = []
    found = view.summary["waste_by_outcome"]
    peak = max([1.0, *(float(row["wasted_bytes"]) for row in found.values())])
    for name, row in found.items():
        rows.append(
            (
                TableCell(name),
                TableCell(f"{row['device_rounds']:,}", row["device_rounds"]),
                TableCell(
                    show(row["wasted_bytes"], "B"),
                    row["wasted_bytes"],
                    f"waste[{name}].wasted_bytes",
                    strength=row["wasted_bytes"] / peak,
                ),
                TableCell(
                    shown(row["wasted_compute_s"], "s"),
                    row["wasted_compute_s"],
                    f"waste[{name}].wasted_compute_s",
                ),
                TableCell(shown(row["energy_j"], "J"), row["energy_j"]),
            )
        )
    return TableBlock(
        "Wasted on devices, by how their rounds ended",
        ("outcome", "device rounds", "wasted bytes", "wasted computing", "energy"),
        tuple(rows),
    )
