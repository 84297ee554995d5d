from __future__ import annotations

from pathlib import Path

import pytest
from swarm_helpers import PLAIN

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load, load_text
from coordinator.swarm.failures import judge_file, keep
from coordinator.swarm.generator import document
from coordinator.swarm.invariants.registry import Violation
from coordinator.swarm.workers import Digests


def elsewhere(kind: str) -> Digests:
    """Return digests of processes in which runs with a fault of some kind differ."""

    def digests(text: str) -> list[str]:
        try:
            load_text(text, "elsewhere")
        except ScenarioError:
            return [""] * 3
        return [f"digest {number if kind in text else 0}" for number in range(3)]

    return digests


def index_with(kind: str) -> int:
    return next(i for i in range(500) if any(kind in fault for fault in document(9, i)["faults"]))


@pytest.mark.slow
def test_a_run_that_differs_between_processes_is_kept_and_made_small(tmp_path: Path) -> None:
    index = index_with("late")
    found = Violation("replays", "as it was found")
    kept = keep(9, index, found, tmp_path / "failures", elsewhere('"late"'), small=True)
    assert kept.minimised
    assert kept.path == tmp_path / "failures" / f"9-{index}-replays.yaml"
    assert kept.command == f"recfleet swarm --replay {kept.path}"
    assert "digest 0, digest 1, digest 2 in processes" in kept.violation.message
    scenario = load(kept.path).scenario
    assert [fault.key for fault in scenario.faults] == ["late"]
    assert kept.path.read_text().splitlines()[1] == f"# {kept.violation.message}"
    # The file shows it again.
    assert [one.invariant for one in judge_file(kept.path, elsewhere("late:"))] == ["replays"]


def test_what_cannot_be_made_small_is_kept_as_it_was(tmp_path: Path) -> None:
    index = index_with("loss")
    for small in (False, True):
        found = Violation("replays", "now and then")
        kept = keep(9, index, found, tmp_path, elsewhere("never"), small=small)
        assert not kept.minimised
        assert kept.violation == found
        assert load(kept.path).scenario.title == f"swarm 9, scenario {index}"


def test_a_file_whose_run_holds(tmp_path: Path) -> None:
    file = tmp_path / "fine.yaml"
    file.write_text(PLAIN)
    child = tmp_path / "child.yaml"
    child.write_text("extends: fine.yaml\nseed: 4\n")
    assert judge_file(file, elsewhere("never")) == ()
    assert judge_file(child, elsewhere("never")) == ()


def test_a_file_that_is_not_valid(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("format: 2\n")
    with pytest.raises(ScenarioError, match=r"bad\.yaml"):
        judge_file(file, elsewhere("never"))
