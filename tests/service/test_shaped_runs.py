"""Shaped devices are as slow as their profiles: measured latencies are near the simulated ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_helpers import SMALL, loaded_text, rows_of, run_real, run_virtual

SLOW = SMALL.replace("users: 12, items: 40", "users: 6, items: 400").replace("count: 3", "count: 2")


@pytest.mark.parametrize("mode", ["off", "secagg-plus"])
def test_latencies_are_near_the_simulated_ones(tmp_path: Path, mode: str) -> None:
    clip = "" if mode == "off" else ", clip: 1"
    loaded = loaded_text(tmp_path, SLOW + f"secure_aggregation: {{mode: {mode}{clip}}}\n")
    real = run_real(loaded, tmp_path / "real", shaped=True)
    virtual = run_virtual(loaded, tmp_path / "virtual")
    # In the first round of a simulation connections are set up; real devices have joined before.
    found, expected = (
        sorted(row["latency_s"] for row in rows_of(run, "device_rounds") if row["round"] == 2)
        for run in (real, virtual)
    )
    assert len(found) == len(expected) == 6
    # A shaped device is never faster than its profile; how much slower depends on the host.
    for measured, simulated in zip(found, expected, strict=True):
        assert 0.99 * simulated < measured < 2 * simulated
