from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from scenario_files import BASE, sections_of, with_line, with_lines_after, write_files

from coordinator.scenario.dump import dump_resolved, scenario_hash
from coordinator.scenario.faults_section import KINDS
from coordinator.scenario.load import LoadedScenario, ScenarioError, load
from coordinator.scenario.rounds_section import Rounds
from coordinator.scenario.schema import ScenarioSettings
from device_profiles.documents import parse_document
from edge.learning.registry import METHODS


def loaded(folder: Path, text: str, *overrides: str, **others: str) -> LoadedScenario:
    files = {f"{name}.yaml": content for name, content in others.items()}
    return load(write_files(folder, {"s.yaml": text, **files}), overrides)


def reloaded(scenario: ScenarioSettings) -> ScenarioSettings:
    return ScenarioSettings.model_validate(parse_document(dump_resolved(scenario), "dump").root)


FULL = """
format: 2
title: "Everything: written out"
description: >
  Two lines,
  with a 'quote', a # and a ümlaut.
seed: 3
data:
  source: synthetic-ratings
  users: 600
  items: 300
  ratings_per_user: 20.5
  users_per_client: 3
  grouping: dirichlet
  alpha: 0.3
  split: {kind: leave-one-out, validation: true}
fleet:
  devices: {sbc_pi4: 1/3}
  networks: {wifi_home: 33.3%, dsl: 66.7%}
  availability:
    kind: on-off
    session: {distribution: lognormal, median: 20 min, sigma: 0.9}
    gap: {distribution: exponential, mean: 300 ms}
coordinator: {down_rate: 1 GB/s, up_rate: 1.5 Gbit/s}
connection: {tls: false, keep_alive: true, congestion: reno}
learning:
  algorithm: fedrecon
  factors: 4
  reconstruction: {method: gradient-steps, steps: 3}
  optimizer: {kind: sgd, momentum: 90%}
  learning_rate: 0.123456789012345
rounds:
  cohort: 20
  over_select: 130%
  quorum: 55%
  deadline: 45 s
  selection: availability-aware
  max_wait: 2 h
  interval: 1.5 s
  retry: {attempts: 5, first_backoff: 250 ms, factor: 1.5}
  simulated_time_limit: 1 d
  target: model.rmse <= 0.9
phases:
  - {name: warm-up, rounds: 5}
  - {name: rest, rounds: 15}
evaluation: {every: 3, users: 100, on: validation, ranking: {k: [5, 10], negatives: 99}, final: false}
record: {events: none, trace_devices: 0}
compute: {batch: 64, workers: 2}
limits: {frame_bytes: 1 MiB}
thresholds:
  round.completed: [rate >= 99%, count > 3]
  "round.duration{phase=rest}": p95 < 50 s
  "device.up_bytes{network=dsl, class=sbc_pi4}": [{expect: p99.9 < 256 KiB}]
  model.ndcg@10/99neg: [last >= 1.5 * first]
""".replace("1/3", "100%")


def test_the_least_scenario_gets_its_defaults(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, BASE).scenario
    assert scenario.rounds == Rounds(count=20, cohort=50)
    assert scenario.rounds.deadline == 60.0
    assert scenario.rounds.quorum_reports == 1
    assert scenario.rounds.invited == 50
    assert scenario.limits.frame_bytes == 64 * 2**20
    assert scenario.round_count == 20


def test_everything_can_be_written(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, FULL).scenario
    assert scenario.coordinator.down_rate == 8e9
    assert scenario.rounds.quorum_reports == 11
    assert scenario.rounds.invited == 26
    assert scenario.rounds.retry.first_backoff == 0.25
    assert scenario.round_count == 20
    assert scenario.rounds.target is not None
    assert scenario.rounds.target.reached(0.9)
    assert not scenario.rounds.target.reached(0.91)
    assert [threshold.key for threshold in scenario.thresholds][2:4] == [
        "round.duration{phase=rest}",
        "device.up_bytes{class=sbc_pi4,network=dsl}",
    ]


FAULTS = (
    "vanish: {}, at_stage: compute, during: [warm-up, rest]",
    "vanish: {}, at: 5 s, for: 1.5 h",
    "slowdown: {factor: 1.5}, on: {slowest: 5%}",
    "bandwidth: {up: 128 kbit/s}, latency: {mean: 300 ms, jitter: 80 ms}, loss: {probability: 1%}",
    "bandwidth: {scale: 33.3%}, direction: down",
    "blackout: {}, at_stage: report, for: 7 s, on: {network: dsl, fraction: 0.123456789}",
    "flapping: {period: 1 min, up: 33%}, on: {devices: [3, 1], fixed: true}",
    "reset: {probability: 5%}, direction: up",
    "reset: {}, at_stage: acknowledge",
    "late: {by: 4 s}",
    "duplicate: {}",
    "reorder: {}",
    "corrupt: {probability: 0.1%}, during: rest",
    "battery_drain: {level: 5%}, on: {class: sbc_pi4}",
    "memory_pressure: {factor: 50%}",
    "clock_skew: {ahead: 3 s}",
    "clock_skew: {behind: 3 s}",
    "flash_crowd: {after: 20 ms}, at_stage: report",
    "poisoned_updates: {kind: sign-flip, scale: 3}",
    "explicit_boosting: {item: 3, norm_limit: 0.5}, on: {fraction: 5%, fixed: true}",
    "hard_users: {item: 3, dislike_steps: 5, ignores_bound: true}",
    "coordinator_slow: {handling: 10 us}",
    "coordinator_crash: {}, at: 1 d, for: 3 s",
    "coordinator_crash: {}, at_stage: invite, for: 3 s",
)
STRUCK = FULL + "faults:\n" + "".join(
    f"  - {{name: f{number}, {inside}}}\n" for number, inside in enumerate(FAULTS)
)  # fmt: skip


def test_every_kind_of_fault_is_written_out() -> None:
    scenario = ScenarioSettings.model_validate(parse_document(STRUCK, "struck").root)
    assert {key for fault in scenario.faults for key in fault.keys} == set(KINDS)


@pytest.mark.parametrize("text", [BASE, FULL, STRUCK])
def test_the_flattened_scenario_loads_to_an_equal_one(text: str, tmp_path: Path) -> None:
    scenario = loaded(tmp_path, text).scenario
    again = reloaded(scenario)
    assert again == scenario
    assert dump_resolved(again) == dump_resolved(scenario)
    assert scenario_hash(again) == scenario_hash(scenario)


def test_the_flattened_scenario_has_units() -> None:
    scenario = ScenarioSettings.model_validate(parse_document(FULL, "full").root)
    text = dump_resolved(scenario)
    for line in ("  deadline: 45 s", "  up_rate: 1.5 Gbit/s", "  frame_bytes: 1 MiB",
                 "    first_backoff: 250 ms",
                 "  over_select: 130%", "  quorum: 55%", "  learning_rate: 0.123456789012345",
                 "  round.completed: [rate >= 99%, count > 3]"):  # fmt: skip
        assert f"\n{line}\n" in text


@settings(max_examples=150)
@given(
    title=st.text(max_size=40),
    seed=st.integers(0, 2**53),
    rate=st.floats(1e-6, 1e15),
    wait=st.floats(1e-9, 1e9),
)
def test_any_values_survive_the_round_trip(title: str, seed: int, rate: float, wait: float) -> None:
    base = ScenarioSettings.model_validate(parse_document(BASE, "base").root)
    printable = "".join(character for character in title if character.isprintable() or character in "\n\t")
    changed = base.model_copy(
        update={
            "title": f"x{printable}",
            "seed": seed,
            "coordinator": base.coordinator.model_copy(update={"up_rate": rate}),
            "rounds": base.rounds.model_copy(update={"deadline": wait}),
        }
    )
    assert reloaded(changed) == changed


def test_the_hash_names_what_is_asked_for(tmp_path: Path) -> None:
    plain = loaded(tmp_path, BASE).hash
    assert len(plain) == 64
    assert loaded(tmp_path, BASE, "title=x", "description=y", "compute.batch=3").hash == plain
    assert loaded(tmp_path, BASE, "compute.sum_groups=16").hash == plain
    assert loaded(tmp_path, BASE, "compute.sum_groups=8").hash != plain
    assert loaded(tmp_path, BASE.replace("60 s", "1 min").replace("seed: 7", "seed: 0_7")).hash == plain
    assert loaded(tmp_path, BASE, "seed=8").hash != plain
    assert loaded(tmp_path, BASE, "rounds.deadline=61 s").hash != plain


def test_mappings_merge_lists_replace_and_null_removes(tmp_path: Path) -> None:
    parent = with_lines_after(2, "title: parent", "phases: [{name: a, rounds: 8}, {name: b, rounds: 12}]")
    child = "extends: base.yaml\ntitle: null\nrounds: {cohort: 10}\nphases: [{name: c, rounds: 20}]\n"
    scenario = loaded(tmp_path, child, base=parent).scenario
    assert scenario.title is None
    assert scenario.rounds.cohort == 10
    assert scenario.rounds.deadline == 60.0
    assert [phase.name for phase in scenario.phases] == ["c"]


def test_a_chain_of_parents_in_other_folders(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "base.yaml").write_text(BASE)
    (tmp_path / "middle.yaml").write_text("extends: deep/base.yaml\nseed: 8\ndata: {users: 300}\n")
    (tmp_path / "s.yaml").write_text("extends: middle.yaml\ndata: {items: 900}\n")
    result = load(tmp_path / "s.yaml")
    assert result.name == "s"
    assert result.scenario.seed == 8
    data = dict(result.scenario.data)
    assert (data["users"], data["items"], data["ratings_per_user"]) == (300, 900, 30.0)
    assert [path.name for path in result.files.values()] == ["s.yaml", "middle.yaml", "base.yaml"]


def test_options_change_single_values(tmp_path: Path) -> None:
    phases = with_lines_after(2, "phases: [{name: a, rounds: 8}, {name: b, rounds: 12}]")
    scenario = loaded(
        tmp_path,
        phases,
        "seed=9",
        "rounds.deadline = 2 min",
        "phases[1].rounds=2",
        "rounds.count=null",
        'thresholds."round.completed"=[rate >= 90%, count > 1]',
        "data.split={kind: none}",
        "title=a: b # c",
        "learning.reconstruction.method=gradient-steps",
        "learning.reconstruction.steps=2",
        "learning.client={method: mini-batches, batch_size: 5}",
    ).scenario
    assert scenario.seed == 9
    assert scenario.rounds.deadline == 120.0
    assert [phase.rounds for phase in scenario.phases] == [8, 2]
    assert scenario.round_count == 10
    assert [threshold.text for threshold in scenario.thresholds] == ["rate >= 90%", "count > 1"]
    assert dict(scenario.data)["split"].kind == "none"
    assert scenario.title == "a: b # c"
    assert dict(scenario.learning)["client"].batch_size == 5


def test_later_options_win_and_mappings_merge(tmp_path: Path) -> None:
    scenario = loaded(
        tmp_path, BASE, "seed=9", "seed=10", "rounds={cohort: 5, quorum: 2}", "rounds.cohort=6"
    ).scenario
    assert scenario.seed == 10
    assert scenario.rounds.cohort == 6
    assert scenario.rounds.quorum == 2
    assert scenario.rounds.count == 20


def test_file_names_start_where_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    movielens = with_line(4, "  source: movielens-100k", "  path: u.data")
    movielens = movielens.replace("  users: 200\n  items: 300\n  ratings_per_user: 30\n", "")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "u.data").write_text("x")
    (tmp_path / "folder" / "base.yaml").write_text(movielens)
    (tmp_path / "s.yaml").write_text("extends: folder/base.yaml\n")
    result = load(tmp_path / "s.yaml")
    assert result.resolve(("data", "path")) == tmp_path / "folder" / "u.data"
    monkeypatch.chdir(tmp_path)
    result = load(tmp_path / "s.yaml", ["data.path=folder/../folder/u.data"])
    assert result.resolve(("data", "path")) == Path("folder/u.data")
    with pytest.raises(LookupError):
        result.resolve(("data", "gone"))


def test_references_can_be_left_unchecked(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"s.yaml": with_line(9, "  mix: gone")})
    with pytest.raises(ScenarioError):
        load(path)
    assert load(path, references=False).scenario.fleet.mix == "gone"


def test_phases_by_rounds_and_by_time(tmp_path: Path) -> None:
    rounds = with_line(14).replace("seed: 7", "phases: [{name: a, rounds: 2}, {name: b, rounds: 3}]")
    scenario = loaded(tmp_path, rounds).scenario
    assert scenario.round_count == 5
    assert scenario.phase_time_s is None
    assert [scenario.phase_at(number, 0.0) for number in range(6)] == ["a", "a", "b", "b", "b", "b"]
    times = BASE.replace("seed: 7", "phases: [{name: a, time: 10 s}, {name: b, time: 1 min}]")
    scenario = loaded(tmp_path, times).scenario
    assert scenario.round_count == 20
    assert scenario.phase_time_s == 70.0
    assert [scenario.phase_at(0, time) for time in (0.0, 9.9, 10.0, 69.0, 70.0)] == ["a", "a", "b", "b", "b"]
    assert loaded(tmp_path, BASE).scenario.phase_at(3, 9.0) == ""


def test_sections_cannot_be_changed(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, BASE).scenario
    with pytest.raises(ValidationError):
        scenario.seed = 5  # type: ignore[misc]


def numeric_fields() -> list[tuple[type[BaseModel], str]]:
    found = []
    for section in [*sections_of(ScenarioSettings), *(method.Settings for method in METHODS.values())]:
        for name, info in section.model_fields.items():
            if info.annotation in (int, float):
                found.append((section, name))
    return found


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", ".nan", "1e999", "", "  ", "0x10"])
def test_no_number_takes_what_is_not_one(text: str) -> None:
    fields = numeric_fields()
    assert len(fields) > 40
    accepted = []
    for section, name in fields:
        try:
            section.model_validate({name: text})
        except ValidationError as error:
            if not any(detail["loc"] == (name,) for detail in error.errors()):
                accepted.append((section.__name__, name))
        else:
            accepted.append((section.__name__, name))
    assert accepted == []
