"""Reading a model file from elsewhere without trusting it.

Nothing is opened but the file itself, and onnxruntime sees its bytes only after every field has been checked
against a list of what recfleet writes (:mod:`edge.onnx.model_format`). This needs neither ``onnx`` nor
protobuf. A file can still ask for much time or memory when it is *run*: shapes that depend on inputs are not
bounded here. Run models of strangers in a process with limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge.core.errors import ModelFileError
from edge.onnx import model_format as known
from edge.onnx.graph_writer import IR_VERSION, OPSET
from edge.onnx.metadata import ModelInfo, read_properties
from edge.onnx.score_graphs import CONTEXT, NEUMF
from edge.onnx.wire import VARINT, Allowed, Field, WireError, checked_fields, text, varint

LARGEST_MODEL_BYTES: Final = 1 << 28
"""Default limit on a model file, 256 MiB."""
_NO_ITEM_BIAS: Final = ("mask/", CONTEXT, NEUMF)
"""Kinds without biases of items, by how they begin. None takes a history; nothing lays out their items."""
_MOST_NODES: Final = 1 << 16
_MOST_DIMS: Final = 8


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checked file: its bytes, what it says about itself, its kind, and how its weights are stored."""

    contents: bytes
    info: ModelInfo
    kind: str
    compression: str


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where the raw data of an initializer lies in the file: ``start`` to ``end``; ``shape`` is its shape."""

    start: int
    end: int
    data_type: int
    shape: tuple[int, ...]


def load_model(path: Path, *, limit_bytes: int = LARGEST_MODEL_BYTES) -> LoadedModel:
    """Read and check a model file.

    Parameters
    ----------
    path : the file.
    limit_bytes : a larger file is refused before it is read.

    Raises
    ------
    ModelFileError
        For a file that cannot be read, is too large, truncated, no protobuf, or breaks a rule of
        :func:`check_model`.
    """
    try:
        if not path.is_file():
            raise ModelFileError(
                f"{path}: there is no such file; give a model that `recfleet export` has written"
            )
        size = path.stat().st_size
        contents = b"" if size > limit_bytes else path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    if size > limit_bytes:
        raise ModelFileError(
            f"{path}: has {size} bytes, more than limit_bytes = {limit_bytes}; raise it if you trust the file"
        )
    return check_model(contents, str(path))


def check_model(contents: bytes, where: str) -> LoadedModel:
    """Check serialised bytes; ``where`` names them in errors.

    Raises
    ------
    ModelFileError
        For bytes that are truncated or no protobuf; another IR version or operator set; an operator that
        recfleet does not write, or of another domain; functions, subgraphs, sparse tensors; data in another
        file; a tensor whose data do not fit its shape; metadata that is missing or malformed.
    """
    if not contents:
        raise ModelFileError(f"{where}: is empty")
    view = memoryview(contents)
    try:
        properties = _model(view)
        places = tensor_places(contents)
    except WireError as error:
        raise ModelFileError(
            f"{where}: not a model that recfleet reads: {error}; give one that `recfleet export` has written"
        ) from error
    info, kind, compression = read_properties(properties, where)
    bias = places.get("item_bias")
    if not kind.startswith(_NO_ITEM_BIAS) and (bias is None or bias.shape != (info.n_items,)):
        # Otherwise a number in the metadata could make the reader lay out any number of items.
        raise ModelFileError(
            f"{where}: a model of kind {kind!r} has an item_bias for each of {info.n_items} items"
        )
    return LoadedModel(contents, info, kind, compression)


def tensor_places(contents: bytes) -> dict[str, TensorPlace]:
    """Return where each initializer's data lies, by name.

    Raises
    ------
    WireError
        For a tensor that is not of plain numbers in this very file, or a name that stands twice.
    """
    view = memoryview(contents)
    places: dict[str, TensorPlace] = {}
    for field in checked_fields(view, (0, len(view)), "model", known.MODEL):
        if known.MODEL[field.number].name != "graph":
            continue
        for part in checked_fields(view, (field.start, field.end), "graph", known.GRAPH):
            if known.GRAPH[part.number].name == "initializer":
                name, place = _tensor(view, part)
                if name in places:
                    raise WireError(f"two initializers are called {name!r}")
                places[name] = place
    return places


def _named(
    view: memoryview, field: Field, message: str, allowed: Mapping[int, Allowed]
) -> dict[str, list[Field]]:
    """Return the fields of the message in ``field`` by name."""
    found: dict[str, list[Field]] = {entry.name: [] for entry in allowed.values()}
    for part in checked_fields(view, (field.start, field.end), message, allowed):
        found[allowed[part.number].name].append(part)
    return found


def _text(view: memoryview, found: list[Field]) -> str:
    return text(view, found[0]) if found else ""


def _model(view: memoryview) -> dict[str, str]:
    """Check everything but tensors and return the metadata."""
    model = _named(view, Field(0, 0, 0, 0, len(view)), "model", known.MODEL)
    version = model["ir_version"][0].value if model["ir_version"] else 0
    if version != IR_VERSION:
        raise WireError(f"IR version {version}, not {IR_VERSION}")
    for field in model["opset_import"]:
        operators = _named(view, field, "opset_import", known.OPERATOR_SET)
        domain = _text(view, operators["domain"])
        if domain not in ("", "ai.onnx"):
            raise WireError(f"operators of the domain {domain!r}")
        if [entry.value for entry in operators["version"]] != [OPSET]:
            raise WireError(f"another operator set than {OPSET}")
    if len(model["opset_import"]) != 1:
        raise WireError(f"{len(model['opset_import'])} operator sets, not 1")
    if not model["graph"]:
        raise WireError("there is no graph")
    _graph(view, model["graph"][0])
    properties: dict[str, str] = {}
    for field in model["metadata_props"]:
        entry = _named(view, field, "metadata_props", known.PROPERTY)
        key = _text(view, entry["key"])
        if key in properties:
            raise WireError(f"metadata {key!r} stands twice")
        properties[key] = _text(view, entry["value"])
    return properties


def _graph(view: memoryview, field: Field) -> None:
    graph = _named(view, field, "graph", known.GRAPH)
    if len(graph["node"]) > _MOST_NODES:
        raise WireError(f"{len(graph['node'])} nodes, more than {_MOST_NODES}")
    for place in graph["node"]:
        node = _named(view, place, "node", known.NODE)
        operator, domain = _text(view, node["op_type"]), _text(view, node["domain"])
        if domain not in ("", "ai.onnx"):
            raise WireError(f"operator {operator!r} of the domain {domain!r}")
        if operator not in known.OPERATORS:
            raise WireError(f"operator {operator!r}, which no recommender needs")
        for name in (*node["input"], *node["output"], *node["name"]):
            text(view, name)
        for attribute in node["attribute"]:
            found = _named(view, attribute, f"an attribute of {operator}", known.ATTRIBUTE)
            _text(view, found["name"])
    _text(view, graph["name"])
    for place in (*graph["input"], *graph["output"]):
        _value(view, place)


def _value(view: memoryview, field: Field) -> None:
    """Check an input or output: a tensor, its names readable."""
    value = _named(view, field, "an input or output", known.VALUE)
    _text(view, value["name"])
    for part in value["type"]:
        for tensor in _named(view, part, "the type of an input or output", known.TYPE)["tensor_type"]:
            for shape in _named(view, tensor, "tensor_type", known.TENSOR_TYPE)["shape"]:
                for dim in _named(view, shape, "shape", known.SHAPE)["dim"]:
                    _text(view, _named(view, dim, "dim", known.DIM)["dim_param"])


def _tensor(view: memoryview, field: Field) -> tuple[str, TensorPlace]:
    tensor = _named(view, field, "initializer", known.TENSOR)
    name = _text(view, tensor["name"])
    if tensor["external_data"] or any(entry.value for entry in tensor["data_location"]):
        raise WireError(f"the data of initializer {name!r} lie in another file, which is not opened")
    data_type = tensor["data_type"][0].value if tensor["data_type"] else 0
    if data_type not in known.ELEMENT_BYTES:
        raise WireError(f"initializer {name!r} has elements of type {data_type}")
    shape = tuple(size for dims in tensor["dims"] for size in _numbers(view, dims))
    if len(shape) > _MOST_DIMS:
        raise WireError(f"initializer {name!r} has {len(shape)} dimensions")
    size = known.ELEMENT_BYTES[data_type]
    for count in shape:
        size *= count
    start, end = (tensor["raw_data"][0].start, tensor["raw_data"][0].end) if tensor["raw_data"] else (0, 0)
    if end - start != size:
        raise WireError(
            f"initializer {name!r} has {end - start} bytes for the {size} of its shape {list(shape)}"
        )
    return name, TensorPlace(start, end, data_type, shape)


def _numbers(view: memoryview, field: Field) -> list[int]:
    """Return the values of a list of varints, packed or not."""
    if field.wire_type == VARINT:
        return [field.value]
    values: list[int] = []
    at = field.start
    while at < field.end:
        value, at = varint(view, at, field.end)
        values.append(value)
    return values
