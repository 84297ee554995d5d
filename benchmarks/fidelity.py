"""How near a run over real sockets comes to its simulation: the same scenario on both clocks, side by side.

    python benchmarks/fidelity.py                       everything, about ten minutes
    python benchmarks/fidelity.py --fleet still --devices 200 --cohort 100 --rounds 10 --stretch 1
    python benchmarks/fidelity.py --stretch 1 --excess 10 25 50 100    what the host adds, by devices a round

chance   phones on the networks of global_android_2024: jitter, losses, rates that change, radios that sleep
still    the same phones on one network without any of that, so slow that this host does not hold them up
emulated twenty devices in a network namespace of their own, over kernel TCP on an emulated link; skipped
         where there is no root or no /dev/net/tun

Devices are real sessions over loopback with shaped links (`recfleet run --clock real`), 50 of them, 25 a
round, with secure aggregation (secagg-plus). In the simulation connections are open, as they are over sockets
before the first round, and rounds begin at the times at which they began there, so that both meet the same
seconds of each link's changing rate. Availability is left out: over sockets it is what really happens.

Printed are the payload bytes of every device, round and stage (equal, or the exit code is 1), what session
framing adds, cohorts, the greatest difference of the final models, quantiles of the device latency (from the
invitation to the masked input) of those who completed, and of every stage, on both clocks side by side;
stages that are apart are marked. A round with secure aggregation waits for its slowest device at every stage,
so latencies are near the worst of all draws.

All devices share this host: what its loop is late, and what it takes for the cryptography of them all, is in
the latencies. So a second of the run takes four of the host's (`--stretch 4`), and this shows a quarter as
much; not with the emulated link, where the kernel has a clock of its own. `--excess` prints how much later
than simulated devices are, by how many take part in a round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import emulated_link
import numpy as np
from both_clocks import Clocked, Floats, Host, Keyed, both

from edge.core.vocabulary import Stage, label

QUANTILES = (50, 90, 95, 99)
TARGET = 0.10
"""How near p50 and p95 of the whole latency are to be."""
STAGE_QUANTILES = (50, 95)
STAGE_TARGET = 0.15
"""How near those of a stage are to be, where simulated they are above :data:`SHORT_S`."""
SHORT_S = 0.05
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


def ratios(found: Floats, expected: Floats, quantiles: tuple[int, ...]) -> list[tuple[float, float]]:
    return [(float(np.percentile(expected, q)), float(np.percentile(found, q))) for q in quantiles]


def show_latencies(real: Clocked, virtual: Clocked) -> None:
    """Print quantiles of the device latency, of all rounds and the median of each."""
    print("device latency, s          " + "".join(f"{f'p{q}':>26s}" for q in QUANTILES))
    rows = ratios(real.of_completed("latency_s"), virtual.of_completed("latency_s"), QUANTILES)
    _show_ratios("all who completed", rows)
    of_round = real.medians() / virtual.medians()
    print("  median by round, ratio   " + " ".join(f"{ratio:.2f}" for ratio in of_round))
    near = all(abs(found / expected - 1.0) <= TARGET for expected, found in (rows[0], rows[2]))
    print(f"  p50 and p95 within {TARGET:.0%}: {'yes' if near else 'NO'}")


def show_stages(real: Clocked, virtual: Clocked) -> None:
    """Print quantiles of every stage on both clocks; mark those that are apart."""
    print("stages, s                  " + "".join(f"{f'p{q}':>26s}" for q in STAGE_QUANTILES))
    print(" " * 27 + "simulated  sockets  ratio " * len(STAGE_QUANTILES))
    apart = []
    for name in map(label, Stage):
        found, expected = real.stage_spans(name), virtual.stage_spans(name)
        if not len(found) or not len(expected):
            continue
        rows = ratios(found, expected, STAGE_QUANTILES)
        off = any(e > SHORT_S and abs(f / e - 1.0) > STAGE_TARGET for e, f in rows)
        _show_ratios(name, rows, "  APART" if off else "")
        apart += [name] * off
    print(
        f"  stages above {1e3 * SHORT_S:g} ms within {STAGE_TARGET:.0%} at p50 and p95: "
        + ("NOT " + ", ".join(apart) if apart else "all")
    )


def _show_ratios(name: str, rows: list[tuple[float, float]], mark: str = "") -> None:
    cells = []
    for expected, found in rows:
        ratio = found / expected if expected else float("nan")
        cells.append(f"{expected:9.3f} {found:9.3f} {ratio:5.2f}x")
    print(f"  {name:24s} " + "".join(f"{cell:>26s}" for cell in cells) + mark)


def show_host(host: Host) -> None:
    late_ms = 1e3 * np.array(host.late_s)
    p50, p95, p99 = np.percentile(late_ms, (50, 95, 99))
    print(
        f"host     the loop was late by {p50:.1f} ms (p50), {p95:.1f} ms (p95), {p99:.0f} ms (p99), "
        f"{late_ms.max():.0f} ms (worst); links make up for that as far as they can\n"
        f"         load averages now {' '.join(f'{load:.2f}' for load in os.getloadavg())} "
        f"on {os.cpu_count()} processors"
    )


def compare(folder: Path, fleet: str, arguments: argparse.Namespace) -> bool:
    """Run one fleet on both clocks and print what came of it; return whether the bytes are equal."""
    devices, rounds, cohort = arguments.devices, arguments.rounds, arguments.cohort
    stretched = f", {arguments.stretch:g} real seconds a second" if arguments.stretch != 1.0 else ""
    print(f"\n== {fleet}: {devices} devices, {rounds} rounds of {cohort}{stretched}", flush=True)
    file = scenario(folder, fleet, devices, rounds, cohort, arguments.seed)
    began_s = time.perf_counter()
    real, virtual, host = both(folder, file, fleet, arguments.stretch)
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
    return show(*emulated_link.run(folder))


def show(real: Clocked, virtual: Clocked) -> bool:
    """Print what came of both runs; return whether the bytes are equal."""
    equal = show_bytes(real, virtual)
    show_models(real, virtual)
    show_latencies(real, virtual)
    show_stages(real, virtual)
    return equal


def excess(folder: Path, fleet: str, arguments: argparse.Namespace) -> None:
    """Print how much later than simulated devices are, by how many take part in a round."""
    print(f"\n== {fleet}: latency above the simulated one by devices a round")
    print("  a round   p50 simulated      excess    p95 simulated      excess   loop late by p95, worst")
    for cohort in arguments.excess:
        file = scenario(folder, fleet, 2 * cohort, arguments.rounds, cohort, arguments.seed)
        real, virtual, host = both(folder, file, f"{fleet}-{cohort}", arguments.stretch)
        rows = ratios(real.of_completed("latency_s"), virtual.of_completed("latency_s"), QUANTILES)
        cells = "".join(f"{e:14.3f} s {1e3 * (f - e):8.0f} ms" for e, f in (rows[0], rows[2]))
        late_ms = 1e3 * np.array(host.late_s)
        print(f"  {cohort:7d}{cells}{np.percentile(late_ms, 95):12.1f} ms {late_ms.max():.0f} ms", flush=True)


def main() -> int:
    """Compare the clocks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fleet", choices=[*FLEETS, "emulated"], help="one of them; all by default")
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cohort", type=int, default=25, help="devices a round")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument(
        "--stretch",
        type=float,
        default=4.0,
        help="real seconds that one of the run takes: the host is as much faster than what it imitates",
    )
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
