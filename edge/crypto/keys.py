"""Keys of a round: agreement, derivation, sealed messages, commitments and signatures.

Every device makes two fresh X25519 pairs a round (RFC 7748): one for encryption, one for masks. Everything
else comes from their shared secrets by HKDF-SHA256 (RFC 5869) under an ``info`` that names the purpose, the
session, the round and the two devices, so no derived secret serves twice. The session binds the
configuration, the model and the list of keys: devices that were told different things share no secret.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
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
"""Length of the key of :func:`seal`: AES-256."""
SEAL_OVERHEAD_BYTES = 16
"""How much longer a sealed message is than its plaintext: the tag."""

_VERSION = b"recfleet/secagg/1/"
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
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise LowOrderPointError(f"public key {public.hex()} makes every shared secret zero") from None


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


def derive(
    shared: bytes,
    *,
    label: str,
    session: bytes,
    round_number: int,
    role: str,
    low: int,
    high: int,
    length: int,
) -> bytes:
    """Return ``length`` bytes derived from a shared secret (HKDF-SHA256 without salt, RFC 5869).

    Parameters
    ----------
    shared : 32 bytes: a secret from :meth:`KeyPair.agree`, or a device's own self-mask seed.
    label : what is derived, for example ``"mask"``.
    session : 32 bytes from :func:`session_id_of_hash`.
    round_number : the round.
    role : what it is for, for example the name of the vector that is masked.
    low, high : the two devices' ids in this order; twice its own for a secret of one device.
    length : bytes wanted, 16 for a mask's seed, 32 for a sealing key.

    Raises ``WrongLengthError`` for a secret or session of another length, and ``LocalProtocolError`` for ids
    in the wrong order.
    """
    if len(shared) != SECRET_BYTES:
        raise WrongLengthError(f"a secret has {SECRET_BYTES} bytes, not {len(shared)}")
    _check_hash(session, "a session id")
    if not 0 <= low <= high:
        raise LocalProtocolError(f"the lower device id comes first, and none is negative: {low}, {high}")
    info = b"".join(
        (
            _VERSION,
            _prefixed(label.encode()),
            session,
            _number(round_number),
            _prefixed(role.encode()),
            _number(low),
            _number(high),
        )
    )
    return HKDF(algorithm=_SHA256, length=length, salt=None, info=info).derive(shared)


class AdvertisedKeys(NamedTuple):
    """The public keys of one device in one round: 32 bytes each."""

    device: int
    encryption: bytes
    mask: bytes


def key_list_hash(key_list: Sequence[AdvertisedKeys]) -> bytes:
    """Return the 32-byte SHA-256 of a round's keys, ordered by device id.

    Raises ``DuplicateKeyError`` for a device or a key that occurs twice (a device's two keys must differ
    too), ``LocalProtocolError`` for another order, ``WrongLengthError`` for a key of another length.
    """
    keys: set[bytes] = set()
    digest = hashlib.sha256(_VERSION + b"key-list" + _number(len(key_list)))
    before = -1
    for device, encryption, mask in key_list:
        if device <= before:
            if device == before:
                raise DuplicateKeyError(f"device {device} is in the key list twice")
            raise LocalProtocolError(f"the key list is ordered by device, but {device} follows {before}")
        before = device
        if len(encryption) != PUBLIC_BYTES or len(mask) != PUBLIC_BYTES:
            raise WrongLengthError(f"the public keys of device {device} do not have {PUBLIC_BYTES} bytes")
        keys.add(encryption)
        keys.add(mask)
        digest.update(_number(device) + encryption + mask)
    if len(keys) != 2 * len(key_list):
        raise DuplicateKeyError("a public key occurs twice in the key list")
    return digest.digest()


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


def seal(
    key: bytes, plaintext: bytes, *, session: bytes, round_number: int, sender: int, receiver: int
) -> bytes:
    """Return ``plaintext`` encrypted and authenticated from ``sender`` to ``receiver`` (AES-256-GCM).

    ``key`` is the 32-byte key of the pair for this round; it seals one message in each direction, because the
    nonce is made of the direction and the round alone.

    Raises ``WrongLengthError`` for a key or session of another length, ``LocalProtocolError`` for a message
    to oneself.
    """
    nonce, bound = _bind(key, session, round_number, sender, receiver)
    return AESGCM(key).encrypt(nonce, plaintext, bound)


def open_sealed(
    key: bytes, sealed: bytes, *, session: bytes, round_number: int, sender: int, receiver: int
) -> bytes:
    """Return the plaintext of a message from :func:`seal`.

    Raises ``AuthenticationError`` if it was changed, or sealed with another key or for another session,
    round, sender or receiver; otherwise as :func:`seal`.
    """
    nonce, bound = _bind(key, session, round_number, sender, receiver)
    # Below the length of a tag, releases of cryptography differ in what they raise.
    if len(sealed) >= SEAL_OVERHEAD_BYTES:
        try:
            return AESGCM(key).decrypt(nonce, sealed, bound)
        except InvalidTag:
            pass
    raise AuthenticationError(
        f"the message from device {sender} to device {receiver} in round {round_number} does not authenticate"
    )


def _bind(key: bytes, session: bytes, round_number: int, sender: int, receiver: int) -> tuple[bytes, bytes]:
    if len(key) != SEAL_KEY_BYTES:
        raise WrongLengthError(f"a sealing key has {SEAL_KEY_BYTES} bytes, not {len(key)}")
    _check_hash(session, "a session id")
    if sender == receiver:
        raise LocalProtocolError(f"device {sender} seals a message to itself")
    direction = b"\0\0\0\0" if sender < receiver else b"\0\0\0\1"
    number = _number(round_number)
    return direction + number, session + number + _number(sender) + _number(receiver)


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
