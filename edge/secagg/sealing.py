"""Shares of a device's two secrets, and the channels on which its neighbours get theirs.

The owner of a share commits to it when it seals it. The commitment goes to the holder and stays with the
coordinator. So whoever releases another share than it was given is found out, and nobody can be blamed for a
share that its owner sealed wrongly: a holder refuses that one when it opens it.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from edge.crypto.entropy import Entropy
from edge.crypto.keys import SEAL_KEY_BYTES, SEAL_OVERHEAD_BYTES, KeyPair, derive, open_sealed, seal
from edge.crypto.shamir import SHARE_BYTES, split_many
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


class SplitSecrets(NamedTuple):
    """``own`` is the share that a device keeps of its secrets, ``shares`` those of its neighbours."""

    own: bytes
    shares: dict[int, bytes]


def commit_share(share: bytes, session: bytes, owner: int, holder: int) -> bytes:
    """Return the 16-byte commitment of ``owner`` to a share of one secret that ``holder`` gets.

    The first half of a SHA-256. It hides the share, which is 32 random bytes to whoever holds less than the
    threshold of them.
    """
    bound = session + owner.to_bytes(8, "big") + holder.to_bytes(8, "big")
    return hashlib.sha256(_LABEL + bound + share).digest()[:COMMITMENT_BYTES]


def commit_shares(shares: bytes, session: bytes, owner: int, holder: int) -> bytes:
    """Return the commitments to both shares that ``holder`` gets, as they are sealed: 32 bytes."""
    seed, key = shares[:SHARE_BYTES], shares[SHARE_BYTES:]
    return commit_share(seed, session, owner, holder) + commit_share(key, session, owner, holder)


def split_between(
    hood: Neighbourhood, device: int, seed: bytes, mask_key: bytes, entropy: Entropy
) -> SplitSecrets:
    """Split the two 32-byte secrets of ``device`` between itself and its neighbours.

    A share is 68 bytes, of the self-mask seed and then of the mask key. Shares are numbered by the place of
    their holder among the owner and its neighbours, ascending.
    """
    seeds, keys = split_many((seed, mask_key), hood.t, hood.k + 1, entropy)
    holders = sorted((*hood.neighbours, device))
    shares = {
        holder: seed_share + key_share
        for holder, seed_share, key_share in zip(holders, seeds, keys, strict=True)
    }
    return SplitSecrets(shares.pop(device), shares)


class SealedChannel(NamedTuple):
    """One device's end of the sealed way to a neighbour, good for one message in each direction."""

    key: bytes
    session: bytes
    round_number: int
    device: int
    other: int

    @classmethod
    def between(
        cls, pair: KeyPair, hood: Neighbourhood, round_number: int, device: int, other: int
    ) -> SealedChannel:
        """Agree on a key with neighbour ``other``; ``pair`` is the encryption key of ``device``."""
        key = derive(
            pair.agree(hood.records[other].encryption),
            label="sealed-shares",
            session=hood.session,
            round_number=round_number,
            role="shares",
            low=min(device, other),
            high=max(device, other),
            length=SEAL_KEY_BYTES,
        )
        return cls(key, hood.session, round_number, device, other)

    def seal(self, share: bytes) -> bytes:
        """Return ``share`` so that only the other end can read it."""
        return seal(
            self.key,
            share,
            session=self.session,
            round_number=self.round_number,
            sender=self.device,
            receiver=self.other,
        )

    def open(self, sealed: bytes) -> bytes:
        """Return what the other end sealed; raises ``AuthenticationError``."""
        return open_sealed(
            self.key,
            sealed,
            session=self.session,
            round_number=self.round_number,
            sender=self.other,
            receiver=self.device,
        )
