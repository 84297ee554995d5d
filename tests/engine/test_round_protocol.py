"""Both protocol machines, joined through bytes; no clock and no sockets anywhere."""

import random

import numpy as np
import pytest

from coordinator.engine.rounds import FrameVerdict, RoundMachine, RoundPlan
from edge.core.errors import LocalProtocolError
from edge.core.vocabulary import Reason, RoundOutcome
from edge.device.participation import Participation, State
from edge.wire.codec import decode, encode
from edge.wire.messages import Accept, Acknowledge, Decline, Failure, Invite, Message, Model, Report

RUN = "run"
INVITE = Invite(RUN, 1, "task", 60.0, 100)
MODEL = Model(RUN, 1, {"w": np.zeros(2, np.float32)})


def plan(target: int = 2, quorum: int = 1, round_number: int = 1) -> RoundPlan:
    return RoundPlan(RUN, round_number, target, quorum, 60.0)


def report(device: int, round_number: int = 1, run: str = RUN) -> Report:
    return Report(run, round_number, device, 3, 3.0, 0.5, {})


def accepted(machine: RoundMachine, *devices: int) -> None:
    for device in devices:
        assert machine.received(Accept(RUN, 1, device)) == (FrameVerdict.SEND_MODEL, Reason.NONE)


class TestRoundMachine:
    def test_closes_at_the_target_and_refuses_the_surplus(self) -> None:
        machine = RoundMachine(plan(target=2), [1, 2, 3])
        accepted(machine, 1, 2, 3)
        assert machine.received(report(1)) == (FrameVerdict.AGGREGATE, Reason.NONE)
        assert not machine.over
        assert machine.received(report(2)) == (FrameVerdict.AGGREGATE, Reason.NONE)
        assert machine.outcome is RoundOutcome.COMPLETED
        assert machine.closed_by is Reason.COHORT_FULL
        assert machine.received(report(3)) == (FrameVerdict.REFUSE, Reason.COHORT_FULL)
        assert machine.reports == 2

    def test_closes_when_nobody_is_left(self) -> None:
        machine = RoundMachine(plan(target=3), [1, 2, 3])
        accepted(machine, 1, 2)
        machine.received(Decline(RUN, 1, 3, Reason.BATTERY))
        machine.received(report(1))
        assert not machine.over
        assert machine.received(Failure(RUN, 1, 2, Reason.MEMORY)) == (FrameVerdict.NOTE, Reason.NONE)
        assert machine.outcome is RoundOutcome.COMPLETED
        assert machine.closed_by is Reason.NONE

    def test_the_deadline_closes_with_a_quorum_and_abandons_without(self) -> None:
        for reports, outcome, reason in (
            (2, RoundOutcome.COMPLETED, Reason.NONE),
            (1, RoundOutcome.ABANDONED, Reason.QUORUM),
        ):
            machine = RoundMachine(plan(target=3, quorum=2), [1, 2, 3])
            accepted(machine, 1, 2, 3)
            for device in range(1, reports + 1):
                machine.received(report(device))
            machine.deadline_passed()
            assert machine.outcome is outcome
            assert machine.reason is reason
            assert machine.received(report(3)) == (FrameVerdict.REFUSE, Reason.DEADLINE)
            machine.deadline_passed()
            assert machine.outcome is outcome

    def test_all_devices_lost_ends_the_round_at_once(self) -> None:
        machine = RoundMachine(plan(), [1, 2])
        accepted(machine, 1)
        machine.lost(1)
        machine.lost(1)
        machine.lost(99)
        assert not machine.over
        machine.lost(2)
        assert machine.outcome is RoundOutcome.ABANDONED

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            (report(1, round_number=7), (FrameVerdict.REFUSE, Reason.STALE)),
            (report(1, run="another"), (FrameVerdict.REFUSE, Reason.STALE)),
            (Accept(RUN, 0, 1), (FrameVerdict.DISCARD, Reason.STALE)),
            (report(99), (FrameVerdict.DISCARD, Reason.NOT_INVITED)),
            (report(2), (FrameVerdict.DISCARD, Reason.WRONG_STAGE)),
            (Accept(RUN, 1, 1), (FrameVerdict.DISCARD, Reason.DUPLICATE)),
            (MODEL, (FrameVerdict.DISCARD, Reason.WRONG_STAGE)),
        ],
    )
    def test_frames_out_of_place_change_nothing(
        self, message: Message, expected: tuple[FrameVerdict, Reason]
    ) -> None:
        machine = RoundMachine(plan(), [1, 2])
        accepted(machine, 1)
        assert machine.received(message) == expected
        assert (machine.reports, machine.accepted, machine.over) == (0, 1, False)

    def test_a_duplicate_report_counts_once(self) -> None:
        machine = RoundMachine(plan(target=2), [1, 2])
        accepted(machine, 1, 2)
        machine.received(report(1))
        assert machine.received(report(1)) == (FrameVerdict.DISCARD, Reason.DUPLICATE)
        assert machine.reports == 1
        assert not machine.over

    def test_a_device_that_said_no_cannot_report(self) -> None:
        machine = RoundMachine(plan(), [1, 2])
        machine.received(Decline(RUN, 1, 1, Reason.BATTERY))
        assert machine.received(report(1)) == (FrameVerdict.DISCARD, Reason.WRONG_STAGE)
        assert machine.received(Decline(RUN, 1, 1, Reason.BATTERY)) == (
            FrameVerdict.DISCARD,
            Reason.DUPLICATE,
        )

    def test_an_acceptance_after_the_end_is_told_so(self) -> None:
        machine = RoundMachine(plan(target=1), [1, 2])
        accepted(machine, 1)
        machine.received(report(1))
        assert machine.received(Accept(RUN, 1, 2)) == (FrameVerdict.REFUSE, Reason.COHORT_FULL)

    @pytest.mark.parametrize(("target", "quorum", "deadline_s"), [(2, 3, 1.0), (2, 0, 1.0), (2, 1, 0.0)])
    def test_impossible_plans_are_refused(self, target: int, quorum: int, deadline_s: float) -> None:
        with pytest.raises(LocalProtocolError):
            RoundPlan(RUN, 1, target, quorum, deadline_s)

    def test_nobody_invited_is_refused(self) -> None:
        with pytest.raises(LocalProtocolError, match="at least one invited device"):
            RoundMachine(plan(), [])


class TestParticipation:
    def test_the_whole_way(self) -> None:
        part = Participation(7)
        assert part.invited(INVITE, Reason.NONE) == Accept(RUN, 1, 7)
        assert part.received(MODEL) is Reason.NONE
        answer = part.computed({}, 3.0, 3, 0.25)
        assert answer == Report(RUN, 1, 7, 3, 3.0, 0.25, {})
        assert part.received(Acknowledge(RUN, 1, Reason.NONE)) is Reason.NONE
        assert part.over
        assert part.receipt is Reason.NONE

    def test_an_obstacle_is_a_refusal(self) -> None:
        part = Participation(7)
        assert part.invited(INVITE, Reason.BATTERY) == Decline(RUN, 1, 7, Reason.BATTERY)
        assert part.over

    @pytest.mark.parametrize(("weight", "loss"), [(float("nan"), 0.0), (1.0, float("inf"))])
    def test_numbers_that_are_not_finite_are_a_failure(self, weight: float, loss: float) -> None:
        part = Participation(7)
        part.invited(INVITE, Reason.NONE)
        part.received(MODEL)
        assert part.computed({}, weight, 1, loss) == Failure(RUN, 1, 7, Reason.NOT_FINITE)
        assert part.over

    def test_frames_out_of_place_are_named(self) -> None:
        part = Participation(7)
        part.invited(INVITE, Reason.NONE)
        assert part.received(Model(RUN, 2, {})) is Reason.STALE
        assert part.received(Model("other", 1, {})) is Reason.STALE
        assert part.received(INVITE) is Reason.DUPLICATE
        assert part.received(Accept(RUN, 1, 7)) is Reason.WRONG_STAGE
        assert part.received(MODEL) is Reason.NONE
        assert part.received(MODEL) is Reason.DUPLICATE
        assert part.received(Acknowledge(RUN, 1, Reason.NONE)) is Reason.WRONG_STAGE
        assert part.state is State.COMPUTING

    def test_a_receipt_while_waiting_for_the_model_releases_the_device(self) -> None:
        part = Participation(7)
        part.invited(INVITE, Reason.NONE)
        assert part.received(Acknowledge(RUN, 1, Reason.COHORT_FULL)) is Reason.NONE
        assert part.receipt is Reason.COHORT_FULL
        assert part.over
        assert part.received(Acknowledge(RUN, 1, Reason.NONE)) is Reason.DUPLICATE

    def test_a_receipt_with_an_unknown_reason_is_no_success(self) -> None:
        part = Participation(7)
        part.invited(INVITE, Reason.NONE)
        part.received(Acknowledge(RUN, 1, 250))
        assert part.receipt is Reason.GARBAGE

    def test_calls_out_of_order_are_our_own_bug(self) -> None:
        part = Participation(7)
        with pytest.raises(LocalProtocolError, match=r"computed\(\) needs the state 'computing', not 'idle'"):
            part.computed({}, 1.0, 1, 0.0)
        part.invited(INVITE, Reason.NONE)
        with pytest.raises(LocalProtocolError, match="invited"):
            part.invited(INVITE, Reason.NONE)


def play(seed: int) -> None:
    """A whole round with random drops, duplicates, reordering and stale frames, over encoded frames."""
    generator = random.Random(seed)
    n = generator.randint(1, 8)
    target = generator.randint(1, n)
    quorum = generator.randint(1, target)
    machine = RoundMachine(RoundPlan(RUN, 1, target, quorum, 60.0), list(range(n)))
    parts = [Participation(device) for device in range(n)]
    wire: list[tuple[int, bool, bytes]] = []  # (device, upwards, frame)
    aggregated: list[int] = []

    def send(device: int, upwards: bool, message: Message) -> None:
        copies = generator.choices([0, 1, 2], [1, 8, 2])[0]
        wire.extend([(device, upwards, encode(message))] * copies)

    for device in range(n):
        send(device, False, INVITE)
    stale = [report(0, round_number=0), Accept(RUN, 0, 0), Accept("old", 1, 0)]
    while wire:
        device, upwards, frame = wire.pop(generator.randrange(len(wire)))
        message = decode(frame)
        if generator.random() < 0.1:
            send(device, True, generator.choice(stale))
        if generator.random() < 0.03:
            machine.deadline_passed()
        if upwards:
            was_over = machine.over
            verdict, reason = machine.received(message)
            if verdict is FrameVerdict.SEND_MODEL:
                send(device, False, MODEL)
            elif verdict is FrameVerdict.AGGREGATE:
                assert not was_over
                assert isinstance(message, Report)
                aggregated.append(message.device)
                send(device, False, Acknowledge(RUN, 1, Reason.NONE))
            elif verdict is FrameVerdict.REFUSE:
                assert reason is not Reason.NONE
                send(device, False, Acknowledge(RUN, 1, reason))
            continue
        part = parts[device]
        if isinstance(message, Invite):
            if part.state is State.IDLE:
                obstacle = Reason.BATTERY if generator.random() < 0.1 else Reason.NONE
                send(device, True, part.invited(message, obstacle))
            continue
        reason = part.received(message)
        if reason is Reason.NONE and part.state is State.COMPUTING:
            send(device, True, part.computed({}, 1.0, 1, 0.1))
    machine.deadline_passed()
    assert machine.over
    assert len(set(aggregated)) == len(aggregated) == machine.reports <= target
    assert (machine.outcome is RoundOutcome.COMPLETED) == (len(aggregated) >= quorum)
    for part in parts:
        if part.receipt is Reason.NONE:
            assert part.device in aggregated


@pytest.mark.parametrize("block", range(10))
def test_random_rounds_aggregate_each_device_at_most_once(block: int) -> None:
    for seed in range(block * 200, (block + 1) * 200):
        try:
            play(seed)
        except AssertionError as error:
            error.add_note(f"replay: play({seed})")
            raise
