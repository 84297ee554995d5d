"""A device that is as slow as its profile keeps a time of its own; any other has the host's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edge.clock import real as real_clock
from edge.clock.virtual import DeadlineExceededError
from edge.core.vocabulary import Reason, Stage
from edge.device.real import RealDevice
from edge.secagg.participant import CryptoWork
from edge.wire.messages import Accept, Invite, Model

HOST_S = 0.08
"""What the update takes here."""


class Work:
    """What takes ``compute_s`` by the profile and :data:`HOST_S` on this host."""

    def __init__(self, compute_s: float) -> None:
        self._compute_s = compute_s

    def obstacle(self) -> Reason:
        return Reason.NONE

    def bare(self) -> bool:
        return False

    def update(self, model: Model) -> Reason:
        time.sleep(HOST_S)
        return Reason.NO_DATA

    def participant(self, model: Model) -> None:
        return None

    def patience_s(self, round_number: int) -> float:
        return 0.0

    def compute_s(self, round_number: int) -> float:
        return self._compute_s

    def crypto_s(self, work: CryptoWork) -> float:
        return 0.0


class Line:
    """Takes down at which time of the device what was said; ``moment_s`` None: it has none of its own."""

    def __init__(self, moment_s: float | None) -> None:
        self.moment_s = moment_s
        self.said: list[tuple[str, float | None]] = []
        self.noted: list[float] = []

    def tell_time(self, when_s: float) -> None:
        assert self.moment_s is not None
        self.moment_s = when_s

    def send(self, frame: bytes) -> None:
        self.said.append(("message", self.moment_s))

    def note(self, stage: int, seconds: float | None = None) -> None:
        assert stage == Stage.COMPUTE
        self.said.append(("begins" if seconds is None else "computed", self.moment_s))
        if seconds is not None:
            self.noted.append(seconds)


def on_device(line: Line, compute_s: float, within_s: float = 60.0) -> float:
    """Receive a model, compute, answer; return when that was over, seconds since the clock began."""

    async def story() -> float:
        with ThreadPoolExecutor(1) as executor:
            device = RealDevice(3, Work(compute_s), line, executor, Invite("run", 1, "task", within_s, 10))
            device.put(Model("run", 1, {}))
            model = await device.receive()
            assert isinstance(model, Model)
            await device.train(model)
            device.send(Accept("run", 1, 3))
            return asyncio.get_running_loop().time()

    return _run(story())


def _run(story: Coroutine[Any, Any, float]) -> float:
    return real_clock.run(story)


def test_what_a_late_host_does_is_said_as_of_the_devices_own_time() -> None:
    line = Line(-0.05)
    on_device(line, compute_s=0.01)
    assert line.said == [("begins", -0.05), ("computed", -0.05 + 0.01), ("message", -0.05 + 0.01)]
    assert line.noted == [pytest.approx(0.01)]


def test_a_device_is_never_sooner_than_its_profile() -> None:
    line = Line(0.0)
    assert on_device(line, compute_s=0.3) >= 0.3
    assert line.said[-1] == ("message", 0.3)


def test_without_a_time_of_its_own_it_takes_what_it_takes_here() -> None:
    line = Line(None)
    on_device(line, compute_s=0.0)
    assert [when_s for _, when_s in line.said] == [None, None, None]
    assert line.noted[0] >= 0.9 * HOST_S


def test_a_deadline_is_no_matter_of_its_own_time() -> None:
    line = Line(0.0)
    with pytest.raises(DeadlineExceededError):
        on_device(line, compute_s=30.0, within_s=0.2)
    assert line.moment_s is not None
    assert line.moment_s >= 0.2
    assert line.noted[0] >= 0.2
