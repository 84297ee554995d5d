"""Files of an older format: read with the defaults that they had, alone and where files extend each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scenario_files import BASE, write_files

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.formats import FORMAT, OLD_DEFAULTS
from coordinator.scenario.load import LoadedScenario, load, load_text
from coordinator.scenario.sweep import load_cells
from coordinator.scenario.upgrade import upgrade

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHIPPED = sorted(SCENARIOS.glob("*.yaml"))
OLD = BASE.replace("format: 2", "format: 1")
DRAWING = "  ratings_per_user: 30\n  negatives: 2"
"""Devices that draw zeros; then only rankings can be measured."""
OLD_DRAWING = OLD.replace("  ratings_per_user: 30", DRAWING) + "evaluation: {ranking: {}}\n"


RANDOM, AWARE = "random", "availability-aware"


def selection(loaded: LoadedScenario) -> str:
    return loaded.scenario.rounds.selection.name


def read(folder: Path, text: str, *settings: str) -> LoadedScenario:
    return load(write_files(folder, {"s.yaml": text}), settings)


def asked(loaded: LoadedScenario) -> list[str]:
    """Return what a scenario and the cells of its sweep ask for, and by which hash."""
    runs = [loaded, *(run for cell in load_cells(loaded, references=False) for run in cell.runs)]
    without = (run.scenario.model_copy(update={"sweep": None}) for run in runs)
    return [f"{scenario!r} {run.hash}" for scenario, run in zip(without, runs, strict=True)]


def test_a_new_file_has_the_new_defaults(tmp_path: Path) -> None:
    loaded = read(tmp_path, OLD_DRAWING.replace("format: 1", "format: 2"))
    assert selection(loaded) == AWARE
    assert loaded.scenario.data.held_out_negatives == "drawn"  # type: ignore[union-attr]
    assert loaded.old_defaults == {}


def test_an_old_file_has_the_old_defaults(tmp_path: Path) -> None:
    loaded = read(tmp_path, OLD_DRAWING)
    assert selection(loaded) == RANDOM
    assert loaded.scenario.data.held_out_negatives == "spared"  # type: ignore[union-attr]
    assert loaded.scenario.format == FORMAT
    assert loaded.old_defaults == {str(tmp_path / "s.yaml"): OLD_DEFAULTS}
    assert load_text(OLD_DRAWING, "s").scenario == loaded.scenario


def test_what_an_old_file_says_holds(tmp_path: Path) -> None:
    written = OLD_DRAWING.replace("  cohort: 50", "  cohort: 50\n  selection: oort")
    written = written.replace("  negatives: 2", "  negatives: 2\n  held_out_negatives: drawn")
    loaded = read(tmp_path, written)
    assert selection(loaded) == "oort"
    assert loaded.scenario.data.held_out_negatives == "drawn"  # type: ignore[union-attr]
    assert loaded.old_defaults == {str(tmp_path / "s.yaml"): ()}


def test_settings_over_an_old_file_meet_its_defaults(tmp_path: Path) -> None:
    drawing = read(tmp_path, OLD, "data.negatives=2", "evaluation.ranking={}")
    assert drawing.scenario.data.held_out_negatives == "spared"  # type: ignore[union-attr]
    said = OLD.replace("  cohort: 50", "  cohort: 50\n  selection: oort")
    assert selection(read(tmp_path, said, "rounds.selection=null")) == RANDOM
    regression = """
format: 1
data: {source: synthetic-regression, clients: 20, samples_per_client: 9, features: 2}
fleet: {mix: global_android_2024}
learning: {algorithm: linear-regression}
rounds: {count: 1, cohort: 5}
"""
    assert selection(read(tmp_path, regression)) == RANDOM


def test_a_default_that_changes_nothing_is_not_mentioned(tmp_path: Path) -> None:
    loaded = read(tmp_path, OLD)
    assert [str(one) for one in loaded.old_defaults[str(tmp_path / "s.yaml")]] == ["rounds.selection: random"]
    new = read(tmp_path, BASE, "rounds.selection=random")
    assert (new.resolved, new.hash) == (loaded.resolved, loaded.hash)
    spared = read(tmp_path, BASE, "rounds.selection=random", "data.held_out_negatives=spared")
    assert spared.hash == loaded.hash


def test_the_format_stands_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="a file has one format; write it in the file"):
        read(tmp_path, OLD, "format=2")
    with pytest.raises(ScenarioError, match="'3' is a format that this version does not know; write '2'"):
        read(tmp_path, BASE.replace("format: 2", "format: 3"))


@pytest.mark.parametrize(
    ("parent", "child", "expected"),
    [
        (OLD, "format: 2\n", RANDOM),
        (BASE, "format: 1\n", AWARE),
        (OLD, "", RANDOM),
        (OLD, "format: 2\nrounds: {cohort: 40}\n", RANDOM),
        (OLD, "format: 2\nrounds: {selection: oort}\n", "oort"),
        # Null takes out what was said: by the format of the file that has it.
        (OLD, "format: 2\nrounds: {selection: null}\n", AWARE),
        (BASE, "format: 1\nrounds: {selection: null}\n", RANDOM),
        # A section is read by the format of the file that brings it in.
        ("format: 1\n" + BASE.partition("rounds:")[0].partition("\n")[2],
         "format: 2\n" + "rounds:" + BASE.partition("rounds:")[2], AWARE),
        ("format: 2\n" + BASE.partition("rounds:")[0].partition("\n")[2],
         "format: 1\n" + "rounds:" + BASE.partition("rounds:")[2], RANDOM),
    ],
)  # fmt: skip
def test_each_file_of_a_chain_is_read_by_its_own_format(
    parent: str, child: str, expected: str, tmp_path: Path
) -> None:
    files = {"parent.yaml": parent, "s.yaml": f"extends: parent.yaml\n{child}"}
    assert selection(load(write_files(tmp_path, files))) == expected


def test_an_upgraded_file_of_a_chain_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    files = {
        "parent.yaml": OLD,
        "middle.yaml": "extends: parent.yaml\nformat: 1\nrounds: {selection: null, cohort: 40}\n",
        "s.yaml": "extends: middle.yaml\nformat: 1\nseed: 8\n",
    }
    path = write_files(tmp_path, files)
    before = asked(load(path))
    for name in ("s.yaml", "parent.yaml", "middle.yaml"):
        text = upgrade(tmp_path / name).text
        assert text is not None
        (tmp_path / name).write_text(text)
        assert asked(load(path)) == before
    assert "selection: random" in (tmp_path / "middle.yaml").read_text()
    assert (tmp_path / "s.yaml").read_text() == files["s.yaml"].replace("format: 1", "format: 2")
    assert load(path).old_defaults == {}


def as_format_1(path: Path) -> str:
    """Return a shipped scenario as it would be in format 1, without what its defaults would say."""
    text = re.sub(r"(?m)^format: 2$", "format: 1", path.read_text(encoding="utf-8"))
    text = re.sub(r"(?m)^  (selection: random|held_out_negatives: spared)( *#.*)?\n", "", text)
    return re.sub(r", selection: random(?=[,}])", "", text)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.few(12)
def test_an_upgraded_scenario_asks_for_the_same(path: Path, tmp_path: Path) -> None:
    for shipped in SHIPPED:
        (tmp_path / shipped.name).write_text(as_format_1(shipped), encoding="utf-8")
    old = tmp_path / path.name
    before, text = load(old, references=False), old.read_text(encoding="utf-8")
    made = upgrade(old)
    if "extends" in text:
        assert made.text is None, "it has no format of its own, and brings in no section"
        return
    assert made.text is not None
    old.write_text(made.text, encoding="utf-8")
    after = load(old, references=False)
    assert asked(after) == asked(before)
    assert after.old_defaults == {}
    assert upgrade(old).text is None
    # Nothing is lost, and nothing else is added.
    added = made.text.replace("format: 2", "format: 1", 1)
    for default in made.written:
        entry = re.escape(f"{default.key}: {default.value}")
        added, count = re.subn(rf"(?m)^ +{entry}\n|{entry}, ", "", added, count=1)
        assert count == 1
    assert added == text


HAND_MADE = {
    "quoted": OLD.replace("format: 1", "'format': \"1\"   # the first"),
    "flow": OLD.replace("rounds:\n  count: 20\n  cohort: 50\n  deadline: 60 s\n",
                        "rounds: { # few\n  count: 20, cohort: 50}\n"),
    "one mapping": '{"format": 1, "data": {"source": "synthetic-ratings", "users": 200, "items": 90,\n'
                   ' "ratings_per_user": 20}, "fleet": {"mix": "iot_gateways"},\n'
                   ' "learning": {"algorithm": "fedncf"}, "rounds": {"count": 1, "cohort": 5},\n'
                   ' "evaluation": {"ranking": {}}}\n',
    "windows": OLD_DRAWING.replace("\n", "\r\n"),
    "null": OLD.replace("  cohort: 50", "  selection:\n  cohort: 50"),
    "null in words": OLD.replace("  cohort: 50", "  selection: null  # anybody\n  cohort: 50"),
    "sweep": OLD_DRAWING + "sweep:\n  rounds.selection: [oort, null]\n  data.negatives: [1, 2]\n",
    "cells": OLD_DRAWING + "sweep:\n  cells:\n    - {rounds.selection: null, rounds.cohort: 9}\n"
             "    - rounds: {selection: null, cohort: 8}\n      data.held_out_negatives: null\n"
             "    - {rounds.selection: round-robin}\n",
    "draws in a cell": OLD + "sweep:\n  cells:\n    - {rounds.cohort: 9}\n"
                       "    - {data.negatives: 2, evaluation.ranking: {}}\n",
    "no newline at the end": OLD.rstrip("\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND_MADE)
def test_a_file_of_any_layout_is_upgraded(name: str, tmp_path: Path) -> None:
    path = write_files(tmp_path, {"s.yaml": HAND_MADE[name].encode()})
    before = asked(load(path))
    made = upgrade(path)
    assert made.text is not None
    path.write_bytes(made.text.encode())
    assert asked(load(path)) == before
    assert load(path).old_defaults == {}
    kept = [line for line in HAND_MADE[name].splitlines(keepends=True) if "#" in line]
    assert all(line.partition("#")[2] in made.text for line in kept)
    assert made.text.count("\r\n") == (made.text.count("\n") if "\r" in HAND_MADE[name] else 0)


def test_what_is_no_scenario_by_itself_is_upgraded_too(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"s.yaml": "format: 1\nrounds:\n  # short\n  deadline: 5 s\n"})
    made = upgrade(path)
    assert made.text == "format: 2\nrounds:\n  # short\n  selection: random\n  deadline: 5 s\n"
    assert not made.whole
    with pytest.raises(ScenarioError, match="there is no such file"):
        upgrade(tmp_path / "missing.yaml")
    path.write_text("format: 1\nseed: 1\nseed: 2\n")
    with pytest.raises(ScenarioError, match="duplicate key"):
        upgrade(path)
