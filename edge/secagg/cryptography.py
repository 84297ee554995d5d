"""Where a round's cryptography is done, or for very large simulated cohorts merely accounted for.

:class:`Cryptography` is the real thing. :class:`ModelledCryptography` sends bytes of the same number and
hides nothing: shares and signatures are zeros, inputs travel unmasked, and a key list is believed unread.
Messages and states are the same code either way, and public keys are those of the real thing because the
graph follows from them; so bytes and simulated times are the same, too. It must never leave a simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from edge.crypto.entropy import Entropy
from edge.crypto.errors import AuthenticationError
from edge.crypto.keys import (
    HASH_BYTES,
    SECRET_BYTES,
    SIGNATURE_BYTES,
    Identity,
    KeyPair,
    PairSecrets,
    Purpose,
    SealedChannel,
    SharedPairSecrets,
    commit,
    derive,
    verify,
)
from edge.crypto.prg import SEED_BYTES, add_all_expanded, ring_order
from edge.crypto.ring import RingVector
from edge.crypto.shamir import SHARE_BYTES
from edge.secagg.checks import DeviceIds
from edge.secagg.config import SecAggConfig
from edge.secagg.keylist import KeyRecord, Neighbourhood, RoundContext, nearest, read_key_list, ring_seed
from edge.secagg.sealing import (
    COMMITMENTS_BYTES,
    SEALED_BYTES,
    channel_between,
    commit_shares,
    split_between,
)
from edge.secagg.states import Mode
from edge.wire.messages import KeyList

VECTOR = "input"
"""The role of the one masked vector of a round."""
EACH_END = PairSecrets()
"""Secrets of pairs whose ends do not see each other."""


def pair_seed(
    mask_key: KeyPair,
    other_public: bytes,
    session: bytes,
    round_number: int,
    owner: int,
    other: int,
    secrets: PairSecrets = EACH_END,
) -> bytes:
    """Return s_uv, 16 bytes: the seed of the mask that ``owner`` of ``mask_key`` shares with ``other``.

    It serves one vector of one round: session, round and the two devices are bound into it. Both of the pair
    get the same. Raises ``LowOrderPointError``.
    """
    return secrets.derive(
        mask_key, other_public, _purpose("pairwise-mask", session, round_number), owner, other
    )


def self_seed(secret: bytes, session: bytes, round_number: int, device: int) -> bytes:
    """Return the 16-byte seed of a device's self-mask from its 32-byte secret b_u."""
    return derive(secret, _purpose("self-mask", session, round_number), device, device)


@lru_cache(maxsize=16)
def _purpose(label: str, session: bytes, round_number: int) -> Purpose:
    return Purpose.of(label, session, round_number, VECTOR, SEED_BYTES)


class DeviceSecrets:
    """A device's keys, seed and shares in one round; all that must never leave it, or a share at a time.

    Parameters
    ----------
    entropy : where they come from.
    device, round_number : whose they are.
    pairs : how those shared with neighbours are derived.
    """

    def __init__(self, entropy: Entropy, device: int, round_number: int, pairs: PairSecrets) -> None:
        self._pairs = pairs
        self._entropy = entropy
        self._device = device
        self._round_number = round_number
        self._encryption = KeyPair.generate(entropy)
        self._mask = KeyPair.generate(entropy)
        self._seed = entropy.bytes(SECRET_BYTES)
        self._channels: dict[int, SealedChannel] = {}
        self.shares: dict[int, bytes] = {}
        """By owner: its share of the seed, then its share of the mask key."""

    def public(self) -> KeyRecord:
        """Return what is advertised."""
        commitment = commit(self._seed, device=self._device, round_number=self._round_number)
        return KeyRecord(self._encryption.public, self._mask.public, commitment)

    def seal_shares(self, hood: Neighbourhood) -> tuple[bytes, bytes]:
        """Split the secrets and keep the own share.

        Returns the sealed shares of the neighbours, and the commitments to what each holder gets, the device
        itself among them; both ascending.
        """
        shares = split_between(hood, self._device, self._seed, self._mask.secret, self._entropy)
        committed = [
            commit_shares(share, hood.session, self._device, holder) for holder, share in shares.items()
        ]
        self.shares[self._device] = shares.pop(self._device)
        sealed: list[bytes] = []
        for other, share in shares.items():
            channel = channel_between(
                self._encryption, hood, self._round_number, self._device, other, self._pairs
            )
            self._channels[other] = channel
            sealed.append(channel.seal(share))
        return b"".join(sealed), b"".join(committed)

    def open_shares(self, hood: Neighbourhood, sealed: Mapping[int, tuple[bytes, bytes]]) -> None:
        """Keep the shares that open and are what their owners committed to.

        ``sealed`` has, by sender, what it sealed and its commitments. The others are left out of
        :attr:`shares`: their senders cost the round one share of theirs, and this device nothing.

        Raises ``AuthenticationError`` if that leaves fewer than t, the own one included: so many senders do
        not lie, so this device was told something else than they were.
        """
        refused: list[int] = []
        for sender, (row, committed) in sealed.items():
            try:
                share = self._channels[sender].open(row)
            except AuthenticationError:
                refused.append(sender)
                continue
            if commit_shares(share, hood.session, sender, self._device) != committed:
                refused.append(sender)
                continue
            self.shares[sender] = share
        self._channels.clear()
        if len(self.shares) < hood.t:
            raise AuthenticationError(
                f"what devices {refused[:5]} sealed for device {self._device} does not authenticate, or is "
                f"not what they committed to; {len(self.shares)} shares are left, and {hood.t} are needed"
            )

    def mask(self, vector: RingVector, hood: Neighbourhood, partners: Iterable[int]) -> None:
        """Add the self-mask and those agreed with ``partners`` to ``vector`` [L], in place."""
        added = [self_seed(self._seed, hood.session, self._round_number, self._device)]
        subtracted: list[bytes] = []
        for other in sorted(partners):
            public = hood.records[other].mask
            seed = pair_seed(
                self._mask, public, hood.session, self._round_number, self._device, other, self._pairs
            )
            (added if self._device < other else subtracted).append(seed)
        add_all_expanded(vector, added, subtracted)


class _NoSecrets:
    """Stands in for :class:`DeviceSecrets`: the same public keys, zeros for shares, no masks."""

    def __init__(self, entropy: Entropy, device: int) -> None:
        self._device = device
        encryption, mask = KeyPair.generate(entropy).public, KeyPair.generate(entropy).public
        self._record = KeyRecord(encryption, mask, bytes(HASH_BYTES))
        self.shares: dict[int, bytes] = {}

    def public(self) -> KeyRecord:
        return self._record

    def seal_shares(self, hood: Neighbourhood) -> tuple[bytes, bytes]:
        self.shares[self._device] = bytes(2 * SHARE_BYTES)
        return bytes(hood.k * SEALED_BYTES), bytes((hood.k + 1) * COMMITMENTS_BYTES)

    def open_shares(self, hood: Neighbourhood, sealed: Mapping[int, tuple[bytes, bytes]]) -> None:
        self.shares.update(dict.fromkeys(sealed, bytes(2 * SHARE_BYTES)))

    def mask(self, vector: RingVector, hood: Neighbourhood, partners: Iterable[int]) -> None:
        pass


Secrets = DeviceSecrets | _NoSecrets
"""A device's secrets of a round, or what stands in for them."""


class Cryptography:
    """Keys, shares, masks and signatures as they are."""

    hides = True
    """Whether inputs are masked at all."""
    pairs: PairSecrets = EACH_END
    """How secrets of pairs are derived."""

    def of_simulated_round(self) -> Cryptography:
        """Return the cryptography of one round all of whose devices are in this process.

        Bytes are the same; the secrets of a pair are computed once.
        """
        return SimulatedCryptography()

    def secrets(self, entropy: Entropy, device: int, round_number: int) -> Secrets:
        """Return a device's fresh secrets of a round."""
        return DeviceSecrets(entropy, device, round_number, self.pairs)

    def neighbourhood(
        self,
        message: KeyList,
        config: SecAggConfig,
        context: RoundContext,
        device: int,
        own: KeyRecord,
        roster: Mapping[int, bytes],
    ) -> Neighbourhood:
        """Return what a key list says; see :func:`~edge.secagg.keylist.read_key_list`."""
        return read_key_list(message, config, context, device, own, roster, self.verify)

    def sign(self, identity: Identity, statement: bytes) -> bytes:
        """Return the 64-byte signature of ``identity`` under ``statement``."""
        return identity.sign(statement)

    def verify(self, public: bytes, signature: bytes, statement: bytes) -> None:
        """Raise ``BadSignatureError`` unless ``signature`` is that of ``public`` under ``statement``."""
        verify(public, signature, statement)


class SimulatedCryptography(Cryptography):
    """The real thing for one round of simulated devices, which share what both ends of a pair compute."""

    def __init__(self) -> None:
        self.pairs = SharedPairSecrets()


class ModelledCryptography(Cryptography):
    """Bytes of the same number that hide nothing; for simulations only."""

    hides = False

    def __init__(self) -> None:
        self._ring: tuple[bytes, list[int]] = (b"", [])
        """Hash of the key list, and the ring that follows from it, of the round that was asked about last."""

    def of_simulated_round(self) -> Cryptography:
        """Return this: nothing is computed for pairs."""
        return self

    def secrets(self, entropy: Entropy, device: int, round_number: int) -> Secrets:
        """Return stand-ins for a device's secrets."""
        return _NoSecrets(entropy, device)

    def neighbourhood(
        self,
        message: KeyList,
        config: SecAggConfig,
        context: RoundContext,
        device: int,
        own: KeyRecord,
        roster: Mapping[int, bytes],
    ) -> Neighbourhood:
        """Return who the neighbours are; keys are not looked at."""
        devices = message.arrays["devices"].astype(np.int64, copy=False)
        digest = message.arrays["digest"].tobytes()
        everybody: DeviceIds | None = None
        if config.mode is Mode.ACTIVE:
            if self._ring[0] != digest:
                self._ring = (digest, ring_order(devices.tolist(), ring_seed(digest)))
            everybody = devices
            neighbours = nearest(self._ring[1], message.neighbours, device)
        else:
            neighbours = tuple(devices[devices != device].tolist())
        session = context.session(config, digest)
        k, t = message.neighbours, message.threshold
        return Neighbourhood(session, message.members, k, t, neighbours, {}, everybody)

    def sign(self, identity: Identity, statement: bytes) -> bytes:
        """Return 64 zeros."""
        return bytes(SIGNATURE_BYTES)

    def verify(self, public: bytes, signature: bytes, statement: bytes) -> None:
        """Accept whatever a modelled device signed."""


REAL = Cryptography()
MODELLED = ModelledCryptography()
