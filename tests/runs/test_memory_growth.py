"""Memory does not rise with the number of rounds."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from run_helpers import SMALL, Silent, rows_of

from coordinator.engine.facts import MetricValue, RoundRow
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load


class _Forgetful(Silent):
    def on_round(self, row: RoundRow) -> None:
        del row

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        del round_number, values


@pytest.mark.slow
def test_memory_after_400_rounds_is_that_after_150(tmp_path: Path) -> None:
    settings = [
        "data.users=2000",
        "data.items=800",
        "data.ratings_per_user=40",
        "rounds.count=410",
        "rounds.cohort=100",
        "rounds.over_select=130%",
        # A timer of each device lives until the deadline, here some twenty rounds later.
        "rounds.deadline=20 s",
        "fleet.availability=bernoulli_google",
        "evaluation.every=10",
    ]
    file = tmp_path / "long.yaml"
    file.write_text(SMALL)
    outcome = run_scenario(load(file, settings), target=tmp_path / "out", observer=_Forgetful())
    resident = [row["host_rss_bytes"] for row in rows_of(outcome, "rounds")]
    assert len(resident) == 410
    # What Arrow takes for its first batches of rows is there after about a hundred rounds.
    early, late = statistics.median(resident[140:160]), statistics.median(resident[390:410])
    assert late <= 1.02 * early, f"{early / 2**20:.1f} MiB after 150 rounds, {late / 2**20:.1f} after 400"
