"""What opening, keeping and sharing connections costs in a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from run_helpers import IDEAL_PROFILES, rows_of, run_text

from edge.network.link import TLS_HANDSHAKE_BYTES
from edge.network.tcp import HANDSHAKE_RECEIVED_BYTES, HANDSHAKE_SENT_BYTES, SYN_BYTES

TCP_HANDSHAKE_BYTES = HANDSHAKE_SENT_BYTES + HANDSHAKE_RECEIVED_BYTES
ROUND_TRIP_S = 0.1 + 960 / 10e6


def scenario(network: str) -> str:
    return f"""
format: 2
seed: 8
data: {{source: synthetic-ratings, users: 40, items: 1500, ratings_per_user: 20}}
fleet: {{devices: {{ideal_device: 100%}}, networks: {{{network}: 100%}}, profiles: [{IDEAL_PROFILES}]}}
learning: {{algorithm: fedrecon, factors: 8}}
rounds: {{count: 3, cohort: 20, quorum: 1, deadline: 10 min}}
evaluation: {{every: 100, final: false}}
"""


def devices(folder: Path, settings: Sequence[str], network: str = "ideal_wire") -> list[dict[str, Any]]:
    name = "run" + "-".join(setting.split("=")[-1].replace(" ", "").replace("/", "p") for setting in settings)
    return rows_of(run_text(folder, scenario(network), settings, name), "device_rounds")


def sent(row: dict[str, Any]) -> int:
    return int(row["up_bytes"] + row["down_bytes"])


def test_tls_costs_its_bytes_and_a_round_trip(tmp_path: Path) -> None:
    plain = devices(tmp_path, ["connection.tls=false"])
    secured = devices(tmp_path, ["connection.tls=true"])
    assert [row["device"] for row in plain] == [row["device"] for row in secured]
    for without, with_tls in zip(plain, secured, strict=True):
        assert sent(with_tls) - sent(without) == TLS_HANDSHAKE_BYTES > 1000
        assert with_tls["latency_s"] - without["latency_s"] == pytest.approx(ROUND_TRIP_S)


def test_a_connection_kept_open_saves_the_handshake(tmp_path: Path) -> None:
    closed = devices(tmp_path, ["connection.keep_alive=false"])
    kept = devices(tmp_path, ["connection.keep_alive=true"])
    seen: set[int] = set()
    again = 0
    for cold, warm in zip(closed, kept, strict=True):
        assert cold["device"] == warm["device"]
        if cold["device"] in seen:
            again += 1
            assert sent(cold) - sent(warm) == TCP_HANDSHAKE_BYTES + TLS_HANDSHAKE_BYTES
            assert cold["latency_s"] - warm["latency_s"] == pytest.approx(2 * ROUND_TRIP_S)
        seen.add(cold["device"])
    assert again > 10


def test_a_crowded_coordinator_link_slows_the_round(tmp_path: Path) -> None:
    free = devices(tmp_path, [])
    crowded = devices(tmp_path, ["coordinator.up_rate=2 Mbit/s"])
    assert [sent(row) for row in free] == [sent(row) for row in crowded]

    def download_s(rows: list[dict[str, Any]]) -> float:
        first = [row for row in rows if row["round"] == 1]
        return float(
            max(row["download_end_s"] for row in first) - min(row["download_start_s"] for row in first)
        )

    # Twenty models of 54 kB and their headers cannot pass 2 Mbit/s faster than this.
    model_bits = 8 * 20 * (1500 * 9 * 4)
    assert download_s(free) < 0.5
    assert model_bits / 2e6 < download_s(crowded) < 1.1 * model_bits * 1500 / 1448 / 2e6


def test_a_device_tries_again_with_growing_pauses(tmp_path: Path) -> None:
    settings = ["rounds.retry={attempts: 3, first_backoff: 2 s, factor: 3}", "rounds.deadline=60 s"]
    rows = devices(tmp_path, settings, "doubtful_wire")
    smooth_s = 1.0  # far more than an invitation without a failure takes
    by_pause: dict[float, int] = {0.0: 0, 2.0: 0, 8.0: 0}
    for row in rows:
        if row["outcome"] == "unreachable":
            assert row["reason"] == "retries-exhausted"
            assert row["retries"] == 2
            assert sent(row) == row["lost_bytes"] == 3 * SYN_BYTES
            continue
        assert row["outcome"] == "completed"
        took_s = row["invite_end_s"] - row["invite_start_s"]
        (pause_s,) = [pause_s for pause_s in by_pause if pause_s <= took_s < pause_s + smooth_s]
        by_pause[pause_s] += 1
        assert row["retries"] == list(by_pause).index(pause_s)
    # Half the attempts fail: of 60 invitations 30, 15 and 8 succeed at the first, second and third.
    assert 20 <= by_pause[0.0] <= 40
    assert 7 <= by_pause[2.0] <= 25
    assert 2 <= by_pause[8.0] <= 16


def test_without_retries_a_failed_attempt_is_the_end(tmp_path: Path) -> None:
    settings = ["rounds.retry={attempts: 1}", "rounds.deadline=60 s"]
    rows = devices(tmp_path, settings, "doubtful_wire")
    exhausted = [row for row in rows if row["reason"] == "retries-exhausted"]
    assert 20 <= len(exhausted) <= 40
    assert {row["retries"] for row in rows} == {0}
    assert all(row["lost_bytes"] == sent(row) == SYN_BYTES for row in exhausted)


@pytest.mark.parametrize("congestion", ["cubic", "reno"])
def test_a_lossy_link_sends_again(congestion: str, tmp_path: Path) -> None:
    text = scenario("ideal_wire").replace("ideal_wire: 100%", "3g_uk: 100%")
    outcome = run_text(tmp_path, text, [f"connection.congestion={congestion}"])
    rounds = rows_of(outcome, "rounds")
    assert sum(row["down_retransmitted_bytes"] for row in rounds) > 0
    # 0.5% of the segments of 20 models of 54 kB a round; each is 1500 bytes again.
    models = sum(row["completed"] for row in rounds)
    resent = sum(row["down_retransmitted_bytes"] for row in rounds) / 1500
    assert 0.002 < resent / (models * 54_000 / 1448) < 0.02


def test_a_transfer_that_tcp_gives_up_ends_the_participation(tmp_path: Path) -> None:
    rows = devices(tmp_path, ["rounds.deadline=1 h", "connection.tls=false"], "hopeless_wire")
    broken = [row for row in rows if row["reason"] == "connection-lost"]
    # One in seven gets through the handshake, and hardly one of them through the whole round.
    assert 3 <= len(broken) <= 20
    assert {row["outcome"] for row in broken} == {"dropped"}
    assert len(broken) + sum(row["outcome"] == "unreachable" for row in rows) > 0.9 * len(rows)
    assert all(row["latency_s"] is None for row in broken)


def test_a_connection_that_cannot_be_opened_leaves_its_device_unreachable(tmp_path: Path) -> None:
    rows = devices(tmp_path, ["rounds.deadline=1 h", "connection.keep_alive=false"], "hopeless_wire")
    alone = [row for row in rows if row["outcome"] == "unreachable"]
    assert len(alone) > 40
    assert {row["reason"] for row in alone} == {"retries-exhausted"}
    assert all(row["lost_bytes"] == sent(row) > 0 for row in alone)
