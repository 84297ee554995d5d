"""What a coordinator that breaks the protocol may try on a device, and the name under which it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from secagg_harness import MODEL_HASH, ROUND, RUN, Fleet, flipped, small_config, with_arrays
from secagg_victim import VICTIM, expect, ids, to_victim

from coordinator.secure.secagg.cohort import NeighbourGraph
from edge.crypto import errors
from edge.crypto.entropy import SeededEntropy
from edge.crypto.keys import KeyPair
from edge.secagg.graph import GraphParameters
from edge.secagg.keylist import KeyRecord, RoundContext
from edge.secagg.states import CoordinatorState, Mode
from edge.wire.messages import KeyList

Forge = Callable[[Any], Any]


def key_list(**changes: Any) -> Forge:
    return lambda message: with_arrays(message, **changes)


def duplicate_key(message: Any) -> Any:
    records = message.arrays["records"].copy()
    records[0, :32] = records[1, :32]
    return with_arrays(message, records=records)


def record_of_another(which: slice, value: bytes) -> Forge:
    def forge(message: Any) -> Any:
        records = message.arrays["records"].copy()
        records[0, which] = np.frombuffer(value, dtype=np.uint8)
        return with_arrays(message, records=records)

    return forge


def own_key_changed(message: Any) -> Any:
    at = message.arrays["devices"].tolist().index(VICTIM)
    return with_arrays(message, records=flipped(message.arrays["records"], at * 96))


def without_the_victim(message: Any) -> Any:
    devices = message.arrays["devices"].copy()
    devices[devices.tolist().index(VICTIM)] += 100
    return with_arrays(message, devices=np.sort(devices))


KEY_LISTS: list[tuple[str, Forge, type[errors.SecAggError]]] = [
    (
        "another configuration",
        lambda m: with_arrays(m, context=flipped(m.arrays["context"])),
        errors.ConfigMismatchError,
    ),
    (
        "another model",
        lambda m: with_arrays(m, context=flipped(m.arrays["context"], 40)),
        errors.ModelMismatchError,
    ),
    ("own key changed", own_key_changed, errors.OwnKeyError),
    ("own key missing", without_the_victim, errors.OwnKeyError),
    ("a key twice", duplicate_key, errors.DuplicateKeyError),
    ("low order", record_of_another(slice(0, 32), bytes(32)), errors.LowOrderPointError),
    (
        "low order of masks",
        record_of_another(slice(32, 64), (1).to_bytes(32, "little")),
        errors.LowOrderPointError,
    ),
    ("not canonical", record_of_another(slice(32, 64), b"\xff" * 32), errors.BadKeyError),
    ("more members than planned", lambda m: m._replace(members=10_000), errors.OverflowingConfigError),
    ("a lone member", lambda m: m._replace(members=1), errors.TooFewContributorsError),
    ("a low threshold", lambda m: m._replace(threshold=2), errors.ThresholdError),
    (
        "an impossible threshold",
        lambda m: m._replace(threshold=m.neighbours + 2),
        errors.ThresholdError,
    ),
    ("no neighbours", lambda m: m._replace(neighbours=0), errors.InfeasibleError),
    ("fewer neighbours", lambda m: m._replace(neighbours=2, threshold=2), errors.ConfigMismatchError),
    ("a high threshold", lambda m: m._replace(threshold=m.threshold + 1), errors.ConfigMismatchError),
    (
        "a neighbour missing",
        lambda m: with_arrays(m, devices=m.arrays["devices"][1:], records=m.arrays["records"][1:]),
        errors.IncompleteListError,
    ),
    (
        "a device twice",
        lambda m: with_arrays(m, devices=np.sort(np.append(m.arrays["devices"][1:], VICTIM))),
        errors.MalformedMessageError,
    ),
    ("negative ids", lambda m: with_arrays(m, devices=m.arrays["devices"] - 1), errors.MalformedMessageError),
    ("ids of another type", lambda m: with_arrays(m, devices=m.arrays["devices"].astype("<i4")),
     errors.WrongDtypeError),
    ("records cut off", lambda m: with_arrays(m, records=m.arrays["records"][:, :-1]),
     errors.WrongLengthError),
    ("records flat", lambda m: with_arrays(m, records=m.arrays["records"].ravel()), errors.WrongLengthError),
    ("no digest", key_list(digest=None), errors.MalformedMessageError),
    ("one array too many", key_list(more=ids(1)), errors.MalformedMessageError),
]  # fmt: skip


@pytest.mark.parametrize(("forge", "error"), [case[1:] for case in KEY_LISTS], ids=[c[0] for c in KEY_LISTS])
def test_a_forged_key_list_is_refused_by_name(forge: Forge, error: type[errors.SecAggError]) -> None:
    fleet = Fleet(9, corrupt=0.0)
    fleet.advertise()
    expect(fleet, forge(to_victim(fleet)), error)


def rebuilt(fleet: Fleet, change: Callable[[dict[int, KeyRecord]], None]) -> KeyList:
    """Return a key list for the victim that is consistent in itself, over changed records."""
    cohort = fleet.server.cohort
    assert cohort is not None
    records = dict(zip(cohort.devices.tolist(), cohort.records, strict=True))
    change(records)
    context = RoundContext(RUN, ROUND, fleet.config.hash, MODEL_HASH)
    signatures = dict.fromkeys(records, bytes(64)) | fleet.server._advertised.signatures
    forged = NeighbourGraph(fleet.config, context, records)
    return dict(forged.key_lists(Mode.ACTIVE, signatures))[VICTIM]


def invented() -> KeyRecord:
    entropy = SeededEntropy(bytes(16), 77, 1)
    return KeyRecord(KeyPair.generate(entropy).public, KeyPair.generate(entropy).public, bytes(32))


ACTIVE_KEY_LISTS: list[tuple[str, Callable[[Fleet, Any], Any], type[errors.SecAggError]]] = [
    (
        "a device that is not on the roster",
        lambda fleet, m: rebuilt(fleet, lambda r: (r.pop(0), r.update({777: invented()}))[0] and None),
        errors.UnknownDeviceError,
    ),
    (
        "keys that their device did not sign",
        lambda fleet, m: rebuilt(fleet, lambda r: r.update({1: invented()})),
        errors.BadSignatureError,
    ),
    (
        "another hash than that of the keys",
        lambda fleet, m: with_arrays(m, digest=flipped(m.arrays["digest"])),
        errors.IncompleteListError,
    ),
    (
        "a device left out",
        lambda fleet, m: with_arrays(m, devices=m.arrays["devices"][1:], records=m.arrays["records"][1:]),
        errors.IncompleteListError,
    ),
    ("no signatures", lambda fleet, m: with_arrays(m, signatures=None), errors.MissingSignatureError),
    (
        "a signature missing",
        lambda fleet, m: with_arrays(m, signatures=m.arrays["signatures"][1:]),
        errors.WrongLengthError,
    ),
    (
        "a wrong signature",
        lambda fleet, m: with_arrays(m, signatures=flipped(m.arrays["signatures"])),
        errors.BadSignatureError,
    ),
    (
        "signatures in another order",
        lambda fleet, m: with_arrays(m, signatures=m.arrays["signatures"][::-1]),
        errors.BadSignatureError,
    ),
]


@pytest.mark.parametrize(
    ("forge", "error"), [case[1:] for case in ACTIVE_KEY_LISTS], ids=[case[0] for case in ACTIVE_KEY_LISTS]
)
def test_a_forged_key_list_is_refused_by_name_in_active_mode(
    forge: Callable[[Fleet, Any], Any], error: type[errors.SecAggError]
) -> None:
    fleet = Fleet(9, mode=Mode.ACTIVE, corrupt=0.0)
    fleet.advertise()
    expect(fleet, forge(fleet, to_victim(fleet)), error)


def test_a_ring_that_the_coordinator_prefers_is_not_followed() -> None:
    # In active mode a device computes its neighbours itself, so a list signed by others does not verify.
    fleet = Fleet(12, mode=Mode.ACTIVE, parameters=GraphParameters(4, 3), corrupt=0.0)
    fleet.advertise()
    message = to_victim(fleet)
    cohort = fleet.server.cohort
    assert cohort is not None
    strangers = [at for at in range(12) if at not in cohort.holders[VICTIM]][:4]
    signatures = fleet.server._advertised.signatures
    chosen = np.frombuffer(b"".join(signatures[at] for at in strangers), dtype=np.uint8).reshape(4, -1)
    expect(fleet, with_arrays(message, signatures=chosen), errors.BadSignatureError)


DELIVERIES: list[tuple[str, Forge, type[errors.SecAggError]]] = [
    (
        "changed",
        lambda m: with_arrays(m, sealed=m.arrays["sealed"] ^ 1),
        errors.AuthenticationError,
    ),
    (
        "from the wrong senders",
        lambda m: with_arrays(m, sealed=m.arrays["sealed"][[*range(1, 8), 0]]),
        errors.AuthenticationError,
    ),
    (
        "with other commitments",
        lambda m: with_arrays(m, commitments=m.arrays["commitments"] ^ 1),
        errors.AuthenticationError,
    ),
    ("without commitments", lambda m: with_arrays(m, commitments=None), errors.MalformedMessageError),
    (
        "from a stranger",
        lambda m: with_arrays(m, senders=np.append(m.arrays["senders"][:-1], 99)),
        errors.NotNeighbourError,
    ),
    (
        "from itself",
        lambda m: with_arrays(
            m,
            senders=np.sort(np.append(m.arrays["senders"], VICTIM)),
            sealed=np.vstack((m.arrays["sealed"], m.arrays["sealed"][:1])),
            commitments=np.vstack((m.arrays["commitments"], m.arrays["commitments"][:1])),
        ),
        errors.NotNeighbourError,
    ),
    (
        "from one sender twice",
        lambda m: with_arrays(m, senders=np.append(m.arrays["senders"][:-1], m.arrays["senders"][-2])),
        errors.MalformedMessageError,
    ),
    (
        "of fewer than the threshold",
        lambda m: with_arrays(m, **{name: array[:3] for name, array in m.arrays.items()}),
        errors.TooFewNeighboursError,
    ),
    (
        "cut off",
        lambda m: with_arrays(m, sealed=m.arrays["sealed"][:, :-1]),
        errors.WrongLengthError,
    ),
    ("without senders", lambda m: with_arrays(m, senders=None), errors.MalformedMessageError),
]


@pytest.mark.parametrize(
    ("forge", "error"), [case[1:] for case in DELIVERIES], ids=[case[0] for case in DELIVERIES]
)
def test_a_forged_delivery_of_shares_is_refused_by_name(
    forge: Forge, error: type[errors.SecAggError]
) -> None:
    fleet = Fleet(9, corrupt=0.0)
    fleet.reach(CoordinatorState.MASKING)
    expect(fleet, forge(to_victim(fleet)), error)


def test_shares_of_another_round_do_not_open() -> None:
    deliveries = []
    for round_number in (ROUND, ROUND + 1):
        fleet = Fleet(5, round_number=round_number)
        fleet.reach(CoordinatorState.MASKING)
        deliveries.append(to_victim(fleet))
    # The frame says the right round, so only the sealed bytes give it away.
    replayed = deliveries[0]._replace(round_number=ROUND + 1)
    with pytest.raises(errors.AuthenticationError):
        fleet.clients[VICTIM].receive(replayed)


REQUESTS: list[tuple[str, Forge, type[errors.SecAggError]]] = [
    ("itself dead", lambda m: with_arrays(m, dead=ids(VICTIM)), errors.SelfDeadError),
    ("a stranger dead", lambda m: with_arrays(m, dead=ids(99)), errors.NotNeighbourError),
    ("one that never shared dead", lambda m: with_arrays(m, dead=ids(7)), errors.NotNeighbourError),
    ("one dead twice", lambda m: with_arrays(m, dead=ids(3, 3)), errors.MalformedMessageError),
    ("fewer alive than t", lambda m: with_arrays(m, dead=ids(0, 1, 3, 4)), errors.TooFewSurvivorsError),
    ("a lone survivor", lambda m: m._replace(survivors=1), errors.TooFewContributorsError),
    ("fewer than must contribute", lambda m: m._replace(survivors=3), errors.TooFewContributorsError),
    ("fewer than are around", lambda m: m._replace(survivors=5), errors.MalformedMessageError),
    ("more than take part", lambda m: m._replace(survivors=10), errors.MalformedMessageError),
    ("no list", lambda m: with_arrays(m, dead=None), errors.MalformedMessageError),
    ("a list of floats", lambda m: with_arrays(m, dead=np.zeros(1)), errors.WrongDtypeError),
]


@pytest.mark.parametrize(
    ("forge", "error"), [case[1:] for case in REQUESTS], ids=[case[0] for case in REQUESTS]
)
def test_a_forged_unmask_request_is_refused_by_name(forge: Forge, error: type[errors.SecAggError]) -> None:
    fleet = Fleet(9, corrupt=0.0, min_contributors=4)  # threshold 5
    fleet.advertise()
    fleet.deliver(silent=[7])
    fleet.deadline()
    fleet.deliver()
    expect(fleet, forge(to_victim(fleet)), error)


CHECKS: list[tuple[str, Forge, type[errors.SecAggError]]] = [
    ("without itself", lambda m: with_arrays(m, survivors=ids(0, 1, 3, 4, 5)), errors.SelfDeadError),
    (
        "with a stranger",
        lambda m: with_arrays(m, survivors=ids(0, 1, 2, 3, 4, 99)),
        errors.UnknownDeviceError,
    ),
    (
        "with one that never shared",
        lambda m: with_arrays(m, survivors=ids(0, 1, 2, 3, 4, 5, 7)),
        errors.IncompleteListError,
    ),
    ("too few", lambda m: with_arrays(m, survivors=ids(0, 1, 2)), errors.TooFewContributorsError),
    ("below the threshold", lambda m: with_arrays(m, survivors=ids(0, 1, 2, 3)), errors.TooFewSurvivorsError),
    ("twice", lambda m: with_arrays(m, survivors=ids(0, 1, 2, 2)), errors.MalformedMessageError),
    ("nobody", lambda m: with_arrays(m, survivors=None), errors.MalformedMessageError),
]


@pytest.mark.parametrize(("forge", "error"), [case[1:] for case in CHECKS], ids=[case[0] for case in CHECKS])
def test_forged_survivors_are_not_signed(forge: Forge, error: type[errors.SecAggError]) -> None:
    fleet = Fleet(9, mode=Mode.ACTIVE, corrupt=0.0, min_contributors=4)
    fleet.advertise()
    fleet.deliver(silent=[7])
    fleet.deadline()
    fleet.deliver()
    expect(fleet, forge(to_victim(fleet)), error)


SIGNED_REQUESTS: list[tuple[str, Forge, type[errors.SecAggError]]] = [
    ("a survivor dead", lambda m: with_arrays(m, dead=ids(1, 8)), errors.OverlappingListError),
    ("a dead one alive", lambda m: with_arrays(m, dead=ids()), errors.IncompleteListError),
    ("other numbers", lambda m: m._replace(survivors=8), errors.MalformedMessageError),
    (
        "too few signatures",
        lambda m: with_arrays(m, signers=m.arrays["signers"][:3], signatures=m.arrays["signatures"][:3]),
        errors.TooFewSurvivorsError,
    ),
    (
        "a wrong signature",
        lambda m: with_arrays(m, signatures=flipped(m.arrays["signatures"])),
        errors.BadSignatureError,
    ),
    (
        "one signature for two",
        lambda m: with_arrays(m, signatures=m.arrays["signatures"][[0, 0, *range(2, 6)]]),
        errors.BadSignatureError,
    ),
    (
        "one signer twice",
        lambda m: with_arrays(m, signers=m.arrays["signers"][[0, 0, *range(2, 6)]]),
        errors.MalformedMessageError,
    ),
    (
        "the dead sign",
        lambda m: with_arrays(m, signers=np.append(m.arrays["signers"][:-1], 8)),
        errors.NotNeighbourError,
    ),
    (
        "signatures cut off",
        lambda m: with_arrays(m, signatures=m.arrays["signatures"][:, 1:]),
        errors.WrongLengthError,
    ),
    ("no signatures", lambda m: with_arrays(m, signatures=None), errors.MalformedMessageError),
]


@pytest.mark.parametrize(
    ("forge", "error"), [case[1:] for case in SIGNED_REQUESTS], ids=[case[0] for case in SIGNED_REQUESTS]
)
def test_no_share_is_released_against_what_was_signed(forge: Forge, error: type[errors.SecAggError]) -> None:
    fleet = Fleet(9, mode=Mode.ACTIVE, corrupt=0.0)
    fleet.advertise()
    fleet.deliver(silent=[7])
    fleet.deadline()
    fleet.deliver(silent=[8])
    fleet.deadline()
    fleet.deliver()
    expect(fleet, forge(to_victim(fleet)), error)


def test_small_config_is_the_one_the_cases_above_assume() -> None:
    assert small_config(9, corrupt=0.0).graph(9) == GraphParameters(8, 5)
    assert small_config(8, corrupt=0.0).graph(8) == GraphParameters(7, 5)


# -- signatures of another run, in which everything but the run's identity is the same ----------------------


def two_runs() -> tuple[Fleet, Fleet]:
    """Return the same nine devices with the same keys and the same model in this run and in another."""
    here, there = (Fleet(9, mode=Mode.ACTIVE, corrupt=0.0, run_id=run) for run in (RUN, "another"))
    for fleet in (here, there):
        fleet.advertise()
    assert here.server.cohort is not None
    assert there.server.cohort is not None
    assert here.server.cohort.records == there.server.cohort.records
    return here, there


def test_keys_that_were_signed_in_another_run_are_refused() -> None:
    here, there = two_runs()
    ours, theirs = to_victim(here), to_victim(there)
    np.testing.assert_array_equal(ours.arrays["records"], theirs.arrays["records"])
    expect(here, with_arrays(ours, signatures=theirs.arrays["signatures"]), errors.BadSignatureError)


def test_survivors_that_were_signed_in_another_run_are_refused() -> None:
    here, there = two_runs()
    for fleet in (here, there):
        fleet.deliver(silent=[7])
        fleet.deadline()
        fleet.deliver(silent=[8])
        fleet.deadline()
        fleet.deliver()
    ours, theirs = to_victim(here), to_victim(there)
    for name in ("dead", "signers"):
        np.testing.assert_array_equal(ours.arrays[name], theirs.arrays[name])
    expect(here, with_arrays(ours, signatures=theirs.arrays["signatures"]), errors.BadSignatureError)


def test_a_coordinator_refuses_keys_that_were_signed_for_another_run() -> None:
    here, there = (Fleet(9, mode=Mode.ACTIVE, corrupt=0.0, run_id=run) for run in (RUN, "another"))
    theirs = there.clients[VICTIM].advertise()
    step = here.to_server(VICTIM, theirs._replace(run_id=RUN))
    assert isinstance(step.refused, errors.BadSignatureError)
