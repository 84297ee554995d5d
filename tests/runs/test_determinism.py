"""Scenario and seed determine a run to the last bit, whatever the process, its batches and its workers."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from run_helpers import SCENARIOS
from shipped_runs import NEEDS_DATA, SHORTENED, Variant, run_apart

from coordinator.diff import diff_runs, render_diff
from coordinator.metrics.reader import open_run

ONE_OF_A_KIND = (
    "quickstart",
    "linear_regression_10x5",
    "secagg_active",
    "secagg_dropout_storm",
    "distributed_dp",
    "on_device_inference",
    "coordinator_crash",
    "async_buffered",
)
"""Of each way to learn, sum, fail and wait; the slow test below goes through all."""


def assert_identical(first: Path, second: Path, names: Sequence[str]) -> None:
    for name in names:
        runs = open_run(first / name), open_run(second / name)
        difference = diff_runs(*runs)
        assert difference.identical, f"{name}: {render_diff(difference)}"
        assert difference.digests[0] == difference.digests[1] is not None
        assert min(difference.rows[table] for table in ("rounds", "device_rounds", "events")) > 0
        assert (first / name / "model.npz").read_bytes() == (second / name / "model.npz").read_bytes()


def test_every_scenario_without_a_download_is_covered() -> None:
    shipped = {file.stem for file in SCENARIOS.glob("*.yaml")}
    assert set(SHORTENED) == shipped - set(NEEDS_DATA)


@pytest.mark.slow
def test_batches_and_hash_seeds_change_nothing(tmp_path: Path) -> None:
    names = list(ONE_OF_A_KIND)
    run_apart(
        names,
        Variant(tmp_path / "a", ("compute.batch=1",), hash_seed=0),
        Variant(tmp_path / "b", ("compute.batch=7",), hash_seed=1234),
    )
    assert_identical(tmp_path / "a", tmp_path / "b", names)


@pytest.mark.slow
def test_workers_change_nothing(tmp_path: Path) -> None:
    names = ["quickstart", "persistent_factors"]
    run_apart(
        names,
        Variant(tmp_path / "alone", hash_seed=1),
        Variant(tmp_path / "pooled", ("compute.workers=2", "compute.batch=16"), hash_seed=2),
    )
    assert_identical(tmp_path / "alone", tmp_path / "pooled", names)


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    names = ["quickstart", "linear_regression_10x5"]
    run_apart(names, Variant(tmp_path / "a"), Variant(tmp_path / "b", seed_step=1))
    for name in names:
        difference = diff_runs(open_run(tmp_path / "a" / name), open_run(tmp_path / "b" / name))
        assert not difference.identical
        assert difference.digests[0] != difference.digests[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SHORTENED))
def test_whole_scenarios_are_determined(name: str, tmp_path: Path) -> None:
    variants = [
        Variant(tmp_path / "0", ("compute.batch=1",), hash_seed=0),
        Variant(tmp_path / "1", ("compute.batch=256",), hash_seed=7),
        Variant(tmp_path / "2", ("compute.workers=2",), hash_seed=99),
    ]
    for variant in variants:  # one at a time: a million devices take their memory
        run_apart([f"{name}!"], variant)
    assert_identical(tmp_path / "0", tmp_path / "1", [name])
    assert_identical(tmp_path / "0", tmp_path / "2", [name])
