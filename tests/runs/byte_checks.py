"""Every byte of a run has one fate, every frame its exact size."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from run_helpers import run_text, tables_of

from coordinator.results.tables.reader import RunTables
from coordinator.simulation.backend import SimulatedCohort
from coordinator.swarm.invariants.conservation import tables_agree, unaccounted
from edge.core.vocabulary import Direction
from edge.device.simulated import SimulatedDevice
from edge.network.link import Delivery, SimulatedNetwork
from edge.wire.codec import encode


def duplicating(patch: pytest.MonkeyPatch, seed: int) -> list[Delivery]:
    """Let some frames be sent twice, and compare the size of each with its bytes; return what was sent."""
    generator = random.Random(f"duplicates {seed}")
    transmit_alone = SimulatedNetwork.transmit
    transmit_of_device = SimulatedDevice.transmit
    sent: list[Delivery] = []

    def checked(self: SimulatedNetwork, *arguments: Any) -> Any:
        _, _, _, message, frame_bytes, payload_bytes = arguments
        assert frame_bytes == len(encode(message))
        assert payload_bytes == sum(a.nbytes for a in getattr(message, "arrays", {}).values())
        sent.append(transmit_alone(self, *arguments))
        return sent[-1]

    def twice(self: SimulatedDevice, direction: Direction, message: Any, *sizes: int) -> Any:
        first = transmit_of_device(self, direction, message, *sizes)
        if generator.random() < 0.2 and not self.over:
            transmit_of_device(self, direction, message, *sizes)
        return first

    # The frames of a wave are not sent one by one.
    patch.setattr(SimulatedCohort, "foreseeable", False)
    patch.setattr(SimulatedNetwork, "transmit", checked)
    patch.setattr(SimulatedDevice, "transmit", twice)
    return sent


def check_run(
    folder: Path, text: str, seed: int, patch: pytest.MonkeyPatch, *, by_round: bool = True
) -> RunTables:
    """Run a scenario with duplicated frames and check its bytes; return its tables.

    With buffered pacing a frame does not carry the number of the step that it is told of with: there frames
    are not compared ``by_round``.
    """
    sent = duplicating(patch, seed)
    tables = tables_of(run_text(folder, text, name=f"s{seed}"))
    assert list(tables_agree(tables, by_round=by_round)) == []
    assert list(unaccounted(tables, sent, by_round=by_round)) == []
    return tables


def bytes_of(tables: RunTables) -> int:
    """Return all bytes that a run sent."""
    return sum(row["up_bytes"] + row["down_bytes"] for row in tables.read("rounds").to_pylist())
