from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coordinator.engine.crashes import npz_bytes
from coordinator.engine.host import numerics
from coordinator.engine.run_files import MANIFEST, MODEL, RESOLVED_SCENARIO
from coordinator.results.run_directory import (
    RunDirectory,
    RunDirectoryError,
    is_being_written,
    run_name,
    run_status,
    write_json,
)

ROOT = Path(__file__).resolve().parents[2]


def _create(target: Path, seed: int = 7) -> RunDirectory:
    return RunDirectory.create(target, f"seed: {seed}\n", {"seed": seed})


def _status(directory: Path) -> str:
    return str(json.loads((directory / MANIFEST).read_text())["status"])


def test_name_of_a_run() -> None:
    assert run_name("quickstart", 7, "1f0c29abcdef0123") == "quickstart-7-1f0c29ab"
    assert run_name("my scenario/ü", 0, "00ff00ff") == "my-scenario-0-00ff00ff"
    assert run_name("..", 1, "00ff00ff") == "run-1-00ff00ff"


def test_a_finished_run_takes_its_name(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "quickstart-7-aa"
    with _create(target) as directory:
        assert directory.path.name == "quickstart-7-aa.partial"
        assert _status(directory.path) == "running"
        assert is_being_written(directory.path)
        path = directory.finish("finished", digest="00")
    assert path == target
    assert [entry.name for entry in target.parent.iterdir()] == ["quickstart-7-aa"]
    manifest = json.loads((target / MANIFEST).read_text())
    assert (manifest["status"], manifest["digest"], manifest["seed"]) == ("finished", "00", 7)
    assert manifest["host"]["python"] == sys.version.split()[0]
    assert manifest["host"]["numerics"] == numerics()
    assert (target / RESOLVED_SCENARIO).read_text() == "seed: 7\n"
    assert not is_being_written(target)


def test_a_finished_run_replaces_the_one_before(tmp_path: Path) -> None:
    target = tmp_path / "a"
    for seed in (1, 2):
        with _create(target, seed) as directory:
            directory.finish("finished")
    assert json.loads((target / MANIFEST).read_text())["seed"] == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_an_unfinished_run_never_costs_the_finished_one(tmp_path: Path, status: str) -> None:
    target = tmp_path / "a"
    with _create(target, 1) as directory:
        directory.finish("finished")
    with _create(target, 2) as directory:
        path = directory.finish("interrupted" if status == "interrupted" else "failed")
    assert path == tmp_path / "a.partial"
    assert _status(path) == status
    assert json.loads((target / MANIFEST).read_text())["seed"] == 1
    with _create(target, 3) as directory:
        directory.finish("finished")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_dead_run_gives_way_and_is_called_killed(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with _create(target, 1) as directory:
        path = directory.path
        assert run_status(path, {"status": "running"}) == "running"
    assert run_status(path, {"status": "running"}) == "killed"
    assert run_status(path, {"status": "finished"}) == "finished"
    with _create(target, 2) as directory:
        assert json.loads((directory.path / MANIFEST).read_text())["seed"] == 2
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.partial"]


def test_a_living_run_is_not_disturbed(tmp_path: Path) -> None:
    with _create(tmp_path / "a", 1) as directory:
        with pytest.raises(RunDirectoryError, match="another process is writing this run"):
            _create(tmp_path / "a", 2)
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.partial"]
        assert json.loads((directory.path / MANIFEST).read_text())["seed"] == 1


def test_the_lock_of_another_process_holds_and_ends_with_it(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[2])\n"
        "from coordinator.results.run_directory import RunDirectory\n"
        "kept = RunDirectory.create(pathlib.Path(sys.argv[1]), 'seed: 1\\n', {'seed': 1})\n"
        "print('made', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a"), str(ROOT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        assert is_being_written(tmp_path / "a.partial")
        with pytest.raises(RunDirectoryError, match="another process"):
            _create(tmp_path / "a", 2)
        process.kill()
        process.wait()
    assert run_status(tmp_path / "a.partial", {"status": "running"}) == "killed"
    with _create(tmp_path / "a", 2) as directory:
        directory.finish("finished")


def test_a_run_that_died_before_it_took_its_name_is_kept(tmp_path: Path) -> None:
    with _create(tmp_path / "a", 1) as directory:
        manifest = json.loads((directory.path / MANIFEST).read_text())
        write_json(directory.path / MANIFEST, manifest | {"status": "finished"})
    with _create(tmp_path / "a", 2):
        assert json.loads((tmp_path / "a" / MANIFEST).read_text())["seed"] == 1
        assert json.loads((tmp_path / "a.partial" / MANIFEST).read_text())["seed"] == 2


def test_only_runs_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("x")
    for name in ("precious", "file"):
        with pytest.raises(RunDirectoryError, match="is not a run directory"):
            _create(tmp_path / name)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years"
    (tmp_path / "b.partial").mkdir()
    with pytest.raises(RunDirectoryError, match="in the way"):
        _create(tmp_path / "b")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["b.partial", "file", "precious"]


def test_an_empty_directory_may_be_given(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with _create(tmp_path / "out") as directory:
        assert directory.finish("finished") == tmp_path / "out"
    assert _status(tmp_path / "out") == "finished"


def test_json_is_strict_and_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": [0.1, "ü"]})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"b": 1, "a": [0.1, "ü"]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["b"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_the_model_is_the_same_bytes_and_numpy_reads_it(tmp_path: Path) -> None:
    arrays = {
        "item_factors": np.arange(6, dtype=np.float32).reshape(3, 2),
        "item_bias": np.array([1.5, -2.0, 0.0], dtype=np.float32),
        "mean": np.float64(3.5).reshape(()),
    }
    with _create(tmp_path / "a") as directory:
        directory.write_model(arrays)
        written = (directory.path / MODEL).read_bytes()
    assert written == npz_bytes(dict(reversed(arrays.items())))
    with np.load(io.BytesIO(written), allow_pickle=False) as found:
        assert sorted(found.files) == sorted(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype
            assert found[name].shape == array.shape


def test_an_array_of_objects_is_no_model() -> None:
    with pytest.raises(ValueError, match="pickle"):
        npz_bytes({"a": np.array([{}], dtype=object)})
