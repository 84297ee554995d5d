"""What a device that breaks the protocol may try on the coordinator: it is refused, and the round goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest
from secagg_harness import MODEL_HASH, ROUND, RUN, Fleet, flipped, with_arrays

from coordinator.secure.secagg.unmasking import SumMismatchError
from edge.crypto import errors
from edge.crypto.entropy import SeededEntropy
from edge.crypto.keys import KeyPair
from edge.secagg.client import SecAggClient
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.cryptography import DeviceSecrets
from edge.secagg.graph import GraphParameters
from edge.secagg.states import CoordinatorState, DeviceState, Mode
from edge.wire.codec import decode
from edge.wire.messages import (
    Abort,
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    SealedShares,
    UnmaskShares,
)

LIAR = 4
Forge = Callable[[Any], Any]


def only_from_the_liar(kind: type[Any], forge: Forge) -> Forge:
    return lambda message: forge(message) if isinstance(message, kind) and message.device == LIAR else message


def record_with(which: slice, value: bytes) -> Forge:
    def forge(message: Any) -> Any:
        record = message.arrays["record"].copy()
        record[which] = np.frombuffer(value, dtype=np.uint8)
        return with_arrays(message, record=record)

    return forge


def same_key_twice(message: Any) -> Any:
    return record_with(slice(0, 32), message.arrays["record"][32:64].tobytes())(message)


def bad_share(message: Any) -> Any:
    shares = message.arrays["shares"].copy()
    shares[0, :2] = 1
    shares[0, 32] = 1
    return with_arrays(message, shares=shares)


CASES: list[tuple[str, type[Any], Forge, type[errors.SecAggError]]] = [
    (
        "another configuration",
        AdvertiseKeys,
        lambda m: with_arrays(m, context=flipped(m.arrays["context"])),
        errors.ConfigMismatchError,
    ),
    (
        "another model",
        AdvertiseKeys,
        lambda m: with_arrays(m, context=flipped(m.arrays["context"], 63)),
        errors.ModelMismatchError,
    ),
    ("low order", AdvertiseKeys, record_with(slice(0, 32), bytes(32)), errors.LowOrderPointError),
    ("not canonical", AdvertiseKeys, record_with(slice(32, 64), b"\xff" * 32), errors.BadKeyError),
    ("the same key twice", AdvertiseKeys, same_key_twice, errors.DuplicateKeyError),
    (
        "half a record",
        AdvertiseKeys,
        lambda m: with_arrays(m, record=m.arrays["record"][:64]),
        errors.WrongLengthError,
    ),
    (
        "a share too few",
        SealedShares,
        lambda m: with_arrays(m, sealed=m.arrays["sealed"][1:]),
        errors.WrongLengthError,
    ),
    ("no shares", SealedShares, lambda m: with_arrays(m, sealed=None), errors.MalformedMessageError),
    (
        "an input too short",
        MaskedInput,
        lambda m: with_arrays(m, masked=m.arrays["masked"][1:]),
        errors.WrongLengthError,
    ),
    (
        "an input of floats",
        MaskedInput,
        lambda m: with_arrays(m, masked=m.arrays["masked"].astype(np.float32)),
        errors.WrongDtypeError,
    ),
    (
        "an input of wider integers",
        MaskedInput,
        lambda m: with_arrays(m, masked=m.arrays["masked"].astype(np.uint64)),
        errors.WrongDtypeError,
    ),
    (
        "a share left out",
        UnmaskShares,
        lambda m: with_arrays(m, shares=m.arrays["shares"][1:]),
        errors.WrongLengthError,
    ),
    (
        "shares cut off",
        UnmaskShares,
        lambda m: with_arrays(m, shares=m.arrays["shares"][:, :-1]),
        errors.WrongLengthError,
    ),
    ("a share that is none", UnmaskShares, bad_share, errors.ShareValueError),
]
STAGES = {
    AdvertiseKeys: CoordinatorState.ADVERTISING,
    SealedShares: CoordinatorState.SHARING,
    MaskedInput: CoordinatorState.MASKING,
    ConsistencySignature: CoordinatorState.CHECKING,
    UnmaskShares: CoordinatorState.UNMASKING,
}


def play(fleet: Fleet, kind: type[Any], forge: Forge) -> None:
    play_where(fleet, only_from_the_liar(kind, forge))


def play_where(fleet: Fleet, mutate: Forge) -> None:
    """Play a round in which ``mutate`` is done to all that devices send."""
    fleet.advertise(mutate=mutate)
    while fleet.server.state in STAGES.values():
        if fleet.inbox:
            fleet.deliver(mutate=mutate)
        else:
            fleet.deadline()
    fleet.deliver()


@pytest.mark.parametrize(("kind", "forge", "error"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_forged_frame_is_refused_by_name_and_costs_only_its_sender(
    kind: type[Any], forge: Forge, error: type[errors.SecAggError]
) -> None:
    # All shares but one are needed, or the round would be over before the liar's arrive.
    fleet = Fleet(10, corrupt=0.0, parameters=GraphParameters(9, 9))
    play(fleet, kind, forge)
    assert [type(refused) for refused in fleet.refusals] == [error]
    assert fleet.refusals[0].reason == error.NAME
    assert fleet.server.dropped[LIAR] is STAGES[kind]
    fleet.check()
    assert fleet.server.state is CoordinatorState.DONE
    alive = LIAR in fleet.server.result.survivors  # type: ignore[union-attr]
    assert alive is (kind is UnmaskShares)
    if not alive:
        assert fleet.clients[LIAR].state is DeviceState.ABORTED
        assert fleet.clients[LIAR].failure == error.NAME


ACTIVE_CASES: list[tuple[str, type[Any], Forge, type[errors.SecAggError]]] = [
    (
        "unsigned keys",
        AdvertiseKeys,
        lambda m: with_arrays(m, signature=None),
        errors.MissingSignatureError,
    ),
    (
        "wrongly signed keys",
        AdvertiseKeys,
        lambda m: with_arrays(m, signature=flipped(m.arrays["signature"])),
        errors.BadSignatureError,
    ),
    (
        "keys signed for others",
        AdvertiseKeys,
        lambda m: with_arrays(m, record=flipped(m.arrays["record"], 95)),
        errors.BadSignatureError,
    ),
    (
        "unsigned survivors",
        ConsistencySignature,
        lambda m: with_arrays(m, signature=None),
        errors.MissingSignatureError,
    ),
    (
        "wrongly signed survivors",
        ConsistencySignature,
        lambda m: with_arrays(m, signature=flipped(m.arrays["signature"])),
        errors.BadSignatureError,
    ),
    (
        "half a signature",
        ConsistencySignature,
        lambda m: with_arrays(m, signature=m.arrays["signature"][:32]),
        errors.WrongLengthError,
    ),
]


@pytest.mark.parametrize(
    ("kind", "forge", "error"), [case[1:] for case in ACTIVE_CASES], ids=[case[0] for case in ACTIVE_CASES]
)
def test_a_bad_signature_is_refused_by_name_and_costs_only_its_sender(
    kind: type[Any], forge: Forge, error: type[errors.SecAggError]
) -> None:
    fleet = Fleet(10, mode=Mode.ACTIVE, corrupt=0.0, parameters=GraphParameters(9, 9))
    play(fleet, kind, forge)
    assert [type(refused) for refused in fleet.refusals] == [error]
    fleet.check()
    assert fleet.server.state is CoordinatorState.DONE


def test_strayed_stale_repeated_and_early_frames_change_nothing() -> None:
    fleet = Fleet(5)
    server = fleet.server
    message = fleet.clients[0].advertise()

    def refused(sender: int, frame: Any, error: type[errors.SecAggError]) -> None:
        before = (server.state, server.waiting, dict(server.dropped))
        step = server.receive(sender, frame)
        assert type(step.refused) is error
        assert step.send == []
        assert (server.state, server.waiting, dict(server.dropped)) == before

    refused(0, message._replace(round_number=ROUND - 1), errors.StaleRoundError)
    refused(0, message._replace(run_id="another"), errors.StaleSessionError)
    refused(1, message, errors.WrongSenderError)
    refused(99, message, errors.UnknownDeviceError)
    refused(0, MaskedInput(RUN, ROUND, 0, {}), errors.WrongStageError)
    refused(0, ConsistencyCheck(RUN, ROUND, {}), errors.WrongStageError)
    fleet.to_server(0, message)
    refused(0, message, errors.DuplicateMessageError)
    fleet.advertise(range(1, 5))
    refused(0, message, errors.DuplicateMessageError)
    fleet.run()
    refused(0, message, errors.DuplicateMessageError)
    fleet.check()
    assert server.state is CoordinatorState.DONE


def test_a_refused_device_is_not_heard_again() -> None:
    fleet = Fleet(5, corrupt=0.0)
    message = fleet.clients[LIAR].advertise()
    fleet.to_server(LIAR, with_arrays(message, record=None))
    assert type(fleet.to_server(LIAR, message).refused) is errors.WrongStageError
    fleet.advertise(range(4))
    fleet.run()
    fleet.check()
    assert LIAR not in fleet.server.result.survivors  # type: ignore[union-attr]


def test_the_key_of_another_device_cannot_be_advertised() -> None:
    fleet = Fleet(5, corrupt=0.0)
    first = fleet.clients[0].advertise()
    fleet.to_server(0, first)
    stolen = record_with(slice(32, 64), first.arrays["record"][32:64].tobytes())
    step = fleet.to_server(LIAR, stolen(fleet.clients[LIAR].advertise()))
    assert type(step.refused) is errors.DuplicateKeyError


# -- shares that were tampered with ----------------------------------------------------------------------


def reach_unmasking(fleet: Fleet, dead: Sequence[int] = ()) -> None:
    """Go on to the stage in which shares are released; ``dead`` devices never send their input."""
    fleet.reach(CoordinatorState.MASKING)
    fleet.deliver(silent=dead)
    if dead:
        fleet.deadline()
    while fleet.server.state is CoordinatorState.CHECKING:
        fleet.deliver(silent=dead)


def wrong_rows(liars: Collection[int], *, rows: Sequence[int] | None = None) -> Forge:
    """Have ``liars`` release another share than they were given: of all owners, or of those in ``rows``."""

    def forge(message: Any) -> Any:
        if not isinstance(message, UnmaskShares) or message.device not in liars:
            return message
        shares = message.arrays["shares"].copy()
        shares[slice(None) if rows is None else [*rows], 3] ^= 1
        return with_arrays(message, shares=shares)

    return forge


def lies_first(fleet: Fleet, liars: Collection[int]) -> None:
    """Let the answers of ``liars`` come first, so that their shares are among those that are used."""
    fleet.inbox.sort(key=lambda frame: frame[0] not in liars)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("rows", [[2], [7], None], ids=["of a survivor", "of the dead one", "of all"])
@pytest.mark.parametrize("liars", [{0}, {0, 4, 8}], ids=["one liar", "three liars"])
def test_wrong_shares_are_dropped_and_their_holders_named_while_others_are_left(
    mode: Mode, rows: list[int] | None, liars: set[int]
) -> None:
    # Eight of nine are asked and five shares rebuild a secret: three are to spare.
    fleet = Fleet(9, mode=mode, corrupt=0.0)
    reach_unmasking(fleet, dead=[7])
    lies_first(fleet, liars)
    fleet.deliver(mutate=wrong_rows(liars, rows=rows))
    fleet.check()
    assert fleet.server.state is CoordinatorState.DONE
    assert fleet.server.result is not None
    # What they contributed is in the sum all the same: its masks are off.
    assert fleet.server.result.survivors.tolist() == [0, 1, 2, 3, 4, 5, 6, 8]
    assert {device: error.reason for device, error in fleet.server.culprits.items()} == dict.fromkeys(
        liars, errors.WrongShareError.NAME
    )


@pytest.mark.parametrize("mode", list(Mode))
def test_a_wrong_share_with_none_to_spare_ends_the_round_and_its_holders_are_named(mode: Mode) -> None:
    fleet = Fleet(9, mode=mode, corrupt=0.0)
    reach_unmasking(fleet)
    liars = {0, 1, 4, 6, 8}
    lies_first(fleet, liars)
    fleet.deliver(mutate=wrong_rows(liars, rows=[2]))
    failure = fleet.server.failure
    assert isinstance(failure, errors.WrongShareError)
    assert "[0, 1, 4, 6, 8]" in failure.detail
    assert "4 shares of device 2 are left; the threshold is 5" in failure.detail
    assert set(fleet.server.culprits) == liars
    fleet.check()


def test_the_round_waits_for_shares_in_place_of_wrong_ones_until_the_deadline() -> None:
    fleet = Fleet(9, corrupt=0.0)
    reach_unmasking(fleet)
    late = [frame for frame in fleet.inbox if frame[0] > 4]
    fleet.inbox = [frame for frame in fleet.inbox if frame[0] <= 4]
    fleet.deliver(mutate=wrong_rows({3}))
    # Five answers are in, and were enough if all were right.
    assert fleet.server.state is CoordinatorState.UNMASKING
    assert set(fleet.server.culprits) == {3}
    fleet.inbox += late[:1]
    fleet.deliver()
    fleet.check()
    assert fleet.server.state is CoordinatorState.DONE

    fleet = Fleet(9, corrupt=0.0)
    reach_unmasking(fleet)
    fleet.inbox = [frame for frame in fleet.inbox if frame[0] <= 4]
    fleet.deliver(mutate=wrong_rows({3}))
    fleet.deadline()
    assert isinstance(fleet.server.failure, errors.WrongShareError)
    assert set(fleet.server.culprits) == {3}


def test_all_owners_whose_right_shares_rebuild_other_secrets_are_named() -> None:
    fleet = Fleet(9, corrupt=0.0)
    fleet.advertise()
    for liar in (1, 4, 7):
        secrets = fleet.clients[liar]._secrets
        assert isinstance(secrets, DeviceSecrets)
        secrets._seed = bytes(32)
    for _ in range(3):
        fleet.deliver()
    assert isinstance(fleet.server.failure, errors.CommitmentMismatchError)
    assert set(fleet.server.culprits) == {1, 4, 7}
    fleet.check()


@pytest.mark.parametrize(
    ("dead", "error"), [((), errors.CommitmentMismatchError), ((LIAR,), errors.KeyMismatchError)]
)
def test_an_owner_whose_right_shares_rebuild_another_secret_is_named_and_not_its_holders(
    dead: tuple[int, ...], error: type[errors.SecAggError]
) -> None:
    fleet = Fleet(9, corrupt=0.0)
    fleet.advertise()
    secrets = fleet.clients[LIAR]._secrets
    assert isinstance(secrets, DeviceSecrets)
    # It splits other secrets than those that it advertised.
    secrets._seed, secrets._mask = bytes(32), KeyPair(bytes(32))
    fleet.deliver()
    fleet.deliver(silent=dead)
    if dead:
        fleet.deadline()
    fleet.deliver()
    assert type(fleet.server.failure) is error
    assert set(fleet.server.culprits) == {LIAR}
    fleet.check()


def garbage_for(neighbours: Sequence[int]) -> Forge:
    """Have the liar seal garbage for those at the positions ``neighbours`` of its list."""

    def forge(message: Any) -> Any:
        sealed = message.arrays["sealed"].copy()
        sealed[[*neighbours], 3] ^= 1
        return with_arrays(message, sealed=sealed)

    return only_from_the_liar(SealedShares, forge)


def framed(neighbours: Sequence[int]) -> Forge:
    """Have the liar commit to other shares than it seals, so that their holders seem to be the liars."""

    def forge(message: Any) -> Any:
        commitments = message.arrays["commitments"].copy()
        commitments[[at + (at >= LIAR) for at in neighbours]] ^= 1
        return with_arrays(message, commitments=commitments)

    return only_from_the_liar(SealedShares, forge)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("spoil", [garbage_for, framed])
def test_garbage_for_as_many_neighbours_as_there_are_shares_to_spare_costs_nobody_anything(
    mode: Mode, spoil: Callable[[Sequence[int]], Forge]
) -> None:
    # k + 1 − t = 9 − 5 shares are to spare.
    fleet = Fleet(9, mode=mode, corrupt=0.0)
    play(fleet, SealedShares, spoil(range(4)))
    fleet.check()
    assert fleet.server.result is not None
    assert fleet.server.result.survivors.tolist() == list(range(9))
    assert fleet.server.culprits == {}
    assert fleet.errors == {}


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("spoil", [garbage_for, framed])
def test_garbage_for_more_ends_the_round_and_its_sender_is_named(
    mode: Mode, spoil: Callable[[Sequence[int]], Forge]
) -> None:
    fleet = Fleet(9, mode=mode, corrupt=0.0)
    play(fleet, SealedShares, spoil(range(8)))
    fleet.check()
    assert isinstance(fleet.server.failure, errors.AuthenticationError)
    assert set(fleet.server.culprits) == {LIAR}
    assert fleet.errors == {}


@pytest.mark.parametrize("mode", list(Mode))
def test_all_who_seal_garbage_in_one_round_are_named(mode: Mode) -> None:
    liars = {1, 4, 7}

    def forge(message: Any) -> Any:
        if isinstance(message, SealedShares) and message.device in liars:
            return with_arrays(message, sealed=message.arrays["sealed"] ^ 1)
        return message

    fleet = Fleet(9, mode=mode, corrupt=0.0)
    play_where(fleet, forge)
    fleet.check()
    assert isinstance(fleet.server.failure, errors.AuthenticationError)
    assert set(fleet.server.culprits) == liars
    assert fleet.errors == {}


@pytest.mark.parametrize(
    ("unopened", "error"),
    [
        ([LIAR], errors.NotNeighbourError),
        ([99], errors.NotNeighbourError),
        ([0, 0], errors.MalformedMessageError),
        ([0], errors.WrongLengthError),
    ],
    ids=["its own", "a stranger's", "one twice", "a row too many"],
)
def test_a_forged_list_of_what_did_not_open_costs_only_its_sender(
    unopened: list[int], error: type[errors.SecAggError]
) -> None:
    fleet = Fleet(10, corrupt=0.0, parameters=GraphParameters(9, 9))
    forge = only_from_the_liar(UnmaskShares, lambda m: with_arrays(m, unopened=np.array(unopened, np.int64)))
    play(fleet, UnmaskShares, forge)
    assert [type(refused) for refused in fleet.refusals] == [error]
    assert {device: type(found) for device, found in fleet.server.culprits.items()} == {LIAR: error}
    fleet.check()
    assert fleet.server.state is CoordinatorState.DONE


def test_masks_under_other_keys_are_noticed_in_the_sum() -> None:
    fleet = Fleet(6)
    forge = only_from_the_liar(
        MaskedInput, lambda m: with_arrays(m, masked=np.zeros_like(m.arrays["masked"]))
    )
    play(fleet, MaskedInput, forge)
    assert isinstance(fleet.server.failure, SumMismatchError)
    assert fleet.server.result is None


@pytest.mark.parametrize("element", [-1, -2])
def test_a_lie_about_weight_or_contributors_beyond_what_can_be_is_noticed(element: int) -> None:
    def lie(message: Any) -> Any:
        masked = message.arrays["masked"].copy()
        masked[element] += np.uint32(1000)
        return with_arrays(message, masked=masked)

    fleet = Fleet(6)
    play(fleet, MaskedInput, only_from_the_liar(MaskedInput, lie))
    assert isinstance(fleet.server.failure, SumMismatchError)


def test_a_weight_that_is_too_small_for_the_updates_is_noticed() -> None:
    # The total stays within what six devices can weigh, and dividing by it would multiply the update.
    fleet = Fleet(6)
    honest = sum(map(fleet.weight, fleet.devices))

    def lie(message: Any) -> Any:
        masked = message.arrays["masked"].copy()
        masked[-2] -= np.uint32(honest - 1)
        return with_arrays(message, masked=masked)

    play(fleet, MaskedInput, only_from_the_liar(MaskedInput, lie))
    assert isinstance(fleet.server.failure, SumMismatchError)
    assert "beyond what its inputs can add up to" in str(fleet.server.failure)


def test_an_abort_of_a_device_loses_it_at_every_stage() -> None:
    for stage in (CoordinatorState.ADVERTISING, CoordinatorState.SHARING, CoordinatorState.MASKING):
        fleet = Fleet(8, corrupt=0.0)
        if stage is not CoordinatorState.ADVERTISING:
            fleet.reach(stage)
        assert fleet.to_server(LIAR, Abort(RUN, ROUND, LIAR, "battery")).refused is None
        fleet.inbox = [(device, frame) for device, frame in fleet.inbox if device != LIAR]
        if stage is CoordinatorState.ADVERTISING:
            fleet.advertise([device for device in fleet.devices if device != LIAR])
        fleet.run()
        assert fleet.server.dropped == {LIAR: stage}
        fleet.check()
        assert fleet.server.state is CoordinatorState.DONE


# -- a device's own input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "weight", "error"),
    [
        ({"factors": np.array([0, 1, np.nan, 0, 0])}, 1, errors.NotFiniteError),
        ({"factors": np.array([0, 1, np.inf, 0, 0], np.float32)}, 1, errors.NotFiniteError),
        ({"factors": np.zeros(4)}, 1, errors.WrongLengthError),
        ({"factors": np.zeros((1, 5))}, 1, errors.WrongLengthError),
        ({"factors": np.zeros(5, np.int64)}, 1, errors.WrongDtypeError),
        ({"touched": np.zeros(3)}, 1, errors.WrongDtypeError),
        ({"touched": np.array([0, 2, 0])}, 1, errors.ValueRangeError),
        ({"more": np.zeros(1)}, 1, errors.MalformedMessageError),
        ({}, 8, errors.WeightError),
        ({}, -1, errors.WeightError),
        ({}, 1.5, errors.WeightError),
        ({}, True, errors.WeightError),
    ],
)
def test_an_input_that_must_not_be_sent_ends_the_devices_part_by_name(
    change: dict[str, np.ndarray[Any, Any]], weight: Any, error: type[errors.SecAggError]
) -> None:
    fleet = Fleet(5, corrupt=0.0)
    fleet.reach(CoordinatorState.MASKING)
    client = fleet.clients[0]
    (frame,) = (frame for device, frame in fleet.inbox if device == 0)
    fleet.inbox = [(device, frame) for device, frame in fleet.inbox if device]
    client.receive(decode(frame))
    with pytest.raises(error):
        client.contribute(fleet.values(0) | change, weight)
    assert client.state is DeviceState.ABORTED
    fleet.to_server(0, client.give_up(error.NAME))
    fleet.run()
    fleet.check()
    assert fleet.server.result is not None
    assert fleet.server.result.dead.tolist() == [0]


def test_masks_differ_between_rounds_even_if_the_devices_entropy_repeats() -> None:
    config = SecAggConfig(parts=(RealPart("x", 50, 1.0),), n_max=3)
    masks = []
    for round_number in (1, 2):
        fleet = Fleet(3, config, round_number=round_number)
        fleet.clients = {
            device: SecAggClient(
                config,
                device=device,
                run_id=RUN,
                round_number=round_number,
                model_hash=MODEL_HASH,
                entropy=SeededEntropy(bytes(16), device, 0),
            )
            for device in range(3)
        }
        fleet.advertise()
        fleet.run()
        fleet.check()
        inputs: list[Any] = [frame for frame in fleet.frames if isinstance(frame, MaskedInput)]
        masks.append([message.arrays["masked"] for message in inputs])
    same = sum(int((first == second).sum()) for first, second in zip(*masks, strict=True))
    assert same == 0
