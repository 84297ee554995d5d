"""How near a run over real sockets comes to its simulation: the same scenario on both clocks, side by side.

    python benchmarks/fidelity.py                       everything, about eight minutes
    python benchmarks/fidelity.py --fleet still --rounds 3
    python benchmarks/fidelity.py --excess 10 25 50 100 what the host adds, by devices a round

chance   phones on the networks of global_android_2024: jitter, losses, rates that change, radios that sleep
still    the same phones on one network without any of that, so slow that this host does not hold them up
emulated twenty devices in a network namespace of their own, over kernel TCP on an emulated link; skipped
         where there is no root or no /dev/net/tun

Devices are real sessions over loopback with shaped links (`recfleet run --clock real`), 200 of them, 100 a
round, with secure aggregation (secagg-plus). In the simulation connections are open, as they are over sockets
before the first round, and rounds begin at the times at which they began there, so that both meet the same
seconds of each link's changing rate. Availability is left out: over sockets it is what really happens.

Printed are the payload bytes of every device, round and stage (equal, or the exit code is 1), what session
framing adds, cohorts, the greatest difference of the final models, quantiles of the device latency (from the
invitation to the masked input) of those who completed, and the seconds of every stage. A round with secure
aggregation waits for its slowest device at every stage, so latencies are near the worst of a hundred draws.
Stages are seen by the coordinator: over sockets a transfer down ends with its acknowledgement, half a round
trip later than simulated, and one up begins when its first piece arrives. Latencies do not depend on that.

All devices share this host. What its loop is late is in the latencies, and printed. `--excess` prints how
much later than simulated devices are, by how many take part in a round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import emulated_link
import numpy as np
from both_clocks import Clocked, Floats, Host, Keyed, both

from edge.vocabulary import Stage, label

QUANTILES = (50, 90, 95, 99)
TARGET = 0.10
"""How near p50 and p95 are to be."""
PROFILES = """
networks:
  still_wire:
    down: 60 kbit/s
    up: 30 kbit/s
    rtt: 600 ms
    jitter: 0 ms
    loss: 0%
    rate_sigma: 0
    rate_rho: 1
    radio: wired
    sources: assumption
"""
SCENARIO = """
format: 2
title: fidelity
seed: {seed}
data: {{source: synthetic-ratings, users: {devices}, items: 300, ratings_per_user: 30}}
fleet: {{mix: global_android_2024, availability: always_on{networks}}}
connection:
  tls: false
  keep_alive: true
  sockets: {{heartbeat: 5 min, idle_timeout: 10 min}}
learning: {{algorithm: fedrecon, factors: 8, learning_rate: 0.05, upload: dense}}
secure_aggregation:
  mode: secagg-plus
  clip: 1
  stage_deadlines: {{share_keys: 2 min, masked_input: 2 min, unmask: 2 min}}
rounds: {{count: {rounds}, cohort: {cohort}, quorum: 50%, deadline: 5 min, interval: {interval_s} s}}
evaluation: {{every: {rounds}}}
"""
FLEETS = {
    # Longer than the tails of all radios, so that they sleep at the next invitation, as simulated ones do.
    "chance": ("", 15),
    "still": (", networks: {still_wire: 100%}, profiles: [profiles.yaml]", 1),
}


def scenario(folder: Path, fleet: str, devices: int, rounds: int, cohort: int, seed: int) -> Path:
    networks, interval_s = FLEETS[fleet]
    (folder / "profiles.yaml").write_text(PROFILES)
    file = folder / f"{fleet}.yaml"
    file.write_text(
        SCENARIO.format(
            seed=seed,
            devices=devices,
            rounds=rounds,
            cohort=cohort,
            networks=networks,
            interval_s=interval_s,
        )
    )
    return file


def by_stage(found: Keyed) -> dict[tuple[str, str], int]:
    sums: defaultdict[tuple[str, str], int] = defaultdict(int)
    for (_, _, stage, direction), size in found.items():
        sums[stage, direction] += size
    return dict(sums)


def show_bytes(real: Clocked, virtual: Clocked) -> bool:
    """Print payload and framing by stage; return whether all payloads are equal."""
    print(
        "bytes                      payload, simulated      over sockets    framing, simulated  session adds"
    )
    totals = [by_stage(one) for one in (virtual.payload, real.payload, virtual.framing, real.framing)]
    for key in sorted(totals[0] | totals[1]):
        expected, found, framing, framed = (total.get(key, 0) for total in totals)
        name = f"{key[0]} {key[1]}"
        print(f"  {name:24s}{expected:20,}{found:18,}{framing:22,}{framed - framing:14,}")
    differing = [
        key
        for key in real.payload.keys() | virtual.payload.keys()
        if real.payload.get(key) != virtual.payload.get(key)
    ]
    for number, device, stage, direction in sorted(differing)[:10]:
        key = number, device, stage, direction
        print(
            f"  round {number}, device {device}, {stage} {direction}: "
            f"{virtual.payload.get(key)} simulated, {real.payload.get(key)} over sockets"
        )
    print(
        f"  {len(virtual.payload):,} payloads by round, device, stage and direction: "
        + ("all equal" if not differing else f"{len(differing):,} DIFFER")
    )
    return not differing


def show_models(real: Clocked, virtual: Clocked) -> None:
    same = real.cohorts() == virtual.cohorts()
    print(f"cohorts  {'equal' if same else 'DIFFERENT'} in {len(virtual.cohorts())} rounds")
    models = real.model(), virtual.model()
    worst = max(float(np.abs(models[0][name] - models[1][name]).max()) for name in models[1])
    print(f"model    greatest difference of an entry after the last round: {worst:.3g}")


def ratios(found: Floats, expected: Floats) -> list[tuple[float, float]]:
    return [(float(np.percentile(expected, q)), float(np.percentile(found, q))) for q in QUANTILES]


def show_latencies(real: Clocked, virtual: Clocked) -> bool:
    """Print quantiles of the device latency and the stages; return whether p50 and p95 are near enough."""
    print("device latency             " + "".join(f"{f'p{q}':>26s}" for q in QUANTILES))
    rows = ratios(real.of_completed("latency_s"), virtual.of_completed("latency_s"))
    _show_ratios("all who completed", rows)
    near = [abs(found / expected - 1.0) <= TARGET for expected, found in (rows[0], rows[2])]
    for stage in Stage:
        name = label(stage)
        spans = [
            one.of_completed(f"{name}_end_s") - one.of_completed(f"{name}_start_s") for one in (real, virtual)
        ]
        spans = [span[~np.isnan(span)] for span in spans]
        if len(spans[0]) and len(spans[1]):
            _show_ratios(f"  {name}", ratios(*spans))
    of_round = real.medians() / virtual.medians()
    print("  median by round, ratio   " + " ".join(f"{ratio:.2f}" for ratio in of_round))
    return all(near)


def _show_ratios(name: str, rows: list[tuple[float, float]]) -> None:
    cells = []
    for expected, found in rows:
        ratio = found / expected if expected else float("nan")
        cells.append(f"{expected:9.3f} {found:9.3f} {ratio:5.2f}x")
    print(f"  {name:24s} " + "".join(f"{cell:>26s}" for cell in cells))


def show_host(host: Host) -> None:
    late_ms = 1e3 * np.array(host.late_s)
    p50, p95, p99 = np.percentile(late_ms, (50, 95, 99))
    print(
        f"host     the loop was late by {p50:.1f} ms (p50), {p95:.1f} ms (p95), {p99:.0f} ms (p99), "
        f"{late_ms.max():.0f} ms (worst); links make up for that as far as they can"
    )


def compare(folder: Path, fleet: str, arguments: argparse.Namespace) -> bool:
    """Run one fleet on both clocks and print what came of it; return whether the bytes are equal."""
    devices, rounds, cohort = arguments.devices, arguments.rounds, arguments.cohort
    print(f"\n== {fleet}: {devices} devices, {rounds} rounds of {cohort}", flush=True)
    file = scenario(folder, fleet, devices, rounds, cohort, arguments.seed)
    began_s = time.perf_counter()
    real, virtual, host = both(folder, file, fleet)
    equal = show(real, virtual)
    show_host(host)
    print(f"took {time.perf_counter() - began_s:.0f} s")
    return equal


def compare_emulated(folder: Path) -> bool:
    """Run over an emulated link where that can be had; return whether the bytes are equal."""
    print("\n== emulated: kernel TCP between network namespaces")
    reason = emulated_link.missing()
    if reason is not None:
        print(f"skipped: {reason}")
        return True
    link = f"{emulated_link.DOWN_BPS / 1e6:g}/{emulated_link.UP_BPS / 1e6:g} Mbit/s"
    print(
        f"{emulated_link.DEVICES} devices, {emulated_link.ROUNDS} rounds of {emulated_link.COHORT}, "
        f"one link of {link} and {1e3 * emulated_link.RTT_S:g} ms for all",
        flush=True,
    )
    equal = show(*emulated_link.run(folder))
    print(
        "a message here fits into one window, and the link's queue serves those windows one after another;\n"
        "the simulation shares the link evenly, and all end together: medians differ, the last ones do not"
    )
    return equal


def show(real: Clocked, virtual: Clocked) -> bool:
    """Print what came of both runs; return whether the bytes are equal."""
    equal = show_bytes(real, virtual)
    show_models(real, virtual)
    near = show_latencies(real, virtual)
    print(f"p50 and p95 of the device latency within {TARGET:.0%}: {'yes' if near else 'NO'}")
    return equal


def excess(folder: Path, fleet: str, arguments: argparse.Namespace) -> None:
    """Print how much later than simulated devices are, by how many take part in a round."""
    print(f"\n== {fleet}: latency above the simulated one by devices a round")
    print("  a round   p50 simulated      excess    p95 simulated      excess   loop late by p95, worst")
    for cohort in arguments.excess:
        file = scenario(folder, fleet, 2 * cohort, arguments.rounds, cohort, arguments.seed)
        real, virtual, host = both(folder, file, f"{fleet}-{cohort}")
        rows = ratios(real.of_completed("latency_s"), virtual.of_completed("latency_s"))
        cells = "".join(f"{e:14.3f} s {1e3 * (f - e):8.0f} ms" for e, f in (rows[0], rows[2]))
        late_ms = 1e3 * np.array(host.late_s)
        print(f"  {cohort:7d}{cells}{np.percentile(late_ms, 95):12.1f} ms {late_ms.max():.0f} ms", flush=True)


def main() -> int:
    """Compare the clocks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fleet", choices=[*FLEETS, "emulated"], help="one of them; all by default")
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cohort", type=int, default=100, help="devices a round")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--excess", type=int, nargs="+", metavar="COHORT", help="cohorts to compare")
    arguments = parser.parse_args()
    fleets = [fleet for fleet in FLEETS if arguments.fleet in (None, fleet)]
    equal = True
    with tempfile.TemporaryDirectory() as folder:
        for fleet in fleets:
            if arguments.excess:
                excess(Path(folder), fleet, arguments)
            else:
                equal &= compare(Path(folder), fleet, arguments)
        if arguments.fleet in (None, "emulated") and not arguments.excess:
            equal &= compare_emulated(Path(folder))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
