"""What each device has spent of differential privacy, and the ε of the device that spent most.

One rule for all mechanisms: a device has spent a release once its update can be seen in it, with the noise
that hides it, whatever became of the round. ε is that of the device with the most releases, under both
relations between neighbours (:class:`~edge.privacy.accounting.Neighbours`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edge.privacy.accounting import Accountant, Neighbours, Release

_Counts = tuple[int, ...]
"""How often a device was in each kind of release."""


class Epsilon(NamedTuple):
    """ε under both relations between neighbours; ``zero_out`` is never the larger."""

    zero_out: float
    replace_one: float


class Ledger:
    """Counts of the releases that each device was in.

    Parameters
    ----------
    tier : int64 [devices], the tier of each device, from 0; devices of a tier have the same noise.
    kinds : for each kind of release, what it is to a device of each tier.
    delta : δ at which ε is given, above 0 and below 1.

    Attributes
    ----------
    counts : int32 [kinds, devices], how often each device was in a release of each kind.
    """

    def __init__(self, tier: npt.NDArray[np.int64], kinds: Sequence[Sequence[Release]], delta: float) -> None:
        self._tier = tier
        self._kinds = kinds
        self._delta = delta
        tiers = len(kinds[0])
        self._devices = np.bincount(tier, minlength=tiers)
        self.counts = np.zeros((len(kinds), len(tier)), np.int32)
        nothing = (0,) * len(kinds)
        self._most: list[set[_Counts]] = [{nothing} for _ in range(tiers)]
        """By tier, the counts that no device of it exceeds in every kind."""
        self._known: dict[tuple[int, _Counts], Epsilon] = {}

    def count(self, kind: int, devices: npt.NDArray[np.int64] | None) -> None:
        """Count a release of ``kind`` that each of ``devices`` (distinct) was in; None: every device."""
        if devices is None:
            self.counts[kind] += 1
            self._most = [
                {(*one[:kind], one[kind] + 1, *one[kind + 1 :]) for one in most} if present else most
                for most, present in zip(self._most, self._devices.tolist(), strict=True)
            ]
            return
        self.counts[kind, devices] += 1
        self._compare(devices)

    def recall(self, counts: npt.NDArray[np.int32]) -> None:
        """Go on with the ``counts`` of an earlier process, int32 [kinds, devices]."""
        self.counts[:] = counts
        self._compare(np.flatnonzero(counts.any(axis=0)))

    def most(self, tier: int) -> int:
        """Return the number of releases of the device of ``tier`` that was in most."""
        return max(sum(one) for one in self._most[tier])

    def epsilon(self, tier: int | None = None) -> Epsilon:
        """Return the ε of the device of ``tier``, or of the fleet, that has spent most; 0 before a release.

        Raises ``MissingExtraError``.
        """
        tiers: Iterable[int] = range(len(self._most)) if tier is None else (tier,)
        found = [self._of_counts(one, counts) for one in tiers for counts in self._most[one]]
        return Epsilon(max(one.zero_out for one in found), max(one.replace_one for one in found))

    def _of_counts(self, tier: int, counts: _Counts) -> Epsilon:
        found = self._known.get((tier, counts))
        if found is None:
            spent = []
            for neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE):
                accountant = Accountant(neighbours)
                for releases, times in zip(self._kinds, counts, strict=True):
                    accountant.compose(releases[tier], times)
                spent.append(accountant.epsilon(self._delta))
            found = self._known[tier, counts] = Epsilon(*spent)
        return found

    def _compare(self, devices: npt.NDArray[np.int64]) -> None:
        """Take the counts of ``devices`` into :attr:`_most`."""
        rows = np.vstack((self._tier[devices], self.counts[:, devices]))
        new: dict[int, set[_Counts]] = {}
        for tier, *counts in np.unique(rows, axis=1).T.tolist():
            new.setdefault(tier, set()).add(tuple(counts))
        for tier, found in new.items():
            self._most[tier] = _undominated(self._most[tier] | found)


def _undominated(counts: set[_Counts]) -> set[_Counts]:
    """Return those of ``counts`` that no other is at least as large as in every place."""
    rest: set[_Counts] = set()
    # A larger one has a larger sum.
    for one in sorted(counts, key=sum, reverse=True):
        if not any(all(a >= b for a, b in zip(other, one, strict=True)) for other in rest):
            rest.add(one)
    return rest
