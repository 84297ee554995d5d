"""Every byte of a run has one fate, every frame its exact size."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from run_helpers import run_text, tables_of

from coordinator.metrics.reader import RunTables
from edge.codec import encode
from edge.device.simulated import SimulatedDevice
from edge.transport.link import SimulatedNetwork
from edge.vocabulary import Direction, Outcome, label

SPLITS = ("payload", "framing", "tcp_ip", "retransmitted")
Sent = Counter[tuple[int, int, str, int, int]]
"""Frames by round, device, direction, length of the frame, and payload."""


def duplicating(patch: pytest.MonkeyPatch, seed: int) -> Sent:
    """Let some frames be sent twice, and compare the size of each with its bytes; return what was sent."""
    generator = random.Random(f"duplicates {seed}")
    transmit_alone = SimulatedNetwork.transmit
    transmit_of_device = SimulatedDevice.transmit
    sent: Sent = Counter()

    def checked(self: SimulatedNetwork, *arguments: Any) -> Any:
        link, _, direction, message, frame_bytes, payload_bytes = arguments
        assert frame_bytes == len(encode(message))
        assert payload_bytes == sum(a.nbytes for a in getattr(message, "arrays", {}).values())
        delivery = transmit_alone(self, *arguments)
        sent[message.round_number, link.device, label(direction), frame_bytes, payload_bytes] += 1
        return delivery

    def twice(self: SimulatedDevice, direction: Direction, message: Any, *sizes: int) -> Any:
        first = transmit_of_device(self, direction, message, *sizes)
        if generator.random() < 0.2 and not self.over:
            transmit_of_device(self, direction, message, *sizes)
        return first

    patch.setattr(SimulatedNetwork, "transmit", checked)
    patch.setattr(SimulatedDevice, "transmit", twice)
    return sent


def check_run(folder: Path, text: str, seed: int, patch: pytest.MonkeyPatch) -> RunTables:
    """Run a scenario with duplicated frames and check its bytes; return its tables."""
    sent = duplicating(patch, seed)
    tables = tables_of(run_text(folder, text, name=f"s{seed}"))
    by_fate = dict.fromkeys(("delivered", "lost", "discarded"), 0)
    events = tables.read("events").to_pylist()
    for event in events:
        by_fate[event["fate"]] += sum(event[f"{split}_bytes"] for split in SPLITS)
    _check_frames(events, sent)
    for row in tables.read("device_rounds").to_pylist():
        total = row["up_bytes"] + row["down_bytes"]
        assert total == row["delivered_bytes"] + row["lost_bytes"] + row["discarded_bytes"]
        for direction in ("up", "down"):
            assert row[f"{direction}_bytes"] == sum(row[f"{direction}_{split}_bytes"] for split in SPLITS)
            of_stages = [name for name in row if name.endswith(f"_{direction}_bytes")]
            assert row[f"{direction}_bytes"] == sum(row[name] for name in of_stages)
        assert all(value >= 0 for name, value in row.items() if name.endswith("_bytes"))
    rounds = tables.read("rounds").to_pylist()
    for fate, expected in by_fate.items():
        assert sum(row[f"{fate}_bytes"] for row in rounds) == expected
    assert sum(row["up_bytes"] + row["down_bytes"] for row in rounds) == sum(by_fate.values())
    for row in rounds:
        assert row["invited"] == sum(row[label(outcome)] for outcome in Outcome)
    return tables


def _check_frames(events: list[dict[str, Any]], sent: Sent) -> None:
    """Every frame that was sent is told of once: whole if it arrived, else no more than it has."""
    lost: Counter[tuple[int, int, str]] = Counter()
    left = Counter(sent)
    # The first invitations and handshakes are recorded for a whole cohort at once. Invitations come last
    # here: other frames may be as long as they are.
    for event in sorted(events, key=lambda event: bool(event["kind"] == "invited")):
        if event["direction"] == "none" or event["kind"] == "handshake":
            continue
        payload = event["payload_bytes"]
        way = (event["round"], event["device"], event["direction"])
        key = (*way, payload + event["framing_bytes"], payload)
        if event["fate"] == "lost":
            lost[way] += 1
        elif left[key] > 0:
            left[key] -= 1
        else:
            assert event["kind"] == "invited", event
    # Some frames are lost before they are sent: to a device that is gone.
    unseen: Counter[tuple[int, int, str]] = Counter()
    for (number, device, direction, _, _), count in left.items():
        unseen[number, device, direction] += count
    assert all(count <= lost[way] for way, count in unseen.items())


def bytes_of(tables: RunTables) -> int:
    """Return all bytes that a run sent."""
    return sum(row["up_bytes"] + row["down_bytes"] for row in tables.read("rounds").to_pylist())
