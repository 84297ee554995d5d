"""What actors may rely on, whatever carries their messages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from lines import TRANSPORTS, Line, Story

from edge.wire.codec import frame_size, measure
from edge.wire.messages import (
    ARRAYS,
    KINDS,
    REAL,
    TEXT,
    UNSIGNED,
    Acknowledge,
    AnyMessage,
    Model,
    Report,
    fields_of,
)

Tell = Callable[[Story], None]


@pytest.fixture(params=sorted(TRANSPORTS))
def tell(request: pytest.FixtureRequest) -> Tell:
    return TRANSPORTS[request.param]


def model(number: int, size: int = 10) -> Model:
    return Model("run", number, {"factors": np.arange(size, dtype=np.float32)})


def example_of(kind: type[AnyMessage]) -> AnyMessage:
    arrays = {"a": np.arange(6, dtype=np.float64).reshape(2, 3), "b": np.zeros(0, np.uint8)}
    values = {UNSIGNED: 3, REAL: 0.25, TEXT: "run", ARRAYS: arrays}
    return kind(*(values[what] for _, what in fields_of(kind)))  # type: ignore[arg-type]


def same(one: AnyMessage, other: AnyMessage) -> bool:
    """Whether two messages are equal, arrays by value and dtype."""
    if type(one) is not type(other):
        return False
    for mine, yours in zip(one, other, strict=True):
        if isinstance(mine, dict):
            assert isinstance(yours, dict)
            if mine.keys() != yours.keys():
                return False
            for name in mine:
                if mine[name].dtype != yours[name].dtype or not np.array_equal(mine[name], yours[name]):
                    return False
        elif mine != yours:
            return False
    return True


def test_messages_of_every_kind_arrive_as_they_were_sent(tell: Tell) -> None:
    sent = [example_of(kind) for kind in KINDS]

    async def story(line: Line) -> None:
        for message in sent:
            line.down(message)
            line.up(message)
        await line.until(lambda: len(line.at_device) == len(line.at_coordinator) == len(sent))
        for found in (line.at_device, line.at_coordinator):
            assert all(map(same, found, sent))

    tell(story)


def test_messages_arrive_in_order_whatever_their_sizes(tell: Tell) -> None:
    sizes = [1, 50_000, 3, 100_000, 2, 1, 20_000, 1]

    async def story(line: Line) -> None:
        for number, size in enumerate(sizes):
            line.down(model(number, size))
            line.up(model(number, size))
        await line.until(lambda: len(line.at_device) == len(line.at_coordinator) == len(sizes))
        assert [message.round_number for message in line.at_device] == list(range(len(sizes)))
        assert [message.round_number for message in line.at_coordinator] == list(range(len(sizes)))

    tell(story)


def test_a_large_message_arrives_whole(tell: Tell) -> None:
    large = model(1, 1_000_003)

    async def story(line: Line) -> None:
        line.down(large)
        line.up(large)
        await line.until(lambda: len(line.at_device) == len(line.at_coordinator) == 1)
        assert same(line.at_device[0], large)
        assert same(line.at_coordinator[0], large)

    tell(story)


def test_bytes_are_those_of_the_codec(tell: Tell) -> None:
    sent = [model(1, 7), Acknowledge("run", 1, 0), Report("run", 1, 5, 9, 2.0, 0.5, model(1, 99).arrays)]

    async def story(line: Line) -> None:
        for message in sent:
            line.down(message)
            line.up(message)
        await line.until(lambda: len(line.down_bytes) == len(line.up_bytes) == len(sent))
        assert line.down_bytes == line.up_bytes == [measure(message) for message in sent]
        assert [size for size, _ in line.up_bytes] == [frame_size(message) for message in sent]

    tell(story)


def test_an_answer_can_be_given_from_within_an_arrival(tell: Tell) -> None:
    async def story(line: Line) -> None:
        line.down(model(0))
        for number in range(5):
            await line.until(lambda number=number: len(line.at_device) == number + 1)
            line.up(model(number))
            await line.until(lambda number=number: len(line.at_coordinator) == number + 1)
            line.down(model(number + 1))
        await line.until(lambda: len(line.at_device) == 6)

    tell(story)


def test_what_is_on_its_way_to_a_device_that_vanishes_is_lost_and_told(tell: Tell) -> None:
    async def story(line: Line) -> None:
        line.down(model(0))
        await line.until(lambda: len(line.down_bytes) == 1)
        line.down(model(1, 500_000))
        line.vanish()
        await line.until(lambda: len(line.lost) == 1)
        line.down(model(2))
        assert [message.round_number for message in line.lost] == [1, 2]
        assert [message.round_number for message in line.at_device] == [0]

    tell(story)


def test_nothing_of_a_device_that_has_vanished_arrives_twice_or_half(tell: Tell) -> None:
    async def story(line: Line) -> None:
        line.up(model(0))
        await line.until(lambda: len(line.at_coordinator) == 1)
        line.up(model(1, 500_000))
        line.down(model(2, 500_000))
        line.vanish()
        await line.until(lambda: len(line.lost) == 1)
        assert len(line.at_coordinator) == 1
        assert same(line.at_coordinator[0], model(0))

    tell(story)
