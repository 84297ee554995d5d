"""Which devices report in the clear beside a secure sum: those whose mask passes the scenario's test.

Each device judges its own mask, on its own. The simulator asks for all of a cohort at once, and keeps the
answers: they depend on a device's ratings alone, which do not change.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from coordinator.engine.workload import Ids, RatingWorkload
from edge.core.rng import hashed_bits, stream_key
from edge.learning.base import Work
from edge.learning.updates import ClientUpdate
from edge.privacy.shielding import MaskedMethod, MaskTest

_CLIENTS_AT_ONCE = 256
_UNKNOWN = -1


class Shield:
    """The judgement of every device, made when it is first needed.

    A client of several users passes if the masks of all of them do.

    Parameters
    ----------
    workload : whose method is FedMMF.
    test : what a mask has to pass.
    seed : the run's seed.
    """

    def __init__(self, workload: RatingWorkload, test: MaskTest, seed: int) -> None:
        self._workload = workload
        self._test = test
        self._key = stream_key(seed, "shielded", "held-out")
        self._scale = np.unique(workload.split.train.ratings).astype(np.float64)
        """Which ratings can be given is public, as in the audits."""
        self._judged = np.full(workload.n_clients, _UNKNOWN, dtype=np.int8)

    @property
    def _method(self) -> MaskedMethod:
        # Made anew where devices say the mean rating.
        return cast(MaskedMethod, self._workload.algorithm)

    def passes(self, clients: Ids) -> npt.NDArray[np.bool_]:
        """Return which of ``clients`` (int64 [n]) report in the clear, bool [n]."""
        new = clients[self._judged[clients] == _UNKNOWN]
        for start in range(0, len(new), _CLIENTS_AT_ONCE):
            part = new[start : start + _CLIENTS_AT_ONCE]
            self._judged[part] = self._judge(part)
        return np.asarray(self._judged[clients] == 1)

    def _judge(self, clients: Ids) -> npt.NDArray[np.bool_]:
        workload = self._workload
        offsets, users = workload.clients.gather(clients)
        batch = workload.split.train.gather(users)
        each = self._test.passes(self._method, batch, hashed_bits(self._key, users), self._scale)
        passed: npt.NDArray[np.bool_] = np.logical_and.reduceat(each, offsets[:-1])
        return passed

    def work(self, clients: Ids) -> Work:
        """Return what judging costs each of ``clients``, whatever comes out."""
        return self._workload.work_of(clients, lambda examples: self._test.work(self._method, examples))

    @property
    def table_bytes(self) -> int:
        """Memory that an update takes as the secure sum takes it, beside one that is sparse."""
        algorithm = self._workload.algorithm
        if algorithm.settings.upload == "dense":
            return 0
        return sum(int(spec.nbytes()[0]) for spec in algorithm.summed_spec())

    def summed(self, update: ClientUpdate) -> ClientUpdate:
        """Return an update as the secure sum takes it."""
        return self._method.summed(update)
