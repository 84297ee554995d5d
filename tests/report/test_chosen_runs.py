"""Directories of runs, and the sweeps that name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from metrics_samples import write_run
from report_reading import Page

from coordinator.results.report.page import report_of
from coordinator.results.report.view import chosen_runs
from coordinator.results.tables.reader import RunFormatError


def make_runs(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        write_run(folder / name, rounds=2)
        (folder / name / "manifest.json").write_text('{"status": "finished"}', encoding="utf-8")


def cell(settings: dict[str, str], **runs: int) -> dict[str, object]:
    return {
        "settings": settings,
        "figures": {},
        "runs": [{"directory": name, "seed": seed, "status": "held"} for name, seed in runs.items()],
    }


def write_sweep(folder: Path, *cells: dict[str, object]) -> None:
    (folder / "sweep.json").write_text(json.dumps({"cells": cells}), encoding="utf-8")


def test_a_directory_stands_for_the_runs_in_it(tmp_path: Path) -> None:
    make_runs(tmp_path, "b", "a")
    (tmp_path / "notes").mkdir()
    found = chosen_runs([tmp_path, tmp_path / "b"])
    assert [run.directory for run in found] == [tmp_path / "a", tmp_path / "b", tmp_path / "b"]
    # The run that is named twice is told apart by its path, as far as that can be.
    assert [run.name for run in found] == ["a", str(tmp_path / "b"), str(tmp_path / "b")]


def test_runs_of_a_sweep_are_called_after_what_it_varied(tmp_path: Path) -> None:
    make_runs(tmp_path, "a", "b", "c")
    write_sweep(
        tmp_path,
        cell({"rounds.cohort": "20", "learning.factors": "4"}, c=7, a=8),
        cell({"rounds.cohort": "30", "learning.factors": "4"}, b=7, never_begun=8),
    )
    assert [(run.directory.name, run.name, run.group) for run in chosen_runs([tmp_path])] == [
        ("c", "cohort=20, seed 7", "cohort=20"),
        ("a", "cohort=20, seed 8", "cohort=20"),
        ("b", "cohort=30, seed 7", "cohort=30"),
    ]
    page = Page(report_of([tmp_path]))
    assert page.texts["h1"] == ["3 runs compared"]
    # Repeats share a line style and an entry of every legend.
    legend = [text for text in page.texts["li"] if text.startswith("cohort")]
    assert set(legend) == {"cohort=20", "cohort=30"}


def test_values_in_a_mapping_tell_cells_apart(tmp_path: Path) -> None:
    make_runs(tmp_path, "a", "b", "c")
    written = [
        {"learning": '{"algorithm": "lipm", "window": "9", "client": {"steps": "1"}}'},
        {"learning": '{"algorithm": "blur", "client": {"steps": "1"}}'},
        {"learning": '{"algorithm": "blur", "client": {"steps": "3"}}'},
    ]
    write_sweep(tmp_path, *(cell(one, **{name: 1}) for one, name in zip(written, "abc", strict=True)))
    # The window is of the first alone, which the algorithm has told apart already.
    assert [run.group for run in chosen_runs([tmp_path])] == [
        "algorithm=lipm, steps=1",
        "algorithm=blur, steps=1",
        "algorithm=blur, steps=3",
    ]


def test_settings_of_equal_last_keys_are_written_in_full(tmp_path: Path) -> None:
    make_runs(tmp_path, "a")
    write_sweep(tmp_path, cell({"data.users": "20", "fleet.users": "4"}, a=1))
    assert [run.name for run in chosen_runs([tmp_path])] == ["data.users=20, fleet.users=4, seed 1"]


def test_a_setting_that_only_looks_like_a_mapping_is_a_text(tmp_path: Path) -> None:
    make_runs(tmp_path, "a", "b")
    write_sweep(tmp_path, cell({"title": "{a"}, a=1), cell({"title": "{}"}, b=1))
    assert [run.group for run in chosen_runs([tmp_path])] == ["title={a", "title={}"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"cells": [{"settings": {}}]}',
        '{"cells": [1]}',
        '{"cells": [{"settings": {}, "runs": [], "figures": {"x": {"unit": "count"}}}]}',
        """{"cells": [{"settings": {}, "runs": [], "figures":
            {"x": {"unit": "count", "mean": "large", "half_width": null, "n": 1, "values": {}}}}]}""",
    ],
)
def test_a_broken_sweep_is_refused_by_name(tmp_path: Path, text: str) -> None:
    make_runs(tmp_path, "a")
    (tmp_path / "sweep.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunFormatError, match=r"sweep\.json: is damaged"):
        chosen_runs([tmp_path])


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFormatError, match="not a run directory"):
        report_of([tmp_path])
