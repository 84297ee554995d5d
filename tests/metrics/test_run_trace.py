from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics_samples import sample_round, write_run

from coordinator.results.tables.reader import open_run
from coordinator.results.tables.trace import _activity, _sample, trace_events, write_trace
from coordinator.results.tables.writer import RunWriter


@pytest.fixture
def events(tmp_path: Path) -> list[dict[str, Any]]:
    (tmp_path / "run").mkdir()
    with RunWriter(tmp_path / "run") as writer:
        for number, phase in ((1, "calm"), (2, "calm"), (3, "storm")):
            writer.write_round(sample_round(number, phase=phase))
        writer.finish()
    write_trace(open_run(tmp_path / "run"), tmp_path / "trace.json.gz")
    document = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    return list(document["traceEvents"])


def _of(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def test_every_event_has_what_the_format_asks_for(events: list[dict[str, Any]]) -> None:
    needed = {
        "X": {"pid", "tid", "name", "ts", "dur", "args"},
        "i": {"pid", "tid", "name", "ts", "s", "args"},
        "C": {"pid", "name", "ts", "args"},
        "M": {"pid", "name", "args"},
    }
    for event in events:
        assert needed[event["ph"]] <= set(event)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0


def test_every_track_is_named_once(events: list[dict[str, Any]]) -> None:
    named = [(event["pid"], event["tid"]) for event in _of(events, "M") if event["name"] == "thread_name"]
    processes = [event["pid"] for event in _of(events, "M") if event["name"] == "process_name"]
    assert len(named) == len(set(named))
    assert {(event["pid"], event["tid"]) for event in _of(events, "X")} == set(named)
    assert sorted(processes) == sorted({event["pid"] for event in events})


def test_slices_of_a_track_do_not_overlap(events: list[dict[str, Any]]) -> None:
    by_track: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in _of(events, "X"):
        by_track[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    # The first device's receipt crosses the duplicate of its report: the report's slice is cut short.
    report = next(event for event in _of(events, "X") if event["name"] == "report")
    assert (report["ts"], report["dur"]) == (108e6, 1e6)
    for spans in by_track.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end


def test_phases_rounds_and_stages(events: list[dict[str, Any]]) -> None:
    slices = {(event["name"], event["ts"]): event for event in _of(events, "X")}
    assert slices["calm", 100e6]["dur"] == 120e6
    assert slices["storm", 300e6]["dur"] == 20e6
    assert slices["round 2", 200e6]["args"] == {
        "outcome": "completed", "reason": "none", "invited": 3, "completed": 1,
    }  # fmt: skip
    compute = [event for event in _of(events, "X") if event["name"] == "compute"]
    assert len(compute) == 9
    assert {event["dur"] for event in compute} == {1e6, 3e6, 10e6}
    marks = {(event["name"], event["args"]["stage"]) for event in _of(events, "i")}
    assert marks == {("dropped: vanished", "compute"), ("late: deadline", "report")}


def test_counters(events: list[dict[str, Any]]) -> None:
    counters = _of(events, "C")
    active = [
        (event["ts"], event["args"]["value"]) for event in counters if event["name"] == "devices at work"
    ]
    assert active[:4] == [(100e6, 3), (105e6, 2), (110e6, 1), (121e6, 0)]
    assert [event["args"]["value"] for event in counters if event["name"] == "training loss"] == [
        0.5,
        0.25,
        0.5 / 3,
    ]


def test_the_sample_is_the_first_and_the_slowest() -> None:
    device = np.array([5, 9, 5, 7, 8, 3])
    latency_s = np.array([1.0, np.nan, 2.0, 9.0, 1.5, 4.0])
    assert _sample(device, latency_s, 2) == [5, 9, 7, 3]
    assert _sample(device, latency_s, 1) == [5, 7]
    assert _sample(device[:0], latency_s[:0], 3) == []


def test_a_long_counter_is_thinned_and_keeps_its_ends() -> None:
    starts_s = np.arange(50_000, dtype=np.float64)
    points = _activity(starts_s, starts_s + 0.5)
    assert len(points) == 5_000
    assert (points[0]["args"]["value"], points[-1]["args"]["value"]) == (1, 0)
    assert points[-1]["ts"] == 49_999.5e6


def test_equal_runs_have_equal_traces(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name)
        write_trace(open_run(tmp_path / name), tmp_path / f"{name}.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_a_run_without_rounds_has_a_trace(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.finish()
    assert {event["ph"] for event in trace_events(open_run(tmp_path))} == {"M"}
