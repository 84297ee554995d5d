from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.crypto import shamir
from edge.crypto.entropy import SeededEntropy
from edge.crypto.errors import (
    CommitmentMismatchError,
    DuplicateShareError,
    InconsistentSharesError,
    KeyMismatchError,
    ShareCountError,
    ShareIndexError,
    ShareLengthError,
    ShareValueError,
    ThresholdError,
)
from edge.crypto.keys import KeyPair, check_commitment, check_secret, commit
from edge.crypto.shamir import PRIME, SHARE_BYTES, combine, combine_many, split, split_together


def entropy(number: int = 0) -> SeededEntropy:
    return SeededEntropy(b"the key of these tests", number, 0)


def secrets(count: int) -> list[bytes]:
    source = entropy(999)
    return [source.bytes(32) for _ in range(count)]


class Scripted:
    """Hands out prepared words of 32 bits."""

    def __init__(self, *words: int) -> None:
        self._data = b"".join(word.to_bytes(4, "little") for word in words)

    def bytes(self, n: int) -> bytes:
        taken, self._data = self._data[:n], self._data[n:]
        assert len(taken) == n
        return taken


def words_of(share: bytes) -> list[int]:
    """The 16 field elements of an encoded share, by the documented layout."""
    assert len(share) == SHARE_BYTES
    marks = int.from_bytes(share[32:], "little")
    words = []
    for at in range(16):
        word = int.from_bytes(share[2 * at : 2 * at + 2], "little")
        words.append(65_536 if marks >> at & 1 else word)
    return words


def interpolate(points: list[tuple[int, int]], at: int) -> int:
    """Lagrange in plain integers."""
    total = 0
    for i, value in points:
        numerator, denominator = 1, 1
        for j, _ in points:
            if j != i:
                numerator = numerator * (at - j) % PRIME
                denominator = denominator * (i - j) % PRIME
        total += value * numerator * pow(denominator, -1, PRIME)
    return total % PRIME


@st.composite
def sharings(draw: st.DrawFn) -> tuple[bytes, int, int, int, list[int]]:
    n = draw(st.integers(2, 40))
    t = draw(st.integers(max(2, n // 2 + 1), n))
    chosen = draw(st.permutations(range(1, n + 1)))[:t]
    return draw(st.binary(min_size=32, max_size=32)), t, n, draw(st.integers(0, 2**32)), chosen


@given(sharings())
@settings(max_examples=100, deadline=None)
def test_agrees_with_lagrange_in_plain_integers(case: tuple[bytes, int, int, int, list[int]]) -> None:
    secret, t, n, number, chosen = case
    shares = split(secret, t, n, entropy(number))
    assert len(shares) == n
    assert combine([(i, shares[i - 1]) for i in chosen], t, n=n) == secret
    words = [words_of(share) for share in shares]
    expected = [int.from_bytes(secret[2 * at : 2 * at + 2], "little") for at in range(16)]
    for at in range(16):
        points = [(i, words[i - 1][at]) for i in chosen]
        assert interpolate(points, 0) == expected[at]
    # All n shares lie on the one polynomial of degree t − 1 through any t of them.
    points = [(i, words[i - 1][7]) for i in chosen]
    assert [interpolate(points, i) for i in range(1, n + 1)] == [row[7] for row in words]


@pytest.mark.parametrize("n", range(2, 12))
def test_every_subset_of_the_threshold_reconstructs_whatever_the_parity(n: int) -> None:
    secret = secrets(1)[0]
    for t in range(max(2, n // 2 + 1), n + 1):
        shares = split(secret, t, n, entropy())
        for chosen in itertools.islice(itertools.combinations(range(1, n + 1), t), 40):
            assert combine([(i, shares[i - 1]) for i in chosen], t) == secret


def test_one_share_fewer_says_nothing() -> None:
    """For every value that a word of the secret could have, t − 1 shares lie on a polynomial with it."""
    t, n = 3, 4
    shares = split(secrets(1)[0], t, n, entropy())
    known = [(i, words_of(shares[i - 1])[0]) for i in (1, 2)]
    third = {interpolate([*known, (0, word)], 3) for word in range(0, 65_536, 64)}
    assert len(third) == 1024
    with pytest.raises(ShareCountError, match="2 shares for a threshold of 3"):
        combine([(i, shares[i - 1]) for i in (1, 2)], t)


def by_secret(together: list[bytes]) -> list[list[bytes]]:
    """Return the shares of each secret."""
    starts = range(0, len(together[0]), SHARE_BYTES)
    return [[held[at : at + SHARE_BYTES] for held in together] for at in starts]


def test_coefficients_are_fresh_for_every_secret_and_word() -> None:
    secret = bytes(32)
    first, second = by_secret(split_together([secret, secret], 3, 5, entropy()))
    assert len({*first, *second}) == 10
    assert len({words_of(first[0])[at] for at in range(16)}) > 12
    assert split(secret, 3, 5, entropy(1))[0] != first[0]
    assert split(secret, 3, 5, entropy(0)) == split(secret, 3, 5, entropy(0))


def test_coefficients_are_uniform() -> None:
    """Share 1 of t = 2 is the secret plus one coefficient: word values spread evenly over the field."""
    source = entropy()
    values = [w for _ in range(4000) for w in words_of(split(bytes(32), 2, 2, source)[0])]
    counts = np.histogram(values, bins=16, range=(0, PRIME))[0]
    # Chi-squared with 15 degrees of freedom is above 60 with a probability of 2e-7.
    expected = len(values) / 16
    assert float(((counts - expected) ** 2 / expected).sum()) < 60


def test_a_word_that_would_favour_a_value_is_drawn_again() -> None:
    # 2**32 − 1 and 0 are the same modulo 65,537; only one of them may count.
    shares = split(bytes(32), 2, 2, Scripted(*([0xFFFF_FFFF] * 2 + [5] * 14), 0xFFFF_FFFF, 6, 7))
    assert words_of(shares[0]) == [7, 6] + [5] * 14
    assert words_of(shares[1]) == [14, 12] + [10] * 14


def test_the_value_of_17_bits_travels() -> None:
    shares = split(bytes(32), 2, 2, Scripted(65_536, *([0] * 14), 65_536))
    assert words_of(shares[0]) == [65_536] + [0] * 14 + [65_536]
    assert shares[0] == bytes(32) + b"\x01\x80"
    assert combine([(1, shares[0]), (2, shares[1])], 2) == bytes(32)


def test_many_secrets_at_once() -> None:
    several = secrets(7)
    shares = by_secret(split_together(several, 5, 8, entropy()))
    chosen = [8, 1, 5, 2, 7]
    rebuilt = combine_many(chosen, [[row[i - 1] for i in chosen] for row in shares], 5, n=8)
    assert rebuilt == several
    assert split_together([], 5, 8, entropy()) == [b""] * 8
    assert combine_many(chosen, [], 5) == []


def test_large_thresholds_are_exact() -> None:
    """Words of all ones and the largest coefficients, t·2**32 being largest of what a cohort needs."""
    n, t = 2000, 1400
    secret = b"\xff" * 32
    shares = split(secret, t, n, entropy())
    assert combine([(i, shares[i - 1]) for i in range(n - t + 1, n + 1)], t, n=n) == secret
    points = [(i, words_of(shares[i - 1])[3]) for i in range(1, t + 1)]
    assert interpolate(points, n) == words_of(shares[n - 1])[3]


@pytest.mark.parametrize(("t", "n"), [(2, 10), (5, 10), (1, 1), (0, 3), (1, 3), (-1, 3), (4, 3), (2, 65_537)])
def test_unsafe_thresholds_are_refused(t: int, n: int) -> None:
    with pytest.raises(ThresholdError):
        split(bytes(32), t, n, entropy())


def test_the_refusal_says_what_to_write() -> None:
    with pytest.raises(ThresholdError, match=r"2 out of 10 .*6 to 10"):
        split(bytes(32), 2, 10, entropy())


@pytest.mark.parametrize("index", [0, -1, 5, 65_537])
def test_an_index_outside_the_shares_is_refused(index: int) -> None:
    shares = split(bytes(32), 3, 4, entropy())
    with pytest.raises(ShareIndexError, match=f"index {index} is not from 1 to 4"):
        combine([(1, shares[0]), (2, shares[1]), (index, shares[2])], 3, n=4)


def test_index_zero_would_be_the_secret() -> None:
    forged = bytes(range(32)) + bytes(2)
    shares = split(bytes(32), 2, 3, entropy())
    with pytest.raises(ShareIndexError):
        combine([(0, forged), (1, shares[0])], 2)


def test_exactly_the_threshold_of_distinct_shares() -> None:
    shares = split(bytes(32), 3, 4, entropy())
    with pytest.raises(ShareCountError, match="exactly 3"):
        combine([(i, shares[i - 1]) for i in (1, 2, 3, 4)], 3)
    with pytest.raises(DuplicateShareError, match=r"\[1, 2, 2\]"):
        combine([(1, shares[0]), (2, shares[1]), (2, shares[1])], 3)
    with pytest.raises(ShareCountError):
        combine_many([1, 2, 3], [shares[:3], shares[:2]], 3)


def test_bytes_that_are_no_share() -> None:
    good = split(bytes(32), 2, 2, entropy())
    for length in (0, 32, 33, 35):
        with pytest.raises(ShareLengthError, match=str(length)):
            combine([(1, good[0]), (2, bytes(length))], 2)
    with pytest.raises(ShareValueError, match="65536"):
        combine([(1, good[0]), (2, b"\1" + bytes(31) + b"\1\0")], 2)
    with pytest.raises(ShareLengthError, match="a secret has 32 bytes, not 16"):
        split(bytes(16), 2, 2, entropy())


def test_shares_of_no_secret() -> None:
    # 2·s1 − s2 = 65,536 is what the shares 0 and 1 give, which no word of a secret is.
    one = (1).to_bytes(2, "little") + bytes(32)
    with pytest.raises(InconsistentSharesError):
        combine([(1, bytes(34)), (2, one)], 2)


@given(st.integers(0, 2), st.integers(0, SHARE_BYTES * 8 - 1))
@settings(deadline=None)
def test_a_tampered_share_is_noticed(position: int, bit: int) -> None:
    """The field cannot see it, so it is the public key and the commitment that must."""
    pair = KeyPair.generate(entropy(1))
    seed = entropy(2).bytes(32)
    commitment = commit(seed, device=1, round_number=2)
    key_shares, seed_shares = by_secret(split_together([pair.secret, seed], 3, 5, entropy(3)))

    def tampered(shares: list[bytes]) -> list[tuple[int, bytes]]:
        number = int.from_bytes(shares[position], "little") ^ 1 << bit
        changed = [*shares[:position], number.to_bytes(SHARE_BYTES, "little"), *shares[position + 1 :]]
        return [(i, changed[i - 1]) for i in (1, 2, 3)]

    with pytest.raises((CommitmentMismatchError, ShareValueError, InconsistentSharesError)):
        check_commitment(combine(tampered(seed_shares), 3), commitment, device=1, round_number=2)
    with pytest.raises((KeyMismatchError, ShareValueError, InconsistentSharesError)):
        check_secret(combine(tampered(key_shares), 3), pair.public)


def test_coefficients_are_cached_and_cannot_be_changed() -> None:
    first = shamir.lagrange_at_zero((3, 1, 2))
    assert shamir.lagrange_at_zero((3, 1, 2)) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    assert first.tolist() == [1, 3, PRIME - 3]
