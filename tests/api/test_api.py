"""Runs, sweeps and scenarios from Python, as a script and a notebook use them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recfleet
from coordinator import api
from edge.core import plugins

SMALL: dict[str, Any] = {
    "format": 2,
    "seed": 3,
    "data": {"source": "synthetic-ratings", "users": 30, "items": 20, "ratings_per_user": np.int64(8)},
    "fleet": {"mix": "enterprise_wifi", "availability": "always_on"},
    "learning": {"algorithm": "fedrecon", "factors": 2},
    "rounds": {"count": 4, "cohort": 8, "deadline": "60 s"},
    "evaluation": {"every": 2},
    "thresholds": {"round.completed": ["rate >= 90%"], "round.duration": ["p95 < 1 ms"]},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_of_the_api_is_in_the_package_of_the_name() -> None:
    assert set(recfleet.__all__) == {*api.__all__, "__version__"}
    assert dir(recfleet) == recfleet.__all__
    assert all(getattr(recfleet, name) is getattr(api, name) for name in api.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        recfleet.runn  # noqa: B018


def test_a_run_has_its_tables_verdicts_and_model() -> None:
    run = recfleet.run(SMALL, out="it")
    assert (run.status, run.held, run.directory) == ("finished", False, Path("it"))
    assert [(one.metric, one.aggregation, one.held) for one in run.thresholds] == [
        ("round.completed", "rate", True),
        ("round.duration", "p95", False),
    ]
    completed, duration = run.thresholds
    assert (completed.value, completed.limit, completed.margin) == (1.0, 0.9, pytest.approx(0.1))
    assert duration.value == np.percentile(run.rounds["duration_s"].to_numpy(), 95)
    assert str(duration).startswith("MISSED round.duration: p95 < 1 ms")
    assert run.rounds["round"].to_pylist() == [1, 2, 3, 4]
    assert run.device_rounds.num_rows == sum(run.rounds["invited"].to_pylist())
    assert set(run.table("evaluations", ["round"])["round"].to_pylist()) == {0, 2, 4}
    assert run.figures["round.completed rate"] == recfleet.Figure(1.0, "event")
    assert json.loads(Path("it/summary.json").read_text())["bytes"] == run.summary["bytes"]
    assert {name: array.shape for name, array in run.model.items()}["item_factors"] == (20, 2)
    assert all(one.num_rows is not None for one in (run.events, run.evaluations, run.inferences, run.faults))
    assert run.manifest["seed"] == 3
    assert run.scenario.hash == recfleet.Scenario.of(SMALL).hash
    assert repr(run) == "<Run 'it': finished, 1 of 2 thresholds held>"
    assert "MISSED round.duration: p95 &lt; 1 ms" in run._repr_html_()
    assert run.report() == Path("it/report.html")
    run.report().unlink()
    assert run.report().read_text().lower().startswith("<!doctype html>")
    assert run.report("elsewhere.html").is_file()


def test_a_run_from_python_is_that_of_the_command_line() -> None:
    from coordinator.cli.entry import execute  # noqa: PLC0415

    assert execute(["run", "quickstart", "--set", "rounds.count=3", "--quiet", "--out", "one"]) in (0, 3)
    recfleet.run("quickstart", set={"rounds.count": 3}, out="other")
    assert execute(["diff", "one", "other"]) == 0


def test_scenarios_are_edited_and_keep_what_they_were() -> None:
    first = recfleet.Scenario.of(SMALL, name="mine")
    second = first.edited({"rounds.cohort": 5, "rounds.deadline": "45 s", "thresholds": None, "seed": 4})
    assert (first.seed, second.seed, first.name, second.name) == (3, 4, "mine", "mine")
    assert "cohort: 8" in first.yaml
    assert "cohort: 5" in second.yaml
    assert "deadline: 45 s" in second.yaml
    assert second.edited({"seed": 3, "rounds": {"cohort": 8, "deadline": "1 min"}}).edited(
        {"thresholds": SMALL["thresholds"]}
    ).hash == first.hash  # fmt: skip
    assert repr(first) == f"<Scenario 'mine', seed 3, hash {first.hash[:8]}>"


@pytest.mark.parametrize("value", ["null", "[a", " x ", '"quoted"', "{", "a=b", "é\n"])
def test_a_text_is_the_same_in_a_dictionary_and_as_a_setting(value: str) -> None:
    mapping = {**SMALL, "title": value}
    assert recfleet.Scenario.of(SMALL).edited({"title": value}).hash == recfleet.Scenario.of(mapping).hash
    assert recfleet.Scenario.of(mapping).loaded.scenario.title == value


def test_a_dictionary_extends_a_file(folder: Path) -> None:
    (folder / "base.yaml").write_text(recfleet.Scenario.of(SMALL).yaml)
    made = recfleet.Scenario.of({"extends": folder / "base.yaml", "rounds": {"cohort": 6}})
    assert made.hash == recfleet.Scenario.of(SMALL).edited({"rounds.cohort": 6}).hash


def test_errors_have_the_place_of_each_problem() -> None:
    wrong = {**SMALL, "learning": {"algorithm": "fedrecn"}, "rounds": {**SMALL["rounds"], "deadline": 45}}
    with pytest.raises(recfleet.ScenarioError) as raised:
        recfleet.Scenario.of(wrong)
    assert [".".join(map(str, one.path)) for one in raised.value.problems] == [
        "learning.algorithm",
        "rounds.deadline",
    ]
    assert "did you mean 'fedrecon'?" in str(raised.value)
    assert "write '45 s'" in str(raised.value)
    with pytest.raises(recfleet.ScenarioError, match=r"--set:1:.*rounds\.cohort"):
        recfleet.run(SMALL, set={"rounds.cohort": -1})


@pytest.mark.parametrize(
    ("mapping", "where"),
    [
        ({"rounds": {"cohort": {1, 2}}}, "rounds.cohort: set is none of the types"),
        ({"rounds": {3: 4}}, "rounds: 3 is no key"),
        ({"a": [b"x"]}, r"a\[0\]: bytes"),
    ],
)
def test_a_value_that_no_file_could_hold_is_refused(mapping: dict[str, Any], where: str) -> None:
    with pytest.raises(TypeError, match=where):
        recfleet.Scenario.of(mapping)


def test_callbacks_see_rounds_and_evaluations_and_end_a_run() -> None:
    rounds: list[int] = []
    evaluations: list[int] = []

    def on_round(row: Mapping[str, Any]) -> bool:
        rounds.append(row["round"])
        return row["round"] < 3

    run = recfleet.run(SMALL, on_round=on_round, on_evaluation=lambda number, _: evaluations.append(number))
    assert (rounds, evaluations) == ([1, 2, 3], [0, 2])
    assert (run.status, run.held, run.thresholds) == ("interrupted", False, ())
    assert run.rounds["round"].to_pylist() == [1, 2, 3]


def test_what_a_callback_raises_passes_through_and_the_rounds_stay() -> None:
    def broken(row: Mapping[str, Any]) -> None:
        if row["round"] == 2:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        recfleet.run(SMALL, out="it", on_round=broken)
    left = recfleet.open_run("it.partial")
    assert (left.status, left.rounds.num_rows) == ("failed", 2)


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    recfleet.run(SMALL, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "round 4/4: 8 completed" in shown.err


def test_a_finished_run_is_replaced_by_an_equal_one_alone() -> None:
    first, again = recfleet.run(SMALL), recfleet.run(SMALL)
    assert first.directory == again.directory == Path("runs") / f"scenario-3-{again.scenario.hash[:8]}"
    recfleet.run(SMALL, out="it")
    with pytest.raises(recfleet.RunDirectoryError, match="it"):
        recfleet.run(SMALL, seed=5, out="it")
    assert recfleet.run(SMALL, seed=5, out="it", overwrite=True).manifest["seed"] == 5


def test_in_a_running_loop_a_run_leaves_the_loop_alone() -> None:
    async def notebook() -> tuple[str, set[str]]:
        threads: set[str] = set()
        run = recfleet.run(SMALL, on_round=lambda _: threads.add(threading.current_thread().name))
        return run.status, threads

    status, threads = asyncio.run(notebook())
    assert status == "finished"
    assert all(name.startswith("recfleet-run") for name in threads)


def test_ctrl_c_in_a_notebook_ends_the_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, struck = threading.Event(), []
    wait = api.Future.result

    def interrupted(future: Any, timeout: float | None = None) -> Any:
        if not struck:
            assert begun.wait(60)
            struck.append(True)
            raise KeyboardInterrupt
        return wait(future, timeout)

    async def notebook() -> recfleet.Run:
        monkeypatch.setattr(api.Future, "result", interrupted)
        return recfleet.run(SMALL, set={"rounds.count": 100_000}, on_round=lambda _: begun.set())

    run = asyncio.run(notebook())
    assert run.status == "interrupted"
    assert 0 < run.rounds.num_rows < 100_000


def test_runs_side_by_side_are_those_alone() -> None:
    async def both() -> list[recfleet.Run]:
        made = [recfleet.run_async(SMALL, seed=seed, out=f"at-once-{seed}") for seed in (5, 6, 7)]
        return await asyncio.gather(*made)

    for run in asyncio.run(both()):
        alone = recfleet.run(SMALL, seed=run.manifest["seed"])
        assert run.manifest["digest"] == alone.manifest["digest"]


def test_a_cancelled_run_ends_in_order() -> None:
    async def cancelled() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(
            recfleet.run_async(
                SMALL,
                set={"rounds.count": 100_000},
                out="it",
                on_round=lambda _: loop.call_soon_threadsafe(begun.set),
            )
        )
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert recfleet.open_run("it.partial").status == "interrupted"


def test_a_sweep_gives_cells_a_table_and_runs() -> None:
    swept = {**SMALL, "sweep": {"rounds.cohort": [4, 8], "repeat": 2}, "thresholds": {}}
    ended: list[tuple[int, int, str]] = []
    found = recfleet.sweep(
        swept, jobs=2, on_result=lambda cell, seed, result: ended.append((cell.number, seed, result.status))
    )
    assert sorted(ended) == [(1, 3, "held"), (1, 4, "held"), (2, 3, "held"), (2, 4, "held")]
    assert found.held
    assert not found.interrupted
    assert found.table.num_rows == 2
    assert [(dict(settings), seed, run.rounds.num_rows) for settings, seed, run in found.runs()] == [
        ({"rounds.cohort": cohort}, seed, 4) for cohort in ("4", "8") for seed in (3, 4)
    ]
    assert repr(found) == "<SweepResult 'runs/scenario-sweep': 2 cells, 4 finished runs>"
    assert "rounds.cohort" in found._repr_html_()
    with pytest.raises(ValueError, match="no section 'sweep'"):
        recfleet.sweep(SMALL)


def test_a_sweep_in_another_thread_sets_no_signal_handlers() -> None:
    swept = {**SMALL, "sweep": {"rounds.cohort": [4]}, "thresholds": {}}
    found: list[recfleet.SweepResult] = []
    thread = threading.Thread(target=lambda: found.append(recfleet.sweep(swept, jobs=1)))
    thread.start()
    thread.join()
    assert found[0].held


METHOD = """
from typing import Literal
import numpy as np
from pydantic import BaseModel, ConfigDict
from edge.learning.base import Recommender
from edge.learning.updates import UpdateBatch

class MeansSettings(BaseModel):
    \"\"\"The mean of all ratings plus a number.\"\"\"
    model_config = ConfigDict(frozen=True, extra="forbid")
    algorithm: Literal["means"]

class Means(Recommender):
    \"\"\"Predicts the mean.\"\"\"
    Settings = MeansSettings
    def initial_state(self, seed):
        return {"mean": np.full(1, PLUS, np.float32)}
    def client_update(self, state, batch, client_keys, clients=None, steps=None, local=None):
        n = len(batch.indptr if clients is None else clients) - 1
        return UpdateBatch.of({"mean": np.zeros((n, 1), np.float32)}, np.ones(n, np.int64), np.zeros(n))
    def predict(self, state, support, query, client_keys, local=None):
        return np.full(len(query.items), self.problem.rating_mean, np.float32) + state["mean"]
"""


def test_a_plugin_file_that_has_changed_is_loaded_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "means.py"
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with plugins.scope():
        for plus in ("1", "2"):
            # As long as before, and within the same second: what bytecode would be taken for.
            file.write_text(METHOD.replace("PLUS", plus))
            os.utime(file, (1e9, 1e9))
            run = recfleet.run({**SMALL, "learning": {"algorithm": "means"}}, plugins=[file])
            assert run.model["mean"].tolist() == [float(plus)]
            assert run.manifest["plugins"][0]["name"] == "means"
        file.write_text("x = (")
        with pytest.raises(recfleet.PluginError, match=r"means.py:1"):
            recfleet.load_plugins(file)
    with pytest.raises(TypeError, match="plugins are files or modules"):
        recfleet.load_plugins(SMALL)  # type: ignore[arg-type]


def test_the_real_clock_runs_from_python_too() -> None:
    run = recfleet.run(SMALL, set={"rounds.count": 1, "thresholds": None}, clock="real", out="it")
    assert (run.status, run.manifest["clock"]) == ("finished", "real")
    with pytest.raises(ValueError, match="'virtual' or 'real'"):
        recfleet.run(SMALL, clock="wall")  # type: ignore[arg-type]


def test_a_directory_that_is_no_run_is_refused(folder: Path) -> None:
    with pytest.raises(recfleet.RunFormatError, match="no such directory"):
        recfleet.open_run(folder / "nowhere")
