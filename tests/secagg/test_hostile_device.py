"""What a device that breaks the protocol may try on the coordinator: it is refused, and the round goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from secagg_harness import MODEL_HASH, ROUND, RUN, Fleet, flipped, with_arrays

from coordinator.secagg.outcome import SumMismatchError
from edge.codec import decode
from edge.secagg import errors
from edge.secagg.client import SecAggClient
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.entropy import SeededEntropy
from edge.secagg.graph import GraphParameters
from edge.secagg.shamir import SHARE_BYTES
from edge.secagg.states import CoordinatorState, DeviceState, Mode
from edge.secagg_messages import (
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
    mutate = only_from_the_liar(kind, forge)
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


@pytest.mark.parametrize(
    ("dead", "row", "error"),
    [
        (None, 2, errors.CommitmentMismatchError),
        (7, 7, errors.KeyMismatchError),
    ],
)
def test_a_tampered_share_ends_the_round_by_name(
    dead: int | None, row: int, error: type[errors.SecAggError]
) -> None:
    fleet = Fleet(9, corrupt=0.0)
    fleet.reach(CoordinatorState.MASKING)
    fleet.deliver(silent=[] if dead is None else [dead])
    if dead is not None:
        fleet.deadline()
    forge = only_from_the_liar(
        UnmaskShares, lambda m: with_arrays(m, shares=flipped(m.arrays["shares"], row * SHARE_BYTES))
    )
    # The liar's share comes first, so it is used.
    fleet.inbox.sort(key=lambda frame: frame[0] != LIAR)
    fleet.deliver(mutate=forge)
    assert fleet.server.failure is not None
    assert fleet.server.failure.reason in (error.NAME, errors.InconsistentSharesError.NAME)
    fleet.check()


def test_a_sender_of_garbage_shares_makes_its_neighbours_abort_by_name() -> None:
    fleet = Fleet(20, parameters=GraphParameters(4, 3), corrupt=0.0)
    forge = only_from_the_liar(SealedShares, lambda m: with_arrays(m, sealed=flipped(m.arrays["sealed"], 3)))
    play(fleet, SealedShares, forge)
    assert [type(error) for error in fleet.errors.values()] == [errors.AuthenticationError]
    (neighbour,) = fleet.errors
    fleet.check()
    assert fleet.server.result is not None
    assert fleet.server.result.dead.tolist() == [neighbour]


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
