"""Seconds and bytes of every stage: of devices, of classes of devices, and of rounds."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from metrics_samples import NAMES, facts, record, three_devices, write_run
from rich.console import Console

from coordinator.results.summary import summarise
from coordinator.results.summary_tables import render_details
from coordinator.results.tables.batches import round_batches
from coordinator.results.tables.reader import open_run
from coordinator.results.tables.writer import RunWriter
from edge.core.log import EventLog
from edge.core.vocabulary import Direction, EventKind, Stage

UP, DOWN = Direction.UP, Direction.DOWN


def sum_log(start_s: float) -> EventLog:
    """Slot 0 of the class flagship, slots 1 and 2 of the class budget; slot 1 goes after its keys."""
    log = EventLog()

    def at(first: float, last: float) -> tuple[float, float]:
        return (start_s + first, start_s + last)

    keys, share, masked = Stage.ADVERTISE_KEYS, Stage.SHARE_KEYS, Stage.MASKED_INPUT
    for slot, (asked_s, sent_s) in enumerate(((4, 5), (4, 8), (4, 6))):
        record(log, slot, EventKind.INVITED, Stage.INVITE, DOWN, span_s=at(0, 1), sizes=(0, 40, 60, 0))
        record(log, slot, EventKind.COMPUTED, keys, span_s=at(asked_s, asked_s + 0.5))
        record(log, slot, EventKind.KEYS, keys, UP, span_s=at(asked_s + 0.5, sent_s), sizes=(160, 20, 52, 8))
    record(log, 0, EventKind.KEY_LIST, share, DOWN, span_s=at(8, 9), sizes=(300, 50, 50, 0))
    record(log, 0, EventKind.SEALED_SHARES, share, UP, span_s=at(10, 12), sizes=(168, 30, 52, 0))
    record(log, 2, EventKind.KEY_LIST, share, DOWN, span_s=at(8, 10), sizes=(500, 50, 50, 0))
    record(log, 2, EventKind.SEALED_SHARES, share, UP, span_s=at(13, 14), sizes=(168, 30, 52, 0))
    record(log, 0, EventKind.MASKED_INPUT, masked, UP, span_s=at(14, 17), sizes=(4000, 40, 160, 0))
    return log


def write_sums(directory: Path, *stage_s: Mapping[Stage, float]) -> dict[str, Any]:
    """Write a run with a round for each of ``stage_s`` and return its summary."""
    directory.mkdir()
    with RunWriter(directory) as writer:
        for number, seconds in enumerate(stage_s, start=1):
            told = facts(number, 100.0 * number, stage_s=seconds)
            writer.write_round(round_batches(told, three_devices(), NAMES, sum_log(100.0 * number).columns()))
        writer.finish()
    summary = summarise(open_run(directory), "finished")
    assert summary == json.loads(json.dumps(summary, allow_nan=False))
    return summary


def test_every_stage_that_a_device_came_to(tmp_path: Path) -> None:
    stages = write_sums(tmp_path / "run", {})["stages"]
    assert list(stages) == ["invite", "advertise-keys", "share-keys", "masked-input"]
    # 1 s, 2 s and 4 s from the first thing to the last.
    assert stages["advertise-keys"] == {
        "device_rounds": 3,
        "seconds": pytest.approx({"p50": 2.0, "p95": 3.8, "p99": 3.96, "max": 4.0}),
        "mean_down_bytes": 0.0,
        "mean_up_bytes": 240.0,
    }
    # Two came to it, 4 s and 6 s; nobody else counts in the means.
    assert stages["share-keys"] == {
        "device_rounds": 2,
        "seconds": pytest.approx({"p50": 5.0, "p95": 5.9, "p99": 5.98, "max": 6.0}),
        "mean_down_bytes": 500.0,
        "mean_up_bytes": 250.0,
    }
    assert stages["masked-input"]["seconds"] == {"p50": 3.0, "p95": 3.0, "p99": 3.0, "max": 3.0}
    assert stages["masked-input"]["mean_up_bytes"] == 4200.0
    assert stages["invite"]["mean_down_bytes"] == 100.0


def test_every_class_by_itself(tmp_path: Path) -> None:
    by_class = write_sums(tmp_path / "run", {})["stages_by_class"]
    assert list(by_class) == ["budget", "flagship"]
    budget, flagship = by_class["budget"], by_class["flagship"]
    assert budget["advertise-keys"]["device_rounds"] == 2
    assert budget["advertise-keys"]["seconds"]["p50"] == 3.0  # of 4 s and 2 s
    assert flagship["advertise-keys"]["seconds"]["p50"] == 1.0
    assert (budget["share-keys"]["device_rounds"], budget["share-keys"]["mean_down_bytes"]) == (1, 600.0)
    assert flagship["share-keys"]["mean_down_bytes"] == 400.0
    assert "masked-input" not in budget
    assert flagship["masked-input"]["device_rounds"] == 1


def test_how_long_rounds_stayed_in_each_stage(tmp_path: Path) -> None:
    first = {Stage.ADVERTISE_KEYS: 2.0, Stage.SHARE_KEYS: 10.0, Stage.MASKED_INPUT: 3.0}
    second = {Stage.ADVERTISE_KEYS: 4.0, Stage.SHARE_KEYS: 11.0}  # and ended there
    found = write_sums(tmp_path / "run", first, second, {})["round_stages_s"]
    assert list(found) == ["advertise-keys", "share-keys", "masked-input"]
    assert found["advertise-keys"] == pytest.approx({"p50": 3.0, "p95": 3.9, "p99": 3.98, "max": 4.0})
    assert found["share-keys"] == pytest.approx({"p50": 10.5, "p95": 10.95, "p99": 10.99, "max": 11.0})
    assert found["masked-input"] == {"p50": 3.0, "p95": 3.0, "p99": 3.0, "max": 3.0}


def tables_of(summary: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Return the cells of what a terminal shows, by the title of each table."""
    console = Console(file=io.StringIO(), width=200)
    console.print(render_details(summary))
    assert isinstance(console.file, io.StringIO)
    found: dict[str, list[list[str]]] = {}
    title = ""
    for line in console.file.getvalue().splitlines():
        if not line.strip() or line.strip()[0] in "┏┡└├":
            continue
        if line.strip()[0] in "┃│":
            found[title].append([cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]])
        else:
            title = line.strip()
            found[title] = []
    return found


def test_the_terminal_shows_stages_in_the_order_in_which_devices_come_to_them(tmp_path: Path) -> None:
    seconds = {Stage.ADVERTISE_KEYS: 2.0, Stage.SHARE_KEYS: 10.0, Stage.MASKED_INPUT: 3.0}
    tables = tables_of(write_sums(tmp_path / "run", seconds))
    heading, *rows = tables["per stage"]
    assert heading == [
        "stage", "device rounds", "p50", "p95", "p99", "down", "up", "round p50", "round p95",
    ]  # fmt: skip
    assert rows == [
        ["invite", "3", "1 s", "1 s", "1 s", "100 B", "0 B", "–", "–"],
        ["advertise-keys", "3", "2 s", "3.8 s", "3.96 s", "0 B", "240 B", "2 s", "2 s"],
        ["share-keys", "2", "5 s", "5.9 s", "5.98 s", "500 B", "250 B", "10 s", "10 s"],
        ["masked-input", "1", "3 s", "3 s", "3 s", "0 B", "4.1 KiB", "3 s", "3 s"],
    ]
    heading, *rows = tables["per device class and stage: p50, bytes"]
    assert heading == ["class", "invite", "advertise-keys", "share-keys", "masked-input"]
    assert rows == [
        ["budget", "1 s", "3 s", "6 s", "–"],
        ["", "100 B", "240 B", "850 B", "0 B"],
        ["flagship", "1 s", "1 s", "4 s", "3 s"],
        ["", "100 B", "240 B", "650 B", "4.1 KiB"],
    ]


def test_in_the_clear_rounds_have_no_stages_and_classes_no_table(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=2)
    summary = summarise(open_run(tmp_path / "run"), "finished")
    assert summary["round_stages_s"] == {}
    assert list(summary["stages"]) == ["invite", "download", "compute", "report", "acknowledge"]
    # Slot 0 reports from 8 to 9.5 s with its duplicate, slot 2 from 14 to 21 s with its retry.
    assert summary["stages"]["report"]["seconds"]["p50"] == pytest.approx((1.5 + 7.0) / 2)
    assert summary["stages"]["report"]["device_rounds"] == 4
    tables = tables_of(summary)
    assert [row[0] for row in tables["per stage"]] == ["stage", *summary["stages"]]
    assert not [title for title in tables if title.startswith("per device class and stage")]
