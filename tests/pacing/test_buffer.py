"""The buffer of asynchronous training and the machine of a model version, without clock or devices."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from coordinator.engine.pacing.buffer import Buffer, Doorway, VersionMachine, Weight, staleness_weight
from coordinator.engine.rounds import FrameVerdict, RoundPlan
from edge.core.errors import RemoteProtocolError
from edge.core.vocabulary import Reason, RoundOutcome
from edge.learning.accumulators import DenseAccumulator
from edge.learning.updates import Array, ClientUpdate
from edge.wire.messages import Accept, Decline, Failure, Model, Report

RUN = "run"


def plan() -> RoundPlan:
    return RoundPlan(RUN, 3, target=1, quorum=1, deadline_s=60.0)


def report(device: int, run: str = RUN, number: int = 3) -> Report:
    return Report(run, number, device, 3, 3.0, 0.5, {})


def accepted(machine: VersionMachine, *devices: int) -> None:
    for device in devices:
        assert machine.received(Accept(RUN, 3, device)) == (FrameVerdict.SEND_MODEL, Reason.NONE)


def update(values: list[float], weight: float = 1.0, loss: float = 0.5) -> ClientUpdate:
    arrays: dict[str, Array] = {"w": np.array(values, np.float32)}
    return ClientUpdate(arrays, weight, 2, loss)


def buffer(number: int = 1) -> Buffer:
    return Buffer(number, DenseAccumulator({"w": (np.dtype(np.float32), (2,))}))


def total(of: Buffer) -> Mapping[str, Array]:
    return of.result().sums


@pytest.mark.parametrize(
    ("kind", "staleness", "expected"),
    [
        ("inverse-sqrt", 0, 1.0),
        ("inverse-sqrt", 1, 1 / math.sqrt(2)),
        ("inverse-sqrt", 3, 0.5),
        ("inverse-sqrt", 99, 0.1),
        ("constant", 0, 1.0),
        ("constant", 99, 1.0),
    ],
)
def test_a_fresh_report_weighs_one_and_a_stale_one_as_the_paper_says(
    kind: Weight, staleness: int, expected: float
) -> None:
    assert staleness_weight(kind, staleness) == pytest.approx(expected, rel=1e-15)


class TestVersionMachine:
    def test_it_takes_reports_until_it_is_retired_and_never_closes_by_itself(self) -> None:
        machine = VersionMachine(plan(), [1, 2])
        accepted(machine, 1, 2)
        for device in (1, 2):
            assert machine.received(report(device)) == (FrameVerdict.AGGREGATE, Reason.NONE)
        assert (machine.over, machine.reports, machine.at_work) == (False, 2, 0)

    def test_devices_can_be_added_at_any_time(self) -> None:
        machine = VersionMachine(plan(), [1])
        accepted(machine, 1)
        machine.received(report(1))
        machine.invite([2, 3])
        assert machine.at_work == 2
        accepted(machine, 3)
        assert machine.received(report(3)) == (FrameVerdict.AGGREGATE, Reason.NONE)
        assert machine.received(report(9)) == (FrameVerdict.DISCARD, Reason.NOT_INVITED)
        assert machine.at_work == 1

    @pytest.mark.parametrize("answered", [False, True])
    def test_a_silent_device_frees_its_place_at_its_deadline(self, answered: bool) -> None:
        machine = VersionMachine(plan(), [1, 2])
        if answered:
            accepted(machine, 1)
        machine.deadline_of([1])
        assert machine.at_work == 1
        machine.deadline_of([1])  # once is enough
        assert machine.at_work == 1

    def test_whoever_speaks_after_its_deadline_is_told_so_once(self) -> None:
        machine = VersionMachine(plan(), [1, 2])
        accepted(machine, 1)
        machine.deadline_of([1, 2])
        assert machine.received(report(1)) == (FrameVerdict.REFUSE, Reason.DEADLINE)
        assert machine.received(report(1)) == (FrameVerdict.DISCARD, Reason.WRONG_STAGE)
        assert machine.received(Accept(RUN, 3, 2)) == (FrameVerdict.REFUSE, Reason.DEADLINE)
        assert (machine.reports, machine.at_work) == (0, 0)

    def test_a_refusal_after_the_deadline_frees_nothing_a_second_time(self) -> None:
        machine = VersionMachine(plan(), [1, 2])
        machine.deadline_of([1])
        assert machine.received(Decline(RUN, 3, 1, Reason.BATTERY)) == (FrameVerdict.NOTE, Reason.NONE)
        assert machine.at_work == 1

    def test_a_deadline_after_the_report_changes_nothing(self) -> None:
        machine = VersionMachine(plan(), [1, 2])
        accepted(machine, 1)
        machine.received(report(1))
        machine.received(Failure(RUN, 3, 2, Reason.MEMORY))
        machine.deadline_of([1, 2])
        assert (machine.reports, machine.at_work) == (1, 0)
        assert machine.received(report(1)) == (FrameVerdict.DISCARD, Reason.DUPLICATE)

    @pytest.mark.parametrize("reason", [Reason.STALE, Reason.COHORT_FULL])
    def test_once_retired_it_refuses_reports_with_the_reason(self, reason: Reason) -> None:
        machine = VersionMachine(plan(), [1, 2])
        accepted(machine, 1)
        machine.retire(reason)
        assert (machine.outcome, machine.at_work) == (RoundOutcome.COMPLETED, 0)
        assert machine.received(report(1)) == (FrameVerdict.REFUSE, reason)
        assert machine.received(Accept(RUN, 3, 2)) == (FrameVerdict.REFUSE, reason)
        assert machine.reports == 0

    def test_the_first_reason_to_retire_stays(self) -> None:
        machine = VersionMachine(plan(), [1])
        accepted(machine, 1)
        machine.retire(Reason.STALE)
        machine.retire(Reason.COHORT_FULL)
        assert machine.received(report(1)) == (FrameVerdict.REFUSE, Reason.STALE)

    def test_frames_of_other_runs_and_versions_are_stale(self) -> None:
        machine = VersionMachine(plan(), [1])
        accepted(machine, 1)
        machine.deadline_of([1])
        assert machine.received(report(1, run="other")) == (FrameVerdict.REFUSE, Reason.STALE)
        assert machine.received(report(1, number=2)) == (FrameVerdict.REFUSE, Reason.STALE)
        assert machine.received(Model(RUN, 3, {})) == (FrameVerdict.DISCARD, Reason.WRONG_STAGE)
        # And its own is still told that its time is up.
        assert machine.received(report(1)) == (FrameVerdict.REFUSE, Reason.DEADLINE)


class TestBuffer:
    def test_fresh_reports_add_up_as_in_a_round(self) -> None:
        one = buffer()
        one.add(update([1, 2], 2.0), 1, 1.0)
        one.add(update([3, 4], 3.0), 2, 1.0)
        np.testing.assert_array_equal(total(one)["w"], [4, 6])
        assert (one.reports, one.result().weight) == (2, 5.0)

    def test_a_stale_report_is_scaled_but_counts_whole_in_the_divisor(self) -> None:
        one = buffer()
        one.add(update([1, 2]), 1, 1.0)
        one.add(update([2, 8]), 2, 0.5)
        np.testing.assert_array_equal(total(one)["w"], [2, 6])
        assert one.result().weight == 2.0
        np.testing.assert_array_equal(one.result().mean()["w"], [1, 3])

    def test_the_report_itself_is_left_as_it_was(self) -> None:
        mine = update([2, 8])
        buffer().add(mine, 1, 0.5)
        np.testing.assert_array_equal(mine.arrays["w"], [2, 8])
        assert mine.arrays["w"].dtype == np.float32


class TestDoorway:
    def test_it_fills_the_buffer_of_the_moment_with_the_weight_of_the_moment(self) -> None:
        first, second = buffer(1), buffer(2)
        buffers, ages = [first, second], [0, 3]
        doorway = Doorway(lambda: buffers[0], lambda: ages[0], lambda age: 1 / (1 + age))
        doorway.add(update([4, 4]), 1)
        assert doorway.last == (1, 0)
        del buffers[0], ages[0]
        doorway.add(update([4, 4]), 1)
        assert doorway.last == (2, 3)
        np.testing.assert_array_equal(total(first)["w"], [4, 4])
        np.testing.assert_array_equal(total(second)["w"], [1, 1])

    def test_a_malformed_update_is_refused_before_it_counts(self) -> None:
        one = buffer()
        doorway = Doorway(lambda: one, lambda: 0, lambda _: 1.0)
        with pytest.raises(RemoteProtocolError):
            doorway.check({"w": np.zeros(3, np.float32)})
        assert one.reports == 0
