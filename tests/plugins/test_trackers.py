"""Trackers of experiments: what is read back from them is what the tables of the run hold."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recfleet
from coordinator.cli.entry import execute
from coordinator.results.trackers import points_of, safe_name

SCENARIO = {
    "format": 2,
    "seed": 4,
    "title": "Two of everything",
    "data": {"source": "synthetic-ratings", "users": 30, "items": 40, "ratings_per_user": 8},
    "fleet": {"mix": "enterprise_wifi", "availability": "always_on"},
    "learning": {"algorithm": "fedrecon", "factors": 2},
    "rounds": {"cohort": 10, "deadline": "60 s"},
    "evaluation": {"every": 1, "by": ["activity"], "ranking": {"k": [5]}},
    "thresholds": {
        "round.completed": ["rate == 100%"],
        "round.duration{phase=run}": ["p95 < 1 ns"],
        "model.hr@5": ["last >= 0"],
    },
    "phases": [{"name": "run", "rounds": 3}],
}


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def series_of(run: recfleet.Run) -> dict[str, list[tuple[int, float, float]]]:
    """Return step, time and value of each series, from the tables as any reader of Parquet sees them."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    rounds = run.rounds.to_pydict()
    for column, values in rounds.items():
        if column != "round" and any(isinstance(value, int | float) for value in values):
            found[f"rounds/{column}"] = [
                (number, end_s, float(value))
                for number, end_s, value in zip(rounds["round"], rounds["end_s"], values, strict=True)
                if value is not None and not math.isnan(value)
            ]
    for row in run.evaluations.to_pylist():
        if (row["tag"], row["population"], row["split"]) == ("all", "seen", "test") and row[
            "value"
        ] is not None:
            name = f"evaluations/{row['metric'].replace('@', '_')}"
            found.setdefault(name, []).append((row["round"], row["time_s"], row["value"]))
    return {name: points for name, points in found.items() if points}


def events_of(folder: Path) -> Iterator[Any]:
    """Yield the events of TensorBoard's files in a folder: records of length, checksum, bytes, checksum."""
    proto = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs the extra tensorboard")
    for file in sorted(folder.iterdir()):
        contents = file.read_bytes()
        at = 0
        while at < len(contents):
            (length,) = struct.unpack_from("<Q", contents, at)
            yield proto.Event.FromString(contents[at + 12 : at + 12 + length])
            at += 16 + length


def scalars_of(folder: Path) -> tuple[dict[str, list[tuple[int, float, float]]], dict[str, str]]:
    """Return step, wall time and value of each scalar, and the texts."""
    scalars: dict[str, list[tuple[int, float, float]]] = {}
    texts: dict[str, str] = {}
    for event in events_of(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                scalars.setdefault(value.tag, []).append((event.step, event.wall_time, value.simple_value))
            elif value.tag.endswith("/text_summary"):
                texts[value.tag.partition("/")[0]] = value.tensor.string_val[0].decode()
    return scalars, texts


def check_scalars(run: recfleet.Run, scalars: dict[str, list[tuple[int, float, float]]]) -> None:
    """Check scalars against the tables: steps, time from a common beginning, values as float32."""
    wanted = series_of(run)
    assert {
        "rounds/duration_s",
        "rounds/up_bytes",
        "rounds/loss",
        "evaluations/rmse",
        "evaluations/hr_5",
    } <= set(wanted)
    began = scalars["rounds/duration_s"][0][1] - wanted["rounds/duration_s"][0][1]
    for name, points in wanted.items():
        found = scalars[name]
        assert [step for step, _, _ in found] == [number for number, _, _ in points], name
        assert [value for _, _, value in found] == [float(np.float32(value)) for _, _, value in points], name
        times = np.array([wall for _, wall, _ in found]) - began
        assert np.allclose(times, [time_s for _, time_s, _ in points], atol=1e-5), name
    assert {name for name in scalars if name.startswith("rounds/")} == {
        name for name in wanted if name.startswith("rounds/")
    }


def test_tensorboard_holds_what_the_tables_hold(in_folder: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    run = recfleet.run(SCENARIO, sinks=["tensorboard=live"], out="it")
    (folder,) = (in_folder / "live").iterdir()
    assert folder.name == f"scenario-4-{run.manifest['scenario_hash'][:8]}"
    scalars, texts = scalars_of(folder)
    check_scalars(run, scalars)
    assert "evaluations/rmse.activity.light" in scalars
    assert "| rounds.cohort | 10 |" in texts["settings"]
    assert "| MISSED | round.duration{phase=run}: p95 < 1 ns |" in texts["verdicts"]
    assert "| held | round.completed: rate == 100% |" in texts["verdicts"]
    assert texts["report"] == "finished: it/report.html"


def test_a_run_is_logged_afterwards_as_it_was_live(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    run = recfleet.run(SCENARIO, sinks=["tensorboard=live", "jsonl=live.jsonl"], out="it")
    assert execute(["log", "it", "--to", "tensorboard=later", "--to", "jsonl=later.jsonl"]) == 0
    assert capsys.readouterr().out == "it: given to tensorboard=later\nit: given to jsonl=later.jsonl\n"
    live, later = (scalars_of(next((in_folder / name).iterdir())) for name in ("live", "later"))
    check_scalars(run, later[0])
    assert live[0].keys() == later[0].keys()
    assert live[1] == later[1]
    (first, *rows, last), (first_later, *rows_later, last_later) = (
        [json.loads(line) for line in Path(name).read_text().splitlines()]
        for name in ("live.jsonl", "later.jsonl")
    )
    assert first == first_later
    assert sorted(map(str, rows)) == sorted(map(str, rows_later))
    assert last["end"]["verdicts"] == last_later["end"]["verdicts"]
    assert last["end"]["status"] == last_later["end"]["status"]
    # Another time it is another run of the tracker.
    assert execute(["log", "it", "--to", "tensorboard=later"]) == 0
    assert sorted(path.name.endswith("-2") for path in (in_folder / "later").iterdir()) == [False, True]


@pytest.mark.slow
def test_tensorboard_itself_reads_the_same(in_folder: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    run = recfleet.run(SCENARIO, sinks=["tensorboard=live"], out="it")
    accumulator = reading.EventAccumulator(str(next((in_folder / "live").iterdir())))
    accumulator.Reload()
    scalars = {
        name: [(one.step, one.wall_time, one.value) for one in accumulator.Scalars(name)]
        for name in accumulator.Tags()["scalars"]
    }
    check_scalars(run, scalars)
    assert "_hparams_/session_start_info" in accumulator.summary_metadata


@pytest.mark.slow
@pytest.mark.parametrize("when", ["live", "later"])
def test_mlflow_holds_what_the_tables_hold(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    tracking = pytest.importorskip("mlflow.tracking", reason="needs the extra mlflow")
    store = (in_folder / "store").as_uri()
    if when == "live":
        run = recfleet.run(SCENARIO, sinks=[f"mlflow={store}"], out="it")
    else:
        run = recfleet.run(SCENARIO, out="it")
        assert execute(["log", "it", "--to", f"mlflow={store}"]) == 0
    client = tracking.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("scenario")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == f"scenario-4-{run.manifest['scenario_hash'][:8]}"
    wanted = series_of(run)
    for name, points in wanted.items():
        history = client.get_metric_history(found.info.run_id, name)
        assert [(one.step, one.value) for one in history] == [(step, value) for step, _, value in points], (
            name
        )
        times = [one.timestamp - found.info.start_time for one in history]
        assert np.allclose(times, [1000 * time_s for _, time_s, _ in points], atol=1), name
    assert {name for name in found.data.metrics if name.startswith("rounds/")} == {
        name for name in wanted if name.startswith("rounds/")
    }
    assert found.data.params["rounds.cohort"] == "10"
    assert found.data.params["thresholds.round.completed"] == '["rate == 100%"]'
    tags = found.data.tags
    assert tags["threshold.round.completed.rate.equal_to_100_percent"] == "held: 100%"
    assert tags["threshold.round.duration.phase.run.p95.below_1_ns"].startswith("missed: ")
    assert tags["threshold.model.hr_5.last.at_least_0"].startswith("held: ")
    assert (tags["recfleet.held"], tags["recfleet.status"]) == ("no", "finished")
    assert {one.path for one in client.list_artifacts(found.info.run_id)} >= {
        "report.html",
        "scenario.resolved.yaml",
    }


@pytest.mark.parametrize(
    ("sink", "package", "said"),
    [
        ("mlflow", "mlflow", "needs MLflow: pip install 'recfleet[mlflow]'"),
        ("tensorboard=logs", "tensorboardX", "needs tensorboardX: pip install 'recfleet[tensorboard]'"),
    ],
)
def test_without_its_package_the_extra_is_named_before_anything_runs(
    in_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sink: str,
    package: str,
    said: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert execute(["run", "quickstart", "--sink", sink]) == 2
    assert said in capsys.readouterr().err
    assert list(in_folder.iterdir()) == []


def test_mistakes_of_log_are_named(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["log", "nowhere", "--to", "jsonl=rows.jsonl"]) == 2
    assert "nowhere: no such directory" in capsys.readouterr().err
    assert execute(["log", "nowhere", "--to", "mlfow"]) == 2
    assert "there is no sink 'mlfow'; did you mean 'mlflow'?" in capsys.readouterr().err
    assert execute(["log", "nowhere", "--to", "tensorboard"]) == 2
    assert "name one, 'tensorboard=logs'" in capsys.readouterr().err


def test_a_sink_that_raises_fails_the_log(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recfleet.run(SCENARIO, out="it")
    Path("mine.py").write_text(
        "from coordinator.results.sinks import Sink\n\n\nclass Bad(Sink):\n    name = 'bad'\n\n"
        "    def begin(self, facts):\n        raise OSError('no room')\n",
        encoding="utf-8",
    )
    assert execute(["log", "it", "--to", "bad", "--to", "jsonl=rows.jsonl", "--plugin", "mine.py"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "it: given to jsonl=rows.jsonl\n"
    assert "OSError: no room" in shown.err


def test_names_are_those_that_every_tracker_takes() -> None:
    assert safe_name("ndcg@10/99neg") == "ndcg_10/99neg"
    assert safe_name("recovery@0.5") == "recovery_0.5"
    assert list(points_of("device_rounds", None)) == []
