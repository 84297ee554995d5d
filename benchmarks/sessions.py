"""A thousand real devices at once: server time a message, memory a session, messages a second.

    python benchmarks/sessions.py                five rounds in the clear, a minute
    python benchmarks/sessions.py --secure       with secagg-plus

Two processes talk over loopback: `recfleet serve`, and `recfleet device --count 1000 --no-shape`. One
more device, in a third, joins once memory with idle sessions has been read, and so begins the first
round. Percentiles and the longest are interpolated in the histogram of /metrics, as Prometheus does it.
The baseline is a bare aiohttp WebSocket echo server with as many connections and messages of the same
size, whose clients are in a process of their own, too; its time a message is that of sending the answer.
Exit code 1 if anything was lost.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import psutil
from aiohttp import web
from service_process import COMMAND, ENVIRONMENT, metrics, serving

from coordinator.results.tables.reader import open_run

MIB = 1 << 20
SCENARIO = """
format: 2
title: sessions
seed: 5
data: {{source: synthetic-ratings, users: {devices}, items: 500, ratings_per_user: 20}}
fleet: {{mix: global_android_2024}}
learning: {{algorithm: fedrecon, factors: 8, learning_rate: 0.05, upload: dense}}
rounds: {{count: {rounds}, cohort: {cohort}, deadline: 300 s, interval: 1 s}}
{more}
"""
SECURE = """
secure_aggregation:
  mode: secagg-plus
  clip: 1
  stage_deadlines: {share_keys: 300 s, masked_input: 300 s, unmask: 300 s}
"""
HANDLING = "recfleet_handling_seconds"
ECHO_MESSAGES = 20
"""Messages on each connection of the baseline."""


@dataclass
class Memory:
    """Resident memory of a process, read now and then."""

    process: psutil.Process
    peak_bytes: int = 0

    def read(self) -> int:
        """Return it now."""
        now = int(self.process.memory_info().rss)
        self.peak_bytes = max(self.peak_bytes, now)
        return now


@dataclass
class Measured:
    """What was measured of one server."""

    before_bytes: int
    idle_bytes: int
    peak_bytes: int
    p50_s: float
    p99_s: float
    longest_s: float
    messages: int
    seconds: float
    problems: list[str] = field(default_factory=list)


def quantile(samples: dict[str, float], name: str, part: float) -> float:
    """Return a quantile of a histogram, linear between its bounds."""
    pattern = re.compile(rf'{name}_bucket{{le="([^"]+)"}}')
    found = [(float(m[1]), number) for key, number in samples.items() if (m := pattern.fullmatch(key))]
    found.sort()
    wanted, below_s, below = part * found[-1][1], 0.0, 0.0
    for bound_s, number in found:
        if number >= wanted:
            if bound_s == float("inf"):
                return below_s
            return below_s + (bound_s - below_s) * (wanted - below) / (number - below)
        below_s, below = bound_s, number
    raise ValueError(f"{name} is empty")


async def watch(service_url: str, process: subprocess.Popen, start_last: list[str], wanted: int) -> tuple:
    """Watch the service until its end; return its memory before and when idle, the peak, the last metrics."""
    memory = Memory(psutil.Process(process.pid))
    before = memory.read()
    idle = 0
    last: dict[str, float] = {}
    last_device: subprocess.Popen | None = None
    devices = subprocess.Popen(
        [*COMMAND, "device", service_url, "--count", str(wanted), "--no-shape"],
        env=ENVIRONMENT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as http:
            while process.poll() is None and devices.poll() is None:
                try:
                    last = await metrics(http, service_url)
                except (OSError, aiohttp.ClientError):
                    break
                memory.read()
                if last_device is None and last.get('recfleet_sessions{state="connected"}', 0) >= wanted:
                    await asyncio.sleep(2.0)
                    idle = memory.read()
                    last_device = subprocess.Popen(start_last, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
                await asyncio.sleep(0.1)
        output, _ = devices.communicate(timeout=120)
        if last_device is not None:
            last_device.wait(120)
    finally:
        for one in (devices, last_device):
            if one is not None and one.poll() is None:
                one.kill()
    return before, idle, memory.peak_bytes, last, output


def measure_service(devices: int, rounds: int, *, secure: bool) -> tuple[Measured, int]:
    """Measure a run; return also the mean bytes of a message."""
    scenario = SCENARIO.format(
        devices=devices + 1, cohort=devices, rounds=rounds, more=SECURE if secure else ""
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with serving(folder, scenario, "--wait-for", str(devices + 1)) as service:
            last = [*COMMAND, "device", service.url, "--id", str(devices), "--no-shape"]
            before, idle, peak, samples, output = asyncio.run(
                watch(service.url, service.process, last, devices)
            )
            code = service.process.wait(120)
        if code:
            raise SystemExit(f"the service ended with {code}:\n{(folder / 'serve.err').read_text()}")
        run = open_run(folder / "run")
        table = run.read("rounds").to_pylist()
        events = run.read("events", ["direction", "payload_bytes", "framing_bytes"]).to_pydict()
    directions = Counter(events["direction"])
    sent = directions["up"] + directions["down"]
    size = (sum(events["payload_bytes"]) + sum(events["framing_bytes"])) // sent
    problems = [
        f"round {row['round']}: {row['outcome']}, {row['completed']} of {devices}"
        for row in table
        if (row["outcome"], row["completed"]) != ("completed", devices)
    ]
    for name in ("recfleet_connections_broken_total", "recfleet_sessions_resumed_total"):
        if samples[name]:
            problems.append(f"{name} is {samples[name]:.0f}")
    if f"{devices} of {devices} devices: goodbye (the run is over)" not in output:
        problems.append(f"the devices say: {output}")
    measured = Measured(
        before, idle, peak,
        quantile(samples, HANDLING, 0.5), quantile(samples, HANDLING, 0.99), quantile(samples, HANDLING, 1.0),
        sent, sum(row["duration_s"] for row in table), problems,
    )  # fmt: skip
    return measured, size


# -- the baseline ------------------------------------------------------------------------------------------


async def echo() -> None:
    """Echo until a connection to /end; print the port, and then the times of all messages."""
    taken: list[float] = []
    over = asyncio.Event()

    async def join(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=1 << 20)
        await socket.prepare(request)
        async for message in socket:
            started_s = time.perf_counter()
            await socket.send_bytes(message.data)
            taken.append(time.perf_counter() - started_s)
        return socket

    async def end(request: web.Request) -> web.Response:
        over.set()
        return web.json_response(np.percentile(taken, [50, 99, 100]).tolist())

    app = web.Application()
    app.router.add_get("/v1/join", join)
    app.router.add_get("/end", end)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await over.wait()
    await asyncio.sleep(0.5)


async def echo_clients(url: str, number: int, size: int) -> None:
    """Open the connections, say so, and once a line comes send messages on all of them at once."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        sockets = [await http.ws_connect(url + "/v1/join", compress=0) for _ in range(number)]
        print("connected", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        data = os.urandom(size)

        async def talk(socket: aiohttp.ClientWebSocketResponse) -> None:
            for _ in range(ECHO_MESSAGES):
                await socket.send_bytes(data)
                await socket.receive()

        started_s = time.perf_counter()
        await asyncio.gather(*map(talk, sockets))
        print(time.perf_counter() - started_s, flush=True)
        await asyncio.gather(*(socket.close() for socket in sockets))


@contextmanager
def itself(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a part of the baseline in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments],
        env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def measure_echo(connections: int, size: int) -> Measured:
    """Measure the baseline."""
    with itself("--echo") as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        memory = Memory(psutil.Process(server.pid))
        before = memory.read()
        with itself("--echo-clients", url, str(connections), str(size)) as clients:
            assert clients.stdout is not None
            assert clients.stdin is not None
            clients.stdout.readline()
            time.sleep(2.0)
            idle = memory.read()
            clients.stdin.write("go\n")
            clients.stdin.flush()
            seconds = float(clients.stdout.readline())
            memory.read()
            clients.wait(60)

        async def percentiles() -> list[float]:
            async with aiohttp.ClientSession() as http, http.get(url + "/end") as answer:
                return await answer.json()

        p50_s, p99_s, longest_s = asyncio.run(percentiles())
    return Measured(
        before, idle, memory.peak_bytes, p50_s, p99_s, longest_s, 2 * connections * ECHO_MESSAGES, seconds
    )


def table(devices: int, service: Measured, baseline: Measured) -> Iterator[str]:
    """Yield the lines of the table."""

    def line(name: str, unit: str, figures: tuple[float, float]) -> str:
        ratio = figures[0] / figures[1] if figures[1] else float("nan")
        return f"{name:<34} {figures[0]:>12,.3f} {figures[1]:>12,.3f} {ratio:>8.2f}  {unit}"

    both = service, baseline
    yield f"{'':<34} {'recfleet':>12} {'echo':>12} {'ratio':>8}"
    yield line("handling p50", "ms", tuple(1e3 * one.p50_s for one in both))
    yield line("handling p99", "ms", tuple(1e3 * one.p99_s for one in both))
    yield line("handling, the longest", "ms", tuple(1e3 * one.longest_s for one in both))
    yield line("messages a second, both ways", "", tuple(one.messages / one.seconds for one in both))
    yield line("RSS without sessions", "MiB", tuple(one.before_bytes / MIB for one in both))
    yield line(f"RSS with {devices} idle sessions", "MiB", tuple(one.idle_bytes / MIB for one in both))
    yield line("RSS at its peak", "MiB", tuple(one.peak_bytes / MIB for one in both))
    each = tuple((one.idle_bytes - one.before_bytes) / devices / 1024 for one in both)
    yield line("RSS of an idle session", "KiB", each)
    yield f"{service.messages:,} messages in {service.seconds:.1f} s of rounds; lost: {len(service.problems)}"
    yield from service.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secure", action="store_true", help="sum securely, by secagg-plus")
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--echo-clients", nargs=3, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.echo:
        asyncio.run(echo())
        return 0
    if wanted.echo_clients:
        url, number, size = wanted.echo_clients
        asyncio.run(echo_clients(url, int(number), int(size)))
        return 0
    service, size = measure_service(wanted.devices, wanted.rounds, secure=wanted.secure)
    baseline = measure_echo(wanted.devices, size)
    print(f"{wanted.devices} devices, {wanted.rounds} rounds, messages of {size:,} bytes in the mean")
    for line in table(wanted.devices, service, baseline):
        print(line)
    return 1 if service.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
