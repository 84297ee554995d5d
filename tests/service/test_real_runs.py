"""Runs over real sockets on loopback, beside simulations of the same scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from service_helpers import SMALL, loaded_text, payloads, rows_of, run_real, run_virtual

from coordinator.run.runner import RunOutcome

WAYS = {
    "plain": "",
    "sparse": "",
    "secagg-plus": "secure_aggregation: {mode: secagg-plus, clip: 1}\n",
    "active": "secure_aggregation: {mode: active, clip: 1}\n",
    "ckks": "secure_aggregation: {mode: ckks, clip: 1}\n",
}


def model_of(outcome: RunOutcome) -> dict[str, np.ndarray]:
    with np.load(outcome.directory / "model.npz") as file:
        return dict(file)


@pytest.mark.few(2)
@pytest.mark.parametrize("way", WAYS)
def test_same_cohorts_payload_and_model_as_the_simulation(tmp_path: Path, way: str) -> None:
    text = SMALL + WAYS[way]
    if way == "sparse":
        text = text.replace(", upload: dense", "")
    loaded = loaded_text(tmp_path, text)
    over_sockets, virtual = run_real(loaded, tmp_path / "real"), run_virtual(loaded, tmp_path / "virtual")
    assert (over_sockets.status, virtual.status) == ("finished", "finished")
    assert len(payloads(over_sockets)) > 3 * 6 * 4
    assert payloads(over_sockets) == payloads(virtual)
    for row in rows_of(over_sockets, "rounds"):
        assert (row["outcome"], row["completed"]) == ("completed", 6)
    models = model_of(over_sockets), model_of(virtual)
    assert models[0].keys() == models[1].keys()
    for name, array in models[0].items():
        if "secure" in WAYS[way]:
            np.testing.assert_array_equal(array, models[1][name])
        else:
            # Reports are added in the order in which they come.
            np.testing.assert_allclose(array, models[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_noise_on_a_sum_does_not_follow_from_the_scenario(tmp_path: Path) -> None:
    noise = "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 2, accounting: false}\n"
    text = SMALL.replace("count: 3, cohort: 6", "count: 1, cohort: 12").replace(
        "upload: dense", "upload: dense, weighting: uniform"
    )
    loaded = loaded_text(tmp_path, text + noise)
    plain = loaded_text(tmp_path, text + noise.replace("noise_multiplier: 2", "noise_multiplier: 0"))
    without, simulated = (
        run_virtual(plain, tmp_path / "plain"),
        run_virtual(loaded, tmp_path / "virtual"),
    )
    runs = [run_real(loaded, tmp_path / name) for name in ("one", "two")]

    def apart(one: RunOutcome, other: RunOutcome) -> float:
        models = model_of(one), model_of(other)
        gaps = [(models[0][name] - models[1][name]).astype(np.float64).ravel() for name in models[0]]
        return float(np.sqrt(np.mean(np.concatenate(gaps) ** 2)))

    # The scenario gives sum and seed; the noise of the simulation is what it gives of the noise.
    noise_rms = apart(simulated, without)
    for one, other in [(runs[0], simulated), (runs[1], simulated), (runs[0], runs[1])]:
        assert apart(one, other) == pytest.approx(np.sqrt(2) * noise_rms, rel=0.5)
    sources = [
        json.loads((run.directory / "manifest.json").read_text())["secrets"] for run in (*runs, simulated)
    ]
    assert sources == ["system", "system", "seed"]


@pytest.mark.slow
def test_devices_go_on_with_what_they_keep(tmp_path: Path) -> None:
    persistent = "user_factors: persistent, reconstruction: {method: gradient-steps, steps: 2}"
    text = SMALL.replace("upload: dense", persistent).replace("count: 3", "count: 5")
    loaded = loaded_text(tmp_path, text)
    over_sockets, virtual = run_real(loaded, tmp_path / "real"), run_virtual(loaded, tmp_path / "virtual")
    for name, array in model_of(over_sockets).items():
        np.testing.assert_allclose(array, model_of(virtual)[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_device_is_sent_its_own_users_row(tmp_path: Path) -> None:
    text = (
        SMALL.replace("fedrecon", "fedavg-mf").replace(", upload: dense", "").replace("count: 3", "count: 5")
    )
    loaded = loaded_text(tmp_path, text)
    over_sockets, virtual = run_real(loaded, tmp_path / "real"), run_virtual(loaded, tmp_path / "virtual")
    assert payloads(over_sockets) == payloads(virtual)
    rows = model_of(over_sockets)["user_table"]
    assert rows.shape == (12, 5)
    taken_part = {row["device"] for row in rows_of(virtual, "device_rounds") if row["outcome"] == "completed"}
    assert set(np.flatnonzero(rows.any(axis=1)).tolist()) == taken_part
    for name, array in model_of(over_sockets).items():
        np.testing.assert_allclose(array, model_of(virtual)[name], rtol=1e-5, atol=1e-6)


def test_what_never_changes_is_sent_once(tmp_path: Path) -> None:
    text = SMALL.replace("ratings_per_user: 8", "ratings_per_user: 8, features: {kind: synthetic, noise: 2}")
    method = "algorithm: fedmmf, mask: {kind: one-order, regularization: 30}"
    text = text.replace("algorithm: fedrecon", method)
    loaded = loaded_text(tmp_path, text + WAYS["secagg-plus"])
    over_sockets, virtual = run_real(loaded, tmp_path / "real"), run_virtual(loaded, tmp_path / "virtual")
    assert payloads(over_sockets) == payloads(virtual)
    sizes = [size for (_, _, stage, _), size in payloads(over_sockets).items() if stage == "download"]
    assert len(set(sizes)) == 2


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    folder = tmp_path_factory.mktemp("run")
    loaded = loaded_text(folder, SMALL + WAYS["secagg-plus"])
    return run_real(loaded, folder / "real")


class TestTables:
    def test_the_manifest_says_which_clock(self, real: RunOutcome) -> None:
        manifest = json.loads((real.directory / "manifest.json").read_text())
        assert (manifest["clock"], manifest["status"]) == ("real", "finished")

    def test_there_are_the_files_of_every_run(self, real: RunOutcome) -> None:
        names = {path.name for path in real.directory.iterdir()}
        assert {"rounds.parquet", "device_rounds.parquet", "events.parquet", "summary.json"} <= names
        assert {"model.npz", "report.html", "scenario.resolved.yaml", "verdicts.json"} <= names

    def test_stages_follow_each_other(self, real: RunOutcome) -> None:
        for row in rows_of(real, "device_rounds"):
            names = ("invite", "download", "advertise-keys", "share-keys", "masked-input", "unmask")
            ends = [row[f"{name}_end_s"] for name in (*names, "acknowledge")]
            assert ends == sorted(ends)
            assert 0 < row["latency_s"] <= row["unmask_end_s"] - row["invite_start_s"]

    def test_what_is_seen_on_devices_alone_is_not_told(self, real: RunOutcome) -> None:
        for row in rows_of(real, "rounds"):
            assert row["secagg_sum_error"] is None
            assert row["secagg_double_reveals"] is None
            assert row["clipped_fraction"] is None

    def test_every_byte_has_a_fate(self, real: RunOutcome) -> None:
        for row in rows_of(real, "device_rounds"):
            sent_bytes = row["up_bytes"] + row["down_bytes"]
            assert sent_bytes == row["delivered_bytes"] + row["discarded_bytes"]
            assert row["lost_bytes"] == 0
            assert row["up_framing_bytes"] > 0
            assert row["up_tcp_ip_bytes"] == row["up_retransmitted_bytes"] == 0
