"""The messages of secure aggregation.

Named tuples like those of :mod:`edge.wire.messages`, made of the same kinds of fields. Every message names
its run and round. ``device`` is the sender of a message on its way up and the receiver of one on its way
down: both ends check it against whom they are connected with, so a frame that strays is recognised. Byte
strings travel as uint8 arrays. The messages' own texts say which arrays they have.

With k neighbours in the graph, m of them having shared, n devices in the key list and an input of L elements:

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
Abort                  both  it ends here, and why
=====================  ====  =============================================================================
"""

from __future__ import annotations

from typing import NamedTuple

from edge.core.vocabulary import EventKind, Stage
from edge.wire.messages import Arrays, MessageKind


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

FROM_DEVICES = (AdvertiseKeys, SealedShares, MaskedInput, ConsistencySignature, UnmaskShares, Abort)
"""What devices send."""
FROM_COORDINATOR = (KeyList, SharesDelivery, ConsistencyCheck, UnmaskRequest, Abort)
"""What the coordinator sends."""

KINDS: dict[type[SecAggMessage], MessageKind] = {
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
}
"""What there is to know of each type; codes are only ever added, and none is one of a plain message's."""
