"""The keys that devices advertise at the start of a round."""

from __future__ import annotations

from collections.abc import Mapping

from edge.crypto.errors import DuplicateKeyError
from edge.crypto.keys import HASH_BYTES, SIGNATURE_BYTES
from edge.secagg.checks import OCTETS, expect_arrays, read
from edge.secagg.keylist import RECORD_BYTES, KeyRecord, RoundContext, Verify, keys_statement
from edge.wire.messages import AdvertiseKeys


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
