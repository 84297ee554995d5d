"""Whether the promises of the shipped scenarios can be kept, and can be broken.

    python benchmarks/promises.py                                  all scenarios
    python benchmarks/promises.py --scenarios quickstart subway    some of them
    python benchmarks/promises.py --runs runs/promises             keep the runs; those that are there count

Every scenario runs as it is shipped, with its own seed and eight others, and is then broken in one way after
another: without learning (the server's rate is next to nothing, so the model stays as it was drawn), without
what protects it, with worse faults or links, a larger model. Scenarios on real ratings need the folder that
RECFLEET_DATA names, and are left out without it. A promise is one threshold. It is good when

1. it holds with every seed, in the baseline too where that has to hold it;
2. its limit lies at least as far beyond the worst seed as the best and the worst seed lie apart. Of nine
   normal draws these lie three standard deviations apart: another seed breaks it once in some 100,000;
3. one way to break the scenario misses it with every seed, and the limit lies at most three quarters of the
   way from the worst seed of the shipped scenario to the nearest one of the broken scenario;
4. where it is about the model (``model.…``), that way is the one without learning. For a multiple of the
   baseline it cannot be: that does not learn either. It needs one beside it, on the same metric, that is so.

Figures whose limits are a multiple of another figure are such multiples, too. Where no limit satisfies all
four the promise is the wrong one. The exit code is 1 when a promise is not good.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import itertools
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from secure_training import Quiet

from coordinator.engine.run_files import BASELINE
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.reader import open_run
from coordinator.run.baseline import own_thresholds
from coordinator.run.runner import run_scenario
from coordinator.scenario import thresholds as grammar
from coordinator.scenario.load import LoadedScenario, load
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.threshold_evaluation import ThresholdResult, evaluate, show
from coordinator.scenario.thresholds import Threshold

SCENARIOS = Path(__file__).parents[1] / "scenarios"
FOLDERS = {"movielens-100k": "ml-100k", "movielens-1m": "ml-1m", "lastfm": "lastfm-2k"}
"""Where the ratings of a source lie in the folder that RECFLEET_DATA names."""
LEARNT = "model."
"""How the metrics begin that say whether anything was learnt."""
MOST_OF_THE_WAY = 0.75

Settings = tuple[str, ...]
UNTRAINED = "untrained"
NO_RESERVE: Settings = ("rounds.over_select=100%",)


def vanish(fraction: str) -> Settings:
    """Return the setting by which a share of the devices vanish computing, in place of other faults."""
    return (f"faults=[{{name: vanishing, at_stage: compute, on: {{fraction: {fraction}}}, vanish: {{}}}}]",)


def dropouts(share: str) -> Settings:
    """Return the setting of an availability of which so many leave at a moment of their work."""
    shares = "before_download: 30%, during_compute: 40%, during_upload: 30%"
    return (f"fleet.availability={{kind: bernoulli, drop_probability: {share}, {shares}}}",)


def slow_links(scale: str) -> Settings:
    """Return the setting that slows every link down, in place of other faults."""
    return (f"faults=[{{name: slow links, bandwidth: {{scale: {scale}}}}}]",)


MOST_VANISH = vanish("75%")
IN_THE_CLEAR: Settings = ("secure_aggregation=null", "privacy=null")

WORSE: Mapping[str, Mapping[str, Settings]] = {
    "async_buffered": {
        "as rounds": ("rounds.pacing=null",),
        "a stricter limit": ("rounds.pacing.staleness_limit=15",),
        "steps of ten reports": ("rounds.cohort=10",),
        "twice the dropouts": dropouts("16%"),
        "all vanish": (*vanish("100%"), "rounds.count=3"),
    },
    "bank_branches": {
        "in the clear": IN_THE_CLEAR,
        "half the noise": ("privacy.noise_multiplier=2",),
        "half the norm": ("privacy.clip_norm=0.025",),
        "a third vanish": vanish("33%"),
        "most vanish": MOST_VANISH,
        "twice the wait": (
            "rounds.deadline=4 min",
            "secure_aggregation.stage_deadlines={share_keys: 30 s, masked_input: 30 s, unmask: 30 s}",
        ),
    },
    "battery_savers": {
        "nobody in reserve": NO_RESERVE,
        "until evening": (*NO_RESERVE, "faults[2].during=[cold, evening]"),
        "twice as many invited": ("rounds.over_select=300%",),
        "most vanish": MOST_VANISH,
    },
    "context_baselines": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=50%"),
        "a wide network": ("learning.model={kind: network, width: 64}",),
    },
    "coordinator_crash": {
        "in the clear": (*IN_THE_CLEAR, "faults[1].at_stage=report"),
        "crashes afterwards": ("faults[1].during=after",),
        "crashes throughout": ("faults[1].during=[calm, bad-day, after]",),
        "most vanish": MOST_VANISH,
    },
    "distributed_dp": {
        "in the clear": IN_THE_CLEAR,
        "half the noise": ("privacy.noise_multiplier=2.5",),
        "half the norm": ("privacy.clip_norm=0.125",),
        "most vanish": MOST_VANISH,
    },
    "dropout_sweep": {
        "nobody in reserve": NO_RESERVE,
        "dropouts to the end": (*NO_RESERVE, "faults[0].during=[dropouts, recovery]"),
        "twice as many invited": ("rounds.over_select=300%",),
        "most vanish": MOST_VANISH,
    },
    "fedmmf_high_order": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=50%"),
        "four times the factors": ("learning.factors=80",),
    },
    "fedmmf_lastfm": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=50%"),
        "four times the factors": ("learning.factors=40",),
    },
    "fedmmf_one_order": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=50%"),
        "twice the factors": ("learning.factors=40",),
    },
    "fedmmf_shielded": {
        "in the clear": IN_THE_CLEAR,
        "most vanish": MOST_VANISH,
        "everybody passes": ("secure_aggregation.shielded.at_most=100%",),
        "nobody passes": ("secure_aggregation.shielded.at_most=0%",),
        "eight times the factors": ("learning.factors=64",),
        "half the factors": ("learning.factors=4",),
    },
    "fedmmf_synthetic": {
        "in the clear": IN_THE_CLEAR,
        "most vanish": MOST_VANISH,
    },
    "fedmmf_tradeoff": {
        "most vanish": MOST_VANISH,
        "masks that are means": ("learning.mask.regularization=1000",),
    },
    "fedmmf_two_order": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=50%"),
        "twice the factors": ("learning.factors=40",),
    },
    "flash_crowd": {
        "half the coordinator's link": ("coordinator={up_rate: 20 Mbit/s, down_rate: 20 Mbit/s}",),
        "a later crowd": ("faults[0].flash_crowd.after=10 s",),
        "a slower coordinator": ("faults[1].coordinator_slow.handling=40 ms",),
        "a crowd to the end": ("faults[0].during=[crowd, slow, after]",),
        "most vanish": MOST_VANISH,
    },
    "hospital_network": {
        "in the clear": (*IN_THE_CLEAR, "faults=[]"),
        "lines down more often": ("faults[0].on.fraction=25%",),
        "twice the wait": ("secure_aggregation.stage_deadlines.masked_input=2 min",),
        "slow links": slow_links("20%"),
        "twice the factors": ("learning.factors=16",),
    },
    "implicit_feedback": {
        "most vanish": MOST_VANISH,
        "twice the factors": ("learning.base.gmf_factors=16", "learning.base.mlp_factors=16"),
    },
    "implicit_secure": {
        "most vanish": MOST_VANISH,
        "a narrow clip": ("secure_aggregation.clip=0.1",),
        "twice the factors": ("learning.factors=16",),
    },
    "iot_gateways": {
        "slow links": slow_links("25%"),
        "most vanish": MOST_VANISH,
        "twice the reserve": ("rounds.over_select=125%",),
        "twice the factors": ("learning.factors=16",),
    },
    "linear_regression_10x5": {
        "smaller steps": ("learning.local.learning_rate=0.15",),
        "one vanishes": vanish("10%"),
        "ten times the features": ("data.features=50",),
    },
    "method_comparison": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=50%"),
        "four times the factors": ("learning.factors=64",),
    },
    "million_dormant": {
        "nobody in reserve": NO_RESERVE,
        "most vanish": MOST_VANISH,
        "twice as many invited": ("rounds.over_select=200%",),
        "twice the factors": ("learning.factors=32",),
    },
    "movielens_100k": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=50%"),
        "twice the factors": ("learning.factors=40",),
    },
    "movielens_1m": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=50%"),
        "twice the factors": ("learning.factors=40",),
    },
    "night_charging": {
        "half the phones": ("data.users=750",),
        "always charging": ("fleet.availability=always_on",),
        "no grace": ("rounds.pacing=null",),
        "a tenth vanish": vanish("10%"),
        "most vanish": MOST_VANISH,
    },
    "on_device_inference": {
        "ten times the items": ("data.items=15000",),
    },
    "oort_vs_random": {
        "slow links": slow_links("25%"),
        "a short deadline": ("rounds.deadline=3 s", "rounds.quorum=1"),
        "most vanish": MOST_VANISH,
    },
    "persistent_factors": {
        "twice the faults": ("faults[0].on.fraction=10%", *dropouts("16%")),
        "most vanish": MOST_VANISH,
    },
    "poisoned_updates": {
        "no clipping": ("privacy=null",),
        "half the norm": ("privacy.clip_norm=0.25",),
        "twice the faults": (
            "faults[0].on.fraction=20%",
            "faults[1].on.fraction=10%",
            "faults[2].on.fraction=20%",
        ),
        "not a number throughout": ("faults[0].during=[not-a-number, wrong-way]",),
        "most vanish": MOST_VANISH,
    },
    "quickstart": {
        "nobody in reserve": NO_RESERVE,
        "most vanish": MOST_VANISH,
        "twice the dropouts": dropouts("16%"),
        "twice as many invited": ("rounds.over_select=200%",),
        "dense uploads": ("learning.upload=dense",),
    },
    "regional_outage": {
        "nobody in reserve": NO_RESERVE,
        "twice the outage": (*NO_RESERVE, "faults[0].for=8 min"),
        "most vanish": MOST_VANISH,
    },
    "robust_aggregation": {
        "the mean": ("aggregation={rule: mean}",),
        "four times the attackers": ("faults[0].on.fraction=40%",),
        "most vanish": MOST_VANISH,
    },
    "targeted_poisoning": {
        "the mean": ("aggregation={rule: mean, attackers: null}",),
        "a short attack": ("faults[0].hard_users.norm_limit=0.1",),
        "four times the attackers": ("faults[0].on.fraction=20%",),
        "most vanish": MOST_VANISH,
    },
    "secagg_active": {
        "in the clear": (
            "secure_aggregation=null",
            "faults=[]",
            "phases=[{name: semi-honest, rounds: 3}, {name: active, rounds: 5}]",
        ),
        "most vanish": MOST_VANISH,
        "twice the factors": ("learning.factors=16",),
    },
    "secagg_basic": {
        "in the clear": IN_THE_CLEAR,
        "most vanish": MOST_VANISH,
        "a tight clip": ("secure_aggregation.clip=0.01",),
        "twice the wait": (
            "secure_aggregation.stage_deadlines={share_keys: 60 s, masked_input: 60 s, unmask: 60 s}",
        ),
        "twice the factors": ("learning.factors=16",),
    },
    "secagg_dropout_storm": {
        "in the clear": ("secure_aggregation=null", "faults=[]", "baseline=null"),
        "most vanish": MOST_VANISH,
        "twice the threshold": ("secure_aggregation.threshold=38",),
        "half the faults": ("faults[3].on.fraction=30%", "faults[4].on.fraction=27%"),
        "twice the wait": (
            "secure_aggregation.stage_deadlines={share_keys: 30 s, masked_input: 30 s, unmask: 30 s}",
        ),
        "a storm to the end": ("faults[1].during=[storm, after]",),
    },
    "secagg_dropouts": {
        "in the clear": ("secure_aggregation=null", "faults=[]"),
        "most vanish": MOST_VANISH,
        "half the faults": ("faults[5].on.fraction=15%", "faults[6].on.fraction=15%"),
    },
    "secagg_vs_plain_vs_ckks": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=50%"),
        "all in the clear": (
            "phases=[{name: plain, rounds: 4}, {name: secagg, rounds: 4}, {name: ckks, rounds: 4}]",
        ),
        "a quarter more factors": ("learning.factors=20",),
        "no ckks": ("phases[2]={name: ckks, rounds: 4}",),
    },
    "sharpness_radii": {
        "most vanish": MOST_VANISH,
        "twice the factors": ("learning.base.gmf_factors=16", "learning.base.mlp_factors=16"),
    },
    "shop_app": {
        "as rounds": ("rounds.pacing=null",),
        "a slower network": (
            "faults[0].bandwidth.scale=1%",
            "faults[0].on.fraction=100%",
            "faults[0].during=[weekday, sale]",
        ),
        "steps of five reports": ("rounds.cohort=5",),
        "a tenth vanish": vanish("10%"),
        "all vanish": (
            *vanish("100%"),
            "data.users=100",
            "phases=[{name: weekday, rounds: 2}, {name: sale, rounds: 2}]",
        ),
    },
    "smart_home_iot": {
        "all steps": ("rounds.pacing=null",),
        "half the deadline": ("rounds.deadline=750 ms",),
        "twice the deadline": ("rounds.deadline=3 s",),
        "most vanish": MOST_VANISH,
    },
    "social_mobile": {
        "nobody in reserve": NO_RESERVE,
        "as long sessions as gaps are short": (
            "fleet.availability.session={distribution: lognormal, median: 5 s, sigma: 0.8}",
            "fleet.availability.gap={distribution: lognormal, median: 40 s, sigma: 0.8}",
        ),
        "most vanish": MOST_VANISH,
        "twice as many invited": ("rounds.over_select=150%",),
        "twice the factors": ("learning.factors=32",),
    },
    "stragglers": {
        "nobody in reserve": NO_RESERVE,
        "slow to the end": (*NO_RESERVE, "faults[0].during=[slowdown, recovery]"),
        "twice as many invited": ("rounds.over_select=200%",),
        "most vanish": MOST_VANISH,
    },
    "subway": {
        "hardly any reserve": ("rounds.over_select=110%",),
        "rush hour to the end": ("rounds.over_select=110%", "faults[0].during=[rush-hour, evening]"),
        "most vanish": MOST_VANISH,
    },
    "uk_rural": {
        "most vanish": (*MOST_VANISH, "rounds.quorum=80"),
        "slow links": slow_links("25%"),
        "one attempt": ("rounds.retry.attempts=1",),
        "twice the factors": ("learning.factors=32",),
    },
    "unseen_users": {
        "nobody in reserve": NO_RESERVE,
        "most vanish": MOST_VANISH,
    },
}
"""Ways to break each scenario, beside the one that does not learn, by what its thresholds are about."""


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes
    ----------
    name : of the scenario.
    settings : as on the command line.
    seed : of the run; None is the scenario's own.
    runs : folder of the runs that are kept.
    """

    name: str
    settings: Settings
    seed: int | None
    runs: Path


@dataclass(frozen=True)
class Promise:
    """One threshold, and its figures.

    Attributes
    ----------
    threshold : the promise.
    low, high : least and greatest figure of the shipped scenario.
    room : distance of the limit from the worst seed in units of ``high - low``; infinite where that is 0.
    broken_by : for every way that misses it with each seed the figure nearest to the limit; None without one.
    faults : what is wrong with it.
    """

    threshold: Threshold
    low: float
    high: float
    room: float
    broken_by: Mapping[str, float | None]
    faults: tuple[str, ...]


def settings_of_data(name: str) -> Settings | None:
    """Return the settings that point a scenario at its data; None where they are not there."""
    source = written(name).scenario.data.source
    if source.startswith("synthetic-"):
        return ()
    path = Path(os.environ.get("RECFLEET_DATA", "nowhere"), FOLDERS[source])
    return (f"data.path={path}",) if path.is_dir() else None


def modelled(scenario: ScenarioSettings) -> Settings:
    """Return the settings by which masks are accounted for, not computed: the same figures, much sooner."""
    sections: dict[str, object] = {"secure_aggregation": scenario.secure_aggregation}
    for index, phase in enumerate(scenario.phases):
        sections[f"phases[{index}].secure_aggregation"] = phase.secure_aggregation
    return tuple(
        f"{path}.crypto=modelled"
        for path, section in sections.items()
        if getattr(section, "crypto", None) == "real"
    )


def untrained(scenario: ScenarioSettings) -> Settings:
    """Return the setting that leaves the shared model as it was drawn."""
    inner = "base." if scenario.learning.algorithm == "fedrecgel" else ""
    return (f"learning.{inner}learning_rate=1e-9",)


def ways_to_break(name: str) -> dict[str, Settings]:
    """Return the settings of every way to break a scenario."""
    scenario = written(name).scenario
    learnt = any(threshold.metric.startswith(LEARNT) for threshold in scenario.thresholds)
    return {**({UNTRAINED: untrained(scenario)} if learnt else {}), **WORSE[name]}


def written(name: str) -> LoadedScenario:
    """Return a scenario as it is shipped, with the thresholds to judge."""
    return load(SCENARIOS / f"{name}.yaml", references=False)


def run(job: Job) -> Path:
    """Run it, unless it is there, and return its directory.

    It has no thresholds: a baseline that misses one ends the run, and here the others count as well.
    """
    seed = () if job.seed is None else (f"seed={job.seed}",)
    common = (
        *(settings_of_data(job.name) or ()),
        *modelled(written(job.name).scenario),
        "record={events: none, trace_devices: 0}",
        "thresholds=null",
    )
    loaded = load(SCENARIOS / f"{job.name}.yaml", [*common, *job.settings, *seed])
    target = job.runs / f"{job.name}-{loaded.scenario.seed}-{loaded.hash[:12]}"
    if not target.exists():
        run_scenario(loaded, target=target, observer=Quiet())
    return target


def measure(job: Job) -> tuple[ThresholdResult, ...]:
    """Run it and return the verdicts on the shipped thresholds.

    A threshold that the baseline had to hold and missed is missed.
    """
    scenario = written(job.name).scenario
    target = run(job)
    below = target / BASELINE
    calm = TableMetricSource(open_run(below)) if below.is_dir() else None
    verdicts = evaluate(scenario.thresholds, TableMetricSource(open_run(target)), calm)
    if calm is None:
        return verdicts
    missed = {verdict.threshold for verdict in evaluate(own_thresholds(scenario), calm) if not verdict.held}
    return tuple(replace(one, held=one.held and one.threshold not in missed) for one in verdicts)


def figure(result: ThresholdResult) -> float | None:
    """Return the value of a verdict, as a multiple where its limit is one."""
    limit = result.threshold.limit
    if result.value is None or limit.relative_to is None:
        return result.value
    return None if not result.limit else result.value / result.limit * limit.value


def side(threshold: Threshold) -> int:
    """Return 1 where greater figures are worse, −1 where smaller ones are, 0 where any other is."""
    return {"<": 1, ">": -1, "=": 0}[threshold.operator[0]]


def promise_of(
    threshold: Threshold,
    shipped: Sequence[ThresholdResult],
    broken: Mapping[str, Sequence[ThresholdResult]],
    beside: Iterable[Threshold],
) -> Promise:
    """Return the figures of a promise and what is wrong with it.

    Parameters
    ----------
    threshold : the promise.
    shipped : a verdict for each seed.
    broken : the same for every way to break the scenario.
    beside : all thresholds of the scenario.
    """
    figures = [value for value in map(figure, shipped) if value is not None]
    low, high = min(figures, default=float("nan")), max(figures, default=float("nan"))
    worse = side(threshold)
    worst = low if worse < 0 else high
    limit = threshold.limit.value
    room = float("inf") if high == low else abs(limit - worst) / (high - low)
    broken_by: dict[str, float | None] = {}
    for way, verdicts in broken.items():
        if not any(verdict.held for verdict in verdicts):
            missed = [value for value in map(figure, verdicts) if value is not None]
            broken_by[way] = min(missed, key=lambda value: abs(value - limit), default=None)
    of_baseline = threshold.limit.relative_to == grammar.BASELINE
    learnt = threshold.metric.startswith(LEARNT) and not of_baseline
    faults = []
    if not all(verdict.held for verdict in shipped):
        faults.append(f"missed by {sum(not verdict.held for verdict in shipped)} of {len(shipped)} seeds")
    elif worse and room < 1:
        faults.append("too close to the worst seed")
    if learnt and UNTRAINED not in broken_by:
        faults.append("holds without learning")
    elif not broken_by:
        faults.append("nothing breaks it")
    elif all(
        nearest is not None and abs(limit - worst) > MOST_OF_THE_WAY * abs(nearest - worst)
        for way, nearest in broken_by.items()
        if way == UNTRAINED or not learnt
    ):
        faults.append("too close to what is broken")
    if threshold.metric.startswith(LEARNT) and of_baseline:
        same = (one for one in beside if one.key == threshold.key)
        if all(one.limit.relative_to == grammar.BASELINE for one in same):
            faults.append("no promise beside it says that anything is learnt")
    return Promise(threshold, low, high, room, broken_by, tuple(faults))


def shown(threshold: Threshold, value: float | None) -> str:
    """Return a figure for people."""
    if value is None:
        return "no data"
    return f"{value:.3f} x" if threshold.limit.relative_to else show(threshold, value)


def table_of(name: str, promises: Sequence[Promise]) -> Table:
    """Return what a scenario promises, what it keeps, and what breaks it."""
    table = Table(title=name, title_justify="left")
    for heading in ("promise", "seeds", "room", "missed by", "verdict"):
        table.add_column(
            heading, justify="right" if heading in ("seeds", "room") else "left", overflow="fold"
        )
    for promise in promises:
        threshold = promise.threshold
        low, high = shown(threshold, promise.low), shown(threshold, promise.high)
        table.add_row(
            str(threshold),
            low if low == high else f"{low} to {high}",
            "" if math.isinf(promise.room) else f"{promise.room:.1f}",
            "; ".join(f"{way} ({shown(threshold, value)})" for way, value in promise.broken_by.items()),
            "; ".join(promise.faults) or "good",
        )
    return table


def judged(
    name: str, seeds: Sequence[int | None], broken_seeds: Sequence[int | None], runs: Path, pool: Executor
) -> list[Promise]:
    """Run a scenario as it is shipped and in every broken way, and judge its promises."""
    thresholds = written(name).scenario.thresholds
    ways = {"": (), **ways_to_break(name)}
    running = {
        way: [
            pool.submit(measure, Job(name, settings, seed, runs)) for seed in (broken_seeds if way else seeds)
        ]
        for way, settings in ways.items()
    }
    # By threshold, then by seed.
    found = {
        way: list(zip(*(future.result() for future in of_way), strict=True))
        for way, of_way in running.items()
    }
    shipped = found.pop("")
    return [
        promise_of(threshold, shipped[index], {way: each[index] for way, each in found.items()}, thresholds)
        for index, threshold in enumerate(thresholds)
    ]


def main() -> int:
    names = sorted(file.stem for file in SCENARIOS.glob("*.yaml"))
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenarios", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=8, help="seeds besides a scenario's own")
    parser.add_argument("--broken-seeds", type=int, default=8, help="seeds of every broken scenario")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--runs", type=Path, help="folder to keep the runs in; by default they are not kept")
    asked = parser.parse_args()
    console = Console(width=150)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(asked.jobs) as pool:
        for name in asked.scenarios:
            if settings_of_data(name) is None:
                console.print(f"{name}: left out, its data are not in the folder that RECFLEET_DATA names")
                continue
            own = written(name).scenario.seed
            others = itertools.islice((seed for seed in itertools.count(1) if seed != own), asked.seeds)
            seeds = [None, *others]
            runs = asked.runs or Path(folder, name)
            promises = judged(name, seeds, range(1, 1 + asked.broken_seeds), runs, pool)
            console.print(table_of(name, promises))
            wrong += sum(bool(promise.faults) for promise in promises)
    console.print(f"{wrong} promises are not good" if wrong else "every promise is good")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
