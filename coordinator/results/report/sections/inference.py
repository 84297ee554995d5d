"""What devices' own models take on them."""

from __future__ import annotations

from coordinator.results.report.axes import show
from coordinator.results.report.blocks import Block, SectionBlock, TableBlock, TableCell
from coordinator.results.report.charts import SERIES_STYLES
from coordinator.results.report.sections.latency import cdf_plot
from coordinator.results.report.view import RunView


def inference(view: RunView) -> SectionBlock | None:
    """Return simulated latency, energy and memory of on-device inference by class, and what was measured."""
    by_class = view.summary["inference_by_class"]
    if not by_class:
        return None
    rows = view.read("inferences", ["class", "latency_s"])
    order = sorted(by_class, key=lambda name: -int(by_class[name]["inferences"]))
    series = [
        (name, rows.numbers["latency_s"][rows.equal("class", name)], int(by_class[name]["inferences"]))
        for name in order[:SERIES_STYLES]
    ]
    plot = cdf_plot("Latency of one call by device class", "inference latency", series)
    found = []
    for name in order:
        group = by_class[name]
        key = f"inference[{name}]"
        p50_s = group["latency_s"]["p50"]
        found.append(
            (
                TableCell(name),
                TableCell(f"{group['inferences']:,}", group["inferences"], f"{key}.inferences"),
                TableCell(show(p50_s, "s"), p50_s, f"{key}.latency_s.p50"),
                TableCell(show(group["mean_energy_j"], "J"), group["mean_energy_j"]),
                TableCell(show(group["model_bytes"], "B"), group["model_bytes"]),
                TableCell(show(group["max_memory_bytes"], "B"), group["max_memory_bytes"]),
            )
        )
    headers = ("class", "calls", "median", "energy", "model", "memory")
    simulated = TableBlock(
        "One call of a device's own model, by device class (simulated)", headers, tuple(found)
    )
    blocks: list[Block] = [*((plot,) if plot is not None else ()), simulated, _measured(view)]
    return SectionBlock("inference", "On-device inference", tuple(blocks))


def _measured(view: RunView) -> TableBlock:
    units = {"s": "s", "bytes": "B"}
    rows = []
    for name, found in view.summary["measured"]["inference"].items():
        stem, _, suffix = name.rpartition("_")
        unit = units.get(suffix, "")
        cells = [
            TableCell(show(found[p], unit), found[p], f"measured.inference.{name}.{p}")
            for p in ("p50", "max")
        ]
        rows.append((TableCell((stem if unit else name).replace("_", " ")), *cells))
    return TableBlock("Measured on this computer", ("", "median", "largest"), tuple(rows))
