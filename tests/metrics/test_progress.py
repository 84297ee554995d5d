from __future__ import annotations

import io
import math
from typing import Any

import pytest
from metrics_samples import sample_record
from rich.console import Console

from coordinator.engine.facts import MetricValue, RoundRow
from coordinator.engine.progress import (
    PlainProgress,
    RunObserver,
    TerminalProgress,
    TimeLeft,
    left_in_words,
)
from coordinator.results.tables.batches import RecordedRow
from edge.core.vocabulary import Reason, RoundOutcome


def _row(number: int, **changes: Any) -> RoundRow:
    """Return a row of ``rounds`` in the columns that are shown."""
    ended = {"outcome": "completed", "reason": "none", "loss": 0.5, "end_s": 20.0 * number, **changes}
    return {"round": number, "phase": "calm", "completed": 40, "dropped": 3, "late": 2, **ended}


ABANDONED = {"outcome": "abandoned", "reason": "quorum"}


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_shown_are_columns_of_the_row_of_a_round() -> None:
    ended = RecordedRow(sample_record(2, outcome=RoundOutcome.ABANDONED, reason=Reason.QUORUM, loss=math.nan))
    assert {name: ended[name] for name in ABANDONED | {"loss": None}} == ABANDONED | {"loss": None}
    assert _row(2).keys() <= ended.keys()


def test_plain_lines_are_throttled_and_the_last_is_never_lost() -> None:
    lines: list[str] = []
    clock = _Clock()
    progress = PlainProgress(lines.append, clock)
    progress.on_start("quickstart-7-aa", 5)
    for number in (1, 2, 3, 4, 5):
        progress.on_round(_row(number))
        clock.now_s += 0.4
    progress.on_end("finished")
    assert lines == [
        "quickstart-7-aa: 5 rounds",
        "round 1/5 [calm]: 40 completed, 3 dropped, 2 late, loss 0.5, simulated 20 s, wall 0 s",
        "round 4/5 [calm]: 40 completed, 3 dropped, 2 late, loss 0.5, simulated 80 s, wall 1.2 s",
        "round 5/5 [calm]: 40 completed, 3 dropped, 2 late, loss 0.5, simulated 100 s, wall 2 s",
        "finished after 2 s",
    ]


def test_an_abandoned_round_and_an_evaluation_are_always_shown() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, _Clock())
    progress.on_start("a", None)
    progress.on_round(_row(1))
    progress.on_round(_row(2, **ABANDONED, loss=None))
    progress.on_evaluation(
        2,
        [
            MetricValue("rmse", 0.91234567, 5),
            MetricValue("rmse", 0.8, 2, tag="class", group="budget"),
            MetricValue("rmse", 1.0, 5, population="unseen"),
        ],
    )
    progress.on_round(_row(3))
    progress.on_evaluation(3, [])
    assert lines[0] == "a"
    assert lines[2].endswith("loss –, simulated 40 s, wall 0 s, abandoned: quorum")
    assert lines[3] == "after round 2: rmse 0.91235, rmse 1 (unseen users)"
    assert lines[4].startswith("round 3 ")
    assert lines[5:] == ["after round 3: nothing to score"]


def test_an_evaluation_comes_after_its_round_however_late_that_is_reported() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, _Clock())
    progress.on_start("a", 9)
    progress.on_evaluation(0, [])
    progress.on_evaluation(2, [])
    for number in (1, 2, 3, 4):
        progress.on_round(_row(number))
        if number == 3:
            progress.on_evaluation(6, [])
    progress.on_end("interrupted")
    assert [line.partition(":")[0].partition("/")[0] for line in lines] == [
        "a", "after round 0", "round 1", "round 2", "after round 2", "round 4", "after round 6",
        "interrupted after 0 s",
    ]  # fmt: skip


def test_evaluations_of_a_run_that_is_gone_on_with_come_before_its_rounds() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, _Clock())
    progress.on_start("a", 9)
    progress.on_evaluation(5, [])
    progress.on_round(_row(6))
    assert [line.partition(":")[0] for line in lines] == ["a", "after round 5", "round 6/9 [calm]"]


def test_the_bar_of_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    with TerminalProgress(console) as progress:
        observer: RunObserver = progress
        observer.on_start("quickstart-7-aa", 3)
        observer.on_round(_row(1))
        observer.on_evaluation(1, [MetricValue("rmse", 0.9, 5)])
        observer.on_round(_row(2, **ABANDONED))
        observer.on_end("interrupted")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for expected in (
        "quickstart-7-aa",
        "2/3",
        "40 completed",
        "abandoned: quorum",
        "rmse 0.9",
        "interrupted",
    ):
        assert expected in text


def test_a_round_before_the_start_is_an_error() -> None:
    with TerminalProgress(Console(file=io.StringIO())) as progress, pytest.raises(ValueError, match="start"):
        progress.on_round(_row(1))


def test_the_time_left_counts_what_is_done_at_a_time() -> None:
    now_s = 100.0
    left = TimeLeft(12, 2, lambda: now_s)
    assert left.left_s() is None
    assert left_in_words(left.left_s()) == ""
    left.skipped()
    assert left.left_s() is None
    now_s = 110.0
    left.done()
    # Ten are left, and after 10 s another is about to end: two in 10 s.
    assert left.left_s() == 50.0
    now_s = 130.0
    for _ in range(5):
        left.done()
    assert left.left_s() == 5 * 30.0 / 6
    assert left_in_words(left.left_s()) == "; about 25 s left"
    for _ in range(5):
        left.done()
    assert left_in_words(left.left_s()) == ""
