"""Shamir's secret sharing over the field of 65,537 elements, for 32-byte secrets.

A secret is 16 words of 16 bits, each the constant term of its own random polynomial of degree t − 1 (Shamir
1979, "How to share a secret"). Share i is the polynomials' values at x = i, i = 1 … n by position. Any t
shares give the secret back, by Lagrange interpolation at 0; fewer say nothing about it.

The field is small enough for float64 matrix products to be exact: every entry is at most 2**16, so a sum of t
products is at most t·2**32, which is below 2**53 for every t the field allows. Shares carry no proof of their
own; whoever combines them checks the result against a public key or a commitment (:mod:`edge.crypto.keys`).

A share travels in 34 bytes: its 16 words little-endian, and one bit a word for the single value, 65,536, that
16 bits cannot hold (its word is then zero).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from edge.crypto.entropy import Entropy
from edge.crypto.errors import (
    DuplicateShareError,
    InconsistentSharesError,
    ShareCountError,
    ShareIndexError,
    ShareLengthError,
    ShareValueError,
    ThresholdError,
)

PRIME = 65_537
"""Order of the field, 2**16 + 1."""
SECRET_BYTES = 32
"""Length of a secret."""
SHARE_BYTES = 34
"""Length of an encoded share."""
MOST_SHARES = PRIME - 1
"""There are no more points than this besides zero."""

_WORDS = SECRET_BYTES // 2
_GENERATOR = 3
_ORDER = PRIME - 1
_REFUSED = 0xFFFF_FFFF
"""2**32 − 1 is a multiple of the prime, so all other 32-bit words are uniform modulo it."""


def check_threshold(t: int, n: int) -> None:
    """Refuse a threshold that does not protect a secret split into ``n`` shares.

    Above half of the shares, no two disjoint groups can reconstruct; so nobody who gathers different shares
    under different pretexts from different devices gets two secrets where the protocol allows one.

    Raises ``ThresholdError`` unless n/2 < t <= n and t >= 2, or for more shares than the field has points.
    """
    if n > MOST_SHARES:
        raise ThresholdError(f"{n} shares are more than the {MOST_SHARES} that the field has points for")
    if not 2 <= t <= n or 2 * t <= n:
        raise ThresholdError(
            f"a threshold of {t} out of {n} shares is unsafe; it must be at least 2, more than half of the "
            f"shares and no more than all of them: {max(2, n // 2 + 1)} to {n}"
        )


# -- splitting -------------------------------------------------------------------------------------------


def split_together(secrets: Sequence[bytes], t: int, n: int, entropy: Entropy) -> list[bytes]:
    """Split several secrets at once, each with its own polynomials.

    Parameters
    ----------
    secrets : 32 bytes each.
    t : how many shares reconstruct.
    n : how many shares are made.
    entropy : where the coefficients come from.

    Returns
    -------
    For each of ``n`` holders its encoded shares, those of all secrets one behind the other; those at position
    i have index i + 1.

    Raises as :func:`check_threshold`, and ``ShareLengthError`` for a secret of another length.
    """
    check_threshold(t, n)
    for secret in secrets:
        if len(secret) != SECRET_BYTES:
            raise ShareLengthError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    width = len(secrets) * _WORDS
    coefficients = np.empty((t, width), dtype=np.float64)
    coefficients[0] = np.frombuffer(b"".join(secrets), dtype="<u2")
    coefficients[1:] = _uniform(entropy, (t - 1) * width).reshape(t - 1, width)
    values = _powers(t, n) @ coefficients
    encoded = _encode(_reduced(values).reshape(n * len(secrets), _WORDS))
    # Rows are ordered by share and then by secret.
    data, size = encoded.tobytes(), len(secrets) * SHARE_BYTES
    return [data[at * size : (at + 1) * size] for at in range(n)]


def split(secret: bytes, t: int, n: int, entropy: Entropy) -> list[bytes]:
    """Split one secret; see :func:`split_together`."""
    return split_together((secret,), t, n, entropy)


def _uniform(entropy: Entropy, count: int) -> npt.NDArray[np.uint32]:
    """Return ``count`` exactly uniform elements of the field."""
    words = np.frombuffer(entropy.bytes(4 * count), dtype="<u4")
    refused = words == _REFUSED
    while refused.any():
        words = words.copy()
        words[refused] = np.frombuffer(entropy.bytes(4 * int(refused.sum())), dtype="<u4")
        refused = words == _REFUSED
    return words % np.uint32(PRIME)


# -- combining -------------------------------------------------------------------------------------------


def combine_many(
    indices: Sequence[int], shares: Sequence[Sequence[bytes]], t: int, *, n: int = MOST_SHARES
) -> list[bytes]:
    """Reconstruct several secrets whose shares have the same indices.

    Parameters
    ----------
    indices : ``t`` distinct share indices, 1 … ``n``.
    shares : for each secret its ``t`` encoded shares, in the order of ``indices``.
    t : the threshold; exactly as many shares are used.
    n : how many shares were made.

    Returns
    -------
    The secrets. A share that was tampered with gives another secret, not an error: check every result.

    Raises ``ShareCountError``, ``ShareIndexError``, ``DuplicateShareError``, ``ShareLengthError``,
    ``ShareValueError``, and ``InconsistentSharesError`` if the result cannot be a secret.
    """
    _check_indices(indices, t, n)
    for row in shares:
        if len(row) != t:
            raise ShareCountError(f"{len(row)} shares for a threshold of {t}; exactly {t} are used")
    weights = lagrange_at_zero(tuple(indices))
    points = decode([share for row in shares for share in row]).reshape(len(shares), t, _WORDS)
    words = _reduced(weights @ points)
    if words.size and int(words.max()) == PRIME - 1:
        raise InconsistentSharesError("the shares do not belong to one secret: a word of it has 17 bits")
    return [row.tobytes() for row in words.astype("<u2")]


def combine(shares: Sequence[tuple[int, bytes]], t: int, *, n: int = MOST_SHARES) -> bytes:
    """Reconstruct one secret from exactly ``t`` pairs of index and share; see :func:`combine_many`."""
    return combine_many([index for index, _ in shares], [[share for _, share in shares]], t, n=n)[0]


def _check_indices(indices: Sequence[int], t: int, n: int) -> None:
    if len(indices) != t:
        raise ShareCountError(f"{len(indices)} shares for a threshold of {t}; exactly {t} are used")
    for index in indices:
        if not 1 <= index <= n:
            raise ShareIndexError(f"share index {index} is not from 1 to {n}")
    if len(set(indices)) != t:
        raise DuplicateShareError(f"a share index occurs twice: {sorted(indices)}")


@lru_cache(maxsize=4096)
def lagrange_at_zero(indices: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return the Lagrange coefficients at 0 for distinct non-zero points, float64[t] of field elements.

    λ_i = Π_{j≠i} x_j / (x_j − x_i). Products are sums of discrete logarithms. The result is cached and
    read-only.
    """
    logarithms, powers = _tables()
    points = np.array(indices, dtype=np.int64)
    differences = (points[np.newaxis, :] - points[:, np.newaxis]) % PRIME
    # The logarithm table says 0 for 0, so the diagonal drops out of the sum.
    own = logarithms[points]
    exponents = own.sum() - own - logarithms[differences].sum(axis=1)
    weights: npt.NDArray[np.float64] = powers[exponents % _ORDER].astype(np.float64)
    weights.flags.writeable = False
    return weights


# -- encoding --------------------------------------------------------------------------------------------


def _encode(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Encode int64[m, 16] as uint8[m, 34]."""
    out = np.empty((len(values), SHARE_BYTES), dtype=np.uint8)
    out[:, :SECRET_BYTES] = values.astype("<u2").view(np.uint8)
    out[:, SECRET_BYTES:] = np.packbits(values == PRIME - 1, axis=1, bitorder="little")
    return out


def decode(shares: Sequence[bytes]) -> npt.NDArray[np.float64]:
    """Return encoded shares as field elements, float64[len(shares), 16].

    Raises ``ShareLengthError``, and ``ShareValueError`` for bytes that no share is encoded as.
    """
    for share in shares:
        if len(share) != SHARE_BYTES:
            raise ShareLengthError(f"a share has {SHARE_BYTES} bytes, not {len(share)}")
    data = np.frombuffer(b"".join(shares), dtype=np.uint8).reshape(len(shares), SHARE_BYTES)
    words = np.ascontiguousarray(data[:, :SECRET_BYTES]).view("<u2")
    values = words.astype(np.float64)
    marks = data[:, SECRET_BYTES:]
    if marks.any():
        marked = np.unpackbits(marks, axis=1, bitorder="little").astype(np.bool_)
        if words[marked].any():
            raise ShareValueError("a word of a share is marked as 65536 and is not zero")
        values[marked] = PRIME - 1
    return values


# -- the field -------------------------------------------------------------------------------------------


def _reduced(exact: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return whole non-negative floats below 2**53 modulo the prime."""
    return exact.astype(np.int64) % PRIME


@lru_cache(maxsize=16)
def _powers(t: int, n: int) -> npt.NDArray[np.float64]:
    """Return i**j modulo the prime for i = 1 … n, j = 0 … t − 1: float64[n, t], read-only."""
    logarithms, powers = _tables()
    exponents = logarithms[1 : n + 1, np.newaxis] * np.arange(t) % _ORDER
    matrix: npt.NDArray[np.float64] = powers[exponents].astype(np.float64)
    matrix.flags.writeable = False
    return matrix


@lru_cache(maxsize=1)
def _tables() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return discrete logarithms int64[65537] (0 for 0) and powers int64[65536] of the generator 3."""
    powers = np.ones(_ORDER, dtype=np.int64)
    known, factor = 1, _GENERATOR
    while known < _ORDER:
        powers[known : 2 * known] = powers[:known] * factor % PRIME
        known *= 2
        factor = factor * factor % PRIME
    logarithms = np.zeros(PRIME, dtype=np.int64)
    logarithms[powers] = np.arange(_ORDER)
    return logarithms, powers
