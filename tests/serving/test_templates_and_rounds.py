from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from serving_models import (
    KINDS,
    WIDTH,
    check_parity,
    features_for,
    info_for,
    item_model,
    mask_weights,
    weight_shapes,
)

from edge.core.errors import ExportError, ModelFileError
from edge.onnx.formulas import mask_scores
from edge.onnx.mask_graph import MaskKind, mask_model
from edge.onnx.own_masks import Masks
from edge.onnx.recommenders import recommender_model
from edge.onnx.score_graphs import Factorizations, UserModels
from edge.onnx.session import OnnxSession, run_round
from edge.onnx.templates import mask_template, recommender_template

ROOT = Path(__file__).resolve().parents[2]
N_ITEMS = 30


def info_of(kind: MaskKind | None):
    return info_for(N_ITEMS, 0 if kind in (None, "zero-order") else WIDTH)


def stacked_weights(rng: np.random.Generator, kind: MaskKind, devices: int):
    each = [mask_weights(rng, kind) for _ in range(devices)]
    return each, {name: np.stack([weights[name] for weights in each]) for name in each[0]}


@pytest.mark.parametrize("kind", KINDS)
def test_patched_masks_have_the_bytes_of_built_ones(kind: MaskKind) -> None:
    rng = np.random.default_rng(0)
    features, info = features_for(rng, kind, N_ITEMS), info_of(kind)
    template = mask_template(kind, weight_shapes(kind), info, features=features)
    each, stacked = stacked_weights(rng, kind, 5)
    built = [mask_model(kind, weights, info, features=features) for weights in each]
    assert list(template.patched_all(stacked)) == built
    assert len(set(built)) == 5


def recommenders(rng: np.random.Generator, kind: MaskKind | None, devices: int) -> Factorizations:
    users = UserModels(
        rng.normal(size=(devices, 4)).astype(np.float32), rng.normal(size=devices).astype(np.float32)
    )
    items = item_model(rng, N_ITEMS)
    if kind is None:
        return Factorizations(items, users, None)
    _, weights = stacked_weights(rng, kind, devices)
    return Factorizations(items, users, Masks(kind, weights, features_for(rng, kind, N_ITEMS)))


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_patched_recommenders_have_the_bytes_of_built_ones(kind: MaskKind | None) -> None:
    models, info = recommenders(np.random.default_rng(1), kind, 3), info_of(kind)
    patched = recommender_template(models, info, top=5).patched_all(models.own())
    built = [recommender_model(models.part(slice(row, row + 1)), info, top=5) for row in range(3)]
    assert list(patched) == built
    assert len(set(built)) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": np.zeros((2, 6), np.float32)}, r"weights is float32 \[devices, …\[7\]\]"),
        ({"weights": np.zeros((2, 7))}, "not float64"),
        ({"weights": np.zeros((3, 7), np.float32)}, "weights of 2 and 3 devices"),
        ({"intercept": np.array([0, np.inf], np.float32)}, "intercept is not finite"),
        ({"other": np.zeros((2, 7), np.float32)}, "takes intercept, weights, not intercept, other, weights"),
    ],
)
def test_weights_that_do_not_fit_a_template_are_refused_at_once(change, message: str) -> None:
    template = mask_template("one-order", weight_shapes("one-order"), info_of("one-order"), features=None)
    _, stacked = stacked_weights(np.random.default_rng(0), "one-order", 2)
    with pytest.raises(ExportError, match=message):
        template.patched_all({**stacked, **change})


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_in_one_session_equals_the_formula(kind: MaskKind) -> None:
    rng = np.random.default_rng(2)
    features = features_for(rng, kind, N_ITEMS)
    each, stacked = stacked_weights(rng, kind, 6)
    model = mask_model(kind, each[0], info_of(kind), features=features, weights_as_inputs=True)
    found = run_round(OnnxSession(model), stacked, shared={"items": np.arange(N_ITEMS)})
    expected = np.array([mask_scores(kind, weights, features, N_ITEMS) for weights in each])
    np.testing.assert_allclose(mask_scores(kind, stacked, features, N_ITEMS), expected, rtol=1e-12)
    check_parity(expected, found.outputs["scores"])
    assert found.latency_s.shape == (6,)
    assert (found.latency_s > 0).all()
    assert len(set(found.opening_s.tolist())) == len(set(found.memory_bytes.tolist())) == 1


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_one_session_for_all_gives_what_a_file_for_each_gives(kind: MaskKind | None) -> None:
    models, info = recommenders(np.random.default_rng(3), kind, 5), info_of(kind)
    rated = (
        np.array([0, 3, 3, 4, 8, 8 + N_ITEMS]),
        np.concatenate([[0, 5, 9, 2, 1, 2, 3, 4], range(N_ITEMS)]),
    )
    template = recommender_template(models, info, top=4)
    alone = run_round(template.patched_all(models.own()), {}, ragged={"rated": rated})
    graph = recommender_model(models, info, top=4, weights_as_inputs=True)
    together = run_round(OnnxSession(graph), models.own(), shared=models.shared(), ragged={"rated": rated})
    assert len(set(alone.opening_s.tolist())) == 5
    for name in ("scores", "top_items", "top_scores"):
        np.testing.assert_allclose(together.outputs[name], alone.outputs[name], rtol=1e-5, atol=1e-5)
    check_parity(models.formula(), together.outputs["scores"])
    assert together.outputs["top_items"][4].tolist() == [-1] * 4
    assert not np.isin(together.outputs["top_items"][0], [0, 5, 9]).any()


def test_inputs_of_another_number_of_devices_are_refused() -> None:
    rng = np.random.default_rng(0)
    _, stacked = stacked_weights(rng, "zero-order", 3)
    template = mask_template("zero-order", {"mean": ()}, info_of("zero-order"), features=None)
    session = OnnxSession(*template.patched_all({"mean": np.zeros(1, np.float32)}))
    lists = (np.arange(3), np.arange(2))
    with pytest.raises(ValueError, match=r"inputs of \[2, 3\] devices"):
        run_round(session, stacked, ragged={"items": lists})
    with pytest.raises(ValueError, match=r"inputs of \[0\] devices"):
        run_round(session, {"mean": np.zeros(0, np.float32)})
    files = list(template.patched_all(stacked))[:1]
    with pytest.raises(ValueError, match="models of 1 devices for inputs of 2"):
        run_round(files, {}, ragged={"items": lists})


def test_an_item_outside_the_catalogue_is_refused() -> None:
    rng = np.random.default_rng(0)
    model = mask_model("one-order", mask_weights(rng, "one-order"), info_of("one-order"),
                       features=features_for(rng, "one-order", N_ITEMS))  # fmt: skip
    session = OnnxSession(model)
    assert session.opening_s > 0
    with pytest.raises(ModelFileError, match="cannot run the model"):
        session.run({"items": np.array([N_ITEMS])})


@pytest.mark.slow
def test_neither_package_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys, coordinator.cli.run, coordinator.cli.export, coordinator.cli.recommend\n"
        "import edge.onnx.templates, edge.onnx.session\n"
        "print(sorted({'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
