"""Without chance in device and link, a secure sum takes exactly what the formulas say, computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from by_hand import (
    DOWN_BPS,
    WINDOW_BYTES,
    array_bytes,
    down_s,
    frame_bytes,
    leaving_s,
    small_round_trip_s,
    up_s,
)
from run_helpers import IDEAL_PROFILES, rows_of, run_text

DEVICES = 3
FEATURES = 2000
SAMPLES = 20
LENGTH = FEATURES + 1 + 1 + 1 + 2
"""Weights with the intercept, examples, loss, and behind them the weight and a one."""
NEIGHBOURS, THRESHOLD = 2, 2
"""Three devices, everybody everybody's neighbour: two of three shares rebuild a secret."""
WORDS = 32
"""Words of 16 bits in two secrets of 32 bytes."""
POWER_W = 4.0
RUN_ID = "8 digits"
"""Runs are named by the first eight digits of a hash."""
KEY_PAIR_S, EXCHANGE_S, SEAL_S, SIGN_S, VERIFY_S = 1e-3, 2e-3, 0.5e-3, 3e-3, 5e-3
EXPAND_S, QUANTISE_S, SHARE_S = 1 / 10e6, 1 / 1e6, 1 / 4e6
ENCRYPT_S, DECRYPT_S = 40e-3, 20e-3
CIPHERTEXT_BYTES, CIPHERTEXTS = 232 * 1024, 1
"""4096 numbers fit into one."""

SCENARIO = f"""
format: 2
data:
  source: synthetic-regression
  clients: {DEVICES}
  samples_per_client: {SAMPLES}
  features: {FEATURES}
fleet:
  devices: {{ideal_device: 100%}}
  networks: {{ideal_wire: 100%}}
  profiles: [{IDEAL_PROFILES}]
learning:
  algorithm: linear-regression
  local: {{method: gradient-steps, steps: 1, learning_rate: 0.0001}}
secure_aggregation: SECTION
rounds: {{count: 1, cohort: {DEVICES}, deadline: 60 s}}
"""
Tables = dict[str, list[dict[str, Any]]]


class Exchange(NamedTuple):
    """A stage of a device: a frame down, computing, a frame up. Each frame with its length and payload."""

    stage: str
    down: tuple[str, int, int] | None
    work_s: float
    up: tuple[str, int, int] | None


def run_tables(folder: Path, section: str) -> Tables:
    outcome = run_text(folder, SCENARIO.replace("SECTION", section))
    return {table: rows_of(outcome, table) for table in ("rounds", "device_rounds", "events")}


def masking_exchanges(*, active: bool, item_bytes: int) -> list[Exchange]:
    """Return what a device does in a round of masks; ids, counts and the round are numbers of one byte."""

    def frame(*arrays: int, small_fields: int = 1) -> int:
        return frame_bytes(RUN_ID, *arrays, small_fields=small_fields)

    k, t, n, L = NEIGHBOURS, THRESHOLD, DEVICES, LENGTH
    signature = array_bytes("signature", 1, 64)
    record, context = array_bytes("record", 1, 96), array_bytes("context", 1, 2, 32)
    listed = [
        array_bytes("devices", 8, n),
        array_bytes("records", 1, n, 96),
        array_bytes("digest", 1, 32),
        context,
    ]
    signatures = array_bytes("signatures", 1, k, 64)
    dead = array_bytes("dead", 8, 0)
    sealed, own = array_bytes("sealed", 1, k, 84), array_bytes("commitments", 1, k + 1, 32)
    committed = array_bytes("commitments", 1, k, 32)
    keys = Exchange(
        "advertise-keys",
        None,
        2 * KEY_PAIR_S + active * SIGN_S,
        ("keys", frame(record, context, *[signature] * active), 96 + 64 + 64 * active),
    )
    shares = Exchange(
        "share-keys",
        (
            "key-list",
            frame(*listed, *[signatures] * active, small_fields=4),
            8 * n + 96 * n + 32 + 64 + 64 * k * active,
        ),
        k * (EXCHANGE_S + SEAL_S + active * VERIFY_S) + WORDS * t * (k + 1) * SHARE_S,
        ("sealed-shares", frame(sealed, own), 84 * k + 32 * (k + 1)),
    )
    masked = Exchange(
        "masked-input",
        ("shares", frame(array_bytes("senders", 8, k), sealed, committed), (8 + 84 + 32) * k),
        k * (EXCHANGE_S + SEAL_S) + (k + 1) * item_bytes * L * EXPAND_S + L * QUANTISE_S,
        ("masked-input", frame(array_bytes("masked", item_bytes, L)), item_bytes * L),
    )
    checked = Exchange(
        "consistency",
        ("survivors", frame(array_bytes("survivors", 8, n), small_fields=0), 8 * n),
        SIGN_S,
        ("signature", frame(signature), 64),
    )
    request = [dead, *[array_bytes("signers", 8, k), signatures] * active]
    unmasked = Exchange(
        "unmask",
        ("unmask-request", frame(*request, small_fields=2), (8 * k + 64 * k) * active),
        active * k * VERIFY_S,
        (
            "unmask-shares",
            frame(array_bytes("shares", 1, k + 1, 34), array_bytes("unopened", 8, 0)),
            34 * (k + 1),
        ),
    )
    return [keys, shares, masked, *[checked] * active, unmasked]


def work_of_update_s() -> float:
    """One full-batch step: 4d flops a sample, rows read twice, three operators, 1 ms of framework."""
    unknowns = FEATURES + 1
    flops = SAMPLES * 4 * unknowns + 2 * unknowns
    moved_bytes = SAMPLES * 2 * (unknowns + 1) * 8
    return 1e-3 + 3 * 20e-6 + flops / 2e9 + moved_bytes / 1e9


def frames_of(tables: Tables, device: int) -> dict[str, tuple[int, int]]:
    """Return length and payload of each frame of a device, by what it is."""
    return {
        row["kind"]: (row["payload_bytes"] + row["framing_bytes"], row["payload_bytes"])
        for row in tables["events"]
        if row["device"] == device and row["direction"] != "none"
    }


def update_ready_s(tables: Tables) -> float:
    """Return when a device has its update; its invitation pays for TCP and TLS."""
    frames = frames_of(tables, 0)
    invited = 2 * small_round_trip_s(DOWN_BPS) + down_s(frames["invited"][0])
    model = invited + up_s(frames["accepted"][0]) + down_s(frames["model"][0])
    return model + work_of_update_s()


@pytest.mark.parametrize(("mode", "bits"), [("secagg", 32), ("secagg", 64), ("active", 32)])
def test_masks(mode: str, bits: int, tmp_path: Path) -> None:
    tables = run_tables(tmp_path, f"{{mode: {mode}, bits: {bits}}}")
    (round_,) = tables["rounds"]
    exchanges = masking_exchanges(active=mode == "active", item_bytes=bits // 8)
    assert (round_["secagg_neighbours"], round_["secagg_threshold"]) == (NEIGHBOURS, THRESHOLD)
    # Two of three answers to the last request are enough; the third is the same frame under another name.
    expected = {frame[0]: frame[1:] for exchange in exchanges for frame in exchange[1::2] if frame}
    for device in range(DEVICES):
        found = frames_of(tables, device)
        if "late" in found:
            found["unmask-shares"] = found["late"]
        assert {kind: found[kind] for kind in expected} == expected
    # That of 64 bits does not fit into the first window of TCP.
    assert (expected["masked-input"][0] > WINDOW_BYTES) == (bits == 64)
    assert sum("late" in frames_of(tables, device) for device in range(DEVICES)) == 1

    starts_s = update_ready_s(tables)
    stage_s = []
    for exchange in exchanges:
        computing_s = starts_s + (0.0 if exchange.down is None else down_s(exchange.down[1]))
        ends_s = computing_s + exchange.work_s + up_s(exchange.up[1])
        for row in tables["device_rounds"]:
            name = exchange.stage
            assert row[f"{name}_start_s"] == pytest.approx(starts_s, rel=1e-9), name
            assert row[f"{name}_end_s"] == pytest.approx(ends_s, rel=1e-9), name
            assert row[f"{name}_down_bytes"] >= (0 if exchange.down is None else exchange.down[1])
            assert row[f"{name}_up_bytes"] >= exchange.up[1]
        computed = [
            row for row in tables["events"] if (row["kind"], row["stage"]) == ("computed", exchange.stage)
        ]
        assert len(computed) == DEVICES
        for row in computed:
            assert row["start_s"] == pytest.approx(computing_s, rel=1e-9)
            assert row["end_s"] - row["start_s"] == pytest.approx(exchange.work_s, abs=1e-12)
        stage_s.append(ends_s - (starts_s if stage_s else 0.0))
        starts_s = ends_s
    for exchange, seconds in zip(exchanges, stage_s, strict=True):
        assert round_[f"{exchange.stage}_s"] == pytest.approx(seconds, rel=1e-9)
    assert round_["duration_s"] == pytest.approx(sum(stage_s), rel=1e-9)

    receipt_s = starts_s + down_s(frames_of(tables, 0)["acknowledged"][0])
    work_s = work_of_update_s() + sum(exchange.work_s for exchange in exchanges)
    for row in tables["device_rounds"]:
        assert (row["outcome"], row["reason"]) == ("completed", "none")
        assert row["acknowledge_end_s"] == pytest.approx(receipt_s, rel=1e-9)
        assert row["compute_s"] == pytest.approx(work_s, rel=1e-9)
        assert row["energy_compute_j"] == pytest.approx(POWER_W * work_s, rel=1e-9)
        assert row["energy_radio_j"] == 0.0  # on a wire
        assert row["wait_s"] == pytest.approx(0.0, abs=1e-9)
        assert row["report_start_s"] is None
        # The masked input is what arrives in place of a report.
        assert row["latency_s"] == pytest.approx(row["masked-input_end_s"] - row["invite_start_s"], rel=1e-12)
    assert round_["energy_j"] == pytest.approx(DEVICES * POWER_W * work_s, rel=1e-9)


def test_ciphertexts(tmp_path: Path) -> None:
    tables = run_tables(tmp_path, "{mode: ckks, crypto: modelled}")
    (round_,) = tables["rounds"]
    ciphertexts = (
        array_bytes("ciphertexts", 1, CIPHERTEXTS * CIPHERTEXT_BYTES),
        array_bytes("lengths", 8, CIPHERTEXTS),
    )
    payload = CIPHERTEXTS * (CIPHERTEXT_BYTES + 8)
    encrypted = frame_bytes(RUN_ID, *ciphertexts, small_fields=1)
    request = frame_bytes(RUN_ID, *ciphertexts, small_fields=2)
    total = frame_bytes(RUN_ID, array_bytes("total", 8, LENGTH), small_fields=1)
    # The device with the lowest id decrypts.
    assert frames_of(tables, 0)["encrypted-input"] == (encrypted, payload)
    assert frames_of(tables, 0)["decrypt-request"] == (request, payload)
    assert frames_of(tables, 0)["decrypted-sum"] == (total, 8 * LENGTH)

    ready_s = update_ready_s(tables)
    input_s = ready_s + CIPHERTEXTS * ENCRYPT_S + up_s(encrypted)
    sum_s = input_s + down_s(request) + CIPHERTEXTS * DECRYPT_S + up_s(total)
    assert round_["masked-input_s"] == pytest.approx(input_s, rel=1e-9)
    assert round_["unmask_s"] == pytest.approx(sum_s - input_s, rel=1e-9)
    for row in tables["device_rounds"]:
        assert row["masked-input_start_s"] == pytest.approx(ready_s, rel=1e-9)
        assert row["masked-input_end_s"] == pytest.approx(input_s, rel=1e-9)
        asked = row["device"] == 0
        work_s = work_of_update_s() + CIPHERTEXTS * (ENCRYPT_S + asked * DECRYPT_S)
        assert row["compute_s"] == pytest.approx(work_s, rel=1e-9)
        assert row["energy_compute_j"] == pytest.approx(POWER_W * work_s, rel=1e-9)
        assert (row["unmask_end_s"] is not None) == asked
        # The others wait for the sum; the one that makes it does not.
        waited_s = 0.0 if asked else sum_s - input_s
        assert row["wait_s"] == pytest.approx(waited_s, abs=1e-9)
        receipt = frames_of(tables, row["device"])["acknowledged"][0]
        assert row["acknowledge_end_s"] == pytest.approx(sum_s + down_s(receipt), rel=1e-9)


def test_a_small_frame_takes_what_its_bytes_take() -> None:
    # 184 bytes at 2 Mbit/s, of which 1448 of every 1500 are theirs, and half a round trip.
    assert up_s(184) == pytest.approx(184 * 8 / 2e6 * 1500 / 1448 + 0.05 + 480 / 2e6, rel=1e-12)
    assert leaving_s(184, 2e6) < 1e-3
