"""Shaped devices are as slow as their profiles: measured latencies are near the simulated ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from service_helpers import SMALL, Silent, loaded_text, payloads, rows_of, run_real, run_virtual

from coordinator.engine.assembly import Assembly
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_assembled
from coordinator.scenario.load import LoadedScenario
from coordinator.service.conducting import RealTime
from coordinator.service.hooks import ServiceObserver
from coordinator.service.local_devices import LocalDevices
from edge.network.loss import TransferFailedError
from edge.network.shaping import ShapedLink

SLOW = SMALL.replace("users: 12, items: 40", "users: 6, items: 400").replace("count: 3", "count: 2")
FICKLE = """
networks:
  fickle_wire:
    down: 2 Mbit/s
    up: 1 Mbit/s
    rtt: 40 ms
    jitter: 30 ms
    loss: 5%
    rate_sigma: 0.8
    rate_rho: 0.8
    outage: {fraction: 20%, mean: 300 ms}
    radio: wired
    sources: assumption
"""


FRAMES = 30
"""More than a device sends and is sent in a round, acknowledgements included, one after the other."""


class Lateness(ServiceObserver):
    """Measures by how much this host is late with a timer, from the first device that joins on."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._watched = False

    def on_join(self, device: int) -> None:
        if not self._watched:
            self._watched = True
            self._look(asyncio.get_running_loop().time())

    def _look(self, due_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.worst_s = max(self.worst_s, loop.time() - due_s)
        loop.call_later(0.01, self._look, loop.time() + 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "secagg-plus"])
def test_latencies_are_near_the_simulated_ones(tmp_path: Path, mode: str) -> None:
    clip = "" if mode == "off" else ", clip: 1"
    loaded = loaded_text(tmp_path, SLOW + f"secure_aggregation: {{mode: {mode}{clip}}}\n")
    lateness = Lateness()
    real = run_real(loaded, tmp_path / "real", shaped=True, observer=lateness)
    virtual = run_virtual(loaded, tmp_path / "virtual")
    # In the first round of a simulation connections are set up; real devices have joined before.
    found, expected = (
        sorted(row["latency_s"] for row in rows_of(run, "device_rounds") if row["round"] == 2)
        for run in (real, virtual)
    )
    assert len(found) == len(expected) == 6
    # A shaped device is never faster than its profile; how much slower depends on how late this host is with
    # each of the frames of a round.
    for measured, simulated in zip(found, expected, strict=True):
        assert 0.99 * simulated < measured < 2 * simulated + FRAMES * lateness.worst_s


def fickle(folder: Path, rounds: int) -> LoadedScenario:
    """Return a scenario whose links have everything that chance does to one.

    The pause between rounds is much longer than a receipt takes.
    """
    (folder / "fickle.yaml").write_text(FICKLE)
    text = SMALL.replace("ideal_wire", "fickle_wire").replace("profiles: [", "profiles: [fickle.yaml, ")
    text = text.replace("count: 3", f"count: {rounds}").replace("interval: 0.2 s", "interval: 3 s")
    return loaded_text(folder, text + "secure_aggregation: {mode: secagg-plus, clip: 1}\n")


def cohorts(rows: list[dict[str, object]]) -> set[tuple[object, object]]:
    return {(row["round"], row["device"]) for row in rows}


@pytest.mark.slow
def test_chance_on_the_links_changes_neither_bytes_nor_cohorts(tmp_path: Path) -> None:
    loaded = fickle(tmp_path, 2)
    real, virtual = (
        run_real(loaded, tmp_path / "real", shaped=True),
        run_virtual(loaded, tmp_path / "virtual"),
    )
    assert payloads(real) == payloads(virtual)
    assert cohorts(rows_of(real, "device_rounds")) == cohorts(rows_of(virtual, "device_rounds"))
    assert {row["outcome"] for row in rows_of(real, "device_rounds")} == {"completed"}
    # No message of a shaped device is faster than half a round trip there and half one back.
    assert min(row["latency_s"] for row in rows_of(real, "device_rounds")) > 4 * 0.04


class Resumes(ServiceObserver):
    """Counts what breaks and what goes on."""

    def __init__(self) -> None:
        self.breaks = self.resumes = 0

    def on_disconnect(self, device: int, why: str) -> None:
        self.breaks += 1

    def on_resume(self, device: int) -> None:
        self.resumes += 1


@pytest.mark.slow
@pytest.mark.parametrize("way", ["came", pytest.param("sent", marks=pytest.mark.slow)])
def test_a_connection_that_tcp_gives_up_breaks_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    loaded = fickle(tmp_path, 1)
    carried = getattr(ShapedLink, way)
    times: dict[ShapedLink, int] = {}

    def gives_up(link: ShapedLink, data: bytes, now_s: float) -> float:
        times[link] = times.get(link, 0) + 1
        if times[link] == 9:
            raise TransferFailedError("the link was down", after_s=0.05)
        arrival_s: float = carried(link, data, now_s)
        return arrival_s

    monkeypatch.setattr(ShapedLink, way, gives_up)
    watcher = Resumes()

    @asynccontextmanager
    async def company(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        devices = LocalDevices(url, range(assembly.fleet.n), shaped=True, known=(loaded, assembly))
        async with asyncio.TaskGroup() as group:
            group.create_task(devices.run())
            yield

    assembly = assemble(loaded)
    conductor = RealTime(wait_for=assembly.fleet.n, company=company, observer=watcher)
    real = run_assembled(loaded, assembly, target=tmp_path / "real", observer=Silent(), conductor=conductor)
    virtual = run_virtual(loaded, tmp_path / "virtual")
    assert watcher.resumes > 0
    assert watcher.breaks == watcher.resumes
    assert payloads(real) == payloads(virtual)
    assert {row["outcome"] for row in rows_of(real, "device_rounds")} == {"completed"}
