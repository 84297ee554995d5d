"""Sweeps as they are written: their cells, and what is refused and where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scenario_files import BASE, write_files

from coordinator.scenario.dump import dump_resolved
from coordinator.scenario.load import ScenarioError, load
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.sweep import Cell, load_cells
from device_profiles.documents import parse_document

GRID = """\
sweep:
  rounds.over_select: [100%, 130%]
  rounds.deadline: [30 s, 45 s, 90 s]
  repeat: 2
"""


def cells_of(folder: Path, sweep: str, *overrides: str) -> tuple[Cell, ...]:
    return load_cells(load(write_files(folder, {"s.yaml": BASE + sweep}), overrides))


def test_a_grid_is_every_combination_the_last_varying_fastest(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, GRID)
    assert [cell.number for cell in cells] == [1, 2, 3, 4, 5, 6]
    assert [cell.label for cell in cells[:4]] == [
        "rounds.over_select=100%, rounds.deadline=30 s",
        "rounds.over_select=100%, rounds.deadline=45 s",
        "rounds.over_select=100%, rounds.deadline=90 s",
        "rounds.over_select=130%, rounds.deadline=30 s",
    ]
    last = cells[-1].runs
    assert [run.scenario.seed for run in last] == [7, 8]
    assert {(run.scenario.rounds.over_select, run.scenario.rounds.deadline) for run in last} == {(1.3, 90.0)}
    assert all(run.scenario.sweep is None for cell in cells for run in cell.runs)
    assert len({run.hash for cell in cells for run in cell.runs}) == 12


def test_null_removes_the_cells_of_the_parent(tmp_path: Path) -> None:
    base = BASE + "sweep:\n  cells: [{learning.factors: 4}, {learning.factors: 8}]\n"
    child = "extends: base.yaml\nsweep:\n  cells:\n  rounds.quorum: [1, 2, 3]\n"
    assert len(load_cells(load(write_files(tmp_path, {"base.yaml": base, "s.yaml": child})))) == 3


def test_cells_vary_together_and_null_removes(tmp_path: Path) -> None:
    sweep = """\
sweep:
  cells:
    - {learning.factors: 4, thresholds: null, rounds.retry: {attempts: 5}}
    - {learning.factors: 16, evaluation: {every: 3}}
  rounds.quorum: [1, 10%]
"""
    cells = cells_of(tmp_path, sweep)
    assert [cell.runs[0].scenario.learning.factors for cell in cells] == [4, 4, 16, 16]  # type: ignore[union-attr]
    assert [cell.runs[0].scenario.rounds.quorum for cell in cells] == [1, 0.1, 1, 0.1]
    assert [len(cell.runs[0].scenario.thresholds) for cell in cells] == [0, 0, 1, 1]
    assert [cell.runs[0].scenario.rounds.retry.attempts for cell in cells] == [5, 5, 3, 3]
    # A mapping merges with what is there.
    assert [cell.runs[0].scenario.evaluation.every for cell in cells] == [10, 10, 3, 3]
    assert cells[2].runs[0].scenario.evaluation.final
    assert cells[0].settings[1] == ("thresholds", "null")


def test_repeats_alone_are_one_cell(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path, "sweep: {repeat: 3}\n")
    assert cell.label == "as written"
    assert [run.scenario.seed for run in cell.runs] == [7, 8, 9]


def test_a_sweep_is_not_part_of_what_a_scenario_asks_for(tmp_path: Path) -> None:
    plain = load(write_files(tmp_path, {"s.yaml": BASE}))
    assert load_cells(plain) == ()
    swept = load(write_files(tmp_path, {"s.yaml": BASE + GRID}))
    assert swept.hash == plain.hash
    read_back = ScenarioSettings.model_validate(parse_document(dump_resolved(swept.scenario), "dump").root)
    assert read_back == swept.scenario
    assert read_back.sweep is not None
    assert len(list(read_back.sweep.cells())) == 6


def test_a_sweep_is_inherited_and_the_command_line_changes_it(tmp_path: Path) -> None:
    child = "extends: base.yaml\nsweep: {rounds.deadline: null, rounds.quorum: [1, 2]}\n"
    path = write_files(tmp_path, {"base.yaml": BASE + GRID, "s.yaml": child})
    assert len(load_cells(load(path))) == 4
    cells = load_cells(load(path, ['sweep."rounds.quorum"=[5]', "sweep.repeat=1", "seed=40"]))
    assert [cell.label for cell in cells] == [
        "rounds.over_select=100%, rounds.quorum=5",
        "rounds.over_select=130%, rounds.quorum=5",
    ]
    assert [run.scenario.seed for cell in cells for run in cell.runs] == [40, 40]


def test_files_in_a_sweep_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    base = BASE + "sweep:\n  fleet.profiles: [[a.yaml], []]\n"
    (tmp_path / "below" / "a.yaml").write_text("networks: {}\n")
    path = write_files(tmp_path, {"below/base.yaml": base, "s.yaml": "extends: below/base.yaml\n"})
    cells = load_cells(load(path))
    run = cells[0].runs[0]
    assert run.resolve(("fleet", "profiles", 0)) == tmp_path / "below" / "a.yaml"


@pytest.mark.parametrize(
    ("sweep", "errors"),
    [
        ("sweep: deadline", ["s.yaml:19:8: sweep: 'deadline' where a mapping belongs; write such"]),
        ("sweep: {}", ["s.yaml:19:8: sweep: nothing is varied; write such as 'rounds.deadline: [30 s"]),
        ("sweep: {repeat: 0}", ["s.yaml:19:17: sweep.repeat: '0' is not a number of repeats"]),
        ("sweep: {repeat: [1]}", ["s.yaml:19:17: sweep.repeat: a list is not a number of repeats"]),
        ("sweep: {repeat: 5.0}", ["s.yaml:19:17: sweep.repeat: '5.0' is not a number"]),
        ("sweep: {repeat: 10001}", ["s.yaml:19:17: sweep.repeat: '10001' is not a number"]),
        ("sweep: {rounds.deadline: 30 s}",
         ["s.yaml:19:26: sweep.\"rounds.deadline\": '30 s' where a list of values belongs; write '[...]'"]),
        ("sweep: {rounds.deadline: []}",
         ['s.yaml:19:26: sweep."rounds.deadline": an empty list where a list of values belongs']),
        ("sweep: {a..b: [1]}", ["s.yaml:19:9: sweep.\"a..b\": 'a..b' is not a setting; write it"]),
        ("sweep: {seed: [1, 2]}", ["s.yaml:19:9: sweep.seed: the seeds of the runs follow from the"]),
        ("sweep: {sweep.repeat: [1, 2]}", ['s.yaml:19:9: sweep."sweep.repeat": a sweep cannot vary itself']),
        ("sweep: {cells: {a: 1}}", ["s.yaml:19:16: sweep.cells: a mapping where a list of mappings"]),
        ("sweep: {cells: [30 s]}", ["s.yaml:19:17: sweep.cells[0]: '30 s' where settings belong"]),
        ("sweep: {cells: [{}]}", ["s.yaml:19:17: sweep.cells[0]: a mapping where settings belong"]),
        ("sweep:\n  rounds.quorum: [1, 2]\n  cells: [{rounds: {quorum: 3}}]",
         ["s.yaml:21:12: sweep.cells[0].rounds: overwrites 'rounds.quorum' of the same sweep; keep one"]),
        ("sweep:\n  rounds.quorum: [1, 2]\n  '\"rounds\".quorum': [3]",
         ["s.yaml:21:3: sweep.\"\\\"rounds\\\".quorum\": overwrites 'rounds.quorum' of the same sweep"]),
        ("sweep:\n  rounds.count: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]\n  repeat: 1000",
         ["s.yaml:20:3: sweep: 11000 runs are more than the limit; write 10000 or less"]),
        # What a cell asks for, at the place of its value.
        ("sweep: {rounds.deadline: [30 s, 45]}",
         ["s.yaml:19:33: rounds.deadline: '45' has no unit; write '45 s'"]),
        ("sweep: {rounds.cohrt: [5]}", ["s.yaml:19:9: rounds.cohrt: unknown key"]),
        ("sweep: {seed.x: [5]}", ['s.yaml:19:9: sweep."seed.x": the seeds of the runs follow']),
        ("sweep: {rounds.count.x: [5]}", ["s.yaml:19:9: rounds.count.x: a key is asked of a single value"]),
        ("sweep: {'phases[0].rounds': [5]}", ["s.yaml:19:9: phases[0]: the list has 0 entries"]),
        ("sweep:\n  rounds.retry: [{attempts: 2}, {attempts: 3, factor: 0.5}]",
         ["s.yaml:20:55: rounds.retry.factor: 0.5 would shrink the pauses"]),
        ("sweep:\n  cells:\n    - {fleet.mix: global_android_2024}\n    - {fleet.mix: nowhere}",
         ["s.yaml:22:19: fleet.mix: unknown fleet 'nowhere'"]),
        ("sweep: {rounds.quorum: [10, 51], rounds.deadline: [1 s, 2 s]}",
         ["s.yaml:19:29: rounds.quorum: 51 is more than the cohort of 50; write 50 or less"]),
        # Elsewhere, but because of a cell.
        ("sweep: {data.users: [100, 40]}",
         ["s.yaml:15:11: rounds.cohort: 50 devices, but the data has 40 clients; write 40 or less"
          " (in the sweep, with data.users=40)"]),
        ("sweep: {rounds.deadline: [30 s, 45 s, 0.5 min]}",
         ['s.yaml:19:39: sweep."rounds.deadline"[2]: asks for the same run as an earlier cell']),
        ("sweep: {title: [a, b]}", ["s.yaml:19:20: sweep.title[1]: asks for the same run"]),
        ("sweep: {rounds.deadline: [1, 2], rounds.cohrt: [3, 4]}",
         ["s.yaml:19:27: rounds.deadline: '1' has no unit", "s.yaml:19:30: rounds.deadline: '2' has no unit",
          "s.yaml:19:34: rounds.cohrt: unknown key"]),
    ],
)  # fmt: skip
def test_each_is_refused_at_its_place(tmp_path: Path, sweep: str, errors: list[str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        cells_of(tmp_path, f"{sweep}\n")
    shown = [str(problem).replace(f"{tmp_path}{os.sep}", "", 1) for problem in caught.value.problems]
    shown.sort()
    assert [line[: len(error)] for line, error in zip(shown, errors, strict=True)] == errors
