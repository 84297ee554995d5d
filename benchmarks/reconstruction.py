"""Federated reconstruction beside methods that share or keep user factors: accuracy a round and a megabyte.

    python benchmarks/reconstruction.py DATA                         every table
    python benchmarks/reconstruction.py DATA 100k-seen --seeds 3     one of them, fewer seeds
    python benchmarks/reconstruction.py DATA --validation            what the settings were chosen by

DATA is a folder with ``ml-100k`` and ``ml-1m``, as grouplens.org has them. "Seen" users train on 80% of their
ratings and are scored on the rest; "unseen" ones, a fifth, never train: half of their ratings personalise,
the other half is scored. Every round has 100 users drawn at random; learning alone, without a fleet:
everybody comes. Bytes are those of the arrays that one device moves, without framing, as a mean over all
devices.

Columns: RMSE and the share of predictions within half a star at the end, as mean ± standard deviation over
seeds; RMSE after some rounds, and at the last look before a device has moved so many megabytes; megabytes it
has down- and uploaded at the end; and the first round looked at (and megabytes until then) that is better
than user and item biases alone, which with the item means stand below each table. There are a hundred looks.

Settings are chosen on ratings (or users) kept back for validation, at seed 1: from where a line begins, one
setting at a time is tried at two to four values, and the best of these runs is taken. The numbers of rounds,
200 and 500, are those of accuracy.py, chosen there on validation data.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accuracy import FOLDERS, REFERENCES, SCENARIOS, UNSEEN, learning, score
from rating_references import Shrinkage, Task, biases, item_means, task_of

from coordinator.engine.assembly import Assembly
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.scenario.load import load
from edge.core.rng import stream

COHORT = 100
LOOKS = 100
BUDGETS_MB = (0.25, 0.5, 1.0, 2.0)
"""What a device moves either way until RMSE is looked up."""


@dataclass(frozen=True)
class Table:
    """Data and its split, how many rounds there are, and the users that are scored."""

    scenario: str
    settings: tuple[str, ...]
    rounds: int
    population: str
    shrinkage: Shrinkage


SEEN_1M = ("data.split=null", "data.split={kind: ratio, test: 20%}")
TABLES = {
    "100k-seen": Table("movielens_100k", (), 200, "seen", REFERENCES["100k-seen"].shrinkage),
    "100k-unseen": Table("movielens_100k", UNSEEN, 200, "unseen", REFERENCES["100k-unseen"].shrinkage),
    "1m-seen": Table("movielens_1m", SEEN_1M, 500, "seen", REFERENCES["1m-unseen"].shrinkage),
    "1m-unseen": Table("movielens_1m", (), 500, "unseen", REFERENCES["1m-unseen"].shrinkage),
}

ADAM = "optimizer: {{kind: adam, beta2: 99%, epsilon: {epsilon}}}, learning_rate: {rate}"
STEPS = "{{method: gradient-steps, steps: 1, learning_rate: 1, regularization: {item}}}"
JOINT = "{{method: gradient-steps, steps: {steps:.0f}, learning_rate: {client}, regularization: {decay}}}"
ONE_STEP = """{{method: gradient-steps, steps: 1, learning_rate: 1, bias_learning_rate: 0.9,
  regularization: {user}, bias_regularization: 4}}"""


@dataclass(frozen=True)
class Line:
    """A method: its settings, with names in the place of what is chosen, and what is tried for those."""

    settings: str
    tried: dict[str, tuple[float, ...]]

    def written(self, chosen: dict[str, float], rounds: int) -> tuple[str, ...]:
        """Return the settings of the scenario."""
        text = (
            f"{{{{factors: 20, initial_scale: 0.02, {self.settings}, {ADAM},"
            f" schedule: {{{{kind: cosine, rounds: {rounds}, final: 2%}}}}}}}}"
        )
        return learning(text.format(**chosen))


LINES = {
    "FedRecon, ridge": Line(
        "algorithm: fedrecon, client: " + STEPS + ", reconstruction: {{method: ridge, regularization: {user},"
        " bias_regularization: 0.5}}",
        {"user": (12, 24, 48), "rate": (0.01, 0.04)},
    ),
    "FedRecon, 5 steps": Line(
        "algorithm: fedrecon, client: "
        + STEPS
        + ", reconstruction: "
        + ONE_STEP.replace("steps: 1", "steps: 5"),
        {"user": (12, 24, 48), "rate": (0.01, 0.04)},
    ),
    "FedMF": Line(
        # A sum in the place of a mean: epsilon is larger by as much as there are ratings in a round.
        "algorithm: fedmf, item_bias: true, user_bias: true, client: "
        + STEPS
        + ", reconstruction: "
        + ONE_STEP,
        {"user": (12, 24, 48), "rate": (0.01, 0.04), "epsilon": (0.1, 1)},
    ),
    "FedAvg": Line(
        "algorithm: fedavg-mf, client: " + JOINT,
        {"steps": (4, 16), "decay": (0.05, 0.1, 0.2), "rate": (0.01, 0.04)},
    ),
    "FedAvg, rows by ridge": Line(
        "algorithm: fedavg-mf, client: " + JOINT + ", fine_tuning: {{method: ridge, regularization: {user},"
        " bias_regularization: 0.5}}",
        {"steps": (4, 16), "decay": (0.05, 0.1, 0.2), "rate": (0.01, 0.04), "user": (12, 24, 48)},
    ),
    "FedProx": Line(
        "algorithm: fedavg-mf, client: " + JOINT + ", proximal: {pull}", {"pull": (0.01, 0.03, 0.1, 0.3)}
    ),
    "pFedMe": Line(
        "algorithm: pfedme, client: " + JOINT + ", proximity: {near}, inner_learning_rate: 0.02",
        {"near": (7, 15, 30)},
    ),
    "FedRec, ρ = 1": Line(
        "algorithm: fedrec, item_bias: true, user_bias: true, client: "
        + STEPS
        + ", reconstruction: "
        + ONE_STEP,
        {"user": (6, 12, 24)},
    ),
}
BASE: dict[str, dict[str, float]] = {
    "100k": {
        "rate": 0.016,
        "epsilon": 1e-5,
        "user": 24,
        "item": 0.02,
        "steps": 16,
        "client": 0.8,
        "decay": 0.1,
    },
    "1m": {"rate": 0.04, "epsilon": 1e-4, "user": 8, "item": 0.02, "steps": 8, "client": 0.8, "decay": 0.05},
}
"""Where the search begins."""
CHOSEN: dict[tuple[str, str], dict[str, float]] = {
    ("100k-seen", "FedAvg, rows by ridge"): {"user": 12},
    ("100k-seen", "pFedMe"): {"near": 30},
    ("100k-seen", "FedRec, ρ = 1"): {"user": 6},
    ("100k-unseen", "FedMF"): {"rate": 0.04},
    ("100k-unseen", "FedAvg"): {"decay": 0.2},
    ("100k-unseen", "FedAvg, rows by ridge"): {"user": 12},
    ("1m-seen", "FedRecon, ridge"): {"user": 24},
    **{
        (f"1m-{who}", line): {"rate": 0.02}
        for who in ("seen", "unseen")
        for line in ("FedAvg", "FedAvg, rows by ridge")
    },
}
"""What ``--validation`` chose in the place of that, by table and line."""


def settings_of(table: str, line: str) -> dict[str, float]:
    """Return the settings of a line that the search begins with, with those that it has chosen."""
    tried = LINES[line].tried
    base = BASE[table.split("-", maxsplit=1)[0]]
    start = {key: values[0] for key, values in tried.items()} | base
    start["epsilon"] = tried.get("epsilon", (base["epsilon"],))[0]
    return start | CHOSEN.get((table, line), {})


@dataclass(frozen=True)
class Result:
    """RMSE and the share within half a star by round, and the megabytes that a device has moved."""

    at: dict[int, tuple[float, float]]
    down_mb: float
    up_mb: float

    @property
    def last(self) -> tuple[float, float]:
        """RMSE and share at the end."""
        return self.at[max(self.at)]


def assembled(data: Path, table: Table, settings: Sequence[str], seed: int, *, validation: bool) -> Assembly:
    """Return the data and the method of a table; with ``validation`` a tenth more is kept back and scored."""
    common = [f"data.path={data / FOLDERS[table.scenario]}", "thresholds=null", "record.events=none"]
    scored = ["evaluation.on=validation", "data.split.validation=10%"] if validation else []
    file = SCENARIOS / f"{table.scenario}.yaml"
    return assemble(load(file, [*common, *table.settings, *settings, *scored, f"seed={seed}"]))


def learn(assembly: Assembly, table: Table, seed: int, looks: int) -> Result:
    """Train with a random cohort in every round, and score the model ``looks`` times."""
    workload = assembly.workload
    assert isinstance(workload, RatingWorkload)
    algorithm, n = workload.algorithm, workload.n_clients
    state = algorithm.initial_state(seed)
    optimizer_state = algorithm.initial_optimizer_state(state)
    draws, at, up_bytes = stream(seed, "benchmark", "cohorts"), {}, 0
    down_bytes = sum(array.nbytes for array in algorithm.broadcast(state).values())
    for number in range(1, table.rounds + 1):
        clients = np.sort(draws.choice(n, COHORT, replace=False))
        accumulator, own = algorithm.accumulator(state), workload.own_parts(state)
        updates = workload.training(state, number)(clients)()
        for client, update in zip(clients.tolist(), updates, strict=True):
            up_bytes += sum(array.nbytes for array in update.arrays.values())
            if workload.keep is not None and update.local is not None:
                workload.keep(client, update.local)
            arrays = update.arrays if own is None else own.named(client, update.arrays)
            accumulator.add(update._replace(arrays=arrays), client)
        state, optimizer_state = algorithm.server_update(
            state, optimizer_state, accumulator.result(), number - 1
        )
        if number % (table.rounds // looks) == 0:
            found = {
                value.metric: value.value
                for value in assembly.evaluator.evaluate(state)
                if value.tag == "all" and value.population == table.population
            }
            at[number] = found["rmse"], found["accuracy"]
    return Result(at, down_bytes * COHORT * table.rounds / n / 1e6, up_bytes / n / 1e6)


def choose(data: Path, name: str, line: str) -> None:
    """Print what each setting that is tried comes to, the others as the search begins."""
    table, start = TABLES[name], settings_of(name, line)
    tries = [(key, value) for key, values in LINES[line].tried.items() for value in values]
    for key, value in [("", 0.0), *((key, value) for key, value in tries if start[key] != value)]:
        settings = LINES[line].written({**start, key: value}, table.rounds)
        with np.errstate(all="ignore"):  # a step too far is a bad choice, and no more
            result = learn(assembled(data, table, settings, 1, validation=True), table, 1, 1)
        print(f"    {result.last[0]:.4f}  {f'{key}: {value:g}' if key else start}", flush=True)


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Return mean ± standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} ± {deviation:.{digits}f}"


def print_row(*cells: str) -> None:
    widths = (23, 16, 12, 31, 36, 14, 16)
    print("  ".join(f"{c:{w}}" for c, w in zip(cells, widths, strict=False)).rstrip(), flush=True)


def tasks(data: Path, table: Table, seeds: Sequence[int]) -> list[Task]:
    """Return what a table is about for every seed."""
    found = []
    for seed in seeds:
        workload = assembled(data, table, (), seed, validation=False).workload
        assert isinstance(workload, RatingWorkload)
        found.append(task_of(workload.split, unseen=table.population == "unseen", validation=False))
    return found


def print_table(data: Path, name: str, lines: Sequence[str], seeds: Sequence[int]) -> None:
    """Print a row for every line, and the references."""
    table = TABLES[name]
    each = tasks(data, table, seeds)
    references = {
        "item means (popularity)": [item_means(task) for task in each],
        "user and item biases": [biases(task, table.shrinkage) for task in each],
    }
    scores = {
        label: [score(task, guess) for task, guess in zip(each, guesses, strict=True)]
        for label, guesses in references.items()
    }
    bar = statistics.fmean(s["rmse"] for s in scores["user and item biases"])
    looks = (table.rounds // 10, table.rounds // 4, table.rounds // 2)
    way = "RMSE after " + ", ".join(map(str, looks))
    within = "within " + ", ".join(f"{budget:g}" for budget in BUDGETS_MB) + " MB"
    print_row(name, f"RMSE, {table.rounds} rounds", "<= .5", way, within, "MB down + up", "beats biases")
    for label in lines:
        settings = LINES[label].written(settings_of(name, label), table.rounds)
        results = [
            learn(assembled(data, table, settings, seed, validation=False), table, seed, LOOKS)
            for seed in seeds
        ]
        mean = {n: statistics.fmean(r.at[n][0] for r in results) for n in results[0].at}
        down, up = (statistics.fmean(getattr(r, f"{way}_mb") for r in results) for way in ("down", "up"))
        beaten = min((n for n, value in mean.items() if value < bar), default=None)
        spent = {
            budget: [n for n in mean if (down + up) * n / table.rounds <= budget] for budget in BUDGETS_MB
        }
        print_row(
            label,
            spread([r.last[0] for r in results]),
            spread([r.last[1] for r in results], 3),
            "  ".join(f"{mean[n]:.4f}" for n in looks),
            "  ".join(f"{mean[max(rounds)]:.4f}" for rounds in spent.values()),
            f"{down:.2f} + {up:.3f}",
            "never" if beaten is None else f"{beaten} ({(down + up) * beaten / table.rounds:.2f} MB)",
        )
    for label, found in scores.items():
        print_row(label, spread([s["rmse"] for s in found]), spread([s["accuracy"] for s in found], 3))


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--lines", action="append", help="only these: " + "; ".join(LINES))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1")
    parser.add_argument("--validation", action="store_true", help="choose settings on the validation part")
    arguments = parser.parse_intermixed_args()
    for given, known in ((arguments.tables, TABLES), (arguments.lines or (), LINES)):
        for name in given:
            if name not in known:
                parser.error(f"there is no {name!r}; there are {', '.join(known)}")
    lines = arguments.lines or list(LINES)
    for name in arguments.tables or TABLES:
        seeds = range(1, 1 + arguments.seeds)
        if not arguments.validation:
            print_table(arguments.data.resolve(), name, lines, seeds)
            continue
        for label in lines:
            print(f"{name}, {label}", flush=True)
            choose(arguments.data.resolve(), name, label)


if __name__ == "__main__":
    main()
