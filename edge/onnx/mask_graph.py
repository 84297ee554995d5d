"""Graph of a personalised mask: the items asked for in, a score for each out.

With x the features of an item (float32 [d]), the four orders of mask are

* zero-order: ŷ = mean;
* one-order: ŷ = w₀ + w·x;
* two-order, a factorisation machine (Rendle 2010, equation 5): ŷ = w₀ + w·x + ½Σ_f[(V_fᵀx)² − (V_f²)ᵀx²];
* high-order, a perceptron with one hidden layer: ŷ = w₀ + v·tanh(Hᵀx + h).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from edge.core.errors import ExportError
from edge.onnx.graph_writer import GraphWriter
from edge.onnx.metadata import ModelInfo

MaskKind = Literal["zero-order", "one-order", "two-order", "high-order"]
Weights = Mapping[str, npt.NDArray[np.float32]]
"""Parameters of a mask by name, float32; shapes as in :data:`MASK_WEIGHTS`."""
Features = npt.NDArray[np.float32]

MASK_WEIGHTS: Final[Mapping[MaskKind, Mapping[str, tuple[str, ...]]]] = {
    "zero-order": {"mean": ()},
    "one-order": {"intercept": (), "weights": ("d",)},
    "two-order": {"intercept": (), "weights": ("d",), "factors": ("d", "f")},
    "high-order": {
        "hidden_weights": ("d", "h"),
        "hidden_bias": ("h",),
        "output_weights": ("h",),
        "intercept": (),
    },
}
"""Names and shapes of each kind's parameters: d features, f factors, h hidden units."""


def check_mask(kind: MaskKind, weights: Mapping[str, npt.NDArray[Any]]) -> int | None:
    """Return d, the number of features that a mask reads; None for a zero-order mask.

    Raises
    ------
    ExportError
        For a kind that does not exist, and parameters of other names, types or shapes, or not finite.
    """
    if kind not in MASK_WEIGHTS:
        raise ExportError(f"there is no mask {kind!r}; there are {', '.join(MASK_WEIGHTS)}")
    shapes = MASK_WEIGHTS[kind]
    if set(weights) != set(shapes):
        raise ExportError(
            f"a {kind} mask has {', '.join(shapes)}, not {', '.join(sorted(weights)) or 'nothing'}"
        )
    sizes: dict[str, int] = {}
    for name, dims in shapes.items():
        array = weights[name]
        if array.dtype != np.float32 or array.ndim != len(dims):
            wanted = f"float32 [{', '.join(dims)}]"
            raise ExportError(f"{name} of a {kind} mask is {wanted}, not {array.dtype} {list(array.shape)}")
        for dim, size in zip(dims, array.shape, strict=True):
            if size < 1 or sizes.setdefault(dim, size) != size:
                raise ExportError(
                    f"{name} of a {kind} mask has {size} for {dim}, which is {sizes.get(dim, 'at least 1')}"
                )
        if not np.isfinite(array).all():
            raise ExportError(f"{name} of a {kind} mask is not finite everywhere")
    return sizes.get("d")


def check_features(features: Features, width: int, info: ModelInfo) -> None:
    """Raise ``ExportError`` unless ``features`` are finite float32 [n_items, ``width``] and named."""
    if features.dtype != np.float32 or features.shape != (info.n_items, width):
        raise ExportError(
            f"features are float32 [{info.n_items}, {width}], one row for each item,"
            f" not {features.dtype} {list(features.shape)}"
        )
    if not np.isfinite(features).all():
        raise ExportError("features are not finite everywhere")
    check_names(width, info)


def check_names(width: int, info: ModelInfo) -> None:
    """Raise ``ExportError`` unless each of ``width`` features has a name."""
    if len(info.feature_names) != width:
        raise ExportError(f"{len(info.feature_names)} feature_names for {width} features; give one for each")


def add_mask(writer: GraphWriter, kind: MaskKind, weights: Mapping[str, str], x: str, shape: str) -> str:
    """Add the nodes of a mask and return the name of its scores, float32 [k].

    Parameters
    ----------
    kind : of the mask.
    weights : name in the graph of each parameter.
    x : name of the features, float32 [k, d]; not read by a zero-order mask.
    shape : name of int64 [1], k; read by a zero-order mask only.
    """
    if kind == "zero-order":
        return writer.node("Expand", weights["mean"], shape)
    if kind == "high-order":
        sums = writer.node("Add", writer.node("MatMul", x, weights["hidden_weights"]), weights["hidden_bias"])
        score = writer.product(writer.node("Tanh", sums), weights["output_weights"])
        return writer.node("Add", score, weights["intercept"])
    score = writer.node("Add", writer.product(x, weights["weights"]), weights["intercept"])
    if kind == "one-order":
        return score
    factors = weights["factors"]
    product = writer.node("MatMul", x, factors)
    squares = writer.node("MatMul", writer.node("Mul", x, x), writer.node("Mul", factors, factors))
    pairs = writer.node("Sub", writer.node("Mul", product, product), squares)
    axes = writer.constant("last_axis", np.array([1], np.int64))
    half = writer.constant("half", np.array(0.5, np.float32))
    total = writer.node("ReduceSum", pairs, axes, keepdims=0)
    return writer.node("Add", score, writer.node("Mul", total, half))


def mask_model(
    kind: MaskKind,
    weights: Weights,
    info: ModelInfo,
    *,
    features: Features | None,
    weights_as_inputs: bool = False,
) -> bytes:
    """Return the serialised graph of a mask alone: ``items`` int64 [k] → ``scores`` float32 [k].

    Parameters
    ----------
    kind : of the mask.
    weights : its parameters; with ``weights_as_inputs`` only their shapes count, and each is an input of the
        graph under its name, so that one session serves every device.
    info : goes into the metadata.
    features : float32 [n_items, d], kept in the file; None makes ``features`` an input. A zero-order mask
        reads none: give None.

    Raises
    ------
    ExportError, MissingExtraError
    """
    width = check_mask(kind, weights)
    writer = GraphWriter()
    items = writer.input("items", np.int64, ["k"])
    x = ""
    if width is None:
        if features is not None:
            raise ExportError("a zero-order mask reads no features; give None")
    else:
        if features is None:
            check_names(width, info)
            table = writer.input("features", np.float32, [info.n_items, width])
        else:
            check_features(features, width, info)
            table = writer.constant("features", features)
        x = writer.node("Gather", table, items)
    shape = writer.node("Shape", items) if width is None else ""
    names = {
        name: writer.weight(name, weights[name], as_input=weights_as_inputs) for name in MASK_WEIGHTS[kind]
    }
    score = add_mask(writer, kind, names, x, shape)
    writer.node("Identity", score, name="scores")
    writer.output("scores", np.float32, ["k"])
    return writer.model(info.properties(f"mask/{kind}"))
