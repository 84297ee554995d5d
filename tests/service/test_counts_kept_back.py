"""On the real clock no table gives the number of a device's ratings back that a sum or noise keeps back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from service_helpers import IDEAL_PROFILES, Silent, loaded_text, rows_of, run_real, run_virtual

from coordinator.engine.assembly import Assembly
from coordinator.results.tables.schemas import SCHEMAS
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario
from coordinator.service.conducting import RealTime, assembled
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.watchers import LiveService
from coordinator.service.local_run import along
from coordinator.service.metrics import exposition

pytestmark = pytest.mark.slow

COUNTS = (31, 9, 57, 18, 44, 12, 66, 26, 15, 50, 37, 22)
"""Of no order that the order of the devices has, too."""
ROUNDS = 3
TELLS = 0.9
"""Rank correlation, in each of the rounds, of a column that gives the number of ratings back."""
SCENARIO = f"""
format: 2
seed: 3
data: {{source: auto, path: ratings.csv, split: {{kind: none}}}}
fleet: {{devices: {{ideal_device: 100%}}, networks: {{ideal_wire: 100%}}, profiles: [{IDEAL_PROFILES}]}}
connection: {{tls: false, keep_alive: true}}
learning: {{algorithm: fedrecon, factors: 4, learning_rate: 0.05, upload: dense, weighting: uniform}}
rounds: {{count: {ROUNDS}, cohort: {len(COUNTS)}, deadline: 60 s, interval: 0.2 s}}
evaluation: {{final: false}}
thresholds: {{device.energy: [max < 1 MJ], device.wasted_work: [rate < 1%], device.latency: [max < 60 s]}}
"""
NOISE = "privacy: {{mechanism: {}, clip_norm: 1, noise_multiplier: 1, accounting: false}}\n"
WAYS = {
    "sum": "secure_aggregation: {mode: secagg-plus}\n" + NOISE.format("distributed-discrete-gaussian"),
    "noise": NOISE.format("local-gaussian"),
}


def scenario(folder: Path, way: str) -> LoadedScenario:
    draw = np.random.default_rng(5)
    lines = [
        f"{user},{item},{1 + (user * item) % 5}"
        for user, count in enumerate(COUNTS)
        for item in draw.permutation(80)[:count].tolist()
    ]
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    return loaded_text(folder, SCENARIO + way)


def ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return ranks [n]; equal values have the mean of theirs."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(np.argsort(values, kind="stable"))
    return (np.bincount(group, order) / np.bincount(group))[group]


def telling(outcome: RunOutcome) -> set[str]:
    """Return the columns, with their tables, that rank the devices as their numbers of ratings do.

    Of rows of events of one kind, that are one a device and round.
    """
    found = set()
    for table, schema in SCHEMAS.items():
        rows = rows_of(outcome, table)
        if "device" not in schema.names:
            continue
        kinds = {row.get("kind") for row in rows}
        for kind in kinds:
            mine = [row for row in rows if row.get("kind") == kind]
            for name in schema.names:
                if ranked_by_counts([(row["round"], row["device"], row[name]) for row in mine]):
                    found.add(f"{table}.{name}")
    return found


def ranked_by_counts(cells: list[tuple[int, int, Any]]) -> bool:
    numbers = [cell for cell in cells if isinstance(cell[2], int | float)]
    for round_number in range(1, ROUNDS + 1):
        of_device: dict[int, float] = {}
        for number, device, value in numbers:
            if number == round_number:
                of_device[device] = of_device.get(device, 0.0) + value
        values = np.array(list(of_device.values()))
        if len(values) < len(COUNTS) // 2 or (values == values[0]).all():
            return False
        true = ranks(np.array([COUNTS[device] for device in of_device], np.float64))
        if abs(np.corrcoef(ranks(values), true)[0, 1]) < TELLS:
            return False
    return True


@pytest.fixture(scope="module", params=WAYS)
def kept_back(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedScenario, RunOutcome]:
    """Return a run on the real clock, for each of the ways in which counts are kept back."""
    folder = tmp_path_factory.mktemp("run")
    loaded = scenario(folder, WAYS[request.param])
    return loaded, run_real(loaded, folder / "real")


def test_no_table_gives_the_number_of_ratings_back(
    kept_back: tuple[LoadedScenario, RunOutcome], tmp_path: Path
) -> None:
    loaded, outcome = kept_back
    assert len(rows_of(outcome, "device_rounds")) == ROUNDS * len(COUNTS)
    assert {row["outcome"] for row in rows_of(outcome, "device_rounds")} == {"completed"}
    assert telling(outcome) == set()
    # The same columns of a simulation, where everything may be seen, would be found.
    seen = telling(run_virtual(loaded, tmp_path / "virtual"))
    found = {
        f"device_rounds.{name}" for name in ("examples", "memory_bytes", "compute_s", "energy_compute_j")
    }
    assert {*found, "events.end_s"} < seen


@pytest.mark.parametrize("mode", ["active", "ckks"])
def test_no_table_of_other_sums_does_either(mode: str, tmp_path: Path) -> None:
    loaded = scenario(tmp_path, f"secure_aggregation: {{mode: {mode}, clip: 1}}\n")
    assert telling(run_real(loaded, tmp_path / "real")) == set()
    seen = telling(run_virtual(loaded, tmp_path / "virtual"))
    assert seen > {"device_rounds.examples", "device_rounds.memory_bytes"}


def test_what_follows_from_the_number_is_null(kept_back: tuple[LoadedScenario, RunOutcome]) -> None:
    _, outcome = kept_back
    names = ["examples", "memory_bytes", "loss", "compute_s", "compute_start_s", "compute_end_s"]
    names += ["wait_s", "wasted_compute_s", "energy_compute_j", "energy_radio_j"]
    for row in rows_of(outcome, "device_rounds"):
        assert [name for name in names if row[name] is not None] == []
        assert row["latency_s"] > 0
    for row in rows_of(outcome, "rounds"):
        assert (row["compute_s"], row["wasted_compute_s"], row["energy_j"]) == (None, None, None)
        assert row["loss"] is None
    assert not [row for row in rows_of(outcome, "events") if row["stage"] == "compute"]
    assert [str(one.metric) for one in outcome.unseen] == ["device.energy", "device.wasted_work"]
    assert [result.held for result in outcome.verdicts] == [True]
    summary = json.loads((outcome.directory / "summary.json").read_text())
    assert (summary["energy_j"], summary["compute_s"]) == (None, None)
    assert summary["waste_by_outcome"]["completed"]["energy_j"] is None
    assert summary["by_class"]["ideal_device"]["mean_compute_s"] is None
    trace = json.loads(gzip.decompress((outcome.directory / "trace.json.gz").read_bytes()))
    names = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert "download" in names
    assert "compute" not in names


def test_it_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Assembly, "counts_kept_back", lambda self, phase: False)
    found = telling(run_real(scenario(tmp_path, WAYS["sum"]), tmp_path / "real"))
    assert "device_rounds.memory_bytes" in found


def test_those_who_watch_a_run_are_given_no_figure_of_one_device(tmp_path: Path) -> None:
    loaded = scenario(tmp_path, WAYS["sum"])
    assembly = assemble(loaded)
    live = LiveState()
    conductor = RealTime(wait_for=len(COUNTS), company=along(shaped=False), observer=LiveService(live))
    run_assembled(
        loaded, assembly, target=tmp_path / "real", observer=Silent(), conductor=conductor, feeds=(live,)
    )
    text, _ = exposition(live)
    assert b"recfleet_device_rounds_total" in text
    assert b"device=" not in text
    shown = json.dumps(live.changes(-1))
    for word in ("examples", 'memory_bytes"', "compute_s", "energy"):
        assert word not in text.decode() + shown, word


def test_in_the_clear_devices_state_their_numbers_and_nothing_is_kept_back(tmp_path: Path) -> None:
    outcome = run_real(scenario(tmp_path, ""), tmp_path / "real")
    for row in rows_of(outcome, "device_rounds"):
        assert row["examples"] == COUNTS[row["device"]]
        assert row["memory_bytes"] > 0
        assert row["energy_compute_j"] > 0
    assert outcome.unseen == ()


@pytest.mark.parametrize("way", ["secure_aggregation: {mode: secagg-plus}\n", WAYS["noise"]])
def test_who_is_invited_does_not_follow_from_what_is_kept_back(way: str, tmp_path: Path) -> None:
    text = SCENARIO.replace("cohort: 12,", "cohort: 6, selection: deadline-aware,")
    assert text != SCENARIO
    scenario(tmp_path, "")
    with pytest.raises(ScenarioError, match=r"rounds\.selection: on the real clock: .* kept back"):
        assembled(loaded_text(tmp_path, text + way), None)
    assembled(loaded_text(tmp_path, text), None)


def test_devices_models_are_not_run_by_a_coordinator_that_is_not_given_their_numbers(tmp_path: Path) -> None:
    inference = "inference: {every: 1, devices: 3}\n"
    with pytest.raises(ScenarioError, match=r"inference: on the real clock: .* how many ratings"):
        assembled(scenario(tmp_path, WAYS["noise"] + inference), None)
    assembled(scenario(tmp_path, inference), None)
