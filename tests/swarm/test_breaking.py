"""A search around a scenario: what breaks a promise, made less as long as it does, and a file of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.cli.entry import execute
from coordinator.engine.progress import RunObserver
from coordinator.results.tables.writer import TablesInMemory
from coordinator.run.in_memory import Judged, judge_baseline, judge_in_memory
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import LoadedScenario, edited, load
from coordinator.scenario.threshold_evaluation import ThresholdResult
from coordinator.swarm import breaking, changes
from coordinator.swarm.breaking import Search, SearchBounds, break_promises, breaking_file
from coordinator.swarm.changes import (
    KNOBS,
    Change,
    FurtherFault,
    Surroundings,
    in_words,
    laid_over,
    settings_of,
)
from edge.core.rng import Draws

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TEXT = """\
format: 2
title: Forty phones
seed: 3
data: {source: synthetic-ratings, users: 40, items: 40, ratings_per_user: 10}
fleet:
  devices: {laptop_x86_2019: 100%}
  networks: {wifi_enterprise: 60%, 4g_uk: 40%}
  regions: 2
learning: {algorithm: fedrecon, factors: 2, learning_rate: 0.05}
rounds: {cohort: 20, deadline: 10 s}
phases: [{name: first, rounds: 1}, {name: second, rounds: 2}]
evaluation: {every: 100}
faults:
  - {name: slow, during: first, slowdown: {factor: 2}}
baseline: same-seed-without-faults
thresholds:
  round.duration: [p95 < 3 s, mean < 20 * baseline]
  device.completed: [rate > 80%]
"""


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedScenario:
    path = tmp_path / "forty.yaml"
    path.write_text(TEXT)
    return load(path)


def quiet(line: str) -> None:
    """Say nothing."""


def verdicts(loaded: LoadedScenario, *, held: bool) -> tuple[ThresholdResult, ...]:
    return (
        ThresholdResult(loaded.scenario.thresholds[0], held, 1.0, 3.0, 2.0, 1, None if held else "it was 1"),
    )


def breaks_where(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[LoadedScenario], bool]
) -> list[LoadedScenario]:
    """Let a function of the scenario say what breaks in place of runs; return what was asked."""
    asked: list[LoadedScenario] = []

    def judge(loaded: LoadedScenario, baseline: Judged | None) -> Judged:
        asked.append(loaded)
        return Judged(verdicts(loaded, held=not broken(loaded)), TablesInMemory())

    monkeypatch.setattr(breaking, "judge_in_memory", judge)
    monkeypatch.setattr(breaking, "judge_baseline", lambda loaded: None)
    return asked


def lossy(loaded: LoadedScenario) -> bool:
    """Return whether a fault loses 4% or more of the packets."""
    return any(fault.key == "loss" and fault.kind.probability >= 0.04 for fault in loaded.scenario.faults)


def test_the_least_strength_that_breaks_is_found(
    loaded: LoadedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks_where(monkeypatch, lossy)
    search = break_promises(loaded, SearchBounds(1, 400), quiet)
    (found,) = search.found
    (change,) = found.changes
    assert change.words().startswith("4% more packet loss")
    assert found.holding == ("3.9%",)
    assert found.least


def test_another_seed_alone_may_be_enough(loaded: LoadedScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks_where(monkeypatch, lambda one: one.scenario.seed != 3)
    search = break_promises(loaded, SearchBounds(1, 100), quiet)
    assert [change.kind for found in search.found for change in found.changes] == ["seed"]


def test_two_changes_that_break_only_together_stay_both(
    loaded: LoadedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def together(one: LoadedScenario) -> bool:
        return one.scenario.seed != 3 and len(one.scenario.faults) > 1

    breaks_where(monkeypatch, together)
    search = break_promises(loaded, SearchBounds(1, 1000), quiet)
    (found,) = search.found
    assert len(found.changes) == 2


def test_a_promise_that_is_missed_anyway_is_said_and_nothing_searched(
    loaded: LoadedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = breaks_where(monkeypatch, lambda one: True)
    search = break_promises(loaded, SearchBounds(1, 100), quiet)
    assert len(asked) == 1
    assert search.missed
    assert search.found == []


def test_the_bounds_end_a_search(loaded: LoadedScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks_where(monkeypatch, lambda one: False)
    search = break_promises(loaded, SearchBounds(1, 7), quiet)
    assert (search.found, search.over) == ([], False)
    assert search.candidates <= 7
    search = break_promises(loaded, SearchBounds(1, None, 1e-9), quiet)
    assert (search.found, search.over, search.candidates) == ([], True, 0)


def test_a_search_that_goes_on_finds_changes_of_other_kinds(
    loaded: LoadedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks_where(monkeypatch, lambda one: lossy(one) or one.scenario.seed != 3)
    search = break_promises(loaded, SearchBounds(1, 400, keep_going=True), quiet)
    assert sorted(change.kind for found in search.found for change in found.changes) == ["loss", "seed"]


def test_an_interrupted_search_keeps_what_was_found(
    loaded: LoadedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LoadedScenario] = []

    def broken(one: LoadedScenario) -> bool:
        asked.append(one)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return len(one.scenario.faults) > 1

    breaks_where(monkeypatch, broken)
    search = break_promises(loaded, SearchBounds(1, 400), quiet)
    assert search.interrupted
    assert [found.least for found in search.found] == [False]


def test_time_that_ends_making_less_leaves_what_was_found(
    loaded: LoadedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks_where(monkeypatch, lambda one: len(one.scenario.faults) > 1)
    clock = itertools.count()
    monkeypatch.setattr(breaking.time, "monotonic", lambda: float(next(clock)))
    ended = [break_promises(loaded, SearchBounds(1, 100, seconds), quiet) for seconds in (2.0, 1000.0)]
    assert [found.least for search in ended for found in search.found] == [False, True]
    assert [search.over for search in ended] == [True, False]


def test_every_kind_of_fault_is_valid_at_every_end_of_its_grid(loaded: LoadedScenario) -> None:
    surroundings = Surroundings(loaded, 60.0)
    seen: dict[str, Change] = {}
    for index in range(400):
        for change in surroundings.drawn(Draws(1, "around", index)):
            seen.setdefault(change.key if isinstance(change, FurtherFault) else type(change).__name__, change)
    assert seen.keys() == KNOBS.keys() | {"OtherSeed", "OtherShares"}
    for change in seen.values():
        for at in (0, len(change.grid) - 1):
            edited(loaded, list(settings_of(laid_over(loaded, [change.with_strength(at)]))))


def test_strengths_are_two_digits_and_rise() -> None:
    grid = changes.two_digits(0.001, 0.5)
    assert (grid[0], grid[1], grid[-1]) == (0.001, 0.0011, 0.5)
    assert list(grid) == sorted(set(grid))
    for knob in KNOBS.values():
        assert len(knob.grid) > 50
        # Of some it is less that is worse.
        assert sorted(knob.grid, reverse=knob.grid[0] > knob.grid[-1]) == list(knob.grid)


def test_shares_stay_whole(loaded: LoadedScenario) -> None:
    surroundings = Surroundings(loaded, 60.0)
    found = [
        change
        for index in range(100)
        for change in surroundings.drawn(Draws(2, "around", index))
        if isinstance(change, changes.OtherShares)
    ]
    assert found
    for change in found:
        shares = laid_over(loaded, [change])["fleet"][change.section]
        assert sum(float(share.rstrip("%")) for share in shares.values()) == pytest.approx(100)
        more = float(shares[change.name].rstrip("%")) - 100 * change.shares.get(change.name, 0)
        assert more == pytest.approx(100 * change.grid[change.at])


@pytest.mark.parametrize(
    ("promise", "baseline"),
    [
        ("mean < 20 * baseline", "same-seed-without-faults"),
        ("max < 1 ms", "null"),
        ("{expect: max < 1 ms, abort: true}", "null"),
    ],
)
def test_a_run_in_memory_is_judged_as_one_on_disk(
    promise: str, baseline: str, loaded: LoadedScenario, tmp_path: Path
) -> None:
    one = edited(loaded, [f'thresholds."round.duration"=[{promise}]', f"baseline={baseline}"])
    judged = judge_in_memory(one, judge_baseline(one))
    outcome = run_scenario(one, target=tmp_path / "run", observer=RunObserver())
    assert judged.verdicts == outcome.verdicts
    assert judged.held == (outcome.exit_code == 0)


def test_a_baseline_that_misses_its_own_promises_is_a_broken_promise(loaded: LoadedScenario) -> None:
    one = edited(loaded, ['thresholds."round.duration"=[max < 1 ms]'])
    baseline = judge_baseline(one)
    assert baseline is not None
    assert judge_in_memory(one, baseline) is baseline
    assert not baseline.held


def words_of(search: Search) -> str:
    return "; ".join(in_words(found.changes) for found in search.found)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_file_reproduces_what_was_found_and_the_next_weaker_holds(
    seed: int, loaded: LoadedScenario, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = break_promises(loaded, SearchBounds(seed, 200), quiet)
    (found,) = search.found
    path = breaking_file(loaded, found, seed, tmp_path / "found")
    assert path.read_text().startswith(f"# {in_words(found.changes)}\n# breaks ")
    assert execute(["run", str(path), "--out", str(tmp_path / "run")]) == 3
    assert [one.threshold for one in found.broken] != []
    for place, change in enumerate(found.changes):
        if change.at > 0:
            weaker = (
                *found.changes[:place],
                change.with_strength(change.at - 1),
                *found.changes[place + 1 :],
            )
            one = edited(loaded, list(settings_of(laid_over(loaded, weaker))))
            assert judge_in_memory(one, judge_baseline(one)).held
    # The same seed finds the same; another something else.
    assert words_of(break_promises(loaded, SearchBounds(seed, 200), quiet)) == words_of(search)


def test_the_verb_says_what_breaks_in_words(
    loaded: LoadedScenario,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    breaks_where(monkeypatch, lossy)
    assert execute(["swarm", "forty.yaml", "--scenarios", "400"]) == 3
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("forty breaks with 4% more packet loss")
    assert shown[1] == "    MISSED round.duration: p95 < 3 s (it was 1)"
    assert shown[2] == "    with 3.9% in place of 4% all 3 promises hold"
    assert shown[3].startswith("    see it again: recfleet run swarm-failures/forty-1-")
    assert load(shown[3].split()[-1]).scenario.title == f"Forty phones: {shown[0][18:-1]}"
    breaks_where(monkeypatch, lambda one: False)
    assert execute(["swarm", "forty.yaml", "--scenarios", "3"]) == 0
    assert "forty: all 3 promises hold, in 3 random surroundings, too" in capsys.readouterr().out
    breaks_where(monkeypatch, lambda one: True)
    assert execute(["swarm", "forty.yaml"]) == 3
    assert "misses promises as it is" in capsys.readouterr().out


def test_settings_of_the_command_line_are_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (f"{user},{item},{(user + item) % 5 + 1}" for user in range(30) for item in range(12))
    Path("ratings.csv").write_text("\n".join(("user,item,rating", *rows)))
    Path("forty.yaml").write_text(TEXT)
    settings = (
        "data={source: table, path: ratings.csv, users: null, items: null, ratings_per_user: null}",
        "rounds.cohort=10",
        'thresholds."device.completed"=null',
        "fleet.regions=null",
    )
    given = [part for setting in settings for part in ("--set", setting)]
    breaks_where(
        monkeypatch, lambda one: one.scenario.fleet.networks != load("forty.yaml").scenario.fleet.networks
    )
    assert execute(["swarm", "forty.yaml", "--out", "found", *given]) == 3
    (path,) = Path("found").iterdir()
    again = load(path)
    assert again.resolve(("data", "path")) == tmp_path / "ratings.csv"
    scenario = again.scenario
    assert (scenario.rounds.cohort, scenario.fleet.regions, len(scenario.thresholds)) == (10, 1, 2)
    assert scenario.fleet.networks != load("forty.yaml").scenario.fleet.networks
    assert execute(["swarm", *given]) == 2
    assert "name the SCENARIO" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--only", "3"], ["--workers", "2"], ["--junit", "x.xml"], ["--no-minimise"]],
)
def test_options_of_the_other_swarm_are_refused(
    arguments: list[str], loaded: LoadedScenario, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["swarm", str(tmp_path / "forty.yaml"), *arguments]) == 2
    assert f"{arguments[0]} is for swarms without SCENARIO" in capsys.readouterr().err


def test_a_scenario_without_promises_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.yaml"
    path.write_text(TEXT.partition("thresholds:")[0])
    assert execute(["swarm", str(path)]) == 2
    assert "promises nothing; write 'thresholds'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quickstart", "stragglers", "subway", "regional_outage", "iot_gateways"])
def test_what_breaks_a_shipped_scenario_is_found_and_reproduced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["swarm", name]) == 3
    (path,) = Path("swarm-failures").iterdir()
    assert execute(["run", str(path), "--out", "run"]) == 3
