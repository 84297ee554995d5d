"""Training under secure aggregation beside the same training in the clear, on MovieLens 100K.

    python benchmarks/secure_training.py DATA [ROUNDS]

DATA is the folder that holds ml-100k. Both runs have the same cohorts: between rounds every device comes to
rest. Printed are the errors of both, how far they are apart, and the tables of seconds and bytes by stage
and by class of device.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console

from coordinator.engine.facts import MetricValue, RoundRow
from coordinator.results.summary import summarise
from coordinator.results.summary_tables import render, render_details
from coordinator.results.tables.reader import open_run
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load

SCENARIO = Path(__file__).parents[1] / "scenarios" / "movielens_100k.yaml"
SAME_COHORTS = ("learning.upload=dense", "rounds.interval=3 min")
SECURE = (
    "secure_aggregation={mode: secagg-plus,"
    " stage_deadlines: {share_keys: 1 min, masked_input: 1 min, unmask: 1 min}}"
)


class Quiet:
    """Observes and says nothing."""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Say nothing."""

    def on_round(self, row: RoundRow) -> None:
        """Say nothing."""

    def on_evaluation(self, round_number: int, values: list[MetricValue]) -> None:
        """Say nothing."""

    def on_end(self, status: str) -> None:
        """Say nothing."""


def train(folder: Path, settings: list[str]) -> tuple[np.ndarray, dict]:
    outcome = run_scenario(load(SCENARIO, settings), target=folder, observer=Quiet())
    tables = open_run(outcome.directory)
    rows = tables.read("evaluations").to_pylist()
    errors = [row["value"] for row in rows if row["metric"] == "rmse" and row["tag"] == "all"]
    return np.array(errors), summarise(tables)


def main() -> None:
    data, rounds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "200"
    common = [f"data.path={data}/ml-100k", f"rounds.count={rounds}", *SAME_COHORTS]
    with tempfile.TemporaryDirectory() as folder:
        plain, plain_summary = train(Path(folder, "plain"), common)
        secure, secure_summary = train(Path(folder, "secure"), [*common, SECURE])
    console = Console(width=170)
    for summary in (plain_summary, secure_summary):
        console.print(render(summary), render_details(summary))
    print(f"RMSE in the clear {plain[-1]:.7f}, summed securely {secure[-1]:.7f}")
    print(f"largest difference of {len(plain)} evaluations: {np.abs(plain - secure).max():.1e}; wanted 1e-4")


if __name__ == "__main__":
    main()
