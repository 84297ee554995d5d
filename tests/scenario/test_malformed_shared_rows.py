"""What a user's row on the coordinator does not go with."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load

TEXT = """
format: 2
data: {source: synthetic-ratings, users: 60, items: 40, ratings_per_user: 8}
fleet: {mix: global_android_2024}
learning: {algorithm: fedavg-mf, factors: 4}
rounds: {count: 3, cohort: 10}
"""
CASES = {
    "secure_aggregation.mode=secagg-plus": "5:23: learning.algorithm: no sum hides a user's row",
    "privacy={mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1}": (
        "5:23: learning.algorithm: noise that hides a user in a sum leaves nothing of a row"
    ),
    "data.users_per_client=4": "5:23: learning.algorithm: 'fedavg-mf' keeps a row of one user",
    "rounds.pacing={mode: buffered, concurrency: 20}": (
        "rounds.pacing.mode: a user's row on the coordinator could change under its own device"
    ),
}


@pytest.mark.parametrize("setting", CASES)
def test_is_refused(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(TEXT)
    load(file)
    with pytest.raises(ScenarioError) as caught:
        load(file, (setting,))
    assert CASES[setting] in str(caught.value)


def test_a_graph_between_tables_is_refused_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    graph = TEXT.replace("fedavg-mf, factors: 4", "gpfedrec, factors: 4")
    file.write_text(graph + "evaluation: {ranking: {}}\n")
    load(file)
    with pytest.raises(ScenarioError, match="compares the tables of single devices, which a sum does not"):
        load(file, ("secure_aggregation.mode=secagg-plus",))
