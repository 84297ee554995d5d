"""What a device checks before it releases shares: who survived, who is dead, were all told the same.

The coordinator names the dead only; alive is every other neighbour that shared. So no device can be listed as
both in one request, and in active mode what the request says must agree with the survivors that were signed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge.crypto.errors import (
    IncompleteListError,
    MalformedMessageError,
    OverlappingListError,
    SelfDeadError,
    TooFewContributorsError,
    TooFewSurvivorsError,
    UnknownDeviceError,
)
from edge.crypto.keys import SIGNATURE_BYTES
from edge.secagg.checks import OCTETS, DeviceIds, expect_arrays, read, read_devices
from edge.secagg.config import SecAggConfig
from edge.secagg.keylist import Neighbourhood, Verify, expect_neighbours, survivors_statement
from edge.wire.messages import ConsistencyCheck, UnmaskRequest


def read_survivors(
    message: ConsistencyCheck,
    config: SecAggConfig,
    hood: Neighbourhood,
    device: int,
    shared: frozenset[int],
) -> DeviceIds:
    """Return the survivors, int64[m], that ``device`` can sign; ``shared`` are the neighbours that shared.

    Raises ``UnknownDeviceError`` for one that does not take part, ``SelfDeadError`` if this device is not
    among them, ``IncompleteListError`` for a neighbour that never shared, ``TooFewContributorsError``,
    ``TooFewSurvivorsError``, and the errors of :mod:`edge.secagg.checks`.
    """
    expect_arrays(message.arrays, "survivors")
    survivors = read_devices(message.arrays, "survivors")
    assert hood.everybody is not None
    unknown = survivors[~np.isin(survivors, hood.everybody)]
    if unknown.size:
        raise UnknownDeviceError(f"survivors {unknown[:5].tolist()} do not take part in this round")
    alive = set(survivors.tolist())
    if device not in alive:
        raise SelfDeadError(f"device {device} contributed and is not among the survivors")
    around = alive.intersection(hood.neighbours)
    if not around <= shared:
        raise IncompleteListError(
            f"devices {sorted(around - shared)[:5]} survived without having shared their secrets"
        )
    _expect_enough(config, hood, device, len(alive), len(around) + 1)
    return survivors


def read_unmask_request(
    message: UnmaskRequest,
    config: SecAggConfig,
    hood: Neighbourhood,
    device: int,
    shared: frozenset[int],
    signed: DeviceIds | None,
    roster: Mapping[int, bytes],
    verify: Verify,
) -> frozenset[int]:
    """Return the dead among the neighbours of ``device``, if the request may be answered.

    Parameters
    ----------
    message : the request.
    config, hood : the configuration and what is known of the round.
    device : who is asked.
    shared : its neighbours that shared.
    signed : the survivors that it signed, in active mode; else None.
    roster, verify : identities, and how a signature is checked; for active mode.

    Raises
    ------
    ``SelfDeadError``, ``NotNeighbourError``, ``TooFewSurvivorsError``, ``TooFewContributorsError``,
    ``MalformedMessageError`` for numbers that cannot be; in active mode ``OverlappingListError`` and
    ``IncompleteListError`` for a request that contradicts what was signed, ``BadSignatureError``, and
    ``TooFewSurvivorsError`` if too few signed the same; and the errors of :mod:`edge.secagg.checks`.
    """
    expect_arrays(message.arrays, "dead", *(() if signed is None else ("signers", "signatures")))
    listed = read_devices(message.arrays, "dead")
    dead = frozenset(listed.tolist())
    if device in dead:
        raise SelfDeadError(f"device {device} is alive and listed dead")
    expect_neighbours(listed, shared, "the list of the dead")
    alive = shared - dead
    if signed is not None:
        _expect_agreement(message, hood, signed, alive, dead, roster, verify)
    _expect_enough(config, hood, device, message.survivors, len(alive) + 1)
    return dead


def _expect_agreement(
    message: UnmaskRequest,
    hood: Neighbourhood,
    survivors: DeviceIds,
    alive: frozenset[int],
    dead: frozenset[int],
    roster: Mapping[int, bytes],
    verify: Verify,
) -> None:
    signed = frozenset(survivors.tolist())
    if dead & signed:
        raise OverlappingListError(f"devices {sorted(dead & signed)[:5]} are listed alive and dead")
    if alive - signed:
        raise IncompleteListError(f"devices {sorted(alive - signed)[:5]} are listed neither alive nor dead")
    if message.survivors != len(signed):
        raise MalformedMessageError(f"{message.survivors} survivors are announced; {len(signed)} were signed")
    signers = read_devices(message.arrays, "signers")
    signatures = read(message.arrays, "signatures", OCTETS, (len(signers), SIGNATURE_BYTES))
    expect_neighbours(signers, alive, "the list of signers")
    statement = survivors_statement(hood.session, survivors)
    for signer, signature in zip(signers.tolist(), signatures, strict=True):
        verify(roster[signer], signature.tobytes(), statement)
    if len(signers) + 1 < hood.t:
        raise TooFewSurvivorsError(
            f"{len(signers)} neighbours signed the survivors; with this device that is below {hood.t}"
        )


def _expect_enough(
    config: SecAggConfig, hood: Neighbourhood, device: int, survivors: int, around: int
) -> None:
    """Refuse too few survivors in all, or too few ``around`` this device, itself included."""
    needed = config.contributors_needed(hood.members)
    if survivors < needed:
        raise TooFewContributorsError(f"a sum over {survivors} devices; at least {needed} must contribute")
    if around < hood.t:
        raise TooFewSurvivorsError(f"{around} survivors around device {device}; the threshold is {hood.t}")
    if not around <= survivors <= hood.members:
        raise MalformedMessageError(
            f"{survivors} survivors of {hood.members} devices cannot include {around} around one"
        )
