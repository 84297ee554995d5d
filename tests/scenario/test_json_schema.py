"""What the JSON Schema takes and refuses, beside what loading a scenario does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from scenario_files import BASE, with_line, with_lines_after

from coordinator.scenario.errors import FieldProblemsError
from coordinator.scenario.json_schema import MODELINE, SCHEMA_FILE, json_schema, schema_text
from coordinator.scenario.load import ScenarioError, load_text
from coordinator.scenario.metric_names import find_metric, metric_examples, metric_names
from coordinator.scenario.starter import starter_text
from coordinator.scenario.threshold_schema import expectation_definitions, threshold_schema
from coordinator.scenario.thresholds import parse_metric, parse_thresholds
from coordinator.swarm.generator import document
from device_profiles import fields
from device_profiles.quantities import DURATION, ENERGY, RATE, SIZE, Quantity, UnitError

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
VALIDATOR = Draft202012Validator(json_schema())
RICH = (
    BASE.replace("factors: 8", "factors: 8\n  upload: dense")
    + """\
title: a storm
coordinator: {up_rate: 1 Gbit/s}
connection: {keep_alive: true, sockets: {heartbeat: 5 s}}
phases: [{name: storm, rounds: 10}, {name: calm, rounds: 10}]
faults: [{name: slow, during: storm, on: {fraction: 20%, class: phone_mid_2020}, slowdown: {factor: 3}}]
secure_aggregation: {mode: secagg-plus}
evaluation: {every: 5, users: 50}
record: {events: all}
"""
)


def read(text: str) -> Any:
    """Return what an editor makes of a text: YAML 1.2, with numbers and truth values."""
    return YAML(typ="safe").load(text)


def takes(text: str) -> bool:
    return bool(VALIDATOR.is_valid(read(text)))


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(VALIDATOR.schema)
    assert json.loads(schema_text()) == VALIDATOR.schema


@pytest.mark.skipif(
    tuple(map(int, pydantic.VERSION.split(".")[:2])) < (2, 11),
    reason="pydantic before 2.11 writes the same schema in other words",
)
def test_the_file_beside_the_scenarios_is_up_to_date() -> None:
    message = f"run: recfleet schema > scenarios/{SCHEMA_FILE}"
    assert (ROOT / "scenarios" / SCHEMA_FILE).read_text(encoding="utf-8") == schema_text(), message


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_takes_the_shipped_scenarios_which_name_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"{MODELINE}\n")
    assert [error.message[:200] for error in VALIDATOR.iter_errors(read(text))] == []


def test_it_takes_what_init_writes_which_names_it() -> None:
    text = starter_text("global_android_2024")
    assert text.startswith(f"{MODELINE}\n")
    assert takes(text)
    for template in (ROOT / "coordinator" / "scenario" / "templates").glob("*.yaml.txt"):
        assert template.read_text(encoding="utf-8").startswith(MODELINE.replace("$", "$$"))


@pytest.mark.parametrize(
    "index", [pytest.param(n, marks=pytest.mark.slow) if n > 20 else n for n in range(200)]
)
def test_it_takes_random_scenarios(index: int) -> None:
    assert [error.message[:200] for error in VALIDATOR.iter_errors(document(11, index))] == []


def paths_of(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inside:
        if isinstance(key, str):
            yield (*path, key)
        yield from paths_of(value, (*path, key))


def with_null(text: str, path: tuple[str | int, ...]) -> Any:
    root = node = read(text)
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = None
    return root


def test_it_takes_a_scenario_with_most_sections() -> None:
    load_text(RICH, "s.yaml")
    assert takes(RICH)


@pytest.mark.parametrize("path", list(paths_of(read(RICH))), ids=lambda path: ".".join(map(str, path)))
def test_null_stands_where_it_may_remove(path: tuple[str | int, ...]) -> None:
    changed = with_null(RICH, path)
    try:
        load_text(json.dumps(changed), "s.yaml")
    except ScenarioError:
        return
    assert VALIDATOR.is_valid(changed)


def test_null_removes_anything_where_a_file_extends_another() -> None:
    for path in paths_of(read(RICH)):
        changed = {"extends": "base.yaml", **with_null(RICH, path)}
        assert VALIDATOR.is_valid(changed), path
    assert takes("extends: base.yaml\nlearning: {mask: {kind: high-order, regularization: null}}\n")
    assert not takes("extends: base.yaml\nrounds: {cohrt: 5}\n")


def test_a_required_key_is_not_removed() -> None:
    assert not takes(BASE.replace("cohort: 50", "cohort: null"))


@pytest.mark.parametrize(
    "line",
    ["title: 2024", "title: true", "title: 'null'", "seed: '7'", "description: 1e3", "format: 1"],
)
def test_text_needs_no_quotes(line: str) -> None:
    key = line.partition(":")[0]
    text = "\n".join([line, *(one for one in BASE.splitlines() if not one.startswith(f"{key}:"))])
    load_text(text, "s.yaml")
    assert takes(text)


REFUSED = {
    "mix": with_line(9, "  mix: global_androd_2024"),
    "device": with_line(9, "  mix: global_android_2024", "  devices: {budgt-2019: 100%}"),
    "network": with_line(9, "  mix: global_android_2024", "  networks: {4g_inn: 100%}"),
    "availability": with_line(9, "  mix: global_android_2024", "  availability: allways_on"),
    "group": with_line(9, "  groups: [{device: budget-2019, network: 4g_inn, share: 100%}]"),
    "method": with_line(11, "  algorithm: fedrecn"),
    "key": with_line(15, "  cohrt: 50"),
    "section": with_lines_after(0, "runds: {}"),
    "no unit": with_line(16, "  deadline: 60"),
    "other unit": with_line(16, "  deadline: 60 MB"),
    "unknown unit": with_line(16, "  deadline: 60 sek"),
    "fraction": with_lines_after(16, "  over_select: much"),
    "whole number": with_line(15, "  cohort: 2.5"),
    "metric": with_line(18, "  round.complete: [rate == 100%]"),
    "cut-off": with_line(18, "  model.ndcg@x: [last > 0.1]"),
    "tag": with_line(18, "  'round.completed{class=a}': [rate == 100%]"),
    "aggregation": with_line(18, "  round.completed: [p95 == 100%]"),
    "unit of a limit": with_line(18, "  round.duration: [p95 < 20]"),
    "operator": with_line(18, "  round.completed: [rate = 100%]"),
    "percentile": with_line(18, "  round.duration: [p101 < 20 s]"),
    "no expectation": with_line(18, "  round.duration: []"),
    "after": with_line(18, "  round.duration: [{expect: p95 < 20 s, abort: true, after: 2}]"),
    "word": with_lines_after(17, "  # x").replace("thresholds:", "expect: divergd\nthresholds:"),
    "selection": with_lines_after(16, "  selection: randm"),
    "fault": with_lines_after(0, "faults: [{name: a, slowdwn: {factor: 3}}]"),
    "format": with_line(1, "format: 9"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses_what_validate_refuses(what: str) -> None:
    with pytest.raises(ScenarioError):
        load_text(REFUSED[what], "s.yaml")
    assert not takes(REFUSED[what])


def test_profiles_of_its_own_may_have_any_name() -> None:
    own = "  profiles: [mine.yaml]\n  mix: ours\n  availability: ours"
    assert takes(with_line(9, own))
    assert takes("extends: base.yaml\nfleet: {mix: ours}\n")


QUANTITIES = {"PositiveSeconds": DURATION, "BitsPerSecond": RATE, "Bytes": SIZE, "Joules": ENERGY}
TEXTS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", " ", "+", "-"]),
    st.from_regex(r"[0-9]{1,3}(_[0-9])?(\.[0-9]?)?(e[+-]?[0-9])?|\.[0-9]|x", fullmatch=True),
    st.sampled_from(["", " ", "  "]),
    st.sampled_from(
        sorted({unit for one in QUANTITIES.values() for unit in one.units} | {"", "m", "KB", "sek"})
    ),
)


@pytest.mark.parametrize("name", QUANTITIES)
@given(text=TEXTS)
def test_patterns_of_units_take_what_is_read(name: str, text: str) -> None:
    quantity: Quantity = QUANTITIES[name]
    (form,) = getattr(fields, name).__metadata__
    try:
        quantity.parse(text)
    except UnitError:
        read_it = False
    else:
        read_it = not text.strip().startswith("-")  # minus nothing is read, and refused by the pattern
    assert bool(re.search(form.schema["pattern"], text)) == read_it


KEYS = [
    *metric_examples(),
    "round.duration{phase=storm}", "device.latency{phase=a,network=4g_in}", " device.latency { class = x } ",
    "model.ndcg@100/99neg", "model.auc/999neg{split=test}", "model.coverage@5", "audit.ranking@10%",
    "audit.recovery@0.5", "model.hr@0", "model.hr", "model.coverage@5/9neg", "model.er@10/9neg",
    "audit.ranking",
    "round.duration{class=a}", "round.duration{}", "round.duration{phase}", "round.duration{phase=}",
    "device.latency{phase=a,}", "x", "", "model.auc@10", "audit.indicator@1", "audit.rated_recall@1",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_thresholds_are_those_that_are_read(key: str) -> None:
    try:
        parse_metric(key)
    except FieldProblemsError:
        known = False
    else:
        known = True
    schema = threshold_schema()
    taken = key in schema["properties"] or any(re.search(one, key) for one in schema["patternProperties"])
    assert taken == known


def test_every_metric_has_a_name_in_the_schema() -> None:
    named = {name: metric for name, _, metric in metric_names()}
    assert set(named) == set(metric_examples())
    assert all(metric == find_metric(name) for name, metric in named.items())


EXPECTED = [
    "p95 < 20 s", "p99.9<=1e3 ms", "rate >= 99%", "count > 3", "count > 3 s", "count < 2 * count",
    "med < 5 J",
    "last <= 0.9 * first", "p95 < 2 * baseline", "p95 < baseline", "max < 64 KiB", "last < -0.5", "rate == 1",
    "mean < 130%", "p101 < 1 s", "p100 < 1 s", "p < 1 s", "first < 1", "rate", "mean = 1", "mean < ", "< 1 s",
    "max < 5 %", "max < 200% * mean", "p95 < 2*p50", "avg < 1 s", " min >= .5 s ", "last < 0.95 * frst",
]  # fmt: skip


@pytest.mark.parametrize("text", EXPECTED)
@pytest.mark.parametrize(
    "metric",
    ["round.duration", "device.up_bytes", "device.energy", "model.loss", "round.clipped", "round.completed"],
)
def test_expectations_are_those_that_are_read(metric: str, text: str) -> None:
    try:
        parse_thresholds({metric: [text]})
    except FieldProblemsError:
        right = False
    else:
        right = True
    kind = find_metric(metric)
    assert kind is not None
    pattern = expectation_definitions()[f"Expectations{kind.kind.value.title()}Text"]["pattern"]
    assert bool(re.search(pattern, text)) == right
