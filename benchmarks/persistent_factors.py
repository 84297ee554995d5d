"""User factors kept on the device beside user factors reconstructed every round, as runs on a fleet.

    python benchmarks/persistent_factors.py DATA                 every table, seeds 1 to 5
    python benchmarks/persistent_factors.py DATA --validation    what the settings were chosen by

DATA is a folder with ``ml-100k``, as grouplens.org has it. All runs are scenarios/movielens_100k.yaml, 200
rounds on the same fleet, with other settings in ``learning``. "Seen" users train on 80% of their ratings and
are scored on the rest; "unseen" ones never train: half of their ratings personalise, the other half is
scored. The third table is that of seen users with 20 phones a round in place of 100: a phone takes part four
times in all. The fourth has the linear masks of FedMMF. Bytes are a device's mean over the whole run.

Settings are chosen on ratings (or users) kept back for validation, at seed 1, for every line and table by the
same search: one setting at a time goes up or down as long as that helps.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accuracy import UNSEEN, learning, loaded, run, spread

SCENARIO = "movielens_100k"
TABLES: dict[str, tuple[str, ...]] = {
    "seen": (),
    "unseen": UNSEEN,
    "seen, 20 a round": ("rounds.cohort=20",),
    "seen, masks": ("data.features={kind: movielens}",),
}
"""What is changed in the scenario, besides its ``learning``."""
MASKED = "fedmmf, mask: {kind: one-order, regularization: 150}"


@dataclass(frozen=True)
class Choice:
    """What is chosen on validation: rates of server and user factors, λ of user and item factors."""

    server_rate: float
    user_decay: float
    item_decay: float
    user_rate: float = 1.0


@dataclass(frozen=True)
class Line:
    """A way to come by user factors; no ``steps`` is ridge regression."""

    user_factors: str
    steps: int | None = None

    def settings(self, table: str, choice: Choice) -> tuple[str, ...]:
        """Return the settings of the scenario."""
        method = MASKED if table == "seen, masks" else "fedrecon"
        if self.steps is None:
            how = f"{{method: ridge, regularization: {choice.user_decay}, bias_regularization: 0.5}}"
        else:
            how = (
                f"{{method: gradient-steps, steps: {self.steps}, learning_rate: {choice.user_rate},"
                f" bias_learning_rate: 0.9, regularization: {choice.user_decay}, bias_regularization: 4}}"
            )
        return learning(
            f"""{{algorithm: {method}, factors: 20, initial_scale: 0.02, user_factors: {self.user_factors},
            reconstruction: {how},
            client: {{method: gradient-steps, steps: 1, learning_rate: 1,
                     regularization: {choice.item_decay}}},
            optimizer: {{kind: adam, beta2: 99%, epsilon: 1e-5}}, learning_rate: {choice.server_rate},
            schedule: {{kind: cosine, rounds: 200, final: 2%}}}}"""
        )


LINES = {
    "ridge": Line("reconstructed"),
    "reconstructed, 1 step": Line("reconstructed", 1),
    "reconstructed, 5 steps": Line("reconstructed", 5),
    "persistent, 1 step": Line("persistent", 1),
    "persistent, 5 steps": Line("persistent", 5),
}
CHOSEN = {
    "seen": {
        "ridge": Choice(0.016, 24, 0.06),
        "reconstructed, 1 step": Choice(0.024, 12, 0.02),
        "reconstructed, 5 steps": Choice(0.016, 24, 0.02),
        "persistent, 1 step": Choice(0.016, 24, 0.02, 1.5),
        "persistent, 5 steps": Choice(0.024, 24, 0.06),
    },
    "unseen": {
        "ridge": Choice(0.016, 24, 0.006667),
        "reconstructed, 1 step": Choice(0.024, 24, 0.002222),
        "reconstructed, 5 steps": Choice(0.016, 24, 0.002222, 0.666667),
        "persistent, 1 step": Choice(0.016, 24, 0.02, 1.5),
        "persistent, 5 steps": Choice(0.016, 24, 0.006667),
    },
    "seen, masks": {
        "ridge": Choice(0.016, 48, 0.02),
        "reconstructed, 1 step": Choice(0.016, 24, 0.02, 1.5),
        "reconstructed, 5 steps": Choice(0.016, 24, 0.02),
        "persistent, 1 step": Choice(0.016, 24, 0.02),
        "persistent, 5 steps": Choice(0.016, 48, 0.02),
    },
    "seen, 20 a round": {
        "ridge": Choice(0.024, 24, 0.02),
        "reconstructed, 1 step": Choice(0.036, 24, 0.02),
        "reconstructed, 5 steps": Choice(0.024, 24, 0.02),
        "persistent, 1 step": Choice(0.024, 24, 0.02, 1.5),
        "persistent, 5 steps": Choice(0.024, 24, 0.02),
    },
}
"""What ``--validation`` chose, by table and line."""
SEEDS = range(1, 6)
LEAST_GAIN = 3e-4
"""The search goes on for no less RMSE than that."""
FIRST = Choice(server_rate=0.016, user_decay=24.0, item_decay=0.02)
FACTORS = {"server_rate": 1.5, "user_decay": 2.0, "item_decay": 3.0, "user_rate": 1.5}
"""What the search multiplies and divides each setting by."""


def choose(data: Path, table: str, name: str) -> None:
    """Print the choice that no step of the search improves, from :data:`FIRST`, and the steps to it."""
    line = LINES[name]
    found: dict[Choice, float] = {}

    def error(choice: Choice) -> float:
        if choice not in found:
            settings = [*TABLES[table], *line.settings(table, choice)]
            result = run(loaded(data, SCENARIO, settings, 1, validation=True), unseen=table == "unseen")
            found[choice] = result.last["rmse"]
        return found[choice]

    best = FIRST
    while True:
        print(f"{table:17} {name:23} {error(best):.4f}  {best}", flush=True)
        better = min(neighbours(line, best), key=error)
        if error(better) > error(best) - LEAST_GAIN:
            return
        best = better


def neighbours(line: Line, choice: Choice) -> Iterator[Choice]:
    """Yield the choices one step away; ridge has no rate of user factors."""
    for name, factor in FACTORS.items():
        if name == "user_rate" and line.steps is None:
            continue
        for way in (factor, 1 / factor):
            yield dataclasses.replace(choice, **{name: round(getattr(choice, name) * way, 6)})


def measure(data: Path, table: str, name: str) -> None:
    """Print the row of a line: what its chosen settings reach on the test part, over five seeds."""
    settings = [*TABLES[table], *LINES[name].settings(table, CHOSEN[table][name])]
    results = [
        run(loaded(data, SCENARIO, settings, seed, validation=False), unseen=table == "unseen")
        for seed in SEEDS
    ]
    mean = statistics.fmean
    print_row(
        table,
        name,
        spread([result.last["rmse"] for result in results]),
        f"{mean(r.down_mb for r in results):.2f} + {mean(r.up_mb for r in results):.3f}",
        f"{mean(r.simulated_s for r in results) / 3600:.2f}",
    )


def print_row(*cells: str) -> None:
    print(
        "  ".join(f"{cell:{width}}" for cell, width in zip(cells, (17, 23, 16, 14, 7), strict=True)),
        flush=True,
    )


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--validation", action="store_true", help="choose settings on the validation part")
    arguments = parser.parse_intermixed_args()
    unknown = [table for table in arguments.tables if table not in TABLES]
    if unknown:
        parser.error(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}")
    if not arguments.validation:
        print_row("", "", "test RMSE", "MB down + up", "sim. h")
    for table, name in itertools.product(arguments.tables or TABLES, LINES):
        (choose if arguments.validation else measure)(arguments.data.resolve(), table, name)


if __name__ == "__main__":
    main()
