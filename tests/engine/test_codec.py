import os
import random
import time
import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge.core.errors import CodecError, FrameTooLargeError, LocalProtocolError
from edge.wire import messages as typed
from edge.wire.codec import (
    DTYPES,
    CodecLimits,
    array_frame_size,
    array_frame_sizes,
    decode,
    encode,
    frame_size,
    measure,
    round_of_head,
    unsigned_sizes,
)
from edge.wire.messages import (
    KINDS,
    Accept,
    AcceptBare,
    Acknowledge,
    AnyMessage,
    Decline,
    Failure,
    Invite,
    Model,
    Report,
    fields_of,
)

unsigned = st.integers(0, 2**64 - 1) | st.sampled_from(
    [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32]
)
real = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(max_size=40)
arrays = st.dictionaries(
    st.text(min_size=1, max_size=30),
    hnp.arrays(
        st.sampled_from([np.dtype(name) for name in DTYPES]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
    ),
    max_size=5,
)
messages: st.SearchStrategy[AnyMessage] = st.one_of(
    st.builds(Invite, text, unsigned, text, real, unsigned),
    st.builds(Accept, text, unsigned, unsigned),
    st.builds(AcceptBare, text, unsigned, unsigned),
    st.builds(Decline, text, unsigned, unsigned, unsigned),
    st.builds(Model, text, unsigned, arrays),
    st.builds(Report, text, unsigned, unsigned, unsigned, real, real, arrays),
    st.builds(Failure, text, unsigned, unsigned, unsigned),
    st.builds(Acknowledge, text, unsigned, unsigned),
    st.builds(typed.KeyList, text, *[unsigned] * 5, arrays),
    st.builds(typed.ConsistencyCheck, text, unsigned, arrays),
    st.builds(typed.UnmaskRequest, text, *[unsigned] * 3, arrays),
    st.builds(typed.DecryptRequest, text, *[unsigned] * 3, arrays),
    st.builds(typed.Abort, text, unsigned, unsigned, text),
    *(
        st.builds(kind, text, unsigned, unsigned, arrays)
        for kind in (
            typed.AdvertiseKeys,
            typed.SealedShares,
            typed.SharesDelivery,
            typed.MaskedInput,
            typed.ConsistencySignature,
            typed.UnmaskShares,
            typed.EncryptedInput,
            typed.DecryptedSum,
        )
    ),
)


def same(a: AnyMessage, b: AnyMessage) -> bool:
    if type(a) is not type(b):
        return False
    for name, kind in fields_of(type(a)):
        left, right = getattr(a, name), getattr(b, name)
        if kind == "arrays":
            if list(left) != list(right):
                return False
            for key, array in left.items():
                other = right[key]
                if (array.dtype, array.shape, array.tobytes()) != (other.dtype, other.shape, other.tobytes()):
                    return False
        elif left != right:
            return False
    return True


@given(messages)
def test_round_trip_and_exact_size(message: AnyMessage) -> None:
    frame = encode(message)
    assert len(frame) == frame_size(message)
    assert measure(message) == (len(frame), sum(a.nbytes for a in getattr(message, "arrays", {}).values()))
    assert same(decode(frame), message)


@given(st.lists(st.integers(0, 2**62), min_size=1))
def test_sizes_of_whole_numbers_agree_with_msgpack(values: list[int]) -> None:
    assert unsigned_sizes(np.array(values)).tolist() == [len(msgpack.packb(v)) for v in values]


@given(st.integers(0, 4), st.integers(0, 70_000))
def test_sizes_of_arrays_agree_with_the_scalar_form(dimensions: int, data_bytes: int) -> None:
    shape = (data_bytes,) + (1,) * (dimensions - 1) if dimensions else ()
    array = np.zeros(shape, np.uint8)
    expected = array_frame_size(array)
    assert array_frame_sizes(dimensions, np.array([array.nbytes])).tolist() == [expected]


def test_no_code_stands_for_two_types_of_message() -> None:
    codes = [kind.code for kind in KINDS.values()]
    assert len(set(codes)) == len(codes) == 21


def test_arrays_are_read_only_views_of_the_frame() -> None:
    frame = encode(Model("run", 1, {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}))
    message = decode(frame)
    assert isinstance(message, Model)
    array = message.arrays["w"]
    assert array.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert not array.flags.writeable
    assert not array.flags.owndata


def test_big_endian_and_strided_arrays_travel_by_value() -> None:
    source = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    message = decode(encode(Model("run", 1, {"w": source})))
    assert isinstance(message, Model)
    assert message.arrays["w"].tolist() == source.tolist()


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (Accept("run", -1, 0), r"Accept.round_number: expected a whole number"),
        (Accept("run", 1, 2**64), r"Accept.device"),
        (Accept("run", True, 0), r"Accept.round_number"),
        (Accept("x" * 300, 1, 0), r"Accept.run_id: expected at most 256 bytes"),
        (Report("run", 1, 1, 1, float("nan"), 0.0, {}), r"Report.weight: expected a finite number"),
        (Report("run", 1, 1, 1, 0.0, float("inf"), {}), r"Report.loss"),
        (Model("run", 1, {"w": [1, 2]}), r"Model.arrays: 'w' is not an array"),  # type: ignore[dict-item]
        (Model("run", 1, {"w": np.array(["a"])}), r"cannot carry an array of dtype"),
        (Model("run", 1, {"w": np.array([object()])}), r"cannot carry an array of dtype object"),
        (Model("run", 1, {"w": np.zeros(2, np.complex64)}), r"dtype complex64"),
    ],
)
def test_what_cannot_be_sent_is_our_own_error(message: AnyMessage, match: str) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        encode(message)


def test_a_frame_above_the_limit_is_refused_by_both_sides() -> None:
    message = Model("run", 1, {"w": np.zeros(1000, np.float32)})
    frame = encode(message)
    small = CodecLimits(frame_bytes=1000)
    with pytest.raises(FrameTooLargeError, match=r"limits.frame_bytes = 1000"):
        encode(message, small)
    with pytest.raises(FrameTooLargeError, match=r"limits.frame_bytes = 1000"):
        decode(frame, small)


def array_frame(code: int, dimensions: int, shape: bytes, data: bytes, extension: int = 1) -> bytes:
    body = msgpack.ExtType(extension, bytes((code, dimensions)) + shape + data)
    return bytes(msgpack.packb([1, KINDS[Model].code, "run", 1, {"w": body}]))


@pytest.mark.parametrize(
    ("frame", "reason", "match"),
    [
        (b"", "garbage", "not a frame"),
        (b"\xc1", "garbage", "not a frame"),
        (b"\x01", "garbage", "array of at least version and code"),
        (msgpack.packb([2, 2, "run", 1, 1]), "version", "frame version 2"),
        (msgpack.packb([True, 2, "run", 1, 1]), "version", "True"),
        (msgpack.packb([1, 99, "run", 1, 1]), "garbage", "message code 99"),
        (msgpack.packb([1, "x", "run", 1, 1]), "garbage", "message code 'x'"),
        (msgpack.packb([1, 2, "run", 1]), "garbage", "Accept has 3 fields, the frame has 2"),
        (msgpack.packb([1, 2, "run", 1, 1, 1]), "garbage", "the frame has 4"),
        (msgpack.packb([1, 2, "run", -1, 1]), "garbage", "Accept.round_number"),
        (msgpack.packb([1, 2, "run", 1.0, 1]), "garbage", "Accept.round_number"),
        (msgpack.packb([1, 2, b"run", 1, 1]), "garbage", "exceeds max_bin_len"),
        (msgpack.packb([1, 2, "run", 1, 1]) + b"\x00", "garbage", "ExtraData"),
        (msgpack.packb([1, 2, "run", 1, 1])[:-1], "garbage", "not a frame"),
        (msgpack.packb([1, 5, "run", 1, 1, 1, float("nan"), 0.0, {}]), "garbage", "Report.weight"),
        (msgpack.packb([1, 4, "run", 1, {"w": 3}]), "garbage", "'w' is not an array"),
        (msgpack.packb([1, 4, "run", 1, {7: 3}]), "garbage", "not a frame"),
        (array_frame(99, 1, b"\1\0\0\0", b"\0"), "garbage", "dtype code 99"),
        (array_frame(0, 9, b"", b""), "garbage", "9 dimensions"),
        (array_frame(0, 2, b"\1\0\0\0", b""), "garbage", "cut off"),
        (array_frame(0, 1, b"\2\0\0\0", b"\0\0\0\0"), "garbage", "needs 8 bytes, the frame has 4"),
        (array_frame(0, 1, b"\xff\xff\xff\xff", b""), "garbage", "needs 17179869180 bytes"),
        (array_frame(0, 4, b"\xff" * 16, b""), "garbage", "bytes, the frame has 0"),
        (array_frame(0, 1, b"\1\0\0\0", b"\0\0\0\0", extension=5), "garbage", "extension type 5"),
        (msgpack.packb([1, 4, "run", 1, {"w": msgpack.ExtType(1, b"")}]), "garbage", "without dtype"),
        (msgpack.packb([1, 2, msgpack.Timestamp(5), 1, 1]), "garbage", "Accept.run_id"),
    ],
)
def test_bytes_that_are_no_frame_are_a_typed_error(frame: bytes, reason: str, match: str) -> None:
    with pytest.raises(CodecError, match=match) as caught:
        decode(frame)
    assert caught.value.reason == reason


def test_nested_headers_cannot_make_the_parser_reserve_memory() -> None:
    bomb = b"\xdd\xff\xff\xff\xff" * 10_000
    deep = b"\x91" * 100_000
    maps = b"\xdf\x7f\xff\xff\xff" * 10_000
    huge_text = b"\x95\x01\x02\xdb\xff\xff\xff\xf0"
    for frame in (bomb, deep, maps, huge_text):
        tracemalloc.start()
        with pytest.raises(CodecError):
            decode(frame)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4_000_000


def fuzz(seconds: float, seed: int, at_least: int) -> None:
    """Decode mutated frames and plain noise, for so long and more than ``at_least`` of them.

    Anything but a message or a CodecError is a failure.
    """
    generator = random.Random(seed)
    array = np.arange(40, dtype=np.float32).reshape(8, 5)
    seeds = [
        encode(Invite("run", 3, "task", 60.0, 1234)),
        encode(Accept("run", 3, 17)),
        encode(Report("run", 3, 17, 12, 12.0, 0.5, {"items": np.arange(8, dtype=np.uint16), "rows": array})),
        encode(Model("run", 3, {"w": array})),
        encode(typed.KeyList("run", 3, 17, 9, 4, 3, {"records": np.zeros((5, 96), np.uint8)})),
        encode(typed.Abort("run", 3, 17, "too-few-survivors")),
    ]
    until = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < until or tried <= at_least:
        for _ in range(500):
            frame = bytearray(generator.choice(seeds))
            for _ in range(generator.randint(1, 6)):
                action = generator.randrange(4)
                place = generator.randrange(len(frame) + 1)
                if action == 0 and frame:
                    frame[place % len(frame)] = generator.randrange(256)
                elif action == 1:
                    frame[place:place] = generator.randbytes(generator.randint(1, 8))
                elif action == 2:
                    del frame[place : place + generator.randint(1, 12)]
                else:
                    frame = bytearray(generator.randbytes(generator.randint(0, 60)))
            tried += 1
            try:
                message = decode(bytes(frame))
            except CodecError:
                continue
            assert len(encode(message)) == frame_size(message)


def test_fuzzing_finds_nothing() -> None:
    fuzz(0.5, seed=1, at_least=1000)


@pytest.mark.slow
def test_longer_fuzzing_finds_nothing() -> None:
    fuzz(float(os.environ.get("RECFLEET_FUZZ_S", "5")), seed=2, at_least=10_000)


def test_sizes_of_numbers_are_those_of_msgpack() -> None:
    values = [edge + step for edge in (1, 1 << 7, 1 << 8, 1 << 16, 1 << 32) for step in (-1, 0, 1)]
    assert unsigned_sizes(np.array(values)).tolist() == [len(msgpack.packb(value)) for value in values]


def test_the_round_of_a_message_is_told_by_its_first_bytes() -> None:
    frame = encode(Model("a run", 70_000, {"a": np.zeros(5_000, np.float32)}))
    assert round_of_head(frame) == 70_000
    assert round_of_head(memoryview(frame)[:512]) == 70_000


@pytest.mark.parametrize(
    "head", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x94\x07\x02\xa1a\x05", b"\x94\x01\x02"]
)
def test_what_is_no_frame_has_no_round(head: bytes) -> None:
    assert round_of_head(head) is None
