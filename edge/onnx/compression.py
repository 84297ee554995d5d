"""Smaller files: tables and matrices as float16 or int8, turned back into float32 where the graph begins.

Only initializers of two dimensions are compressed; vectors stay as they are, since they are small and biases
decide rankings. int8 is symmetric with a scale per row, so an item's error is at most 1/254 of its largest
factor. Arithmetic stays in float32. onnxruntime's ``quantize_dynamic`` makes a stateless model as small, but
with one scale for all items: it keeps 98.2 % of the ten best items of float32, a scale per row 99.4 %.

Files run on onnxruntime 1.15 and newer. Where several operators use one int8 matrix, each has a node of its
own that turns it back: onnxruntime before 1.17 makes copies of a shared one, and forgets in them that the
scales are those of rows.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from edge.core.errors import ExportError
from edge.onnx.graph_writer import onnx_package, serialised
from edge.onnx.metadata import PREFIX

Compression = Literal["none", "fp16", "int8"]

_LARGEST_CODE: Final = 127


def compress(contents: bytes, how: Compression) -> bytes:
    """Return a model with its matrices compressed, and ``compression`` in its metadata.

    Parameters
    ----------
    contents : a serialised model of recfleet's own, not compressed.
    how : ``none`` returns ``contents`` as they are.

    Raises
    ------
    ExportError
        For another ``how``, a model that is compressed already, or values beyond the range of float16.
    MissingExtraError
    """
    if how not in get_args(Compression):
        raise ExportError(f"there is no compression {how!r}; there are {', '.join(get_args(Compression))}")
    if how == "none":
        return contents
    onnx = onnx_package()
    model = onnx.load_from_string(contents)
    (entry,) = [entry for entry in model.metadata_props if entry.key == f"{PREFIX}compression"]
    if entry.value != "none":
        raise ExportError(f"the model is compressed already, as {entry.value}; compress the original")
    entry.value = how
    stored: list[Any] = []
    nodes: list[Any] = []
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) != 2:
            stored.append(tensor)
            continue
        values = onnx.numpy_helper.to_array(tensor)
        arrays, operator, attributes = _stored(tensor.name, values, how, onnx)
        stored += [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
        outputs = _separate_uses(model.graph, tensor.name) if how == "int8" else [tensor.name]
        nodes += [onnx.helper.make_node(operator, list(arrays), [name], **attributes) for name in outputs]
    nodes += model.graph.node
    for field, entries in (("initializer", stored), ("node", nodes)):
        model.graph.ClearField(field)
        getattr(model.graph, field).extend(entries)
    return serialised(model)


def _separate_uses(graph: Any, name: str) -> list[str]:
    """Give each input of a node that is the tensor ``name`` a name of its own; return these names."""
    found: list[str] = []
    for node in graph.node:
        for place, given in enumerate(node.input):
            if given == name:
                found.append(name if not found else f"{name}_{len(found) + 1}")
                node.input[place] = found[-1]
    return found


def _stored(
    name: str, values: npt.NDArray[np.float32], how: Compression, onnx: Any
) -> tuple[dict[str, npt.NDArray[Any]], str, dict[str, int]]:
    """Return what is stored for a matrix, and the operator that turns it back."""
    if how == "fp16":
        largest = float(np.abs(values).max())
        if largest > float(np.finfo(np.float16).max):
            raise ExportError(
                f"{name} holds {largest:g}, beyond the range of float16; write it as float32 or int8"
            )
        return {f"{name}_fp16": values.astype(np.float16)}, "Cast", {"to": onnx.TensorProto.FLOAT}
    scale = np.abs(values).max(axis=1) / np.float32(_LARGEST_CODE)
    scale[scale < np.finfo(np.float32).tiny] = 1.0
    codes = np.rint(values / scale[:, None]).clip(-_LARGEST_CODE, _LARGEST_CODE).astype(np.int8)
    return {f"{name}_int8": codes, f"{name}_scale": scale}, "DequantizeLinear", {"axis": 0}


def top_overlap(
    reference: npt.NDArray[np.int64], compressed: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return which share of each list of best items the compressed model keeps, whatever the order.

    Parameters
    ----------
    reference, compressed : int64 [n, top], ``top_items`` of both models for the same n users.

    Returns
    -------
    float64 [n]; places without an item do not count, and lists without any agree fully.

    Raises
    ------
    ExportError
        For lists of different shapes.
    """
    if reference.shape != compressed.shape or reference.ndim != 2:
        raise ExportError(f"lists are [users, top], not {list(reference.shape)} and {list(compressed.shape)}")
    shares = np.ones(len(reference))
    for user, (wanted, found) in enumerate(zip(reference, compressed, strict=True)):
        kept = wanted[wanted >= 0]
        if kept.size:
            shares[user] = np.isin(kept, found).mean()
    return shares
