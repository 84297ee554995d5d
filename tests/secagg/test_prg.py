from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

import edge.secagg
from edge.core.errors import LocalProtocolError
from edge.crypto import prg
from edge.crypto.errors import WrongDtypeError, WrongLengthError
from edge.crypto.prg import Keystream, add_all_expanded, make_scratch
from edge.crypto.ring import Ring, RingVector

SEED = bytes(range(16))
OTHER = bytes(range(16, 32))


def mask(seed: bytes, length: int, bits: int = 32) -> RingVector:
    out = Ring(bits).zeros(length)
    add_all_expanded(out, [seed], [])
    return out


def blocks_of_counters(key: bytes, count: int) -> bytes:
    """AES of the counters 0 … count − 1, block by block: counter mode by its definition."""
    encryptor = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()
    return b"".join(encryptor.update(i.to_bytes(16, "big")) for i in range(count))


def test_sp_800_38a_f_5_1(monkeypatch: pytest.MonkeyPatch) -> None:
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    )
    monkeypatch.setattr(prg, "_FIRST_BLOCK", counter)
    prg._from_zero.cache_clear()
    keystream = mask(key, 16).tobytes()
    prg._from_zero.cache_clear()
    assert bytes(a ^ b for a, b in zip(keystream, plain, strict=True)) == cipher


def test_the_counter_starts_at_zero() -> None:
    assert mask(bytes(16), 4).tobytes().hex() == "66e94bd4ef8a2c3b884cfa59ca342b2e"
    assert mask(SEED, 400).tobytes() == blocks_of_counters(SEED, 100)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("length", [0, 1, 3, 4, 1000, 40_001])
@pytest.mark.parametrize("chunk_bytes", [16, 64, 1 << 16, 1 << 20])
def test_chunks_do_not_change_the_mask(bits: int, length: int, chunk_bytes: int) -> None:
    total = Ring(bits).zeros(length)
    add_all_expanded(total, [SEED], [], chunk_bytes=chunk_bytes)
    keystream = blocks_of_counters(SEED, length * bits // 128 + 1)
    assert total.tobytes() == keystream[: total.nbytes]


def test_longer_than_the_largest_chunk() -> None:
    length = 3 * (1 << 20) // 8 + 5
    assert mask(SEED, length, 64).tobytes() == blocks_of_counters(SEED, length // 2 + 1)[: length * 8]


def test_a_scratch_buffer_serves_many_calls() -> None:
    scratch = make_scratch(1 << 10)
    first, second = Ring().zeros(3000), Ring(64).zeros(777)
    add_all_expanded(first, [SEED], [], scratch=scratch)
    add_all_expanded(second, [OTHER], [], scratch=scratch)
    assert first.tobytes() == mask(SEED, 3000).tobytes()
    assert second.tobytes() == mask(OTHER, 777, 64).tobytes()


@given(
    st.lists(st.binary(min_size=16, max_size=16), max_size=4),
    st.lists(st.binary(min_size=16, max_size=16), max_size=4),
    st.integers(0, 300),
    st.sampled_from([32, 64]),
)
@settings(deadline=None)
def test_many_masks_at_once_are_the_sum(
    added: list[bytes], subtracted: list[bytes], length: int, bits: int
) -> None:
    total = Ring(bits).zeros(length)
    total += 7
    add_all_expanded(total, added, subtracted, chunk_bytes=256)
    expected = [7] * length
    for sign, seeds in ((1, added), (-1, subtracted)):
        for seed in seeds:
            expected = [
                (a + sign * b) % 2**bits
                for a, b in zip(expected, mask(seed, length, bits).tolist(), strict=True)
            ]
    assert total.tolist() == expected


def test_a_mask_cancels_its_opposite_and_not_before() -> None:
    values = np.arange(1000, dtype="<u4")
    total = values.copy()
    add_all_expanded(total, [SEED], [])
    assert np.count_nonzero(total == values) < 3
    add_all_expanded(total, [], [SEED])
    assert total.tolist() == values.tolist()


def test_every_element_has_a_mask_of_its_own() -> None:
    # Of 10,000 words of 32 bits 0.01 pairs are equal on average; one scalar for all would leave one value.
    assert len(set(mask(SEED, 10_000).tolist())) > 9_990


def test_a_mask_hides_and_is_balanced() -> None:
    bits = np.unpackbits(mask(SEED, 100_000).view(np.uint8))
    # Six standard deviations of 3.2 million fair bits.
    assert abs(int(bits.sum()) - bits.size // 2) < 6 * (bits.size / 4) ** 0.5


@pytest.mark.parametrize("length", [0, 4, 8, 15, 17, 32])
def test_short_seeds_are_refused(length: int) -> None:
    with pytest.raises(WrongLengthError, match=f"16 bytes, not {length}"):
        add_all_expanded(Ring().zeros(4), [bytes(length)], [])
    with pytest.raises(WrongLengthError):
        Keystream(bytes(length))


def test_a_refused_seed_changes_nothing() -> None:
    total = Ring().zeros(4)
    with pytest.raises(WrongLengthError):
        add_all_expanded(total, [SEED], [b"short"])
    assert not total.any()


def test_what_is_not_a_masked_vector_is_refused() -> None:
    for dtype in ("<i4", "<f4", ">u4", "<u2"):
        with pytest.raises(WrongDtypeError, match="little-endian"):
            add_all_expanded(np.zeros(4, dtype=dtype), [SEED], [])
    with pytest.raises(WrongLengthError, match="one contiguous row"):
        add_all_expanded(np.zeros((2, 2), dtype=np.uint32), [SEED], [])
    with pytest.raises(WrongLengthError, match="one contiguous row"):
        add_all_expanded(np.zeros(8, dtype=np.uint32)[::2], [SEED], [])


@pytest.mark.parametrize("chunk_bytes", [0, -16, 8, 100, (1 << 20) + 16])
def test_a_chunk_has_limits(chunk_bytes: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"not {chunk_bytes}"):
        make_scratch(chunk_bytes)


def test_words_in_pieces_are_the_mask() -> None:
    stream = Keystream(SEED)
    pieces = [stream.words(n) for n in (1, 0, 7, 500)]
    assert np.concatenate(pieces).tolist() == mask(SEED, 508).tolist()


def test_no_other_generator_is_near_a_mask() -> None:
    """Neither numpy's or Python's generators nor the simulation's streams can be used if none is imported."""
    folder = Path(edge.secagg.__file__).parent
    paths = sorted(folder.glob("*.py"))
    assert len(paths) > 5
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute):
                names = [node.attr]
            else:
                continue
            for name in names:
                assert not {"random", "rng", "default_rng"} & set(name.split(".")), f"{path.name}: {name}"


def test_little_endian_host_is_what_these_bytes_were_checked_on() -> None:
    assert mask(bytes(16), 1).tolist() == [int.from_bytes(bytes.fromhex("66e94bd4"), "little")]
    assert np.dtype("<u4").isnative == (sys.byteorder == "little")
