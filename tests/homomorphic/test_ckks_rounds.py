"""Rounds in which nobody lies: the exact sum of whoever contributed, or a named abort."""

from __future__ import annotations

import pytest
from homomorphic_harness import ROUND, RUN, Fleet, long_config, small_config

from coordinator.secure.homomorphic.server import CkksServer
from edge.core.errors import LocalProtocolError
from edge.crypto.errors import (
    OverflowingConfigError,
    SumMismatchError,
    TooFewContributorsError,
    TooFewSurvivorsError,
    WrongStageError,
)
from edge.homomorphic.config import CkksConfig
from edge.homomorphic.schemes import ModelledScheme, Scheme, TensealScheme
from edge.secagg.participant import CryptoWork
from edge.secagg.states import CoordinatorState, DeviceState

MASKING, UNMASKING = CoordinatorState.MASKING, CoordinatorState.UNMASKING


@pytest.mark.parametrize("config", [small_config(), long_config()])
def test_everybody_contributes(scheme: Scheme, config: CkksConfig) -> None:
    fleet = Fleet(scheme, [40, 3, 17, 5], config)
    assert fleet.server.waiting == {3, 5, 17, 40}
    fleet.contribute()
    assert fleet.server.state is UNMASKING
    assert fleet.server.waiting == {3}
    fleet.finish()
    assert fleet.server.state is CoordinatorState.DONE
    assert fleet.server.failure is None
    assert fleet.server.dropped == {}
    assert fleet.server.parameters is None
    assert fleet.server.waiting == frozenset()
    fleet.check_sum([3, 5, 17, 40])


def test_work_is_a_primitive_a_ciphertext() -> None:
    fleet = Fleet(ModelledScheme(), 2, long_config())
    fleet.contribute()
    assert fleet.work[1] == CryptoWork(encryptions=2)
    fleet.finish()
    assert fleet.work[0] == CryptoWork(decryptions=2)


def test_only_the_device_that_decrypted_is_over() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute()
    assert not any(participant.over for participant in fleet.participants.values())
    fleet.finish()
    assert [device for device, participant in fleet.participants.items() if participant.over] == [0]
    assert fleet.participants[0].state is DeviceState.DONE
    assert fleet.participants[0].failure is None


def test_what_is_lost_before_it_contributes_is_missing_in_the_sum(scheme: Scheme) -> None:
    fleet = Fleet(scheme, 5)
    fleet.lose(0)
    fleet.contribute([1, 2])
    fleet.lose(4)
    assert fleet.server.waiting == {3}
    fleet.deadline()
    assert fleet.server.dropped == {0: MASKING, 3: MASKING, 4: MASKING}
    fleet.finish()
    fleet.check_sum([1, 2])


def test_a_loss_after_contributing_stays_in_the_sum_and_is_not_asked() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute([0, 1])
    fleet.lose(0)
    assert fleet.server.state is MASKING
    fleet.contribute([2])
    assert fleet.server.waiting == {1}
    fleet.finish()
    fleet.check_sum([0, 1, 2])


def test_the_last_awaited_being_lost_ends_the_collection() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute([0, 1])
    fleet.lose(2)
    assert fleet.server.state is UNMASKING
    fleet.finish()
    fleet.check_sum([0, 1])


def test_the_next_is_asked_when_the_decryptor_is_lost_refuses_or_is_late(scheme: Scheme) -> None:
    fleet = Fleet(scheme, 5)
    fleet.contribute()
    fleet.asked()
    fleet.lose(0)
    refused = fleet.asked()
    assert refused.device == 1
    fleet.to_server(1, fleet.participants[1].give_up("battery"))
    assert fleet.participants[1].failure == "battery"
    late = fleet.asked()
    assert late.device == 2
    fleet.deadline()
    assert fleet.server.dropped == {0: UNMASKING, 1: UNMASKING, 2: UNMASKING}
    assert fleet.server.waiting == {3}
    step = fleet.to_server(2, fleet.decrypted(late))
    assert isinstance(step.refused, WrongStageError)
    assert fleet.server.state is UNMASKING
    fleet.finish()
    fleet.check_sum(range(5))


def test_a_loss_that_is_told_again_or_after_the_end_changes_nothing() -> None:
    fleet = Fleet(ModelledScheme(), 4)
    fleet.lose(3)
    fleet.contribute([0, 1, 2])
    fleet.lose(3)
    fleet.finish()
    fleet.lose(1)
    fleet.lose(9)
    assert fleet.inbox == []
    assert fleet.server.dropped == {3: MASKING}


def test_a_device_that_is_not_asked_may_leave_while_another_decrypts() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute()
    first = fleet.asked()
    fleet.lose(1)
    assert fleet.inbox == []
    assert fleet.server.waiting == {0}
    fleet.lose(first.device)
    assert fleet.asked().device == 2


def test_nobody_left_to_decrypt_aborts_by_name() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute()
    fleet.lose(1)
    fleet.deadline()
    assert fleet.server.state is UNMASKING
    fleet.deadline()
    assert fleet.server.state is CoordinatorState.ABORTED
    assert isinstance(fleet.server.failure, TooFewSurvivorsError)
    assert fleet.server.waiting == frozenset()
    with pytest.raises(LocalProtocolError):
        fleet.server.sums()


def test_a_deadline_of_a_stage_that_has_ended_does_nothing() -> None:
    fleet = Fleet(ModelledScheme(), 2)
    fleet.contribute()
    step = fleet.server.deadline_passed(MASKING)
    assert step.send == []
    assert fleet.server.dropped == {}
    assert fleet.server.waiting == {0}


def test_too_few_contributors_abort_and_are_told() -> None:
    fleet = Fleet(ModelledScheme(), 5, small_config(min_contributors=4))
    fleet.contribute([1, 2, 4])
    fleet.lose(2)
    fleet.deadline()
    assert fleet.server.state is CoordinatorState.ABORTED
    assert isinstance(fleet.server.failure, TooFewContributorsError)
    assert fleet.notices() == {1: "too-few-contributors", 4: "too-few-contributors"}


def test_nobody_contributes() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.deadline()
    assert isinstance(fleet.server.failure, TooFewContributorsError)
    assert fleet.inbox == []


def test_losing_everybody_aborts_without_a_deadline() -> None:
    fleet = Fleet(ModelledScheme(), 2)
    fleet.lose(0)
    fleet.lose(1)
    assert isinstance(fleet.server.failure, TooFewContributorsError)
    assert fleet.server.lost(1).send == []


def test_a_target_ends_the_collection_and_drops_the_others(scheme: Scheme) -> None:
    fleet = Fleet(scheme, 5, target=3)
    late = fleet.input(1)
    fleet.contribute([4, 0])
    assert fleet.server.state is MASKING
    fleet.contribute([3])
    assert fleet.server.state is UNMASKING
    assert fleet.server.dropped == {1: MASKING, 2: MASKING}
    assert isinstance(fleet.to_server(1, late).refused, WrongStageError)
    fleet.finish()
    fleet.check_sum([0, 3, 4])


def test_a_target_above_the_devices_waits_for_all() -> None:
    fleet = Fleet(ModelledScheme(), 2, target=10)
    fleet.contribute([0])
    assert fleet.server.state is MASKING
    fleet.contribute([1])
    fleet.finish()
    fleet.check_sum([0, 1])


def test_more_devices_than_sums_are_exact_for_may_come_if_not_all_are_taken() -> None:
    fleet = Fleet(ModelledScheme(), 15, target=10)
    fleet.contribute(range(4, 14))
    fleet.finish()
    fleet.check_sum(range(4, 14))


def test_a_target_below_min_contributors_reveals_nothing() -> None:
    fleet = Fleet(ModelledScheme(), 3, target=1)
    fleet.contribute([2])
    assert isinstance(fleet.server.failure, TooFewContributorsError)
    assert fleet.notices() == {2: "too-few-contributors"}


def test_losses_below_a_target_still_end_the_collection() -> None:
    fleet = Fleet(ModelledScheme(), 4, target=3)
    fleet.contribute([0, 1])
    fleet.lose(2)
    fleet.lose(3)
    fleet.finish()
    fleet.check_sum([0, 1])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"devices": []}, LocalProtocolError),
        ({"devices": [1, 1]}, LocalProtocolError),
        ({"devices": range(11)}, OverflowingConfigError),
        ({"devices": range(12), "target": 11}, OverflowingConfigError),
    ],
)
def test_a_round_that_cannot_be_is_refused_at_once(
    arguments: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        CkksServer(small_config(), ModelledScheme().public, run_id=RUN, round_number=ROUND, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [small_config(), long_config()])
def test_modelled_and_real_are_the_same_frames_and_the_same_sums(
    tenseal_scheme: TensealScheme, config: CkksConfig
) -> None:
    fleets = [Fleet(scheme, 6, config, target=5) for scheme in (ModelledScheme(), tenseal_scheme)]
    for fleet in fleets:
        fleet.contribute([5, 1, 0, 4, 2])
        fleet.asked()
        fleet.deadline()
        fleet.finish()
    modelled, real = fleets
    assert modelled.sent == real.sent
    assert len(real.sent) == 8
    assert modelled.work == real.work
    ours, theirs = modelled.server.sums(), real.server.sums()
    for name, values in theirs.reals.items():
        assert ours.reals[name].tobytes() == values.tobytes(), "bit by bit, the sign of zero included"
    for name, counts in theirs.counts.items():
        assert ours.counts[name].tobytes() == counts.tobytes()
    assert (ours.weight, ours.contributors) == (theirs.weight, theirs.contributors)


def test_a_decryptor_that_learns_of_a_sum_of_other_devices_refuses(scheme: Scheme) -> None:
    """The coordinator says three and passes on the ciphertext of one."""
    fleet = Fleet(scheme, 3)
    alone = fleet.input(1)
    fleet.to_server(1, alone)
    fleet.contribute([0, 2])
    request = fleet.asked()._replace(arrays=alone.arrays)
    with pytest.raises(SumMismatchError):
        fleet.participants[0].receive(request)
    assert fleet.participants[0].over
    assert fleet.participants[0].failure == "sum-mismatch"
