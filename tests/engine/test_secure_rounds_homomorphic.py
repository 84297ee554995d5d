"""Rounds under homomorphic encryption, machines joined through bytes; the first stage takes the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from secure_round_harness import ROUND, RUN, Encrypted, Round, with_arrays

from coordinator.engine.rounds import FrameVerdict
from edge.core.vocabulary import Reason, RoundOutcome
from edge.crypto import errors
from edge.homomorphic.config import ImpreciseSumError
from edge.secagg.states import CoordinatorState
from edge.wire.messages import Abort, Accept, DecryptedSum, EncryptedInput, Failure

DISCARD, REFUSE, NOTE = FrameVerdict.DISCARD, FrameVerdict.REFUSE, FrameVerdict.NOTE


def frames(round_: Round, device: int) -> list[tuple[type[Any], FrameVerdict, Reason]]:
    """Return what the coordinator made of the frames of a device that did not count."""
    return [(one.kind, one.verdict, one.reason) for one in round_.discarded() if one.sender == device]


def test_a_round_without_losses_applies_everybody() -> None:
    round_ = Round(Encrypted(), 5, quorum=5)
    assert round_.machine.first_stage is round_.machine.stage is CoordinatorState.MASKING
    round_.go()
    round_.check_completed(0, 1, 2, 3, 4)
    assert (round_.machine.closed_by, round_.discarded()) == (Reason.NONE, [])
    assert round_.verdicts() == dict.fromkeys(range(5), Reason.NONE)
    decryptions = [answer.work.decryptions for answer in round_.devices[0].answers]
    assert decryptions == [0, 1], "the first of them was asked"


def test_more_than_the_target_are_turned_away_as_surplus() -> None:
    round_ = Round(Encrypted(), 6, target=3)
    round_.hold(0, EncryptedInput)
    round_.hold(5, Accept)
    round_.go()
    round_.check_completed(1, 2, 3)
    assert round_.machine.closed_by is Reason.COHORT_FULL
    assert round_.release(0) == [(0, EncryptedInput, REFUSE, Reason.COHORT_FULL)]
    assert round_.release(5) == [(5, Accept, REFUSE, Reason.COHORT_FULL)]
    assert frames(round_, 4) == [(EncryptedInput, REFUSE, Reason.COHORT_FULL)]
    round_.go()
    assert {device: round_.verdicts()[device] for device in (0, 4, 5)} == dict.fromkeys(
        (0, 4, 5), Reason.COHORT_FULL
    )


def test_whoever_misses_the_deadline_of_the_inputs_is_late() -> None:
    round_ = Round(Encrypted(), 5)
    round_.hold(2, EncryptedInput)
    round_.hold(3, Accept)
    round_.hold(0, DecryptedSum)
    round_.go()
    round_.deadline()
    round_.go()
    assert round_.machine.stage is CoordinatorState.UNMASKING
    assert round_.machine.closed_by is Reason.DEADLINE
    assert round_.release(2) == [(2, EncryptedInput, REFUSE, Reason.DEADLINE)]
    assert round_.release(3) == [(3, Accept, REFUSE, Reason.DEADLINE)]
    round_.release(0)
    round_.go()
    round_.check_completed(0, 1, 4)
    assert (round_.verdicts()[2], round_.verdicts()[3]) == (Reason.DEADLINE, Reason.DEADLINE)


@pytest.mark.parametrize("how", ["late", "lost", "failure", "abort"])
def test_the_next_one_is_asked_when_the_first_does_not_decrypt(how: str) -> None:
    round_ = Round(Encrypted(), 4)
    round_.reach(DecryptedSum, slow=0)
    if how == "late":
        round_.deadline(CoordinatorState.MASKING)
        assert round_.machine.aggregation.waiting == {0}, "that stage had ended before"
        round_.deadline()
    elif how == "lost":
        round_.lose(0)
    elif how == "failure":
        assert round_.send(0, Failure(RUN, ROUND, 0, Reason.MEMORY)).verdict is NOTE
    else:
        assert round_.send(0, Abort(RUN, ROUND, 0, "out-of-memory")).verdict is NOTE
    assert round_.machine.aggregation.waiting == {1}
    assert round_.machine.stage is CoordinatorState.UNMASKING
    # Its sum comes when nobody waits for it any more; it is not told that its input came too late.
    reason = Reason.DEADLINE if how == "late" else Reason.WRONG_STAGE
    assert round_.release(0) == [(0, DecryptedSum, DISCARD, reason)]
    round_.go()
    round_.check_completed(0, 1, 2, 3)
    assert round_.verdicts() == dict.fromkeys(range(4), Reason.NONE)
    assert round_.machine.closed_by is Reason.NONE


def test_a_sum_after_the_sum_counts_for_nothing() -> None:
    round_ = Round(Encrypted(), 4)
    round_.reach(DecryptedSum, slow=0)
    _, frame = round_.held[0]
    round_.release(0)
    assert round_.arrive(0, frame) == (0, DecryptedSum, DISCARD, Reason.DUPLICATE)
    stray = DecryptedSum(RUN, ROUND, 2, {"total": np.zeros(8)})
    assert round_.send(2, stray) == (2, DecryptedSum, DISCARD, Reason.COHORT_FULL)
    round_.go()
    round_.check_completed(0, 1, 2, 3)


def test_an_input_of_a_device_that_was_not_given_the_model_is_not_summed() -> None:
    round_ = Round(Encrypted(), 4)
    round_.hold(3, Accept)
    round_.go()
    stolen = round_.protocol.participant(3).begin(round_.devices[3].result)  # type: ignore[arg-type]
    assert round_.send(3, stolen.message)[2:] == (DISCARD, Reason.WRONG_STAGE)
    round_.deadline()
    round_.go()
    round_.check_completed(0, 1, 2)


@pytest.mark.parametrize("goodbye", ["lost", "failure", "abort"])
def test_a_device_that_leaves_before_its_input_is_not_waited_for(goodbye: str) -> None:
    round_ = Round(Encrypted(), 4, quorum=3)
    round_.reach(EncryptedInput, slow=1)
    if goodbye == "lost":
        round_.lose(1)
    else:
        message = Failure(RUN, ROUND, 1, 3) if goodbye == "failure" else Abort(RUN, ROUND, 1, "x")
        round_.send(1, message)
    assert round_.release(1) == [(1, EncryptedInput, DISCARD, Reason.WRONG_STAGE)]
    round_.go()
    round_.check_completed(0, 2, 3)
    assert round_.machine.closed_by is Reason.NONE


def test_an_update_beyond_the_plan_is_a_failure_of_its_device() -> None:
    round_ = Round(Encrypted(), 4)
    round_.devices[2].result = round_.devices[2].result._replace(weight=2.5)  # type: ignore[union-attr]
    round_.go()
    round_.check_completed(0, 1, 3)
    assert round_.devices[2].sent[-1] == Failure(RUN, ROUND, 2, Reason.PROTOCOL)


# -- rounds that are given up ----------------------------------------------------------------------------


def check_abandoned(round_: Round, name: str | None, reason: Reason) -> None:
    round_.go()
    machine = round_.machine
    assert (machine.outcome, machine.failure, machine.reason) == (RoundOutcome.ABANDONED, name, reason)
    for device in round_.devices:
        round_.release(device)
    round_.go()
    assert round_.verdicts() == dict.fromkeys(round_.devices, reason)
    round_.check()


def test_too_few_inputs() -> None:
    round_ = Round(Encrypted(min_contributors=4), 5)
    round_.hold(0, EncryptedInput)
    round_.hold(1, EncryptedInput)
    round_.go()
    round_.deadline()
    check_abandoned(round_, errors.TooFewContributorsError.NAME, Reason.QUORUM)


def test_fewer_than_the_quorum() -> None:
    round_ = Round(Encrypted(), 5, quorum=5)
    round_.hold(1, EncryptedInput)
    round_.go()
    round_.deadline()
    check_abandoned(round_, None, Reason.QUORUM)


def test_nobody_left_to_decrypt() -> None:
    round_ = Round(Encrypted(), 3)
    for device in range(3):
        round_.hold(device, DecryptedSum)
    for _ in range(3):
        round_.go()
        assert not round_.machine.over
        round_.deadline()
    check_abandoned(round_, errors.TooFewSurvivorsError.NAME, Reason.THRESHOLD)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda total: total[:-1], errors.WrongLengthError),
        (lambda total: total + 0.3, ImpreciseSumError),
        (lambda total: total * np.nan, ImpreciseSumError),
        (lambda total: total + 1, errors.SumMismatchError),
    ],
)
def test_nobody_decrypts_to_a_sum(spoil: Any, error: type[errors.SecAggError]) -> None:
    round_ = Round(Encrypted(), 3)

    def spoiled(message: Any) -> Any:
        if not isinstance(message, DecryptedSum):
            return message
        return with_arrays(message, total=spoil(message.arrays["total"]))

    for device in round_.devices.values():
        device.mutate = spoiled
    check_abandoned(round_, error.NAME, Reason.PROTOCOL)


def test_one_that_decrypts_to_rubbish_is_told_and_another_is_asked() -> None:
    round_ = Round(Encrypted(), 3)
    round_.devices[0].mutate = lambda message: (
        with_arrays(message, total=message.arrays["total"] * np.nan)
        if isinstance(message, DecryptedSum)
        else message
    )
    round_.go()
    round_.check_completed(0, 1, 2)
    assert frames(round_, 0) == [(DecryptedSum, DISCARD, Reason.PROTOCOL)]
    assert round_.verdicts() == {0: Reason.PROTOCOL, 1: Reason.NONE, 2: Reason.NONE}
