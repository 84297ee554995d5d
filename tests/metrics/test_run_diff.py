from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from metrics_samples import (
    NAMES,
    facts,
    record,
    sample_evaluation,
    sample_round,
    three_device_log,
    three_devices,
    write_run,
)

from coordinator.engine.facts import MetricValue
from coordinator.engine.run_files import MANIFEST
from coordinator.results.diff import CONTEXT_ROWS, diff_runs, render_diff
from coordinator.results.tables.batches import round_batches
from coordinator.results.tables.reader import open_run
from coordinator.results.tables.writer import RunWriter
from edge.core.vocabulary import EventKind, Stage


def test_equal_runs_are_identical(tmp_path: Path) -> None:
    digests = {write_run(tmp_path / name) for name in ("a", "b")}
    assert len(digests) == 1
    diff = diff_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b"))
    assert diff.identical
    assert diff.rows == {
        "events": 60,
        "device_rounds": 9,
        "evaluations": 8,
        "inferences": 6,
        "faults": 6,
        "rounds": 3,
    }
    whole = "identical (60 events, 9 device rounds, 8 evaluations, 6 inferences, 6 faults, 3 rounds)"
    assert render_diff(diff) == whole


def test_what_was_measured_does_not_matter(tmp_path: Path) -> None:
    for name, wall_s in (("a", 0.1), ("b", 0.2)):
        (tmp_path / name).mkdir()
        with RunWriter(tmp_path / name) as writer:
            writer.write_round(sample_round(1, wall_s=wall_s, host_rss_bytes=int(wall_s * 1000)))
            writer.finish()
    assert diff_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b")).identical


def _write_with_late_event(directory: Path, reason_round: int) -> None:
    directory.mkdir()
    with RunWriter(directory) as writer:
        for number in (1, 2, 3):
            log = three_device_log(100.0 * number)
            if number == reason_round:
                record(log, 0, EventKind.RETRY, Stage.REPORT, span_s=(100.0 * number + 9, 100.0 * number + 9))
            writer.write_round(
                round_batches(facts(number, 100.0 * number), three_devices(), NAMES, log.columns())
            )
        writer.finish()


def test_the_first_differing_event_is_shown_with_context(tmp_path: Path) -> None:
    _write_with_late_event(tmp_path / "a", reason_round=0)
    _write_with_late_event(tmp_path / "b", reason_round=2)
    diff = diff_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b"))
    found = diff.divergence
    assert found is not None
    # Twenty events a round: the additional one of round 2 stands where round 3 begins in the other run.
    assert (found.table, found.row, found.round_number) == ("events", 40, 2)
    assert found.first is not None
    assert found.second is not None
    assert (found.first["kind"], found.second["kind"]) == ("invited", "retry")
    assert {"kind", "round", "time_s"} <= set(found.fields)
    assert "retransmitted_bytes" not in found.fields
    assert [row["kind"] for row in found.context] == ["retry", "late", "garbage"]
    assert len(found.context) == CONTEXT_ROWS
    text = render_diff(diff, "run-a", "run-b")
    assert "first difference: round 2, table events, row 40" in text
    assert "kind: 'invited' in run-a, 'retry' in run-b" in text


def test_a_difference_beside_the_events_is_found(tmp_path: Path) -> None:
    for name, energy_j in (("a", 3.0), ("b", math.nextafter(3.0, 4.0))):
        (tmp_path / name).mkdir()
        cohort = three_devices()
        cohort.energy_compute_j[0] = energy_j
        with RunWriter(tmp_path / name) as writer:
            writer.write_round(sample_round(1))
            writer.write_round(round_batches(facts(2), cohort, NAMES, three_device_log().columns()))
            writer.finish()
    found = diff_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b")).divergence
    assert found is not None
    assert (found.table, found.row, found.round_number) == ("device_rounds", 3, 2)
    assert found.fields == ("energy_compute_j",)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_shorter_run_differs_where_it_ends(tmp_path: Path, swapped: bool) -> None:
    write_run(tmp_path / "short", rounds=2)
    write_run(tmp_path / "long", rounds=3)
    runs = [open_run(tmp_path / "short"), open_run(tmp_path / "long")]
    names = ["short", "long"]
    if swapped:
        runs.reverse()
        names.reverse()
    diff = diff_runs(*runs)
    found = diff.divergence
    assert found is not None
    assert (found.table, found.row, found.round_number, found.fields) == ("events", 40, 3, ())
    assert (found.second if swapped else found.first) is None
    assert "short ends here; long goes on:" in render_diff(diff, *names)


def test_a_killed_run_is_compared_as_far_as_it_came(tmp_path: Path) -> None:
    write_run(tmp_path / "killed", rounds=2, finish=False)
    write_run(tmp_path / "same", rounds=2)
    write_run(tmp_path / "long", rounds=3)
    killed = open_run(tmp_path / "killed")
    same = diff_runs(killed, open_run(tmp_path / "same"))
    assert same.identical
    assert len(same.notes) == 1
    assert "has no end" in render_diff(same)
    assert diff_runs(killed, open_run(tmp_path / "long")).divergence is not None


def test_a_run_without_events_is_compared_by_its_other_tables(tmp_path: Path) -> None:
    write_run(tmp_path / "with", rounds=2)
    write_run(tmp_path / "without", rounds=2, events=False)
    diff = diff_runs(open_run(tmp_path / "with"), open_run(tmp_path / "without"))
    assert diff.identical
    assert "events" not in diff.rows
    assert "recorded no events" in diff.notes[0]


def test_null_differs_from_a_value_and_equals_null(tmp_path: Path) -> None:
    for name, value in (("a", math.nan), ("b", math.nan), ("c", 0.0)):
        (tmp_path / name).mkdir()
        with RunWriter(tmp_path / name) as writer:
            writer.write_round(sample_round(1))
            writer.write("evaluations", sample_evaluation(1, [MetricValue("rmse", value, 0)]))
            writer.finish()
    runs = {name: open_run(tmp_path / name) for name in ("a", "b", "c")}
    assert diff_runs(runs["a"], runs["b"]).identical
    found = diff_runs(runs["a"], runs["c"]).divergence
    assert found is not None
    assert (found.table, found.fields) == ("evaluations", ("value",))


def test_empty_runs_are_identical(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with RunWriter(tmp_path / name) as writer:
            writer.finish()
    assert diff_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b")).identical


HOST = {
    "machine": "x86_64",
    "python": "3.12.1",
    "numpy": "2.4.6",
    "numerics": {"cpu": "A", "blas": "openblas 0.3.31", "blas_core": "SkylakeX", "scipy": "1.17.1"},
}


def notes_of_hosts(folder: Path, *hosts: dict[str, Any], rounds: int = 3) -> tuple[str, ...]:
    for name, host in zip("ab", hosts, strict=True):
        (folder / name).mkdir()
        (folder / name / MANIFEST).write_text(json.dumps({"host": host}))
        with RunWriter(folder / name) as writer:
            for number in range(1, rounds + (name == "b")):
                writer.write_round(sample_round(number))
            writer.finish()
    return diff_runs(open_run(folder / "a"), open_run(folder / "b")).notes


def with_numerics(**changes: str) -> dict[str, Any]:
    return HOST | {"numerics": HOST["numerics"] | changes}  # type: ignore[operator]


def test_equal_numerics_are_no_note(tmp_path: Path) -> None:
    assert notes_of_hosts(tmp_path, HOST, HOST) == ()


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (with_numerics(blas_core="Zen"), "blas_core: SkylakeX and Zen"),
        (
            with_numerics(cpu="B", blas="openblas 0.3.30"),
            "cpu: A and B; blas: openblas 0.3.31 and openblas 0.3.30",
        ),
        (with_numerics(tenseal="0.3.16"), "tenseal: not installed and 0.3.16"),
        (HOST | {"python": "3.11.7"}, "python: 3.12.1 and 3.11.7"),
        (HOST | {"numpy": "1.26.0"}, "numpy: 2.4.6 and 1.26.0"),
    ],
)
def test_different_numerics_are_named(tmp_path: Path, other: dict[str, Any], named: str) -> None:
    (note,) = notes_of_hosts(tmp_path, HOST, other)
    assert f"different numerics ({named});" in note


def test_manifests_that_do_not_name_their_numerics_are_read(tmp_path: Path) -> None:
    old = {"machine": "x86_64", "python": "3.11.7", "numpy": "2.4.6"}
    notes = notes_of_hosts(tmp_path, old, HOST)
    assert "different numerics (python: 3.11.7 and 3.12.1);" in notes[0]
    assert [note.split(": ", 1)[1] for note in notes[1:]] == [
        "the manifest of this older run does not name its processor and BLAS"
    ]
    assert str(tmp_path / "a") in notes[1]
