"""Two revisions side by side: CPU time of the same work, run in turns.

    python benchmarks/against.py                           all cases beside 6957440, about an hour
    python benchmarks/against.py REV dense quickstart      some of them beside REV
    python benchmarks/against.py --cache DIR --repeats 5   environments kept in DIR; five runs of each
    python benchmarks/against.py --peers dense             also pfl, in the same minutes
    python benchmarks/against.py --tiny                    whether it runs at all: fleets a hundredth as large

REV is checked out into a git work tree; it and this checkout are installed, each into an environment of its
own. Each run is a process of its own, `recfleet run FILE --out DIR`, with links, energy and tables on; CPU
time is user and system time of the whole process. Both revisions get the same file of format 1, with old
defaults written out. That both did the same work is shown by the rows of `device_rounds` and the completed
ones among them; where they differ and must not, the benchmark ends with an error.

Costs a device-round come from two runs with different numbers of rounds: the difference of CPU times over
that of rows, so start-up and the fixed part of the report cancel. Ratios are those of medians, with the range
over the repetitions. Goal and aim are what was promised against 6957440.

engine      a method without numbers to speak of (linear regression of one weight on one sample), 1,000 of 10⁵
fedrecon    FedRecon by ridge, k = 16, about 100 ratings each, 1,000 of 10⁵
million     the same, 10,000 of 10⁶, with the coordinator at 1 Tbit/s and at 10 Gbit/s
dense       float32 [1682, 16] down and up, 100 of 1,000; FedRecon on five ratings, the lightest that ships
dropouts    fedrecon with 130 % invited, devices that decline and go away, and a deadline of 10 s
shipped     stragglers, subway, regional_outage and night_charging, whole commands
quickstart  the whole command
secagg      benchmarks/secagg.py hundred of both revisions: secagg-plus beside its floor
dormant     million_dormant with one round of two devices, whole command: the fleet made ready
round       the fixed cost of a round: rounds of two devices
flat        a device-round by items, cohort and fleet, less the fixed cost of its round
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from peers.measure import PEERS

ROOT = Path(__file__).resolve().parents[1]
BASE = "6957440"
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
NOT_INHERITED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
HELD, MISSED, REFUSED = 0, 3, 2
"""Exit codes of `recfleet run`: all promises held, one was missed, the scenario is not valid."""
OLD_DEFAULTS = ("data.held_out_negatives=spared",)
"""Of shipped files, which say who is selected where it is not the old default either."""
SOME = 0.03
"""Share by which what random numbers decide may differ between revisions."""

COMMON = """
format: 1
limits: {{frame_bytes: 256 MiB}}
title: benchmark
seed: 7
coordinator: {{down_rate: {link}, up_rate: {link}}}
evaluation: {{every: 100000, users: 10, final: false}}
"""
RATINGS = (
    COMMON
    + """
data:
  source: synthetic-ratings
  users: {users}
  items: {items}
  ratings_per_user: {ratings}
  min_ratings_per_user: 5
  held_out_negatives: spared
  split: {{kind: none}}
fleet: {{mix: global_android_2024, availability: {availability}}}
learning: {{algorithm: fedrecon, factors: 16, learning_rate: 0.02, item_bias: {bias}, upload: {upload}}}
rounds:
  {{count: {rounds}, cohort: {cohort}, quorum: {quorum}, over_select: {over_select}, deadline: {deadline},
   selection: {selection}}}
"""
)
REGRESSION = (
    COMMON
    + """
data: {{source: synthetic-regression, clients: {users}, samples_per_client: 1, features: 1}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {{algorithm: linear-regression, intercept: false, local: {{method: gradient}}}}
rounds: {{count: {rounds}, cohort: {cohort}, deadline: 10 min, selection: availability-aware}}
"""
)


@dataclass(frozen=True)
class Side:
    """A revision that is measured, and its environment."""

    name: str
    tree: Path
    environment: Path

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.environment / "bin" / "python"

    def packages(self) -> dict[str, str]:
        """Return the versions of what is installed, without recfleet itself."""
        listing = subprocess.run(
            [self.python, "-m", "pip", "list", "--format", "json"], check=True, capture_output=True, text=True
        )
        found = {package["name"]: package["version"] for package in json.loads(listing.stdout)}
        return {name: version for name, version in found.items() if name != "recfleet"}


@dataclass(frozen=True)
class Run:
    """What one process took, and what it did."""

    cpu_s: float
    peak_mb: float
    code: int
    rows: int = 0
    """Rows of `device_rounds`."""
    completed: int = 0
    """Those of them whose report was applied."""
    output: str = ""


def process(command: Sequence[str | Path], folder: Path) -> Run:
    """Run a command in ``folder``; return its CPU time, its children's included, and its peak memory."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    with (folder / "stdout").open("w+") as out, (folder / "stderr").open("w+") as err:
        started = subprocess.Popen(
            command, stdout=out, stderr=err, cwd=folder, env={**environment, **ONE_THREAD}
        )
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = code = os.waitstatus_to_exitcode(status)
        if code not in (HELD, MISSED, REFUSED):
            err.seek(0)
            sys.exit(f"{' '.join(map(str, command))}: exit code {code}\n{err.read()[-4000:]}")
        out.seek(0)
        return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, code, output=out.read())


def recfleet(side: Side, scenario: Path, settings: Sequence[str] = (), *, refusable: bool = False) -> Run:
    """Run a scenario by the command line; count its rows.

    Exits where it is not valid, unless that is an answer too (``refusable``).
    """
    with tempfile.TemporaryDirectory(prefix="recfleet-against-") as name:
        folder = Path(name)
        sets = [part for setting in settings for part in ("--set", setting)]
        command = [side.environment / "bin" / "recfleet", "run", scenario, "--out", folder / "run", *sets]
        run = process(command, folder)
        if run.code == REFUSED:
            if not refusable:
                sys.exit(f"{side.name}: {(folder / 'stderr').read_text()}")
            return run
        outcomes = pq.read_table(folder / "run" / "device_rounds.parquet", columns=["outcome"])["outcome"]
        completed = sum(value == "completed" for value in outcomes.to_pylist())
        return Run(run.cpu_s, run.peak_mb, run.code, len(outcomes), completed)


@dataclass
class Figures:
    """What was measured of one case, by side, a value a repetition."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: Side, value: float) -> None:
        """Add what a repetition gave."""
        self.values.setdefault(side.name, []).append(value)

    def median(self, side: Side) -> float:
        """Return the median of a side."""
        return statistics.median(self.values[side.name])


@dataclass
class Bench:
    """Both revisions, and how they are measured."""

    now: Side
    then: Side
    repeats: int
    scale: int
    """What fleets and cohorts are divided by."""
    folder: Path
    pfl: Path | None
    """Interpreter of an environment with pfl."""

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both, in the order in which they take turns."""
        return self.then, self.now

    def of(self, count: int, least: int = 2) -> int:
        """Return a number of devices, scaled."""
        return max(count // self.scale, least)

    def write(self, name: str, text: str) -> Path:
        """Write a scenario; return its path."""
        path = self.folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    def line(
        self, case: str, unit: str, figures: Figures, goal: str = "", aim: str = "", note: str = ""
    ) -> None:
        """Print a row of the table."""
        then, now = (figures.values[side.name] for side in self.sides)
        ratios = [old / new if new > 0 else float("inf") for old, new in zip(then, now, strict=True)]
        ratio = figures.median(self.then) / figures.median(self.now) if figures.median(self.now) else 0.0
        print(
            f"| {case} | {figures.median(self.then):.4g} | {figures.median(self.now):.4g} | {unit}"
            f" | {ratio:.2f} × ({min(ratios):.2f}–{max(ratios):.2f}) | {goal} | {aim} | {note} |",
            flush=True,
        )

    def slope(
        self,
        case: str,
        text: Callable[[int], str],
        few: int,
        many: int,
        *,
        chance: bool = False,
        refusable: bool = False,
        per_round_s: dict[str, float] | None = None,
    ) -> tuple[Figures, str]:
        """Measure a device-round: µs of CPU, from runs of ``few`` and ``many`` rounds.

        Parameters
        ----------
        text : returns the scenario with so many rounds.
        chance : whether random numbers decide how many reports are applied.
        refusable : whether a revision may hold the scenario for invalid; it then has no figures.
        per_round_s : CPU seconds by side that each round is to be taken to cost beside its devices.

        Returns the figures and what was done.
        """
        files = [self.write(f"{case}-{rounds}", text(rounds)) for rounds in (few, many)]
        figures, done = Figures(), {}
        for _ in range(self.repeats):
            for side in self.sides:
                if side.name in done and done[side.name] is None:
                    continue
                short, long = (recfleet(side, file, refusable=refusable) for file in files)
                if REFUSED in (short.code, long.code):
                    done[side.name] = None
                    continue
                rows = long.rows - short.rows
                if rows <= 0:
                    sys.exit(f"{case}, {side.name}: {many} rounds gave no more rows than {few}")
                fixed_s = (many - few) * per_round_s[side.name] if per_round_s else 0.0
                figures.add(side, (long.cpu_s - short.cpu_s - fixed_s) / rows * 1e6)
                done[side.name] = long
        return figures, self.same_work(case, [done[side.name] for side in self.sides], chance=chance)

    def same_work(
        self, case: str, runs: Sequence[Run | None], *, chance: bool, rows_too: bool = False
    ) -> str:
        """Compare what two runs did; return it in words.

        Exits where the numbers differ: those of reports by more than a little if ``chance`` decides them, and
        those of rows by more than a little if ``rows_too``.
        """
        then, now = runs
        if then is None or now is None:
            return ", ".join("refused" if run is None else f"{run.rows:,} rows" for run in runs)
        for what, old, new, by_chance in (
            ("rows", then.rows, now.rows, rows_too),
            ("completed", then.completed, now.completed, chance),
        ):
            if abs(old - new) > (SOME * old if by_chance else 0) or not old:
                sys.exit(f"{case}: not the same work: {old:,} {what} by then, {new:,} by now")
        rows = f"{now.rows:,}" if then.rows == now.rows else f"{then.rows:,} / {now.rows:,}"
        reports = (
            f"{now.completed:,}"
            if then.completed == now.completed
            else f"{then.completed:,} / {now.completed:,}"
        )
        return f"{rows} rows, {reports} completed"

    def whole(self, case: str, file: Path, settings: Sequence[str] = ()) -> tuple[Figures, Figures, str]:
        """Measure whole commands; return CPU seconds, peak MB and what was done."""
        cpu, peak, done = Figures(), Figures(), {}
        for _ in range(self.repeats):
            for side in self.sides:
                run = recfleet(side, file, settings)
                cpu.add(side, run.cpu_s)
                peak.add(side, run.peak_mb)
                done[side.name] = run
        work = self.same_work(case, [done[side.name] for side in self.sides], chance=True, rows_too=True)
        return cpu, peak, work

    def shipped(self, name: str) -> Path:
        """Write a shipped scenario of this checkout as a file of format 1."""
        text = (ROOT / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
        return self.write(name, text.replace("format: 2", "format: 1", 1))


def ratings(
    users: int,
    cohort: int,
    *,
    items: int = 1682,
    number: int = 100,
    link: str = "10 Gbit/s",
    availability: str = "always_on",
    bias: str = "true",
    upload: str = "sparse",
    over_select: str = "100%",
    quorum: int = 1,
    deadline: str = "10 min",
    selection: str = "availability-aware",
) -> Callable[[int], str]:
    """Return FedRecon as a function of its rounds."""
    return lambda rounds: RATINGS.format(
        users=users,
        cohort=cohort,
        items=items,
        ratings=number,
        link=link,
        availability=availability,
        bias=bias,
        upload=upload,
        over_select=over_select,
        quorum=quorum,
        deadline=deadline,
        selection=selection,
        rounds=rounds,
    )


def regression(users: int, cohort: int) -> Callable[[int], str]:
    """Return the method that computes next to nothing as a function of its rounds."""
    return lambda rounds: REGRESSION.format(users=users, cohort=cohort, link="10 Gbit/s", rounds=rounds)


def engine(bench: Bench) -> None:
    text = regression(bench.of(100_000), bench.of(1_000))
    figures, work = bench.slope("engine", text, 2, 42)
    bench.line("engine with links, energy, tables", "µs a device-round", figures, "5 ×", "8 ×", work)


def fedrecon(bench: Bench) -> None:
    text = ratings(bench.of(100_000), bench.of(1_000))
    figures, work = bench.slope("fedrecon", text, 2, 32)
    bench.line("FedRecon ridge, cohort 1,000 of 10⁵", "µs a device-round", figures, "4 ×", "6 ×", work)


def million(bench: Bench) -> None:
    for link in ("1000 Gbit/s", "10 Gbit/s"):
        text = ratings(bench.of(1_000_000), bench.of(10_000), items=5_000, link=link)
        figures, work = bench.slope("million", text, 1, 5)
        bench.line(f"cohort 10,000 of 10⁶, {link}", "µs a device-round", figures, "3 ×", "5 ×", work)


def dense(bench: Bench) -> None:
    text = ratings(bench.of(1_000, 20), bench.of(100), number=5, bias="false", upload="dense")
    theirs = Figures()
    if bench.pfl is None:
        figures, work = bench.slope("dense", text, 10, 210)
    else:
        # A repetition at a time, and pfl after each.
        figures, work, repeats = Figures(), "", bench.repeats
        bench.repeats = 1
        for _ in range(repeats):
            one, work = bench.slope("dense", text, 10, 210)
            for side in bench.sides:
                figures.add(side, one.median(side))
            theirs.add(bench.then, pfl_us(bench.pfl))
            theirs.add(bench.now, one.median(bench.now))
        bench.repeats = repeats
    bench.line("dense, 100 of 1,000", "µs a device-round", figures, "2 ×", "", work)
    if bench.pfl is not None:
        bench.line("the same, pfl in place of then", "µs a device-round", theirs, "2.5 ×", "3 ×")


def pfl_us(python: Path) -> float:
    """Return µs of CPU that pfl takes for a client-round of the dense workload."""
    with tempfile.TemporaryDirectory() as folder:
        run = process([python, PEERS["pfl"][1]], Path(folder))
    return float(json.loads(run.output.strip().splitlines()[-1])["cpu_ms_per_client_round"]) * 1e3


def dropouts(bench: Bench) -> None:
    text = ratings(
        bench.of(100_000),
        bench.of(1_000),
        availability="bernoulli_google",
        over_select="130%",
        deadline="10 s",
        selection="random",
    )
    figures, work = bench.slope("dropouts", text, 2, 22, chance=True)
    bench.line("dropouts, 130 %, deadline, cohort 1,000", "µs a device-round", figures, "3 ×", "5 ×", work)


def shipped(bench: Bench) -> None:
    for name in ("stragglers", "subway", "regional_outage", "night_charging"):
        cpu, _, work = bench.whole(name, bench.shipped(name), settings_of(name))
        bench.line(f"`{name}`", "s, whole command", cpu, "2 ×", "", work)


def settings_of(name: str) -> tuple[str, ...]:
    """Return the old defaults that a shipped scenario does not say itself."""
    said = "selection:" in (ROOT / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
    return OLD_DEFAULTS if said else (*OLD_DEFAULTS, "rounds.selection=random")


def quickstart(bench: Bench) -> None:
    cpu, _, work = bench.whole("quickstart", bench.shipped("quickstart"), settings_of("quickstart"))
    bench.line("`recfleet run quickstart`", "s, whole command", cpu, "2.5 ×", "≤ 0.8 s", work)


def secagg(bench: Bench) -> None:
    whole: dict[str, Figures] = {}
    floor: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(bench.repeats):
            for side in bench.sides:
                script = side.tree / "benchmarks" / "secagg.py"
                run = process([side.python, script, "hundred"], Path(folder))
                lines = [line.split() for line in run.output.splitlines()]
                for lost, whole_s, _, ratio, *_ in (parts for parts in lines if parts and parts[0].isdigit()):
                    whole.setdefault(lost, Figures()).add(side, float(whole_s))
                    floor.setdefault(lost, Figures()).add(side, float(ratio))
    if set(whole) != {"0", "5", "10"}:
        sys.exit(f"secagg: cases {sorted(whole)} instead of 0, 5 and 10 lost")
    for lost, figures in whole.items():
        bench.line(f"secagg-plus, 100 devices, {lost} lost", "s", figures)
        bench.line("the same, against the floor", "× floor", floor[lost], "now ≤ 1.15", "now < 1")


def dormant(bench: Bench) -> None:
    settings = (
        *settings_of("million_dormant"),
        f"data.users={bench.of(1_000_000)}",
        "rounds.count=1",
        "rounds.cohort=2",
        "rounds.over_select=100%",
        "rounds.quorum=1",
    )
    cpu, peak, work = bench.whole("dormant", bench.shipped("million_dormant"), settings)
    bench.line("`million_dormant` ready", "s, whole command", cpu, "3 ×", "10⁷ in 10 s", work)
    bench.line("`million_dormant` ready", "MB at the peak", peak, "now ≤ 250")


def fixed(bench: Bench, few: int, many: int) -> tuple[Figures, str]:
    """Measure rounds of two devices: ms of CPU a round."""
    figures, work = bench.slope("round", regression(1_000, 2), few, many)
    of_rounds = {name: [2 * value / 1e3 for value in values] for name, values in figures.values.items()}
    return Figures(of_rounds), work


def fixed_round(bench: Bench) -> None:
    figures, work = fixed(bench, 50, 650)
    bench.line("fixed cost of a round", "ms", figures, "now ≤ 1.2", "", work)


def flat(bench: Bench) -> None:
    figures, _ = fixed(bench, 50, 450)
    per_round_s = {side.name: figures.median(side) / 1e3 for side in bench.sides}
    wide, fast = "10 h", "100 Tbit/s"
    series: dict[str, dict[int, tuple[Callable[[int], str], int, int]]] = {
        "items": {
            items: (
                ratings(bench.of(10_000), bench.of(1_000), items=items, link=fast, deadline=wide),
                2,
                12,
            )
            for items in (1_000, 10_000, 100_000, 1_000_000)
        },
        "cohort": {
            cohort: (
                ratings(bench.of(100_000), bench.of(cohort), link=fast, number=20),
                few,
                many,
            )
            for cohort, few, many in ((100, 10, 210), (1_000, 2, 22), (10_000, 1, 5), (100_000, 1, 2))
        },
        "fleet": {
            users: (ratings(bench.of(users), bench.of(500), link=fast), 2, 42)
            for users in (1_000, 10_000, 100_000, 1_000_000)
        },
    }
    for what, sizes in series.items():
        medians: dict[str, list[float]] = {side.name: [] for side in bench.sides}
        for size, (text, few, many) in sizes.items():
            figures, work = bench.slope(
                f"flat-{what}-{size}", text, few, many, refusable=True, per_round_s=per_round_s
            )
            for name, values in figures.values.items():
                medians[name].append(statistics.median(values))
            shown = [f"{figures.median(s):.4g}" if s.name in figures.values else "–" for s in bench.sides]
            print(
                f"| {what} {size:,} | {shown[0]} | {shown[1]} | µs a device-round | | | | {work} |",
                flush=True,
            )
        spreads = [
            f"± {spread(medians[side.name]):.0%}" if medians[side.name] else "–" for side in bench.sides
        ]
        print(
            f"| {what}: spread | {spreads[0]} | {spreads[1]} | around the middle | | ± 25 % | | |", flush=True
        )


def spread(values: Sequence[float]) -> float:
    """Return how far values lie from the middle of them, as a share of it."""
    low, high = min(values), max(values)
    return (high - low) / (high + low)


CASES: dict[str, Callable[[Bench], None]] = {
    "engine": engine,
    "fedrecon": fedrecon,
    "million": million,
    "dense": dense,
    "dropouts": dropouts,
    "shipped": shipped,
    "quickstart": quickstart,
    "secagg": secagg,
    "dormant": dormant,
    "round": fixed_round,
    "flat": flat,
}


def installed(environment: Path, *what: str | Path) -> None:
    """Install into an environment, which is made if there is none."""
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    command = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", *what]
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    subprocess.run(command, check=True, stdout=sys.stderr, env=inherited)


def git(*arguments: str | Path) -> str:
    """Run git in this checkout; return what it printed."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def prepared(cache: Path | None, revision: str) -> Iterator[tuple[Path, Side, Side]]:
    """Install both revisions; what is in no cache is removed at the end.

    An environment of an earlier revision is taken from the cache as it is; that of this checkout gets the
    checkout anew.
    """
    temporary = cache is None
    folder = (cache or Path(tempfile.mkdtemp(prefix="recfleet-against-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    commit = git("rev-parse", "--short", f"{revision}^{{commit}}")
    tree = folder / f"tree-{commit}"
    now = Side("now", ROOT, folder / "environment-now")
    then = Side("then", tree, folder / f"environment-{commit}")
    try:
        if not tree.exists():
            git("worktree", "prune")
            git("worktree", "add", "--detach", tree, commit)
        installed(now.environment, ROOT)
        installed(now.environment, "--no-deps", "--force-reinstall", ROOT)
        if not (then.environment / "bin" / "recfleet").exists():
            installed(then.environment, tree)
        yield folder, now, then
    finally:
        if temporary:
            git("worktree", "remove", "--force", tree)
            shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", nargs="?", default=BASE, metavar="REV", help=f"by default {BASE}")
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"which of {', '.join(CASES)}; all by default"
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where environments are kept between runs")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="repetitions; 3 by default")
    parser.add_argument("--peers", action="store_true", help="run pfl beside the case dense")
    parser.add_argument("--tiny", action="store_true", help="fleets and cohorts a hundredth as large")
    arguments = parser.parse_args()
    revision, chosen = arguments.revision, arguments.cases
    if revision in CASES:
        revision, chosen = BASE, [revision, *chosen]
    unknown = sorted(set(chosen) - set(CASES))
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; choose from {', '.join(CASES)}")
    with prepared(arguments.cache, revision) as (folder, now, then):
        pfl = None
        if arguments.peers:
            pfl = folder / "environment-pfl" / "bin" / "python"
            if not pfl.exists():
                installed(folder / "environment-pfl", PEERS["pfl"][0])
        with tempfile.TemporaryDirectory(prefix="recfleet-against-") as scenarios:
            scale = 100 if arguments.tiny else 1
            bench = Bench(now, then, arguments.repeats, scale, Path(scenarios), pfl)
            dirty = " with changes" if git("status", "--porcelain") else ""
            ours, theirs = (git("rev-parse", "--short", name) for name in ("HEAD", revision))
            print(f"{ours}{dirty} beside {theirs}:")
            print(f"CPU time, medians of {arguments.repeats}, load {os.getloadavg()[0]:.1f} at the start\n")
            print("| case | then | now | unit | then / now | at least | aim | the same work |")
            print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
            for name in chosen or CASES:
                CASES[name](bench)
        old, new = then.packages(), now.packages()
        apart = [
            f"{name} {old[name]} / {new[name]}"
            for name in sorted(old.keys() & new.keys())
            if old[name] != new[name]
        ]
        print(
            f"\nload {os.getloadavg()[0]:.1f} at the end; packages that differ: {', '.join(apart) or 'none'}"
        )


if __name__ == "__main__":
    main()
