"""Scenario and seed determine a run to the last bit, whatever the process, its batches and its workers."""

from collections.abc import Sequence
from pathlib import Path

import golden
import pytest
from run_helpers import SCENARIOS
from shipped_runs import NEEDS_DATA, SHORTENED, Variant, data_folder, run_apart

from coordinator.results.diff import diff_runs, render_diff
from coordinator.results.tables.reader import open_run

NEWS = "a run changed: record it with tests/runs/golden.py in a commit that names the changed behaviour"


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


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    names = ["quickstart", "linear_regression_10x5"]
    run_apart(names, Variant(tmp_path / "a"), Variant(tmp_path / "b", seed_step=1))
    for name in names:
        difference = diff_runs(open_run(tmp_path / "a" / name), open_run(tmp_path / "b" / name))
        assert not difference.identical
        assert difference.digests[0] != difference.digests[1]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [*SHORTENED, *NEEDS_DATA])
def test_every_scenario_is_determined(name: str, tmp_path: Path) -> None:
    if name in NEEDS_DATA and data_folder(name) is None:
        pytest.skip(f"needs {NEEDS_DATA[name]} in the folder that RECFLEET_DATA names")
    pooled = Variant(tmp_path / "pooled", ("compute.workers=2", "compute.batch=256"), hash_seed=99)
    digests = golden.recorded()
    if digests is not None and name in digests["scenarios"]:
        # These are of runs one device at a time, under hash seed 0.
        run_apart([name], pooled)
        assert golden.digest_of_run(tmp_path / "pooled" / name) == digests["scenarios"][name], NEWS
        return
    run_apart([name], pooled, Variant(tmp_path / "alone", ("compute.batch=1",), hash_seed=0))
    assert_identical(tmp_path / "alone", tmp_path / "pooled", [name])


@pytest.mark.few(2)
@pytest.mark.parametrize("tenth", range(10))
def test_runs_of_a_swarm_are_as_recorded(tenth: int) -> None:
    digests = golden.recorded()
    if digests is None:
        pytest.skip("no digests are recorded for this CPU, BLAS and versions; tests/runs/golden.py does")
    indices = range(tenth, golden.SWARM_SCENARIOS, 10)
    made = {str(index): golden.digest_of_swarm(index) for index in indices}
    assert made == {index: digests["swarm"][index] for index in made}, NEWS
