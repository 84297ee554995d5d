"""What secure aggregation costs: CPU beside its floor, memory, and bytes.

    python benchmarks/secagg.py                    all cases, about a minute
    python benchmarks/secagg.py hundred upload     some of them

hundred    n = 100, L = 100,000, k = 30, t = 21, with 0, 5 and 10 devices lost after they shared: CPU of the
           whole protocol beside the floor (its key exchanges and expand-and-add, timed in this process)
complete   the same on the complete graph, t = 67
thousand   n = 1,000, L = 100,000, k = 48, t = 27, with 0, 5 and 10 % lost: CPU a device, of the coordinator
memory     the peak that the protocol adds to its inputs, in vectors of L elements
upload     bytes a device sends against n, as its frames have them, and the expansion over plain float32

Rounds run as simulations run them: what both ends of a pair compute is computed once. `apart` is a round in
which each device computes its own, as on the real clock; so does the floor.

Times are process CPU, medians of several rounds. Frames are measured and not encoded: both machines get the
messages themselves. The sum of every timed round is compared with the sum of the inputs in the clear.
`python benchmarks/peers/measure.py flwr-secagg` runs the round of `hundred` with Flower's SecAgg+.
"""

import argparse
import statistics
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from coordinator.secure.secagg.oracle import Oracle
from coordinator.secure.secagg.server import SecAggServer
from edge.crypto.entropy import SystemEntropy
from edge.crypto.keys import KeyPair
from edge.crypto.prg import SEED_BYTES, add_all_expanded
from edge.secagg.client import SecAggClient
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.cryptography import REAL
from edge.secagg.graph import GraphParameters
from edge.secagg.states import COORDINATOR_FINAL, CoordinatorState
from edge.wire.codec import measure
from edge.wire.messages import FromCoordinator

ENTROPY = SystemEntropy()
MODEL_HASH = bytes(32)
PUBLISHED_USERS, PUBLISHED_ENTRIES = 1 << 10, 1 << 20


@dataclass
class Round:
    """What one round took."""

    device_s: float = 0.0
    """CPU of all devices together."""
    coordinator_s: float = 0.0
    sent_bytes: Counter[str] = field(default_factory=Counter)
    """By type of message: frames of the device with the lowest id."""
    total: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))
    """The sum in the ring."""

    @property
    def total_s(self) -> float:
        """CPU of both sides."""
        return self.device_s + self.coordinator_s


def configuration(n: int, length: int, parameters: GraphParameters | None = None) -> SecAggConfig:
    return SecAggConfig((RealPart("update", length, 1.0),), n_max=n, parameters=parameters, unsafe=True)


def play(
    config: SecAggConfig,
    n: int,
    lost: int,
    values: np.ndarray,
    *,
    watch: Oracle | None = None,
    apart: bool = False,
) -> Round:
    """Run one round over ``n`` devices, the last ``lost`` of which go away after sharing."""
    taken = Round()
    crypto = REAL if apart else REAL.of_simulated_round()
    clock = time.process_time
    devices = range(n)
    clients = {
        device: SecAggClient(
            config,
            device=device,
            run_id="run",
            round_number=1,
            model_hash=MODEL_HASH,
            entropy=ENTROPY,
            crypto=crypto,
        )
        for device in devices
    }
    server = SecAggServer(
        config, run_id="run", round_number=1, model_hash=MODEL_HASH, devices=devices, crypto=crypto
    )
    inbox: list[tuple[int, FromCoordinator]] = []

    def device_does(device: int, act: Callable[[], object]) -> None:
        start_s = clock()
        message = act()
        taken.device_s += clock() - start_s
        if message is None:
            return
        if device == 0:
            taken.sent_bytes[type(message).__name__] += measure(message)[0]
        if server.state in COORDINATOR_FINAL:
            return  # unmasking needs t answers; the others come in vain
        start_s = clock()
        step = server.receive(device, message)
        taken.coordinator_s += clock() - start_s
        if step.refused is not None:
            raise step.refused
        inbox.extend(step.send)

    def deliver() -> None:
        arrived, inbox[:] = inbox[:], []
        for device, message in arrived:
            device_does(device, lambda c=clients[device], m=message: c.receive(m))

    for device in devices:
        device_does(device, clients[device].advertise)
    deliver()
    deliver()
    note = None if watch is None else watch.watch
    for device in devices[: n - lost]:
        device_does(device, lambda c=clients[device]: c.contribute({"update": values}, watch=note))
    start_s = clock()
    for device in devices[n - lost :]:
        inbox.extend(server.lost(device).send)
    taken.coordinator_s += clock() - start_s
    deliver()
    if server.state is not CoordinatorState.DONE or server.result is None:
        raise SystemExit(f"the round did not end in a sum: {server.failure}")
    if server.result.contributors != n - lost:
        raise SystemExit(f"{server.result.contributors} contributors instead of {n - lost}")
    if watch is not None and watch.sum_error(server.result.total, server.result.survivors.tolist()):
        raise SystemExit("the sum is not the sum of the inputs")
    taken.total = server.result.total
    return taken


def unit_costs(config: SecAggConfig, masks: int) -> tuple[float, float]:
    """Return CPU seconds of one key exchange, and of one mask expanded and added to a vector."""
    own, others = KeyPair.generate(ENTROPY), [KeyPair.generate(ENTROPY).public for _ in range(500)]
    start_s = time.process_time()
    for public in others:
        own.agree(public)
    exchange_s = (time.process_time() - start_s) / len(others)
    vector = config.ring.zeros(config.length)
    seeds = [ENTROPY.bytes(SEED_BYTES) for _ in range(masks)]
    start_s = time.process_time()
    for _ in range(20):
        add_all_expanded(vector, seeds[::2], seeds[1::2])
    return exchange_s, (time.process_time() - start_s) / (20 * masks)


def floor_s(n: int, lost: int, k: int, units: tuple[float, float]) -> float:
    """Return what no implementation of the protocol can do without: key exchanges, and masks made and added.

    A device exchanges two keys with each neighbour, one of them only if it contributes, and adds k + 1 masks.
    The coordinator makes the masks of the survivors, and those between each lost device and its neighbours.
    """
    exchange_s, mask_s = units
    alive = n - lost
    exchanges = n * k + alive * k + lost * k * alive / n
    masks = alive * (k + 1) + alive + lost * k * alive / n
    return exchanges * exchange_s + masks * mask_s


def speed(n: int, length: int, parameters: GraphParameters, losses: list[int], repeats: int) -> None:
    config = configuration(n, length, parameters)
    values = np.random.default_rng(1).normal(0, 0.1, length).astype(np.float32)
    k, t = parameters
    print(f"n = {n}, L = {length:,}, k = {k}, t = {t}: CPU seconds, medians of {repeats}")
    print("  lost    whole    floor   ratio  devices  a device  coordinator    apart   ratio")
    for lost in losses:
        # Contributors' vectors are kept for the comparison: it has a round of its own.
        play(config, n, lost, values, watch=Oracle(config))
        rounds, apart, floors = [], [], []
        for _ in range(repeats):
            before = unit_costs(config, k + 1)
            rounds.append(play(config, n, lost, values))
            apart.append(play(config, n, lost, values, apart=True))
            after = unit_costs(config, k + 1)
            floors += [floor_s(n, lost, k, before), floor_s(n, lost, k, after)]
        whole_s = statistics.median(r.total_s for r in rounds)
        device_s = statistics.median(r.device_s for r in rounds)
        coordinator_s = statistics.median(r.coordinator_s for r in rounds)
        apart_s = statistics.median(r.total_s for r in apart)
        least_s = statistics.median(floors)
        print(
            f"{lost:>6} {whole_s:>8.3f} {least_s:>8.3f} {whole_s / least_s:>7.2f} {device_s:>8.3f}"
            f" {device_s / n * 1e3:>6.2f} ms {coordinator_s:>10.3f} s"
            f" {apart_s:>7.3f} {apart_s / least_s:>7.2f}",
            flush=True,
        )


def hundred() -> None:
    speed(100, 100_000, GraphParameters(30, 21), [0, 5, 10], 5)


def complete() -> None:
    speed(100, 100_000, GraphParameters(99, 67), [0, 10], 3)


def thousand() -> None:
    speed(1_000, 100_000, GraphParameters(48, 27), [0, 50, 100], 1)


def memory() -> None:
    print("peak memory beside the inputs, in vectors of L 32-bit elements (10 % lost)")
    for n, length in ((20, 1_000_000), (60, 1_000_000), (20, 4_000_000)):
        config = configuration(n, length)
        values = np.random.default_rng(1).normal(0, 0.1, length).astype(np.float32)
        tracemalloc.start()
        play(config, n, n // 10, values)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"  n = {n:>3}, L = {length:>9,}: {peak / (4 * length):.2f}", flush=True)


def upload() -> None:
    length = 1_000
    print("bytes that a device sends, semi-honest, 10 % corrupt and 10 % lost allowed for")
    print(f"     n     k     t  4·L beside  a neighbour  over plain at L = {PUBLISHED_ENTRIES:,}")
    for n in (10, 50, 100, 300, PUBLISHED_USERS):
        config = configuration(n, length)
        k, t = config.graph(n)
        values = np.zeros(length, np.float32)
        sent = play(config, n, 0, values).sent_bytes
        beside = sum(sent.values()) - 4 * length
        expansion = (4 * PUBLISHED_ENTRIES + beside) / (4 * PUBLISHED_ENTRIES)
        print(
            f"{n:>6} {k:>5} {t:>5} {beside:>9} B {beside / k:>10.1f} B {expansion:>12.4f} ×"
            f"   {', '.join(f'{name} {size}' for name, size in sent.items())}",
            flush=True,
        )
    print(
        f"published for {PUBLISHED_USERS:,} users and {PUBLISHED_ENTRIES:,} entries (Bonawitz et al. 2017):"
        " 1.73 ×, of 16-bit entries on the complete graph"
    )


CASES = {function.__name__: function for function in (hundred, complete, thousand, memory, upload)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure secure aggregation.")
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"which of {', '.join(CASES)}; all by default"
    )
    chosen = parser.parse_args().cases or list(CASES)
    unknown = sorted(set(chosen) - set(CASES))
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; choose from {', '.join(CASES)}")
    for number, name in enumerate(chosen):
        if number:
            print()
        CASES[name]()


if __name__ == "__main__":
    main()
