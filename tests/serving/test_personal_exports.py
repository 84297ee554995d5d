"""A device's own model as a file: what the run's method would predict for it, from onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from coordinator.cli.entry import execute
from coordinator.engine.run_files import MODEL
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load
from edge.onnx.loading import load_model

SCENARIO = """
format: 2
seed: 4
data:
  source: synthetic-ratings
  users: 30
  items: 90
  ratings_per_user: 12
  features: {kind: synthetic}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedmmf, mask: {kind: one-order}, factors: 4}
rounds: {count: 3, cohort: 20, deadline: 300 s}
evaluation: {every: 3}
"""
LEARNING = {
    "fedrecon": "{algorithm: fedrecon, factors: 4, mask: null}",
    "zero-order": "{mask: {kind: zero-order}}",
    "one-order": "{mask: {kind: one-order}}",
    "two-order": "{mask: {kind: two-order, factors: 2}}",
    "high-order": "{mask: {kind: high-order, width: 3}}",
}


class Silent:
    def on_start(self, name: str, rounds: int | None) -> None: ...

    def on_round(self, summary: Any) -> None: ...

    def on_evaluation(self, round_number: int, values: Any) -> None: ...

    def on_end(self, status: str) -> None: ...


def made_run(folder: Path, learning: str) -> tuple[Path, Any]:
    file = folder / "s.yaml"
    file.write_text(SCENARIO)
    loaded = load(file, [f"learning={learning}"])
    outcome = run_scenario(loaded, target=folder / "run", observer=Silent())
    return outcome.directory, loaded


def run_model(file: Path, **inputs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, inputs)
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("method", list(LEARNING))
def test_it_scores_as_the_device_would(tmp_path: Path, method: str) -> None:
    directory, loaded = made_run(tmp_path, LEARNING[method])
    file = tmp_path / "m.onnx"
    arguments = ["export", str(directory), "--kind", "recommender", "--device", "7", "--top", "5"]
    assert execute([*arguments, "-o", str(file)]) == 0
    workload = assemble(loaded).workload
    assert isinstance(workload, RatingWorkload)
    with np.load(directory / MODEL) as saved:
        state = {name: saved[name] for name in saved.files}
    batch = workload.split.train.gather(workload.clients.users[[7]])
    expected = workload.algorithm.scores(state, batch, np.zeros(1, np.uint64))[0]
    rated = batch.items.astype(np.int64)
    scores, top_items, top_scores = run_model(file, rated=rated)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    expected[rated] = -np.inf
    assert top_items.tolist() == np.argsort(-expected, kind="stable")[:5].tolist()
    np.testing.assert_allclose(top_scores, np.sort(expected)[::-1][:5], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in LEARNING if name != "fedrecon"])
def test_a_mask_alone(tmp_path: Path, method: str) -> None:
    directory, loaded = made_run(tmp_path, LEARNING[method])
    file = tmp_path / "m.onnx"
    assert execute(["export", str(directory), "--kind", "mask", "--device", "7", "-o", str(file)]) == 0
    workload = assemble(loaded).workload
    assert isinstance(workload, RatingWorkload)
    batch = workload.split.train.gather(workload.clients.users[[7]])
    items = np.arange(90)
    expected = workload.algorithm.mask_of(batch, np.array([0, 90]), items)
    (scores,) = run_model(file, items=items)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("method", list(LEARNING))
@pytest.mark.parametrize("device", [True, False])
def test_a_stateless_model_needs_the_ratings_alone(tmp_path: Path, method: str, device: bool) -> None:
    if method in ("two-order", "high-order") and not device:
        return  # refused, see below
    directory, loaded = made_run(tmp_path, LEARNING[method])
    file = tmp_path / "m.onnx"
    whose = ["--device", "7"] if device else []
    assert execute(["export", str(directory), "--kind", "stateless", *whose, "-o", str(file)]) == 0
    workload = assemble(loaded).workload
    assert isinstance(workload, RatingWorkload)
    with np.load(directory / MODEL) as saved:
        state = {name: saved[name] for name in saved.files}
    batch = workload.split.train.gather(workload.clients.users[[7]])
    expected = workload.algorithm.scores(state, batch, np.zeros(1, np.uint64))[0]
    scores, _, _ = run_model(file, items=batch.items.astype(np.int64), ratings=batch.ratings)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)
    again = tmp_path / "again.onnx"
    assert execute(["export", str(directory), "--kind", "stateless", *whose, "-o", str(again)]) == 0
    assert again.read_bytes() == file.read_bytes()
    loaded_file = load_model(file)
    inside = "" if method == "fedrecon" else f"/own/{method}" if device else f"/{method}"
    assert loaded_file.kind == f"stateless{inside}"


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("learning", "arguments", "message"),
    [
        ("{}", ["--kind", "recommender"], "--kind recommender is one device's; name it with --device"),
        (LEARNING["two-order"], ["--kind", "stateless"], "a two-order mask has no closed form"),
        (LEARNING["high-order"], ["--kind", "stateless"], "name a device with --device"),
        ("{}", ["--kind", "stateless", "--device", "30"], "there is no device 30; this fleet has 0 to 29"),
        (
            LEARNING["fedrecon"],
            ["--kind", "stateless", "--device", "30"],
            "there is no device 30; this fleet has 0 to 29",
        ),
        ("{}", ["--kind", "mask", "--device", "30"], "there is no device 30; this fleet has 0 to 29"),
        (LEARNING["fedrecon"], ["--kind", "mask", "--device", "1"], "in runs of fedmmf only"),
    ],
)
def test_what_cannot_be_exported_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], learning: str, arguments: list[str], message: str
) -> None:
    directory, _ = made_run(tmp_path, learning)
    assert execute(["export", str(directory), *arguments, "-o", str(tmp_path / "m.onnx")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m.onnx").exists()
