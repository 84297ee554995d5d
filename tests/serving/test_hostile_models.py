"""Model files from elsewhere: each is refused by name, and nothing but the file itself is opened."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_models import info_for, item_model

from edge.core.errors import ModelFileError
from edge.learning.method_settings import Ridge
from edge.onnx import loading
from edge.onnx.loading import check_model, load_model, tensor_places
from edge.onnx.recommending import History, recommend
from edge.onnx.session import OnnxSession
from edge.onnx.stateless_graph import stateless_model

INFO = info_for(9, item_labels=tuple(range(10, 19)), rating_range=(1.0, 5.0), titles=tuple("abcdefghi"))
GOOD = stateless_model(item_model(np.random.default_rng(0), 9), Ridge(), INFO, user_bias=True, top=5)


def changed(change: Callable[[Any], object]) -> bytes:
    model = onnx.load_from_string(GOOD)
    change(model)
    return bytes(model.SerializeToString())


def metadata(name: str, text: str | None) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        (entry,) = [entry for entry in model.metadata_props if entry.key == f"recfleet.{name}"]
        if text is None:
            model.metadata_props.remove(entry)
        else:
            entry.value = text

    return change


def external(model: Any) -> None:
    tensor = model.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, "/etc/passwd")
    tensor.ClearField("raw_data")


def subgraph(model: Any) -> None:
    attribute = model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH)
    attribute.g.name = "inner"


def tensor_attribute(model: Any) -> None:
    value = onnx.numpy_helper.from_array(np.zeros(3))
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("value", value))


def test_what_recfleet_writes_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(GOOD)
    loaded = load_model(tmp_path / "m.onnx")
    assert (loaded.info, loaded.kind, loaded.compression) == (INFO, "stateless", "none")
    assert loaded.contents == GOOD


def test_reading_needs_no_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert check_model(GOOD, "ours").info == INFO


def test_tensors_lie_where_the_reader_says() -> None:
    places = tensor_places(GOOD)
    tensors = {tensor.name: tensor for tensor in onnx.load_from_string(GOOD).graph.initializer}
    assert set(places) == set(tensors)
    for name, place in places.items():
        assert GOOD[place.start : place.end] == tensors[name].raw_data
        assert place.shape == tuple(tensors[name].dims)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "ir_version", 9), "IR version 9, not 8"),
        (lambda m: m.ClearField("ir_version"), "IR version 0, not 8"),
        (lambda m: setattr(m.opset_import[0], "version", 18), "another operator set than 17"),
        (lambda m: m.opset_import.add(domain="com.microsoft", version=1), "domain 'com.microsoft'"),
        (lambda m: m.ClearField("opset_import"), "0 operator sets, not 1"),
        (lambda m: m.ClearField("graph"), "there is no graph"),
        (lambda m: setattr(m.graph.node[3], "domain", "evil"), "of the domain 'evil'"),
        (lambda m: setattr(m.graph.node[3], "op_type", "Loop"), "operator 'Loop'"),
        (lambda m: setattr(m.graph.node[3], "op_type", "RandomNormal"), "operator 'RandomNormal'"),
        (subgraph, "an attribute of .* has field 6"),
        (tensor_attribute, "an attribute of .* has field 5"),
        (lambda m: m.functions.add(name="f"), "model has field 25"),
        (lambda m: m.training_info.add(), "model has field 20"),
        (lambda m: m.graph.sparse_initializer.add(), "graph has field 15"),
        (
            lambda m: m.graph.output[0].type.sequence_type.SetInParent(),
            "type of an input or output has field 4",
        ),
        (lambda m: m.graph.value_info.append(m.graph.output[0]), "graph has field 13"),
        (external, "lie in another file, which is not opened"),
        (lambda m: setattr(m.graph.initializer[0], "data_type", 8), "elements of type 8"),
        (lambda m: m.graph.initializer[0].dims.append(1 << 40), "bytes for the"),
        (lambda m: m.graph.initializer[0].dims.extend([1] * 9), "dimensions"),
        (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "two initializers are called"),
        (lambda m: m.metadata_props.append(m.metadata_props[0]), "stands twice"),
        (metadata("kind", None), "has no metadata recfleet.kind"),
        (metadata("seed", "-1"), "recfleet.seed is '-1', not a whole number"),
        (metadata("format_version", "2"), "format version 2, this recfleet reads 1"),
        (
            lambda m: (
                metadata("item_labels", None)(m),
                metadata("titles", None)(m),
                metadata("items", "9" * 18)(m),
            ),
            "has an item_bias for each of 9{18} items",
        ),
        (metadata("items", "10"), "item_labels has 9 entries"),
        (metadata("titles", "[1]"), "recfleet.titles must be a JSON list of str"),
        (metadata("titles", "["), "recfleet.titles is no JSON"),
        (metadata("item_labels", "[true,1,2,3,4,5,6,7,8]"), "must be a JSON list of int or str"),
        (metadata("item_labels", '["1",1,2,3,4,5,6,7,8]'), "same label twice"),
        (metadata("rating_range", "[5,1]"), "rating_range is"),
        (metadata("rating_range", "[1,NaN]"), "rating_range is"),
        (metadata("rating_range", "[1]"), "has 1 numbers, not 2"),
    ],
)
def test_what_recfleet_does_not_write_is_refused(
    change: Callable[[Any], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = changed(change)
    opened: list[Any] = []
    monkeypatch.setattr("builtins.open", lambda *arguments, **_: opened.append(arguments))
    with pytest.raises(ModelFileError, match=message) as caught:
        check_model(hostile, "theirs.onnx")
    assert str(caught.value).startswith("theirs.onnx: ")
    assert opened == []


@pytest.mark.parametrize("kind", ["mask/one-order", "recommender/neumf", "recommender/context/zero-order"])
def test_a_kind_without_biases_of_items_is_refused_before_its_items_are_laid_out(kind: str) -> None:
    def change(model: Any) -> None:
        for name, text in (("item_labels", None), ("titles", None), ("items", "9" * 18), ("kind", kind)):
            metadata(name, text)(model)

    loaded = check_model(changed(change), "theirs.onnx")
    history = History(np.zeros(0, np.int64), np.zeros(0, np.float32), ())
    with pytest.raises(ModelFileError, match=f"kind '{kind}' takes no ratings"):
        recommend(loaded, history, 1)


@pytest.mark.parametrize(
    "contents", [b"PK\x03\x04zip", b"item,rating\n1,2\n", b"\xff" * 40, b"\x0b\x0c", b"\0" * 9]
)
def test_what_is_no_model_is_refused(contents: bytes) -> None:
    with pytest.raises(ModelFileError, match="not a model that recfleet reads"):
        check_model(contents, "theirs.onnx")


def test_a_second_graph_is_not_merged() -> None:
    # protobuf merges both; a check of the last alone would not see the first.
    with pytest.raises(ModelFileError, match="model has graph twice"):
        check_model(GOOD + GOOD[GOOD.index(b"recfleet") + 8 :], "theirs.onnx")


def test_every_truncation_is_refused() -> None:
    for length in range(0, len(GOOD), 7):
        with pytest.raises(ModelFileError):
            check_model(GOOD[:length], "cut.onnx")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_harmless(place: int, value: int) -> None:
    hostile = bytearray(GOOD)
    hostile[place] = value
    with contextlib.suppress(ModelFileError):
        loaded = check_model(bytes(hostile), "changed.onnx")
        assert loaded.info.n_items == INFO.n_items
        OnnxSession(loaded.contents).run(
            {"items": np.array([0, 3]), "ratings": np.array([1.0, 5.0], np.float32)},
        )


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(contents: bytes) -> None:
    with pytest.raises(ModelFileError):
        check_model(contents, "random.onnx")


def test_a_file_above_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(GOOD)
    assert load_model(path, limit_bytes=len(GOOD)).info == INFO
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("was read"))
    with pytest.raises(ModelFileError, match=f"has {len(GOOD)} bytes, more than limit_bytes = 10"):
        load_model(path, limit_bytes=10)


@pytest.mark.parametrize(("name", "message"), [("missing.onnx", "no such file"), (".", "no such file")])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load_model(tmp_path / name)


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_MOST_NODES", 3)
    with pytest.raises(ModelFileError, match="nodes, more than 3"):
        check_model(GOOD, "theirs.onnx")
