"""Which fields of an ONNX file recfleet's own models use; all others are refused.

Numbers are those of ``onnx.proto`` (IR version 8). Left out on purpose: functions, training, sparse and
external tensors, subgraphs, attributes that are tensors, references to other attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edge.onnx.wire import BYTES, FIXED32, VARINT, Allowed

MODEL: Final[Mapping[int, Allowed]] = {
    1: Allowed("ir_version", VARINT),
    2: Allowed("producer_name", BYTES),
    7: Allowed("graph", BYTES),
    8: Allowed("opset_import", BYTES, repeated=True),
    14: Allowed("metadata_props", BYTES, repeated=True),
}
OPERATOR_SET: Final[Mapping[int, Allowed]] = {1: Allowed("domain", BYTES), 2: Allowed("version", VARINT)}
PROPERTY: Final[Mapping[int, Allowed]] = {1: Allowed("key", BYTES), 2: Allowed("value", BYTES)}
GRAPH: Final[Mapping[int, Allowed]] = {
    1: Allowed("node", BYTES, repeated=True),
    2: Allowed("name", BYTES),
    5: Allowed("initializer", BYTES, repeated=True),
    11: Allowed("input", BYTES, repeated=True),
    12: Allowed("output", BYTES, repeated=True),
}
NODE: Final[Mapping[int, Allowed]] = {
    1: Allowed("input", BYTES, repeated=True),
    2: Allowed("output", BYTES, repeated=True),
    3: Allowed("name", BYTES),
    4: Allowed("op_type", BYTES),
    5: Allowed("attribute", BYTES, repeated=True),
    7: Allowed("domain", BYTES),
}
VALUE: Final[Mapping[int, Allowed]] = {1: Allowed("name", BYTES), 2: Allowed("type", BYTES)}
TYPE: Final[Mapping[int, Allowed]] = {1: Allowed("tensor_type", BYTES)}
TENSOR_TYPE: Final[Mapping[int, Allowed]] = {1: Allowed("elem_type", VARINT), 2: Allowed("shape", BYTES)}
SHAPE: Final[Mapping[int, Allowed]] = {1: Allowed("dim", BYTES, repeated=True)}
DIM: Final[Mapping[int, Allowed]] = {1: Allowed("dim_value", VARINT), 2: Allowed("dim_param", BYTES)}
ATTRIBUTE: Final[Mapping[int, Allowed]] = {
    1: Allowed("name", BYTES),
    2: Allowed("f", FIXED32),
    3: Allowed("i", VARINT),
    8: Allowed("ints", VARINT, repeated=True),
    20: Allowed("type", VARINT),
}
EXTERNAL_DATA: Final = 13
DATA_LOCATION: Final = 14
TENSOR: Final[Mapping[int, Allowed]] = {
    1: Allowed("dims", VARINT, repeated=True),
    2: Allowed("data_type", VARINT),
    8: Allowed("name", BYTES),
    9: Allowed("raw_data", BYTES),
    # Known, so that they can be refused by name.
    EXTERNAL_DATA: Allowed("external_data", BYTES, repeated=True),
    DATA_LOCATION: Allowed("data_location", VARINT),
}
FLOAT32: Final = 1
"""``data_type`` of float32."""
ELEMENT_BYTES: Final[Mapping[int, int]] = {FLOAT32: 4, 3: 1, 7: 8, 10: 2}
"""Bytes of an element by ``data_type``: float32, int8, int64, float16."""

OPERATORS: Final = frozenset(
    {
        "Add",
        "Cast",
        "Concat",
        "DequantizeLinear",
        "Div",
        "Equal",
        "Expand",
        "Gather",
        "Gemm",
        "Identity",
        "MatMul",
        "Max",
        "Mul",
        "ReduceSum",
        "Relu",
        "ScatterElements",
        "Shape",
        "Slice",
        "Squeeze",
        "Sub",
        "Tanh",
        "TopK",
        "Unsqueeze",
        "Where",
    }
)
"""Every operator that recfleet writes; none has a subgraph, reads a file or draws random numbers."""
