from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.errors import LocalProtocolError
from edge.crypto.entropy import SeededEntropy, SystemEntropy
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
from edge.crypto.keys import (
    Identity,
    KeyPair,
    PairSecrets,
    Purpose,
    SealedChannel,
    SharedPairSecrets,
    check_commitment,
    check_public_key,
    check_secret,
    commit,
    derive,
    key_list_hash,
    session_id_of_hash,
    verify,
)

ENTROPY = SeededEntropy(b"the key of these tests", 0, 0)
SESSION = hashlib.sha256(b"session").digest()
PRIME = 2**255 - 19


def pair(device: int) -> KeyPair:
    return KeyPair.generate(SeededEntropy(b"the key of these tests", device, 1))


# -- known answers ---------------------------------------------------------------------------------------


def test_rfc_7748_5_2() -> None:
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    expected = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert KeyPair(scalar).agree(point).hex() == expected


def test_rfc_7748_6_1() -> None:
    alice = KeyPair(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = KeyPair(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.agree(bob.public).hex() == shared
    assert bob.agree(alice.public).hex() == shared


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 by its text."""
    pseudorandom = hmac.digest(salt or bytes(32), secret, "sha256")
    out, block, number = b"", b"", 1
    while len(out) < length:
        block = hmac.digest(pseudorandom, block + info + bytes([number]), "sha256")
        out, number = out + block, number + 1
    return out[:length]


def test_rfc_5869_cases_1_and_3() -> None:
    info = bytes(range(0xF0, 0xFA))
    assert hkdf(b"\x0b" * 22, bytes(range(13)), info, 42).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    assert hkdf(b"\x0b" * 22, b"", b"", 42).hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


@pytest.mark.parametrize("length", [16, 32, 42, 80])
def test_derive_is_rfc_5869_over_the_documented_layout(length: int) -> None:
    secret = bytes(range(32))
    info = (
        b"recfleet/secagg/1/"
        + (4).to_bytes(4, "big")
        + b"mask"
        + SESSION
        + (9).to_bytes(8, "big")
        + (5).to_bytes(4, "big")
        + b"items"
        + (3).to_bytes(8, "big")
        + (2**40).to_bytes(8, "big")
    )
    derived = derive(secret, Purpose.of("mask", SESSION, 9, "items", length), 3, 2**40)
    assert derived == hkdf(secret, b"", info, length)


# -- key agreement ---------------------------------------------------------------------------------------


def test_two_devices_agree_and_a_third_does_not() -> None:
    a, b, c = pair(1), pair(2), pair(3)
    assert a.agree(b.public) == b.agree(a.public)
    assert a.agree(b.public) != c.agree(a.public)


def test_a_public_key_is_not_the_private_key() -> None:
    for device in range(20):
        keys = pair(device)
        assert keys.public != keys.secret
        assert keys.secret.hex() not in repr(keys)
        assert keys.public.hex() in repr(keys)


LOW_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    PRIME - 1,
]


@pytest.mark.parametrize("coordinate", LOW_ORDER)
def test_low_order_points_are_refused(coordinate: int) -> None:
    public = coordinate.to_bytes(32, "little")
    with pytest.raises(LowOrderPointError):
        check_public_key(public)
    with pytest.raises(LowOrderPointError):
        pair(1).agree(public)


@pytest.mark.parametrize("coordinate", [PRIME, PRIME + 1, PRIME + 9, 2**255 - 1, 2**255 + 9, 2**256 - 1])
def test_a_second_encoding_of_a_point_is_refused(coordinate: int) -> None:
    with pytest.raises(BadKeyError, match="not below"):
        check_public_key(coordinate.to_bytes(32, "little"))


def test_the_same_key_with_its_unused_bit_set_does_not_pass_as_another() -> None:
    public = pair(1).public
    twin = public[:31] + bytes([public[31] | 0x80])
    assert pair(2).agree(twin) == pair(2).agree(public)
    check_public_key(public)
    with pytest.raises(BadKeyError):
        check_public_key(twin)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_lengths_of_keys(length: int) -> None:
    for action in (KeyPair, Identity, check_public_key, pair(1).agree):
        with pytest.raises(WrongLengthError, match=str(length)):
            action(bytes(length))


def test_a_reconstructed_key_is_checked_against_the_advertised_one() -> None:
    keys = pair(1)
    assert check_secret(keys.secret, keys.public).agree(pair(2).public) == keys.agree(pair(2).public)
    for at in range(256):
        # X25519 ignores five of these bits; a change of one is noticed all the same.
        number = int.from_bytes(keys.secret, "little") ^ 1 << at
        with pytest.raises(KeyMismatchError, match=keys.public.hex()):
            check_secret(number.to_bytes(32, "little"), keys.public)


# -- derivation ------------------------------------------------------------------------------------------

USUAL: dict[str, Any] = {
    "label": "mask",
    "session": SESSION,
    "round_number": 4,
    "role": "items",
    "low": 3,
    "high": 8,
    "length": 16,
}


def derived(secret: bytes, **change: Any) -> bytes:
    of = USUAL | change
    purpose = Purpose.of(of["label"], of["session"], of["round_number"], of["role"], of["length"])
    return derive(secret, purpose, of["low"], of["high"])


@pytest.mark.parametrize(
    "change",
    [
        {"label": "seal"},
        {"session": hashlib.sha256(b"another").digest()},
        {"round_number": 5},
        {"role": "biases"},
        {"low": 2},
        {"high": 9},
        {"label": "mas", "role": "kitems"},
        {"low": 3, "high": 3},
    ],
)
def test_nothing_is_derived_twice(change: dict[str, Any]) -> None:
    secret = pair(1).agree(pair(2).public)
    assert derived(secret) == derived(secret)
    assert derived(secret) != derived(secret, **change)
    assert derived(secret) != derived(secret[::-1])


def test_derive_refuses_what_it_cannot_bind() -> None:
    with pytest.raises(WrongLengthError, match="secret has 32 bytes, not 4"):
        derived(b"1234")
    with pytest.raises(WrongLengthError, match="session id"):
        derived(bytes(32), session=b"")
    for low, high in ((8, 3), (-1, 3)):
        with pytest.raises(LocalProtocolError, match="comes first"):
            derived(bytes(32), low=low, high=high)


MASK = Purpose.of("mask", SESSION, 4, "items", 16)


def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the public key of whoever exchanges keys."""
    done: list[str] = []
    original = KeyPair.agree

    def agree(own: KeyPair, public: bytes) -> bytes:
        done.append(own.public.hex())
        return original(own, public)

    monkeypatch.setattr(KeyPair, "agree", agree)
    return done


def test_ends_in_one_process_are_given_what_each_would_have_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(1), pair(2)
    apart = PairSecrets()
    expected = apart.derive(a, b.public, MASK, 3, 8)
    assert apart.derive(b, a.public, MASK, 8, 3) == expected == derived(a.agree(b.public))
    done = exchanges(monkeypatch)
    shared = SharedPairSecrets()
    assert shared.derive(a, b.public, MASK, 3, 8) == expected
    assert shared.derive(b, a.public, MASK, 8, 3) == expected
    assert len(done) == 1
    # Both ends have it: it is forgotten, and computed again for whoever asks again.
    assert repr(shared) == "SharedPairSecrets(0 of one end)"
    assert shared.derive(b, a.public, MASK, 8, 3) == expected
    assert len(done) == 2
    assert expected.hex() not in repr(shared)


def test_ends_in_one_process_share_nothing_that_is_bound_to_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b, c = pair(1), pair(2), pair(3)
    sealing = Purpose.of("seal", SESSION, 4, "items", 16)
    later = Purpose.of("mask", SESSION, 5, "items", 16)
    asked = [
        (a, b.public, MASK, 3, 8),
        (a, b.public, sealing, 3, 8),
        (a, b.public, later, 3, 8),
        (a, b.public, MASK, 3, 9),
        (a, c.public, MASK, 3, 8),
        (c, b.public, MASK, 3, 8),
    ]
    done = exchanges(monkeypatch)
    shared = SharedPairSecrets()
    secrets = [shared.derive(*question) for question in asked]
    assert len(done) == len(asked) == len(set(secrets))
    with pytest.raises(LowOrderPointError):
        shared.derive(a, bytes(32), MASK, 3, 8)
    assert repr(shared) == f"SharedPairSecrets({len(asked)} of one end)"


def key_list(*devices: int) -> list[tuple[int, bytes, bytes]]:
    return [(d, pair(2 * d).public, pair(2 * d + 1).public) for d in devices]


def test_the_session_binds_run_round_configuration_model_and_keys() -> None:
    model = hashlib.sha256(b"model").digest()
    keys = key_list(1, 2, 5)
    device, encryption, mask = keys[0]
    swapped = [(device, mask, encryption), *keys[1:]]
    renamed = [keys[0], keys[1], (6, *keys[2][1:])]
    lists = [key_list_hash(listed) for listed in (keys, keys[:2], swapped, renamed)]
    assert key_list_hash(key_list(1, 2, 5)) == lists[0]
    ids = {
        session_id_of_hash("run", 1, b"confih", model, lists[0]),
        session_id_of_hash("run", 1, b"", model, lists[0]),
        session_id_of_hash("run", 1, b"config", hashlib.sha256(b"another model").digest(), lists[0]),
        session_id_of_hash("ruo", 1, b"config", model, lists[0]),
        session_id_of_hash("run", 2, b"config", model, lists[0]),
        *(session_id_of_hash("run", 1, b"config", model, listed) for listed in lists),
    }
    assert len(ids) == 9
    assert {len(i) for i in ids} == {32}


def test_key_lists_that_are_refused() -> None:
    one, two = key_list(1, 2)
    with pytest.raises(DuplicateKeyError, match="device 1 is in the key list twice"):
        key_list_hash([one, one])
    with pytest.raises(LocalProtocolError, match="1 follows 2"):
        key_list_hash([two, one])
    _, encryption, mask = two
    for twin in ((2, encryption, one[2]), (2, encryption, one[1]), (2, mask, mask)):
        with pytest.raises(DuplicateKeyError, match="public key occurs twice"):
            key_list_hash([one, twin])
    for short in ((2, encryption, b"short"), (2, b"short", mask)):
        with pytest.raises(WrongLengthError, match="device 2"):
            key_list_hash([one, short])
    with pytest.raises(WrongLengthError, match="model hash"):
        session_id_of_hash("run", 1, b"", b"short", key_list_hash([one, two]))
    with pytest.raises(WrongLengthError, match="key list hash"):
        session_id_of_hash("run", 1, b"", bytes(32), b"short")


# -- sealed messages -------------------------------------------------------------------------------------

KEY = bytes(range(32))
WAY: dict[str, Any] = {"session": SESSION, "round_number": 4, "device": 3, "other": 8}
BACK = WAY | {"device": 8, "other": 3}


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_a_sealed_message_opens(plaintext: bytes) -> None:
    sealed = SealedChannel(KEY, **WAY).seal(plaintext)
    assert len(sealed) == len(plaintext) + 16
    assert SealedChannel(KEY, **BACK).open(sealed) == plaintext


def test_a_sealed_message_is_aes_gcm_over_the_documented_layout() -> None:
    numbers = [number.to_bytes(8, "big") for number in (4, 3, 8)]
    sealed = AESGCM(KEY).encrypt(bytes(4) + numbers[0], b"two shares", SESSION + b"".join(numbers))
    assert SealedChannel(KEY, **WAY).seal(b"two shares") == sealed


@pytest.mark.parametrize(
    "change",
    [
        {"session": hashlib.sha256(b"another").digest()},
        {"round_number": 5},
        {"device": 3, "other": 8},
        {"other": 4},
        {"device": 9},
    ],
)
def test_a_sealed_message_is_not_replayed_elsewhere(change: dict[str, Any]) -> None:
    sealed = SealedChannel(KEY, **WAY).seal(b"two shares")
    with pytest.raises(AuthenticationError):
        SealedChannel(KEY, **(BACK | change)).open(sealed)
    with pytest.raises(AuthenticationError):
        SealedChannel(KEY[::-1], **BACK).open(sealed)


def test_every_changed_byte_is_noticed() -> None:
    sealed = SealedChannel(KEY, **WAY).seal(b"two shares")
    end = SealedChannel(KEY, **BACK)
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 0x40]) + sealed[at + 1 :]
        with pytest.raises(AuthenticationError, match="device 3 to device 8 in round 4"):
            end.open(changed)
        with pytest.raises(AuthenticationError):
            end.open(sealed[:at])
    assert end.open(sealed) == b"two shares"


def test_the_two_directions_do_not_share_a_keystream() -> None:
    there = SealedChannel(KEY, **WAY).seal(bytes(64))
    back = SealedChannel(KEY, **BACK).seal(bytes(64))
    assert there[:64] != back[:64]


def test_a_channel_refuses() -> None:
    with pytest.raises(WrongLengthError, match="sealing key"):
        SealedChannel(b"short", **WAY)
    with pytest.raises(WrongLengthError, match="session id"):
        SealedChannel(KEY, **(WAY | {"session": b""}))
    with pytest.raises(LocalProtocolError, match="itself"):
        SealedChannel(KEY, **(WAY | {"other": 3}))


# -- commitments and signatures --------------------------------------------------------------------------


def test_a_commitment_binds_seed_device_and_round() -> None:
    seed = ENTROPY.bytes(32)
    commitment = commit(seed, device=3, round_number=4)
    assert len(commitment) == 32
    check_commitment(seed, commitment, device=3, round_number=4)
    changed = bytes([seed[0] ^ 1]) + seed[1:]
    for wrong, device, round_number in ((changed, 3, 4), (seed, 2, 4), (seed, 3, 5)):
        with pytest.raises(CommitmentMismatchError, match=f"device {device} .* round {round_number}"):
            check_commitment(wrong, commitment, device=device, round_number=round_number)
    with pytest.raises(WrongLengthError):
        commit(seed[:4], device=3, round_number=4)


def test_signatures() -> None:
    identity, other = Identity.generate(ENTROPY), Identity.generate(ENTROPY)
    signature = identity.sign(b"keys")
    assert len(signature) == 64
    verify(identity.public, signature, b"keys")
    with pytest.raises(MissingSignatureError):
        verify(identity.public, b"", b"keys")
    for public, bad, message in (
        (other.public, signature, b"keys"),
        (identity.public, signature, b"other keys"),
        (identity.public, signature[:63], b"keys"),
        (identity.public, bytes(64), b"keys"),
        (b"short", signature, b"keys"),
    ):
        with pytest.raises(BadSignatureError, match=public.hex()):
            verify(public, bad, message)


def test_rfc_8032_7_1_test_2() -> None:
    identity = Identity(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    assert identity.public.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert identity.sign(b"\x72").hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )


# -- entropy ---------------------------------------------------------------------------------------------


def test_seeded_entropy_replays_and_never_repeats() -> None:
    first, again = SeededEntropy(bytes(16), 1, 2), SeededEntropy(bytes(16), 1, 2)
    drawn = first.bytes(10) + first.bytes(0) + first.bytes(38)
    assert drawn == again.bytes(48)
    assert len({drawn[i : i + 8] for i in range(0, 48, 8)}) == 6
    others = [
        SeededEntropy(bytes(16), 2, 2),
        SeededEntropy(bytes(16), 1, 3),
        SeededEntropy(bytes(16), 2, 1),
        SeededEntropy(bytes(17), 1, 2),
    ]
    assert len({drawn, *(other.bytes(48) for other in others)}) == 5


def test_seeded_entropy_refuses() -> None:
    with pytest.raises(LocalProtocolError, match="at least 16"):
        SeededEntropy(bytes(4), 1, 2)
    for device, round_number in ((-1, 0), (0, -1)):
        with pytest.raises(LocalProtocolError, match="negative"):
            SeededEntropy(bytes(16), device, round_number)


def test_system_entropy_is_fresh() -> None:
    drawn = {SystemEntropy().bytes(32) for _ in range(50)}
    assert len(drawn) == 50
    assert {len(d) for d in drawn} == {32}
    assert KeyPair.generate(SystemEntropy()).public != KeyPair.generate(SystemEntropy()).public
