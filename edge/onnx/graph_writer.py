"""Writing an ONNX graph node by node, to the same bytes every time.

Operator set 17 and IR version 8 are pinned: what onnxruntime 1.17 and the mobile runtimes of its day read. No
version of a library and no time of day is written; entries of the metadata are sorted.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge.core.errors import MissingExtraError

OPSET: Final = 17
IR_VERSION: Final = 8
PRODUCER: Final = "recfleet"

Dims = Sequence[int | str]
"""A shape; text names a dimension that is known at run time only."""


def available() -> bool:
    """Return whether the package ``onnx`` is installed, without importing it."""
    return importlib.util.find_spec("onnx") is not None


def onnx_package() -> Any:
    """Return the package ``onnx``, imported when it is needed.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import onnx  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "writing a model file needs the package onnx; pip install 'recfleet[export]'"
        ) from error
    return onnx


class GraphWriter:
    """A graph that grows from its inputs to its outputs; every method that adds a value returns its name."""

    def __init__(self) -> None:
        self._onnx = onnx_package()
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: list[Any] = []
        self._names: set[str] = set()
        self.float32: int = self._onnx.TensorProto.FLOAT
        """What ``Cast`` calls float32."""

    def constant(self, name: str, values: npt.NDArray[Any]) -> str:
        """Add an initializer, stored as raw little-endian bytes; a name that is there already is kept."""
        if name not in self._names:
            self._names.add(name)
            self._constants.append(
                self._onnx.numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name)
            )
        return name

    def input(self, name: str, dtype: npt.DTypeLike, dims: Dims) -> str:
        """Add an input of the graph."""
        self._inputs.append(self._value(name, dtype, dims))
        return name

    def weight(self, name: str, values: npt.NDArray[np.float32], *, as_input: bool) -> str:
        """Add an initializer or, if asked for, an input of its shape."""
        return self.input(name, np.float32, values.shape) if as_input else self.constant(name, values)

    def output(self, name: str, dtype: npt.DTypeLike, dims: Dims) -> None:
        """Declare the value ``name``, which a node makes, to be an output of the graph."""
        self._outputs.append(self._value(name, dtype, dims))

    def node(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add a node with one output, called ``name`` or after the operator and its place."""
        (made,) = self.nodes(
            operator, inputs, (name or f"{operator.lower()}_{len(self._nodes)}",), **attributes
        )
        return made

    def product(self, table: str, vector: str) -> str:
        """Add the product of a table [n, k] and a vector [k], which is [n].

        By way of Gemm: MatMul of a matrix and a vector takes onnxruntime (1.32) some thirty times as
        long, 177 µs instead of 5 for a table of 1,682 rows of 19 numbers on a server core.
        """
        columns = self.constant("columns", np.array([1], np.int64))
        column = self.node("Gemm", table, self.node("Unsqueeze", vector, columns))
        return self.node("Squeeze", column, columns)

    def nodes(
        self, operator: str, inputs: Sequence[str], names: Sequence[str], **attributes: Any
    ) -> Sequence[str]:
        """Add a node with an output for each of ``names``."""
        self._nodes.append(self._onnx.helper.make_node(operator, list(inputs), list(names), **attributes))
        return names

    def model(self, properties: Mapping[str, str]) -> bytes:
        """Return the serialised model with these entries as its metadata."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, PRODUCER, self._inputs, self._outputs, self._constants)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name=PRODUCER,
        )
        helper.set_model_props(model, {key: properties[key] for key in sorted(properties)})
        return serialised(model)

    def _value(self, name: str, dtype: npt.DTypeLike, dims: Dims) -> Any:
        helper = self._onnx.helper
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(dims)
        )


def serialised(model: Any) -> bytes:
    """Return the bytes of an ``onnx.ModelProto``, the same ones for equal models."""
    contents: bytes = model.SerializeToString(deterministic=True)
    return contents
