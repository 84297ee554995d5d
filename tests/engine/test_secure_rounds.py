"""Rounds under double masking, both machines joined through bytes: who counts, and who is told what.

How rounds are given up is in ``test_secure_round_aborts.py``, homomorphic sums in
``test_secure_rounds_homomorphic.py``, chance in ``test_secure_round_storms.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from secure_round_harness import INVITE, MODEL, ROUND, RUN, Masked, Round, flipped, with_arrays

from coordinator.engine.rounds import FrameVerdict, RoundPlan
from coordinator.engine.secure_rounds import STAGE_OF_STATE, SecureRoundMachine
from edge.core.errors import LocalProtocolError
from edge.core.vocabulary import Reason
from edge.secagg.states import COORDINATOR_FINAL, CoordinatorState, Mode
from edge.wire.messages import (
    KINDS,
    Abort,
    Accept,
    AdvertiseKeys,
    ConsistencySignature,
    Decline,
    Failure,
    KeyList,
    MaskedInput,
    Report,
    SealedShares,
    UnmaskShares,
)

BOTH = pytest.mark.parametrize("mode", list(Mode))
DISCARD, REFUSE = FrameVerdict.DISCARD, FrameVerdict.REFUSE
COMING = (AdvertiseKeys, SealedShares, MaskedInput)
"""What a device sends until its input is in the sum."""
STAGES = [
    *((mode, kind) for mode in Mode for kind in COMING),
    (Mode.ACTIVE, ConsistencySignature),
    *((mode, UnmaskShares) for mode in Mode),
]
"""What a device sends in each stage of each mode."""
EACH = pytest.mark.parametrize(
    ("mode", "kind"), STAGES, ids=[f"{mode.value}-{kind.__name__}" for mode, kind in STAGES]
)


def frames(round_: Round, device: int) -> list[tuple[type[Any], FrameVerdict, Reason]]:
    """Return what the coordinator made of the frames of a device that did not count."""
    return [(one.kind, one.verdict, one.reason) for one in round_.discarded() if one.sender == device]


# -- whole rounds ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("n", [3, 5, 8])
def test_a_round_without_losses_applies_everybody(mode: Mode, n: int) -> None:
    round_ = Round(Masked(mode), n, quorum=n)
    machine = round_.machine
    assert machine.first_stage is machine.stage is CoordinatorState.ADVERTISING
    assert (machine.over, machine.outcome, machine.applied) == (False, None, frozenset())
    round_.go()
    round_.check_completed(*range(n))
    assert machine.accepted == n
    assert (machine.closed_by, machine.reason, machine.failure) == (Reason.NONE, Reason.NONE, None)
    assert round_.verdicts() == dict.fromkeys(range(n), Reason.NONE)
    # Shares that are not needed any more are the only frames that do not count.
    assert {one[1:] for one in round_.discarded()} <= {(UnmaskShares, DISCARD, Reason.COHORT_FULL)}


def test_ids_may_have_gaps_and_come_in_any_order() -> None:
    round_ = Round(Masked(), [85, 2, 31])
    round_.go()
    round_.check_completed(2, 31, 85)


@BOTH
def test_more_than_the_target_are_turned_away_as_surplus(mode: Mode) -> None:
    round_ = Round(Masked(mode), 7, target=4)
    round_.hold(3, AdvertiseKeys)
    round_.hold(6, Accept)
    round_.go()
    assert round_.machine.closed_by is Reason.COHORT_FULL
    round_.check_completed(0, 1, 2, 4)
    assert frames(round_, 5) == [(AdvertiseKeys, REFUSE, Reason.COHORT_FULL)]
    round_.release(3)
    round_.release(6)
    round_.go()
    assert frames(round_, 3) == [(AdvertiseKeys, REFUSE, Reason.COHORT_FULL)]
    assert frames(round_, 6) == [(Accept, REFUSE, Reason.COHORT_FULL)]
    assert {device: round_.verdicts()[device] for device in (3, 5, 6)} == dict.fromkeys(
        (3, 5, 6), Reason.COHORT_FULL
    )
    assert round_.machine.accepted == 6
    round_.check()


def test_the_surplus_is_turned_away_while_the_round_goes_on() -> None:
    round_ = Round(Masked(), 5, target=4)
    for device in (0, 3):
        round_.hold(device, SealedShares)
    round_.hold(4, AdvertiseKeys)
    round_.go()
    assert round_.machine.stage is CoordinatorState.SHARING
    (judged,) = round_.release(4)
    assert judged == (4, AdvertiseKeys, REFUSE, Reason.COHORT_FULL)
    for device in (0, 3):
        round_.release(device)
    round_.go()
    round_.check_completed(0, 1, 2, 3)


# -- deadlines -------------------------------------------------------------------------------------------


def test_whoever_misses_the_first_deadline_is_late() -> None:
    round_ = Round(Masked(), 6)
    round_.hold(1, AdvertiseKeys)
    round_.hold(4, Accept)
    round_.go()
    assert not round_.machine.over
    round_.deadline()
    assert round_.machine.closed_by is Reason.DEADLINE
    assert round_.release(1) == [(1, AdvertiseKeys, REFUSE, Reason.DEADLINE)]
    assert round_.release(4) == [(4, Accept, REFUSE, Reason.DEADLINE)]
    assert round_.machine.accepted == 5, "an acceptance that comes too late is none"
    round_.go()
    round_.check_completed(0, 2, 3, 5)
    assert (round_.verdicts()[1], round_.verdicts()[4]) == (Reason.DEADLINE, Reason.DEADLINE)
    # What such a device says after it was told changes nothing.
    assert round_.send(4, Accept(RUN, ROUND, 4))[2:] == (DISCARD, Reason.DUPLICATE)
    assert round_.send(1, Failure(RUN, ROUND, 1, Reason.MEMORY)).verdict is FrameVerdict.NOTE
    round_.check_completed(0, 2, 3, 5)


@EACH
def test_a_device_that_misses_the_deadline_of_its_stage(mode: Mode, kind: type[Any]) -> None:
    round_ = Round(Masked(mode), 6)
    round_.reach(kind, slow=2)
    if kind is UnmaskShares:
        # Nobody has to wait for shares that are not needed.
        assert round_.machine.over
        expected = (kind, DISCARD, Reason.COHORT_FULL)
    else:
        assert round_.machine.aggregation.waiting == {2}
        round_.deadline()
        expected = (kind, REFUSE if kind in COMING else DISCARD, Reason.DEADLINE)
    round_.release(2)
    assert frames(round_, 2) == [expected]
    round_.go()
    counts = kind not in COMING
    round_.check_completed(*(range(6) if counts else (0, 1, 3, 4, 5)))
    assert round_.verdicts() == {
        **dict.fromkeys(range(6), Reason.NONE),
        2: Reason.NONE if counts else Reason.DEADLINE,
    }
    assert round_.machine.closed_by is (Reason.DEADLINE if kind is AdvertiseKeys else Reason.NONE)


def test_the_deadline_of_a_stage_that_has_ended_does_nothing() -> None:
    round_ = Round(Masked(), 4)
    round_.reach(SealedShares, slow=0)
    round_.deadline(CoordinatorState.ADVERTISING)
    assert round_.machine.closed_by is Reason.NONE
    assert round_.machine.aggregation.waiting == {0}
    round_.release(0)
    round_.go()
    round_.check_completed(0, 1, 2, 3)
    for stage in CoordinatorState:
        round_.deadline(stage)
    round_.check_completed(0, 1, 2, 3)
    assert round_.machine.closed_by is Reason.NONE


# -- losses ----------------------------------------------------------------------------------------------

GOODBYES = {
    "lost": None,
    "decline": Decline(RUN, ROUND, 2, Reason.BATTERY),
    "failure": Failure(RUN, ROUND, 2, Reason.MEMORY),
    "abort": Abort(RUN, ROUND, 2, "out-of-memory"),
}


@pytest.mark.parametrize("how", GOODBYES)
@EACH
def test_a_device_that_leaves_is_not_waited_for(mode: Mode, kind: type[Any], how: str) -> None:
    round_ = Round(Masked(mode), 6, quorum=5)
    round_.reach(kind, slow=2)
    goodbye = GOODBYES[how]
    if goodbye is None:
        round_.lose(2)
    else:
        assert round_.send(2, goodbye) == (2, type(goodbye), FrameVerdict.NOTE, Reason.NONE)
    round_.go()
    round_.check_completed(*(range(6) if kind not in COMING else (0, 1, 3, 4, 5)))
    # A device that leaves was not turned away.
    assert round_.machine.closed_by is Reason.NONE
    # Neither what was under way nor a second goodbye changes anything, and nobody answers.
    round_.release(2)
    repeated = round_.send(2, Failure(RUN, ROUND, 2, Reason.MEMORY))
    assert repeated[2:] == (DISCARD, Reason.DUPLICATE)
    round_.lose(2)
    late = (kind, DISCARD, Reason.WRONG_STAGE)
    assert frames(round_, 2) == [late, (Failure, DISCARD, Reason.DUPLICATE)]
    assert not round_.down


def test_devices_that_never_take_part_are_not_waited_for() -> None:
    round_ = Round(Masked(), 6, quorum=3)
    round_.devices[1].declines = Reason.BATTERY
    round_.devices[4].result = Reason.NO_DATA
    round_.hold(5, Accept)
    round_.go()
    assert round_.machine.accepted == 4
    round_.lose(5)
    round_.go()
    round_.check_completed(0, 2, 3)
    assert round_.machine.closed_by is Reason.NONE
    assert round_.release(5) == [(5, Accept, DISCARD, Reason.DUPLICATE)]


def test_a_stranger_that_is_lost_is_nobodys_loss() -> None:
    round_ = Round(Masked(), 3)
    round_.lose(99)
    round_.go()
    round_.check_completed(0, 1, 2)


def test_an_input_stays_in_the_sum_when_its_device_is_lost_afterwards() -> None:
    round_ = Round(Masked(), 6)
    round_.reach(MaskedInput, slow=5)
    round_.lose(0)
    round_.send(1, Failure(RUN, ROUND, 1, Reason.MEMORY))
    round_.release(5)
    round_.go()
    round_.check_completed(*range(6))
    assert round_.verdicts()[0] is Reason.NONE


# -- frames that do not belong ---------------------------------------------------------------------------


@BOTH
def test_everything_twice_counts_once(mode: Mode) -> None:
    round_ = Round(Masked(mode), 5)
    arrive = round_.arrive
    round_.arrive = lambda sender, frame: (arrive(sender, frame), arrive(sender, frame))[0]  # type: ignore[method-assign]
    round_.go()
    round_.check_completed(*range(5))
    repeated = {(one.kind, one.reason) for one in round_.discarded()}
    kinds = (Accept, *COMING, UnmaskShares, *((ConsistencySignature,) if mode is Mode.ACTIVE else ()))
    assert repeated - {(UnmaskShares, Reason.COHORT_FULL)} == {(kind, Reason.DUPLICATE) for kind in kinds}
    assert {one.verdict for one in round_.discarded()} == {DISCARD}


REPORT = Report(RUN, ROUND, 2, 3, 3.0, 0.5, {})
SEALED = SealedShares(RUN, ROUND, 2, {"sealed": np.zeros((1, 1), np.uint8)})


@pytest.mark.parametrize(
    ("sender", "message", "reason"),
    [
        (2, Failure("another", ROUND, 2, 1), Reason.STALE),
        (2, Accept(RUN, ROUND - 1, 2), Reason.STALE),
        (2, REPORT._replace(run_id="another"), Reason.STALE),
        (2, SEALED._replace(round_number=ROUND + 1), Reason.STALE),
        (2, SEALED._replace(run_id="another"), Reason.STALE),
        (9, Accept(RUN, ROUND, 9), Reason.NOT_INVITED),
        (9, SEALED._replace(device=9), Reason.NOT_INVITED),
        (9, Abort(RUN, ROUND, 9, "x"), Reason.NOT_INVITED),
        (2, Failure(RUN, ROUND, 1, 1), Reason.NOT_INVITED),
        (2, SEALED._replace(device=1), Reason.NOT_INVITED),
        (2, Abort(RUN, ROUND, 1, "x"), Reason.NOT_INVITED),
        (2, REPORT, Reason.WRONG_STAGE),
        (2, INVITE, Reason.WRONG_STAGE),
        (2, MODEL, Reason.WRONG_STAGE),
        (2, KeyList(RUN, ROUND, 2, 3, 2, 2, {}), Reason.WRONG_STAGE),
        (2, MaskedInput(RUN, ROUND, 2, {}), Reason.WRONG_STAGE),
        (2, Accept(RUN, ROUND, 2), Reason.DUPLICATE),
        (1, SEALED._replace(device=1), Reason.DUPLICATE),
    ],
)
def test_frames_that_stray_change_nothing(sender: int, message: Any, reason: Reason) -> None:
    round_ = Round(Masked(), 4)
    round_.reach(SealedShares, slow=2)
    assert round_.send(sender, message) == (sender, type(message), DISCARD, reason)
    assert not round_.down
    assert round_.machine.aggregation.waiting == {2}
    round_.release(2)
    round_.go()
    round_.check_completed(0, 1, 2, 3)


def test_an_abort_in_anothers_name_is_nobodys_goodbye() -> None:
    round_ = Round(Masked(), 4)
    round_.reach(SealedShares, slow=2)
    assert round_.send(2, Abort(RUN, ROUND, 1, "x")).verdict is DISCARD
    for device in (1, 2):
        assert round_.send(device, Failure(RUN, ROUND, device, Reason.MEMORY)).verdict is FrameVerdict.NOTE


def test_a_device_that_was_not_given_the_model_cannot_take_part() -> None:
    round_ = Round(Masked(), 4, target=3)
    round_.hold(3, Accept)
    round_.hold(0, AdvertiseKeys)
    round_.go()
    keys = round_.protocol.participant(3).client.advertise()  # type: ignore[union-attr]
    assert round_.send(3, keys)[2:] == (DISCARD, Reason.WRONG_STAGE)
    assert round_.send(3, Abort(RUN, ROUND, 3, "x"))[2:] == (DISCARD, Reason.WRONG_STAGE)
    round_.release(0)
    round_.go()
    round_.check_completed(0, 1, 2)


# -- devices that break the protocol ---------------------------------------------------------------------


def spoiled(kind: type[Any]) -> Any:
    """Return what spoils the messages of a kind: one array has the wrong type."""

    def spoil(message: Any) -> Any:
        if type(message) is not kind:
            return message
        name = next(iter(message.arrays))
        return with_arrays(message, **{name: message.arrays[name].astype(np.float32)})

    return spoil


@EACH
def test_a_device_that_breaks_the_protocol_is_excluded_and_told(mode: Mode, kind: type[Any]) -> None:
    round_ = Round(Masked(mode), 6, quorum=5)
    round_.devices[0].mutate = spoiled(kind)
    round_.go()
    # What it broke after its input was in the sum does not take that out again.
    counts = kind not in COMING
    round_.check_completed(*(range(6) if counts else range(1, 6)))
    assert frames(round_, 0) == [(kind, DISCARD, Reason.PROTOCOL)]
    assert round_.verdicts() == {**dict.fromkeys(range(6), Reason.NONE), 0: Reason.PROTOCOL}
    assert round_.machine.closed_by is Reason.NONE, "it was not turned away for being too many"
    again = round_.send(0, Abort(RUN, ROUND, 0, "x"))
    assert again.verdict is FrameVerdict.NOTE
    round_.check_completed(*(range(6) if counts else range(1, 6)))


def test_the_last_awaited_being_excluded_lets_the_round_go_on() -> None:
    round_ = Round(Masked(), 5, target=4)
    round_.devices[3].mutate = spoiled(AdvertiseKeys)
    round_.hold(3, AdvertiseKeys)
    round_.hold(4, AdvertiseKeys)
    round_.go()
    round_.lose(4)
    round_.release(3)
    round_.go()
    round_.check_completed(0, 1, 2)
    assert round_.machine.closed_by is Reason.NONE


def test_a_forged_signature_excludes_its_device() -> None:
    round_ = Round(Masked(Mode.ACTIVE), 6)
    round_.devices[0].mutate = lambda message: (
        with_arrays(message, signature=flipped(message.arrays["signature"]))
        if isinstance(message, ConsistencySignature)
        else message
    )
    round_.go()
    round_.check_completed(*range(6))
    assert frames(round_, 0) == [(ConsistencySignature, DISCARD, Reason.PROTOCOL)]


def test_a_device_whose_update_is_not_finite_says_so_and_is_missing() -> None:
    round_ = Round(Masked(), 5)
    result = round_.devices[2].result
    round_.devices[2].result = result._replace(arrays={"factors": np.full(4, np.nan, np.float32)})  # type: ignore[union-attr]
    round_.go()
    assert round_.devices[2].verdict is Reason.NOT_FINITE
    round_.check_completed(0, 1, 3, 4)


# -- our own mistakes ------------------------------------------------------------------------------------


def test_a_round_without_devices_is_our_own_mistake() -> None:
    aggregation = Masked().server([1, 2], 2)
    with pytest.raises(LocalProtocolError, match="at least one invited device"):
        SecureRoundMachine(RoundPlan(RUN, ROUND, 2, 1, 60.0), [], aggregation)


def test_every_stage_that_is_waited_for_is_one_of_the_vocabulary() -> None:
    assert STAGE_OF_STATE.keys() == set(CoordinatorState) - COORDINATOR_FINAL
    named = dict(zip((*COMING, ConsistencySignature, UnmaskShares), STAGE_OF_STATE.values(), strict=True))
    assert all(KINDS[kind].stage is stage for kind, stage in named.items())
