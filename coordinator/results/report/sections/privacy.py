"""What was spent of differential privacy, and what audits found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from coordinator.results.analysis.learning_curves import AUDIT_PREFIX
from coordinator.results.report.axes import Scale, duration_axis, from_zero, number_axis, percent_axis
from coordinator.results.report.blocks import Block, Fold, NoteBlock, TableBlock, TableCell
from coordinator.results.report.charts import Line, line_plot, thin
from coordinator.results.report.people import percent, show
from coordinator.results.report.view import RunView
from coordinator.results.summary_tables import clipping_line, privacy_lines


def privacy(view: RunView) -> Fold | None:
    """Return epsilon over time, what was clipped, the modes of secure sums, and the audits."""
    blocks: list[Block] = []
    numbers = view.rounds.numbers
    epsilon, replace_one = numbers["epsilon"], numbers["epsilon_replace_one"]
    known = np.flatnonzero(np.isfinite(epsilon) & np.isfinite(replace_one))
    if len(known):
        kept = known[thin(len(known))]
        time_s = numbers["end_s"][kept]
        lines = []
        for name, values in (("zero-out", epsilon[kept]), ("replace-one", replace_one[kept])):
            tips = [
                f"epsilon {value:.4g} {name} after round {number}, {show(at, 's')}"
                for value, number, at in zip(
                    values.tolist(), numbers["round"][kept].tolist(), time_s.tolist(), strict=True
                )
            ]
            lines.append(Line(name, time_s, values, tips))
        scales = from_zero(float(time_s.max())), from_zero(float(replace_one[kept].max()))
        table = TableBlock(
            "Epsilon spent",
            ("after round", view.time_name, "zero-out", "replace-one"),
            tuple(
                (
                    TableCell(f"{numbers['round'][row]}"),
                    TableCell(show(float(numbers["end_s"][row]), "s")),
                    TableCell(f"{epsilon[row]:.4g}", float(epsilon[row])),
                    TableCell(f"{replace_one[row]:.4g}", float(replace_one[row])),
                )
                for row in known[thin(len(known), 50)].tolist()
            ),
        )
        blocks.append(
            line_plot(
                "Epsilon spent",
                f"Line chart of epsilon against {view.time_name}, up to {epsilon[kept][-1]:.4g} zero-out and "
                f"{replace_one[kept][-1]:.4g} replace-one.",
                lines,
                scales,
                (duration_axis(scales[0], view.time_name), number_axis(scales[1], "epsilon")),
                table,
            )
        )
    elif np.isinf(epsilon).any():
        blocks.append(NoteBlock("Epsilon is infinite: the noise of this run promises nothing.", "bad"))
    blocks.extend(NoteBlock(line) for line in privacy_lines(view.summary))
    if (clipped := clipping_line(view.summary)) is not None:
        blocks.append(NoteBlock(f"Clipped: {clipped}."))
    sums = {phase: how for phase, how in view.summary["secure_aggregation"].items() if how != "off"}
    if sums:
        rows = tuple(
            (TableCell("whole run" if phase == "run" else phase), TableCell(how))
            for phase, how in sums.items()
        )
        blocks.append(TableBlock("Secure sums", ("phase", "mode"), rows, text_columns=2))
    ways = view.summary["by_way"]
    if any("shielded" in how for how in sums.values()) and ways:
        shares = tuple(
            (
                TableCell(name),
                TableCell(f"{way['device_rounds']:,}", way["device_rounds"], f"way[{name}].device_rounds"),
                TableCell(percent(way["share"]), way["share"], f"way[{name}].share"),
            )
            for name, way in ways.items()
        )
        blocks.append(TableBlock("Updates by the way they came", ("way", "device rounds", "share"), shares))
    audits = view.summary["audit"]
    if audits:
        rows = tuple(
            (TableCell(name), TableCell("–" if value is None else f"{value:.4g}", value, name))
            for name, value in audits.items()
        )
        blocks.append(TableBlock("Audits: what an attacker recovers", ("figure", "value"), rows))
    blocks.extend(_over_users(view))
    return Fold("Privacy", tuple(blocks)) if blocks else None


def _over_users(view: RunView) -> Iterator[Block]:
    """Yield a chart for each attack: the share of users by their own figure, beside guessing."""
    kinds: dict[str, dict[str, Mapping[str, float]]] = {}
    for name, shares in view.summary["audit_users"].items():
        kinds.setdefault(re.split("[._@]", name)[1], {})[name.removeprefix(AUDIT_PREFIX)] = shares
    for kind, found in kinds.items():
        known = {name: shares for name, shares in found.items() if None not in shares.values()}
        if not known:
            continue
        groups = list(next(iter(known.values())))
        x = (np.arange(len(groups)) + 0.5) / len(groups)
        lines = []
        for name, shares in known.items():
            tips = [f"{name}, {group}: {percent(share)} of users" for group, share in shares.items()]
            lines.append(Line(name, x, np.array(list(shares.values())), tips, marks=True))
        rows = tuple(
            (
                TableCell(name),
                *(TableCell(percent(share), share, f"{name}[{group}]") for group, share in shares.items()),
            )
            for name, shares in known.items()
        )
        scales = Scale(0.0, 1.0), from_zero(max(float(line.y.max()) for line in lines))
        yield line_plot(
            f"Users by what the {kind} attack finds of theirs",
            f"Chart of the share of users by the share of their own that the {kind} attack finds.",
            lines,
            scales,
            (percent_axis(scales[0], "found of a user's own"), number_axis(scales[1], "share of users")),
            TableBlock("Shares of users", ("found of a user's own", *groups), rows, wide=True),
        )
