"""Phases and faults over the rounds, as a scenario file writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from metrics_samples import sample_round

from coordinator.metrics.reader import open_run
from coordinator.metrics.writer import RunWriter
from coordinator.report.blocks import Lanes
from coordinator.report.sections.timeline import timeline
from coordinator.report.view import view_of
from edge.vocabulary import RoundOutcome

SCENARIO = """
faults:
  - {name: late, during: storm, slowdown: {factor: 3}}
  - {name: both, during: [calm, after], on: {fraction: 10%}, vanish: {}}
  - {name: timed, at: 210 s, for: 2 min, loss: 5%}
  - {name: always, vanish: {}}
  - {name: open end, at: 450 s, vanish: {}}
  - {name: unreadable, at: noon, vanish: {}}
"""


def lanes_of(directory: Path) -> Lanes:
    # Round n lies between 100 n and 100 n + 20 s.
    with RunWriter(directory) as writer:
        for number, phase in enumerate(("calm", "calm", "storm", "storm", "after"), start=1):
            outcome = RoundOutcome.ABANDONED if number == 4 else RoundOutcome.COMPLETED
            writer.write_round(sample_round(number, phase=phase, outcome=outcome))
        writer.finish()
    (directory / "scenario.resolved.yaml").write_text(SCENARIO, encoding="utf-8")
    section = timeline(view_of(open_run(directory), "run"))
    assert section is not None
    (lanes,) = section.blocks
    assert isinstance(lanes, Lanes)
    return lanes


@pytest.mark.parametrize(
    ("name", "spans"),
    [
        ("phase", [(0, 40), (40, 40), (80, 20)]),
        ("late", [(40, 40)]),
        ("both", [(0, 40), (80, 20)]),
        ("timed", [(20, 40)]),
        ("always", [(0, 100)]),
        ("open end", [(80, 20)]),
        ("unreadable", [(0, 100)]),
        ("abandoned", [(60, 20)]),
    ],
)
def test_a_lane_covers_the_rounds_it_is_about(
    tmp_path: Path, name: str, spans: list[tuple[int, int]]
) -> None:
    lanes = dict(lanes_of(tmp_path).lanes)
    assert [(round(span.left, 9), round(span.width, 9)) for span in lanes[name]] == spans


def test_the_table_says_what_the_faults_are(tmp_path: Path) -> None:
    table = lanes_of(tmp_path).table
    assert table is not None
    rows = {row[1].text: (row[2].text, row[3].text) for row in table.rows}
    assert rows["late"] == ("rounds 3–4", "slowdown factor 3")
    assert rows["both"] == ("rounds 1–2; round 5", "on fraction 10%; vanish")
    assert rows["timed"] == ("rounds 2–3", "at 210 s; for 2 min; loss 5%")
    assert rows["storm"] == ("rounds 3–4", "2 min")


def test_one_phase_without_faults_has_no_timeline(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_round(sample_round(1))
        writer.finish()
    assert timeline(view_of(open_run(tmp_path), "run")) is None
