"""Who masks with whom: the neighbour graph of SecAgg+ and the choice of its degree and threshold.

Devices sit on a ring in a random order and each has its k/2 nearest on either side as neighbours, which is a
Harary graph: it falls apart only if k devices leave it. The rules are those of Bell et al. 2020
("Secure Single-Server Aggregation with (Poly)Logarithmic Overhead"), with n devices of which a fraction γ may
collude with the coordinator and a fraction δ drops out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edge.crypto.errors import DuplicateKeyError, InfeasibleError, ThresholdError

COMPLETE_UP_TO = 50
"""Up to this many devices the complete graph is cheap enough to be the better choice."""
SIGMA = 40
"""With probability 1 − 2**−SIGMA no neighbourhood of a graph has too many corrupt devices."""
GRINDING_BITS = 64
"""Who completes the key list can try 2**GRINDING_BITS rings at most before it has to choose one.

The ring follows from the hash of the list, so another key of a device of its own, or a device left out, is
another ring. The probability that one of several rings is bad is at most that of one times their number. A
try takes a hash and a ring, above a microsecond; the honest devices' keys are fresh, so tries begin with the
round. A million cores that do one a microsecond for a day make 2**57.
"""
_LARGEST_LOSS = Fraction(9, 10)


class GraphParameters(NamedTuple):
    """Degree and threshold: ``k`` neighbours, itself excluded, and ``t`` of the k + 1 shares needed."""

    k: int
    t: int


# -- choice of k and t -----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def find_parameters(
    n: int, corrupt: float, dropout: float, *, active: bool = True, sigma: int = SIGMA, eta: int = 20
) -> GraphParameters:
    """Return the smallest degree, and its threshold, that are safe and robust for a cohort.

    The smallest even k for which (1) with probability 1 − 2**−(sigma + 1) the honest survivors stay
    connected, (2, 3) there is a threshold that with probability 1 − 2**−(sigma + 1) no device's corrupt
    neighbours reach, and with probability 1 − 2**−eta every device's surviving neighbours do, and (4) with
    ``active``, the corrupt neighbours together with one half of the other holders, the device itself among
    them, do not reach it either, so that telling different survivors different stories reveals nothing twice.

    Parameters
    ----------
    n : devices in the cohort, at least 2.
    corrupt : γ, from 0.
    dropout : δ, from 0; γ + δ at most 0.9, with ``active`` γ + 2δ at most 0.9.
    active : apply rule (4). Without it, as published tables of the semi-honest case do, a threshold may be
        at or below half of the shares, which :func:`check_parameters` refuses.
    sigma, eta : exponents of the permitted failure of privacy and of robustness.

    Raises ``InfeasibleError``, saying what to change. A result is cached.
    """
    a, survivors, lost = _counts(n, corrupt, dropout, active=active)
    log_factorial = _log_factorials(n)
    for k in range(2, n - 1, 2):
        exposed = _exposed_at(log_factorial, n, k, a, lost, sigma, active=active)
        if exposed is None:
            continue
        if exposed < _lower_quantile(log_factorial, n, survivors, k, 2.0**-eta / n):
            return GraphParameters(k, max(exposed + 1, 2))
    raise InfeasibleError(
        f"no sparse graph of {n} devices is safe with {corrupt:g} corrupt and {dropout:g} dropping out; use "
        f"the complete graph, a larger cohort or smaller fractions"
    )


def complete_parameters(n: int, corrupt: float, dropout: float) -> GraphParameters:
    """Return the lowest safe threshold of the complete graph, k = n − 1.

    Everybody is everybody's neighbour, so nothing is left to chance: of the n shares of a secret ⌊γn⌋ are in
    corrupt hands and ⌈(1 − δ)n⌉ survive. t > (n + ⌊γn⌋)/2 (Bonawitz et al. 2017, the threshold against an
    active server), which as many survivors always reach.

    Raises ``InfeasibleError`` for fewer than 2 devices, or for fractions as in :func:`find_parameters`.
    """
    # γ + 2δ <= 0.9 gives (n + A)/2 < n − D, so the threshold is at most the number of survivors.
    a, _, _ = _counts(n, corrupt, dropout, active=True)
    return GraphParameters(n - 1, (n + a) // 2 + 1)


def choose_parameters(n: int, corrupt: float, dropout: float, *, grinding_bits: int = 0) -> GraphParameters:
    """Return parameters by the active rule, which :func:`check_parameters` always accepts.

    They are as safe against the best of 2**``grinding_bits`` rings as else against one.

    Up to ``COMPLETE_UP_TO`` devices the graph is complete. Beyond, a sparse one always exists: with n − 3
    neighbours chance has hardly any part left.

    Raises ``InfeasibleError`` as :func:`complete_parameters`.
    """
    if n <= COMPLETE_UP_TO:
        return complete_parameters(n, corrupt, dropout)
    return find_parameters(n, corrupt, dropout, sigma=SIGMA + grinding_bits)


@lru_cache(maxsize=1024)
def check_private(n: int, k: int, t: int, corrupt: float, dropout: float, *, grinding_bits: int = 0) -> None:
    """Refuse a degree and threshold that corrupt devices and a lying coordinator break.

    They are held against the rules by which :func:`choose_parameters` chooses, those of privacy only: how
    robust a sum must be is for whoever writes them. The other parameters are those of
    :func:`choose_parameters`.

    Raises ``InfeasibleError`` for a degree with which no threshold is safe, naming the least that has one;
    ``ThresholdError`` for a threshold that is too low, naming the lowest that is safe.
    """
    a, _, lost = _counts(n, corrupt, dropout, active=False)
    log_factorial = _log_factorials(n)

    def lowest(k: int) -> int | None:
        if k == n - 1:
            return (n + a) // 2 + 1
        exposed = _exposed_at(log_factorial, n, k, a, lost, SIGMA + grinding_bits, active=True)
        return None if exposed is None or exposed > k else max(exposed + 1, 2)

    least = lowest(k)
    if least is None:
        enough = next(more for more in (*range(2, n - 1, 2), n - 1) if lowest(more) is not None)
        raise InfeasibleError(
            f"with {k} neighbours each no threshold is safe for {n} devices, {a} of them corrupt and "
            f"{lost - a} dropping out; write {enough} or more, {enough} with a threshold of "
            f"{lowest(enough)} or more, or 'unsafe: true'"
        )
    if t < least:
        raise ThresholdError(
            f"a threshold of {t} out of {k + 1} shares is unsafe for {n} devices, {a} of them corrupt; write "
            f"{least} to {k + 1}, or 'unsafe: true'"
        )


def check_parameters(n: int, k: int, t: int) -> None:
    """Refuse a degree and threshold that cannot work or are unsafe, whoever is corrupt.

    Raises ``InfeasibleError`` for a degree that n devices cannot have, and ``ThresholdError`` unless
    (k + 1)/2 < t <= k + 1 and t >= 2: at or below half of the shares, a coordinator that tells half of the
    neighbours that a device is dead and the other half that it is alive would get both of its secrets.
    """
    _check_degree(n, k)
    if not max(2, (k + 1) // 2 + 1) <= t <= k + 1:
        raise ThresholdError(
            f"a threshold of {t} out of {k + 1} shares is unsafe; write {max(2, (k + 1) // 2 + 1)} to {k + 1}"
        )


def _counts(n: int, corrupt: float, dropout: float, *, active: bool) -> tuple[int, int, int]:
    """Return corrupt devices, survivors, and corrupt plus dropped devices."""
    if n < 2:
        raise InfeasibleError(f"a secure sum needs at least 2 devices, not {n}")
    if not (0 <= corrupt < 1 and 0 <= dropout < 1):
        raise InfeasibleError(
            f"fractions are from 0 to below 1, not {corrupt} corrupt, {dropout} dropping out"
        )
    # The decimal that was written, not the float next to it: 0.3 of 100 is 30, never 29 or 31.
    gamma, delta = Fraction(repr(float(corrupt))), Fraction(repr(float(dropout)))
    if gamma + (2 if active else 1) * delta > _LARGEST_LOSS:
        raise InfeasibleError(
            f"{corrupt:g} corrupt and {'twice ' if active else ''}{dropout:g} dropping out are together "
            f"above 0.9; write smaller fractions"
        )
    a = math.floor(gamma * n)
    return a, math.ceil((1 - delta) * n), a + math.floor(delta * n)


def _exposed_at(
    log_factorial: npt.NDArray[np.float64], n: int, k: int, a: int, lost: int, sigma: int, *, active: bool
) -> int | None:
    """Return the highest threshold that rules (2) and (4) forbid; None for every one, by rule (1)."""
    if k <= lost and _log_disconnected(n, k, lost) >= -(sigma + 1) * math.log(2):
        return None
    t1 = _upper_quantile(log_factorial, n, a, k, 2.0 ** -(sigma + 1) / n)
    # Of k + 1 holders, the device itself among them, t1 release shares of both secrets, the others of one.
    return (k + 1 + t1) // 2 if active else t1


def _log_disconnected(n: int, k: int, lost: int) -> float:
    """Return the logarithm of the bound on the probability that the honest survivors fall apart."""
    return (
        math.log(n)
        + math.log(n - k - 1)
        - math.log(2)
        + math.lgamma(lost + 1)
        + math.lgamma(n - k + 1)
        - math.lgamma(n + 1)
        - math.lgamma(lost - k + 1)
    )


def _log_factorials(n: int) -> npt.NDArray[np.float64]:
    """Return ln 0! … ln n!."""
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n + 1, dtype=np.float64)))))


def _hypergeometric(
    log_factorial: npt.NDArray[np.float64], n: int, marked: int, k: int
) -> npt.NDArray[np.float64]:
    """Return P[X = x], x = 0 … k, for k draws without replacement from n of which ``marked`` count."""
    x = np.arange(k + 1)
    possible = (x <= marked) & (k - x <= n - marked)
    x = x[possible]

    def log_choose(total: int, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return np.asarray(log_factorial[total] - log_factorial[chosen] - log_factorial[total - chosen])

    out = np.zeros(k + 1)
    log_ways = log_choose(marked, x) + log_choose(n - marked, k - x)
    out[possible] = np.exp(log_ways - log_choose(n, np.array([k])))
    return out


def _upper_quantile(
    log_factorial: npt.NDArray[np.float64], n: int, marked: int, k: int, permitted: float
) -> int:
    """Return min{x : P[X > x] <= permitted}."""
    above = np.cumsum(_hypergeometric(log_factorial, n, marked, k)[::-1])[::-1]
    # above[x] is P[X >= x]; adding the small terms first keeps the tail's digits.
    return int(np.count_nonzero(above[1:] > permitted))


def _lower_quantile(
    log_factorial: npt.NDArray[np.float64], n: int, marked: int, k: int, permitted: float
) -> int:
    """Return max{x : P[X < x] <= permitted}, x up to k."""
    below = np.cumsum(_hypergeometric(log_factorial, n, marked, k))
    return int(np.count_nonzero(below[:-1] <= permitted))


# -- the ring --------------------------------------------------------------------------------------------


def neighbours(order: Sequence[int], k: int) -> dict[int, tuple[int, ...]]:
    """Return the neighbours of every device, in ascending order: the k nearest on the ring ``order``.

    Being neighbours is mutual. ``k`` is even, or n − 1 for the complete graph.

    Raises ``InfeasibleError`` for a degree that the ring cannot have, ``DuplicateKeyError`` for a device
    that is on it twice.
    """
    n = len(order)
    _check_degree(n, k)
    if len(set(order)) != n:
        raise DuplicateKeyError("a device is on the ring twice")
    ids = np.array(order, dtype=np.int64)
    if k == n - 1:
        steps = np.arange(1, n)
    else:
        steps = np.concatenate((np.arange(1, k // 2 + 1), np.arange(n - k // 2, n)))
    around = ids[(np.arange(n)[:, np.newaxis] + steps) % n]
    around.sort(axis=1)
    return dict(zip(order, map(tuple, around.tolist()), strict=True))


def _check_degree(n: int, k: int) -> None:
    if not 1 <= k <= n - 1 or (k % 2 and k != n - 1):
        raise InfeasibleError(
            f"{n} devices cannot have {k} neighbours each; write an even number from 2 to {n - 2}, or "
            f"{n - 1} for the complete graph"
        )
