"""Shares of a device's two secrets, and the channels on which its neighbours get theirs.

The owner of a share commits to it when it seals it. The commitment goes to the holder and stays with the
coordinator. So whoever releases another share than it was given is found out, and nobody can be blamed for a
share that its owner sealed wrongly: a holder refuses that one when it opens it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from edge.crypto.entropy import Entropy
from edge.crypto.keys import (
    SEAL_KEY_BYTES,
    SEAL_OVERHEAD_BYTES,
    KeyPair,
    PairSecrets,
    Purpose,
    SealedChannel,
)
from edge.crypto.shamir import SHARE_BYTES, split_together
from edge.secagg.keylist import Neighbourhood

SEALED_BYTES = 2 * SHARE_BYTES + SEAL_OVERHEAD_BYTES
"""Length of the sealed message to one neighbour: a share of the seed, a share of the mask key, the tag."""

COMMITMENT_BYTES = 16
"""Length of the commitment to one share.

Half a SHA-256: to pass for the share of an honest owner another one has to have the same, one in 2**128. An
owner and a holder that collude can prepare two shares with one commitment, and both are culprits then.
"""
COMMITMENTS_BYTES = 2 * COMMITMENT_BYTES
"""Length of the commitments to what one holder gets: to the share of the seed, to that of the mask key."""

_LABEL = b"recfleet/secagg/1/share/"


def commit_share(share: bytes, session: bytes, owner: int, holder: int) -> bytes:
    """Return the 16-byte commitment of ``owner`` to a share of one secret that ``holder`` gets.

    The first half of a SHA-256. It hides the share, which is 32 random bytes to whoever holds less than the
    threshold of them.
    """
    return hashlib.sha256(_bound(session, owner, holder) + share).digest()[:COMMITMENT_BYTES]


def commit_shares(shares: bytes, session: bytes, owner: int, holder: int) -> bytes:
    """Return the commitments to both shares that ``holder`` gets, as they are sealed: 32 bytes."""
    bound = _bound(session, owner, holder)
    seed = hashlib.sha256(bound + shares[:SHARE_BYTES]).digest()
    key = hashlib.sha256(bound + shares[SHARE_BYTES:]).digest()
    return seed[:COMMITMENT_BYTES] + key[:COMMITMENT_BYTES]


def _bound(session: bytes, owner: int, holder: int) -> bytes:
    return _LABEL + session + owner.to_bytes(8, "big") + holder.to_bytes(8, "big")


def split_between(
    hood: Neighbourhood, device: int, seed: bytes, mask_key: bytes, entropy: Entropy
) -> dict[int, bytes]:
    """Split the two 32-byte secrets of ``device`` between itself and its neighbours; return shares by holder.

    A share is 68 bytes, of the self-mask seed and then of the mask key. Holders ascend; the index of a share
    is the place of its holder.
    """
    shares = split_together((seed, mask_key), hood.t, hood.k + 1, entropy)
    return dict(zip(sorted((*hood.neighbours, device)), shares, strict=True))


def channel_between(
    pair: KeyPair, hood: Neighbourhood, round_number: int, device: int, other: int, secrets: PairSecrets
) -> SealedChannel:
    """Return the end of ``device``, whose encryption key is ``pair``, of the channel to a neighbour."""
    purpose = _purpose(hood.session, round_number)
    key = secrets.derive(pair, hood.records[other].encryption, purpose, device, other)
    return SealedChannel(key, hood.session, round_number, device, other)


@lru_cache(maxsize=8)
def _purpose(session: bytes, round_number: int) -> Purpose:
    return Purpose.of("sealed-shares", session, round_number, "shares", SEAL_KEY_BYTES)
