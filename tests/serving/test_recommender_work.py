"""What one call of a recommender costs: against the graph itself, and against sums by hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from serving_models import KINDS, WIDTH, info_for, item_model, mask_for, one_recommender, user_model

from edge.onnx.mask_graph import MaskKind
from edge.onnx.recommenders import recommender_model
from edge.onnx.work import factorization_work, mask_work, recommender_work

N_ITEMS = 30


@pytest.mark.parametrize("top", [5, 40])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_every_node_of_the_graph_is_an_operator(kind: MaskKind | None, top: int) -> None:
    rng = np.random.default_rng(0)
    mask = None if kind is None else mask_for(rng, kind, N_ITEMS)
    models = one_recommender(item_model(rng, N_ITEMS), user_model(rng), mask)
    graph = recommender_model(models, info_for(N_ITEMS, WIDTH), top=top)
    nodes = onnx.load_from_string(graph).graph.node
    work = recommender_work(models.work(), N_ITEMS, top, np.array([3]), len(graph))
    assert work.ops.sum() == len(nodes)
    assert work.steps.tolist() == [1.0]
    matrices = sum(node.op_type == "MatMul" for node in nodes)
    assert work.ops[0].tolist() == [1.0, matrices, len(nodes) - matrices - 1]


def test_the_plain_model_by_hand() -> None:
    # 10 items, 2 factors, a list of 4: 2·10·2 for the product, 3·10 to add, 10 to select, 4·log2(4) to sort.
    work = recommender_work(factorization_work(10, 2), 10, 4, np.array([0, 3]), model_bytes=500)
    assert work.flops.tolist() == [[0, 0, 40 + 30 + 10 + 8]] * 2
    # Numbers read and written: table, vector and result; three additions; copy, scatter's copy and its
    # updates, the selection, five arrays of the list's length.
    numbers = (20 + 2 + 10) + (30 + 21 + 21) + (20 + 20 + 10 + 20)
    assert work.moved_bytes.tolist() == [[0, 0, 4 * numbers], [3 * 16, 0, 4 * (numbers + 3)]]
    assert work.memory_bytes.tolist() == [500 + 4 * 40, 500 + 4 * 40 + 3 * 8]


@pytest.mark.parametrize(
    ("kind", "features", "inner", "dense", "scoring"),
    [
        ("zero-order", 0, 0, 0, 0),
        ("one-order", 3, 0, 0, 2 * 30 + 10),
        # Twice 2·10·3·2 in matrices; then x², V², the square, its difference, its sum, a half, two sums.
        ("two-order", 3, 2, 240, 2 * 30 + 10 + (30 + 6 + 20 + 20 + 20 + 10 + 10)),
        # In: 2·10·3·4. Bias and tanh of 40 units, out: 2·40, two sums.
        ("high-order", 3, 4, 240, 40 + 20 * 40 + 80 + 10),
    ],
)
def test_a_mask_by_hand(kind: MaskKind, features: int, inner: int, dense: float, scoring: float) -> None:
    work = mask_work(kind, 10, features, inner)
    assert work.flops.tolist() == [0, dense, scoring]
    assert work.numbers[2] > 0
    assert work.between >= 10
