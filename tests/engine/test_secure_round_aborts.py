"""Rounds of secure sums that are given up: the name, the reason, and that everybody hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from secure_round_harness import ROUND, RUN, Masked, Round, flipped, with_arrays

from coordinator.engine.rounds import FrameVerdict
from edge.core.vocabulary import Reason, RoundOutcome
from edge.crypto import errors
from edge.crypto.shamir import SECRET_BYTES
from edge.secagg.graph import GraphParameters
from edge.secagg.states import CoordinatorState, Mode
from edge.wire.messages import (
    Abort,
    Accept,
    AdvertiseKeys,
    ConsistencySignature,
    MaskedInput,
    SealedShares,
    UnmaskShares,
)

BOTH = pytest.mark.parametrize("mode", list(Mode))
DISCARD, REFUSE = FrameVerdict.DISCARD, FrameVerdict.REFUSE


def silence(round_: Round, devices: Iterable[int], kind: type[Any]) -> None:
    """Hold what ``devices`` send of a kind, go on as far as that leads, and let the stage's deadline pass."""
    for device in devices:
        round_.hold(device, kind)
    round_.go()
    assert not round_.machine.over
    round_.deadline()


def check_abandoned(round_: Round, error: type[errors.SecAggError] | None, reason: Reason) -> None:
    """The round is over by this name, and all who took part are told why, also those who come late."""
    round_.go()
    machine = round_.machine
    assert machine.outcome is RoundOutcome.ABANDONED
    assert machine.failure == (None if error is None else error.NAME)
    assert (machine.reason, machine.applied) == (reason, frozenset())
    for device in sorted({sender for sender, _ in round_.held}):
        for judged in round_.release(device):
            assert judged.verdict in (REFUSE, DISCARD)
            assert judged.reason is reason, "not that others were enough: there is no sum"
    round_.go()
    assert round_.verdicts() == dict.fromkeys(round_.devices, reason)
    assert not round_.held
    round_.check()


# -- too few ---------------------------------------------------------------------------------------------

SIX: dict[str, Any] = {}
UNSAFE: dict[str, Any] = {"parameters": GraphParameters(6, 5)}
MANY: dict[str, Any] = {"min_contributors": 5}

TOO_FEW: list[tuple[type[Any], int, dict[str, Any], type[errors.SecAggError], Reason]] = [
    (AdvertiseKeys, 5, SIX, errors.TooFewContributorsError, Reason.QUORUM),
    (AdvertiseKeys, 3, UNSAFE, errors.ThresholdError, Reason.THRESHOLD),
    (SealedShares, 5, SIX, errors.TooFewNeighboursError, Reason.THRESHOLD),
    (SealedShares, 2, MANY, errors.TooFewContributorsError, Reason.QUORUM),
    (MaskedInput, 5, SIX, errors.TooFewContributorsError, Reason.QUORUM),
    (MaskedInput, 3, SIX, errors.TooFewSurvivorsError, Reason.THRESHOLD),
    (UnmaskShares, 3, SIX, errors.TooFewSurvivorsError, Reason.THRESHOLD),
]
TOO_FEW_SIGN = (Mode.ACTIVE, ConsistencySignature, 3, SIX, errors.TooFewSurvivorsError, Reason.THRESHOLD)


@pytest.mark.parametrize(
    ("mode", "kind", "missing", "changes", "error", "reason"),
    [*((mode, *case) for mode in Mode for case in TOO_FEW), TOO_FEW_SIGN],
)
def test_too_few_of_six_in_a_stage(
    mode: Mode,
    kind: type[Any],
    missing: int,
    changes: dict[str, Any],
    error: type[errors.SecAggError],
    reason: Reason,
) -> None:
    round_ = Round(Masked(mode, n_max=7, **changes), 6)
    silence(round_, range(missing), kind)
    check_abandoned(round_, error, reason)
    assert round_.machine.closed_by is (Reason.DEADLINE if kind is AdvertiseKeys else Reason.NONE)


def test_everybody_being_lost_ends_the_round_without_a_deadline() -> None:
    round_ = Round(Masked(), 3)
    for device in range(3):
        round_.lose(device)
        assert round_.machine.over == (device == 2)
    assert round_.machine.failure == errors.TooFewContributorsError.NAME
    assert (round_.machine.reason, round_.machine.closed_by) == (Reason.QUORUM, Reason.NONE)


def test_a_target_below_what_must_contribute_reveals_nothing() -> None:
    round_ = Round(Masked(), 4, target=1)
    round_.go()
    assert round_.machine.closed_by is Reason.COHORT_FULL
    check_abandoned(round_, errors.TooFewContributorsError, Reason.QUORUM)


def test_acceptances_after_the_end_are_told_why_it_ended() -> None:
    round_ = Round(Masked(), 4)
    round_.hold(3, Accept)
    silence(round_, range(3), AdvertiseKeys)
    assert round_.release(3) == [(3, Accept, REFUSE, Reason.QUORUM)]
    check_abandoned(round_, errors.TooFewContributorsError, Reason.QUORUM)
    assert round_.machine.accepted == 3


@BOTH
def test_a_sum_over_fewer_than_the_quorum_is_not_applied(mode: Mode) -> None:
    round_ = Round(Masked(mode), 6, quorum=5)
    silence(round_, (1, 4), MaskedInput)
    round_.go()
    assert round_.machine.stage is CoordinatorState.DONE
    assert round_.machine.aggregation.contributors == {0, 2, 3, 5}
    check_abandoned(round_, None, Reason.QUORUM)


@BOTH
def test_a_quorum_that_is_just_reached_is_enough(mode: Mode) -> None:
    round_ = Round(Masked(mode), 6, quorum=4)
    silence(round_, (1, 4), MaskedInput)
    round_.go()
    round_.check_completed(0, 2, 3, 5)


# -- shares and sums that are not what they should be -----------------------------------------------------


def tampered_seeds(message: Any) -> Any:
    """Change the share that a device releases of its own seed, the first row where its id is lowest."""
    if not isinstance(message, UnmaskShares):
        return message
    return with_arrays(message, shares=flipped(message.arrays["shares"]))


def impossible_seeds(message: Any) -> Any:
    """Mark a word of a share as 65536, which no word of a secret can be after interpolation by chance."""
    if not isinstance(message, UnmaskShares):
        return message
    shares = message.arrays["shares"].copy()
    shares[0, :2] = 0
    shares[0, SECRET_BYTES:] = 0
    shares[0, SECRET_BYTES] = 1
    return with_arrays(message, shares=shares)


def one_contributor_more(message: Any) -> Any:
    if not isinstance(message, MaskedInput):
        return message
    masked = message.arrays["masked"].copy()
    masked[-1] += 1
    return with_arrays(message, masked=masked)


WRONG_SHARES = pytest.mark.parametrize(
    ("forge", "dead"), [(tampered_seeds, None), (tampered_seeds, 0), (impossible_seeds, None)]
)


@BOTH
@WRONG_SHARES
def test_one_device_with_wrong_shares_ends_its_own_part_only(
    mode: Mode, forge: Callable[[Any], Any], dead: int | None
) -> None:
    """Four shares of six rebuild a secret: those of the others take the place of the wrong one."""
    round_ = Round(Masked(mode), 6)
    round_.devices[1].mutate = forge
    if dead is not None:
        # A share of the key of the one that died instead: it comes first in the row.
        silence(round_, [dead], MaskedInput)
    round_.go()
    machine = round_.machine
    assert machine.outcome is RoundOutcome.COMPLETED
    assert machine.culprits == {1: errors.WrongShareError.NAME}
    assert machine.applied == {0, 1, 2, 3, 4, 5} - {dead}
    told = {device: reason for device, reason in round_.verdicts().items() if device != dead}
    assert told == {device: Reason.PROTOCOL if device == 1 else Reason.NONE for device in told}


@BOTH
@WRONG_SHARES
def test_more_wrong_shares_than_there_are_to_spare_end_the_round_for_everybody(
    mode: Mode, forge: Callable[[Any], Any], dead: int | None
) -> None:
    round_ = Round(Masked(mode), 6)
    for device in (1, 2, 3):
        round_.devices[device].mutate = forge
    if dead is not None:
        silence(round_, [dead], MaskedInput)
    round_.go()
    machine = round_.machine
    # Of a survivor with the lowest id the first row is its own, or that of a neighbour with a lower one.
    assert machine.failure == errors.WrongShareError.NAME
    assert machine.culprits == dict.fromkeys((1, 2, 3), errors.WrongShareError.NAME)
    check_abandoned(round_, errors.WrongShareError, Reason.PROTOCOL)


@BOTH
def test_a_sum_that_does_not_fit_ends_the_round_for_everybody(mode: Mode) -> None:
    """With six devices, four shares rebuild a secret; the two others' are under way when the sum fails."""
    round_ = Round(Masked(mode), 6)
    round_.devices[1].mutate = one_contributor_more
    round_.go()
    machine = round_.machine
    assert machine.outcome is RoundOutcome.ABANDONED
    assert machine.failure == errors.SumMismatchError.NAME
    assert machine.reason is Reason.PROTOCOL
    for device in list(round_.devices):
        round_.release(device)
    round_.go()
    # Those that had given their shares are told as well as those whose shares crossed the notice.
    assert round_.verdicts() == dict.fromkeys(round_.devices, Reason.PROTOCOL)
    crossed = [one for one in round_.judged if one.kind is UnmaskShares and one.verdict is DISCARD]
    assert {one.reason for one in crossed} == {Reason.PROTOCOL}
    assert len(crossed) == 2
    round_.check()


def test_an_abort_that_a_device_gets_twice_or_of_another_round_changes_nothing() -> None:
    round_ = Round(Masked(), 4)
    round_.reach(SealedShares, slow=0)
    device = round_.devices[1]
    for stray, reason in (
        (Abort(RUN, ROUND - 1, 1, "quorum"), Reason.STALE),
        (Abort(RUN, ROUND, 2, "quorum"), Reason.PROTOCOL),
    ):
        device.take(stray)
        assert device.settled[-1] is reason
        assert device.ended is None
    round_.release(0)
    round_.go()
    round_.check_completed(0, 1, 2, 3)


def test_a_device_that_hears_nothing_ends_by_its_own_patience() -> None:
    round_ = Round(Masked(), 4)
    round_.reach(SealedShares, slow=0)
    round_.devices[1].time_out()
    assert round_.verdicts() == {0: None, 1: None, 2: None, 3: None}
    assert round_.devices[1].ended is not None
    round_.release(0)
    round_.go()
    assert round_.machine.aggregation.waiting == {1}
    round_.deadline()
    round_.go()
    round_.check_completed(0, 2, 3)
