"""The messages of aggregation under homomorphic encryption (CKKS).

Named tuples like those of :mod:`edge.wire.messages`. A ciphertext is a string of bytes; those of a message
lie one after the other in ``ciphertexts`` uint8 [bytes], each padded with zeros to a room of fixed size so
that the length of a frame does not depend on what is in it; ``lengths`` int64 [ciphertexts] says how much of
each room is used. A round that ends early says so with :class:`edge.wire.secagg_messages.Abort`.
"""

from __future__ import annotations

from typing import NamedTuple

from edge.core.vocabulary import EventKind, Stage
from edge.wire.messages import Arrays, MessageKind


class EncryptedInput(NamedTuple):
    """Device → coordinator: the encrypted update; arrays ``ciphertexts`` and ``lengths``."""

    run_id: str
    round_number: int
    device: int
    arrays: Arrays


class DecryptRequest(NamedTuple):
    """Coordinator → device: decrypt the sum over ``survivors`` devices; arrays as above."""

    run_id: str
    round_number: int
    device: int
    survivors: int
    arrays: Arrays


class DecryptedSum(NamedTuple):
    """Device → coordinator: ``total`` float64 [L]."""

    run_id: str
    round_number: int
    device: int
    arrays: Arrays


CkksMessage = EncryptedInput | DecryptRequest | DecryptedSum

KINDS: dict[type[CkksMessage], MessageKind] = {
    EncryptedInput: MessageKind(32, EventKind.ENCRYPTED_INPUT, Stage.MASKED_INPUT),
    DecryptRequest: MessageKind(33, EventKind.DECRYPT_REQUEST, Stage.UNMASK),
    DecryptedSum: MessageKind(34, EventKind.DECRYPTED_SUM, Stage.UNMASK),
}
"""What there is to know of each type; codes are only ever added, and none is used elsewhere."""
