"""What devices' own models take on them."""

from __future__ import annotations

import numpy as np

from coordinator.metrics.schemas import SCHEMAS
from coordinator.report.axes import show
from coordinator.report.blocks import Block, Cell, Section, Table
from coordinator.report.charts import SERIES_STYLES
from coordinator.report.sections.latency import cdf_plot
from coordinator.report.view import RunView

_TABLE = "inferences"


def inference(view: RunView) -> Section | None:
    """Return simulated latency, energy and memory of on-device inference by class; None without the table."""
    if _TABLE not in SCHEMAS:
        return None
    rows = view.read(
        _TABLE, ["class", "latency_s", "energy_j", "model_bytes", "memory_bytes", "host_latency_s"]
    )
    counts = sorted(rows.counts("class").items(), key=lambda pair: -pair[1])
    if not counts:
        return None
    blocks: list[Block] = []
    series = [
        (name, rows.numbers["latency_s"][rows.equal("class", name)], count)
        for name, count in counts[:SERIES_STYLES]
    ]
    plot = cdf_plot("On-device inference by device class (simulated)", "inference latency", series)
    if plot is not None:
        blocks.append(plot)
    found = []
    for name, count in counts:
        chosen = rows.where(rows.equal("class", name)).numbers
        p50_s, host_s = (float(np.median(chosen[column])) for column in ("latency_s", "host_latency_s"))
        energy_j = float(chosen["energy_j"].mean())
        model, memory = (int(chosen[column].max()) for column in ("model_bytes", "memory_bytes"))
        found.append(
            (
                Cell(name),
                Cell(f"{count:,}", count),
                Cell(show(p50_s, "s"), p50_s),
                Cell(show(energy_j, "J"), energy_j),
                Cell(show(model, "B"), model),
                Cell(show(memory, "B"), memory),
                Cell(show(host_s, "s"), host_s),
            )
        )
    headers = ("class", "inferences", "median", "energy", "model", "memory", "median here (measured)")
    blocks.append(Table("One call of a device's own model, by device class", headers, tuple(found)))
    return Section("inference", "On-device inference", tuple(blocks))
