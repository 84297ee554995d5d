"""The chaos of ``benchmarks/chaos.py``, shorter: nothing is lost, nobody gets in, and it would be noticed."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STEADY, KILLED, BAD = 0, 30, 60


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("chaos")


class TestTheJudge:
    """Two rounds: the first sums devices 0, 30 and 31, the second is abandoned."""

    def found(self, chaos: ModuleType, **changes: Any) -> Any:
        facts: dict[str, Any] = {
            "rounds": [
                {"round": 1, "outcome": "completed", "reason": "none", "completed": 3},
                {"round": 2, "outcome": "abandoned", "reason": "quorum-missed", "completed": 0},
            ],
            "device_rounds": [
                *({"round": 1, "device": device, "outcome": "completed"} for device in (0, 30, 31)),
                {"round": 1, "device": 32, "outcome": "dropped"},
                {"round": 2, "device": 0, "outcome": "abandoned"},
            ],
            "told": [(1, 0, "counted"), (1, 30, "counted"), (2, 0, "not-counted")],
            "wanted": 2,
        }
        return chaos.judge(**{**facts, **changes})

    def test_nothing_is_lost_if_one_that_was_killed_was_not_told(self, chaos: ModuleType) -> None:
        found = self.found(chaos)
        assert (found.completed, dict(found.abandoned)) == (1, {"quorum-missed": 1})
        assert (found.counted, found.told, found.lost, found.intruders) == (3, 2, [], [])

    @pytest.mark.parametrize(
        ("told", "lost"),
        [
            ((1, 32, "counted"), "device 32 was told that round 1 counts, and it does not"),
            ((2, 30, "counted"), "device 30 was told that round 2 counts, and it does not"),
            ((1, 30, "counted"), "device 30 counted twice in round 1"),
        ],
    )
    def test_a_device_that_was_told_what_is_not_so(
        self, chaos: ModuleType, told: tuple[int, int, str], lost: str
    ) -> None:
        right = [(1, 0, "counted"), (1, 30, "counted")]
        assert self.found(chaos, told=[*right, told]).lost == [lost]

    def test_a_device_that_was_there_and_was_not_told(self, chaos: ModuleType) -> None:
        lost = ["device 0 was there all the time and was not told that round 1 counts"]
        assert self.found(chaos, told=[]).lost == lost

    def test_a_device_that_counts_twice_in_the_tables(self, chaos: ModuleType) -> None:
        rows = [{"round": 1, "device": device, "outcome": "completed"} for device in (0, 30, 30)]
        found = self.found(chaos, device_rounds=rows)
        assert found.lost == ["device 30 counted twice in round 1"]

    def test_rounds_that_are_missing_or_have_no_reason(self, chaos: ModuleType) -> None:
        assert self.found(chaos, wanted=3).lost == ["the rounds are [1, 2], not 1 to 3"]
        rounds = [
            {"round": 1, "outcome": "completed", "reason": "none", "completed": 4},
            {"round": 2, "outcome": "abandoned", "reason": "none", "completed": 0},
        ]
        assert self.found(chaos, rounds=rounds).lost == [
            "round 1 took 4 and has 3",
            "round 2 is abandoned without a reason",
        ]

    def test_a_bad_device_in_a_sum(self, chaos: ModuleType) -> None:
        rows = [{"round": 1, "device": device, "outcome": "completed"} for device in (0, 30, BAD)]
        assert self.found(chaos, device_rounds=rows).intruders == [f"device {BAD} is in the sum of round 1"]


@pytest.mark.slow
def test_nothing_is_lost_and_nobody_gets_in() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "benchmarks/chaos.py", "--rounds", "3", "--idle", "200"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "lost: 0; got in: 0" in done.stdout
    tried = dict(re.findall(r"^(\S.*?) {2,}(\d+) +0  ", done.stdout, re.MULTILINE))
    assert len(tried) == 24
    assert int(tried["kill −9 of a process with devices"]) >= 3
    assert min(map(int, tried.values())) > 0
