"""The typed messages between coordinator and devices: of a round, of secure aggregation and of CKKS sums.

Every message names its run and round, so that a stale or replayed frame is recognised. A broadcast carries no
device id: it is the same for every receiver, one object and one encoded frame. In a secure sum ``device`` is
the sender of a message on its way up and the receiver of one on its way down: both ends check it against whom
they are connected with, so a frame that strays is recognised.

The messages are named tuples, the quickest of Python's immutable records: a simulation makes millions of
them. Byte strings travel as uint8 arrays. :data:`KINDS` says how each type travels and what its transfer is
called.

Secure aggregation, with k neighbours in the graph, m of them having shared, n devices in the key list and an
input of L elements:

=====================  ====  =============================================================================
AdvertiseKeys          up    my two public keys and the commitment to my self-mask seed
KeyList                down  the same of my neighbours and me (active mode: of everybody), and k and t
SealedShares           up    for each neighbour: a share of my two secrets that only it can read
SharesDelivery         down  what my neighbours sealed for me
MaskedInput            up    the masked vector
ConsistencyCheck       down  active mode: who survived
ConsistencySignature   up    active mode: my signature under that
UnmaskRequest          down  which of my neighbours are dead (active mode: and the signatures of the others)
UnmaskShares           up    of each neighbour one share: of the mask key if dead, of the self-mask if not
Abort                  both  it ends here, and why; of CKKS sums, too
=====================  ====  =============================================================================

In sums under homomorphic encryption (CKKS) a ciphertext is a string of bytes; those of a message lie one
after the other in ``ciphertexts`` uint8 [bytes], each padded with zeros to a room of fixed size so that the
length of a frame does not depend on what is in it; ``lengths`` int64 [ciphertexts] says how much of each room
is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import EventKind, Stage

Arrays = dict[str, npt.NDArray[np.generic]]

UNSIGNED = "unsigned"
"""An int from 0 to 2**64 − 1."""
REAL = "real"
"""A float64; finite unless the field says otherwise."""
TEXT = "text"
"""A short str."""
ARRAYS = "arrays"
"""A dict of names to arrays."""


class Invite(NamedTuple):
    """Coordinator → device: take part in this round.

    ``report_within_s`` counts from the moment the invitation was sent, so that device clocks need not agree.
    ``model_bytes`` is the size of the model frame, so that a device can decline what it cannot hold.
    """

    run_id: str
    round_number: int
    task: str
    report_within_s: float
    model_bytes: int


class Accept(NamedTuple):
    """Device → coordinator: I take part; send the model."""

    run_id: str
    round_number: int
    device: int


class AcceptBare(NamedTuple):
    """Device → coordinator: I take part; send, with the model, what never changes: I do not have it yet."""

    run_id: str
    round_number: int
    device: int


class Decline(NamedTuple):
    """Device → coordinator: I do not take part; ``reason`` is a :class:`~edge.core.vocabulary.Reason`."""

    run_id: str
    round_number: int
    device: int
    reason: int


class Model(NamedTuple):
    """Coordinator → device: the global model of this round."""

    run_id: str
    round_number: int
    arrays: Arrays


class Report(NamedTuple):
    """Device → coordinator: the update, its aggregation weight and the local training loss."""

    run_id: str
    round_number: int
    device: int
    examples: int
    weight: float
    loss: float
    arrays: Arrays


class Failure(NamedTuple):
    """Device → coordinator: I gave up on this round; ``reason`` is a ``Reason``."""

    run_id: str
    round_number: int
    device: int
    reason: int


class Acknowledge(NamedTuple):
    """Coordinator → device: your report was counted (``reason`` 0), or why it was not."""

    run_id: str
    round_number: int
    reason: int


FROM_DEVICES = (Accept, AcceptBare, Decline, Report, Failure)
"""What devices send."""

Message = Invite | Accept | AcceptBare | Decline | Model | Report | Failure | Acknowledge


class AdvertiseKeys(NamedTuple):
    """Device → coordinator: my keys for this round.

    Arrays: ``record`` uint8 [96]: public key for sealing, public key for masks, commitment to the self-mask
    seed. ``context`` uint8 [2, 32]: hash of the configuration, hash of the model. Active mode: ``signature``
    uint8 [64] of the device's identity under all of that.
    """

    run_id: str
    round_number: int
    device: int
    arrays: Arrays


class KeyList(NamedTuple):
    """Coordinator → device: who takes part, the graph's degree k and threshold t.

    ``members`` is the number of all who take part. Arrays: ``devices`` int64 [m] ascending and ``records``
    uint8 [m, 96]: the receiver and its neighbours; in active mode everybody. ``digest`` uint8 [32] of the
    list of everybody. ``context`` uint8 [2, 32] as in ``AdvertiseKeys``. Active mode: ``signatures``
    uint8 [k, 64] of the neighbours, ascending.
    """

    run_id: str
    round_number: int
    device: int
    members: int
    neighbours: int
    threshold: int
    arrays: Arrays


class SealedShares(NamedTuple):
    """Device → coordinator: my shares for my neighbours, and what I commit myself to.

    Arrays: ``sealed`` uint8 [k, 84], a row for each neighbour, ascending. ``commitments`` uint8 [k + 1, 32]:
    to the two shares of each of them and of the device itself, ascending.
    """

    run_id: str
    round_number: int
    device: int
    arrays: Arrays


class SharesDelivery(NamedTuple):
    """Coordinator → device: ``senders`` int64 [m] ascending, ``sealed`` uint8 [m, 84], of each sender.

    ``commitments`` uint8 [m, 32]: of each sender, to the two shares that it sealed for the receiver.
    """

    run_id: str
    round_number: int
    device: int
    arrays: Arrays


class MaskedInput(NamedTuple):
    """Device → coordinator: ``masked`` uint32 or uint64 [L]."""

    run_id: str
    round_number: int
    device: int
    arrays: Arrays


class ConsistencyCheck(NamedTuple):
    """Coordinator → device, active mode: ``survivors`` int64 [m] ascending; the same for every receiver."""

    run_id: str
    round_number: int
    arrays: Arrays


class ConsistencySignature(NamedTuple):
    """Device → coordinator, active mode: ``signature`` uint8 [64] under session and survivors."""

    run_id: str
    round_number: int
    device: int
    arrays: Arrays


class UnmaskRequest(NamedTuple):
    """Coordinator → device: release one share of each neighbour; ``survivors`` is how many there are in all.

    Arrays: ``dead`` int64 [d] ascending, those of the receiver's neighbours that shared and did not
    contribute. Active mode: ``signers`` int64 [m] ascending and ``signatures`` uint8 [m, 64], of surviving
    neighbours.
    """

    run_id: str
    round_number: int
    device: int
    survivors: int
    arrays: Arrays


class UnmaskShares(NamedTuple):
    """Device → coordinator: ``shares`` uint8 [m, 34], ``unopened`` int64 [u] ascending.

    A row for itself and each neighbour that shared, ascending, except those in ``unopened``, whose share did
    not open or was not what they had committed to. There is one row for each, so a device cannot release both
    shares of anybody.
    """

    run_id: str
    round_number: int
    device: int
    arrays: Arrays


class Abort(NamedTuple):
    """Either way: secure aggregation of this round ends for ``device``; ``reason`` is the error's name."""

    run_id: str
    round_number: int
    device: int
    reason: str


FromDevice = AdvertiseKeys | SealedShares | MaskedInput | ConsistencySignature | UnmaskShares | Abort
FromCoordinator = KeyList | SharesDelivery | ConsistencyCheck | UnmaskRequest | Abort
SecAggMessage = FromDevice | FromCoordinator

SECAGG_FROM_COORDINATOR = (KeyList, SharesDelivery, ConsistencyCheck, UnmaskRequest, Abort)
"""What the coordinator sends in secure aggregation."""


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

AnyMessage = Message | SecAggMessage | CkksMessage
"""All that can travel in a frame."""


class MessageKind(NamedTuple):
    """What there is to know of a type of message.

    ``code`` stands for it on the wire. ``event`` and ``stage`` are what its transfer is called in logs.
    """

    code: int
    event: EventKind
    stage: Stage


KINDS: dict[type[Any], MessageKind] = {
    Invite: MessageKind(1, EventKind.INVITED, Stage.INVITE),
    Accept: MessageKind(2, EventKind.ACCEPTED, Stage.INVITE),
    Decline: MessageKind(3, EventKind.DECLINED, Stage.INVITE),
    Model: MessageKind(4, EventKind.MODEL, Stage.DOWNLOAD),
    Report: MessageKind(5, EventKind.REPORT, Stage.REPORT),
    Failure: MessageKind(6, EventKind.FAILED, Stage.COMPUTE),
    Acknowledge: MessageKind(7, EventKind.ACKNOWLEDGED, Stage.ACKNOWLEDGE),
    AcceptBare: MessageKind(8, EventKind.ACCEPTED, Stage.INVITE),
    AdvertiseKeys: MessageKind(16, EventKind.KEYS, Stage.ADVERTISE_KEYS),
    KeyList: MessageKind(17, EventKind.KEY_LIST, Stage.SHARE_KEYS),
    SealedShares: MessageKind(18, EventKind.SEALED_SHARES, Stage.SHARE_KEYS),
    SharesDelivery: MessageKind(19, EventKind.SHARES, Stage.MASKED_INPUT),
    MaskedInput: MessageKind(20, EventKind.MASKED_INPUT, Stage.MASKED_INPUT),
    ConsistencyCheck: MessageKind(21, EventKind.SURVIVORS, Stage.CONSISTENCY),
    ConsistencySignature: MessageKind(22, EventKind.SIGNATURE, Stage.CONSISTENCY),
    UnmaskRequest: MessageKind(23, EventKind.UNMASK_REQUEST, Stage.UNMASK),
    UnmaskShares: MessageKind(24, EventKind.UNMASK_SHARES, Stage.UNMASK),
    Abort: MessageKind(25, EventKind.ABORTED, Stage.ACKNOWLEDGE),
    EncryptedInput: MessageKind(32, EventKind.ENCRYPTED_INPUT, Stage.MASKED_INPUT),
    DecryptRequest: MessageKind(33, EventKind.DECRYPT_REQUEST, Stage.UNMASK),
    DecryptedSum: MessageKind(34, EventKind.DECRYPTED_SUM, Stage.UNMASK),
}
"""Every type of message; codes are only ever added."""


def fields_of(message_type: type[NamedTuple]) -> tuple[tuple[str, str], ...]:
    """Return name and kind of each field of a type of message, as they are sent, run and round first."""
    kinds = {int: UNSIGNED, float: REAL, str: TEXT, Arrays: ARRAYS}
    return tuple((name, kinds[hint]) for name, hint in get_type_hints(message_type).items())
