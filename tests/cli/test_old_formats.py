"""Scenario files and run directories of an older format, as the verbs meet them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from coordinator.cli.entry import execute
from coordinator.scenario.load import load

NOTE = (
    "note: small.yaml: format 1, read with its defaults rounds.selection: random;"
    " 'recfleet upgrade small.yaml' makes it format 2\n"
)


@pytest.fixture
def old(scenario: Path, in_folder: Path) -> Path:
    """Return a scenario of format 1 whose devices come and go, in the current folder."""
    text = scenario.read_text(encoding="utf-8").replace("format: 2", "format: 1  # as it was")
    text = text.replace("availability: always_on", "availability: diurnal_charging")
    scenario.write_text(text.partition("thresholds:")[0], encoding="utf-8")
    return scenario.relative_to(in_folder)


def as_format_1(run: Path) -> None:
    """Make a run directory what it would be if the version before had written it."""
    resolved = run / "scenario.resolved.yaml"
    text = resolved.read_text(encoding="utf-8").replace("format: 2", "format: 1", 1)
    assert "  held_out_negatives: drawn\n" in text
    resolved.write_text(text.replace("held_out_negatives: drawn", "held_out_negatives: spared"))
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["selection"]
    (run / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("verb", [["validate"], ["show"], ["run", "--quiet"]], ids=lambda verb: verb[0])
def test_an_old_file_is_noted_once(verb: list[str], old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(old)] * (2 if verb == ["validate"] else 1)
    assert execute([*verb, *files]) == 0
    assert capsys.readouterr().err == NOTE


def test_an_upgrade_changes_what_it_has_to_and_no_run(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = old.read_text()
    assert execute(["run", str(old), "--quiet", "--out", "before"]) == 0
    assert execute(["upgrade", "--check", str(old)]) == 3
    assert old.read_text() == text
    assert execute(["upgrade", str(old)]) == 0
    shown = capsys.readouterr().out
    assert "small.yaml: not yet format 2; would write rounds.selection: random\n" in shown
    assert "small.yaml: now format 2; wrote rounds.selection: random\n" in shown
    changed = text.replace("format: 1", "format: 2").replace("{count: 3", "{selection: random, count: 3")
    assert old.read_text() == changed
    assert execute(["upgrade", "--check", str(old)]) == 0
    assert execute(["upgrade", str(old)]) == 0
    assert capsys.readouterr().out == "small.yaml: is format 2\n" * 2
    assert execute(["run", str(old), "--quiet", "--out", "after"]) == 0
    assert capsys.readouterr().err == ""
    assert execute(["diff", "before", "after"]) == 0


def test_an_upgrade_goes_where_it_is_asked_to(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = old.read_text()
    assert execute(["upgrade", str(old), "-o", "-"]) == 0
    shown = capsys.readouterr().out
    assert shown == text.replace("format: 1", "format: 2").replace(
        "{count: 3", "{selection: random, count: 3"
    )
    assert execute(["upgrade", str(old), "-o", "new.yaml"]) == 0
    assert Path("new.yaml").read_text() == shown
    assert old.read_text() == text
    assert load("new.yaml").resolved == load(old).resolved
    assert execute(["upgrade", str(old), "new.yaml", "-o", "-"]) == 2
    assert execute(["upgrade", "--check", str(old), "-o", "-"]) == 2
    assert execute(["upgrade", "missing.yaml"]) == 2
    assert "missing.yaml:1:1: there is no such file" in capsys.readouterr().err


def test_run_directories_of_before_are_read(scenario: Path, in_folder: Path) -> None:
    for seed in ("3", "4"):
        assert execute(["run", str(scenario), "--quiet", "--seed", seed, "--out", f"now/{seed}"]) == 0
    shutil.copytree("now", "before")
    for run in Path("before").iterdir():
        as_format_1(run)
    assert load("before/3/scenario.resolved.yaml").hash == load("now/3/scenario.resolved.yaml").hash
    assert execute(["diff", "before/3", "now/3"]) == 0
    assert execute(["report", "before/3", "-o", "report.html"]) == 0
    assert execute(["report", "before", "now", "-o", "both.html"]) == 0
    assert execute(["export", "before/3", "--kind", "stateless", "-o", "model.onnx"]) == 0
    # Runs of both versions are repeats of one method, and not two methods.
    small = ["--set", "rounds.cohort=10", "--out", "small"]
    assert execute(["run", str(scenario), "--quiet", *small]) == 0
    assert execute(["compare", "before/3", "now/4", "small", "--json", "c.json"]) == 0
    groups = json.loads(Path("c.json").read_text())["groups"]
    assert [len(group["runs"]) for group in groups] == [2, 1]
    assert all(list(group["settings"]) == ["rounds.cohort"] for group in groups)


def test_a_run_whose_invitations_found_nobody_says_so(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", str(old), "--plain", "--out", "blind"]) == 0
    blind = capsys.readouterr().out
    (advice,) = json.loads(Path("blind/summary.json").read_text())["advice"]
    assert "of 60 invitations found nobody" in advice["text"]
    assert (advice["key"], advice["value"]) == ("rounds.selection", "availability-aware")
    assert f"advice:   {advice['text']}" in blind.splitlines()
    assert "invitations found nobody" in Path("blind/report.html").read_text()
    assert execute(["run", str(old), "--set", "rounds.selection=availability-aware", "--out", "asked"]) == 0
    assert "found nobody" not in capsys.readouterr().out
    assert json.loads(Path("asked/summary.json").read_text())["advice"] == []
