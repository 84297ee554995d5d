"""Runs whose model is measured by devices, in rounds of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import rows_of, run_loaded

from coordinator.engine.assembly import Assembly
from coordinator.engine.device_evaluation import SumsScale
from coordinator.engine.device_sums import SUMS, SumsAccumulator
from coordinator.engine.evaluation import RatingEvaluator, SummedMetrics, _Grouping
from coordinator.results.tables.reader import open_run
from coordinator.run.runner import RunOutcome
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario, load
from coordinator.scenario.rounds_section import Ranking
from coordinator.simulation.backend import SimulatedCohort
from edge.core.errors import RemoteProtocolError
from edge.learning.updates import UpdateBatch

SMALL = """
format: 2
title: small
seed: 3
data: {source: synthetic-ratings, users: 120, items: 150, ratings_per_user: 12}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05, upload: dense}
rounds: {count: 4, cohort: 20, deadline: 120 s}
evaluation: {every: 2, on: devices, cohort: 40, ranking: {k: [5, 10]}}
"""
BY_SIMULATOR = ("evaluation.on=test", "evaluation.cohort=null")
SECURE = "secure_aggregation={mode: secagg-plus, clip: 1}"


def loaded(folder: Path, *settings: str, text: str = SMALL) -> LoadedScenario:
    file = folder / "scenario.yaml"
    file.write_text(text)
    return load(file, settings)


def final_metrics(outcome: RunOutcome) -> dict[str, float]:
    rows = rows_of(outcome, "evaluations")
    last = max(row["round"] for row in rows)
    return {row["metric"]: row["value"] for row in rows if row["round"] == last}


def free_metrics(outcome: RunOutcome, assembly: Assembly) -> dict[str, float]:
    """Return what the simulator measures of the final model on the devices that have measured it last."""
    rows = rows_of(outcome, "device_evaluations")
    last = max(row["round"] for row in rows)
    devices = [row["device"] for row in rows if row["round"] == last and row["outcome"] == "completed"]
    evaluator = assembly.evaluator
    assert isinstance(evaluator, RatingEvaluator)
    workload: Any = assembly.workload
    users = workload.clients.users_of
    everybody = np.concatenate([np.atleast_1d(users(device)) for device in sorted(devices)])
    state = dict(np.load(outcome.directory / "model.npz"))
    (seen,) = evaluator._populations
    kept = np.isin(seen.users, everybody)
    groupings = tuple(
        _Grouping.by_user(one.tag, one.names, one.of_users[kept])
        for one in seen.groupings
        if one.of_users is not None
    )
    population = type(seen)(
        **{field: getattr(seen, field) for field in seen.__slots__}
        | {"users": seen.users[kept], "groupings": groupings}
    )
    found = [value for value in evaluator._measure(population, state) if value.tag == "all"]
    return {value.metric: value.value for value in found}


@pytest.mark.parametrize("secure", [False, True], ids=["in the clear", "secure sum"])
def test_what_devices_measure_is_what_the_simulator_measures_on_them(tmp_path: Path, secure: bool) -> None:
    settings = (SECURE, "rounds.count=2") if secure else ()
    outcome, assembly = run_loaded(loaded(tmp_path, *settings), tmp_path / "run")
    measured, free = final_metrics(outcome), free_metrics(outcome, assembly)
    assert measured.keys() == free.keys() >= {"rmse", "mae", "hr@10", "ndcg@5"}
    for metric, value in free.items():
        assert measured[metric] == pytest.approx(value, rel=1e-6, abs=1e-6), metric


def test_clients_of_several_users_measure_for_all_of_them(tmp_path: Path) -> None:
    settings = ("data.users_per_client=3", "evaluation.cohort=20", "rounds.cohort=10")
    outcome, assembly = run_loaded(loaded(tmp_path, *settings), tmp_path / "run")
    assert final_metrics(outcome) == pytest.approx(free_metrics(outcome, assembly), rel=1e-6)


def test_evaluations_cost_time_bytes_and_energy_of_their_own(tmp_path: Path) -> None:
    outcome, _ = run_loaded(loaded(tmp_path), tmp_path / "run")
    rounds, devices = rows_of(outcome, "evaluation_rounds"), rows_of(outcome, "device_evaluations")
    assert [row["round"] for row in rounds] == [0, 2, 4]
    for row in rounds:
        mine = [device for device in devices if device["round"] == row["round"]]
        assert row["invited"] == len(mine) == 40
        assert row["duration_s"] > 0
        assert row["loss"] is None
        for figure in ("up_bytes", "down_bytes"):
            assert row[figure] == sum(device[figure] for device in mine) > 0
        assert all(device["energy_compute_j"] > 0 for device in mine if device["outcome"] == "completed")
    # Training waits for them: no round is under way while the model is measured.
    trained = rows_of(outcome, "rounds")
    assert [row["round"] for row in trained] == [1, 2, 3, 4]
    assert trained[0]["start_s"] >= rounds[0]["end_s"]
    assert trained[2]["start_s"] >= rounds[1]["end_s"] > rounds[1]["start_s"] >= trained[1]["end_s"]
    times = {row["round"]: row["time_s"] for row in rows_of(outcome, "evaluations")}
    assert times == {row["round"]: row["end_s"] for row in rounds}


def test_waves_and_devices_one_by_one_leave_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, _ = run_loaded(loaded(tmp_path), tmp_path / "together")
    monkeypatch.setattr(SimulatedCohort, "foreseeable", False)
    apart, _ = run_loaded(loaded(tmp_path), tmp_path / "apart")
    for table in ("evaluations", "evaluation_rounds", "device_evaluations"):
        measured = {"wall_s", "host_rss_bytes"}
        first, second = (
            [{name: row[name] for name in row.keys() - measured} for row in rows_of(one, table)]
            for one in (together, apart)
        )
        assert first == second
    digests = {open_run(one.directory).manifest["digest"] for one in (together, apart)}
    assert len(digests) == 1


def test_a_cohort_below_its_quorum_gives_no_figures_and_a_row_that_says_why(tmp_path: Path) -> None:
    fault = "faults=[{name: all, vanish: {}, on: {fraction: 100%}, at_stage: report}]"
    settings = (fault, "rounds.count=1", "expect=no-round-completed")
    outcome, _ = run_loaded(loaded(tmp_path, *settings), tmp_path / "run")
    assert rows_of(outcome, "evaluations") == []
    assert {(row["outcome"], row["reason"]) for row in rows_of(outcome, "evaluation_rounds")} == {
        ("abandoned", "quorum")
    }


@pytest.mark.parametrize(
    ("mechanism", "more"),
    [
        ("central-gaussian", ()),
        ("local-gaussian", ()),
        ("distributed-discrete-gaussian", ("secure_aggregation={mode: secagg-plus, bits: 64}",)),
    ],
)
@pytest.mark.few(1)
def test_noise_is_on_what_devices_measure_and_counts(
    tmp_path: Path, mechanism: str, more: tuple[str, ...]
) -> None:
    pytest.importorskip("dp_accounting")
    privacy = f"privacy={{mechanism: {mechanism}, clip_norm: 0.5, noise_multiplier: 1, delta: 1e-5}}"
    base = ("learning.weighting=uniform", "rounds.count=1", *more)
    noisy, assembly = run_loaded(
        loaded(tmp_path, privacy, *base, "evaluation.cohort=100"), tmp_path / "noisy"
    )
    alone, _ = run_loaded(loaded(tmp_path, privacy, *base, *BY_SIMULATOR), tmp_path / "alone")
    (trained,) = rows_of(alone, "rounds")
    rounds = rows_of(noisy, "evaluation_rounds")
    spent = [row["epsilon"] for row in rounds]
    assert 0 < spent[0] < spent[1]
    assert spent[1] > trained["epsilon"]  # a device may have trained and measured
    measured, free = final_metrics(noisy), free_metrics(noisy, assembly)
    assert measured["hr@10"] != pytest.approx(free["hr@10"], abs=1e-9)


LEARNING = "learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05, upload: dense}\n"


@pytest.mark.parametrize(
    ("learning", "settings"),
    [
        ("{algorithm: fcf}", ()),
        ("{algorithm: fedavg-mf, factors: 4}", ()),
        ("{algorithm: pfedrec}", ()),
        ("{algorithm: fedrap}", ()),
        ("{algorithm: local-context, model: {kind: one-order}}", ("data.features={kind: synthetic}",)),
        ("{algorithm: fedrecon, factors: 4}", ("data.negatives=2",)),
        ("{algorithm: fedncf}", ("data.split={kind: leave-one-out}", "evaluation.ranking={negatives: 20}")),
    ],
)
@pytest.mark.few(3)
def test_methods_that_keep_rows_draw_items_or_only_rank_are_measured_alike(
    tmp_path: Path, learning: str, settings: tuple[str, ...]
) -> None:
    text = SMALL.replace(LEARNING, f"learning: {learning}\n")
    outcome, assembly = run_loaded(loaded(tmp_path, "rounds.count=1", *settings, text=text), tmp_path / "run")
    assert final_metrics(outcome) == pytest.approx(free_metrics(outcome, assembly), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("evaluation.on=test", "evaluation.cohort: says how many devices measure the model"),
        ("evaluation.users=50", "evaluation.users: is a sample for the simulator"),
        ("evaluation.cohort=121", "evaluation.cohort: 121 devices would be invited, but the data has 120"),
        (
            "rounds.pacing={mode: buffered, concurrency: 20}",
            "evaluation.on: devices measure the model between rounds",
        ),
        ("secure_aggregation={mode: ckks, crypto: modelled}", "no sums of evaluations under ckks"),
        ("evaluation.ranking.metrics=[coverage]", "'coverage' is of what everybody is recommended"),
    ],
)
def test_what_devices_cannot_measure_is_refused_with_the_reason(
    tmp_path: Path, setting: str, message: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        loaded(tmp_path, setting)
    assert message in str(refused.value)


def test_a_report_that_no_device_can_have_measured_is_refused() -> None:
    accumulator = SumsAccumulator(3, signed=False)
    accumulator.check({SUMS: np.array([2.0, 0.0, 1.5])})
    for sums in ([2.0, -1e-9, 1.5], [2.0, 2.0**31, 1.5]):
        with pytest.raises(RemoteProtocolError) as refused:
            accumulator.check({SUMS: np.array(sums)})
        assert refused.value.reason == "out-of-range"
        batch = UpdateBatch.of({SUMS: np.array([sums])}, np.zeros(1, np.int64), np.zeros(1), np.ones(1))
        assert not accumulator.check_many(batch)


def test_a_noised_report_is_within_the_bound_and_comes_back_as_it_was() -> None:
    metrics = SummedMetrics(Ranking(k=(10,)), only_ranks=False)
    scale = SumsScale(metrics, clip_norm=0.5, error_max=2.0)
    # Four ratings, squared errors of 3 in all, absolute ones of 3, two of them close; one user with a hit.
    sums = np.array([[4.0, 3.0, 3.0, 2.0, 1.0, 1.0, 0.5, 0.25, 0.1], [0.0] * 9])
    reported = scale.reported(sums)
    assert (np.linalg.norm(reported, axis=1) <= 0.5).all()
    assert not reported[1].any()
    values = {
        value.metric: value.value for value in metrics.values(scale.sums(reported.sum(axis=0)), 2, "test")
    }
    assert values["rmse"] == pytest.approx(np.sqrt(0.75))
    assert values["ndcg@10"] == pytest.approx(0.5)
    worst = scale.reported(np.array([[4.0, 4e6, 4e3, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0]]))
    assert np.linalg.norm(worst) <= 0.5 * (1 + 1e-12)
