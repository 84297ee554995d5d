"""User factors kept on the device beside user factors reconstructed every round, as runs on a fleet.

    python benchmarks/persistent_factors.py DATA                 every table, seeds 1 to 5
    python benchmarks/persistent_factors.py DATA --validation    what the settings were chosen by

DATA is a folder with ``ml-100k``, as grouplens.org has it. All runs are scenarios/movielens_100k.yaml, 200
rounds on the same fleet, with other settings in ``learning``. "Seen" users train on 80% of their ratings and
are scored on the rest; "unseen" ones never train: half of their ratings personalise, the other half is
scored. The third table is that of seen users with 20 phones a round in place of 100: a phone takes part four
times in all. Bytes are a device's mean over the whole run.

Settings are chosen on ratings (or users) kept back for validation, for every line and table from the same
grid, :data:`GRID`, at seed 1.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy import UNSEEN, learning, loaded, run, spread

SCENARIO = "movielens_100k"
TABLES: dict[str, tuple[str, ...]] = {
    "seen": (),
    "unseen": UNSEEN,
    "seen, 20 a round": ("rounds.cohort=20",),
}
"""What is changed in the scenario, besides its ``learning``."""


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

    def settings(self, choice: Choice) -> tuple[str, ...]:
        """Return the settings of the scenario."""
        if self.steps is None:
            how = f"{{method: ridge, regularization: {choice.user_decay}, bias_regularization: 0.5}}"
        else:
            how = (
                f"{{method: gradient-steps, steps: {self.steps}, learning_rate: {choice.user_rate},"
                f" bias_learning_rate: 0.9, regularization: {choice.user_decay}, bias_regularization: 4}}"
            )
        return learning(
            f"""{{algorithm: fedrecon, factors: 20, initial_scale: 0.02, user_factors: {self.user_factors},
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
GRID = [
    Choice(*values)
    for values in itertools.product((0.004, 0.008, 0.016, 0.032), (12, 25, 50, 100), (0.02, 0.1))
]
CHOSEN: dict[str, dict[str, Choice]] = {}
"""What ``--validation`` chose, by table and line."""
SEEDS = range(1, 6)
USER_RATES = (0.3, 1.7)
"""Tried beside 1 with the best of the grid."""


def tried(data: Path, table: str, line: Line, choices: Sequence[Choice]) -> Iterator[tuple[float, Choice]]:
    """Yield the validation RMSE of seed 1 after the last round, and what gave it."""
    for choice in choices:
        settings = [*TABLES[table], *line.settings(choice)]
        result = run(loaded(data, SCENARIO, settings, 1, validation=True), unseen=table == "unseen")
        yield result.last["rmse"], choice


def choose(data: Path, table: str, name: str) -> None:
    """Print the best of the grid."""
    line = LINES[name]
    found = sorted(tried(data, table, line, GRID), key=lambda pair: pair[0])
    if line.steps is not None:
        best = found[0][1]
        rates = [Choice(best.server_rate, best.user_decay, best.item_decay, rate) for rate in USER_RATES]
        found = sorted([*found, *tried(data, table, line, rates)], key=lambda pair: pair[0])
    for rmse, choice in found[:3]:
        print(f"{table:17} {name:23} {rmse:.4f}  {choice}", flush=True)


def measure(data: Path, table: str, name: str) -> None:
    """Print the row of a line: what its chosen settings reach on the test part, over five seeds."""
    settings = [*TABLES[table], *LINES[name].settings(CHOSEN[table][name])]
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
