"""Devices that were let in and send messages with changes, in the middle of a run."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from fuzz_frames import changed_bytes
from service_helpers import SMALL, loaded_text, rows_of, run_real, skip

from coordinator.service.hooks import ServiceObserver
from edge.core.vocabulary import Direction, Reason
from edge.network.sockets.device_client import DeviceClient
from edge.wire.messages import AnyMessage, Invite, Report
from edge.wire.session import Sent

BAD = frozenset({2, 5, 8})
SECAGG = """
secure_aggregation:
  mode: secagg-plus
  clip: 1
  stage_deadlines: {share_keys: 1 s, masked_input: 1 s, consistency: 1 s, unmask: 1 s}
"""


DEADLINE_S = 20.0


class Watcher(ServiceObserver):
    """Notes who left and why, and how often a message was not taken.

    A bad device may be waited for until the deadline. It is there, by hand, once all others have reported.
    """

    def __init__(self) -> None:
        self.left: dict[int, Reason] = {}
        self.judged: list[tuple[int, Reason]] = []
        self._awaited: set[int] = set()

    def on_leave(self, device: int, reason: Reason, why: str) -> None:
        self.left[device] = reason

    def on_frame(
        self, round_number: int, device: int, direction: Direction, message: AnyMessage, reason: Reason
    ) -> None:
        if direction is Direction.UP:
            self.judged.append((device, reason))
        if device in BAD:
            return
        if isinstance(message, Invite):
            self._awaited.add(device)
        elif isinstance(message, Report):
            self._awaited.remove(device)
            if not self._awaited:
                asyncio.get_running_loop().call_soon(skip, DEADLINE_S)


@pytest.mark.parametrize(
    ("way", "seed"),
    [
        pytest.param("", 0, id="clear-0"),
        *(pytest.param("", seed, id=f"clear-{seed}", marks=pytest.mark.slow) for seed in (1, 2)),
        *(pytest.param(SECAGG, seed, id=f"secagg-plus-{seed}", marks=pytest.mark.slow) for seed in (0, 1, 2)),
    ],
)
def test_they_break_nothing_but_their_own_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, seed: int
) -> None:
    chance, honestly = random.Random(seed), DeviceClient.send
    sent = [0]

    def send(self: DeviceClient, frame: bytes) -> Sent:
        if self.device in BAD and chance.random() < 0.7:
            sent[0] += 1
            frame = changed_bytes(frame, chance) or b"\x00"
        return honestly(self, frame)

    monkeypatch.setattr(DeviceClient, "send", send)
    deadline = f"deadline: {2 if way else DEADLINE_S} s"
    text = SMALL.replace("cohort: 6, deadline: 60 s", f"cohort: 9, quorum: 3, {deadline}")
    loaded = loaded_text(tmp_path, text + way)
    watcher = Watcher()
    outcome = run_real(loaded, tmp_path / "run", observer=watcher)
    assert outcome.status == "finished"
    assert sent[0] > 3
    assert watcher.left == dict.fromkeys(range(12), Reason.SESSION_ENDED)
    refused = {device for device, reason in watcher.judged if reason is Reason.GARBAGE}
    assert refused <= BAD
    rows = rows_of(outcome, "device_rounds")
    assert {row["device"] for row in rows if row["reason"] == "garbage"} <= BAD
    if not way:
        honest = [row for row in rows if row["device"] not in BAD]
        assert {row["outcome"] for row in honest} == {"completed"}
        assert [row["outcome"] for row in rows_of(outcome, "rounds")] == ["completed"] * 3
