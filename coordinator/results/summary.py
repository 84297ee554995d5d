"""A run in figures: ``summary.json``.

It is made from the tables alone, so a killed run has a summary too. Percentiles interpolate linearly, as
those of thresholds do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coordinator.results.advice import read_advice
from coordinator.results.analysis.critical_path import (
    ARRIVAL,
    DEADLINE,
    STEPS,
    CriticalPath,
    critical_path,
    held_up,
)
from coordinator.results.analysis.learning_curves import (
    AUDIT_PREFIX,
    TEST,
    TRAINING_LOSS,
    Curve,
    learning_curves,
    time_to_accuracy,
)
from coordinator.results.analysis.participation import accuracy_by_class, participation, waste_by_outcome
from coordinator.results.analysis.rows import Rows, read_rows
from coordinator.results.run_directory import run_status
from coordinator.results.tables.batches import suspensions
from coordinator.results.tables.functions import rows_where
from coordinator.results.tables.reader import RunTables
from coordinator.results.tables.schemas import DIRECTIONS, SCHEMA_VERSION, SCHEMAS, SPLITS, is_measured
from coordinator.scenario.metric_names import BUCKET
from coordinator.scenario.threshold_evaluation import percentile
from edge.core.vocabulary import SUM_STAGES, Fate, Outcome, RoundOutcome, Stage, label

PERCENTILES: Final = (50, 95, 99)
_STAGE_BYTES: Final = tuple(f"{direction}_bytes" for direction in DIRECTIONS)
GROUPINGS: Final = ("class", "network")
_SUSPENDED_NAMED: Final = 5
_BYTE_COLUMNS: Final = (
    *(f"{direction}_bytes" for direction in DIRECTIONS),
    *(f"{direction}_{split}_bytes" for direction in DIRECTIONS for split in SPLITS),
    *(f"{label(fate)}_bytes" for fate in Fate),
    "wasted_bytes",
)
_SPENT: Final = ("epsilon", "epsilon_replace_one")


_MEASURED_INFERENCE: Final = tuple(field.name for field in SCHEMAS["inferences"] if is_measured(field))


def percentiles(values: npt.NDArray[np.float64]) -> dict[str, float] | None:
    """Return p50, p95, p99 and the maximum of float64 [n], NaN left out; None when nothing is left."""
    known = np.sort(values[~np.isnan(values)])
    if not known.size:
        return None
    return {
        **{f"p{p}": percentile(known, p, ordered=True) for p in PERCENTILES},
        "max": float(known[-1]),
    }


def _known(value: float) -> float | None:
    """Return a figure; None for NaN, which something kept back makes of it."""
    return None if np.isnan(value) else float(value)


def _outcomes(rows: Rows) -> dict[str, int]:
    counts = rows.counts("outcome")
    return {label(kind): counts.get(label(kind), 0) for kind in Outcome}


def _rounds(rounds: Rows) -> dict[str, Any]:
    abandoned = rounds.where(rounds.equal("outcome", label(RoundOutcome.ABANDONED)))
    return {
        "finished": len(rounds),
        "completed": len(rounds) - len(abandoned),
        "abandoned": len(abandoned),
        "abandoned_reasons": abandoned.counts("reason"),
        "duration_s": percentiles(rounds.numbers["duration_s"]),
    }


def _group(rows: Rows) -> dict[str, Any]:
    numbers, count = rows.numbers, len(rows)
    energy_j = numbers["energy_compute_j"].sum() + numbers["energy_radio_j"].sum()
    return {
        "device_rounds": count,
        **_outcomes(rows),
        "latency_s": percentiles(numbers["latency_s"]),
        "mean_down_bytes": float(numbers["down_bytes"].sum() / count),
        "mean_up_bytes": float(numbers["up_bytes"].sum() / count),
        "wasted_bytes": int(numbers["wasted_bytes"].sum()),
        "mean_energy_j": _known(energy_j / count),
        "mean_compute_s": _known(numbers["compute_s"].sum() / count),
    }


def _by_way(rows: Rows) -> dict[str, Any]:
    """Return the device rounds whose update arrived, by the way it came, with the share of each."""
    counts = rows.counts("way")
    whole = sum(counts.values())
    return {
        name: {"share": count / whole, **_group(rows.where(rows.equal("way", name)))}
        for name, count in counts.items()
    }


def _stage_columns() -> list[str]:
    return [f"{label(stage)}_{what}" for stage in Stage for what in ("start_s", "end_s", *_STAGE_BYTES)]


def _stages(rows: Rows) -> dict[str, Any]:
    """Return seconds and bytes of every stage that a device came to."""
    numbers, found = rows.numbers, {}
    for stage in Stage:
        name = label(stage)
        seconds = numbers[f"{name}_end_s"] - numbers[f"{name}_start_s"]
        reached = ~np.isnan(seconds)
        if reached.any():
            sizes = {what: numbers[f"{name}_{what}"] for what in _STAGE_BYTES}
            found[name] = {
                "device_rounds": int(np.count_nonzero(reached)),
                "seconds": percentiles(seconds),
                **{f"mean_{what}": float(size[reached].mean()) for what, size in sizes.items()},
            }
    return found


def _clipped(values: npt.NDArray[np.float64]) -> dict[str, float] | None:
    """Return mean and maximum over rounds of float64 [n], NaN where nothing was clipped; None without any."""
    known = values[~np.isnan(values)]
    return {"mean": float(known.mean()), "max": float(known.max())} if known.size else None


def _epsilon(*series: npt.NDArray[np.float64]) -> float | None:
    """Return the largest of what series of float64 [n] have come to, NaN left out; None without any."""
    known = [values[~np.isnan(values)] for values in series]
    return max((float(values[-1]) for values in known if values.size), default=None)


def _round_stages(rounds: Rows) -> dict[str, Any]:
    """Return how long rounds stayed in each stage of a secure sum, seconds."""
    found = {label(stage): percentiles(rounds.numbers[f"{label(stage)}_s"]) for stage in SUM_STAGES}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def _dropouts(run: RunTables) -> list[dict[str, Any]]:
    """Count how device rounds ended that were not completed, most frequent first."""
    columns = ("outcome", "stage", "reason")
    rows = read_rows(run, "device_rounds", columns)
    rows = rows.where(~rows.equal("outcome", label(Outcome.COMPLETED)))
    found = [{**labels, "count": count} for labels, count in rows.combinations(columns)]
    return sorted(found, key=lambda row: (-row["count"], row["outcome"], row["stage"] or "", row["reason"]))


def _suspended(run: RunTables) -> list[dict[str, Any]]:
    """Return the suspended devices in the order of their suspension, each with round and reason."""
    rows = suspensions(run.read("events", ["device", "round", "reason", "kind"]))
    return list(rows.drop(["kind"]).to_pylist())


def _notices(run: RunTables, suspended: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what limits the figures: of the split, estimated work, suspended devices."""
    notices = list(run.manifest.get("notices", ()))
    if run.manifest.get("work") == "estimated":
        notices.append(
            "compute time, its energy and memory are estimated from the shapes of the method's arrays: the"
            " method has no 'work' of its own"
        )
    if suspended:
        named = [
            f"{one['device']} in round {one['round']} ({one['reason']})"
            for one in suspended[:_SUSPENDED_NAMED]
        ]
        more = ["…"] if len(suspended) > len(named) else []
        count = "1 device was" if len(suspended) == 1 else f"{len(suspended):,} devices were"
        notices.append(f"{count} suspended after 'admission.strikes': {', '.join((*named, *more))}")
    return notices


def _leak(negatives: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the notice that held-out items shape the model, where they do, with what that alone reaches."""
    if negatives is None or not negatives["leaky_protocol"]:
        return
    counter = [f"{name} {value:.3f}" for name, value in (negatives.get("counter") or {}).items()]
    known = f": {', '.join(counter)}" if counter else ""
    yield (
        "leaky protocol: held-out items are never drawn as negatives (data.held_out_negatives: spared), and"
        " a model with a memory of its user's negatives finds them. A counter of the times that a device drew"
        f" an item, without any model, reaches what stands here{known}"
    )


def _accuracy(run: RunTables, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return first and last value of every metric, and when it had come how far of its way.

    The last is None where it was no number: the model had diverged. ``best`` and its round are None where
    there is no such thing (:attr:`Curve.has_best`).
    """
    rows = run.read("evaluations", ["metric", "split", "population", "tag", "value", "users", "round"])
    rows = rows_where(rows, "tag", "all").to_pylist()
    last = {(row["metric"], row["split"], row["population"]): row for row in rows}
    return [
        {
            "metric": curve.metric,
            "split": curve.split,
            "population": curve.population,
            "first": float(curve.value[0]),
            "last": last[curve.metric, curve.split, curve.population]["value"],
            "last_round": last[curve.metric, curve.split, curve.population]["round"],
            "best": float(curve.value[curve.chosen]) if curve.has_best else None,
            "best_round": int(curve.round[curve.chosen]) if curve.has_best else None,
            "users": last[curve.metric, curve.split, curve.population]["users"],
            "reached": time_to_accuracy(curve),
        }
        for curve in curves
        if curve.metric != TRAINING_LOSS
    ]


def _selected(run: RunTables) -> dict[str, Any] | None:
    """Return the metric by which the round was chosen, and the round tested; None where none was chosen.

    The round is None where there is no test: of a run that did not go to its end, or that scores validation
    ratings alone.
    """
    metric = run.manifest.get("select")
    if metric is None:
        return None
    rows = run.read("evaluations", ["round", "split"])
    tested = rows_where(rows, "split", TEST)["round"].to_pylist()
    return {"metric": metric, "round": tested[-1] if tested else None}


def _held_up(run: RunTables) -> dict[str, Any]:
    """Return what held rounds up; see :mod:`coordinator.results.analysis.critical_path`."""
    path = critical_path(run)
    seconds = path.seconds.sum(axis=0)
    return {
        "rounds_ended_by_deadline": int(np.count_nonzero(path.by_deadline[path.last_segments()])),
        "barriers": len(path.by_deadline),
        "barriers_ended_by_deadline": int(np.count_nonzero(path.by_deadline)),
        "seconds_by_stage": {name: float(s) for name, s in zip(STEPS, seconds, strict=True) if s > 0},
        "by_class_and_stage": [
            {
                "class": row.device_class,
                "stage": row.step,
                "ended_by": row.ended_by,
                "seconds": row.seconds,
                "share": row.share,
            }
            for row in held_up(path)
        ],
        "by_round": _held_up_by_round(path),
    }


def _held_up_by_round(path: CriticalPath) -> list[dict[str, Any]]:
    """Return the segment that took longest of every round: who, in which stage most, and for how long."""
    segments = path.longest_segments()
    steps = path.seconds[segments].argmax(axis=1)
    columns = {
        "round": path.rounds,
        "duration_s": path.durations_s,
        "seconds": path.seconds[segments, steps],
        "missing": path.missing[segments],
    }
    return [
        {
            **{name: column[at].item() for name, column in columns.items()},
            "device": None if path.by_deadline[segment] else int(path.device[segment]),
            "stage": STEPS[steps[at]],
            "ended_by": DEADLINE if path.by_deadline[segment] else ARRIVAL,
        }
        for at, segment in enumerate(segments.tolist())
    ]


def _evaluations(evaluations: Rows) -> dict[str, Any]:
    """Return who measured the model, and what it cost the devices; a simulator measures at no cost."""
    if not len(evaluations):
        return {"measured_by": "simulator"}
    completed = int(np.count_nonzero(evaluations.equal("outcome", label(RoundOutcome.COMPLETED))))
    return {
        "measured_by": "devices",
        "evaluations": len(evaluations),
        "completed": completed,
        **_cost(evaluations),
    }


def _cost(rounds: Rows) -> dict[str, Any]:
    """Return what rounds cost that stand beside those of training."""
    numbers = rounds.numbers
    return {
        "device_rounds": int(numbers["invited"].sum()),
        "seconds": float(numbers["duration_s"].sum()),
        "bytes": {name.removesuffix("_bytes"): int(numbers[name].sum()) for name in _BYTE_COLUMNS},
        "energy_j": _known(numbers["energy_j"].sum()),
    }


def _rating_mean(facts: dict[str, Any] | None, queries: Rows) -> dict[str, Any] | None:
    """Return the mean rating that the method began with, and what asking devices for it cost."""
    if facts is None or facts["from"] != "devices":
        return facts
    return {**facts, "queries": len(queries), **_cost(queries)}


def _audits(run: RunTables) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the figures of the audits by name, and the shares of users by name and bucket."""
    figures: dict[str, float] = {}
    users: dict[str, dict[str, float]] = {}
    for row in run.read("evaluations").to_pylist():
        if row["tag"] == BUCKET:
            users.setdefault(row["metric"], {})[row["group"]] = row["value"]
        elif row["metric"].startswith(AUDIT_PREFIX):
            figures[row["metric"]] = row["value"]
    return figures, users


def _inferences(run: RunTables) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return what devices' own models took, by class, and what was measured of them; empty and None: none."""
    rows = read_rows(
        run,
        "inferences",
        ["class", "latency_s", "energy_j", "model_bytes", "memory_bytes", *_MEASURED_INFERENCE],
    )
    if not len(rows):
        return {}, None
    by_class = {}
    for name, count in rows.counts("class").items():
        numbers = rows.where(rows.equal("class", name)).numbers
        by_class[name] = {
            "inferences": count,
            "latency_s": percentiles(numbers["latency_s"]),
            "mean_energy_j": float(numbers["energy_j"].sum() / count),
            "max_memory_bytes": int(numbers["memory_bytes"].max()),
            "model_bytes": int(numbers["model_bytes"].max()),
        }
    measured = {name: percentiles(rows.numbers[name].astype(np.float64)) for name in _MEASURED_INFERENCE}
    return by_class, measured


@np.errstate(over="ignore", invalid="ignore")  # a sum of huge figures is infinite, and shown so
def summarise(
    run: RunTables,
    status: str | None = None,
    privacy: dict[str, Any] | None = None,
    negatives: dict[str, Any] | None = None,
    rating_mean: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the summary of a run; ``json_values`` gives what ``summary.json`` has.

    Its advice is what the run's own process has given, and has yet to be given by that process.

    Parameters
    ----------
    run : the tables of a run.
    status : how the run ended, for the process that is ending it; by default what the manifest says.
    privacy : what it has spent beside ε, likewise.
    negatives : how it sampled negatives, likewise.
    rating_mean : the mean rating that its method began with, likewise.

    Units are those of the names: seconds, bytes, joules. What was measured on this host is under
    ``measured``; the rest is equal for equal runs.
    """
    rounds = read_rows(
        run,
        "rounds",
        ["outcome", "reason", "duration_s", "end_s", "invited", "loss", "energy_j", "compute_s",
         "wasted_compute_s", "retries", "wall_s", "host_rss_bytes", *_BYTE_COLUMNS,
         "epsilon", "epsilon_replace_one", "clipped_fraction", "clipped_updates_fraction",
         *(f"{label(stage)}_s" for stage in SUM_STAGES)],
    )  # fmt: skip
    devices = read_rows(
        run,
        "device_rounds",
        [*GROUPINGS, "outcome", "way", "latency_s", "down_bytes", "up_bytes", "wasted_bytes",
         "energy_compute_j", "energy_radio_j", "compute_s", *_stage_columns()],
    )  # fmt: skip
    evaluations = read_rows(
        run,
        "evaluation_rounds",
        ["round", "outcome", "duration_s", "invited", "energy_j", *_BYTE_COLUMNS, *_SPENT],
    )
    queried = evaluations.numbers["round"] < 0
    of_rounds = rounds.numbers
    loss = of_rounds["loss"][~np.isnan(of_rounds["loss"])]
    count = len(devices)
    inference_by_class, measured_inference = _inferences(run)
    audits, users_of_audits = _audits(run)
    wall_s = float(of_rounds["wall_s"].sum())
    curves = learning_curves(run)
    dropouts = _dropouts(run)
    suspended = _suspended(run)
    negatives = run.manifest.get("negatives") if negatives is None else negatives
    return {
        "schema_version": SCHEMA_VERSION,
        "status": run_status(run.directory, run.manifest) if status is None else status,
        "advice": read_advice(run.directory),
        "notices": [*_leak(negatives), *_notices(run, suspended)],
        "clock": run.manifest.get("clock", "virtual"),
        "secure_aggregation": run.manifest.get("secure_aggregation", {}),
        "rounds": _rounds(rounds),
        "simulated_s": float(of_rounds["end_s"].max(initial=0.0)),
        "device_rounds": count,
        "outcomes": _outcomes(devices),
        "latency_s": percentiles(devices.numbers["latency_s"]),
        "bytes": {name.removesuffix("_bytes"): int(of_rounds[name].sum()) for name in _BYTE_COLUMNS},
        "energy_j": _known(of_rounds["energy_j"].sum()),
        "compute_s": _known(of_rounds["compute_s"].sum()),
        "wasted_compute_s": _known(of_rounds["wasted_compute_s"].sum()),
        "retries": int(of_rounds["retries"].sum()),
        **{name: _epsilon(of_rounds[name], evaluations.numbers[name]) for name in _SPENT},
        "clipped": {
            "values": _clipped(of_rounds["clipped_fraction"]),
            "updates": _clipped(of_rounds["clipped_updates_fraction"]),
        },
        "privacy": run.manifest.get("privacy") if privacy is None else privacy,
        "value_privacy": run.manifest.get("value_privacy"),
        "loss": {"first": float(loss[0]), "last": float(loss[-1])} if len(loss) else None,
        "evaluation": _evaluations(evaluations.where(~queried)),
        "rating_mean": _rating_mean(
            run.manifest.get("rating_mean") if rating_mean is None else rating_mean,
            evaluations.where(queried),
        ),
        "accuracy": _accuracy(run, curves),
        "selected": _selected(run),
        "unscored": run.manifest.get("unscored"),
        "leaky_protocol": negatives is not None and negatives["leaky_protocol"],
        "negatives": negatives,
        "accuracy_by_class": accuracy_by_class(run),
        "audit": audits,
        "audit_users": users_of_audits,
        "inference_by_class": inference_by_class,
        "round_stages_s": _round_stages(rounds),
        "stages": _stages(devices),
        "stages_by_class": {
            name: _stages(devices.where(devices.equal("class", name))) for name in devices.counts("class")
        },
        "not_completed": dropouts,
        "suspended_devices": suspended,
        "held_up": _held_up(run),
        "waste_by_outcome": waste_by_outcome(run),
        "participation": asdict(participation(run)),
        **{
            f"by_{grouping}": {
                name: _group(devices.where(devices.equal(grouping, name)))
                for name in devices.counts(grouping)
            }
            for grouping in GROUPINGS
        },
        "by_way": _by_way(devices),
        "measured": {
            "wall_s": wall_s,
            "device_rounds_per_s": count / wall_s if wall_s > 0 else None,
            "max_host_rss_bytes": int(of_rounds["host_rss_bytes"].max(initial=0)),
            "inference": measured_inference,
        },
    }
