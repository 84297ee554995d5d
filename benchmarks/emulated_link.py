"""A run across two network namespaces over an emulated link, for `fidelity.py`.

The coordinator lives in one namespace and all devices in another; between them are two TUN interfaces, and a
process that carries packets from one to the other: at a rate, through queues of limited bytes in which
connections take turns, late by half a round trip. Devices are not shaped, so everything that TCP does here is
the kernel's. In the simulation the link is the coordinator's own, which all devices share. Needs root,
/dev/net/tun, `ip` and `sysctl`.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from both_clocks import Clocked, Quiet, SettledTime, simulated

from coordinator.run.assembling import assemble
from coordinator.run.runner import run_assembled
from coordinator.scenario.load import load
from coordinator.service.admission.gate import Gate
from coordinator.service.admission.limits import ArrivalLimits

DOWN_BPS, UP_BPS, RTT_S = 4e6, 2e6, 0.4
"""Of the link, from the coordinator to the devices and back."""
QUEUE_BYTES = 256 * 1024
DEVICES, COHORT, ROUNDS = 20, 10, 6
_COORDINATOR, _DEVICE = "10.9.0.1", "10.9.0.2"
_PORT = 8080
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PACKET_BYTES = 2048
_ADDRESSES_AND_PORTS = slice(12, 24)
"""Of an IPv4 packet without options that carries TCP: what tells connections apart."""
SCENARIO = f"""
format: 2
title: fidelity over an emulated link
seed: 11
data: {{source: synthetic-ratings, users: {DEVICES}, items: 300, ratings_per_user: 30}}
fleet: {{devices: {{host_device: 100%}}, networks: {{emulated_wire: 100%}}, profiles: [PROFILES]}}
connection: {{tls: false, keep_alive: true, congestion: reno}}
coordinator: {{down_rate: {UP_BPS / 1e6} Mbit/s, up_rate: {DOWN_BPS / 1e6} Mbit/s}}
learning: {{algorithm: fedrecon, factors: 8, learning_rate: 0.05, upload: dense}}
secure_aggregation: {{mode: secagg-plus, clip: 1}}
rounds: {{count: {ROUNDS}, cohort: {COHORT}, quorum: 50%, deadline: 1 min, interval: 1 s}}
evaluation: {{every: {ROUNDS}}}
"""
PROFILES = f"""
devices:
  host_device:
    example: as fast as the host, nearly
    flops_1_thread: 2 GFLOP/s
    flops_all_threads: 2 GFLOP/s
    memory_rate: 10 GB/s
    ram: 1 GiB
    op_overhead: 0 us
    active_power: 4 W
    compute_sigma: 0
    thermal: none
    crypto: host_core
    sources: assumption
crypto:
  host_core:
    key_pair: 0.05 ms
    key_exchange: 0.05 ms
    seal: 0.02 ms
    sign: 0.05 ms
    verify: 0.1 ms
    expand_rate: 500 MB/s
    quantise_rate: 100 Mop/s
    share_rate: 10 Mop/s
    ckks_encrypt: 40 ms
    ckks_decrypt: 20 ms
    sources: assumption
networks:
  emulated_wire:
    down: {DOWN_BPS / 1e6} Mbit/s
    up: {UP_BPS / 1e6} Mbit/s
    rtt: {RTT_S * 1e3} ms
    jitter: 0 ms
    loss: 0%
    rate_sigma: 0
    rate_rho: 1
    radio: wired
    sources: assumption
"""


def missing() -> str | None:
    """Return why nothing can be run over an emulated link here; None: it can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun cannot be opened"
    if shutil.which("ip") is None:
        return "there is no 'ip' (iproute2)"
    if shutil.which("sysctl") is None:
        return "there is no 'sysctl' (procps)"
    try:
        os.close(_tun(f"fdt{os.getpid()}"))
    except OSError as error:
        return f"no TUN interface can be made: {error.strerror}"
    name = f"fidelity-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no network namespace can be made: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _tun(name: str) -> int:
    """Return the descriptor of a new TUN interface."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return descriptor


@dataclass
class Way:
    """One direction of the link: packets come from ``source`` and go to ``target``.

    Connections take turns, as with Linux's ``fq``: each has an even share of the link, whatever it queues.
    """

    source: int
    target: int
    rate_bps: float
    free_s: float = 0.0
    """When the last byte of what has begun to leave will have left."""

    def __post_init__(self) -> None:
        self._queues: dict[bytes, deque[bytes]] = {}
        """Packets that wait, by connection; the first connection is the next one."""
        self._queued_bytes = 0
        self._flying: deque[tuple[float, bytes]] = deque()

    def take(self) -> None:
        """Queue what has come, or drop it where the queue is full."""
        while True:
            try:
                packet = os.read(self.source, _PACKET_BYTES)
            except BlockingIOError:
                return
            if self._queued_bytes + len(packet) > QUEUE_BYTES:
                continue
            if not self._queues:
                self.free_s = max(self.free_s, time.monotonic())
            self._queues.setdefault(packet[_ADDRESSES_AND_PORTS], deque()).append(packet)
            self._queued_bytes += len(packet)

    def deliver(self) -> float:
        """Let leave and arrive what is due; return for how long nothing will be, seconds."""
        now_s = time.monotonic()
        while self._queues and self.free_s <= now_s:
            connection = next(iter(self._queues))
            waiting = self._queues.pop(connection)
            packet = waiting.popleft()
            if waiting:
                self._queues[connection] = waiting
            self._queued_bytes -= len(packet)
            self.free_s += 8.0 * len(packet) / self.rate_bps
            self._flying.append((self.free_s + 0.5 * RTT_S, packet))
        while self._flying and self._flying[0][0] <= now_s:
            os.write(self.target, self._flying.popleft()[1])
        due_s = [self.free_s] if self._queues else []
        due_s += [self._flying[0][0]] if self._flying else []
        return max(0.0, min(due_s) - time.monotonic()) if due_s else 1.0


def emulate(server: str, device: str) -> None:
    """Make two TUN interfaces; from a line of standard input to its end, carry packets between them."""
    ends = _tun(server), _tun(device)
    ways = Way(ends[0], ends[1], DOWN_BPS), Way(ends[1], ends[0], UP_BPS)
    poll = select.epoll()
    for descriptor in (*ends, sys.stdin.fileno()):
        poll.register(descriptor, select.EPOLLIN)
    print("ready", flush=True)
    # An interface that is not up yet takes no packets, and the other one sends some as soon as it is.
    sys.stdin.readline()
    while True:
        wait_s = min(way.deliver() for way in ways)
        for descriptor, _ in poll.poll(wait_s):
            if descriptor == sys.stdin.fileno():
                return
            ways[ends.index(descriptor)].take()


@contextmanager
def _namespaces() -> Iterator[tuple[str, str]]:
    """Make two namespaces and the link between them; yield their names."""
    number = os.getpid()
    names = f"fidelity-c-{number}", f"fidelity-d-{number}"
    interfaces = f"fdc{number}", f"fdd{number}"
    with ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
        emulator = subprocess.Popen(
            [sys.executable, __file__, "emulate", *interfaces], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        stack.callback(emulator.wait)
        assert emulator.stdin is not None
        assert emulator.stdout is not None
        stack.callback(emulator.stdin.close)
        if emulator.stdout.readline() != b"ready\n":
            raise SystemExit("the emulator of the link did not start")
        for name, interface, own, other in (
            (names[0], interfaces[0], _COORDINATOR, _DEVICE),
            (names[1], interfaces[1], _DEVICE, _COORDINATOR),
        ):
            _ip("link", "set", interface, "netns", name)
            _ip("-n", name, "addr", "add", own, "peer", other, "dev", interface)
            _ip("-n", name, "link", "set", interface, "mtu", "1500", "up")
            # A setting of the namespace, and as in the scenario: reno is allowed everywhere.
            _ip("netns", "exec", name, "sysctl", "-q", "net.ipv4.tcp_congestion_control=reno")
        emulator.stdin.write(b"go\n")
        emulator.stdin.flush()
        yield names


def coordinate(scenario: str, target: str) -> None:
    """Run a scenario with the devices that join at the coordinator's end of the link."""
    loaded = load(Path(scenario))
    assembly = assemble(loaded)
    limits = ArrivalLimits(
        connections=DEVICES,
        connections_per_address=DEVICES,
        arrivals_per_s=1e3,
        arrivals_per_s_per_address=1e3,
    )
    conductor = SettledTime(
        host=_COORDINATOR,
        port=_PORT,
        wait_for=assembly.fleet.n,
        admission=Gate(limits=limits, local=False),
        listening=lambda _url: print("ready", flush=True),
    )
    run_assembled(loaded, assembly, target=Path(target), observer=Quiet(), conductor=conductor)


def run(folder: Path) -> tuple[Clocked, Clocked]:
    """Run the scenario across namespaces, and simulate it."""
    profiles, file, target = (folder / name for name in ("emulated.yaml", "emulated-link.yaml", "emulated"))
    profiles.write_text(PROFILES)
    # Devices in another process look the file up as it is written there.
    file.write_text(SCENARIO.replace("PROFILES", str(profiles)))
    with _namespaces() as (coordinator, device):
        conducting = subprocess.Popen(
            ["ip", "netns", "exec", coordinator, sys.executable, __file__, "coordinate", file, target],
            stdout=subprocess.PIPE,
        )
        assert conducting.stdout is not None
        try:
            if conducting.stdout.readline() != b"ready\n":
                raise SystemExit("the coordinator did not start")
            url = f"http://{_COORDINATOR}:{_PORT}"
            subprocess.run(
                [
                    *("ip", "netns", "exec", device, sys.executable, "-m", "coordinator.cli", "device", url),
                    *("--count", str(DEVICES), "--no-shape", "--insecure"),
                    *("--memory", str(folder / "memory")),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            if conducting.wait():
                raise SystemExit("the coordinator failed")
        finally:
            conducting.kill()
    real = Clocked(target)
    return real, simulated(file, folder / "emulated-virtual", real)


if __name__ == "__main__":
    {"emulate": emulate, "coordinate": coordinate}[sys.argv[1]](*sys.argv[2:])
