"""Rounds in which some report in the clear and the others sum securely, every frame passing as bytes.

The devices 0, 1 and 2 of these rounds are shielded unless a test says otherwise.
"""

from __future__ import annotations

import gc
import types
from typing import Any

import numpy as np
import pytest
from secure_round_harness import INVITE, ROUND, RUN, Encrypted, Masked, Round, update_of, with_arrays

from coordinator.engine.rounds import FrameVerdict, RoundPlan
from coordinator.engine.secure_rounds import SecureRoundMachine
from coordinator.engine.secure_sums import aggregate_of, joined
from edge.core.errors import LocalProtocolError
from edge.core.vocabulary import Reason, RoundOutcome
from edge.learning.updates import Aggregate, ArraySpec
from edge.secagg.states import CoordinatorState, Mode
from edge.wire.codec import encode
from edge.wire.messages import (
    Abort,
    Accept,
    AdvertiseKeys,
    Failure,
    MaskedInput,
    Report,
    SealedShares,
    UnmaskShares,
)

BOTH = pytest.mark.parametrize("mode", list(Mode))
DISCARD, REFUSE, AGGREGATE = FrameVerdict.DISCARD, FrameVerdict.REFUSE, FrameVerdict.AGGREGATE
SHIELDED = (0, 1, 2)
SPEC = (ArraySpec("factors", np.dtype(np.float32), (), np.array([4])),)


def mixed(
    n: int = 7, *, mode: Mode = Mode.SEMI_HONEST, shielded: tuple[int, ...] = SHIELDED, **more: Any
) -> Round:
    return Round(Masked(mode, quorum=more.get("quorum", 1)), n, shielded=shielded, **more)


def report_of(device: int) -> Report:
    update = update_of(device)
    return Report(RUN, ROUND, device, update.examples, update.weight, update.loss, update.arrays)


def aggregate(round_: Round) -> Aggregate:
    """Return what the round applies, as the training makes it."""
    machine = round_.machine
    clear = round_.accumulator.result()
    return joined(clear, aggregate_of(machine.aggregation.sums(), SPEC)) if machine.summed else clear


def check_ways(round_: Round, *, clear: set[int], summed: set[int]) -> None:
    """The round is completed, with exactly these updates, each of them once."""
    round_.check()
    assert round_.machine.outcome is RoundOutcome.COMPLETED
    assert (round_.machine.clear, round_.machine.summed) == (clear, summed)
    found = aggregate(round_)
    updates = [update_of(device) for device in sorted(clear | summed)]
    assert found.clients == len(updates)
    assert found.weight == sum(update.weight for update in updates)
    assert found.examples == sum(update.examples for update in updates)
    protocol = round_.protocol
    assert isinstance(protocol, Masked)
    quantizers = protocol.config.quantizers
    exact = np.sum([update.arrays["factors"].astype(np.float64) for update in updates], axis=0)
    error = len(summed) / quantizers["factors"].scale
    np.testing.assert_allclose(found.sums["factors"], exact, rtol=0, atol=error + 1e-5)
    loss = sum(update.loss * update.examples for update in updates) / found.examples
    assert found.loss == pytest.approx(loss, abs=len(summed) / quantizers["loss"].scale / found.examples)


# -- whole rounds ----------------------------------------------------------------------------------------


@BOTH
def test_both_ways_are_applied_together(mode: Mode) -> None:
    round_ = mixed(mode=mode, quorum=7)
    round_.reach(SealedShares, slow=6)
    # The report counts at once; nobody waits for the sum.
    assert [round_.verdicts()[device] for device in range(7)] == [Reason.NONE] * 3 + [None] * 4
    assert (round_.machine.over, round_.machine.applied) == (False, frozenset())
    round_.release(6)
    round_.go()
    check_ways(round_, clear={0, 1, 2}, summed={3, 4, 5, 6})
    assert round_.machine.applied == set(range(7))
    assert round_.verdicts() == dict.fromkeys(range(7), Reason.NONE)
    assert round_.machine.closed_by is Reason.NONE


@BOTH
def test_all_of_them_in_the_clear_need_no_sum(mode: Mode) -> None:
    round_ = mixed(mode=mode, shielded=tuple(range(7)), quorum=7)
    round_.go()
    check_ways(round_, clear=set(range(7)), summed=set())
    machine = round_.machine
    assert (machine.failure, machine.stage) == (None, CoordinatorState.DONE)
    with pytest.raises(LocalProtocolError):
        machine.aggregation.sums()


@BOTH
@pytest.mark.parametrize("lost", [None, SealedShares, MaskedInput])
def test_none_of_them_in_the_clear_is_a_round_as_ever(mode: Mode, lost: type[Any] | None) -> None:
    rounds = []
    for shielded in (None, ()):
        round_ = Round(Masked(mode, quorum=0 if shielded is None else 4), 6, quorum=4, shielded=shielded)
        if lost is not None:
            round_.hold(5, lost)
            round_.go()
            round_.deadline()
            round_.release(5)
        round_.go()
        round_.check()
        rounds.append(round_)
    ever, now = rounds
    assert now.frames == ever.frames
    assert now.judged == ever.judged
    assert now.verdicts() == ever.verdicts()
    assert now.machine.summed == ever.machine.summed != frozenset()


def test_a_quorum_that_the_sum_alone_would_miss_is_missed_alike() -> None:
    # Without reports in the clear a sum below the quorum is not revealed, as if the quorum were its own.
    endings = []
    for protocol, shielded in ((Masked(min_contributors=6), None), (Masked(quorum=6), ())):
        round_ = Round(protocol, 6, quorum=6, shielded=shielded)
        round_.reach(MaskedInput, slow=2)
        round_.deadline()
        round_.go()
        round_.check()
        machine = round_.machine
        endings.append((machine.outcome, machine.reason, machine.failure, round_.verdicts()))
    assert endings[0] == endings[1]
    assert endings[0][2] == "too-few-contributors"


# -- when the first stage ends ---------------------------------------------------------------------------


def test_keys_and_reports_together_reach_the_target() -> None:
    round_ = mixed(9, target=5)
    round_.hold(1, Report)
    round_.hold(8, AdvertiseKeys)
    round_.go()
    # 0 and 2 in the clear, 3, 4 and 5 with keys: 6 and 7 are too late, and so are those that were slow.
    check_ways(round_, clear={0, 2}, summed={3, 4, 5})
    assert round_.machine.closed_by is Reason.COHORT_FULL
    assert round_.release(1) == [(1, Report, REFUSE, Reason.COHORT_FULL)]
    assert round_.release(8) == [(8, AdvertiseKeys, REFUSE, Reason.COHORT_FULL)]
    round_.go()
    turned_away = {device: round_.verdicts()[device] for device in (1, 6, 7, 8)}
    assert turned_away == dict.fromkeys(turned_away, Reason.COHORT_FULL)
    assert round_.send(1, report_of(1))[2:] == (DISCARD, Reason.DUPLICATE)
    check_ways(round_, clear={0, 2}, summed={3, 4, 5})


def test_a_report_that_reaches_the_target_ends_the_stage() -> None:
    round_ = mixed(6, target=4)
    round_.hold(0, Report)
    round_.hold(1, Report)
    round_.hold(2, Report)
    round_.hold(4, AdvertiseKeys)
    round_.hold(5, AdvertiseKeys)
    round_.go()
    assert round_.machine.stage is CoordinatorState.ADVERTISING
    for device in (0, 1):
        round_.release(device)
        assert round_.machine.stage is CoordinatorState.ADVERTISING
    round_.release(4)
    round_.go()
    check_ways(round_, clear={0, 1}, summed={3, 4})


def test_reports_alone_reach_the_target() -> None:
    round_ = mixed(6, target=3)
    for device in (3, 4, 5):
        round_.hold(device, AdvertiseKeys)
    round_.go()
    check_ways(round_, clear={0, 1, 2}, summed=set())
    assert round_.machine.failure is None
    for device in (3, 4, 5):
        assert round_.release(device) == [(device, AdvertiseKeys, REFUSE, Reason.COHORT_FULL)]


def test_whoever_misses_the_first_deadline_is_late_either_way() -> None:
    round_ = mixed()
    round_.hold(1, Report)
    round_.hold(4, AdvertiseKeys)
    round_.go()
    assert round_.machine.stage is CoordinatorState.ADVERTISING
    round_.deadline()
    assert round_.release(1) == [(1, Report, REFUSE, Reason.DEADLINE)]
    assert round_.release(4) == [(4, AdvertiseKeys, REFUSE, Reason.DEADLINE)]
    round_.go()
    check_ways(round_, clear={0, 2}, summed={3, 5, 6})
    assert (round_.verdicts()[1], round_.verdicts()[4]) == (Reason.DEADLINE, Reason.DEADLINE)


@pytest.mark.parametrize("kind", [SealedShares, MaskedInput, UnmaskShares])
def test_a_report_is_late_at_every_later_stage(kind: type[Any]) -> None:
    round_ = mixed(8)
    round_.hold(1, Report)
    round_.reach(AdvertiseKeys, slow=4) if kind is AdvertiseKeys else round_.hold(4, kind)
    round_.go()
    round_.deadline(CoordinatorState.ADVERTISING)
    round_.go()
    assert [judged[2:] for judged in round_.release(1)] == [(REFUSE, Reason.DEADLINE)]
    round_.release(4)
    round_.go()
    check_ways(round_, clear={0, 2}, summed={3, 4, 5, 6, 7})


def test_nobody_is_left() -> None:
    round_ = mixed(5)
    round_.hold(4, AdvertiseKeys)
    round_.hold(3, AdvertiseKeys)
    round_.go()
    assert not round_.machine.over
    round_.lose(3)
    assert round_.send(4, Failure(RUN, ROUND, 4, Reason.MEMORY)).verdict is FrameVerdict.NOTE
    check_ways(round_, clear={0, 1, 2}, summed=set())
    assert (round_.machine.closed_by, round_.machine.failure) == (Reason.NONE, None)


# -- quorum, and sums that fail --------------------------------------------------------------------------


def test_the_quorum_is_of_all_together() -> None:
    # 3 in the clear and 2 in the sum are 5; the sum alone needs its two contributors only.
    round_ = mixed(5, quorum=5)
    round_.go()
    check_ways(round_, clear={0, 1, 2}, summed={3, 4})


@pytest.mark.parametrize("quorum", [3, 4])
def test_one_device_alone_has_no_sum(quorum: int) -> None:
    round_ = mixed(4, quorum=quorum)
    round_.go()
    machine = round_.machine
    assert machine.failure == "too-few-contributors"
    assert (round_.verdicts()[3], machine.reason_of_sum) == (Reason.QUORUM, Reason.QUORUM)
    if quorum == 3:
        check_ways(round_, clear={0, 1, 2}, summed=set())
        assert machine.reason is Reason.NONE
    else:
        round_.check()
        assert (machine.outcome, machine.reason) == (RoundOutcome.ABANDONED, Reason.QUORUM)
    late = round_.send(3, SealedShares(RUN, ROUND, 3, {}))
    assert late[2:] == (DISCARD, Reason.QUORUM)


@BOTH
@pytest.mark.parametrize("quorum", [3, 5])
def test_a_sum_that_fails_in_the_end_loses_its_updates_and_no_others(mode: Mode, quorum: int) -> None:
    round_ = mixed(9, mode=mode, quorum=quorum)
    for device in (4, 5, 6):
        round_.hold(device, UnmaskShares)
    round_.go()
    round_.deadline()
    round_.go()
    machine = round_.machine
    assert machine.failure == "too-few-survivors"
    verdicts = round_.verdicts()
    assert {verdicts[device] for device in range(3, 9)} == {Reason.THRESHOLD}, "no one of them counts"
    if quorum == 3:
        check_ways(round_, clear={0, 1, 2}, summed=set())
        assert machine.applied == {0, 1, 2}
    else:
        round_.check()
        assert (machine.outcome, machine.reason) == (RoundOutcome.ABANDONED, Reason.THRESHOLD)
        assert machine.applied == frozenset()
    late = {judged[2:] for device in (4, 5, 6) for judged in round_.release(device)}
    assert late == {(DISCARD, Reason.DEADLINE if quorum == 3 else Reason.THRESHOLD)}


@pytest.mark.parametrize(("quorum", "made"), [(6, True), (7, False)])
def test_a_sum_is_of_use_if_it_makes_the_quorum_with_the_reports(quorum: int, made: bool) -> None:
    round_ = mixed(7, quorum=quorum)
    round_.reach(MaskedInput, slow=5)
    round_.deadline()
    round_.go()
    if made:
        check_ways(round_, clear={0, 1, 2}, summed={3, 4, 6})
    else:
        round_.check()
        assert (round_.machine.outcome, round_.machine.failure) == (
            RoundOutcome.ABANDONED, "too-few-contributors",
        )  # fmt: skip


def test_a_quorum_of_nobody_is_missed() -> None:
    round_ = mixed(5, quorum=3)
    for device in range(5):
        round_.hold(device, Report)
        round_.hold(device, AdvertiseKeys)
    round_.go()
    round_.deadline()
    round_.check()
    assert round_.machine.outcome is RoundOutcome.ABANDONED
    assert round_.machine.failure == "too-few-contributors"


# -- never both ways -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AdvertiseKeys, SealedShares, MaskedInput, UnmaskShares])
def test_keys_and_then_a_report(kind: type[Any]) -> None:
    round_ = mixed()
    if kind is AdvertiseKeys:
        round_.hold(6, AdvertiseKeys)
    else:
        round_.hold(6, kind)
    round_.go()
    assert round_.send(5, report_of(5)) == (5, Report, DISCARD, Reason.OTHER_WAY)
    broken = report_of(5)._replace(arrays={"factors": np.zeros(3)})
    assert round_.send(5, broken) == (5, Report, DISCARD, Reason.OTHER_WAY)
    round_.release(6)
    round_.go()
    check_ways(round_, clear={0, 1, 2}, summed={3, 4, 5, 6})
    assert round_.send(5, report_of(5))[2:] == (DISCARD, Reason.OTHER_WAY)
    check_ways(round_, clear={0, 1, 2}, summed={3, 4, 5, 6})


@pytest.mark.parametrize("slow", [AdvertiseKeys, SealedShares, MaskedInput])
def test_a_report_and_then_keys(slow: type[Any]) -> None:
    round_ = mixed()
    round_.hold(6, slow)
    round_.go()
    keys = round_.protocol.participant(1).begin(update_of(1)).message
    for message in (
        keys,
        SealedShares(RUN, ROUND, 1, {}),
        MaskedInput(RUN, ROUND, 1, {"masked": np.zeros(8, np.uint32)}),
        Abort(RUN, ROUND, 1, "x"),
    ):
        assert round_.send(1, message) == (1, type(message), DISCARD, Reason.OTHER_WAY)
    round_.release(6)
    round_.go()
    check_ways(round_, clear={0, 1, 2}, summed={3, 4, 5, 6})
    assert round_.send(1, keys)[2:] == (DISCARD, Reason.OTHER_WAY)


def test_the_machine_of_the_sum_refuses_a_report_of_one_whose_keys_it_has() -> None:
    protocol = Masked()
    server = protocol.server(range(4), 4)
    server.receive(2, protocol.participant(2).client.advertise())
    for device in (2, 9):
        with pytest.raises(LocalProtocolError, match=f"device {device} cannot report in the clear"):
            server.reported(device)
    server.reported(1)
    with pytest.raises(LocalProtocolError):
        server.reported(1)
    assert server.waiting == {0, 3}


# -- frames that do not count ----------------------------------------------------------------------------


@BOTH
def test_everything_twice_counts_once(mode: Mode) -> None:
    round_ = mixed(mode=mode)
    arrive = round_.arrive
    round_.arrive = lambda sender, frame: (arrive(sender, frame), arrive(sender, frame))[0]  # type: ignore[method-assign]
    round_.go()
    check_ways(round_, clear={0, 1, 2}, summed={3, 4, 5, 6})
    assert [one[2:] for one in round_.judged if one.kind is Report] == [
        (AGGREGATE, Reason.NONE),
        (DISCARD, Reason.DUPLICATE),
    ] * 3


GARBAGE = {
    "shape": np.zeros(5, np.float32),
    "type": np.zeros(4, np.float64),
    "not a number": np.array([0, np.nan, 0, 0], np.float32),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_refused_and_its_sender_is_out(what: str) -> None:
    round_ = mixed()
    round_.devices[1].mutate = lambda message: (
        with_arrays(message, factors=GARBAGE[what]) if isinstance(message, Report) else message
    )
    round_.hold(6, AdvertiseKeys)
    round_.go()
    assert round_.verdicts()[1] is Reason.GARBAGE
    assert round_.send(1, report_of(1)) == (1, Report, DISCARD, Reason.WRONG_STAGE)
    keys = round_.protocol.participant(1).begin(update_of(1)).message
    assert round_.send(1, keys)[2:] == (DISCARD, Reason.WRONG_STAGE)
    round_.release(6)
    round_.go()
    check_ways(round_, clear={0, 2}, summed={3, 4, 5, 6})


def test_garbage_of_the_last_awaited_lets_the_round_go_on() -> None:
    round_ = mixed()
    round_.hold(1, Report)
    round_.go()
    round_.held = [(1, encode(with_arrays(report_of(1), factors=None)))]
    assert round_.release(1) == [(1, Report, DISCARD, Reason.GARBAGE)]
    round_.go()
    check_ways(round_, clear={0, 2}, summed={3, 4, 5, 6})


@pytest.mark.parametrize("slow", [AdvertiseKeys, SealedShares])
@pytest.mark.parametrize(
    ("sender", "message", "judged"),
    [
        (1, report_of(1)._replace(round_number=ROUND - 1), (DISCARD, Reason.STALE)),
        (1, report_of(1)._replace(run_id="another"), (DISCARD, Reason.STALE)),
        (9, report_of(9), (DISCARD, Reason.NOT_INVITED)),
        (4, report_of(1), (DISCARD, Reason.NOT_INVITED)),
        (7, report_of(7), (DISCARD, Reason.WRONG_STAGE)),
        (1, report_of(1), (DISCARD, Reason.DUPLICATE)),
        (1, Accept(RUN, ROUND, 1), (DISCARD, Reason.DUPLICATE)),
        (1, Failure(RUN, ROUND, 1, Reason.MEMORY), (DISCARD, Reason.DUPLICATE)),
        (1, INVITE, (DISCARD, Reason.OTHER_WAY)),
    ],
)
def test_frames_that_stray_change_nothing(
    slow: type[Any], sender: int, message: Any, judged: tuple[FrameVerdict, Reason]
) -> None:
    round_ = mixed(8, target=7)
    round_.hold(7, Accept)
    round_.hold(6, slow)
    round_.go()
    assert round_.send(sender, message)[2:] == judged
    assert round_.machine.clear == {0, 1, 2}
    round_.release(6)
    round_.go()
    check_ways(round_, clear={0, 1, 2}, summed={3, 4, 5, 6})


def test_a_report_stays_when_its_device_is_lost_afterwards() -> None:
    round_ = mixed()
    round_.reach(AdvertiseKeys, slow=6)
    round_.lose(1)
    round_.release(6)
    round_.go()
    check_ways(round_, clear={0, 1, 2}, summed={3, 4, 5, 6})


def test_a_report_of_a_device_taken_for_lost_does_not_count() -> None:
    round_ = mixed()
    round_.hold(1, Report)
    round_.go()
    round_.lose(1)
    assert round_.release(1) == [(1, Report, DISCARD, Reason.WRONG_STAGE)]
    round_.go()
    check_ways(round_, clear={0, 2}, summed={3, 4, 5, 6})


def test_a_sum_of_ciphertexts_allows_no_reports_beside_it() -> None:
    protocol = Encrypted()
    plan = RoundPlan(RUN, ROUND, 3, 1, 60.0, mixed=True)
    with pytest.raises(LocalProtocolError, match="allows no reports in the clear"):
        SecureRoundMachine(plan, [0, 1, 2], protocol.server([0, 1, 2], 3))


# -- what the coordinator holds --------------------------------------------------------------------------


def reachable_arrays(*roots: object) -> list[np.ndarray[Any, Any]]:
    """Return every array that can be reached from ``roots``, classes, functions and modules left out."""
    seen: set[int] = set()
    found: list[np.ndarray[Any, Any]] = []
    left = list(roots)
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            found.append(one)
            if one.base is not None:
                left.append(one.base)
        left.extend(gc.get_referents(one))
    return found


@BOTH
def test_the_coordinator_holds_no_secure_update_in_the_clear(mode: Mode) -> None:
    round_ = mixed(mode=mode)
    arrive = round_.arrive
    protocol = round_.protocol
    assert isinstance(protocol, Masked)
    secure = {device: update_of(device).arrays["factors"] for device in range(3, 7)}
    looked = 0

    def watched(sender: int, frame: bytes) -> Any:
        nonlocal looked
        judged = arrive(sender, frame)
        encoded = [vector.tobytes() for vector in protocol.oracle._inputs.values()]
        secret = [*(factors.tobytes() for factors in secure.values()), *encoded]
        held = [array.tobytes() for array in reachable_arrays(round_.machine, round_.accumulator)]
        looked += len(secret) * len(held)
        assert not any(one in data for one in secret for data in (frame, *held))
        return judged

    round_.arrive = watched  # type: ignore[method-assign]
    round_.go()
    check_ways(round_, clear={0, 1, 2}, summed={3, 4, 5, 6})
    assert looked > 1000
    # The search finds what is there: a single report in the clear is its own sum.
    alone = mixed(shielded=(0,), target=5)
    alone.hold(1, AdvertiseKeys)
    alone.go()
    held = [array.tobytes() for array in reachable_arrays(alone.machine, alone.accumulator)]
    assert any(update_of(0).arrays["factors"].tobytes() in array for array in held)


def test_joined_aggregates_have_exact_numbers() -> None:
    one = Aggregate({"a": np.array([1.0, 2.0])}, 3.0, 2, 10, 0.5)
    other = Aggregate({"a": np.array([0.5, -1.0])}, 1.5, 1, 30, 0.25)
    both = joined(one, other)
    assert both.sums["a"].tolist() == [1.5, 1.0]
    assert (both.weight, both.clients, both.examples, both.loss) == (4.5, 3, 40, 0.3125)
    nothing = Aggregate({"a": np.zeros(2)}, 0.0, 0, 0, float("nan"))
    assert joined(one, nothing).loss == 0.5
    assert np.isnan(joined(nothing, nothing).loss)
