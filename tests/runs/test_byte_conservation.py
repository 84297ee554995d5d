"""Over random scenarios: every byte has one fate, every frame its exact size."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import run_text, tables_of

from edge.codec import encode
from edge.device.simulated import SimulatedDevice
from edge.messages import Invite
from edge.transport.link import SimulatedNetwork
from edge.vocabulary import Direction, Outcome, label

SPLITS = ("payload", "framing", "tcp_ip", "retransmitted")

AVAILABILITY = [
    "always_on",
    "bernoulli_google",
    "{kind: bernoulli, drop_probability: 60%, before_download: 30%, during_compute: 30%, during_upload: 40%}",
    "{kind: on-off, session: {distribution: exponential, mean: 4 s}, "
    "gap: {distribution: exponential, mean: 4 s}}",
    "flash_heavy_tail",
]
NETWORKS = [
    "{edge_2g: 50%, 3g_umts_driving: 50%}",
    "{wifi_home: 100%}",
    "{4g_driving: 60%, starlink: 40%}",
    "{3g_uk: 100%}",
]


def random_scenario(seed: int) -> str:
    """Return a small scenario with drops, losses, outages and deadlines that cut rounds short."""
    generator = random.Random(seed)
    users = generator.randint(10, 60)
    cohort = generator.randint(1, max(1, users // 3))
    upload = generator.choice(["sparse", "dense"])
    down_rate = generator.choice(["10 Gbit/s", "300 kbit/s"])
    up_rate = generator.choice(["10 Gbit/s", "1 Mbit/s"])
    return f"""
format: 1
title: random {seed}
seed: {seed}
data: {{source: synthetic-ratings, users: {users}, items: {generator.choice([40, 300])}, ratings_per_user: 8}}
fleet:
  devices: {{phone_mid_2020: 50%, phone_legacy_2014: 50%}}
  networks: {generator.choice(NETWORKS)}
  availability: {generator.choice(AVAILABILITY)}
coordinator: {{down_rate: {down_rate}, up_rate: {up_rate}}}
connection: {{tls: {generator.choice(["true", "false"])}, keep_alive: {generator.choice(["true", "false"])}}}
learning: {{algorithm: fedrecon, factors: {generator.choice([2, 16])}, upload: {upload}}}
rounds:
  count: {generator.randint(1, 4)}
  cohort: {cohort}
  over_select: {generator.choice(["100%", "150%"])}
  deadline: {generator.choice(["2 s", "8 s", "60 s"])}
  selection: {generator.choice(["random", "availability-aware"])}
evaluation: {{every: 100, final: false}}
"""


def check_run(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run one random scenario with duplicated frames and check its bytes; return the bytes sent."""
    generator = random.Random(f"duplicates {seed}")
    transmit_alone = SimulatedNetwork.transmit
    transmit_of_device = SimulatedDevice.transmit

    def checked(self: SimulatedNetwork, *arguments: Any) -> Any:
        message, frame_bytes, payload_bytes = arguments[3:6]
        assert frame_bytes == len(encode(message))
        assert payload_bytes == sum(a.nbytes for a in getattr(message, "arrays", {}).values())
        return transmit_alone(self, *arguments)

    def twice(self: SimulatedDevice, direction: Direction, message: Any, *sizes: int) -> Any:
        first = transmit_of_device(self, direction, message, *sizes)
        if generator.random() < 0.2 and not self.over:
            transmit_of_device(self, direction, message, *sizes)
        return first

    monkeypatch.setattr(SimulatedNetwork, "transmit", checked)
    monkeypatch.setattr(SimulatedDevice, "transmit", twice)
    outcome = run_text(folder, random_scenario(seed), name=f"s{seed}")
    tables = tables_of(outcome)
    events = tables.read("events")
    sent = dict.fromkeys(("delivered", "lost", "discarded"), 0)
    columns = {name: events[name].to_pylist() for name in ("fate", "kind", *(f"{s}_bytes" for s in SPLITS))}
    for index, fate in enumerate(columns["fate"]):
        sent[fate] += sum(columns[f"{split}_bytes"][index] for split in SPLITS)
    for row in tables.read("device_rounds").to_pylist():
        total = row["up_bytes"] + row["down_bytes"]
        assert total == row["delivered_bytes"] + row["lost_bytes"] + row["discarded_bytes"]
        for direction in ("up", "down"):
            assert row[f"{direction}_bytes"] == sum(row[f"{direction}_{split}_bytes"] for split in SPLITS)
        assert all(value >= 0 for name, value in row.items() if name.endswith("_bytes"))
    rounds = tables.read("rounds").to_pylist()
    for fate, expected in sent.items():
        assert sum(row[f"{fate}_bytes"] for row in rounds) == expected
    total = sum(row["up_bytes"] + row["down_bytes"] for row in rounds)
    assert total == sum(sent.values())
    for row in rounds:
        assert row["invited"] == sum(row[label(outcome)] for outcome in Outcome)
    return total


@pytest.mark.parametrize("block", range(4))
def test_bytes_are_conserved(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = 0
    for seed in range(block * 10, block * 10 + 10):
        try:
            with monkeypatch.context() as patch:
                total += check_run(tmp_path, seed, patch)
        except Exception as error:
            error.add_note(f"replay with random_scenario({seed})")
            raise
    assert total > 100_000


@pytest.mark.slow
@pytest.mark.parametrize("block", range(16))
def test_bytes_are_conserved_over_a_swarm(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(40 + block * 10, 50 + block * 10):
        try:
            with monkeypatch.context() as patch:
                check_run(tmp_path, seed, patch)
        except Exception as error:
            error.add_note(f"replay with random_scenario({seed})")
            raise


def test_an_invitation_has_its_exact_size_in_the_log(tmp_path: Path) -> None:
    text = random_scenario(1).replace("rounds:\n", "rounds:\n  retry: {attempts: 1}\n")
    outcome = run_text(tmp_path, text)
    events = [row for row in tables_of(outcome).read("events").to_pylist() if row["kind"] == "invited"]
    delivered = {row["framing_bytes"] + row["payload_bytes"] for row in events if row["fate"] == "delivered"}
    assert delivered
    models = [row for row in tables_of(outcome).read("events").to_pylist() if row["kind"] == "model"]
    arrived = [row for row in models if row["fate"] == "delivered"]
    model_bytes = {row["framing_bytes"] + row["payload_bytes"] for row in arrived}
    run_id = "x" * 8
    expected = {len(encode(Invite(run_id, 1, "fedrecon", 60.0, size))) for size in model_bytes}
    assert delivered == expected
    assert np.all([row["end_s"] > row["start_s"] for row in events if row["fate"] == "delivered"])
