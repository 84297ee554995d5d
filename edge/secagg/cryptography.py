"""Where a round's cryptography is done, or for very large simulated cohorts merely accounted for.

:class:`Cryptography` is the real thing. :class:`ModelledCryptography` sends bytes of the same number and
hides nothing: shares and signatures are zeros, inputs travel unmasked. Messages, states and checks are the
same code either way, and public keys are the real ones, because the graph follows from them: so bytes and
simulated times are the same, too. It must never leave a simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edge.secagg.entropy import Entropy
from edge.secagg.keylist import Neighbourhood, Record
from edge.secagg.keys import (
    HASH_BYTES,
    SECRET_BYTES,
    SIGNATURE_BYTES,
    Identity,
    KeyPair,
    commit,
    verify,
)
from edge.secagg.masks import pair_seed, self_seed
from edge.secagg.prg import add_all_expanded
from edge.secagg.ring import RingVector
from edge.secagg.sealing import SEALED_BYTES, Channel, split_between
from edge.secagg.shamir import SHARE_BYTES


class DeviceSecrets:
    """A device's keys, seed and shares in one round; all that must never leave it, or a share at a time.

    Parameters
    ----------
    entropy : where they come from.
    device, round_number : whose they are.
    """

    def __init__(self, entropy: Entropy, device: int, round_number: int) -> None:
        self._entropy = entropy
        self._device = device
        self._round_number = round_number
        self._encryption = KeyPair.generate(entropy)
        self._mask = KeyPair.generate(entropy)
        self._seed = entropy.bytes(SECRET_BYTES)
        self._channels: dict[int, Channel] = {}
        self.shares: dict[int, bytes] = {}
        """By owner: its share of the seed, then its share of the mask key."""

    def public(self) -> Record:
        """Return what is advertised."""
        commitment = commit(self._seed, device=self._device, round_number=self._round_number)
        return Record(self._encryption.public, self._mask.public, commitment)

    def seal_shares(self, hood: Neighbourhood) -> bytes:
        """Split the secrets; return the sealed shares of the neighbours, ascending, and keep the own one."""
        split = split_between(hood, self._device, self._seed, self._mask.secret, self._entropy)
        self.shares[self._device] = split.own
        sealed: list[bytes] = []
        for other, share in split.shares.items():
            channel = Channel.between(self._encryption, hood, self._round_number, self._device, other)
            self._channels[other] = channel
            sealed.append(channel.seal(share))
        return b"".join(sealed)

    def open_shares(self, sealed: Mapping[int, bytes]) -> None:
        """Keep what neighbours sealed, by sender; raises ``AuthenticationError``."""
        for sender, row in sealed.items():
            self.shares[sender] = self._channels[sender].open(row)
        self._channels.clear()

    def mask(self, vector: RingVector, hood: Neighbourhood, partners: Iterable[int]) -> None:
        """Add the self-mask and those agreed with ``partners`` to ``vector`` [L], in place."""
        added = [self_seed(self._seed, hood.session, self._round_number, self._device)]
        subtracted: list[bytes] = []
        for other in sorted(partners):
            seed = pair_seed(
                self._mask, hood.records[other].mask, hood.session, self._round_number, self._device, other
            )
            (added if self._device < other else subtracted).append(seed)
        add_all_expanded(vector, added, subtracted)


class _ModelledSecrets:
    """Stands in for :class:`DeviceSecrets`: its public keys, zeros for shares, no masks."""

    def __init__(self, entropy: Entropy, device: int) -> None:
        self._device = device
        self._encryption = KeyPair.generate(entropy).public
        self._mask = KeyPair.generate(entropy).public
        self.shares: dict[int, bytes] = {}

    def public(self) -> Record:
        return Record(self._encryption, self._mask, bytes(HASH_BYTES))

    def seal_shares(self, hood: Neighbourhood) -> bytes:
        self.shares[self._device] = bytes(2 * SHARE_BYTES)
        return bytes(hood.k * SEALED_BYTES)

    def open_shares(self, sealed: Mapping[int, bytes]) -> None:
        self.shares.update(dict.fromkeys(sealed, bytes(2 * SHARE_BYTES)))

    def mask(self, vector: RingVector, hood: Neighbourhood, partners: Iterable[int]) -> None:
        pass


Secrets = DeviceSecrets | _ModelledSecrets
"""A device's secrets of a round, or what stands in for them."""


class Cryptography:
    """Keys, shares, masks and signatures as they are."""

    hides = True
    """Whether inputs are masked at all."""

    def secrets(self, entropy: Entropy, device: int, round_number: int) -> Secrets:
        """Return a device's fresh secrets of a round."""
        return DeviceSecrets(entropy, device, round_number)

    def sign(self, identity: Identity, statement: bytes) -> bytes:
        """Return the 64-byte signature of ``identity`` under ``statement``."""
        return identity.sign(statement)

    def verify(self, public: bytes, signature: bytes, statement: bytes) -> None:
        """Raise ``BadSignatureError`` unless ``signature`` is that of ``public`` under ``statement``."""
        verify(public, signature, statement)


class ModelledCryptography(Cryptography):
    """Bytes of the same number that hide nothing; for simulations only."""

    hides = False

    def secrets(self, entropy: Entropy, device: int, round_number: int) -> Secrets:
        """Return stand-ins for a device's secrets."""
        return _ModelledSecrets(entropy, device)

    def sign(self, identity: Identity, statement: bytes) -> bytes:
        """Return 64 zeros."""
        return bytes(SIGNATURE_BYTES)

    def verify(self, public: bytes, signature: bytes, statement: bytes) -> None:
        """Accept whatever a modelled device signed."""


REAL = Cryptography()
MODELLED = ModelledCryptography()
