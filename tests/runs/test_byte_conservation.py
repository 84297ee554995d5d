"""Over random scenarios: every byte has one fate, every frame its exact size."""

import random
from pathlib import Path

import numpy as np
import pytest
from byte_checks import bytes_of, check_run
from random_faults import random_faults
from run_helpers import run_text, tables_of

from edge.wire.codec import encode
from edge.wire.messages import Invite

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
format: 2
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


@pytest.mark.slow
def test_bytes_are_conserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = 0
    for seed in range(10):
        try:
            with monkeypatch.context() as patch:
                total += bytes_of(check_run(tmp_path, random_scenario(seed), seed, patch))
        except Exception as error:
            error.add_note(f"replay with random_scenario({seed})")
            raise
    assert total > 100_000


@pytest.mark.slow
def test_bytes_are_conserved_over_a_swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40, 50):
        try:
            with monkeypatch.context() as patch:
                check_run(tmp_path, random_scenario(seed), seed, patch)
        except Exception as error:
            error.add_note(f"replay with random_scenario({seed})")
            raise


@pytest.mark.slow
def test_bytes_are_conserved_among_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(1000, 1010):
        text = random_scenario(seed) + random_faults(random.Random(f"faults {seed}"))
        try:
            with monkeypatch.context() as patch:
                tables = check_run(tmp_path, text, seed, patch)
        except Exception as error:
            error.add_note(f"replay with\n{text}")
            raise
        for row in tables.read("faults").to_pylist():
            assert row["count"] >= 1
            assert row["first_s"] <= row["last_s"]


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
