"""Without chance in device and link, a round takes exactly what the formulas say, computed here by hand."""

from typing import Any

import pytest
from by_hand import DOWN_BPS, SEGMENT_BYTES, UP_BPS, WINDOW_BYTES, leaving_s, small_round_trip_s
from run_helpers import IDEAL_PROFILES, rows_of, run_text

FEATURES = 3000
SAMPLES = 50

SCENARIO = f"""
format: 2
data:
  source: synthetic-regression
  clients: 1
  samples_per_client: {SAMPLES}
  features: {FEATURES}
fleet:
  devices: {{ideal_device: 100%}}
  networks: {{ideal_wire: 100%}}
  profiles: [{IDEAL_PROFILES}]
learning:
  algorithm: linear-regression
  local: {{method: gradient-steps, steps: 2, learning_rate: 0.0001}}
rounds: {{count: 2, cohort: 1, deadline: 60 s}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    outcome = run_text(tmp_path_factory.mktemp("hand"), SCENARIO)
    return {table: rows_of(outcome, table) for table in ("rounds", "device_rounds", "events")}


def test_every_stage_takes_what_the_formulas_say(run: dict[str, list[dict[str, Any]]]) -> None:
    device = run["device_rounds"][0]
    frames = {
        row["kind"]: row["payload_bytes"] + row["framing_bytes"]
        for row in run["events"]
        if row["round"] == 1 and row["direction"] != "none"
    }
    assert frames["model"] > WINDOW_BYTES
    down_s, up_s = small_round_trip_s(DOWN_BPS), small_round_trip_s(UP_BPS)
    # TCP and TLS 1.3 take a round trip each before the first byte.
    invited_s = 2 * down_s + leaving_s(frames["invited"], DOWN_BPS) + down_s / 2
    accepted_s = invited_s + leaving_s(frames["accepted"], UP_BPS) + up_s / 2
    model_s = accepted_s + leaving_s(frames["model"], DOWN_BPS) + down_s / 2
    compute_s = hand_computed_compute_s()
    computed_s = model_s + compute_s
    reported_s = computed_s + leaving_s(frames["report"], UP_BPS) + up_s / 2
    receipt_s = reported_s + leaving_s(frames["acknowledged"], DOWN_BPS) + down_s / 2

    assert device["invite_start_s"] == 0.0
    assert device["invite_end_s"] == pytest.approx(accepted_s, rel=1e-9)
    assert device["download_start_s"] == pytest.approx(accepted_s, rel=1e-9)
    assert device["download_end_s"] == pytest.approx(model_s, rel=1e-9)
    assert device["compute_start_s"] == pytest.approx(model_s, rel=1e-9)
    assert device["compute_end_s"] == pytest.approx(computed_s, rel=1e-9)
    assert device["report_end_s"] == pytest.approx(reported_s, rel=1e-9)
    assert device["acknowledge_end_s"] == pytest.approx(receipt_s, rel=1e-9)
    assert device["latency_s"] == pytest.approx(reported_s, rel=1e-9)
    assert device["wait_s"] == pytest.approx(0.0, abs=1e-9)
    assert run["rounds"][0]["duration_s"] == pytest.approx(reported_s, rel=1e-9)
    assert run["rounds"][1]["start_s"] == pytest.approx(receipt_s, rel=1e-9)


def hand_computed_compute_s() -> float:
    """Two full-batch steps: 4d flops a sample, rows read twice, three operators, 1 ms of framework a step."""
    unknowns = FEATURES + 1
    flops = SAMPLES * 4 * unknowns + 2 * unknowns
    moved_bytes = SAMPLES * 2 * (unknowns + 1) * 8
    step_s = 1e-3 + 3 * 20e-6 + flops / 2e9 + moved_bytes / 1e9
    return 2 * step_s


def test_computing_and_its_energy(run: dict[str, list[dict[str, Any]]]) -> None:
    for device in run["device_rounds"]:
        assert device["compute_s"] == pytest.approx(hand_computed_compute_s(), rel=1e-12)
        assert device["energy_compute_j"] == pytest.approx(4.0 * device["compute_s"], rel=1e-12)
        assert device["energy_radio_j"] == 0.0  # on a wire
        assert device["memory_bytes"] == 8 * (SAMPLES * (FEATURES + 3) + 4 * (FEATURES + 1))
        assert device["examples"] == SAMPLES


def test_bytes_of_a_lossless_round(run: dict[str, list[dict[str, Any]]]) -> None:
    device = run["device_rounds"][0]
    weights_bytes = 8 * (FEATURES + 1)
    assert device["down_payload_bytes"] == weights_bytes
    assert device["up_payload_bytes"] == weights_bytes
    assert device["down_retransmitted_bytes"] == device["up_retransmitted_bytes"] == 0
    assert device["lost_bytes"] == device["discarded_bytes"] == device["wasted_bytes"] == 0
    assert device["report_up_bytes"] > weights_bytes
    # Segments carry 52 bytes of headers each; every second one is answered by a pure acknowledgement.
    segments = -(-(weights_bytes + 100) // SEGMENT_BYTES)
    report = next(row for row in run["events"] if row["round"] == 1 and row["kind"] == "report")
    assert report["tcp_ip_bytes"] == segments * 52 + -(-segments // 2) * 52
