from __future__ import annotations

import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_profiles.errors import TraceError, UnsafePickleError
from device_profiles.importers.fedscale import read_fedscale_availability, read_fedscale_capacity
from device_profiles.importers.plain_pickle import load_plain_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

# The oldest protocol writes text as a line of up to ten bytes a character, and lines are limited to 1,000.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=90)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | texts
    | st.binary()
)
keys = st.integers(-(2**40), 2**40) | texts
plain = st.recursive(
    scalars | st.sets(st.integers(0, 1000)) | st.frozensets(st.integers(0, 1000)),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner, inner) | st.tuples(inner),
    max_leaves=30,
)


@given(plain, st.sampled_from(list(PROTOCOLS)))
def test_plain_data_is_read_as_pickle_would(value: Any, protocol: int) -> None:
    assert_same(load_plain_pickle(pickle.dumps(value, protocol)), value)


def assert_same(read: Any, value: Any) -> None:
    """Equal, and of equal types all the way down (1, 1.0 and True are not the same)."""
    assert type(read) is type(value)
    assert read == value
    if isinstance(value, dict):
        read, value = [*read, *read.values()], [*value, *value.values()]
    if isinstance(value, list | tuple):
        for one, other in zip(read, value, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays_and_numpy_numbers(protocol: int) -> None:
    shared = np.array([[1.5, 2.5], [3.5, 4.5]])
    value = {
        "matrix": shared,
        "again": shared,
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "swapped": np.arange(3, dtype=">i4"),
        "flags": np.array([True, False]),
        "none": np.zeros((0, 4), np.float32),
        np.int64(5): [np.float64(2.25), np.int32(-7), np.bool_(True), np.float32(0.5)],
    }
    read: Any = load_plain_pickle(pickle.dumps(value, protocol))
    for name in ("matrix", "again", "columns", "swapped", "flags", "none"):
        expected = np.asarray(value[name])
        np.testing.assert_array_equal(read[name], expected)
        assert read[name].dtype == expected.dtype.newbyteorder("=")
    assert read[5] == [2.25, -7, True, 0.5]
    assert [type(item) for item in read[5]] == [float, int, bool, float]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_byte_strings(protocol: int) -> None:
    value = [b"", b"abc\xff", bytearray(b"abc"), bytearray()]
    read = load_plain_pickle(pickle.dumps(value, protocol))
    assert read == [b"", b"abc\xff", b"abc", b""]


class Runs:
    """Pickles into a call of ``function(*arguments)``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


class WithState:
    def __getstate__(self) -> dict[str, int]:
        return {"x": 1}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        Runs(os.system, "exit 3"),
        Runs(eval, "1 + 1"),
        Runs(exec, "pass"),
        Runs(getattr, "text", "upper"),
        Runs(__import__, "os"),
        Runs(open, "file"),
        Runs(np.dtype, "O"),
        Runs(np.ndarray, (3,)),
        Runs(np.frombuffer, b"12345678"),
        {"a": [Runs(os.getcwd)]},
        OrderedDict(a=1),
        WithState(),
        1j,
        range(3),
        os.system,
        np.array([{}], dtype=object),
        np.array(["text"]),
        np.zeros(2, dtype=[("a", "f8")]),
        np.datetime64("2020-01-01"),
        np.ma.masked_array([1, 2], mask=[False, True]),
        2**64,
        {(1, 2): 3},
        {1.5: 2},
        {b"a": 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_but_plain_data_is_refused(value: Any, protocol: int) -> None:
    with pytest.raises(UnsafePickleError, match=r"^byte [0-9]+: "):
        load_plain_pickle(pickle.dumps(value, protocol))


def short(text: str) -> bytes:
    raw = text.encode()
    return b"\x8c" + bytes([len(raw)]) + raw


P4 = b"\x80\x04"
SCALAR = short("numpy.core.multiarray") + short("scalar") + b"\x93"
DTYPE = short("numpy") + short("dtype") + b"\x93"
F8 = DTYPE + short("f8") + b"\x85R"
B1 = DTYPE + short("b1") + b"\x85R"
RECONSTRUCT = short("numpy.core.multiarray") + short("_reconstruct") + b"\x93"
NDARRAY = short("numpy") + short("ndarray") + b"\x93"
FROM_BUFFER = short("numpy.core.numeric") + short("_frombuffer") + b"\x93"
ARRAY = FROM_BUFFER + b"(C\x02\x00\x01" + B1 + b"K\x02\x85" + short("C") + b"tR"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"cos\nsystem\n(S'exit 3'\ntR.", "os.system"),
        (b"(ios\nsystem\n.", "INST"),
        (b"(cos\nsystem\nS'exit 3'\no.", "os.system"),
        (b"(I1\no.", "OBJ"),
        (P4 + short("os") + short("system") + b"\x93" + short("exit 3") + b"\x85R.", "os.system"),
        # the pieces of the name are joined only when run
        (P4 + short("builtins") + short("eval") + b"\x93.", "builtins.eval"),
        (P4 + short("numpy") + short("load") + b"\x93.", "numpy.load"),
        (P4 + short("numpy") + short("dtype.__class__") + b"\x93.", "dtype.__class__"),
        (P4 + b"}\x93.", "damaged"),
        (P4 + b"K\x01K\x02\x93.", "not text"),
        (P4 + DTYPE + b"N\x81.", "NEWOBJ"),
        (P4 + DTYPE + b")}\x92.", "NEWOBJ_EX"),
        (b"\x82\x01.", "EXT1"),
        (b"\x84\x01\x00\x00\x00.", "EXT4"),
        (b"Pid\n.", "PERSID"),
        (b"NQ.", "BINPERSID"),
        (P4 + b"\x97.", "NEXT_BUFFER"),
        (b"K\x012.", "DUP"),
        # constructors that are known, used in ways numpy never does
        (P4 + DTYPE + b".", "unfinished"),
        (P4 + F8 + b".", "unfinished"),
        (P4 + DTYPE + b"N}\x86b.", "state of something"),
        (P4 + SCALAR + b"N" + short("__defaults__") + b"K\x01s\x86b.", "to add to"),
        (P4 + SCALAR + b")R.", "unknown format"),
        (P4 + SCALAR + F8 + b"C\x04abcd\x86R.", "does not fit its bytes"),
        (P4 + DTYPE + short("O8") + b"\x85R.", "dtype other than"),
        (
            P4 + F8 + b"(K\x03" + short("<") + short("f8") + b"NNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb.",
            "with fields",
        ),
        (P4 + F8 + F8 + b"R.", "not a known constructor"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.", "Latin-1"),
        (P4 + RECONSTRUCT + F8 + b"\x85R.", "other than numpy.ndarray"),
        (P4 + RECONSTRUCT + NDARRAY + b"\x85R.", "unfinished"),
        (P4 + RECONSTRUCT + NDARRAY + b"\x85R(K\x01)" + F8 + b"\x89tb.", "an array in an unknown format"),
        (P4 + NDARRAY + b")R.", "called directly"),
        (P4 + FROM_BUFFER + b"(C\x08abcdefgh)tR.", "an array in an unknown format"),
        (P4 + FROM_BUFFER + b"(C\x08abcdefghN)" + short("C") + b"tR.", "without a dtype"),
        (P4 + FROM_BUFFER + b"(" + short("abcdefgh") + F8 + b")" + short("C") + b"tR.", "are not bytes"),
        (P4 + FROM_BUFFER + b"(C\x08abcdefgh" + F8 + b"K\x01" + short("C") + b"tR.", "shape of an array"),
        (
            P4
            + FROM_BUFFER
            + b"(C\x00"
            + F8
            + b"K\x00\x8a\x08"
            + b"\xff" * 7
            + b"\x7f\x86"
            + short("C")
            + b"tR.",
            "shape",
        ),
        (P4 + FROM_BUFFER + b"(C\x01\x07" + B1 + b"K\x01\x85" + short("C") + b"tR.", "holds other bytes"),
        # values of a type that cannot be compared or looked up
        (P4 + DTYPE + b"]\x85R.", "dtype other than"),
        (P4 + RECONSTRUCT + ARRAY + b"\x85R.", "other than numpy.ndarray"),
        (P4 + F8 + b"(K\x03" + ARRAY + b"NNNtb.", "unknown byte order"),
        (P4 + short("_codecs") + short("encode") + b"\x93" + short("a") + ARRAY + b"\x86R.", "Latin-1"),
        (b"\x80\x02c__builtin__\nset\nK\x01\x85R.", "a set made from"),
        (b"\x80\x02c__builtin__\nbytes\nK\x05\x85R.", "Latin-1"),
        (
            b"\x80\x02c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacX\x06\x00\x00\x00latin1\x86R.",
            "cannot encode",
        ),
        # damage
        (b"", "cut short"),
        (b".", "damaged"),
        (b"K", "cut short"),
        (b"K\x01", "cut short"),
        (b"K\x01.junk", "follow the end"),
        (b"K\x01K\x02.", "left over"),
        (b"\xff.", "0xff is not a pickle opcode"),
        (b"\x80\x07N.", "protocol 7"),
        (b"(.", "damaged"),
        (b"K\x01(K\x01.", "left over"),
        (b"(" * 65 + b"N.", "marks"),
        (b"t.", "no mark"),
        (b"K\x01a.", "damaged"),
        (b"}K\x01K\x02a.", "expected a list"),
        (b"](K\x01K\x02u.", "expected a dict"),
        (b"}(K\x01u.", "key without a value"),
        (b"h\x05.", "reference to nothing"),
        (b"g-1\n.", "memo index"),
        (b"I1_0\n.", "whole number"),
        (b"L99999999999999999999L\n.", "64 bits"),
        (b"\x8a\x0a" + b"\x7f" * 10 + b".", "64 bits"),
        (b"Fabc\n.", "number that is not one"),
        (b"S'a\\x41'\n.", "escapes"),
        (b"X\x02\x00\x00\x00\xff\xfe.", "UTF-8"),
        # sizes that promise more than there is
        (b"X\xff\xff\xff\xff" + b"a.", "cut short"),
        (b"\x8e" + struct.pack("<Q", 2**62) + b"a.", "cut short"),
        (b"T" + struct.pack("<i", -5) + b"a.", "cut short"),
        (b"I" + b"1" * 5000 + b"\n.", "line of text"),
    ],
)
def test_programs_that_no_pickler_writes(program: bytes, message: str) -> None:
    with pytest.raises(UnsafePickleError, match=message):
        load_plain_pickle(program)


def test_a_memo_index_costs_no_memory() -> None:
    # Python's own unpickler allocates the whole memo up to the index.
    assert load_plain_pickle(b"K\x01r\xff\xff\xff\xff.") == 1


def test_a_list_that_contains_itself() -> None:
    with pytest.raises(UnsafePickleError, match="contains itself"):
        load_plain_pickle(b"]q\x00h\x00a.")


def test_nesting_is_limited() -> None:
    nested: Any = 1
    for _ in range(16):
        nested = [nested]
    assert load_plain_pickle(pickle.dumps(nested)) == nested
    with pytest.raises(UnsafePickleError, match="deeper than 16 levels"):
        load_plain_pickle(pickle.dumps([nested]))
    with pytest.raises(UnsafePickleError, match="deeper than 16 levels"):
        load_plain_pickle(b"]" * 100_000 + b"a" * 99_999 + b".")


def test_a_doubling_of_shared_parts_is_not_unfolded() -> None:
    # Ten lists, each twice in the next: 2**10 leaves to a walk that forgets what it has seen.
    program = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(14)) + b"."
    with pytest.raises(UnsafePickleError, match="left over"):
        load_plain_pickle(program)
    value: Any = []
    for _ in range(15):
        value = [value] * 50
    read: Any = load_plain_pickle(pickle.dumps(value))
    assert len(read) == 50
    assert read[0] is read[49]


def test_arrays_do_not_multiply_the_bytes_they_share() -> None:
    raw = bytes(80_000)
    array = np.frombuffer(raw)
    one = pickle.dumps(array, 4)
    assert np.asarray(load_plain_pickle(one)).size == 10_000
    shared = P4 + b"B" + struct.pack("<I", len(raw)) + raw + b"\x940" + F8 + b"\x940" + b"]("
    again = (
        short("numpy.core.numeric")
        + short("_frombuffer")
        + b"\x93"
        + b"(h\x00h\x01M\x10'\x85"
        + short("C")
        + b"tR"
    )
    assert len(np.asarray(load_plain_pickle(shared + again * 2 + b"e."))) == 2
    with pytest.raises(UnsafePickleError, match="larger than the file"):
        load_plain_pickle(shared + again * 5 + b"e.")


def test_size_is_limited() -> None:
    with pytest.raises(UnsafePickleError, match="above the limit of 10"):
        load_plain_pickle(pickle.dumps([0] * 100), max_bytes=10)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        load_plain_pickle(data)
    except UnsafePickleError:
        return


@given(st.data())
def test_no_damage_raises_anything_else(data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps({1: {"a": [1.5, 2], "b": np.arange(3)}, "x": (True, {3, 4}, b"abc")}, 4))
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


def test_fedscale_capacity(tmp_path: Path) -> None:
    path = dumped(
        tmp_path,
        {
            "3": {"computation": 100.0, "communication": 2000.0},
            1: {"computation": 20, "communication": np.float64(512.5)},
        },
    )
    table = read_fedscale_capacity(path)
    assert table.client_ids.tolist() == [1, 3]
    assert table.inference_s.tolist() == [0.02, 0.1]
    assert table.rate_bps.tolist() == [512_500.0, 2e6]


def test_fedscale_availability(tmp_path: Path) -> None:
    path = dumped(
        tmp_path,
        {
            2: {"active": [], "inactive": [], "finish_time": 50, "duration": 0},
            1: {
                "duration": 30,
                "active": np.array([10, 60]),
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


def test_fedscale_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_fedscale_capacity(tmp_path / "none.pkl")
    with pytest.raises(UnsafePickleError, match=r"trace.pkl: byte [0-9]+: it asks for"):
        read_fedscale_capacity(dumped(tmp_path, Runs(os.system, "exit 3")))
    with pytest.raises(TraceError, match="'communication' is missing"):
        read_fedscale_capacity(dumped(tmp_path, {1: {"computation": 3.0}}))
    with pytest.raises(TraceError, match="computation: must be above zero"):
        read_fedscale_capacity(dumped(tmp_path, {1: {"computation": 0.0, "communication": 1.0}}))
