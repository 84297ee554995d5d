"""A device's participation in a round of secure sums: its states, every frame in each, its whole story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from secure_round_harness import INVITE, MODEL, ROUND, RUN, Device, Masked

from edge.core.errors import LocalProtocolError
from edge.core.vocabulary import Reason
from edge.crypto.errors import TooFewContributorsError, TooFewSurvivorsError
from edge.device.participation import Participation, State
from edge.wire.messages import (
    Abort,
    Accept,
    Acknowledge,
    AdvertiseKeys,
    ConsistencyCheck,
    Decline,
    DecryptRequest,
    Failure,
    KeyList,
    SharesDelivery,
    UnmaskRequest,
)

DEVICE = 7
NONE, DUPLICATE, WRONG_STAGE = Reason.NONE, Reason.DUPLICATE, Reason.WRONG_STAGE
RECEIPT = Acknowledge(RUN, ROUND, Reason.NONE)
ABORT = Abort(RUN, ROUND, DEVICE, TooFewSurvivorsError.NAME)
OF_THE_SUM = (
    KeyList(RUN, ROUND, DEVICE, 3, 2, 2, {}),
    SharesDelivery(RUN, ROUND, DEVICE, {}),
    ConsistencyCheck(RUN, ROUND, {}),
    UnmaskRequest(RUN, ROUND, DEVICE, 3, {}),
    DecryptRequest(RUN, ROUND, DEVICE, 3, {}),
)


def invited() -> Participation:
    part = Participation(DEVICE)
    part.invited(INVITE, Reason.NONE)
    return part


def computing() -> Participation:
    part = invited()
    part.received(MODEL)
    return part


def summing() -> Participation:
    part = computing()
    part.sums()
    return part


def contributed() -> Participation:
    part = summing()
    part.contributed()
    return part


def aborted() -> Participation:
    part = summing()
    part.aborted(Reason.PROTOCOL)
    return part


def released() -> Participation:
    part = contributed()
    part.received(RECEIPT)
    return part


STATES: dict[Callable[[], Participation], State] = {
    invited: State.AWAITING_MODEL,
    computing: State.COMPUTING,
    summing: State.SUMMING,
    contributed: State.AWAITING_RECEIPT,
    aborted: State.OVER,
    released: State.OVER,
}


def test_each_of_these_is_in_its_state() -> None:
    assert {make: make().state for make in STATES} == STATES


@pytest.mark.parametrize(
    ("make", "of_the_sum", "abort", "receipt", "model"),
    [
        (invited, WRONG_STAGE, WRONG_STAGE, NONE, NONE),
        (computing, WRONG_STAGE, WRONG_STAGE, WRONG_STAGE, DUPLICATE),
        (summing, NONE, NONE, NONE, DUPLICATE),
        (contributed, WRONG_STAGE, NONE, NONE, DUPLICATE),
        (aborted, WRONG_STAGE, WRONG_STAGE, DUPLICATE, DUPLICATE),
        (released, WRONG_STAGE, WRONG_STAGE, DUPLICATE, DUPLICATE),
    ],
)
def test_every_frame_in_each_state(
    make: Callable[[], Participation], of_the_sum: Reason, abort: Reason, receipt: Reason, model: Reason
) -> None:
    expected = [
        *((message, of_the_sum) for message in OF_THE_SUM),
        (ABORT, abort),
        (RECEIPT, receipt),
        (MODEL, model),
        (INVITE, DUPLICATE),
        (Accept(RUN, ROUND, DEVICE), WRONG_STAGE),
        (AdvertiseKeys(RUN, ROUND, DEVICE, {}), WRONG_STAGE),
    ]
    for message, reason in expected:
        part = make()
        assert part.received(message) is reason, type(message).__name__
        if reason is not NONE:
            assert (part.state, part.receipt) == (STATES[make], make().receipt)


@pytest.mark.parametrize("make", STATES)
def test_frames_of_another_round_or_run_are_stale_in_every_state(make: Callable[[], Participation]) -> None:
    for message in (*OF_THE_SUM, ABORT, RECEIPT, MODEL, INVITE):
        for stale in (message._replace(round_number=ROUND + 1), message._replace(run_id="another")):
            part = make()
            assert part.received(stale) is Reason.STALE
            assert part.state is STATES[make]


def test_what_the_sum_is_told_does_not_move_the_participation() -> None:
    part = summing()
    for message in (*OF_THE_SUM, ABORT, *OF_THE_SUM):
        assert part.received(message) is NONE
    assert part.state is State.SUMMING
    assert (part.receipt, part.abandoned) == (None, None)


def test_the_whole_way_to_a_receipt() -> None:
    part = contributed()
    assert not part.over
    assert part.received(RECEIPT) is NONE
    assert part.over
    assert (part.receipt, part.abandoned) == (Reason.NONE, None)


def test_a_receipt_may_come_before_the_sum_asks_for_everything() -> None:
    part = summing()
    assert part.received(Acknowledge(RUN, ROUND, Reason.COHORT_FULL)) is NONE
    assert (part.over, part.receipt, part.abandoned) == (True, Reason.COHORT_FULL, None)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (TooFewContributorsError.NAME, Reason.QUORUM),
        (TooFewSurvivorsError.NAME, Reason.THRESHOLD),
        ("key-mismatch", Reason.PROTOCOL),
        ("of another version", Reason.PROTOCOL),
    ],
)
def test_an_abort_after_the_last_answer_is_the_receipt(name: str, reason: Reason) -> None:
    part = contributed()
    assert part.received(ABORT._replace(reason=name)) is NONE
    assert (part.over, part.receipt, part.abandoned) == (True, None, reason)
    assert part.received(RECEIPT) is DUPLICATE
    assert (part.receipt, part.abandoned) == (None, reason)


def test_a_sum_that_ended_early_says_why() -> None:
    part = aborted()
    assert (part.over, part.receipt, part.abandoned) == (True, None, Reason.PROTOCOL)


@pytest.mark.parametrize("make", STATES)
def test_patience_may_end_in_every_state(make: Callable[[], Participation]) -> None:
    part = make()
    part.timed_out()
    assert part.over


CALLS: dict[str, tuple[State, Callable[[Participation], object]]] = {
    "sums": (State.COMPUTING, lambda part: part.sums()),
    "computed": (State.COMPUTING, lambda part: part.computed({}, 1.0, 1, 0.0)),
    "failed": (State.COMPUTING, lambda part: part.failed(Reason.MEMORY)),
    "contributed": (State.SUMMING, lambda part: part.contributed()),
    "aborted": (State.SUMMING, lambda part: part.aborted(Reason.PROTOCOL)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("make", STATES)
def test_a_call_in_any_other_state_is_our_own_bug(make: Callable[[], Participation], call: str) -> None:
    needs, act = CALLS[call]
    part = make()
    if part.state is needs:
        act(part)
        assert part.state is not needs
        return
    with pytest.raises(LocalProtocolError, match=rf"{call}\(\) needs the state '{needs.value}'"):
        act(part)
    assert part.state is STATES[make]


# -- the story -------------------------------------------------------------------------------------------


def story() -> Device:
    return Device(DEVICE, Masked(), [])


def told(*messages: Any, **changes: Any) -> Device:
    """Return a device whose story has got the invitation and ``messages``."""
    device = story()
    for name, value in changes.items():
        setattr(device, name, value)
    for message in (INVITE, *messages):
        device.take(message)
    return device


def test_a_device_that_declines_is_done() -> None:
    device = told(declines=Reason.BATTERY)
    assert device.sent == [Decline(RUN, ROUND, DEVICE, Reason.BATTERY)]
    assert device.ended is not None
    assert device.ended.over


def test_a_device_that_is_turned_away_before_it_gets_the_model_is_done() -> None:
    device = told(Acknowledge(RUN, ROUND, Reason.COHORT_FULL))
    assert device.sent == [Accept(RUN, ROUND, DEVICE)]
    assert device.verdict is Reason.COHORT_FULL
    assert device.settled == [NONE]


def test_a_device_that_is_turned_away_from_the_sum_is_done() -> None:
    device = told(MODEL, Acknowledge(RUN, ROUND, Reason.COHORT_FULL))
    assert [type(message) for message in device.sent] == [Accept, AdvertiseKeys]
    assert device.verdict is Reason.COHORT_FULL
    assert device.settled == [NONE, NONE]


def test_a_device_that_cannot_compute_says_why() -> None:
    device = told(MODEL, result=Reason.NO_DATA)
    assert device.sent[-1] == Failure(RUN, ROUND, DEVICE, Reason.NO_DATA)
    assert device.ended is not None
    assert device.part is None, "it has no part in the sum"


def test_frames_that_stray_are_settled_and_waited_out() -> None:
    stale = MODEL._replace(round_number=1)
    device = told(stale, MODEL, MODEL, stale, ABORT._replace(device=1), DecryptRequest(RUN, ROUND, 7, 2, {}))
    assert [type(message) for message in device.sent] == [Accept, AdvertiseKeys]
    assert device.settled == [Reason.STALE, NONE, DUPLICATE, Reason.STALE, Reason.PROTOCOL, WRONG_STAGE]
    assert device.ended is None
    device.take(ABORT)
    assert device.verdict is Reason.THRESHOLD
    assert device.settled[-1] is NONE


def test_a_frame_that_breaks_the_protocol_is_answered_with_an_abort() -> None:
    device = told(MODEL, KeyList(RUN, ROUND, DEVICE, 3, 2, 2, {"devices": np.zeros(1)}))
    assert isinstance(device.sent[-1], Abort)
    assert device.settled == [NONE, Reason.PROTOCOL]
    assert device.verdict is Reason.PROTOCOL


@pytest.mark.parametrize("messages", [(), (MODEL,)])
def test_a_device_does_not_wait_for_ever(messages: tuple[Any, ...]) -> None:
    device = told(*messages)
    device.time_out()
    assert device.ended is not None
    assert (device.ended.over, device.verdict) == (True, None)
