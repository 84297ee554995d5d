"""Scenario and seed determine a run to the last bit, whatever the process, its batches and its workers."""

from collections.abc import Sequence
from pathlib import Path

import golden
import pytest
from run_helpers import SCENARIOS
from shipped_runs import NEEDS_DATA, SHORTENED, Variant, data_folder, run_apart

from coordinator.results.diff import diff_runs, render_diff
from coordinator.results.tables.reader import open_run

GROUPS = 12
"""Parts of the shipped scenarios; those of one run in one process."""
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


@pytest.mark.slow
def test_another_seed_is_another_run(tmp_path: Path) -> None:
    names = ["quickstart", "linear_regression_10x5"]
    run_apart(names, Variant(tmp_path / "a"), Variant(tmp_path / "b", seed_step=1))
    for name in names:
        difference = diff_runs(open_run(tmp_path / "a" / name), open_run(tmp_path / "b" / name))
        assert not difference.identical
        assert difference.digests[0] != difference.digests[1]


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_scenario_is_determined(group: int, tmp_path: Path) -> None:
    names = [*SHORTENED, *NEEDS_DATA][group::GROUPS]
    names = [name for name in names if name not in NEEDS_DATA or data_folder(name) is not None]
    workers = 2 if group < 2 else 0  # each run starts them anew
    pooled = Variant(tmp_path / "pooled", (f"compute.workers={workers}", "compute.batch=256"), hash_seed=99)
    run_apart(names, pooled)
    # These are of runs one device at a time, under hash seed 0.
    recorded = (golden.recorded() or {"scenarios": {}})["scenarios"]
    made = {name: golden.digest_of_run(tmp_path / "pooled" / name) for name in names if name in recorded}
    assert made == {name: recorded[name] for name in made}, NEWS
    others = [name for name in names if name not in recorded]
    if others:
        run_apart(others, Variant(tmp_path / "alone", ("compute.batch=1",), hash_seed=0))
        assert_identical(tmp_path / "alone", tmp_path / "pooled", others)


@pytest.mark.few(2)
@pytest.mark.parametrize("tenth", range(10))
def test_runs_of_a_swarm_are_as_recorded(tenth: int) -> None:
    digests = golden.recorded()
    if digests is None:
        pytest.skip("no digests are recorded for this CPU, BLAS and versions; tests/runs/golden.py does")
    indices = range(tenth, golden.SWARM_SCENARIOS, 10)
    # Another host may have recorded what has not been run here since.
    known = [index for index in indices if str(index) in digests["swarm"]]
    assert known
    made = {str(index): golden.digest_of_swarm(index) for index in known}
    assert made == {index: digests["swarm"][index] for index in made}, NEWS
