"""Readers and sinks of one's own: what they give and are given, and what becomes of their mistakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recfleet
from coordinator.cli.entry import execute
from coordinator.swarm.conformance import conform
from edge.core import plugins

REST: dict[str, Any] = {
    "format": 2,
    "fleet": {"mix": "enterprise_wifi", "availability": "always_on"},
    "learning": {"algorithm": "fedrecon", "factors": 2},
    "rounds": {"count": 2, "cohort": 4, "deadline": "60 s"},
}
SYNTHETIC = {"source": "synthetic-ratings", "users": 20, "items": 20, "ratings_per_user": 8}
READER = '''
from typing import Literal
import numpy as np
import pyarrow as pa
from coordinator.scenario.data_section import Reader

class Grid(Reader):
    """Everybody rates everything."""
    source: Literal["grid"]
    def rows(self, path):
        BODY
    def example(self, folder):
        (folder / "x.txt").write_text("x")
        return folder / "x.txt"
'''
SINK = '''
from coordinator.results.sinks import Sink

class Keeper(Sink):
    """Keeps what it is given."""
    name = "keeper"
    def begin(self, facts):
        print("begin", facts["scenario"], facts["clock"], facts["settings"]["rounds"]["cohort"], self.target)
    def rows(self, table, batch):
        if table == "rounds":
            print("rows", batch.num_rows)
        BODY
    def end(self, status, verdicts, directory):
        print("end", status, len(verdicts), directory.name)
'''


@pytest.fixture(autouse=True)
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("x")
    with plugins.scope():
        yield


def _load(text: str, body: str) -> tuple[plugins.Entry, ...]:
    Path("mine.py").write_text(text.replace("BODY", body))
    return plugins.load("mine.py")


PARTS = {
    "a mapping": 'yield {"user": ["a", "b"] * 8, "item": np.arange(16) // 2, "rating": np.tile([1, 5], 8)}',
    "tables in parts": "for i in range(8):\n"
    '            yield pa.table({"user": ["a", "b"], "item": [i, i], "rating": [1, 5]})',
    "an empty part first": 'yield {"user": [], "item": [], "rating": []}\n'
    '        yield {"user": ["a", "b"] * 8, "item": [i // 2 for i in range(16)], "rating": [1, 5] * 8}',
}


@pytest.mark.parametrize("body", PARTS.values(), ids=PARTS)
def test_parts_of_any_form_are_the_same_ratings(body: str) -> None:
    _load(READER, body)
    scenario = {
        **REST,
        "data": {"source": "grid", "path": "x.txt"},
        "rounds": {**REST["rounds"], "cohort": 2},
    }
    run = recfleet.run(scenario)
    facts = run.manifest["data"]
    assert (facts["users"], facts["items"], facts["ratings"], facts["format"]) == (2, 8, 16, "grid")
    assert [(one["kind"], one["name"]) for one in run.manifest["plugins"]] == [("readers", "grid")]
    assert set(run.predict()["user"].to_pylist()) == {"a", "b"}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ('yield {"user": ["a"], "item": ["b", "c"]}', recfleet.DataError, "no columns of one length"),
        ('yield {"user": ["a"], "rating": [1]}', recfleet.DataError, "no column 'item'"),
        (
            'yield {"user": ["a"], "item": ["b"], "rating": ["four"]}',
            recfleet.DataError,
            "row 1: rating 'four' is not",
        ),
        ("return []", recfleet.DataError, "no ratings"),
        ("yield 1 / 0", recfleet.PluginError, r"mine\.py:11: ZeroDivisionError"),
        (
            'yield {"user": ["a"], "item": ["b"]}\n        yield {"item": ["b"], "user": ["a"]}',
            recfleet.DataError,
            "the first had user, item",
        ),
    ],
)
def test_a_mistake_of_a_reader_is_named(body: str, error: type[Exception], message: str) -> None:
    _load(READER, body)
    data = {"source": "grid", "path": "x.txt", "positive": 1}
    with pytest.raises(error, match=message):
        recfleet.run({**REST, "data": data})


def test_the_options_of_files_hold_for_readers_too() -> None:
    _load(READER, PARTS["a mapping"])
    scenario = recfleet.Scenario.of({**REST, "data": {"source": "grid", "path": "x.txt"}})
    fewer = scenario.edited({"data.min_item": 3})
    with pytest.raises(recfleet.DataError, match="min_item"):
        recfleet.run(fewer)
    with pytest.raises(recfleet.ScenarioError, match=r"data\.pth: unknown key"):
        scenario.edited({"data.pth": "x"})


def test_a_reader_that_breaks_on_a_damaged_file_fails_its_check() -> None:
    (entry,) = _load(READER, 'yield {"user": ["a"], "item": ["b"], "rating": ["xy".index(path.read_text())]}')
    broken = {finding.rule: finding.problem for finding in conform(entry)}
    assert "PluginError in place of a DataError" in str(broken["a damaged file is refused, or read"])
    assert broken["its example is read, the same when repeated"] is None


def test_a_sink_is_given_the_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = _load(SINK, "pass")
    run = recfleet.run(
        {**REST, "data": SYNTHETIC, "thresholds": {"round.completed": ["rate > 10%"]}}, sinks=["keeper=there"]
    )
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "begin scenario virtual 4 there"
    assert [int(line.split()[1]) for line in shown if line.startswith("rows")] == [1, 1]
    assert shown[-1] == f"end finished 1 {run.directory.name}"
    assert [finding.problem for finding in conform(entry)] == [None]


def test_a_sink_that_raises_changes_nothing_in_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    _load(SINK, "raise OSError('no room')")
    calm = recfleet.run({**REST, "data": SYNTHETIC}, out="calm")
    with pytest.warns(RuntimeWarning, match=r"'keeper' was given no more: .*mine\.py:12: OSError: no room"):
        run = recfleet.run({**REST, "data": SYNTHETIC}, sinks=["keeper"], out="other")
    assert run.manifest["digest"] == calm.manifest["digest"]
    Path("s.yaml").write_text(run.scenario.yaml)
    capsys.readouterr()
    assert execute(["run", "s.yaml", "--sink", "keeper", "--quiet", "--out", "third"]) == 0
    assert "OSError: no room; the run is whole" in capsys.readouterr().err


def test_a_run_that_fails_ends_its_sinks(capsys: pytest.CaptureFixture[str]) -> None:
    _load(SINK, "pass")
    with pytest.raises(ZeroDivisionError):
        recfleet.run({**REST, "data": SYNTHETIC}, sinks=["keeper"], out="it", on_round=lambda _: 1 / 0)
    assert capsys.readouterr().out.splitlines()[-1] == "end failed 0 it"


def test_json_lines_hold_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    run = recfleet.run({**REST, "data": SYNTHETIC}, sinks=["jsonl=rows.jsonl"])
    lines = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert lines[0]["begin"]["seed"] == run.scenario.seed
    assert lines[-1]["end"]["status"] == "finished"
    for table in ("rounds", "device_rounds", "evaluations"):
        rows = [line[table] for line in lines if table in line]
        wanted = run.table(table).to_pylist()
        assert len(rows) == len(wanted)
        assert np.array_equal([row["round"] for row in rows], [row["round"] for row in wanted])
    Path("s.yaml").write_text(run.scenario.yaml)
    assert execute(["run", "s.yaml", "--sink", "jsonl=-", "--quiet", "--out", "other"]) == 0
    assert '{"rounds": {"round": 1' in capsys.readouterr().out
    assert execute(["run", "s.yaml", "--sink", "jsnl=x", "--out", "third"]) == 2
    assert "there is no sink 'jsnl'; did you mean 'jsonl'?" in capsys.readouterr().err
    assert execute(["run", "s.yaml", "--sink", "jsonl", "--out", "third"]) == 2
    assert "name one, 'jsonl=rows.jsonl'" in capsys.readouterr().err
    assert not Path("third").exists()


def test_init_refuses_names_and_files_that_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--fault", "my-fault"], "'my-fault' is no key of a fault; write 'my_fault'"),
        (["--algorithm", "fedrecon"], "'fedrecon' is the name of another algorithm"),
        (["--reader", "Mine"], "'Mine' is no name"),
        (["--reader", "mine", "--sink", "mine"], "writes one plug-in"),
        (["--sink", "mine", "-o", "x.yaml"], "a plug-in is a Python file"),
        (["--sink", "x", "-o", "no/x.py"], "there is no folder"),
    ):
        assert execute(["init", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert execute(["init", "--sink", "mine"]) == 0
    assert execute(["init", "--sink", "mine"]) == 2
    assert "mine.py is there" in capsys.readouterr().err
