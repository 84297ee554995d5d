"""What was fitted to telemetry, as a report and for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coordinator.results.report.axes import Scale, duration_axis, number_axis, percent_axis
from coordinator.results.report.blocks import (
    Block,
    Contents,
    NoteBlock,
    Plot,
    SectionBlock,
    TableBlock,
    TableCell,
)
from coordinator.results.report.charts import Line, distribution, line_plot
from device_profiles.units import format_duration
from edge.fitting.fitted import Fitted, FittedNetwork, device_rows, network_rows
from edge.fitting.replay import Match
from edge.fitting.tasks import AvailabilityFit

_HEADINGS = ("value", "found", "95% interval", "basis")
_MATCH_HEADINGS = ("transfers", "n", "p50 measured", "fitted", "p95 measured", "fitted", "KS", "by chance")


def parameter_tables(fitted: Fitted) -> Iterator[tuple[str, tuple[tuple[str, str, str, str], ...]]]:
    """Yield title and rows of a table for each profile: value, what was found, interval, and basis."""
    for network in fitted.networks:
        rows = [
            (
                key,
                value or "none",
                interval if measured else "",
                "data" if measured else f"prior: {network.like}",
            )
            for key, value, interval, measured in network_rows(network)
        ]
        yield (
            f"{network.label}: {network.fit.transfers:,} transfers of {network.fit.devices:,} devices",
            tuple(
                (key, value if basis == "data" else "as there", interval, basis)
                for key, value, interval, basis in rows
            ),
        )
    for one in fitted.classes:
        if one.fit.tasks == 0:
            continue
        basis = {"free": "data", "scaled": f"data, one scale of {one.like}", "none": f"prior: {one.like}"}[
            one.fit.kind
        ]
        yield (
            f"{one.label}: {one.fit.tasks:,} tasks of {one.fit.devices:,} devices",
            tuple(
                (key, value if measured else "as there", interval if measured else "", basis)
                for key, value, interval, measured in device_rows(one)
            ),
        )
    if fitted.availability is not None:
        found = fitted.availability
        yield (
            f"availability: {found.check_ins:,} check-ins of {found.devices:,} devices",
            tuple(
                (key, f"{one.value:.3g}", f"95%: {one.low:.3g} to {one.high:.3g}" if one.measured else "",
                 "data" if one.measured else "no check-ins at most hours")
                for key, one in found.values.items()
            ),
        )  # fmt: skip


def match_rows(network: FittedNetwork) -> Iterator[tuple[str, ...]]:
    """Yield how well measured times are met, by direction and size."""
    for match in network.matches:
        times = []
        for quantile in (0.5, 0.95):
            times += [
                format_duration(float(np.quantile(x, quantile))) for x in (match.measured, match.simulated)
            ]
        yield (
            f"{match.direction}, {match.sizes}", f"{len(match.measured):,}", *times,
            f"{match.ks:.2f}", f"{match.by_chance:.2f}",
        )  # fmt: skip


def fit_contents(fitted: Fitted) -> Contents:
    """Return the report, with its charts."""
    sections = []
    tables = [_block(title, _HEADINGS, rows, texts=4) for title, rows in parameter_tables(fitted)]
    sections.append(
        SectionBlock(
            "found",
            "What was found",
            tuple(tables),
            "What the data does not tell is taken from the profile named.",
            wide=True,
        )
    )
    for place, network in enumerate(fitted.networks):
        blocks: list[Block] = [
            _block(
                "simulated at the fit, against what was measured", _MATCH_HEADINGS, tuple(match_rows(network))
            )
        ]
        blocks += [_plot(match) for match in network.matches]
        sections.append(SectionBlock(f"network-{place}", f"{network.label}: goodness of fit", tuple(blocks)))
    if fitted.availability is not None:
        sections.append(SectionBlock("availability", "Availability by hour", (_hours(fitted.availability),)))
    if fitted.notes:
        notes = tuple(NoteBlock(note) for note in fitted.notes)
        sections.append(SectionBlock("notes", "Notes", notes))
    facts = (("table", fitted.telemetry.name), ("rows", f"{len(fitted.telemetry):,}"))
    return Contents("Profiles fitted to telemetry", facts=facts, sections=tuple(sections))


def _block(
    title: str, headings: tuple[str, ...], rows: tuple[tuple[str, ...], ...], texts: int = 1
) -> TableBlock:
    cells = tuple(tuple(TableCell(text) for text in row) for row in rows)
    return TableBlock(title, headings, cells, text_columns=texts, wide=True)


def _plot(match: Match) -> Plot:
    both = np.concatenate([match.measured, match.simulated])
    scale = Scale(max(float(both.min()), 1e-6), float(both.max()) * 1.02, logarithmic=True)
    shares = Scale(0.0, 1.0)
    lines = []
    for name, values in (("measured", match.measured), ("fitted", match.simulated)):
        x, y = distribution(values, len(values))
        order = np.argsort(x)
        tips = [
            f"{name}: {share:.0%} within {format_duration(float(at))}"
            for at, share in zip(x[order], y[order], strict=True)
        ]
        lines.append(Line(name, x[order], y[order], tips, steps=True))
    return line_plot(
        f"{match.direction}, {match.sizes}",
        f"Times of transfers, measured and simulated at the fit; KS {match.ks:.2f}.",
        lines, (scale, shares), (duration_axis(scale, "time"), percent_axis(shares, "share of transfers")),
    )  # fmt: skip


def _hours(found: AvailabilityFit) -> Plot:
    seen = np.flatnonzero(np.isfinite(found.by_hour))
    hours = np.arange(0.0, 24.01, 0.25)
    mean, ratio = found.values["mean_available"].value, found.values["peak_to_trough"].value
    swing = (ratio - 1.0) / (ratio + 1.0)
    fitted = mean * (1.0 + swing * np.cos((hours - found.values["peak_local_hour"].value) * np.pi / 12.0))
    tips = [f"{hour}:30: {found.by_hour[hour]:.0%}" for hour in seen.tolist()]
    lines = [
        Line("measured", seen.astype(np.float64) + 0.5, found.by_hour[seen], tips, marks=True),
        Line("fitted", hours, fitted, [f"{share:.0%}" for share in fitted.tolist()]),
    ]
    across, up = Scale(0.0, 24.0), Scale(0.0, 1.0)
    return line_plot(
        "share of check-ins that found the device available",
        "Availability by local hour, measured and fitted.",
        lines, (across, up), (number_axis(across, "local hour"), percent_axis(up, "available")),
    )  # fmt: skip
