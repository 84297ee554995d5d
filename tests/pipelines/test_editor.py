"""What an editor makes of scenarios: problems, completion and hover, from the real yaml-language-server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from language_server import COMMAND, MISSING, LanguageServer

from coordinator.scenario.json_schema import MODELINE, SCHEMA_FILE, schema_text
from coordinator.scenario.starter import starter_text
from device_profiles import catalogue
from edge.core import plugins

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
TEXT = f"""\
{MODELINE}
format: 2
data: {{source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 20}}
fleet:
  mix: enterprise_wifi
learning:
  algorithm: fedrecon
  factors: 4
rounds:
  count: 3
  cohort: 20
  deadline: 60 s
thresholds:
  round.duration: [p95 < 20 s]
"""
LINES = TEXT.splitlines()

pytestmark = [pytest.mark.slow, pytest.mark.skipif(COMMAND is None, reason=MISSING)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    folder = tmp_path_factory.mktemp("fleet")
    (folder / SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")
    with LanguageServer(folder) as made:
        yield made


def replaced(old: str, new: str) -> tuple[str, int]:
    """Return the scenario with a line changed, and the number of that line from 0."""
    (number,) = (number for number, line in enumerate(LINES) if old in line)
    changed = [*LINES[:number], LINES[number].replace(old, new), *LINES[number + 1 :]]
    return "\n".join([*changed, ""]), number


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_are_without_a_problem(path: Path, server: LanguageServer) -> None:
    _, problems = server.open(path.name, path.read_text(encoding="utf-8"))
    assert problems == []


def test_what_init_writes_is_without_a_problem(server: LanguageServer) -> None:
    _, problems = server.open("starter.yaml", starter_text("global_android_2024"))
    assert problems == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mix: enterprise_wifi", "mix: enterprise_wfi"),
        ("algorithm: fedrecon", "algorithm: fedrecn"),
        ("factors: 4", "factors: four"),
        ("cohort: 20", "cohrt: 20"),
        ("deadline: 60 s", "deadline: 60"),
        ("deadline: 60 s", "deadline: 60 m"),
        ("round.duration: [p95", "round.duraton: [p95"),
        ("[p95 < 20 s]", "[p95 < 20]"),
        ("[p95 < 20 s]", "[rate < 20 s]"),
    ],
)
def test_a_slip_is_shown_where_it_is(old: str, new: str, server: LanguageServer) -> None:
    text, number = replaced(old, new)
    _, problems = server.open(f"{abs(hash(new))}.yaml", text)
    assert problems, new
    sections = {number, *(at for at in range(number) if not LINES[at].startswith(" "))}
    assert {problem["range"]["start"]["line"] for problem in problems} <= sections
    assert any(problem["range"]["start"]["line"] == number for problem in problems), problems


def offered(server: LanguageServer, old: str, new: str, name: str) -> set[str]:
    """Return what is offered at the end of a line that is being written."""
    text, number = replaced(old, new)
    uri, _ = server.open(name, text)
    found: Any = server.at("completion", uri, number, len(text.splitlines()[number]))
    return {item["label"] for item in found["items"]}


def test_completion_knows_fleets_methods_keys_and_metrics(server: LanguageServer) -> None:
    assert offered(server, "mix: enterprise_wifi", "mix: ", "1.yaml") >= set(
        catalogue.load().names()["fleets"]
    )
    methods = {*plugins.names(plugins.ALGORITHMS)}
    assert offered(server, "algorithm: fedrecon", "algorithm: ", "2.yaml") >= methods
    assert offered(server, "count: 3", "", "3.yaml") >= {"count", "deadline", "over_select", "quorum"} - {
        "deadline"
    }
    assert offered(server, "round.duration: [p95 < 20 s]", "", "4.yaml") >= {
        "round.duration",
        "model.ndcg@10",
    }


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("deadline", "invitation"),
        ("round.duration", "simulated time from invitation to end"),
        ("mix", "name of a fleet of the catalogue"),
    ],
)
def test_hover_says_what_a_key_is(word: str, said: str, server: LanguageServer) -> None:
    uri, _ = server.open(f"hover-{word}.yaml", TEXT)
    (number,) = (number for number, line in enumerate(LINES) if line.strip().startswith(word))
    found: Any = server.at("hover", uri, number, LINES[number].index(word) + 1)
    assert said in found["contents"]["value"]
