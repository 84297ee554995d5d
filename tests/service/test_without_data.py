"""Services that hold no ratings: devices bring theirs, and measure the model on them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_helpers import HANG_S, SMALL, Silent, loaded_text, rows_of

from coordinator.engine.assembly import Assembly
from coordinator.engine.evaluation import RatingEvaluator
from coordinator.engine.workload import RemoteWorkload
from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.run.without_data import assemble_without_data
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario, load
from coordinator.service.conducting import RealTime, assembled
from coordinator.service.local_devices import LocalDevices

DEVICES = 200
ROUNDS = 10
ON_DEVICES = "evaluation={every: 2, on: devices, cohort: 12, ranking: {k: [5]}}"
SECURE = "secure_aggregation={mode: secagg, clip: 1, corrupt: 0%, dropout: 30%}"

FILE = f"""
format: 2
title: ratings on devices
seed: 5
data:
  source: table
  path: ratings.csv
  public: {{clients: {DEVICES}, items: 60}}
  mean_query: {{range: [1, 5], cohort: 100}}
fleet: {{mix: global_android_2024, availability: always_on}}
connection: {{keep_alive: true}}
learning: {{algorithm: fedrecon, factors: 4, learning_rate: 0.1, upload: dense, subtract_mean: true}}
rounds: {{count: {ROUNDS}, cohort: 20, over_select: 110%, deadline: 60 s}}
secure_aggregation: {{mode: secagg-plus, clip: 1}}
evaluation: {{every: 5, on: devices, cohort: 60, ranking: {{k: [10]}}}}
"""

TRACED = """
import sys
seen = open(sys.argv[1], "w")
def note(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "subprocess.Popen", "shutil.copyfile"):
        print(arguments[0], file=seen, flush=True)
sys.addaudithook(note)
from coordinator.cli.entry import execute
sys.exit(execute(sys.argv[2:]))
"""
"""Runs the command line, and writes down every path that Python is asked to open."""


def write_ratings(file: Path, users: int, items: int) -> None:
    """Write ratings of which every user has a dozen or more."""
    rng = np.random.default_rng(1)
    taste, kinds = rng.normal(size=(users, 2)), rng.normal(size=(items, 2))
    lines = ["user,item,rating"]
    for user in range(users):
        rated = np.union1d(rng.choice(items, 12, replace=False), [user % items])
        stars = np.clip(np.rint(3.5 + taste[user] @ kinds[rated].T + rng.normal(0, 0.3, len(rated))), 1, 5)
        lines += [f"{user},{item},{star:g}" for item, star in zip(rated, stars, strict=True)]
    file.write_text("\n".join(lines) + "\n")


def free_metrics(outcome: RunOutcome | Path, assembly: Assembly) -> dict[str, float]:
    """Return what a simulator measures of the final model on the devices that have measured it last."""
    directory = outcome if isinstance(outcome, Path) else outcome.directory
    rows = open_run(directory).read("device_evaluations").to_pylist()
    last = max(row["round"] for row in rows)
    devices = np.array([r["device"] for r in rows if r["round"] == last and r["outcome"] == "completed"])
    evaluator: Any = assembly.evaluator
    workload: Any = assembly.workload
    assert isinstance(evaluator, RatingEvaluator)
    state = dict(np.load(directory / "model.npz"))
    sums = evaluator.sums_of(np.sort(workload.clients.users[devices]), state).sum(axis=0)
    return {value.metric: value.value for value in evaluator.metrics.values(sums, len(devices), "test")}


def free_mean(directory: Path, assembly: Assembly) -> float:
    """Return the mean training rating of the devices that were asked for it, as a simulator has it."""
    rows = open_run(directory).read("device_evaluations").to_pylist()
    devices = np.array([row["device"] for row in rows if row["round"] < 0 and row["outcome"] == "completed"])
    workload: Any = assembly.workload
    ratings = workload.split.train.gather(np.sort(workload.clients.users[devices])).ratings
    return float(ratings.astype(np.float64).mean())


def measured(directory: Path) -> dict[str, float]:
    rows = open_run(directory).read("evaluations").to_pylist()
    last = max(row["round"] for row in rows)
    return {row["metric"]: row["value"] for row in rows if row["round"] == last}


def serve_here(scenario: LoadedScenario, target: Path, **how: Any) -> tuple[RunOutcome, Assembly]:
    """Serve without data, to devices of this process that have it; return what the devices have, too."""
    theirs = assemble(scenario)

    @asynccontextmanager
    async def company(url: str, _loaded: LoadedScenario, _assembly: Assembly) -> AsyncIterator[None]:
        devices = LocalDevices(url, range(theirs.fleet.n), shaped=False, known=(scenario, theirs))
        async with asyncio.TaskGroup() as group:
            group.create_task(devices.run(), name="devices")
            yield

    assembly = assembled(scenario, None, with_data=False)
    assert isinstance(assembly.workload, RemoteWorkload)
    conductor = RealTime(wait_for=theirs.fleet.n, company=company, **how)
    outcome = run_assembled(scenario, assembly, target=target, observer=Silent(), conductor=conductor)
    return outcome, theirs


@pytest.mark.parametrize("settings", [(), (SECURE,)], ids=["in the clear", "secure sum"])
@pytest.mark.few(1)
def test_what_devices_measure_is_what_a_simulator_measures_on_them(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    scenario = loaded_text(tmp_path, SMALL, (ON_DEVICES, *settings))
    outcome, theirs = serve_here(scenario, tmp_path / "run")
    assert [row["outcome"] for row in rows_of(outcome, "rounds")] == ["completed"] * 3
    evaluations = rows_of(outcome, "evaluation_rounds")
    assert [row["round"] for row in evaluations] == [0, 2, 3]
    # Whoever still waits for the receipt of a round is not asked.
    assert all(12 >= row["completed"] == row["invited"] >= 6 for row in evaluations)
    assert all(row["duration_s"] > 0 and row["up_bytes"] > 0 < row["down_bytes"] for row in evaluations)
    found, free = measured(outcome.directory), free_metrics(outcome, theirs)
    assert found.keys() == free.keys() >= {"rmse", "mae", "ndcg@5"}
    for metric, value in free.items():
        assert found[metric] == pytest.approx(value, rel=1e-6, abs=1e-6), metric
    # What a device reported of its examples in the clear is what it has; under a sum nobody knows.
    trained = [row for row in rows_of(outcome, "device_rounds") if row["outcome"] == "completed"]
    held = theirs.workload.held(np.array([row["device"] for row in trained]))
    expected = [None] * len(trained) if settings else held.tolist()
    assert [row["examples"] for row in trained] == expected


@pytest.mark.parametrize("settings", [(), (SECURE,)], ids=["in the clear", "secure sum"])
@pytest.mark.few(1)
def test_devices_say_the_mean_that_nobody_has_stated(tmp_path: Path, settings: tuple[str, ...]) -> None:
    query = ("data.mean_query={range: [1, 5], cohort: 12}", "learning.subtract_mean=true")
    scenario = loaded_text(tmp_path, SMALL, (*query, ON_DEVICES, "rounds.count=1", *settings))
    outcome, theirs = serve_here(scenario, tmp_path / "run")
    free = free_mean(outcome.directory, theirs)
    found = open_run(outcome.directory).manifest["rating_mean"]
    assert found["value"] == pytest.approx(free, abs=1e-6)
    assert (found["from"], found["devices"]) == ("devices", 12)
    assert np.load(outcome.directory / "model.npz")["rating_mean"] == np.float32(found["value"])


def test_noise_of_devices_is_on_what_they_measure(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    noise = "privacy={mechanism: local-gaussian, clip_norm: 0.5, noise_multiplier: 1, delta: 1e-5}"
    settings = (ON_DEVICES, noise, "learning.weighting=uniform", "rounds.count=1")
    outcome, theirs = serve_here(loaded_text(tmp_path, SMALL, settings), tmp_path / "run")
    first, last = rows_of(outcome, "evaluation_rounds")
    assert 0 < first["epsilon"] < last["epsilon"]
    assert measured(outcome.directory)["ndcg@5"] != pytest.approx(free_metrics(outcome, theirs)["ndcg@5"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("data.public=null",), "data: without the data: how many devices and items there are"),
        (("data.mean_query=null",), "data.public: without the data: this method begins with"),
        (("data.mean_query.cohort=201",), "data.mean_query.cohort: 222 devices would be invited, but"),
        (("rounds.cohort=190",), "rounds.cohort: without the data: 209 devices would be invited"),
        (("inference={devices: 5}", "secure_aggregation=null"), "inference: without the data: devices'"),
    ],
)  # fmt: skip
def test_what_needs_the_ratings_is_refused_with_the_reason(
    tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    (tmp_path / "s.yaml").write_text(FILE)
    with pytest.raises(ScenarioError) as refused:
        assemble_without_data(load(tmp_path / "s.yaml", settings, data_here=False))
    assert message in str(refused.value)


def test_a_mean_that_no_model_brings_to_the_devices_is_refused(tmp_path: Path) -> None:
    query = ("data.mean_query={range: [1, 5]}", "data.features={kind: synthetic}")
    local = "learning={algorithm: local-context, model: {kind: one-order}}"
    nothing_of_the_other = ("factors", "learning_rate", "upload")
    scenario = loaded_text(
        tmp_path, SMALL, (*query, local, *(f"learning.{key}=null" for key in nothing_of_the_other))
    )
    with pytest.raises(ScenarioError, match=r"data\.mean_query: on the real clock: devices of 'local"):
        assembled(scenario, None)


def test_devices_with_other_data_than_is_said_publicly_refuse(tmp_path: Path) -> None:
    write_ratings(tmp_path / "ratings.csv", 60, 60)
    (tmp_path / "s.yaml").write_text(FILE)
    with pytest.raises(ScenarioError, match=r"data\.public\.clients: 200 is not what the data here has: 60"):
        assemble(load(tmp_path / "s.yaml"))


@contextmanager
def traced_service(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve in a process of its own, whose opened files are written down; give it and its URL."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", TRACED, "opened.txt", "serve", "s.yaml", "--port", "0", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = []
        try:
            for line in process.stderr:
                said.append(line)
                found = re.search(r"listening at (\S+);", line)
                if found:
                    yield process, found[1]
                    return
            pytest.fail("the service ended before it listened: " + "".join(said))
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.slow
def test_a_service_opens_no_ratings_and_its_devices_measure_the_model(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "service", tmp_path / "devices"
    here.mkdir()
    elsewhere.mkdir()
    (here / "s.yaml").write_text(FILE)
    write_ratings(elsewhere / "ratings.csv", DEVICES, 60)
    arguments = ("--out", "run", "--wait-for", str(DEVICES), "--quiet")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with traced_service(here, *arguments) as (process, url):
        joined = subprocess.run(
            [sys.executable, "-m", "coordinator.cli", "device", url, "--count", str(DEVICES), "--no-shape",
             "--data", "ratings.csv", "--memory", "memory"],
            cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        _, errors = process.communicate(timeout=HANG_S)
    assert (joined.returncode, joined.stderr) == (0, "")
    assert process.returncode == 0, errors

    opened = (here / "opened.txt").read_text()
    assert "s.yaml" in opened
    assert "ratings.csv" not in opened
    assert str(elsewhere) not in opened

    directory = here / "run"
    tables = open_run(directory)
    assert tables.read("rounds")["outcome"].to_pylist() == ["completed"] * ROUNDS
    query, *evaluations = tables.read("evaluation_rounds").to_pylist()
    assert [row["round"] for row in (query, *evaluations)] == [-3, 0, 5, 10]
    assert 90 <= query["completed"] == query["summed_updates"] == tables.manifest["rating_mean"]["devices"]
    assert all(row["completed"] >= 55 and row["summed_updates"] == row["completed"] for row in evaluations)
    assert all(row["duration_s"] > 0 and row["up_bytes"] > 0 < row["down_bytes"] for row in evaluations)
    assert tables.manifest["data"] == {"clients": DEVICES, "items": 60, "split": "ratio"}
    theirs = assemble(load(here / "s.yaml", (f"data.path={elsewhere / 'ratings.csv'}",)))
    assert tables.manifest["rating_mean"]["value"] == pytest.approx(free_mean(directory, theirs), abs=1e-6)
    found, free = measured(directory), free_metrics(directory, theirs)
    assert found.keys() == free.keys() >= {"rmse", "hr@10"}
    for metric, value in free.items():
        assert found[metric] == pytest.approx(value, rel=1e-6, abs=1e-6), metric
