"""The summary of a run as a terminal shows it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from coordinator.engine.run_files import on_real_clock, time_name
from coordinator.results.analysis.critical_path import DEADLINE
from coordinator.results.analysis.learning_curves import AUDIT_PREFIX
from coordinator.results.summary import GROUPINGS, PERCENTILES
from coordinator.results.tables.schemas import DIRECTIONS
from coordinator.scenario.faults_section import STAGE_ORDER
from device_profiles.units import format_bytes, format_duration
from edge.core.vocabulary import label

_FLOATING_POINT_NOTE = (
    "noise is drawn in floating point, whose low bits may give away what it was added to (Mironov 2012); "
    "epsilon does not count that, 'sampler: discrete' avoids it"
)
_BLAMED: Final = 3
"""How many stages, and how many classes, are named."""


def privacy_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a summary says of the ε spent and whose it is, of what was claimed, of tiers and sampling.

    ε of single values is named as such. Nothing without ε.
    """
    if (hidden := summary["value_privacy"]) is not None:
        yield from _value_lines(hidden)
    facts = summary["privacy"]
    if facts is not None and "counted_for" not in facts:
        yield "epsilon is not shown: the version that wrote this run counted it by another rule; run it again"
        return
    if summary["epsilon"] is None or facts is None:
        return
    whose = facts["counted_for"]
    if facts["most_releases"] is not None:
        whose += f", {facts['most_releases']} times"
    yield f"epsilon {_both(summary)} at δ = {facts['delta']:g}, of {whose}"
    claimed = facts["claimed_epsilon"]
    if claimed is not None:
        yield (
            f"epsilon {claimed:g} claimed, by σ = Δ/ε, which is no calibration of Gaussian noise; "
            f"the true one is {_both(summary)}"
        )
    for name, tier in facts["tiers"].items():
        details = (
            f"{tier['devices']} devices",
            f"noise {tier['noise_multiplier']:g}",
            f"weight {tier['weight']:.3g}",
            f"up to {tier['most_reports']} reports",
        )
        yield f"tier {name}: epsilon {_both(tier)} ({', '.join(details)})"
    if facts["sampler"] == "floating-point" and summary["epsilon"] != "infinite":
        yield _FLOATING_POINT_NOTE


def _value_lines(hidden: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ε of the value of one rating, and of all values of the user who has most."""
    most, whole = hidden["most_ratings"], hidden["epsilon_of_most_ratings"]
    users = "" if most is None else f"; {whole:.4g} of all values of a user with {most:,}"
    yield (
        f"epsilon {hidden['epsilon']:.4g} at δ = 0, of {hidden['hides']}, in the model that"
        f" {hidden['mechanism']} releases once{users}"
    )
    yield "which items somebody has rated is not hidden by it, and the coordinator is trusted with the sums"


def clipping_line(summary: Mapping[str, Any]) -> str | None:
    """Return what a summary says of clipped values and updates; None where nothing is clipped, or unseen."""
    named = (("values", "of the values other than zero"), ("updates", "of the updates"))
    said = [
        f"{found['mean']:.2%} {what} (a round up to {found['max']:.2%})"
        for name, what in named
        if (found := summary["clipped"][name]) is not None
    ]
    return ", ".join(said) or None


def _both(facts: Mapping[str, Any]) -> str:
    """Return ε under both relations between neighbours, each with its name."""
    return f"{_shown(facts['epsilon'])} zero-out, {_shown(facts['epsilon_replace_one'])} replace-one"


def _shown(epsilon: float | str) -> str:
    return epsilon if isinstance(epsilon, str) else "infinite" if math.isinf(epsilon) else f"{epsilon:.4g}"


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else format_duration(seconds)


def _percentile(found: Mapping[str, float] | None, name: str) -> str:
    return _duration(None if found is None else found[name])


def _energy(energy_j: float | None) -> str:
    return "–" if energy_j is None else f"{energy_j:.3g} J"


def _table(title: str, first: str, headings: Iterable[str]) -> Table:
    """Return an empty table: its first column names the rows, the others are figures."""
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _groups_table(summary: Mapping[str, Any], grouping: str) -> Table:
    table = _table(
        f"per {'device class' if grouping == 'class' else grouping}",
        grouping,
        ("device rounds", "completed", "p50", "p95", "p99", "down", "up", "energy", "wasted"),
    )
    for name, group in summary[f"by_{grouping}"].items():
        table.add_row(
            name,
            str(group["device_rounds"]),
            f"{group['completed'] / group['device_rounds']:.1%}",
            *(_percentile(group["latency_s"], f"p{p}") for p in PERCENTILES),
            format_bytes(group["mean_down_bytes"]),
            format_bytes(group["mean_up_bytes"]),
            _energy(group["mean_energy_j"]),
            format_bytes(group["wasted_bytes"]),
        )
    return table


def _ways_table(summary: Mapping[str, Any]) -> Table:
    table = _table(
        "shielded mix: by way of the update",
        "way",
        ("device rounds", "share", "completed", "p50", "p99", "down", "up", "computing", "energy"),
    )
    for name, group in summary["by_way"].items():
        table.add_row(
            name,
            str(group["device_rounds"]),
            f"{group['share']:.1%}",
            f"{group['completed'] / group['device_rounds']:.1%}",
            _percentile(group["latency_s"], "p50"),
            _percentile(group["latency_s"], "p99"),
            format_bytes(group["mean_down_bytes"]),
            format_bytes(group["mean_up_bytes"]),
            _duration(group["mean_compute_s"]),
            _energy(group["mean_energy_j"]),
        )
    return table


def _stages_table(summary: Mapping[str, Any]) -> Table:
    summed = bool(summary["round_stages_s"])
    of_round = ("round p50", "round p95") if summed else ()
    table = _table("per stage", "stage", ("device rounds", "p50", "p95", "p99", "down", "up", *of_round))
    order = [label(stage) for stage in STAGE_ORDER if label(stage) in summary["stages"]]
    for name in order:
        stage = summary["stages"][name]
        of_rounds = summary["round_stages_s"].get(name)
        table.add_row(
            name,
            str(stage["device_rounds"]),
            *(_percentile(stage["seconds"], f"p{p}") for p in PERCENTILES),
            format_bytes(stage["mean_down_bytes"]),
            format_bytes(stage["mean_up_bytes"]),
            *((_percentile(of_rounds, "p50"), _percentile(of_rounds, "p95")) if summed else ()),
        )
    return table


def _class_stages_table(summary: Mapping[str, Any]) -> Table:
    """Return p50 of the seconds and the bytes, both ways together, of each class of devices in each stage."""
    table = Table(title="per device class and stage: p50, bytes", title_justify="left")
    table.add_column("class", no_wrap=True)
    order = [label(stage) for stage in STAGE_ORDER if label(stage) in summary["stages"]]
    for name in order:
        table.add_column(name, justify="right")
    for name, stages in summary["stages_by_class"].items():
        cells = []
        for stage in order:
            found = stages.get(stage)
            size = 0.0 if found is None else found["mean_down_bytes"] + found["mean_up_bytes"]
            seconds = None if found is None else found["seconds"]
            cells.append(f"{_percentile(seconds, 'p50')}\n{format_bytes(size)}")
        table.add_row(name, *cells)
    return table


def _overview_table(summary: Mapping[str, Any]) -> Table:
    sizes, measured = summary["bytes"], summary["measured"]
    table = Table(title=f"run {summary['status']}", title_justify="left", show_header=False)
    table.add_column("figure")
    table.add_column("value")
    free = summary["evaluation"]["measured_by"] == "simulator" and summary["accuracy"]
    beside = "; the model was measured by the simulator, at no cost" if free else ""
    table.add_row(time_name([summary]), f"{_duration(summary['simulated_s'])}{beside}")
    outcomes = ", ".join(f"{name} {count}" for name, count in summary["outcomes"].items() if count)
    table.add_row("device rounds", f"{summary['device_rounds']}: {outcomes}" if outcomes else "none")
    ways = ", ".join(f"{way} {format_bytes(sizes[way])}" for way in DIRECTIONS)
    fates = ", ".join(f"{fate} {format_bytes(sizes[fate])}" for fate in ("lost", "discarded", "wasted"))
    table.add_row("bytes", f"{ways}; {fates}")
    phases: dict[str, list[str]] = {}
    for phase, how in summary["secure_aggregation"].items():
        phases.setdefault(how, []).append(phase)
    for how, where in phases.items():
        if how != "off":
            table.add_row("secure sums" if len(phases) == 1 else f"secure sums, {', '.join(where)}", how)
    for index, line in enumerate(privacy_lines(summary)):
        table.add_row("privacy" if index == 0 else "", line)
    if (clipped := clipping_line(summary)) is not None:
        table.add_row("clipped", clipped)
    if summary["energy_j"] is None:
        table.add_row("device energy", "kept back: it follows from how much data devices have")
    else:
        modelled = " (profiles' power over measured times)" if on_real_clock(summary) else ""
        table.add_row("device energy", f"{summary['energy_j']:.4g} J{modelled}")
    if summary["loss"] is not None:
        table.add_row("training loss", f"{summary['loss']['first']:.5g} → {summary['loss']['last']:.5g}")
    for row in summary["accuracy"]:
        table.add_row(
            f"{row['metric']} ({row['split']}, {row['population']} users)", accuracy_line(row, summary)
        )
    if summary["unscored"] is not None:
        table.add_row("evaluation", f"none: {summary['unscored']}")
    for name, said in (
        *_mean_rows(summary),
        *_evaluation_rows(summary),
        *_inference_rows(summary),
        *_blame_rows(summary),
        *_fairness_rows(summary),
    ):
        table.add_row(name, said)
    speed = measured["device_rounds_per_s"]
    per_second = "" if speed is None else f" ({speed:,.0f} device rounds/s)"
    table.add_row("wall time", f"{_duration(measured['wall_s'])}{per_second}")
    return table


def accuracy_line(row: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return what a summary says of one metric: its last value, or that of the round that was chosen."""
    last = "no number (diverged)" if row["last"] is None else f"{row['last']:.5g}"
    selected = summary.get("selected")
    if selected is not None and row["split"] == "test":
        return f"{last} after round {row['last_round']}, chosen by {selected['metric']} on validation"
    said = f"first {row['first']:.5g}, last {last} after round {row['last_round']}"
    if row["best"] is not None:
        said += f", best {row['best']:.5g} in round {row['best_round']}"
    return said + _most_of_the_way(row)


def _most_of_the_way(accuracy: Mapping[str, Any]) -> str:
    """Return when a metric had come nine tenths of its way."""
    for reached in accuracy["reached"]:
        if reached["fraction"] == 0.9:
            time_s, size = format_duration(reached["time_s"]), format_bytes(reached["bytes"])
            return f"; 90% in {time_s}, {size}"
    return ""


def _evaluation_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    found = summary["evaluation"]
    if found["measured_by"] != "devices":
        return
    ended = f"{found['completed']} of {found['evaluations']} evaluations"
    yield "measured by", f"devices: {ended} of {found['device_rounds']} device rounds; {_cost(found)}"


def _cost(found: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{way} {format_bytes(found['bytes'][way])}" for way in DIRECTIONS)
    return f"{_duration(found['seconds'])}, {sizes}, {_energy(found['energy_j'])}, beside the above"


def mean_origin(summary: Mapping[str, Any]) -> str:
    """Return where the mean rating is from that the method began with."""
    found = summary["rating_mean"]
    match found["from"]:
        case "public":
            return "as the scenario states it (data.public, or its synthetic ratings)"
        case "negatives":
            return "as it follows from data.negatives"
        case "data":
            return "of all training ratings"
    if found["value"] is None:
        return f"devices were asked {found['queries']} times, and no sum came about"
    of = f"{found['ratings']:,} ratings" if found["ratings"] is not None else "their means, with noise"
    return f"of {found['devices']:,} devices, which were asked: {of}"


def _mean_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the mean rating that devices were asked for, and what that cost."""
    found = summary["rating_mean"]
    if found is not None and found["from"] == "devices":
        value = "unknown" if found["value"] is None else f"{found['value']:.5g}"
        yield "mean rating", f"{value}, {mean_origin(summary)}; {_cost(found)}"


def _inference_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how often devices ran their own models, and how long the slowest class took."""
    found = summary["inference_by_class"]
    if found:
        calls = sum(group["inferences"] for group in found.values())
        slowest = max(found, key=lambda name: float(found[name]["latency_s"]["p50"]))
        p50_s = found[slowest]["latency_s"]["p50"]
        yield "on-device inference", f"{calls} calls; slowest class {slowest}, p50 {format_duration(p50_s)}"


def _blame_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what held rounds up most: stages and classes, with their shares of the time of all rounds."""
    found = summary["held_up"]
    rows = found["by_class_and_stage"]
    for name, column in (("held up in", "stage"), ("held up by", "class")):
        shares: Counter[str] = Counter()
        for row in rows:
            shares[row[column]] += row["share"]
        if shares:
            yield name, ", ".join(f"{what} {share:.0%}" for what, share in shares.most_common(_BLAMED))
    if found["barriers_ended_by_deadline"]:
        missing = [row for row in rows if row["ended_by"] == DEADLINE]
        share = sum(row["share"] for row in missing)
        ended = found["barriers_ended_by_deadline"]
        what = "round or stage of sums" if ended == 1 else "rounds or stages of sums"
        yield "deadlines", f"ended {ended} {what} and {share:.0%} of the time"


def _fairness_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how evenly devices and classes took part."""
    found = summary["participation"]
    if found["jain_devices"] is None:
        return
    shares = {name: found["completed"][name] / count for name, count in found["invited"].items()}
    least = min(shares, key=lambda name: shares[name])
    yield (
        "fairness (Jain index)",
        f"{found['jain_devices']:.3f} over devices, {found['jain_classes']:.3f} over classes; "
        f"least {least}, {shares[least]:.0%} completed",
    )


def _audit_table(summary: Mapping[str, Any]) -> Table:
    table = Table(title="audits", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in summary["audit"].items():
        table.add_row(name, "–" if value is None else f"{value:.4g}")
    return table


def _audit_users_table(summary: Mapping[str, Any]) -> Table:
    """Return the share of users in each bucket of a figure of their own."""
    found = summary["audit_users"]
    buckets = list(dict.fromkeys(bucket for shares in found.values() for bucket in shares))
    table = _table(
        "shares of users", "figure of a user", [bucket.replace(" ", "\n", 1) for bucket in buckets]
    )
    for name, shares in found.items():
        values = [shares.get(bucket) for bucket in buckets]
        shown = ["–" if value is None else f"{value:.0%}" for value in values]
        table.add_row(name.removeprefix(AUDIT_PREFIX), *shown)
    return table


def _inference_table(summary: Mapping[str, Any]) -> Table:
    """Return what devices' own models take on each class of devices, simulated."""
    table = _table("on-device inference", "class", ("inferences", "p50", "p99", "energy", "model", "memory"))
    for name, group in summary["inference_by_class"].items():
        table.add_row(
            name,
            str(group["inferences"]),
            *(_percentile(group["latency_s"], name) for name in ("p50", "p99")),
            f"{group['mean_energy_j']:.3g} J",
            format_bytes(group["model_bytes"]),
            format_bytes(group["max_memory_bytes"]),
        )
    return table


def _measured_inference(summary: Mapping[str, Any]) -> Text:
    here = summary["measured"]["inference"]
    latency_s, memory = here["host_latency_s"], here["host_session_bytes"]
    return Text(
        f"measured here: p50 {_percentile(latency_s, 'p50')}, p99 {_percentile(latency_s, 'p99')}; "
        f"session opened in p50 {_percentile(here['host_opening_s'], 'p50')}, {format_bytes(memory['p50'])}; "
        f"largest error {here['max_absolute_error']['max']:.2g}, "
        f"relative {here['max_relative_error']['max']:.2g}"
    )


def _endings_table(summary: Mapping[str, Any]) -> Table:
    table = Table(title="not completed", title_justify="left")
    for heading in ("outcome", "stage", "reason"):
        table.add_column(heading)
    table.add_column("device rounds", justify="right")
    for row in summary["not_completed"]:
        table.add_row(row["outcome"], row["stage"] or "–", row["reason"], str(row["count"]))
    return table


def render(summary: Mapping[str, Any]) -> Table:
    """Return the figures of a run behind its answers for a terminal, in about twenty lines."""
    return _overview_table(summary)


def render_details(summary: Mapping[str, Any]) -> Group:
    """Return the tables behind the figures: by device class, network and stage, audits, and endings."""
    parts: list[Table | Text] = []
    parts.extend(_groups_table(summary, grouping) for grouping in GROUPINGS if summary[f"by_{grouping}"])
    if any("shielded" in how for how in summary["secure_aggregation"].values()) and summary["by_way"]:
        parts.append(_ways_table(summary))
    if summary["stages"]:
        parts.append(_stages_table(summary))
    if summary["round_stages_s"]:
        parts.append(_class_stages_table(summary))
    if summary["audit"]:
        parts.append(_audit_table(summary))
    if summary["audit_users"]:
        parts.append(_audit_users_table(summary))
    if summary["inference_by_class"]:
        parts.extend((_inference_table(summary), _measured_inference(summary)))
    if summary["not_completed"]:
        parts.append(_endings_table(summary))
    return Group(*parts)
