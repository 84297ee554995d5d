"""Phases and faults over the rounds, as the tables have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from metrics_samples import sample_round

from coordinator.engine.facts import FaultStrike
from coordinator.results.report.blocks import Lanes
from coordinator.results.report.sections.timeline import timeline
from coordinator.results.report.view import view_of
from coordinator.results.tables.batches import fault_batch
from coordinator.results.tables.reader import open_run
from coordinator.results.tables.writer import RunWriter
from edge.core.vocabulary import RoundOutcome, Stage

SCENARIO = """
faults:
  - {name: late, during: storm, slowdown: {factor: 3}}
  - {name: both, during: [calm, after], on: {fraction: 10%}, vanish: {}}
  - {name: idle, at: 1 h, vanish: {}}
  - {name: crash, at: 210 s, coordinator_crash: {after: 2 s}}
"""

# Fault, rounds, device (None: the coordinator), how often.
STRIKES = [
    ("late", 3, 7, 1), ("late", 3, 8, 2), ("late", 4, 7, 1),
    ("both", 1, 7, 1), ("both", 2, 7, 1), ("both", 5, 9, 4),
    ("crash", 2, None, 1),
    ("forgotten", 4, 3, 1),
]  # fmt: skip


def lanes_of(directory: Path) -> Lanes:
    with RunWriter(directory) as writer:
        for number, phase in enumerate(("calm", "calm", "storm", "storm", "after"), start=1):
            outcome = RoundOutcome.ABANDONED if number == 4 else RoundOutcome.COMPLETED
            writer.write_round(sample_round(number, phase=phase, outcome=outcome))
            at_s = 100.0 * number
            # The second strike of a device at another stage is a row of its own, but no second device.
            strikes = [
                FaultStrike(name, "vanish", device, stage, at_s, at_s, count)
                for name, struck, device, count in STRIKES
                if struck == number
                for stage in ((Stage.COMPUTE, Stage.REPORT) if name == "both" else (Stage.COMPUTE,))
            ]
            writer.write("faults", fault_batch(number, phase, strikes))
        # The coordinator can crash once more while the last devices come to their end.
        after = FaultStrike("too late", "coordinator_crash", None, None, 600.0, 600.0, 1)
        writer.write("faults", fault_batch(6, "after", [after]))
        writer.finish()
    (directory / "scenario.resolved.yaml").write_text(SCENARIO, encoding="utf-8")
    lanes = timeline(view_of(open_run(directory), "run"))
    assert lanes is not None
    return lanes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spans"),
    [
        ("phase", [(0, 40), (40, 40), (80, 20)]),
        ("late", [(40, 40)]),
        ("both", [(0, 40), (80, 20)]),
        ("idle", []),
        ("crash", [(20, 20)]),
        ("forgotten", [(60, 20)]),
        ("too late", []),
        ("abandoned", [(60, 20)]),
    ],
)
def test_a_lane_covers_the_rounds_in_which_a_fault_struck(
    tmp_path: Path, name: str, spans: list[tuple[int, int]]
) -> None:
    lanes = dict(lanes_of(tmp_path).lanes)
    assert [(round(span.left, 9), round(span.width, 9)) for span in lanes[name]] == spans


def test_a_span_says_how_many_it_struck(tmp_path: Path) -> None:
    lanes = dict(lanes_of(tmp_path).lanes)
    assert [span.text for span in lanes["both"]] == [
        "both: rounds 1–2, 2 device rounds, 4 ×",
        "both: round 5, 1 device round, 8 ×",
    ]
    assert [span.text for span in lanes["crash"]] == ["crash: round 2, 1 ×"]


def test_the_table_says_what_the_faults_are_and_did(tmp_path: Path) -> None:
    table = lanes_of(tmp_path).table
    assert table is not None
    rows = {row[1].text: tuple(cell.text for cell in row[2:]) for row in table.rows}
    assert rows["late"] == ("rounds 3–4", "struck 3 device rounds, 4 ×", "during storm; slowdown factor 3")
    assert rows["both"] == (
        "rounds 1–2; round 5", "struck 3 device rounds, 12 ×", "during calm, after; on fraction 10%; vanish"
    )  # fmt: skip
    assert rows["idle"] == ("never", "", "at 1 h; vanish")
    assert rows["crash"] == ("round 2", "struck 1 ×", "at 210 s; coordinator crash after 2 s")
    assert rows["forgotten"] == ("round 4", "struck 1 device round, 1 ×", "")
    assert rows["too late"] == ("after the last round", "", "")
    assert rows["storm"] == ("rounds 3–4", "took 2\N{NO-BREAK SPACE}min", "")


def test_one_phase_without_faults_has_no_timeline(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_round(sample_round(1))
        writer.finish()
    assert timeline(view_of(open_run(tmp_path), "run")) is None
