"""Who takes part in a round of secure aggregation, and who holds whose shares.

Devices are known here by their position in the ascending list of ids, so that everything about them is an
array. The holders of a device's shares are itself and its neighbours; the place of a holder in that ascending
list, counted from 1, is the index of its share.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edge.crypto.keys import key_list_hash
from edge.crypto.prg import ring_order
from edge.secagg.checks import DeviceIds, octets
from edge.secagg.config import SecAggConfig
from edge.secagg.graph import neighbours
from edge.secagg.keylist import RECORD_BYTES, KeyRecord, RoundContext, ring_seed
from edge.secagg.states import Mode
from edge.wire.messages import KeyList

Positions = npt.NDArray[np.int64]
"""Positions of devices in the cohort."""
Flags = npt.NDArray[np.bool_]
"""One truth a device, by position."""


class NeighbourGraph:
    """The devices that advertised keys, and their graph.

    Attributes
    ----------
    devices : int64[n], ascending ids.
    position : the position of each id.
    records : what each advertised, by position.
    k, t : degree and threshold.
    session : the session's id, 32 bytes.
    holders : int64[n, k + 1], positions of the holders of each device's shares, ascending.
    slots : int64[n, k + 1]; ``slots[v, i]`` is the column of v among the holders of ``holders[v, i]``.

    Raises ``InfeasibleError`` and ``ThresholdError`` if so many devices have no safe graph.
    """

    def __init__(self, config: SecAggConfig, context: RoundContext, records: Mapping[int, KeyRecord]) -> None:
        ids = sorted(records)
        n = len(ids)
        self.k, self.t = config.graph(n)
        self.devices: DeviceIds = np.array(ids, dtype=np.int64)
        self.position = {device: at for at, device in enumerate(ids)}
        self.records = [records[device] for device in ids]
        self._context = context
        self._digest = key_list_hash(
            [(device, record[0], record[1]) for device, record in zip(ids, self.records, strict=True)]
        )
        self.session = context.session(config, self._digest)
        around = neighbours(ring_order(ids, ring_seed(self._digest)), self.k)
        holders = np.searchsorted(self.devices, np.array([(*around[device], device) for device in ids]))
        holders.sort(axis=1)
        self.holders: Positions = holders
        # Row by row, the flat list of edges u → v is ascending. Sorted stably by v it lists, for each v, the
        # edges to it by u: as the graph is symmetric, that is the order of v's own edges.
        by_target = np.argsort(holders.ravel(), kind="stable")
        slots = np.empty(holders.size, dtype=np.int64)
        slots[by_target] = np.arange(holders.size) % (self.k + 1)
        self.slots: Positions = slots.reshape(holders.shape)

    def __len__(self) -> int:
        """Return n, how many take part."""
        return len(self.devices)

    def flags(self, devices: set[int]) -> Flags:
        """Return bool[n], True for ``devices``."""
        flags = np.zeros(len(self), dtype=np.bool_)
        flags[[self.position[device] for device in devices]] = True
        return flags

    def around(self, position: int, flags: Flags) -> int:
        """Return how many of a device and its neighbours are flagged."""
        return int(np.count_nonzero(flags[self.holders[position]]))

    def around_each(self, flags: Flags) -> Positions:
        """Return for every device how many of it and its neighbours are flagged, int64[n]."""
        return np.asarray(np.count_nonzero(flags[self.holders], axis=1), dtype=np.int64)

    def key_lists(self, mode: Mode, signatures: Mapping[int, bytes]) -> list[tuple[int, KeyList]]:
        """Return the key list for every device; ``signatures`` by id are those of the keys in active mode."""
        context = self._context
        encoded = b"".join(record.encoded for record in self.records)
        records = octets(encoded).reshape(-1, RECORD_BYTES)
        digest, hashes = octets(self._digest), octets(context.hashes).reshape(2, -1)
        lists = []
        for at, device in enumerate(self.devices.tolist()):
            rows = self.holders[at]
            arrays: dict[str, npt.NDArray[np.generic]] = {"digest": digest, "context": hashes}
            if mode is Mode.ACTIVE:
                signed = b"".join(
                    signatures[other] for other in self.devices[rows].tolist() if other != device
                )
                arrays["devices"], arrays["records"] = self.devices, records
                arrays["signatures"] = octets(signed).reshape(self.k, -1)
            else:
                arrays["devices"], arrays["records"] = self.devices[rows], records[rows]
            message = KeyList(context.run_id, context.round_number, device, len(self), self.k, self.t, arrays)
            lists.append((device, message))
        return lists
