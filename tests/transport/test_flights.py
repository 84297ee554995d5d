"""Frames of many devices at once are carried as each of them would be by itself, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edge.clock.virtual import VirtualClockLoop
from edge.core.vocabulary import Direction, Stage
from edge.network.cohort import CohortLinks, Frame, LinkSpecs
from edge.network.conditions import LinkConditions
from edge.network.disturbances import Disturbances, LinkEffect
from edge.network.flights import Flights, Sending, carry_many
from edge.network.link import SimulatedNetwork, TimedFrame
from edge.network.loss import TransferFailedError

N = 60
NUMBER = 2
"""Of the frame that is sent, among those that are foreseen."""


@pytest.fixture
def loop() -> Iterator[VirtualClockLoop]:
    with contextlib.closing(VirtualClockLoop()) as made:
        yield made


def links_of(generator: np.random.Generator, frame_bytes: Any, *, loss: float, flaky: bool) -> CohortLinks:
    specs = LinkSpecs(
        down_bps=generator.uniform(1e5, 5e7, N),
        up_bps=generator.uniform(1e5, 2e7, N),
        rtt_s=generator.uniform(0.01, 0.3, N),
        loss=np.full(N, loss),
        jitter_s=generator.uniform(0.0, 0.05, N),
        promotion_s=generator.uniform(0.0, 0.5, N),
        tail_s=generator.uniform(0.0, 5.0, N),
        flaky=np.full(N, flaky),
    )
    small = np.full(N, 60)
    foreseen = [
        Frame(Direction.DOWN, small), Frame(Direction.UP, small), Frame(Direction.DOWN, frame_bytes)
    ]  # fmt: skip
    return CohortLinks(7, np.arange(N), 3, specs, foreseen, 2, np.ones(N, np.bool_))


def conditions_of(*, sigma: float, flaky: bool) -> LinkConditions:
    return LinkConditions(
        5,
        np.arange(N),
        sigma_log=np.full(N, sigma),
        rho_1s=np.full(N, 0.9),
        outage_fraction=np.full(N, 0.2 if flaky else 0.0),
        outage_mean_s=np.full(N, 3.0),
    )


@pytest.mark.parametrize("largest", [1000, 200_000], ids=["packets", "models"])
@pytest.mark.parametrize("loss", [0.0, 0.02])
@pytest.mark.parametrize("sigma", [0.0, 0.7])
@pytest.mark.parametrize("flaky", [False, True], ids=["", "outages"])
@pytest.mark.parametrize("disturbed", [False, True], ids=["", "disturbed"])
def test_as_one_by_one(
    largest: int, loss: float, sigma: float, flaky: bool, disturbed: bool, loop: VirtualClockLoop
) -> None:
    generator = np.random.default_rng(largest)
    foreseen = generator.integers(60, largest, N)
    # One in five has another length than was foreseen, and one in six sends nothing.
    sizes = np.where(np.arange(N) % 5 == 0, foreseen + 1, foreseen)
    links = links_of(generator, foreseen, loss=loss, flaky=flaky)
    if disturbed:
        effects = {
            slot: [LinkEffect(fault=0, start_s=1.0, end_s=9.0, scale=0.3, delay_s=0.1, key=slot)]
            for slot in range(0, N, 4)
        }
        links.disturbances = Disturbances(effects, lambda *_: None)
    start_s = generator.uniform(0.0, 40.0, N)
    start_s[::6] = np.inf
    radio_s = start_s + generator.uniform(-1.0, 1.0, N)
    arrived_s = start_s - generator.uniform(0.0, 0.1, N)
    network = SimulatedNetwork(loop, 1e9, 1e9, tls=False, congestion="cubic")
    sending = Sending(
        slots=np.arange(N),
        number=NUMBER,
        stage=Stage.DOWNLOAD,
        direction=Direction.DOWN,
        frame_bytes=sizes,
        payload_bytes=sizes // 2,
        start_s=start_s,
        radio_until_s=radio_s,
        arrived_s=arrived_s,
    )
    flights = carry_many(network, links, conditions_of(sigma=sigma, flaky=flaky), sending)
    assert not np.isfinite(flights.end_s[::6]).any()
    conditions = conditions_of(sigma=sigma, flaky=flaky)
    for place in np.flatnonzero(np.isfinite(start_s)).tolist():
        frame = TimedFrame(Direction.DOWN, int(sizes[place]), int(sizes[place] // 2))
        sent = (float(start_s[place]), float(radio_s[place]))
        try:
            network.carry(frame, links, conditions, place, NUMBER, Stage.DOWNLOAD, *sent, True)
        except TransferFailedError:
            assert flights.failed[place]
            continue
        assert not flights.failed[place]
        end_s = max(frame.last_byte_s + frame.latency_s, float(arrived_s[place]))
        assert found(flights, place) == (
            *(frame.start_s, frame.first_byte_s, frame.last_byte_s, frame.latency_s, end_s),
            *(frame.tcp_ip_bytes, frame.retransmitted_bytes),
            frame.last_byte_s + frame.latency_s + links.tail_s[place],
        )


def found(flights: Flights, place: int) -> tuple[float, ...]:
    columns = (
        *(flights.start_s, flights.first_byte_s, flights.last_byte_s, flights.latency_s, flights.end_s),
        *(flights.tcp_ip_bytes, flights.retransmitted_bytes, flights.radio_until_s),
    )
    return tuple(column.item(place) for column in columns)
