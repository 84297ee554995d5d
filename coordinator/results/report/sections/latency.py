"""How long reports take, by class of devices, and what devices' own models take on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from coordinator.results.report.axes import Scale, duration_axis, duration_scale, percent_axis
from coordinator.results.report.blocks import Block, Fold, Plot, TableBlock, TableCell
from coordinator.results.report.charts import SERIES_STYLES, Line, distribution, line_plot
from coordinator.results.report.people import percent, show
from coordinator.results.report.view import RunView
from coordinator.scenario.threshold_evaluation import percentile

Floats = npt.NDArray[np.float64]
_PERCENTAGES = (5, 25, 50, 75, 95, 99)


def cdf_plot(
    title: str,
    what: str,
    series: Sequence[tuple[str, Floats, int]],
    groups: Mapping[str, str] = MappingProxyType({}),
) -> Plot | None:
    """Return cumulative distributions of durations.

    Parameters
    ----------
    title, what : of the chart and of its horizontal axis.
    series : name, float64 [n] seconds without NaN, and what 100 % is.
    groups : by name; series of one group look the same.

    None when no series has a value.
    """
    lines, rows = [], []
    for name, values, whole in series:
        cells = [TableCell(name), TableCell(percent(len(values) / whole), len(values) / whole)]
        if len(values):
            x, y = distribution(values, whole)
            tips = [
                f"{name}: {percent(b)} within {show(a, 's')}"
                for a, b in zip(x.tolist(), y.tolist(), strict=True)
            ]
            lines.append(Line(name, x, y, tips, steps=len(values) < 50, group=groups.get(name)))
            sorted_s = np.sort(values)
            found = [percentile(sorted_s, p, ordered=True) for p in _PERCENTAGES]
            cells += [
                TableCell(show(value, "s"), value, f"{what}[{name}].p{p}")
                for p, value in zip(_PERCENTAGES, found, strict=True)
            ]
        else:
            cells += [TableCell("–")] * len(_PERCENTAGES)
        rows.append(tuple(cells))
    if not lines:
        return None
    scales = duration_scale(np.concatenate([line.x for line in lines])), Scale(0.0, 1.02)
    table = TableBlock(
        f"Percentiles of {what}", ("name", "known", *(f"p{p}" for p in _PERCENTAGES)), tuple(rows)
    )
    return line_plot(
        title,
        f"Cumulative distributions of {what}, a line each for {', '.join(line.name for line in lines)}.",
        lines,
        scales,
        (duration_axis(scales[0], what), percent_axis(scales[1], "share")),
        table,
    )


def latency_by(view: RunView, column: str) -> Plot | None:
    """Return the latency of reports by ``class`` or ``network``; the largest ones where there are many.

    None when nothing ever reported.
    """
    rows = view.read("device_rounds", [column, "latency_s"])
    latency_s = rows.numbers["latency_s"]
    counts = sorted(rows.counts(column).items(), key=lambda pair: -pair[1])
    series = []
    for name, count in counts[:SERIES_STYLES]:
        values = latency_s[rows.equal(column, name)]
        series.append((name, values[~np.isnan(values)], count))
    rest = len(counts) - len(series)
    more = f" (the {len(series)} largest of {len(counts)})" if rest else ""
    title = f"Invitation to report by {column}{more}; a line ends where the rest never reported"
    return cdf_plot(title, "report latency", series)


def inference(view: RunView) -> Fold | None:
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
    return Fold("On-device inference", tuple(blocks))


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
    return TableBlock("Measured on this computer", ("figure", "median", "largest"), tuple(rows))
