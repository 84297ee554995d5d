"""Which rounds of a run a device has answered: the memory that keeps a coordinator from asking twice.

Two sums over cohorts that differ by one device differ by that device's update, and the mean of many noisy
updates is the update. So a device answers a round once, then only higher ones, and no more rounds than it is
allowed. A round is answered when the invitation is accepted, whatever becomes of it afterwards: the receipt
may be lost, and the update seen all the same. The task that an invitation names makes no difference.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import Reason

Ids = npt.NDArray[np.int64]
Counts = int | npt.NDArray[np.int32]

UNLIMITED: Final = int(np.iinfo(np.int32).max)
"""The number of rounds of a device that is allowed as many as there are."""


def objections(round_number: int, last_round: Counts, rounds: Counts, allowed: Counts) -> Ids:
    """Return why devices do not answer a round, the number of a :class:`Reason` each, int64 [n]; 0: they do.

    Parameters
    ----------
    round_number : the round; the first is 1.
    last_round : the highest round that a device has answered, 0 for none.
    rounds : how many it has answered.
    allowed : how many it may answer in the run.
    """
    spent = np.where(rounds >= allowed, int(Reason.BUDGET_SPENT), int(Reason.NONE))
    return np.where(last_round >= round_number, int(Reason.ALREADY_ANSWERED), spent)


class AnsweredRounds:
    """The memory of all devices of a simulated fleet, a row each.

    Parameters
    ----------
    n : number of devices.
    allowed : how many rounds each may answer.

    Attributes
    ----------
    last_round : int32 [n], the highest round that each has answered, 0 for none.
    rounds : int32 [n], how many it has answered.
    """

    def __init__(self, n: int, allowed: int = UNLIMITED) -> None:
        self._allowed = allowed
        self.last_round = np.zeros(n, dtype=np.int32)
        self.rounds = np.zeros(n, dtype=np.int32)

    def objections(self, ids: Ids, round_number: int) -> Ids:
        """Return why the devices ``ids`` (int64 [n]) do not answer a round; see :func:`objections`."""
        return objections(round_number, self.last_round[ids], self.rounds[ids], self._allowed)

    def add(self, device: int, round_number: int) -> None:
        """Count that a device answers a round."""
        self.last_round[device] = round_number
        self.rounds[device] += 1
