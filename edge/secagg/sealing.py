"""Shares of a device's two secrets, and the channels on which its neighbours get theirs."""

from __future__ import annotations

from typing import NamedTuple

from edge.secagg.entropy import Entropy
from edge.secagg.keylist import Neighbourhood
from edge.secagg.keys import SEAL_KEY_BYTES, SEAL_OVERHEAD_BYTES, KeyPair, derive, open_sealed, seal
from edge.secagg.shamir import SHARE_BYTES, split_many

SEALED_BYTES = 2 * SHARE_BYTES + SEAL_OVERHEAD_BYTES
"""Length of the sealed message to one neighbour: a share of the seed, a share of the mask key, the tag."""


class Split(NamedTuple):
    """``own`` is the share that a device keeps of its secrets, ``shares`` those of its neighbours."""

    own: bytes
    shares: dict[int, bytes]


def split_between(hood: Neighbourhood, device: int, seed: bytes, mask_key: bytes, entropy: Entropy) -> Split:
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
    return Split(shares.pop(device), shares)


class Channel(NamedTuple):
    """One device's end of the sealed way to a neighbour, good for one message in each direction."""

    key: bytes
    session: bytes
    round_number: int
    device: int
    other: int

    @classmethod
    def between(
        cls, pair: KeyPair, hood: Neighbourhood, round_number: int, device: int, other: int
    ) -> Channel:
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
