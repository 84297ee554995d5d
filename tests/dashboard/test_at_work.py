"""Where devices stand, by the frames that pass."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.service.dashboard.at_work import AT_WORK, INVITED, OVER, STATES, DevicesAtWork
from edge.core.vocabulary import Direction, Reason
from edge.wire.messages import (
    Abort,
    Accept,
    Acknowledge,
    AdvertiseKeys,
    Decline,
    Failure,
    KeyList,
    MaskedInput,
    Model,
    Report,
    UnmaskRequest,
)

ACCEPT = Accept("run", 1, 7)
MODEL = Model("run", 1, {})
REPORT = Report("run", 1, 7, 1, 1.0, 0.5, {})
RECEIPT = Acknowledge("run", 1, Reason.NONE)


def now_in(work: DevicesAtWork) -> dict[str, int]:
    return {name: number for name, number in work.states().items() if number}


def up(
    work: DevicesAtWork, message: Any, device: int = 7, number: int = 1, reason: Reason = Reason.NONE
) -> None:
    work.frame(number, device, Direction.UP, message, reason, 10, 1.0)


def down(work: DevicesAtWork, message: Any, device: int = 7, number: int = 1) -> None:
    work.frame(number, device, Direction.DOWN, message, Reason.NONE, 100, 1.0)


@pytest.fixture
def work() -> DevicesAtWork:
    made = DevicesAtWork()
    made.invited(1, [7, 8, 9], 50, 0.5)
    return made


def test_a_device_goes_through_its_round(work: DevicesAtWork) -> None:
    assert (now_in(work), work.stage) == ({INVITED: 3}, "invite")
    down(work, MODEL)  # the answer is under way before the question has been judged
    up(work, ACCEPT)
    assert (now_in(work), work.stage) == ({INVITED: 2, AT_WORK: 1}, "download")
    down(work, RECEIPT)
    up(work, REPORT)
    assert (now_in(work), work.stage) == ({INVITED: 2, OVER: 1}, "report")


def test_the_stages_of_a_secure_sum(work: DevicesAtWork) -> None:
    up(work, ACCEPT)
    up(work, _made(AdvertiseKeys))
    assert now_in(work) == {INVITED: 2, "sent: advertise-keys": 1}
    down(work, _made(KeyList))
    assert (work.stage, now_in(work)["sent: advertise-keys"]) == ("share-keys", 1)
    up(work, _made(MaskedInput))
    down(work, _made(UnmaskRequest))
    assert (work.stage, now_in(work)["sent: masked-input"]) == ("unmask", 1)
    down(work, Abort("run", 1, 7, "x"))
    assert now_in(work) == {INVITED: 2, OVER: 1}


def _made(kind: Any) -> Any:
    return kind(*("run", 1, *[None] * (len(kind._fields) - 2)))


@pytest.mark.parametrize("last", [Decline("run", 1, 7, 1), Failure("run", 1, 7, 1), Abort("run", 1, 7, "x")])
def test_who_says_no_is_over(work: DevicesAtWork, last: Any) -> None:
    up(work, last)
    assert now_in(work) == {INVITED: 2, OVER: 1}


def test_what_does_not_count_moves_nobody(work: DevicesAtWork) -> None:
    up(work, REPORT, reason=Reason.WRONG_STAGE)
    up(work, REPORT, device=12)
    up(work, REPORT, number=3)
    up(work, RECEIPT, reason=Reason.WRONG_STAGE)  # no device sends one, but it may come
    assert now_in(work) == {INVITED: 3}
    assert work.frames == {Direction.DOWN: 3, Direction.UP: 3}
    assert work.frame_bytes == {Direction.DOWN: 150, Direction.UP: 30}


def test_a_new_round_counts_anew_and_keeps_stragglers(work: DevicesAtWork) -> None:
    up(work, ACCEPT)
    work.invited(2, [1, 2], 60, 3.0)
    assert (work.round_number, work.frame_bytes[Direction.DOWN], work.time_s) == (2, 120, 3.0)
    assert now_in(work) == {INVITED: 4, AT_WORK: 1}
    up(work, REPORT)  # of the first round
    assert (now_in(work)["sent: report"], work.stage) == (1, "invite")


def test_who_is_written_is_forgotten(work: DevicesAtWork) -> None:
    work.invited(2, [9, 10], 60, 3.0)
    work.written(1, [7, 8, 9])
    assert now_in(work) == {INVITED: 2}  # device 9 is in the second round by now
    work.written(2, [9, 10])
    assert (now_in(work), work.stage) == ({}, None)


def test_who_leaves_is_over(work: DevicesAtWork) -> None:
    work.gone(8)
    work.gone(77)
    assert now_in(work) == {INVITED: 2, OVER: 1}


def test_every_state_is_told_of_always() -> None:
    assert list(DevicesAtWork().states()) == list(STATES)
    assert set(DevicesAtWork().states().values()) == {0}
