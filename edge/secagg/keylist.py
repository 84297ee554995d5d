"""The key list of a round: what a device advertises, what is signed, and what a device checks in the list.

In semi-honest mode a device gets the keys of its neighbours only, and takes the coordinator's word for the
hash of all keys. In active mode it gets everybody's; then it computes the hash itself, and from it the ring.
So the coordinator cannot choose who becomes whose neighbour: it can only try other keys for the devices it
controls until the ring happens to suit it. The graph's degree and threshold allow for that
(:data:`edge.secagg.graph.GRINDING_BITS`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from edge.crypto.errors import (
    ConfigMismatchError,
    IncompleteListError,
    ModelMismatchError,
    NotNeighbourError,
    OverflowingConfigError,
    OwnKeyError,
    TooFewContributorsError,
    UnknownDeviceError,
)
from edge.crypto.keys import (
    HASH_BYTES,
    PUBLIC_BYTES,
    SIGNATURE_BYTES,
    check_public_key,
    expect_distinct_keys,
    key_list_hash,
    session_id_of_hash,
)
from edge.crypto.prg import SEED_BYTES, ring_order
from edge.secagg.checks import OCTETS, DeviceIds, expect_arrays, read, read_devices
from edge.secagg.config import SecAggConfig
from edge.secagg.graph import check_parameters
from edge.secagg.states import Mode
from edge.wire.messages import KeyList

Verify = Callable[[bytes, bytes, bytes], None]
"""Checks a signature: takes identity, signature and statement; raises ``BadSignatureError``."""

_RECORD = struct.Struct(f"{PUBLIC_BYTES}s{PUBLIC_BYTES}s{HASH_BYTES}s")
RECORD_BYTES = _RECORD.size
"""Length of what a device advertises: two public keys and a commitment."""

_KEYS_LABEL = b"recfleet/secagg/1/advertised-keys/"
_SURVIVORS_LABEL = b"recfleet/secagg/1/survivors/"


class KeyRecord(NamedTuple):
    """What a device advertises: public keys for encryption and masks, commitment to its self-mask seed."""

    encryption: bytes
    mask: bytes
    commitment: bytes

    @classmethod
    def of(cls, data: bytes) -> KeyRecord:
        """Return the record in 96 bytes."""
        return cls(*_RECORD.unpack(data))

    @property
    def encoded(self) -> bytes:
        """The record's 96 bytes."""
        return self.encryption + self.mask + self.commitment

    def check(self) -> None:
        """Refuse keys that no honest device sends: ``BadKeyError``, ``LowOrderPointError``."""
        check_public_key(self.encryption)
        check_public_key(self.mask)


class RoundContext(NamedTuple):
    """What every message of a round is tied to: run, round, and hashes of configuration and model."""

    run_id: str
    round_number: int
    config_hash: bytes
    model_hash: bytes

    @property
    def hashes(self) -> bytes:
        """The 64 bytes that travel: hash of the configuration, hash of the model."""
        return self.config_hash + self.model_hash

    def session(self, config: SecAggConfig, list_hash: bytes) -> bytes:
        """Return the id of the session, 32 bytes, once the hash of all keys is known."""
        return session_id_of_hash(self.run_id, self.round_number, config.encoded, self.model_hash, list_hash)

    def expect(self, hashes: bytes) -> None:
        """Refuse other hashes: ``ConfigMismatchError``, ``ModelMismatchError``."""
        if hashes[:HASH_BYTES] != self.config_hash:
            raise ConfigMismatchError(
                f"the other end's configuration has hash {hashes[:HASH_BYTES].hex():.16}…, this end's has "
                f"{self.config_hash.hex():.16}…"
            )
        if hashes[HASH_BYTES:] != self.model_hash:
            raise ModelMismatchError(
                f"the other end's model has hash {hashes[HASH_BYTES:].hex():.16}…, this end's has "
                f"{self.model_hash.hex():.16}…"
            )


class Neighbourhood(NamedTuple):
    """What a device knows after a key list that it believes.

    ``neighbours`` ascend; ``records`` has theirs. ``everybody`` is all devices, int64[n], in active mode,
    else None. ``k`` and ``t`` are the graph's degree and threshold, ``members`` is how many take part,
    ``session`` the id of the session, 32 bytes.
    """

    session: bytes
    members: int
    k: int
    t: int
    neighbours: tuple[int, ...]
    records: dict[int, KeyRecord]
    everybody: DeviceIds | None


def keys_statement(context: RoundContext, device: int, record: bytes) -> bytes:
    """Return what a device signs when it advertises ``record``."""
    run = context.run_id.encode()
    numbers = context.round_number.to_bytes(8, "big") + device.to_bytes(8, "big")
    return _KEYS_LABEL + len(run).to_bytes(4, "big") + run + numbers + context.hashes + record


def survivors_statement(session: bytes, survivors: DeviceIds) -> bytes:
    """Return what a device signs about the survivors, int64[m] ascending: H(session, survivors)."""
    return _SURVIVORS_LABEL + hashlib.sha256(session + survivors.astype(">i8").tobytes()).digest()


def ring_seed(digest: bytes) -> bytes:
    """Return the seed of the ring: of the hash of the key list, so nobody knows it before all keys are in."""
    return digest[:SEED_BYTES]


def nearest(order: Sequence[int], k: int, device: int) -> tuple[int, ...]:
    """Return the ``k`` neighbours of one device on the ring ``order``, ascending.

    The same as :func:`edge.secagg.graph.neighbours` gives, without those of everybody else.
    """
    n = len(order)
    if k == n - 1:
        return tuple(sorted(other for other in order if other != device))
    at = order.index(device)
    half = k // 2
    return tuple(sorted(order[(at + step) % n] for step in range(-half, half + 1) if step))


def read_key_list(
    message: KeyList,
    config: SecAggConfig,
    context: RoundContext,
    device: int,
    own: KeyRecord,
    roster: Mapping[int, bytes],
    verify: Verify,
) -> Neighbourhood:
    """Return the neighbourhood of ``device`` from a key list, if it can be believed.

    Parameters
    ----------
    message : the key list.
    config, context : this end's own.
    device : who checks.
    own : what it advertised.
    roster, verify : public identity of every device of the run, and how a signature is checked; for active
        mode.

    Raises
    ------
    ``ConfigMismatchError``, ``ModelMismatchError``; ``OverflowingConfigError`` above ``n_max`` members;
    ``TooFewContributorsError``; ``InfeasibleError``, ``ThresholdError`` for unsafe parameters;
    ``OwnKeyError``; ``DuplicateKeyError``, ``BadKeyError``, ``LowOrderPointError``; in active mode
    ``UnknownDeviceError``, ``IncompleteListError``, ``NotNeighbourError``, ``MissingSignatureError``,
    ``BadSignatureError``; and for arrays that are not what they should be, the errors of
    :mod:`edge.secagg.checks`.
    """
    active = config.mode is Mode.ACTIVE
    arrays = message.arrays
    expect_arrays(
        arrays, "devices", "records", "digest", "context", signature="signatures" if active else None
    )
    context.expect(read(arrays, "context", OCTETS, (2, HASH_BYTES)).tobytes())
    members, k, t = message.members, message.neighbours, message.threshold
    _check_cohort(config, members, k, t)

    devices = read_devices(arrays, "devices")
    listed = members if active else k + 1
    if len(devices) != listed:
        raise IncompleteListError(f"the key list names {len(devices)} devices, not {listed}")
    data = read(arrays, "records", OCTETS, (listed, RECORD_BYTES)).tobytes()
    digest = read(arrays, "digest", OCTETS, (HASH_BYTES,)).tobytes()
    ids: list[int] = devices.tolist()
    records = dict(zip(ids, map(KeyRecord._make, _RECORD.iter_unpack(data)), strict=True))
    if records.get(device) != own:
        raise OwnKeyError(f"the key list does not show the keys that device {device} advertised")
    keys = [(other, record.encryption, record.mask) for other, record in records.items()]
    expect_distinct_keys(keys)
    neighbours = tuple(other for other in ids if other != device)
    if active:
        if key_list_hash(keys) != digest:
            raise IncompleteListError("the hash of the key list is not that of the keys in it")
        unknown = [other for other in ids if other not in roster]
        if unknown:
            raise UnknownDeviceError(f"devices {unknown[:5]} of the key list are not on the roster")
        neighbours = nearest(ring_order(ids, ring_seed(digest)), k, device)
        signatures = read(arrays, "signatures", OCTETS, (k, SIGNATURE_BYTES))
        for other, signature in zip(neighbours, signatures, strict=True):
            statement = keys_statement(context, other, records[other].encoded)
            verify(roster[other], signature.tobytes(), statement)
    for other in neighbours:
        records[other].check()
    session = context.session(config, digest)
    kept = {other: records[other] for other in neighbours}
    return Neighbourhood(session, members, k, t, neighbours, kept, devices if active else None)


def _check_cohort(config: SecAggConfig, members: int, k: int, t: int) -> None:
    if members > config.n_max:
        raise OverflowingConfigError(
            f"{members} devices take part; the sum is only safe for up to {config.n_max}"
        )
    needed = config.contributors_needed(members)
    if members < needed:
        raise TooFewContributorsError(f"{members} devices take part; at least {needed} must contribute")
    check_parameters(members, k, t)
    if (k, t) != config.graph(members):
        raise ConfigMismatchError(
            f"{k} neighbours and threshold {t} are not what the configuration gives for {members} devices: "
            f"{config.graph(members)}"
        )


def expect_neighbours(devices: DeviceIds, neighbours: frozenset[int], what: str) -> None:
    """Raise ``NotNeighbourError`` if ``devices`` names anybody who is not in ``neighbours``."""
    strangers = [device for device in devices.tolist() if device not in neighbours]
    if strangers:
        raise NotNeighbourError(f"{what} names devices {strangers[:5]}, which are not neighbours that shared")
