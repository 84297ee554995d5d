"""What devices submit before their inputs: advertised keys, and sealed shares of their secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from coordinator.secure.secagg.cohort import Flags, NeighbourGraph
from edge.crypto.errors import DuplicateKeyError
from edge.crypto.keys import HASH_BYTES, SIGNATURE_BYTES
from edge.secagg.checks import OCTETS, Octets, expect_arrays, read
from edge.secagg.keylist import RECORD_BYTES, KeyRecord, RoundContext, Verify, keys_statement
from edge.secagg.sealing import COMMITMENTS_BYTES, SEALED_BYTES
from edge.wire.messages import AdvertiseKeys, Arrays, SealedShares


class AdvertisedRecords:
    """Records that passed every check, by device, and in active mode the signatures under them.

    Parameters
    ----------
    context : what the round is tied to.
    roster : the public identity of every device in active mode, else None.
    verify : how a signature is checked.
    """

    def __init__(self, context: RoundContext, roster: Mapping[int, bytes] | None, verify: Verify) -> None:
        self._context = context
        self._roster = roster
        self._verify = verify
        self._public_keys: set[bytes] = set()
        self.records: dict[int, KeyRecord] = {}
        self.signatures: dict[int, bytes] = {}

    def take(self, sender: int, message: AdvertiseKeys) -> None:
        """Keep what ``sender`` advertises.

        Raises ``ConfigMismatchError``, ``ModelMismatchError``, ``BadKeyError``, ``LowOrderPointError``,
        ``DuplicateKeyError``, in active mode ``MissingSignatureError`` and ``BadSignatureError``, and the
        errors of :mod:`edge.secagg.checks`; nothing is kept then.
        """
        due = None if self._roster is None else "signature"
        expect_arrays(message.arrays, "record", "context", signature=due)
        self._context.expect(read(message.arrays, "context", OCTETS, (2, HASH_BYTES)).tobytes())
        data = read(message.arrays, "record", OCTETS, (RECORD_BYTES,)).tobytes()
        record = KeyRecord.of(data)
        record.check()
        keys = {record.encryption, record.mask}
        if len(keys) < 2 or keys & self._public_keys:
            raise DuplicateKeyError(f"device {sender} advertises a public key that was advertised before")
        if self._roster is not None:
            signature = read(message.arrays, "signature", OCTETS, (SIGNATURE_BYTES,)).tobytes()
            self._verify(self._roster[sender], signature, keys_statement(self._context, sender, data))
            self.signatures[sender] = signature
        self._public_keys |= keys
        self.records[sender] = record


class SealedStore:
    """What devices sealed for their neighbours, which only those can open.

    Parameters
    ----------
    cohort : who takes part.

    Attributes
    ----------
    commitments : uint8[n, k + 1, 32], of each owner to the shares of each of its holders; zeros for an owner
        that did not share.
    """

    def __init__(self, cohort: NeighbourGraph) -> None:
        self._cohort = cohort
        self._sealed: Octets = np.empty((*cohort.holders.shape, SEALED_BYTES), dtype=np.uint8)
        self.commitments: Octets = np.zeros((*cohort.holders.shape, COMMITMENTS_BYTES), dtype=np.uint8)

    def take(self, at: int, message: SealedShares) -> None:
        """Keep what the device at a position sealed.

        Raises ``MalformedMessageError``, ``WrongLengthError`` and ``WrongDtypeError``.
        """
        cohort = self._cohort
        expect_arrays(message.arrays, "sealed", "commitments")
        rows = read(message.arrays, "sealed", OCTETS, (cohort.k, SEALED_BYTES))
        self.commitments[at] = read(message.arrays, "commitments", OCTETS, (cohort.k + 1, COMMITMENTS_BYTES))
        # A device holds a share of its own secrets too, but seals none for itself.
        own = int(np.searchsorted(cohort.holders[at], at))
        self._sealed[at, :own] = rows[:own]
        self._sealed[at, own + 1 :] = rows[own:]

    def deliveries(self, shared: Flags) -> Iterator[tuple[int, Arrays]]:
        """Yield for each device in ``shared``, bool[n], what its neighbours in there sealed for it."""
        cohort = self._cohort
        for at in np.flatnonzero(shared).tolist():
            holders = cohort.holders[at]
            columns = np.flatnonzero(shared[holders] & (holders != at))
            senders = holders[columns]
            arrays: Arrays = {
                "senders": cohort.devices[senders],
                "sealed": self._sealed[senders, cohort.slots[at, columns]],
                "commitments": self.commitments[senders, cohort.slots[at, columns]],
            }
            yield int(cohort.devices[at]), arrays
