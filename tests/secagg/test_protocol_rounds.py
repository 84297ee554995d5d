from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from secagg_harness import MODEL_HASH, RUN, Fleet, small_config

from coordinator.secure.secagg.server import SecAggServer
from edge.core.errors import LocalProtocolError
from edge.crypto.entropy import SystemEntropy
from edge.crypto.errors import (
    OverflowingConfigError,
    TooFewContributorsError,
    TooFewNeighboursError,
    TooFewSurvivorsError,
    WrongStageError,
)
from edge.secagg.client import SecAggClient
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.graph import GraphParameters
from edge.secagg.inputs import decode_sum
from edge.secagg.states import CoordinatorState, DeviceState, Mode
from edge.wire.codec import decode
from edge.wire.messages import Abort, MaskedInput

BOTH = pytest.mark.parametrize("mode", list(Mode))


def survivors(fleet: Fleet) -> list[int]:
    assert fleet.server.result is not None
    found: list[int] = fleet.server.result.survivors.tolist()
    return found


@BOTH
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("n", "parameters"), [(2, None), (3, None), (11, None), (12, GraphParameters(4, 3))])
def test_the_sum_is_exact_when_nobody_is_lost(
    mode: Mode, bits: int, n: int, parameters: GraphParameters | None
) -> None:
    fleet = Fleet(n, mode=mode, bits=bits, parameters=parameters)
    fleet.advertise()
    fleet.run()
    fleet.check()
    assert survivors(fleet) == list(range(n))
    assert {client.state for client in fleet.clients.values()} <= {
        DeviceState.DONE,
        DeviceState.AWAITING_UNMASK,
    }


def test_a_sparse_graph_is_chosen_by_the_rule_for_a_large_cohort() -> None:
    fleet = Fleet(60, corrupt=0.02, dropout=0.02)
    fleet.advertise()
    assert fleet.server.cohort is not None
    assert fleet.server.cohort.k < 59
    fleet.deliver(silent=[17])
    fleet.deadline()
    fleet.deliver(silent=[40])
    fleet.deadline()
    fleet.run()
    fleet.check()
    assert len(survivors(fleet)) == 58


def test_the_decoded_sums_are_those_of_the_inputs() -> None:
    fleet = Fleet(9)
    fleet.advertise()
    fleet.run()
    assert fleet.server.result is not None
    sums = decode_sum(fleet.config, fleet.server.result.total)
    everything = {device: fleet.values(device) for device in fleet.devices}
    expected = sum(
        fleet.weight(device) * np.clip(values["factors"].astype(np.float64), -2, 2)
        for device, values in everything.items()
    )
    bound = fleet.config.quantizers["factors"].error_bound
    assert np.abs(sums.reals["factors"] - expected).max() <= bound
    counts = np.sum([values["touched"] for values in everything.values()], axis=0)
    assert sums.counts["touched"].tolist() == counts.tolist()
    assert sums.weight == sum(map(fleet.weight, fleet.devices))
    assert sums.contributors == 9
    clipped = sum(int((np.abs(values["factors"]) > 2).sum()) for values in everything.values())
    assert sum(client.clipped for client in fleet.clients.values()) == clipped > 0


# -- losses ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("n", [3, 4, 9, 20])
def test_a_device_lost_before_its_shares_exist_is_merely_removed(mode: Mode, n: int) -> None:
    # An even and an odd number stay; thresholds are rounded differently for them.
    for stage in (CoordinatorState.ADVERTISING, CoordinatorState.SHARING):
        fleet = Fleet(n, mode=mode, corrupt=0.0)
        if stage is CoordinatorState.ADVERTISING:
            fleet.advertise(range(1, n))
            fleet.deadline()
        else:
            fleet.advertise()
            fleet.deliver(silent=[0])
            fleet.deadline()
        fleet.run()
        fleet.check()
        assert survivors(fleet) == list(range(1, n))
        assert fleet.server.dropped == {0: stage}
        assert fleet.server.result is not None
        assert fleet.server.result.dead.tolist() == []


@BOTH
@pytest.mark.parametrize("parameters", [None, GraphParameters(6, 4)])
@pytest.mark.parametrize("known", [False, True])
def test_devices_lost_at_every_stage_cost_only_their_own_input(
    mode: Mode, parameters: GraphParameters | None, known: bool
) -> None:
    fleet = Fleet(24, mode=mode, parameters=parameters, corrupt=0.0)
    stages = {1: CoordinatorState.ADVERTISING, 5: CoordinatorState.SHARING, 9: CoordinatorState.MASKING}
    stages |= {18: CoordinatorState.CHECKING} if mode is Mode.ACTIVE else {}
    stages |= {13: CoordinatorState.UNMASKING}
    fleet.advertise([device for device in fleet.devices if device != 1])
    gone = {1}
    while fleet.server.result is None:
        assert fleet.server.failure is None
        lost = {device for device, stage in stages.items() if stage is fleet.server.state} - gone
        gone |= lost
        for device in sorted(lost) if known else ():
            fleet.lose(device)
        if fleet.inbox:
            fleet.deliver(silent=gone)
        else:
            fleet.deadline()
    fleet.check()
    assert survivors(fleet) == [device for device in fleet.devices if device not in (1, 5, 9)]
    assert fleet.server.result.dead.tolist() == [9]


@BOTH
@pytest.mark.parametrize(
    ("stage", "error"),
    [
        (CoordinatorState.ADVERTISING, TooFewContributorsError),
        (CoordinatorState.SHARING, TooFewNeighboursError),
        (CoordinatorState.MASKING, TooFewContributorsError),
        (CoordinatorState.UNMASKING, TooFewSurvivorsError),
    ],
)
def test_too_many_losses_abort_by_name(mode: Mode, stage: CoordinatorState, error: type[Exception]) -> None:
    fleet = Fleet(10, mode=mode)
    lost = range(1, 10)
    if stage is CoordinatorState.ADVERTISING:
        fleet.advertise([0])
    else:
        fleet.reach(stage)
        fleet.deliver(silent=lost)
    fleet.deadline()
    assert isinstance(fleet.server.failure, error)
    fleet.check()
    told = dict(fleet.inbox)
    fleet.deliver(silent=lost)
    assert fleet.clients[0].state is (DeviceState.ABORTED if 0 in told else DeviceState.DONE)


@BOTH
def test_losing_more_inputs_than_the_threshold_allows_aborts_by_name(mode: Mode) -> None:
    fleet = Fleet(10, mode=mode)  # threshold 6
    fleet.reach(CoordinatorState.MASKING)
    fleet.deliver(silent=range(5))
    fleet.deadline()
    fleet.run()
    assert isinstance(fleet.server.failure, TooFewSurvivorsError)
    fleet.check()


def test_losing_the_signatures_of_too_many_aborts_by_name() -> None:
    fleet = Fleet(10, mode=Mode.ACTIVE)
    fleet.reach(CoordinatorState.CHECKING)
    fleet.deliver(silent=range(5))
    fleet.deadline()
    assert isinstance(fleet.server.failure, TooFewSurvivorsError)


def test_the_round_with_no_safe_graph_for_its_losses_aborts_by_name() -> None:
    fleet = Fleet(12, parameters=GraphParameters(6, 6))
    fleet.advertise(range(4))
    fleet.deadline()
    assert fleet.server.failure is not None
    assert fleet.server.failure.reason == "unsafe-threshold"
    fleet.check()


def test_a_device_with_too_few_neighbours_is_excluded_and_the_others_go_on() -> None:
    fleet = Fleet(16, parameters=GraphParameters(4, 3), corrupt=0.0)
    fleet.advertise()
    cohort = fleet.server.cohort
    assert cohort is not None
    silent = [device for device in cohort.devices[cohort.holders[3]].tolist() if device != 3][:3]
    fleet.deliver(silent=silent)
    fleet.deadline()
    assert fleet.server.dropped[3] is CoordinatorState.SHARING
    fleet.run()
    fleet.check()
    assert fleet.clients[3].state is DeviceState.ABORTED
    assert fleet.clients[3].failure == TooFewNeighboursError.NAME


def test_fewer_sharers_than_must_contribute_abort_by_name() -> None:
    fleet = Fleet(6, min_contributors=5, corrupt=0.0)
    fleet.advertise()
    fleet.deliver(silent=[0, 1])
    fleet.deadline()
    assert isinstance(fleet.server.failure, TooFewContributorsError)


def test_nobody_is_waited_for_once_every_secret_can_be_rebuilt() -> None:
    fleet = Fleet(9)
    fleet.reach(CoordinatorState.UNMASKING)
    threshold = fleet.server.cohort.t  # type: ignore[union-attr]
    arrived, fleet.inbox = fleet.inbox[:threshold], fleet.inbox[threshold:]
    late, fleet.inbox = fleet.inbox, arrived
    fleet.deliver()
    assert fleet.server.state is CoordinatorState.DONE
    fleet.inbox = late
    fleet.deliver()
    assert [type(error) for error in fleet.refusals] == [WrongStageError] * (9 - threshold)
    fleet.check()


def test_the_deadline_of_a_stage_that_is_over_does_nothing() -> None:
    fleet = Fleet(4)
    fleet.advertise()
    assert fleet.server.state is CoordinatorState.SHARING
    assert fleet.server.deadline_passed(CoordinatorState.ADVERTISING).send == []
    assert fleet.server.waiting == {0, 1, 2, 3}
    fleet.run()
    assert fleet.server.deadline_passed(CoordinatorState.DONE).send == []
    fleet.check()


def test_a_loss_that_is_known_already_or_of_a_stranger_does_nothing() -> None:
    fleet = Fleet(4)
    fleet.advertise()
    fleet.lose(2)
    fleet.lose(2)
    fleet.lose(99)
    assert fleet.server.dropped == {2: CoordinatorState.SHARING}
    fleet.run()
    fleet.lose(1)
    assert fleet.server.dropped == {2: CoordinatorState.SHARING}
    fleet.check()


def test_a_device_that_gives_up_is_lost_and_says_why() -> None:
    fleet = Fleet(6)
    fleet.reach(CoordinatorState.MASKING)
    notice = fleet.clients[2].give_up("out-of-memory")
    assert fleet.clients[2].failure == "out-of-memory"
    fleet.to_server(2, notice)
    fleet.inbox = [(device, frame) for device, frame in fleet.inbox if device != 2]
    fleet.run()
    fleet.check()
    assert fleet.server.result is not None
    assert fleet.server.result.dead.tolist() == [2]
    assert fleet.clients[3].give_up("too late").reason == "too late"
    assert fleet.clients[3].failure is None


def test_an_input_stays_in_the_sum_when_its_device_is_lost_afterwards() -> None:
    fleet = Fleet(6)
    fleet.reach(CoordinatorState.MASKING)
    first, fleet.inbox = fleet.inbox[:1], fleet.inbox[1:]
    rest, fleet.inbox = fleet.inbox, first
    fleet.deliver()
    fleet.lose(first[0][0])
    fleet.inbox = rest
    fleet.run()
    fleet.check()
    assert survivors(fleet) == fleet.devices


# -- memory ----------------------------------------------------------------------------------------------


def test_the_coordinator_holds_one_sum_however_many_inputs_arrive() -> None:
    length, n = 500_000, 8
    config = SecAggConfig(parts=(RealPart("model", length - 2, 1.0),), n_max=n, corrupt=0.0)
    fleet = Fleet(n, config)
    fleet.reach(CoordinatorState.MASKING)
    inputs = []
    for device, frame in fleet.inbox[1:]:  # the first of them dies
        fleet.clients[device].receive(decode(frame))
        inputs.append(fleet.clients[device].contribute(fleet.values(device)))
    server = fleet.server
    tracemalloc.start()
    try:
        requests = [server.receive(message.device, message) for message in inputs]
        requests.append(server.deadline_passed(CoordinatorState.MASKING))
        for step in requests:
            for device, request in step.send:
                answer = fleet.clients[device].receive(request)
                assert answer is not None
                server.receive(device, answer)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert server.result is not None
    assert server.result.dead.tolist() == [0]
    # The vector of the sum was there before; masks are made a piece at a time.
    assert peak_bytes < 1.5 * length * 4


def test_more_masks_than_are_removed_at_once_all_come_off() -> None:
    fleet = Fleet(36, corrupt=0.0)
    fleet.reach(CoordinatorState.MASKING)
    fleet.deliver(silent=range(14))
    fleet.deadline()
    fleet.run()
    fleet.check()
    assert fleet.server.result is not None
    assert len(fleet.server.result.dead) == 14


# -- our own mistakes ------------------------------------------------------------------------------------


def test_calls_out_of_turn_are_our_own_mistakes() -> None:
    fleet = Fleet(3)
    client = fleet.clients[0]
    with pytest.raises(LocalProtocolError, match="contribute"):
        client.contribute(fleet.values(0))
    client.advertise()
    with pytest.raises(LocalProtocolError, match="advertise"):
        client.advertise()


def test_identity_and_roster_belong_to_the_active_mode() -> None:
    fleet = Fleet(3, mode=Mode.ACTIVE)
    common = {"run_id": RUN, "round_number": 1, "model_hash": MODEL_HASH}
    with pytest.raises(LocalProtocolError, match="roster"):
        SecAggClient(fleet.config, device=0, entropy=SystemEntropy(), **common)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="semi-honest"):
        SecAggClient(
            small_config(3),
            device=0,
            entropy=SystemEntropy(),
            roster=fleet.roster,
            **common,  # type: ignore[arg-type]
        )
    for config, roster in ((fleet.config, None), (small_config(3), fleet.roster), (fleet.config, {0: b""})):
        with pytest.raises(LocalProtocolError, match="roster"):
            SecAggServer(config, devices=range(3), roster=roster, **common)  # type: ignore[arg-type]


def test_a_cohort_that_the_plan_does_not_allow_is_refused() -> None:
    common = {"run_id": RUN, "round_number": 1, "model_hash": MODEL_HASH}
    with pytest.raises(OverflowingConfigError):
        SecAggServer(small_config(3), devices=range(4), **common)  # type: ignore[arg-type]
    for devices in ([], [1, 1]):
        with pytest.raises(LocalProtocolError, match="each named once"):
            SecAggServer(small_config(3), devices=devices, **common)  # type: ignore[arg-type]


def test_messages_for_the_other_end_are_refused() -> None:
    fleet = Fleet(3)
    message = fleet.clients[0].advertise()
    with pytest.raises(WrongStageError, match="for the coordinator"):
        fleet.clients[1].receive(message)
    other_way = Abort(RUN, 3, 0, "x")
    assert fleet.server.receive(0, other_way).refused is None  # an abort goes either way
    stray = fleet.server.receive(1, MaskedInput(RUN, 3, 1, {}))
    assert isinstance(stray.refused, WrongStageError)
