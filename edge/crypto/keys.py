"""Keys of a round: agreement, derivation, sealed messages, commitments and signatures.

Every device makes two fresh X25519 pairs a round (RFC 7748): one for encryption, one for masks. Everything
else comes from their shared secrets by HKDF-SHA256 (RFC 5869) under an ``info`` that names the purpose, the
session, the round and the two devices, so no derived secret serves twice. The session binds the
configuration, the model and the list of keys: devices that were told different things share no secret.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edge.core.errors import LocalProtocolError
from edge.crypto.entropy import Entropy
from edge.crypto.errors import (
    AuthenticationError,
    BadKeyError,
    BadSignatureError,
    CommitmentMismatchError,
    DuplicateKeyError,
    KeyMismatchError,
    LowOrderPointError,
    MissingSignatureError,
    WrongLengthError,
)

SECRET_BYTES = 32
"""Length of a private key, a shared secret and a self-mask seed."""
PUBLIC_BYTES = 32
"""Length of a public key, of either kind."""
HASH_BYTES = 32
"""Length of a session id, a model hash, a key list hash and a commitment."""
SIGNATURE_BYTES = 64
"""Length of an Ed25519 signature."""
SEAL_KEY_BYTES = 32
"""Length of the key of a :class:`SealedChannel`: AES-256."""
SEAL_OVERHEAD_BYTES = 16
"""How much longer a sealed message is than its plaintext: the tag."""

_VERSION = b"recfleet/secagg/1/"
_UP, _DOWN = b"\0\0\0\0", b"\0\0\0\1"
"""How the nonce of a sealed message begins, to the device with the higher id and to that with the lower."""
_KEYS_KEPT = 4096
"""Public keys whose parsed form, or whose check, is kept: each is met by all neighbours of its device."""
_SHA256 = hashes.SHA256()
_FIELD_PRIME = 2**255 - 19
_LOW_ORDER = frozenset(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _FIELD_PRIME - 1,
    }
)
"""The coordinates of the points of order 1, 2, 4 and 8, on the curve and on its twist."""


# -- key agreement ---------------------------------------------------------------------------------------


class KeyPair:
    """An X25519 key pair of one device for one round.

    Attributes
    ----------
    secret : 32 bytes, the private key as it is split into shares: with the five bits that X25519 ignores
        set as it reads them, so that there is one encoding of every key.
    public : 32 bytes, the public key as it is advertised.
    """

    __slots__ = ("_private", "public", "secret")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise WrongLengthError(f"a private key has {SECRET_BYTES} bytes, not {len(secret)}")
        self.secret = bytes((secret[0] & 0xF8, *secret[1:31], secret[31] & 0x7F | 0x40))
        # The parsed key is kept: parsing costs as much as an exchange.
        self._private = X25519PrivateKey.from_private_bytes(self.secret)
        self.public = self._private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        """Show the public key only, so that no log gets to see the secret."""
        return f"KeyPair(public={self.public.hex()})"

    @classmethod
    def generate(cls, entropy: Entropy) -> KeyPair:
        """Return a fresh pair."""
        return cls(entropy.bytes(SECRET_BYTES))

    def agree(self, public: bytes) -> bytes:
        """Return the 32-byte secret shared with the owner of ``public``.

        Raises ``WrongLengthError`` for a key of another length and ``LowOrderPointError`` for a point that
        makes the secret zero whatever the private key is (RFC 7748, section 6.1).
        """
        if len(public) != PUBLIC_BYTES:
            raise WrongLengthError(f"a public key has {PUBLIC_BYTES} bytes, not {len(public)}")
        try:
            return self._private.exchange(_parsed(public))
        except ValueError:
            raise LowOrderPointError(f"public key {public.hex()} makes every shared secret zero") from None


@lru_cache(maxsize=_KEYS_KEPT)
def _parsed(public: bytes) -> X25519PublicKey:
    """Return the library's object of a public key; parsing takes a tenth of an exchange."""
    return X25519PublicKey.from_public_bytes(public)


@lru_cache(maxsize=_KEYS_KEPT)
def check_public_key(public: bytes) -> None:
    """Refuse an X25519 public key that no honest device sends, without the cost of an exchange.

    Only the canonical encoding passes, so that one point cannot appear as two different keys.

    Raises ``WrongLengthError``, ``BadKeyError`` (not canonical) and ``LowOrderPointError``.
    """
    if len(public) != PUBLIC_BYTES:
        raise WrongLengthError(f"a public key has {PUBLIC_BYTES} bytes, not {len(public)}")
    coordinate = int.from_bytes(public, "little")
    if coordinate >= _FIELD_PRIME:
        raise BadKeyError(f"public key {public.hex()} is not below 2^255 - 19")
    if coordinate in _LOW_ORDER:
        raise LowOrderPointError(f"public key {public.hex()} makes every shared secret zero")


def check_secret(secret: bytes, public: bytes) -> KeyPair:
    """Return the pair of a reconstructed private key if it belongs to the advertised ``public`` key.

    Raises ``KeyMismatchError`` if it does not, or is another encoding of the same key: a share was tampered
    with, or its owner split another secret.
    """
    pair = KeyPair(secret)
    if not (hmac.compare_digest(pair.public, public) and hmac.compare_digest(pair.secret, secret)):
        raise KeyMismatchError(f"the reconstructed private key does not belong to {public.hex()}")
    return pair


# -- derivation ------------------------------------------------------------------------------------------


class Purpose(NamedTuple):
    """What is derived in a round: the part of HKDF's ``info`` that does not depend on the two devices.

    Attributes
    ----------
    bound : label, session, round and role, encoded.
    length : bytes to derive, 16 for a mask's seed, 32 for a sealing key.
    """

    bound: bytes
    length: int

    @classmethod
    def of(cls, label: str, session: bytes, round_number: int, role: str, length: int) -> Purpose:
        """Return a purpose.

        Parameters
        ----------
        label : what is derived, for example ``"mask"``.
        session : 32 bytes from :func:`session_id_of_hash`.
        round_number : the round.
        role : what it is for, for example the name of the vector that is masked.
        length : bytes to derive.

        Raises ``WrongLengthError`` for a session of another length.
        """
        _check_hash(session, "a session id")
        head = _VERSION + _prefixed(label.encode()) + session
        return cls(head + _number(round_number) + _prefixed(role.encode()), length)

    def info(self, low: int, high: int) -> bytes:
        """Return HKDF's ``info`` for two devices, the lower id first; twice its own for one device.

        Raises ``LocalProtocolError`` for ids in the wrong order.
        """
        if not 0 <= low <= high:
            raise LocalProtocolError(f"the lower device id comes first, and none is negative: {low}, {high}")
        return self.bound + _number(low) + _number(high)


def derive(shared: bytes, purpose: Purpose, low: int, high: int) -> bytes:
    """Return the bytes of a ``purpose`` derived from a shared secret (HKDF-SHA256 without salt, RFC 5869).

    Parameters
    ----------
    shared : 32 bytes: a secret from :meth:`KeyPair.agree`, or a device's own self-mask seed.
    purpose : what for.
    low, high : the two devices' ids in this order; twice its own for a secret of one device.

    Raises ``WrongLengthError`` for a secret of another length, and ``LocalProtocolError`` for ids in the
    wrong order.
    """
    return _derive(shared, purpose.info(low, high), purpose.length)


def _derive(shared: bytes, info: bytes, length: int) -> bytes:
    if len(shared) != SECRET_BYTES:
        raise WrongLengthError(f"a secret has {SECRET_BYTES} bytes, not {len(shared)}")
    return HKDF(algorithm=_SHA256, length=length, salt=None, info=info).derive(shared)


class PairSecrets:
    """What pairs of devices derive from the secret they share: each end computes its own."""

    def derive(self, pair: KeyPair, public: bytes, purpose: Purpose, own: int, other: int) -> bytes:
        """Return what device ``own``, which has ``pair``, derives with ``other``, which has ``public``.

        Both ends get the same. Raises as :meth:`KeyPair.agree`.
        """
        low, high = (own, other) if own < other else (other, own)
        return derive(pair.agree(public), purpose, low, high)


class SharedPairSecrets(PairSecrets):
    """The same where both ends live in this process: what the first derives, the second is given.

    For one round of simulated devices. What was derived is named by both public keys and all that is bound
    into it, and is forgotten when it was given; so both ends get it, or what each would have computed.
    """

    def __init__(self) -> None:
        self._derived: dict[tuple[bytes, bytes, bytes], bytes] = {}

    def __repr__(self) -> str:
        """Show no secret."""
        return f"SharedPairSecrets({len(self._derived)} of one end)"

    def derive(self, pair: KeyPair, public: bytes, purpose: Purpose, own: int, other: int) -> bytes:
        """Return what the other end derived, or derive it."""
        info = purpose.info(own, other) if own < other else purpose.info(other, own)
        mine = pair.public
        name = (mine, public, info) if mine < public else (public, mine, info)
        secret = self._derived.pop(name, None)
        if secret is None:
            secret = self._derived[name] = _derive(pair.agree(public), info, purpose.length)
        return secret


def key_list_hash(key_list: Sequence[tuple[int, bytes, bytes]]) -> bytes:
    """Return the 32-byte SHA-256 of a round's public keys, ordered by device id.

    A device has three values: its id, and its keys for encryption and for masks, 32 bytes each.

    Raises ``DuplicateKeyError`` for a device or a key that occurs twice (a device's two keys must differ
    too), ``LocalProtocolError`` for another order, ``WrongLengthError`` for a key of another length.
    """
    encoded = [_VERSION, b"key-list", _number(len(key_list))]
    before = -1
    for device, encryption, mask in key_list:
        if device <= before:
            if device == before:
                raise DuplicateKeyError(f"device {device} is in the key list twice")
            raise LocalProtocolError(f"the key list is ordered by device, but {device} follows {before}")
        before = device
        if len(encryption) != PUBLIC_BYTES or len(mask) != PUBLIC_BYTES:
            raise WrongLengthError(f"the public keys of device {device} do not have {PUBLIC_BYTES} bytes")
        encoded += (_number(device), encryption, mask)
    expect_distinct_keys(key_list)
    return hashlib.sha256(b"".join(encoded)).digest()


def expect_distinct_keys(key_list: Iterable[tuple[int, bytes, bytes]]) -> None:
    """Raise ``DuplicateKeyError`` for a key that occurs twice; a device's two keys must differ too."""
    keys = [key for _, encryption, mask in key_list for key in (encryption, mask)]
    if len(set(keys)) != len(keys):
        raise DuplicateKeyError("a public key occurs twice in the key list")


def session_id_of_hash(
    run_id: str, round_number: int, config: bytes, model_hash: bytes, list_hash: bytes
) -> bytes:
    """Return the 32-byte id that binds run, round, configuration, model and keys.

    Parameters
    ----------
    run_id, round_number : which round of which run.
    config : the round's configuration in its one canonical encoding.
    model_hash : 32 bytes, SHA-256 of the model that the devices trained on.
    list_hash : 32 bytes, the :func:`key_list_hash` of the keys of all devices of the round.

    Raises ``WrongLengthError`` for a hash that is not 32 bytes long.
    """
    _check_hash(model_hash, "a model hash")
    _check_hash(list_hash, "a key list hash")
    of_round = _prefixed(run_id.encode()) + _number(round_number)
    bound = of_round + _prefixed(config) + model_hash + list_hash
    return hashlib.sha256(_VERSION + b"session" + bound).digest()


# -- sealed messages -------------------------------------------------------------------------------------


class SealedChannel:
    """One device's end of the sealed way to another (AES-256-GCM), good for one message in each direction.

    The nonce is made of the direction and the round alone.

    Parameters
    ----------
    key : 32 bytes, of the pair for this round.
    session, round_number : what messages are bound to, beside sender and receiver.
    device, other : this end, and the other.

    Raises ``WrongLengthError`` for a key or session of another length, ``LocalProtocolError`` for a channel
    to oneself.
    """

    __slots__ = ("_bound_in", "_bound_out", "_cipher", "_nonce_in", "_nonce_out", "device", "other")

    def __init__(self, key: bytes, session: bytes, round_number: int, device: int, other: int) -> None:
        if len(key) != SEAL_KEY_BYTES:
            raise WrongLengthError(f"a sealing key has {SEAL_KEY_BYTES} bytes, not {len(key)}")
        _check_hash(session, "a session id")
        if device == other:
            raise LocalProtocolError(f"device {device} seals a message to itself")
        self.device = device
        self.other = other
        self._cipher = AESGCM(key)
        number, here, there = _number(round_number), _number(device), _number(other)
        upwards = device < other
        self._nonce_out = (_UP if upwards else _DOWN) + number
        self._nonce_in = (_DOWN if upwards else _UP) + number
        self._bound_out = session + number + here + there
        self._bound_in = session + number + there + here

    def seal(self, plaintext: bytes) -> bytes:
        """Return ``plaintext`` encrypted and authenticated for the other end."""
        return self._cipher.encrypt(self._nonce_out, plaintext, self._bound_out)

    def open(self, sealed: bytes) -> bytes:
        """Return what the other end sealed.

        Raises ``AuthenticationError`` if it was changed, or sealed with another key or for another session,
        round, sender or receiver.
        """
        # Below the length of a tag, releases of cryptography differ in what they raise.
        if len(sealed) >= SEAL_OVERHEAD_BYTES:
            try:
                return self._cipher.decrypt(self._nonce_in, sealed, self._bound_in)
            except InvalidTag:
                pass
        raise AuthenticationError(
            f"the message from device {self.other} to device {self.device} in round "
            f"{int.from_bytes(self._nonce_in[len(_UP) :], 'big')} does not authenticate"
        )


# -- commitments -----------------------------------------------------------------------------------------


def commit(seed: bytes, *, device: int, round_number: int) -> bytes:
    """Return the 32-byte commitment to a self-mask seed that is sent along with the keys.

    SHA-256 hides the seed because it is 32 random bytes.

    Raises ``WrongLengthError`` for a seed of another length.
    """
    if len(seed) != SECRET_BYTES:
        raise WrongLengthError(f"a self-mask seed has {SECRET_BYTES} bytes, not {len(seed)}")
    return hashlib.sha256(_VERSION + b"commitment" + _number(device) + _number(round_number) + seed).digest()


def check_commitment(seed: bytes, commitment: bytes, *, device: int, round_number: int) -> None:
    """Refuse a reconstructed self-mask seed that is not the one the device committed to.

    Raises ``CommitmentMismatchError``, and ``WrongLengthError`` for a seed of another length.
    """
    if not hmac.compare_digest(commit(seed, device=device, round_number=round_number), commitment):
        raise CommitmentMismatchError(
            f"the self-mask seed of device {device} is not the one it committed to in round {round_number}"
        )


# -- signatures ------------------------------------------------------------------------------------------


class Identity:
    """A device's long-term Ed25519 key (RFC 8032); its public half is on the roster before the run."""

    __slots__ = ("_private", "public")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise WrongLengthError(f"an identity has {SECRET_BYTES} secret bytes, not {len(secret)}")
        self._private = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, entropy: Entropy) -> Identity:
        """Return a fresh identity."""
        return cls(entropy.bytes(SECRET_BYTES))

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of ``message``."""
        return self._private.sign(message)


def verify(public: bytes, signature: bytes, message: bytes) -> None:
    """Refuse a signature that the owner of the identity ``public`` did not make for ``message``.

    Raises ``MissingSignatureError`` for an empty signature and ``BadSignatureError`` for every other that
    does not verify.
    """
    if not signature:
        raise MissingSignatureError("the message is not signed, which the active mode demands")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise BadSignatureError(f"the signature does not verify under identity {public.hex()}") from None


# -- encoding --------------------------------------------------------------------------------------------


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _prefixed(field: bytes) -> bytes:
    """Lengths go in front, so that no two lists of fields have the same bytes."""
    return len(field).to_bytes(4, "big") + field


def _check_hash(value: bytes, what: str) -> None:
    if len(value) != HASH_BYTES:
        raise WrongLengthError(f"{what} has {HASH_BYTES} bytes, not {len(value)}")
