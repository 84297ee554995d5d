"""What the coordinator has learnt of each device, from the frames that it received and from nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import Reason
from edge.wire.messages import AdvertiseKeys, AnyMessage, EncryptedInput, Report

Ids = npt.NDArray[np.int64]

UPDATES = frozenset((Report, AdvertiseKeys, EncryptedInput))
"""What a device sends first once its update is ready."""
ANSWERS = (Reason.NONE, Reason.DEADLINE, Reason.COHORT_FULL, Reason.STALE)
"""How the coordinator judges an update that answers the invitation, be it too late."""
_COLUMNS = ("invited", "reports", "examples", "loss", "duration_s", "last_round")


class Experience:
    """A row of arrays per device, filled as invitations leave and reports arrive, late ones included.

    Parameters
    ----------
    n : devices of the fleet.

    Attributes
    ----------
    invited : uint32 [n], how often each device was invited.
    reports : uint32 [n], how many updates of each device have arrived.
    examples : uint32 [n], number of examples in its last report.
    loss : float32 [n], training loss in its last report; NaN before the first.
    duration_s : float32 [n], seconds from its last invitation to its update; NaN before the first.
    last_round : int32 [n], the round of its last report; 0 before the first.
    utility_of_round : sum of :meth:`statistical_utility` over the reports of each round.

    Under secure aggregation an update arrives without examples and loss, and those stay unknown.
    """

    def __init__(self, n: int) -> None:
        self.invited = np.zeros(n, np.uint32)
        self.reports = np.zeros(n, np.uint32)
        self.examples = np.zeros(n, np.uint32)
        self.loss = np.full(n, np.nan, np.float32)
        self.duration_s = np.full(n, np.nan, np.float32)
        self.last_round = np.zeros(n, np.int32)
        self.utility_of_round: defaultdict[int, float] = defaultdict(float)
        self._known: list[int] = []

    def invite(self, ids: Ids) -> None:
        """Count an invitation of the devices ``ids`` (int64 [n], each once)."""
        self.invited[ids] += 1

    def learn(self, device: int, message: AnyMessage, reason: Reason, duration_s: float) -> None:
        """Record one of the :data:`UPDATES`, ``duration_s`` after the device was invited.

        It may have come in time or late, but one that is no answer (``reason`` says so) teaches nothing.
        """
        if reason not in ANSWERS:
            return
        self.answered(device, message.round_number, duration_s)
        if isinstance(message, Report):
            self.reported(device, message.round_number, message.examples, message.loss)

    def answered(self, device: int, round_number: int, duration_s: float) -> None:
        """Record the arrival of a device's update, ``duration_s`` after its invitation."""
        if self.reports[device] == 0:
            self._known.append(device)
        self.reports[device] += 1
        self.duration_s[device] = duration_s
        self.last_round[device] = round_number

    def reported(self, device: int, round_number: int, examples: int, loss: float) -> None:
        """Record the loss and examples in a device's report."""
        self.examples[device] = examples
        self.loss[device] = loss
        self.utility_of_round[round_number] += examples * abs(loss)

    def known(self) -> Ids:
        """Return the devices of which an update has arrived, int64, increasing."""
        return np.sort(np.array(self._known, dtype=np.int64))

    def memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return all of it as arrays by name."""
        rounds = self.utility_of_round
        return {name: getattr(self, name) for name in _COLUMNS} | {
            "known": self.known(),
            "utility_rounds": np.array(list(rounds), dtype=np.int64),
            "utilities": np.array(list(rounds.values()), dtype=np.float64),
        }

    def recall(self, memory: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with what :meth:`memory` returned."""
        for name in _COLUMNS:
            getattr(self, name)[:] = memory[name]
        self._known[:] = memory["known"].tolist()
        rounds, utilities = memory["utility_rounds"].tolist(), memory["utilities"].tolist()
        self.utility_of_round.update(zip(rounds, utilities, strict=True))

    def statistical_utility(self, ids: Ids) -> npt.NDArray[np.float64]:
        """Return examples times sqrt(mean loss²) of each device of ``ids``, NaN where no report has come.

        Lai et al. 2021 (Oort), equation 1. A report holds the mean loss of its examples, so that the root
        mean square over them is taken to be as large as the mean: it is never less.
        """
        return np.asarray(self.examples[ids] * np.abs(self.loss[ids].astype(np.float64)), np.float64)
