"""Frames out of turn, and a coordinator that tells different devices different stories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from secagg_harness import MODEL_HASH, ROUND, RUN, Fleet, with_arrays
from secagg_victim import VICTIM, ids, to_victim

from edge.codec import decode
from edge.secagg import errors
from edge.secagg.checks import octets
from edge.secagg.client import SecAggClient
from edge.secagg.entropy import SeededEntropy
from edge.secagg.graph import GraphParameters
from edge.secagg.shamir import SHARE_BYTES
from edge.secagg.states import CoordinatorState, DeviceState, Mode
from edge.secagg_messages import Abort, ConsistencyCheck, SharesDelivery, UnmaskRequest

# -- frames that change nothing --------------------------------------------------------------------------


def test_strayed_stale_repeated_and_early_frames_change_nothing() -> None:
    fleet = Fleet(5)
    fleet.advertise()
    victim = fleet.clients[VICTIM]
    key_list_message = to_victim(fleet)
    early = SharesDelivery(RUN, ROUND, VICTIM, {})

    def refused(message: Any, error: type[errors.SecAggError]) -> None:
        before = victim.state
        with pytest.raises(error):
            victim.receive(message)
        assert victim.state is before

    refused(early, errors.WrongStageError)
    refused(key_list_message._replace(round_number=ROUND - 1), errors.StaleRoundError)
    refused(key_list_message._replace(run_id="another"), errors.StaleSessionError)
    refused(key_list_message._replace(device=VICTIM + 1), errors.WrongReceiverError)
    refused(ConsistencyCheck(RUN, ROUND, {}), errors.WrongStageError)
    reply = victim.receive(key_list_message)
    assert reply is not None
    refused(key_list_message, errors.DuplicateMessageError)
    fleet.to_server(VICTIM, reply)
    fleet.deliver()
    fleet.deliver()
    request = to_victim(fleet)
    answer = victim.receive(request)
    assert answer is not None
    refused(request, errors.RepeatedUnmaskError)
    refused(Abort(RUN, ROUND, VICTIM, "too late"), errors.WrongStageError)
    fleet.to_server(VICTIM, answer)
    fleet.run()
    fleet.check()
    assert len(fleet.server.result.survivors) == 5  # type: ignore[union-attr]


def test_an_abort_ends_the_devices_part_once() -> None:
    fleet = Fleet(3)
    fleet.advertise()
    client = fleet.clients[VICTIM]
    assert client.receive(Abort(RUN, ROUND, VICTIM, "too-few-neighbours")) is None
    assert client.state is DeviceState.ABORTED
    assert client.failure == "too-few-neighbours"
    with pytest.raises(errors.DuplicateMessageError):
        client.receive(Abort(RUN, ROUND, VICTIM, "too-few-neighbours"))


def test_a_refused_unmask_request_cannot_be_corrected_by_a_second() -> None:
    fleet = Fleet(5)
    fleet.reach(CoordinatorState.UNMASKING)
    request = to_victim(fleet)
    victim = fleet.clients[VICTIM]
    with pytest.raises(errors.SelfDeadError):
        victim.receive(with_arrays(request, dead=ids(VICTIM)))
    with pytest.raises(errors.RepeatedUnmaskError):
        victim.receive(request)


# -- two stories -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [None, GraphParameters(6, 4), GraphParameters(6, 7)])
def test_a_coordinator_that_tells_two_stories_gets_at_most_one_secret_of_anybody(
    parameters: GraphParameters | None,
) -> None:
    fleet = Fleet(15, corrupt=0.0, parameters=parameters)
    fleet.reach(CoordinatorState.UNMASKING)
    target = 4
    requests = {device: decode(frame) for device, frame in fleet.inbox}
    fleet.inbox = []
    told = 0
    for device, request in requests.items():
        if device != target and target in fleet.clients[device].partners:
            told += 1
            if told % 2:  # half of its neighbours hear that it is dead
                request = with_arrays(request, dead=ids(target))  # noqa: PLW2901
        fleet.answer(device, request)
    cohort = fleet.server.cohort
    assert cohort is not None
    assert fleet.oracle.double_reveals(cohort.t) == 0
    # Shares of both kinds did leave, except where the threshold does not survive a single dead neighbour.
    assert fleet.oracle.double_reveals(1) == (cohort.t <= cohort.k)


def test_in_active_mode_two_stories_release_nothing() -> None:
    fleet = Fleet(8, mode=Mode.ACTIVE, corrupt=0.0)
    fleet.reach(CoordinatorState.CHECKING)
    checks = {device: decode(frame) for device, frame in fleet.inbox}
    fleet.inbox = []
    signatures = {}
    for device, check in checks.items():
        survivors = ids(*range(8)) if device % 2 else ids(*(other for other in range(8) if other != 3))
        if device == 3:
            survivors = ids(*range(8))
        reply: Any = fleet.clients[device].receive(with_arrays(check, survivors=survivors))
        signatures[device] = reply.arrays["signature"]
    for device in range(8):
        others = [other for other in range(8) if other not in (3, device)]
        dead = ids() if device % 2 else ids(3)
        request = UnmaskRequest(
            RUN,
            ROUND,
            device,
            8 if device % 2 else 7,
            {
                "dead": dead,
                "signers": ids(*others),
                "signatures": np.stack([signatures[other] for other in others]),
            },
        )
        with pytest.raises(errors.BadSignatureError):
            fleet.clients[device].receive(request)


def test_an_answer_holds_one_share_of_each_device_and_no_more() -> None:
    fleet = Fleet(6, corrupt=0.0)
    fleet.reach(CoordinatorState.MASKING)
    fleet.deliver(silent=[5])
    fleet.deadline()
    request = to_victim(fleet)
    answer: Any = fleet.clients[VICTIM].receive(request)
    assert answer.arrays["shares"].shape == (6, SHARE_BYTES)


def test_a_model_given_to_one_device_only_shares_no_secret_with_the_others() -> None:
    # A coordinator that trains one device on another model learns which part of the sum is its own, unless
    # the model is bound into the session.
    fleet = Fleet(5)
    odd = SecAggClient(
        fleet.config,
        device=VICTIM,
        run_id=RUN,
        round_number=ROUND,
        model_hash=bytes(32),
        entropy=SeededEntropy(bytes(16), VICTIM, ROUND),
    )
    fleet.clients[VICTIM] = odd
    right = octets(fleet.config.hash + MODEL_HASH).reshape(2, -1)
    fleet.advertise(mutate=lambda message: with_arrays(message, context=right))
    message = to_victim(fleet)
    with pytest.raises(errors.ModelMismatchError):
        odd.receive(message)
    # Even one told the hash it expects derives other keys.
    told = with_arrays(message, context=octets(fleet.config.hash + bytes(32)).reshape(2, -1))
    second = SecAggClient(
        fleet.config,
        device=VICTIM,
        run_id=RUN,
        round_number=ROUND,
        model_hash=bytes(32),
        entropy=SeededEntropy(bytes(16), VICTIM, ROUND),
    )
    second.advertise()
    fleet.clients[VICTIM] = second
    reply = second.receive(told)
    assert reply is not None
    fleet.to_server(VICTIM, reply)
    fleet.run()
    assert {type(error) for error in fleet.errors.values()} == {errors.AuthenticationError}
    assert fleet.server.result is None
