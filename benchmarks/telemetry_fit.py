"""How well profiles are recovered from telemetry: known networks, simulated and fitted.

    python benchmarks/telemetry_fit.py networks            known networks at 200, 2,000 and 20,000 transfers
    python benchmarks/telemetry_fit.py coverage            how often 95 % intervals hold the truth
    python benchmarks/telemetry_fit.py scenario            a scenario under the true and the fitted fleet
    python benchmarks/telemetry_fit.py traces FILE…        recorded links: Mahimahi, or CSV of s,Mbit/s

Traces are not shipped; those of Mahimahi (github.com/ravinet/mahimahi, ``traces``) will do.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.results.tables.reader import open_run
from device_profiles.traces import RateTrace
from edge.core.vocabulary import Direction
from edge.fitting.links import FittedValue, LinkFit, LinkPrior, Transfers, fit_link
from edge.fitting.rates import RateSpread
from edge.fitting.replay import fit_corrected, ks_distance, replay, simulated
from edge.network.conditions import LinkConditions
from edge.network.playback import TracePlayback

Floats = npt.NDArray[np.float64]

WRONG = LinkPrior(10e6, 4e6, 0.05, 0.01, 0.002, RateSpread(0.0, 0.0, 0.36, 0.8, 60.0), 0.0, 5.0, 0.3, 1.0)
"""What every fit begins from: no network of those below."""
SIZES = (10_000, 100_000, 1_000_000)


def network(
    down: float, up: float, rtt: float, jitter: float, loss: float, sigma: float, rho: float, *,
    slow: tuple[float, float] = (0.0, 60.0), device: float = 0.0, outage: tuple[float, float] = (0.0, 1.0),
    promotion: float = 0.0,
) -> LinkFit:  # fmt: skip
    values = {
        "down_bps": down, "up_bps": up, "rtt_s": rtt, "jitter_s": jitter, "loss": loss, "rate_sigma": sigma,
        "rate_rho": rho, "slow_sigma": slow[0], "slow_time_s": slow[1], "device_sigma": device,
        "outage_fraction": outage[0], "outage_mean_s": outage[1], "promotion_s": promotion,
    }  # fmt: skip
    return LinkFit({name: FittedValue(value) for name, value in values.items()}, 0, 0)


TRUTHS = {
    "wifi_home": network(84e6, 38e6, 0.020, 0.005, 0.002, 0.5, 0.9),
    "4g_uk": network(29.5e6, 7.6e6, 0.021, 0.005, 0.001, 0.6, 0.8, promotion=0.26),
    "3g_slow": network(0.4e6, 0.4e6, 0.4, 0.06, 0.01, 0.95, 0.85, promotion=2.0),
    "4g_driving": network(5.2e6, 0.84e6, 0.08, 0.02, 0.002, 0.69, 0.87, outage=(0.036, 5.6), promotion=0.26),
    "4g_people": network(
        20e6, 6e6, 0.045, 0.008, 0.001, 0.5, 0.8, slow=(0.5, 45.0), device=0.6, promotion=0.26
    ),
}


def sessions(n: int, seed: int) -> Transfers:
    """Return times and sizes: sessions of eight transfers, three a device, sizes of 200 B to 2 MB."""
    draw = np.random.default_rng(seed)
    devices = max(10, n // 24)
    shape = (devices, 3, 8)
    begins = np.sort(draw.uniform(0, 7 * 86_400.0, shape[:2]), axis=1)[..., None]
    gaps = 0.05 + draw.exponential(np.where(draw.random(shape) < 0.5, 2.0, 30.0))
    gaps[..., 0] = 0.0
    start = (begins + np.cumsum(gaps, axis=2)).reshape(devices, -1)
    start.sort(axis=1)
    whole = devices * 24
    first = np.zeros(shape, dtype=np.int64)
    first[..., 0] = 1
    rows = Transfers(
        device=np.repeat(np.arange(devices), 24), start_s=start.ravel(), up=draw.random(whole) < 0.5,
        size=np.floor(np.exp(draw.uniform(math.log(200), math.log(2e6), whole))), seconds=np.zeros(whole),
        trips=np.full(whole, 0.5), handshakes=2 * first.ravel(), cold=first.ravel(),
        rtt_s=np.full(whole, np.nan), resent=np.full(whole, -1),
    )  # fmt: skip
    return rows.take(np.arange(min(n, whole)))


def measured(rows: Transfers, truth: LinkFit, seed: int) -> Transfers:
    """Return the transfers as the true network carries them, retransmissions counted."""
    draw = np.random.default_rng(seed + 1000)
    packets = -(-rows.size // 1448)
    resent = draw.binomial(packets.astype(np.int64), truth["loss"])
    return simulated(replace(rows, resent=resent), truth, seed)


def times_of(fit: LinkFit, size: int, up: bool, seed: int, n: int = 3000) -> Floats:
    """Return times of warm transfers of one size at moments and devices of their own."""
    draw = np.random.default_rng(seed)
    rows = Transfers(
        device=np.arange(n), start_s=draw.uniform(0, 7 * 86_400.0, n), up=np.full(n, up),
        size=np.full(n, float(size)), seconds=np.zeros(n), trips=np.full(n, 0.5),
        handshakes=np.zeros(n, np.int64), cold=np.zeros(n, np.int64), rtt_s=np.full(n, np.nan),
        resent=np.full(n, -1),
    )  # fmt: skip
    return replay(rows, fit, seed)


def one(name: str, n: int, seed: int) -> dict[str, Any]:
    """Return what one fit finds of a network, against the truth."""
    truth = TRUTHS[name]
    fit = fit_corrected(measured(sessions(n, seed), truth, seed), WRONG)
    errors: dict[str, list[float]] = {"p50": [], "p95": [], "ks": []}
    for size in SIZES:
        for up in (False, True):
            # The same draws on both sides: what differs is the fit, not the sample.
            real, found = times_of(truth, size, up, 7), times_of(fit, size, up, 7)
            errors["p50"].append(abs(np.quantile(found, 0.5) / np.quantile(real, 0.5) - 1))
            errors["p95"].append(abs(np.quantile(found, 0.95) / np.quantile(real, 0.95) - 1))
            errors["ks"].append(ks_distance(real, found))
    told = {key: (e.value, e.low, e.high, e.measured) for key, e in fit.values.items()}
    return {
        "name": name,
        "n": n,
        "errors": {key: float(np.mean(x)) for key, x in errors.items()},
        "told": told,
    }


def _one(arguments: tuple[str, int, int]) -> dict[str, Any]:
    return one(*arguments)


def networks(workers: int) -> None:
    repeats = {20_000: 1, 2_000: 3, 200: 4}
    jobs = [(name, n, seed) for n, most in repeats.items() for name in TRUTHS for seed in range(1, most + 1)]
    with ProcessPoolExecutor(workers) as pool:
        done = []
        for result in pool.map(_one, jobs):
            done.append(result)
            print(result["name"], result["n"], result["errors"], file=sys.stderr, flush=True)
    print("| network | transfers | p50 | p95 | KS | down | up | sigma | rho | slow | time | device |")
    for name in TRUTHS:
        for n in repeats:
            mine = [result for result in done if (result["name"], result["n"]) == (name, n)]
            mean = {key: np.mean([r["errors"][key] for r in mine]) for key in ("p50", "p95", "ks")}
            ratios = []
            for key in (
                "down_bps",
                "up_bps",
                "rate_sigma",
                "rate_rho",
                "slow_sigma",
                "slow_time_s",
                "device_sigma",
            ):
                values = [r["told"][key][0] for r in mine if r["told"][key][3]]
                true = TRUTHS[name][key]
                ratios.append(
                    "–"
                    if not values
                    else f"{np.median(values) / true:.2f}"
                    if true
                    else f"{np.median(values):.2f}*"
                )
            print(
                f"| {name} | {n:,} | {mean['p50']:.1%} | {mean['p95']:.1%} | {mean['ks']:.3f} |"
                f" {' | '.join(ratios)} |",
                flush=True,
            )


def coverage(workers: int, repeats: int, n: int) -> None:
    jobs = [(name, n, 100 + seed) for seed in range(repeats) for name in TRUTHS]
    held: dict[str, list[bool]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for (name, _, _), found in zip(jobs, pool.map(_fit_only, jobs), strict=True):
            print(name, {key: int(hit) for key, hit in found.items()}, file=sys.stderr, flush=True)
            for key, hit in found.items():
                held.setdefault(key, []).append(hit)
    for key, hits in sorted(held.items()):
        print(f"| {key} | {np.mean(hits):.0%} | {len(hits)} |")


def _fit_only(arguments: tuple[str, int, int]) -> dict[str, bool]:
    name, n, seed = arguments
    truth = TRUTHS[name]
    fit = fit_corrected(measured(sessions(n, seed), truth, seed), WRONG)
    told = {key: e for key, e in fit.values.items() if e.measured and math.isfinite(e.low)}
    # Parts that pairs do not tell apart are in the fast one: its sd is that of all, its memory none's.
    hidden = [key for key in ("slow_sigma", "device_sigma") if truth[key] > 0.0 and key not in told]
    true = {key: truth[key] for key in truth.values} | {
        "rate_sigma": math.sqrt(sum(truth[key] ** 2 for key in ("rate_sigma", *hidden))),
        "connect_success": 1.0,
    }
    held = {key: bool(e.low <= true[key] <= e.high) for key, e in told.items()}
    if hidden:
        held.pop("rate_rho", None)
    return held


SCENARIO = """\
format: 2
title: A fleet for telemetry
seed: 11
data: {source: synthetic-ratings, users: 600, items: 8000, ratings_per_user: 30}
fleet: FLEET
learning: {algorithm: fedavg-mf, factors: 16, learning_rate: 0.05}
rounds: {count: 80, cohort: 60, quorum: 1, deadline: 10 min, selection: random}
"""
FLEET = """\
{devices: {phone_mid_2020: 50%, phone_entry_a53: 50%}, networks: {people: 60%, wifi_home: 40%}, \
availability: always_on, profiles: [{networks: {people: {like: 4g_uk, down: 20 Mbit/s, up: 6 Mbit/s, \
device_sigma: 0.6, slow_rate: {sigma: 0.5, correlation_time: 45 s}, sources: assumption}}}]}"""


def scenario() -> None:
    """Run, export, fit, run again; print the rounds of both."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "true.yaml").write_text(SCENARIO.replace("FLEET", FLEET))
        (place / "fitted.yaml").write_text(
            SCENARIO.replace("FLEET", "{mix: fitted, profiles: [profiles.yaml]}")
        )
        commands = (
            "run true.yaml --quiet --out true", "telemetry true -o t.parquet --work",
            "profiles fit t.parquet -o profiles.yaml", "run fitted.yaml --quiet --out fitted",
        )  # fmt: skip
        for command in commands:
            done = subprocess.run(
                [sys.executable, "-m", "coordinator.cli", *command.split()],
                cwd=place,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode not in (0, 3):
                raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
            if command.startswith("profiles"):
                print(done.stdout)
        for name in ("true", "fitted"):
            rounds = open_run(place / name).read("rounds", ("duration_s", "completed"))
            took = rounds["duration_s"].to_numpy()
            rows = open_run(place / name).read("device_rounds", ("latency_s", "network")).to_pydict()
            for link in dict.fromkeys(rows["network"]):
                pairs = zip(rows["latency_s"], rows["network"], strict=True)
                mine = [seconds for seconds, one in pairs if one == link and seconds is not None]
                quantiles = ", ".join(f"p{q} {np.quantile(mine, q / 100):.2f} s" for q in (50, 95))
                print(f"{name}, {link}: {len(mine) / len(rows['network']):.0%} of reports, {quantiles}")
            latency = np.array([seconds for seconds in rows["latency_s"] if seconds is not None])
            print(
                f"| {name} | {np.median(took):.2f} s | {np.quantile(took, 0.95):.2f} s |"
                f" {np.median(latency):.2f} s |"
                f" {np.quantile(latency, 0.95):.2f} s | {rounds['completed'].to_numpy().mean():.1f} |"
            )


def trace_of(path: Path) -> RateTrace:
    """Return a trace of a second a step."""
    if path.suffix == ".csv":
        mbps = np.loadtxt(path, delimiter=",", skiprows=1)[:, 1]
        rate = np.maximum(mbps, 0.0) * 1e6
    else:
        times = np.loadtxt(path, dtype=np.int64)
        rate = np.bincount(times // 1000)[: int(times[-1]) // 1000].astype(np.float64) * 12_000.0
    n = len(rate)
    return RateTrace(np.arange(n, dtype=np.float64), rate, rate, np.full(n, 0.05), np.zeros(n), float(n))


def over_trace(trace: RateTrace, n: int, seed: int) -> Transfers:
    """Return transfers over the trace, of devices that all see it whole."""
    draw = np.random.default_rng(seed)
    devices, link = 20, TracePlayback(trace, np.zeros(1))
    mean = trace.bits_until(trace.period_s, "down") / trace.period_s
    rows: list[tuple[float, ...]] = []
    for device in range(devices):
        now, fresh = draw.uniform(0, trace.period_s), True
        for _ in range(n // devices):
            fresh = draw.random() < 0.15
            now += draw.exponential(20.0) if fresh else draw.exponential(1.0)
            # From a packet to what two seconds carry.
            size = math.floor(math.exp(draw.uniform(math.log(300), math.log(mean / 4))))
            seconds = (
                link.alone_time(0, Direction.DOWN, size, mean, 0.05, now)[0] + 0.025 + draw.exponential(0.005)
            )
            rows.append((device, now, size, seconds, fresh))
            now += seconds
    device, start, size, seconds, fresh = np.array(rows).T
    whole = len(device)
    return Transfers(
        device=device.astype(np.int64), start_s=start, up=np.zeros(whole, np.bool_), size=size,
        seconds=seconds,
        trips=np.full(whole, 0.5), handshakes=np.zeros(whole, np.int64), cold=fresh.astype(np.int64),
        rtt_s=np.full(whole, np.nan), resent=np.zeros(whole, np.int64),
    )  # fmt: skip


def traces(paths: list[Path]) -> None:
    print(
        "| trace | s | sigma real/fit | lag 1 real/fit | 5 | 10 | 30 | p95 1 MB fit/real | 10 MB | 50 MB |"
        " fast alone 1 MB | 10 MB | 50 MB |"
    )
    for path in paths:
        trace = trace_of(path)
        rate = trace.down_bps
        log = np.log(np.maximum(rate, 12_000.0))
        log = log - log.mean()
        real = [float((log[:-lag] * log[lag:]).mean() / log.var()) for lag in (1, 5, 10, 30)]
        rows = over_trace(trace, 6000, 1)
        fit = fit_corrected(rows, WRONG)
        alone = fit_link(rows, WRONG, replicates=1, parts=frozenset({"fast"}))
        cells = [path.stem, f"{len(rate)}", f"{log.std():.2f}/{math.sqrt(fit.spread.total):.2f}"]
        for value, lag in zip(real, (1.0, 5.0, 10.0, 30.0), strict=True):
            s = fit.spread
            found = (
                s.slow * math.exp(-lag / s.time_s) + s.fast * s.rho**lag * max(1 - lag / 32, 0) + s.device
            ) / s.total
            cells.append(f"{value:.2f}/{found:.2f}")
        real_times = {size: _over(trace, size) for size in (1e6, 1e7, 5e7)}
        for one_fit in (fit, alone):
            for size, times in real_times.items():
                simulated = _under(one_fit, size)
                cells.append(f"{np.quantile(simulated, 0.95) / np.quantile(times, 0.95):.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)


def _over(trace: RateTrace, size: float) -> Floats:
    link = TracePlayback(trace, np.zeros(1))
    mean = trace.bits_until(trace.period_s, "down") / trace.period_s
    starts = np.linspace(0, trace.period_s, 400, endpoint=False)
    return np.array([link.alone_time(0, Direction.DOWN, size, mean, 0.05, float(s))[0] for s in starts])


def _under(fit: LinkFit, size: float) -> Floats:
    n, spread, one_row = 400, fit.spread, np.ones(400)
    link = LinkConditions(
        1, np.arange(n), sigma_log=one_row * math.sqrt(spread.fast), rho_1s=one_row * spread.rho,
        outage_fraction=one_row * fit["outage_fraction"], outage_mean_s=one_row * fit["outage_mean_s"],
        slow_sigma_log=one_row * math.sqrt(spread.slow), slow_time_s=one_row * spread.time_s,
    )  # fmt: skip
    # Devices differ by what the trace as a whole does not tell.
    rate = fit["down_bps"]
    return np.array(
        [link.alone_time(i, Direction.DOWN, size, rate, 0.05, 1000.0 * (i % 7))[0] for i in range(n)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["networks", "coverage", "scenario", "traces"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--transfers", type=int, default=4000)
    chosen = parser.parse_args()
    if chosen.what == "networks":
        networks(chosen.workers)
    elif chosen.what == "coverage":
        coverage(chosen.workers, chosen.repeats, chosen.transfers)
    elif chosen.what == "scenario":
        scenario()
    else:
        traces(chosen.files)


if __name__ == "__main__":
    main()
