"""A run as a picture: ``trace.json.gz`` opens in ui.perfetto.dev.

The Chrome trace event format (JSON object form, "Trace Event Format", Google 2016): complete slices ``X``,
instants ``i``, counters ``C``, names ``M``. Times are microseconds of the run, simulated or measured. The
coordinator has a track of phases and one of rounds; devices are a sample, one track each, with a slice per
stage: the first ones of the run and those of the slowest reports. Counters show the devices at work and the
training loss.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coordinator.engine.run_files import write_atomically
from coordinator.results.tables.digest import whole_columns
from coordinator.results.tables.functions import is_among, subset
from coordinator.results.tables.reader import RunTables
from edge.core.vocabulary import Stage, labels

TRACE: Final = "trace.json.gz"

_COORDINATOR: Final = 1
_DEVICES: Final = 2
_PHASE_TRACK: Final = 1
_ROUND_TRACK: Final = 2

MAX_ROWS: Final = 20_000
"""Device rounds drawn at most, the earliest ones: a viewer chokes on more."""

MAX_COUNTER_POINTS: Final = 5_000
"""Points of the counter of devices at work at most, evenly thinned: more than a screen is wide."""

_COMPRESSION: Final = 6
"""Level of gzip; the highest takes three times as long and saves a twentieth."""

_STAGES: Final = tuple((name, f"{name}_start_s", f"{name}_end_s") for name in labels(Stage))
"""The stages with the columns of their times."""

_LONGEST_US: Final = 1e300
"""JSON has no infinity."""

Event = dict[str, Any]
Floats = npt.NDArray[np.float64]


def _microseconds(seconds: npt.ArrayLike) -> list[float]:
    """Return times or durations in seconds as they are written; what is no number is the least."""
    with np.errstate(over="ignore"):
        found = np.minimum(np.asarray(seconds, dtype=np.float64) * 1e6, _LONGEST_US)
    return [round(one, 3) for one in np.fmax(found, -_LONGEST_US).tolist()]


def _slices(
    process: int,
    tracks: Iterable[int],
    names: Iterable[str],
    starts_s: Floats,
    ends_s: Floats,
    details: Iterable[Event],
) -> list[Event]:
    with np.errstate(invalid="ignore"):  # both infinite
        durations_s = ends_s - starts_s
    starts, durations = _microseconds(starts_s), _microseconds(durations_s)
    return [
        {"ph": "X", "pid": process, "tid": track, "name": name, "ts": start, "dur": duration, "args": args}
        for track, name, start, duration, args in zip(tracks, names, starts, durations, details, strict=True)
    ]


def _counters(name: str, times_s: Floats, values: Iterable[float | None]) -> list[Event]:
    return [
        {"ph": "C", "pid": _COORDINATOR, "name": name, "ts": time, "args": {"value": value}}
        for time, value in zip(_microseconds(times_s), values, strict=True)
    ]


def _name(process: int, track: int | None, name: str, order: int) -> list[Event]:
    what = "process" if track is None else "thread"
    place: Event = {"ph": "M", "pid": process} if track is None else {"ph": "M", "pid": process, "tid": track}
    return [
        {**place, "name": f"{what}_name", "args": {"name": name}},
        {**place, "name": f"{what}_sort_index", "args": {"sort_index": order}},
    ]


def _coordinator_events(run: RunTables) -> list[Event]:
    rounds = run.read(
        "rounds", ["round", "phase", "start_s", "end_s", "outcome", "reason", "invited", "completed", "loss"]
    ).to_pylist()
    events = [
        *_name(_COORDINATOR, None, "coordinator", 0),
        *_name(_COORDINATOR, _PHASE_TRACK, "phases", 0),
        *_name(_COORDINATOR, _ROUND_TRACK, "rounds", 1),
    ]
    spans: list[tuple[str, float, float]] = []
    for row in rounds:
        if spans and spans[-1][0] == row["phase"]:
            spans[-1] = (row["phase"], spans[-1][1], row["end_s"])
        else:
            spans.append((row["phase"], row["start_s"], row["end_s"]))
    starts_s = np.array([row["start_s"] for row in rounds], dtype=np.float64)
    ends_s = np.array([row["end_s"] for row in rounds], dtype=np.float64)
    details = [{key: row[key] for key in ("outcome", "reason", "invited", "completed")} for row in rounds]
    names = [f"round {row['round']}" for row in rounds]
    slices = _slices(_COORDINATOR, [_ROUND_TRACK] * len(rounds), names, starts_s, ends_s, details)
    losses = _counters("training loss", ends_s, [row["loss"] for row in rounds])
    for drawn, loss in zip(slices, losses, strict=True):
        events.append(drawn)
        if loss["args"]["value"] is not None:
            events.append(loss)
    phases, starts, ends = zip(*spans, strict=True) if spans else ((), (), ())
    tracks = [_PHASE_TRACK] * len(spans)
    events.extend(
        _slices(_COORDINATOR, tracks, phases, np.array(starts), np.array(ends), [{} for _ in spans])
    )
    return events


def _activity(starts_s: npt.NDArray[np.float64], ends_s: npt.NDArray[np.float64]) -> list[Event]:
    """Return the counter of devices at work, one point a change, thinned to a bounded number."""
    times_s = np.concatenate([starts_s, ends_s])
    steps = np.concatenate([np.ones(len(starts_s), dtype=np.int64), -np.ones(len(ends_s), dtype=np.int64)])
    order = np.argsort(times_s, kind="stable")
    times_s, active = times_s[order], np.cumsum(steps[order])
    last_of_time = np.append(times_s[1:] != times_s[:-1], True)[: len(times_s)]
    times_s, active = times_s[last_of_time], active[last_of_time]
    if len(times_s) > MAX_COUNTER_POINTS:
        kept = np.linspace(0, len(times_s) - 1, MAX_COUNTER_POINTS).astype(np.int64)
        times_s, active = times_s[kept], active[kept]
    return _counters("devices at work", times_s, active.tolist())


def _sample(device: npt.NDArray[np.int64], latency_s: npt.NDArray[np.float64], count: int) -> list[int]:
    """Return the first devices of the run and those of the slowest reports, ``count`` of each at most."""
    reported = np.flatnonzero(~np.isnan(latency_s))
    slow_rows = reported[np.argsort(-latency_s[reported], kind="stable")]
    return list(dict.fromkeys([*_first_named(device, count), *_first_named(device[slow_rows], count)]))


def _first_named(device: npt.NDArray[np.int64], count: int) -> list[int]:
    """Return the first ``count`` different devices of int64 [n], in order of their first rows."""
    rows = 4 * count
    while True:
        known, first_row = np.unique(device[:rows], return_index=True)
        if len(known) >= count or rows >= len(device):
            found: list[int] = known[np.argsort(first_row, kind="stable")][:count].tolist()
            return found
        rows *= 4


def trace_events(run: RunTables, devices: int = 50) -> list[Event]:
    """Return the trace events of a run.

    Parameters
    ----------
    run : a run, finished or not.
    devices : how many of the first, and how many of the slowest, devices to draw.
    """
    stage_columns = [column for _, *times in _STAGES for column in times]
    words = ["round", "device", "class", "network", "outcome", "stage", "reason"]
    table = run.read("device_rounds", [*words, "latency_s", *stage_columns])
    whole = whole_columns(table)
    times_s = np.stack([whole[name].to_numpy(zero_copy_only=False) for name in stage_columns])
    starts_s, ends_s = np.fmin.reduce(times_s[0::2], axis=0), np.fmax.reduce(times_s[1::2], axis=0)
    began = ~np.isnan(starts_s)

    events = _coordinator_events(run)
    events.extend(_activity(starts_s[began], ends_s[began]))
    events.extend(_name(_DEVICES, None, "devices (the first and the slowest)", 1))
    chosen = _sample(whole["device"].to_numpy(), whole["latency_s"].to_numpy(zero_copy_only=False), devices)
    drawn = is_among(whole["device"], pa.array(chosen, pa.int64()))
    rows = subset(table.select(words), drawn).slice(0, MAX_ROWS).to_pylist()
    places = np.flatnonzero(drawn.to_numpy(zero_copy_only=False))[:MAX_ROWS]
    track = {device: position + 1 for position, device in enumerate(chosen)}
    named: set[int] = set()
    for row, of_row in zip(rows, _device_events(rows, times_s[:, places], track), strict=True):
        device = row["device"]
        if device not in named:
            named.add(device)
            name = f"device {device} ({row['class']}, {row['network']})"
            events.extend(_name(_DEVICES, track[device], name, track[device]))
        events.extend(of_row)
    return _nested(events)


def _nested(events: list[Event]) -> list[Event]:
    """Return the events with no slice reaching into the next one of its track, which viewers cannot draw.

    It happens when frames cross, such as a receipt and a repeated report.
    """
    previous: dict[tuple[int, int], Event] = {}
    for event in sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"]):
        place = event["pid"], event["tid"]
        before = previous.get(place)
        if before is not None and before["ts"] + before["dur"] > event["ts"]:
            before["dur"] = round(event["ts"] - before["ts"], 3)
        previous[place] = event
    return events


def _device_events(rows: Sequence[Event], times_s: Floats, track: Mapping[int, int]) -> list[list[Event]]:
    """Return, for each device round, a slice per stage and a mark where it ended early.

    Parameters
    ----------
    rows : what device rounds have beside their times.
    times_s : float64 [2 × stages, rows], start and end of each stage in turn; NaN where there was none.
    track : of each device.
    """
    starts_s, ends_s = times_s[0::2].T, times_s[1::2].T
    known = ~(np.isnan(starts_s) | np.isnan(ends_s))
    of_slice, stages = (places.tolist() for places in np.nonzero(known))
    slices = _slices(
        _DEVICES,
        [track[rows[place]["device"]] for place in of_slice],
        [_STAGES[stage][0] for stage in stages],
        starts_s[known],
        ends_s[known],
        [{"round": rows[place]["round"], "outcome": rows[place]["outcome"]} for place in of_slice],
    )
    found: list[list[Event]] = [[] for _ in rows]
    for place, event in zip(of_slice, slices, strict=True):
        found[place].append(event)
    lasts = _microseconds(np.max(ends_s, axis=1, where=known, initial=-np.inf))
    for row, events, last in zip(rows, found, lasts, strict=True):
        if events and row["stage"] is not None:
            events.append(
                {
                    "ph": "i",
                    "s": "t",
                    "pid": _DEVICES,
                    "tid": track[row["device"]],
                    "name": f"{row['outcome']}: {row['reason']}",
                    "ts": last,
                    "args": {"round": row["round"], "stage": row["stage"]},
                }
            )
    return found


def write_trace(run: RunTables, path: Path, devices: int = 50) -> None:
    """Write the trace of a run, gzipped, at ``path``; equal runs give equal bytes."""
    kind = "measured" if run.manifest.get("clock") == "real" else "simulated"
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"clock": f"{kind} time since the start of the run"},
        "traceEvents": trace_events(run, devices),
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    write_atomically(path, gzip.compress(text.encode(), _COMPRESSION, mtime=0))
