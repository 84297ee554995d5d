"""The studies in benchmarks/sweeps: they load, and every cell of them is a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.scenario.load import load
from coordinator.scenario.sweep import load_cells

STUDIES = sorted((Path(__file__).parents[2] / "benchmarks" / "sweeps").glob("*.yaml"))


def test_there_are_studies() -> None:
    assert {study.stem for study in STUDIES} >= {
        "ablation",
        "local_steps",
        "loss_curve",
        "noise",
        "non_iid",
        "reconstruction",
        "rounds",
    }


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.stem)
def test_every_cell_is_a_scenario_with_repeats(study: Path) -> None:
    cells = load_cells(load(study, references=False), references=False)
    assert len(cells) >= 4
    for cell in cells:
        assert len({run.scenario.seed for run in cell.runs}) >= 3
