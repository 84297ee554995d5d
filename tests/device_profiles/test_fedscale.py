from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_profiles.errors import TraceError, UnsafePickleError
from device_profiles.importers import fedscale
from device_profiles.importers.fedscale import load_plain_pickle, read_fedscale_availability

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text()
keys = st.integers(-(2**40), 2**40) | st.text()
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner, inner),
    max_leaves=30,
)


@settings(max_examples=40)
@given(
    st.dictionaries(st.integers(-(2**40), 2**40) | st.text(), plain), st.integers(0, pickle.HIGHEST_PROTOCOL)
)
def test_plain_data_is_read_as_pickle_would(value: Any, protocol: int) -> None:
    written = pickle.dumps(value, protocol)
    assert repr(load_plain_pickle(written)) == repr(value)


class Runs:
    """Pickles into a call of ``function(*arguments)``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [
        Runs(os.system, "exit 3"),
        Runs(getattr, "text", "upper"),
        {"a": [Runs(os.getcwd)]},
        np.arange(3),
        2**70,
    ],
    ids=["call", "attribute", "inside", "array", "number"],
)
def test_anything_but_plain_data_is_refused(value: Any, protocol: int) -> None:
    with pytest.raises(UnsafePickleError, match=r"^byte [0-9]+: "):
        load_plain_pickle(pickle.dumps(value, protocol))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"cos\nsystem\n(S'exit 3'\ntR.", "GLOBAL os.system"),
        (b"(ios\nsystem\n.", "INST os.system"),
        (b"(I1\no.", "OBJ"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"),
        (b"]N\x81.", "NEWOBJ"),
        (b"\x82\x01.", "EXT1"),
        (b"Pid\n.", "PERSID"),
        (b"NQ.", "BINPERSID"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"\x96" + struct.pack("<Q", 2**40) + b".", "damaged"),  # would be asked for before it is read
        (b"K\x01r\xff\xff\xff\xff.", "memo index"),  # would be allocated
        (b"\x8a\x0a" + b"\x7f" * 10 + b".", "64 bits"),
        (b"", "cut short"),
        (b"K", "cut short"),
        (b"\xff.", "damaged"),
        (b"\x80\x07N.", "protocol"),
        (b"(.", "damaged"),
        (b"t.", "damaged"),
        (b"}]Ns.", "unhashable"),
        (b"h\x05.", "damaged"),
        (b"X\xff\xff\xff\xffa.", "damaged"),
        (b"\x8e" + struct.pack("<Q", 2**62) + b"a.", "damaged"),
        (b"I" + b"1" * 5000 + b"\n.", "damaged"),
    ],
)
def test_programs_that_no_pickler_writes(program: bytes, message: str) -> None:
    with pytest.raises(UnsafePickleError, match=message):
        load_plain_pickle(program)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    written = pickle.dumps([0] * 100)
    monkeypatch.setattr(fedscale, "MAX_OPERATIONS", 100)
    with pytest.raises(UnsafePickleError, match="more than 100 opcodes"):
        load_plain_pickle(written)
    monkeypatch.setattr(fedscale, "MAX_PICKLE_BYTES", 10)
    with pytest.raises(UnsafePickleError, match="limit of 10 bytes"):
        load_plain_pickle(written)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        load_plain_pickle(data)
    except UnsafePickleError:
        return


@given(st.data())
def test_no_damage_raises_anything_else(data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps({1: {"a": [1.5, 2], "b": "text"}, "x": (True, None)}, 4))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        load_plain_pickle(bytes(whole))
    except UnsafePickleError:
        return


def dumped(folder: Path, value: Any) -> Path:
    path = folder / "trace.pkl"
    path.write_bytes(pickle.dumps(value))
    return path


def test_fedscale_availability(tmp_path: Path) -> None:
    path = dumped(
        tmp_path,
        {
            2: {"active": [], "inactive": [], "finish_time": 50, "duration": 0},
            1: {
                "duration": 30,
                "active": (10, 60),
                "inactive": [30, 70],
                "finish_time": 100,
                "model": "CPH1801",
            },
        },
    )
    trace = read_fedscale_availability(path)
    assert trace.client_ids.tolist() == [1, 2]
    assert trace.indptr.tolist() == [0, 2, 2]
    assert trace.starts_s.tolist() == [10.0, 60.0]
    assert trace.ends_s.tolist() == [30.0, 70.0]
    assert trace.period_s.tolist() == [100.0, 50.0]


GOOD = {"active": [1], "inactive": [2], "finish_time": 9}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected a dict from client id"),
        ({}, "expected a dict from client id"),
        ({"x": GOOD}, "'x' is not a client id"),
        ({-1: GOOD}, "'-1' is not a client id"),
        ({True: GOOD}, "'True' is not a client id"),
        ({1: GOOD, "1": GOOD}, "client 1 appears as a number and as text"),
        ({1: [3]}, "client 1: expected a dict, found list"),
        ({1: {"active": [1], "inactive": [2]}}, "client 1: 'finish_time' is missing"),
        ({1: GOOD | {"finish_time": 0}}, "finish_time: must be above zero"),
        ({1: GOOD | {"finish_time": float("nan")}}, "finish_time: expected a finite number"),
        ({1: GOOD | {"active": [1, 2]}}, "2 times in 'active', but 1 in 'inactive'"),
        ({1: GOOD | {"active": [3]}}, "from 3 to 2 s does not lie in 0 to 9 s"),
        ({1: GOOD | {"inactive": [10]}}, "from 1 to 10 s does not lie in 0 to 9 s"),
        ({1: GOOD | {"active": "1"}}, "active: expected a list of times"),
        ({1: GOOD | {"active": ["1"]}}, "active: expected a finite number, found str"),
    ],
)
def test_fedscale_entries_that_are_not_as_described(tmp_path: Path, value: Any, message: str) -> None:
    path = dumped(tmp_path, value)
    with pytest.raises(TraceError) as caught:
        read_fedscale_availability(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_fedscale_availability(tmp_path / "none.pkl")
    with pytest.raises(UnsafePickleError, match=r"trace.pkl: byte [0-9]+: it asks for"):
        read_fedscale_availability(dumped(tmp_path, Runs(os.system, "exit 3")))
