"""`recfleet export` of runs of every method: what a device's file scores, and what is refused, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from coordinator.cli.entry import execute
from coordinator.engine.run_files import MODEL
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.scenario.load import load
from edge.onnx.loading import load_model

SCENARIO = """
format: 2
seed: 4
data:
  {source: movielens-100k, path: HERE/u.data, features: {kind: movielens}, split: {kind: leave-one-out}}
fleet: {mix: global_android_2024, availability: always_on}
learning: LEARNING
rounds: {count: 2, cohort: 20, deadline: 300 s, quorum: 1}
evaluation: {every: 2, ranking: {k: [3], negatives: 9}}
"""
NETWORK = "gmf_factors: 4, mlp_factors: 6, layers: [8, 5], user_learning_rate: 1"
STEPS = "{method: gradient-steps, steps: 2, learning_rate: 0.1}"
SHARP = (
    "reconstruction: {method: gradient-steps}, client: {method: gradient-steps, steps: 1, learning_rate: 1}"
)
EXPORTED = {
    "fedncf": f"{{algorithm: fedncf, user_embeddings: reconstructed, {NETWORK}}}",
    "fedavg-mf": "{algorithm: fedavg-mf, factors: 4}",
    "federated-context": "{algorithm: federated-context, model: {kind: factorization-machine, factors: 3}}",
    "local-context": "{algorithm: local-context, model: {kind: one-order}}",
    "lipm": f"{{algorithm: lipm, factors: 4, fine_tuning: {STEPS}}}",
    "pfedme": "{algorithm: pfedme, factors: 4}",
    "blur": "{algorithm: blur, factors: 4, norm_bound: 1}",
    "steps": "{algorithm: fedrecon, factors: 4, reconstruction: {method: gradient-steps}}",
    "fedrecgel": f"{{algorithm: fedrecgel, base: {{algorithm: fedrecon, factors: 4, {SHARP}}}}}",
    "fedrecgel of a network": "{algorithm: fedrecgel, base: "
    f"{{algorithm: fedncf, user_embeddings: reconstructed, {NETWORK}}}}}",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    rated = [(user, item) for user in range(1, 31) for item in rng.choice(60, 12, replace=False) + 1]
    lines = [f"{user}\t{item}\t{rng.integers(1, 6)}\t{rng.integers(1, 10**6)}\n" for user, item in rated]
    (tmp_path / "u.data").write_text("".join(lines))
    genres = rng.integers(0, 2, (60, 19)).tolist()
    films = [f"{item}|Film {item}|||x|{'|'.join(map(str, row))}\n" for item, row in enumerate(genres, 1)]
    (tmp_path / "u.item").write_text("".join(films))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made_run(learning: str, data: str = "") -> Any:
    text = SCENARIO.replace("LEARNING", learning).replace("HERE", str(Path.cwd()))
    Path("s.yaml").write_text(text.replace("{source: movielens-100k", f"{{{data}source: movielens-100k"))
    assert execute(["run", "s.yaml", "--quiet", "--out", "run"]) == 0
    return load(Path("s.yaml"))


def exported(*arguments: str) -> int:
    return execute(["export", "run", *arguments, "-o", "m.onnx"])


ZEROS = "negatives: 2, "


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["ones and zeros", *EXPORTED])
def test_a_devices_file_scores_as_its_method_does(folder: Path, name: str) -> None:
    zeros = name == "ones and zeros"
    loaded = made_run(
        "{algorithm: fedrecon, factors: 4}" if zeros else EXPORTED[name], ZEROS if zeros else ""
    )
    assert exported("--kind", "recommender", "--device", "7", "--top", "5") == 0
    workload = assemble(loaded).workload
    assert isinstance(workload, RatingWorkload)
    with np.load(Path("run") / MODEL) as saved:
        state = {entry: saved[entry] for entry in saved.files}
    users = workload.clients.users[[7]]
    batch = workload.gather(workload.split.train, users, np.zeros(1, np.uint64))
    rows = workload.rows_of(users, state)
    (expected,) = workload.algorithm.scores(state, batch, np.zeros(1, np.uint64), rows)
    rated = workload.split.train.gather(users).items.astype(np.int64)
    session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    scores, top_items, top_scores = session.run(None, {"rated": rated})
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    expected[rated] = -np.inf
    assert not np.isin(top_items, rated).any()
    np.testing.assert_allclose(expected[top_items], np.sort(expected)[::-1][:5], rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(top_scores, scores[top_items])
    model = load_model(Path("m.onnx"))
    assert model.info.titles is not None
    assert bool(model.info.feature_names) == name.endswith("context")
    (folder / "again.onnx").write_bytes((folder / "m.onnx").read_bytes())
    assert exported("--kind", "recommender", "--device", "7", "--top", "5") == 0
    assert (folder / "again.onnx").read_bytes() == (folder / "m.onnx").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "learning",
    [
        "{algorithm: blur, factors: 4, norm_bound: 1}",
        "{algorithm: lipm, factors: 4}",
        "{algorithm: fedavg-mf, factors: 4, fine_tuning: {method: ridge}}",
    ],
)
def test_whoever_is_fitted_by_ridge_needs_the_ratings_alone(folder: Path, learning: str) -> None:
    loaded = made_run(learning)
    assert exported("--kind", "stateless") == 0
    workload = assemble(loaded).workload
    assert isinstance(workload, RatingWorkload)
    with np.load(Path("run") / MODEL) as saved:
        state = {entry: saved[entry] for entry in saved.files}
    batch = workload.gather(workload.split.train, workload.clients.users[[7]], np.zeros(1, np.uint64))
    (expected,) = workload.algorithm.scores(state, batch, np.zeros(1, np.uint64))
    session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    scores, *_ = session.run(None, {"items": batch.items.astype(np.int64), "ratings": batch.ratings})
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)


DEVICE = ["--kind", "recommender", "--device", "3"]
HISTORY = ["--kind", "stateless"]
REFUSED = {
    "kept, fedncf": (
        f"{{algorithm: fedncf, {NETWORK}}}",
        DEVICE,
        "or write 'user_embeddings: reconstructed'",
    ),
    "kept, fedmf": ("{algorithm: fedmf}", DEVICE, "learning.user_factors is 'persistent': they stay on the"),
    "kept, fedrecgel": (
        f"{{algorithm: fedrecgel, base: {{algorithm: fedncf, {NETWORK}}}}}",
        DEVICE,
        "learning.base.user_embeddings is 'persistent'",
    ),
    "kept, of anyone": (
        "{algorithm: fedrec}",
        HISTORY,
        "A section 'inference' lets devices run their models",
    ),
    "no factors": (EXPORTED["fedncf"], HISTORY, "fedncf has no factors that a history could be fitted to"),
    "features": (EXPORTED["local-context"], HISTORY, "name a device: --kind recommender --device"),
    "shared rows": (EXPORTED["pfedme"], HISTORY, "pfedme learns a row of each user, and fits none to a"),
    "tuned by steps": (
        f"{{algorithm: fedavg-mf, fine_tuning: {STEPS}}}",
        HISTORY,
        "learning.fine_tuning.method is 'gradient-steps'; a stateless export needs 'ridge'",
    ),
    "tuned items": (EXPORTED["lipm"], HISTORY, "lipm tunes the items to a history, which has no closed"),
    "steps": (EXPORTED["fedrecgel"], HISTORY, "learning.base.reconstruction.method is 'gradient-steps'"),
    "no mask": (EXPORTED["blur"], ["--kind", "mask", "--device", "3"], "in runs of fedmmf only"),
    "no device": (EXPORTED["fedavg-mf"], [*DEVICE[:3], "30"], "no device 30; this fleet has 0 to 29"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_exported_is_refused_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    learning, arguments, message = REFUSED[name]
    made_run(learning)
    assert exported(*arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not Path("m.onnx").exists()


def test_a_history_of_ones_alone_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run("{algorithm: fedrecon, factors: 4}", ZEROS)
    assert exported(*HISTORY) == 2
    assert "with data.negatives a device draws zeros beside its history" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_of_other_ratings_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(EXPORTED["pfedme"])
    lines = (folder / "u.data").read_text().splitlines(keepends=True)
    (folder / "u.data").write_text("".join(line for line in lines if line.split()[1] != "7"))
    assert exported(*DEVICE) == 2
    shown = capsys.readouterr().err
    assert "model.npz: item_bias is float32 [60], for these ratings it would be float32 [59]" in shown
    with np.load(Path("run") / MODEL) as saved:
        arrays = {name: saved[name] for name in saved.files if name != "user_table"}
    np.savez(Path("run") / MODEL, **arrays)
    (folder / "u.data").write_text("".join(lines))
    assert exported(*DEVICE) == 2
    assert "user_table is missing, for these ratings it would be float32 [30, 5]" in capsys.readouterr().err


def test_a_method_that_ranks_nothing_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.yaml").write_text(
        "format: 2\nseed: 1\ndata: {source: synthetic-regression, clients: 10}\n"
        "fleet: {mix: global_android_2024, availability: always_on}\n"
        "learning: {algorithm: linear-regression}\nrounds: {count: 1, cohort: 5, deadline: 300 s}\n"
    )
    assert execute(["run", "s.yaml", "--quiet", "--out", "run"]) == 0
    assert exported(*DEVICE) == 2
    shown = capsys.readouterr().err
    assert "learning.algorithm is 'linear-regression', which ranks no items" in shown
    assert "exported are fedrecon, fedmmf" in shown
