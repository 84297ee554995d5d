"""Who watches a run has every round before the next one begins, whenever its rows are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_helpers import SMALL, Silent

from coordinator.engine.facts import RoundRow
from coordinator.engine.invitations import Invitations
from coordinator.run.conductor import RunFeed
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load

ROUNDS = 5
# The last receipts arrive while the coordinator rests.
SETTINGS = (f"rounds.count={ROUNDS}", "rounds.interval=60 s", "evaluation.final=false")


class _Feed(RunFeed):
    def __init__(self, story: list[str]) -> None:
        self._story = story

    def on_batch(self, table: str, batch: Any) -> None:
        if table == "rounds":
            self._story += [f"rows {number}" for number in batch["round"].to_pylist()]


class _Observer(Silent):
    def __init__(self, story: list[str]) -> None:
        super().__init__()
        self._story = story

    def on_round(self, row: RoundRow) -> None:
        self._story.append(f"round {row['round']}: {row['completed']} of {row['invited']}")


@pytest.mark.parametrize("fed", [True, False])
def test_every_round_is_seen_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fed: bool
) -> None:
    story: list[str] = []
    draw = Invitations.of_round

    def of_round(self: Invitations, number: int, attempt: int, now_s: float) -> Any:
        story.append(f"begins {number}")
        return draw(self, number, attempt, now_s)

    monkeypatch.setattr(Invitations, "of_round", of_round)
    file = tmp_path / "live.yaml"
    file.write_text(SMALL)
    feeds = [_Feed(story)] if fed else []
    run_scenario(load(file, SETTINGS), target=tmp_path / "out", observer=_Observer(story), feeds=feeds)
    expected = []
    for number in range(1, ROUNDS + 1):
        rows = [f"rows {number}"] if fed else []
        expected += [f"begins {number}", *rows, f"round {number}: 20 of 20"]
    assert story == expected
