"""What the coordinator's machine says of a round, and rounds that want fewer devices than may come."""

from __future__ import annotations

import numpy as np
import pytest
from secagg_harness import MODEL_HASH, ROUND, RUN, Fleet, small_config, with_arrays

from coordinator.secure.secagg.server import SecAggServer
from edge.core.errors import LocalProtocolError
from edge.crypto.errors import (
    OverflowingConfigError,
    TooFewContributorsError,
    TooFewSurvivorsError,
    WrongStageError,
)
from edge.secagg.graph import GraphParameters
from edge.secagg.inputs import decode_sum
from edge.secagg.states import CoordinatorState, Mode
from edge.wire.messages import KeyList

ADVERTISING, SHARING = CoordinatorState.ADVERTISING, CoordinatorState.SHARING
BOTH = pytest.mark.parametrize("mode", list(Mode))


# -- a target --------------------------------------------------------------------------------------------


@BOTH
def test_as_many_as_are_wanted_are_taken_and_the_others_are_too_late(mode: Mode) -> None:
    fleet = Fleet(7, target=4, mode=mode)
    late = fleet.clients[2].advertise()
    fleet.advertise([6, 0, 3])
    assert fleet.server.state is ADVERTISING
    assert fleet.server.waiting == {1, 2, 4, 5}
    fleet.advertise([5])
    assert fleet.server.state is SHARING
    assert fleet.server.waiting == {0, 3, 5, 6}
    assert fleet.server.dropped == dict.fromkeys([1, 2, 4], ADVERTISING)
    assert isinstance(fleet.to_server(2, late).refused, WrongStageError)
    assert [device for device, _ in fleet.inbox] == [0, 3, 5, 6]
    assert fleet.members == 4
    fleet.run()
    fleet.check()
    assert fleet.server.contributors == {0, 3, 5, 6}


def test_one_that_is_lost_again_does_not_count() -> None:
    fleet = Fleet(5, target=3)
    fleet.advertise([0, 1])
    fleet.lose(0)
    fleet.advertise([2])
    assert fleet.server.state is ADVERTISING
    fleet.advertise([4])
    assert fleet.server.dropped == {0: ADVERTISING, 3: ADVERTISING}
    fleet.run()
    fleet.check()
    assert fleet.server.contributors == {1, 2, 4}


def test_one_whose_keys_are_refused_does_not_count() -> None:
    fleet = Fleet(5, target=3)
    fleet.advertise([0], mutate=lambda message: with_arrays(message, record=np.zeros(96, np.uint8)))
    fleet.advertise([1, 2])
    assert fleet.server.state is ADVERTISING
    fleet.advertise([3])
    fleet.run()
    fleet.check()
    assert fleet.server.contributors == {1, 2, 3}


def test_a_target_that_is_not_reached_ends_with_the_deadline_or_with_the_last_device() -> None:
    for deadline in (True, False):
        fleet = Fleet(5, target=4)
        fleet.advertise([0, 2, 4])
        if deadline:
            fleet.deadline()
        else:
            fleet.lose(1)
            assert fleet.server.state is ADVERTISING
            fleet.lose(3)
        assert fleet.server.state is SHARING
        fleet.run()
        fleet.check()
        assert fleet.server.contributors == {0, 2, 4}


@pytest.mark.parametrize("target", [3, 9, None])
def test_everybody_is_waited_for_if_no_fewer_are_wanted(target: int | None) -> None:
    fleet = Fleet(3, target=target)
    fleet.advertise([0, 1])
    assert fleet.server.state is ADVERTISING
    fleet.advertise([2])
    assert fleet.server.state is SHARING
    assert fleet.server.dropped == {}


def test_a_target_below_min_contributors_reveals_nothing() -> None:
    fleet = Fleet(4, target=1)
    fleet.advertise([3])
    assert isinstance(fleet.server.failure, TooFewContributorsError)
    assert [device for device, _ in fleet.inbox] == [3]


def test_more_than_the_sum_is_safe_for_may_come_if_no_more_are_taken() -> None:
    fleet = Fleet(range(9), small_config(5), target=5)
    fleet.advertise()
    fleet.run()
    fleet.check()
    assert fleet.server.contributors == set(range(5))
    common = {"run_id": RUN, "round_number": ROUND, "model_hash": MODEL_HASH, "devices": range(9)}
    for target in (6, 9, None):
        with pytest.raises(OverflowingConfigError):
            SecAggServer(small_config(5), target=target, **common)  # type: ignore[arg-type]


# -- what it says ----------------------------------------------------------------------------------------


@BOTH
def test_the_graph_is_known_once_the_keys_are_collected(mode: Mode) -> None:
    fleet = Fleet(12, mode=mode, parameters=GraphParameters(4, 3))
    assert fleet.server.parameters is None
    fleet.advertise()
    assert fleet.server.parameters == GraphParameters(4, 3)
    fleet.run()
    assert fleet.server.parameters == GraphParameters(4, 3)
    # With fewer devices the degree is lower; what devices are told is what the server says.
    fleet = Fleet(5, small_config(12, parameters=GraphParameters(6, 4)))
    fleet.advertise()
    assert fleet.server.parameters == GraphParameters(4, 4)
    told = [message for _, message in fleet.server.cohort.key_lists(Mode.SEMI_HONEST, {})]  # type: ignore[union-attr]
    assert all(isinstance(one, KeyList) and (one.neighbours, one.threshold) == (4, 4) for one in told)


@BOTH
def test_contributors_are_known_once_the_inputs_are_collected(mode: Mode) -> None:
    fleet = Fleet(6, mode=mode)
    assert fleet.server.contributors == frozenset()
    fleet.reach(CoordinatorState.MASKING)
    fleet.deliver(silent=[4])
    assert fleet.server.contributors == frozenset()
    fleet.deadline()
    assert fleet.server.contributors == {0, 1, 2, 3, 5}
    fleet.lose(2)
    fleet.run()
    assert fleet.server.contributors == {0, 1, 2, 3, 5}
    assert all(type(device) is int for device in fleet.server.contributors)
    fleet.check()


def test_contributors_of_a_round_without_a_sum() -> None:
    fleet = Fleet(6)
    fleet.advertise([1])
    fleet.deadline()
    assert fleet.server.contributors == frozenset()
    fleet = Fleet(6)
    fleet.reach(CoordinatorState.UNMASKING)
    for device in range(4):
        fleet.lose(device)
    fleet.run()
    assert isinstance(fleet.server.failure, TooFewSurvivorsError)
    assert fleet.server.contributors == set(range(6))


@BOTH
def test_sums_are_the_decoded_total_and_there_are_none_before(mode: Mode) -> None:
    fleet = Fleet(5, mode=mode)
    stages = [SHARING, CoordinatorState.MASKING, CoordinatorState.CHECKING, CoordinatorState.UNMASKING]
    if mode is Mode.SEMI_HONEST:
        stages.remove(CoordinatorState.CHECKING)
    for stage in [ADVERTISING, *stages]:
        if stage is not ADVERTISING:
            fleet.reach(stage)
        with pytest.raises(LocalProtocolError, match=f"no sum in the state '{stage.value}'"):
            fleet.server.sums()
    fleet.run()
    sums = fleet.server.sums()
    expected = decode_sum(fleet.config, fleet.server.result.total)  # type: ignore[union-attr]
    assert sums.counts["touched"].tolist() == expected.counts["touched"].tolist()
    assert sums.reals["factors"].tolist() == expected.reals["factors"].tolist()
    assert (sums.weight, sums.contributors) == (sum(map(fleet.weight, range(5))), 5)


def test_a_round_that_was_given_up_has_no_sum() -> None:
    fleet = Fleet(3)
    fleet.deadline()
    with pytest.raises(LocalProtocolError, match="no sum in the state 'aborted'"):
        fleet.server.sums()
