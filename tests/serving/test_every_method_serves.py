"""What a device of any method runs: the method's own scores, from onnxruntime, within 1e-5."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from every_method import METHODS, N_ITEMS, USERS, WIDTH, method, some_ratings, some_rows, some_state
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_models import info_for

from edge.core.errors import ExportError
from edge.learning.base import Problem
from edge.learning.registry import METHODS as REGISTERED
from edge.learning.registry import create
from edge.onnx.compression import compress
from edge.onnx.loading import check_model
from edge.onnx.personal_models import personal_models
from edge.onnx.recommenders import Recommenders, recommender_model
from edge.onnx.session import OnnxSession
from edge.onnx.work import recommender_work

INFO = info_for(N_ITEMS, WIDTH)
TOP = 7
OWN_TABLES = (
    {"algorithm": "fedrap"},
    {"algorithm": "gpfedrec"},
    {"algorithm": "pfedrec", "served_table": "personal"},
)
"""Methods whose devices score items with embeddings of their own."""


def models_of(name: str, seed: int) -> Recommenders:
    rng = np.random.default_rng(seed)
    algorithm = method(name)
    state = some_state(algorithm, rng)
    rows = some_rows(algorithm, state, rng)
    return personal_models(algorithm, state, some_ratings(rng), np.arange(USERS, dtype=np.uint64), rows)


def test_no_method_that_recommends_is_left_out() -> None:
    recommend = {name for name, entry in REGISTERED.items() if entry.data == "ratings"}
    assert {entry["algorithm"] for entry in METHODS.values()} == recommend - {"fedrap", "gpfedrec"}


@pytest.mark.parametrize("given_settings", OWN_TABLES, ids=lambda one: one["algorithm"])
def test_a_table_of_a_devices_own_is_in_no_file(given_settings: dict[str, str]) -> None:
    settings = REGISTERED[given_settings["algorithm"]].Settings.model_validate(given_settings)
    algorithm = create(settings, Problem(N_ITEMS, n_users=USERS))
    batch = some_ratings(np.random.default_rng(1))
    with pytest.raises(ExportError, match="each device scores items with a table or a network of its own"):
        personal_models(algorithm, algorithm.initial_state(1), batch, np.arange(USERS, dtype=np.uint64))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(METHODS))
@settings(max_examples=4)
@given(seed=st.integers(0, 2**20), user=st.integers(0, USERS - 1))
def test_the_file_of_a_device_gives_the_methods_own_scores(name: str, seed: int, user: int) -> None:
    rng = np.random.default_rng(seed)
    algorithm = method(name)
    state = some_state(algorithm, rng)
    rows, batch, keys = some_rows(algorithm, state, rng), some_ratings(rng), rng.integers(0, 2**60, USERS)
    given_to = (state, batch, keys.astype(np.uint64), rows)
    models = personal_models(algorithm, *given_to)
    expected = algorithm.scores(*given_to)
    # The file holds the device alone: what its scores are compared with has seen all four.
    file = recommender_model(models.part(slice(user, user + 1)), INFO, top=TOP)
    rated = batch.items[batch.indptr[user] : batch.indptr[user + 1]].astype(np.int64)
    found = OnnxSession(file).run({"rated": rated}).outputs
    np.testing.assert_allclose(found["scores"], expected[user], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(models.formula(), expected, rtol=1e-5, atol=1e-5)

    left = np.setdiff1d(np.arange(N_ITEMS), rated)
    best = np.sort(expected[user, left])[::-1][:TOP]
    listed = found["top_items"][: len(best)]
    assert set(listed.tolist()) <= set(left.tolist())
    assert len(set(listed.tolist())) == len(best)
    np.testing.assert_allclose(expected[user, listed], best, rtol=2e-5, atol=2e-5)
    assert found["top_items"][len(best) :].tolist() == [-1] * (TOP - len(best))


@pytest.mark.parametrize("name", list(METHODS))
def test_its_graph_is_valid_pinned_and_the_same_each_time(name: str) -> None:
    first, second = (recommender_model(models_of(name, 1), INFO, top=TOP) for _ in range(2))
    assert first == second
    model = onnx.load_from_string(first)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert model.ir_version == 8
    assert [entry.name for entry in model.graph.input] == ["rated"]
    assert [entry.name for entry in model.graph.output] == ["scores", "top_items", "top_scores"]
    loaded = check_model(first, "ours")
    assert loaded.kind == models_of(name, 1).kind
    # Names of features are in the files of models that read them, and in no others.
    reads = "features" in {tensor.name for tensor in model.graph.initializer}
    assert loaded.info.feature_names == (INFO.feature_names if reads else ())
    # Nothing of one user changes the size of a file.
    assert len(recommender_model(models_of(name, 2), INFO, top=TOP)) == len(first)


def test_kinds_say_what_is_inside() -> None:
    kinds = {name: models_of(name, 0).kind for name in METHODS}
    assert kinds["fedmf"] == kinds["pfedme"] == kinds["fedrecgel of a factorisation"] == "recommender"
    assert kinds["fedncf"] == kinds["fedrecgel of a network"] == "recommender/neumf"
    assert kinds["fedmmf"] == "recommender/two-order"
    assert kinds["federated network"] == kinds["local network"] == "recommender/context/high-order"


def counted(model: bytes) -> dict[str, np.ndarray]:
    """Count flops, numbers and operators of what makes the scores, from the graph itself.

    An array that an operator is given twice is read once.
    """
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(model)).graph
    shapes = {t.name: tuple(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    for value in graph.value_info:
        shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    size = {name: float(np.prod(shape)) for name, shape in shapes.items()}
    found = {name: np.zeros(3) for name in ("flops", "numbers", "ops")}
    for node in graph.node:
        if list(node.output) == ["scores"]:
            return found
        (out,) = node.output
        matrices = node.op_type in ("MatMul", "Gemm") and shapes[node.input[1]][1] > 1
        kind = 1 if matrices else 2
        found["ops"][kind] += 1
        if node.op_type in ("Squeeze", "Unsqueeze"):
            continue
        found["numbers"][kind] += size[out] + sum(size.get(name, 0.0) for name in set(node.input))
        if node.op_type in ("MatMul", "Gemm"):
            bias = size[out] if len(node.input) > 2 else 0.0
            found["flops"][kind] += 2 * size[out] * shapes[node.input[0]][1] + bias
        elif node.op_type == "ReduceSum":
            found["flops"][kind] += size[node.input[0]]
        elif node.op_type != "Expand":
            found["flops"][kind] += size[out] * {"Tanh": 20}.get(node.op_type, 1)
    raise AssertionError("no scores")


@pytest.mark.parametrize("name", list(METHODS))
def test_its_work_is_what_the_graph_says(name: str) -> None:
    models = models_of(name, 0)
    file = recommender_model(models, INFO, top=TOP)
    by_hand, work = counted(file), models.work()
    for figure, of_kinds in by_hand.items():
        assert getattr(work, figure).tolist() == of_kinds.tolist(), figure
    nodes = onnx.load_from_string(file).graph.node
    whole = recommender_work(work, N_ITEMS, TOP, np.array([3]), len(file))
    assert whole.ops.sum() == len(nodes)
    assert whole.memory_bytes[0] > len(file) + 16 * N_ITEMS


def test_a_network_can_be_stored_in_less() -> None:
    models = models_of("fedncf", 0)
    file = recommender_model(models, INFO, top=TOP)
    whole = OnnxSession(file).run({"rated": np.zeros(0, np.int64)}).outputs["scores"]
    smaller = compress(file, "fp16")
    assert len(smaller) < len(file)
    assert check_model(smaller, "ours").compression == "fp16"
    found = OnnxSession(smaller).run({"rated": np.zeros(0, np.int64)}).outputs["scores"]
    np.testing.assert_allclose(found, whole, atol=1e-2)


def test_a_network_that_does_not_fit_is_refused() -> None:
    models = models_of("fedncf", 0)
    models.own()["user_mlp"][1, 2] = np.nan
    with pytest.raises(ExportError, match="user embeddings: not finite everywhere"):
        recommender_model(models, INFO, top=TOP)
    with pytest.raises(ExportError, match="the model has 30 items, its metadata 31"):
        recommender_model(models_of("fedncf", 0), info_for(31), top=TOP)


def test_a_method_without_a_graph_is_refused_by_name() -> None:
    class Unknown:
        local_width = 0

    with pytest.raises(ExportError, match="there is no graph of the models of Unknown"):
        personal_models(Unknown(), {}, some_ratings(np.random.default_rng(0)), np.zeros(4, np.uint64))  # type: ignore[arg-type]
