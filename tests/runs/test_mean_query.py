"""Runs whose devices say the mean rating that the method begins with, in one sum before the first round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import rows_of, run_loaded

from coordinator.engine.assembly import Assembly
from coordinator.engine.device_sums import SUMS
from coordinator.engine.mean_query import CountsAndSums, MeanScale
from coordinator.results.tables.reader import open_run
from coordinator.run.runner import RunOutcome
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario, load
from coordinator.simulation.backend import SimulatedCohort
from edge.core.errors import RemoteProtocolError
from edge.core.vocabulary import FIRST_EVALUATION, FIRST_QUERY, RoundKind, finished_rounds
from edge.learning.updates import UpdateBatch

SMALL = """
format: 2
title: small
seed: 3
data:
  source: synthetic-ratings
  users: 120
  items: 150
  ratings_per_user: 12
  mean_query: {range: [1, 5], cohort: 60}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05, upload: dense, subtract_mean: true}
rounds: {count: 2, cohort: 20, deadline: 120 s}
evaluation: {every: 2}
"""
SECURE = "secure_aggregation={mode: secagg-plus, clip: 1}"
FAULT = "faults=[{{name: gone, vanish: {{}}, on: {{fraction: {}}}, at_stage: {}}}]"


def loaded(folder: Path, *settings: str, text: str = SMALL) -> LoadedScenario:
    file = folder / "scenario.yaml"
    file.write_text(text)
    return load(file, settings)


def said(outcome: RunOutcome) -> dict[str, Any]:
    """Return what the manifest says of the mean; the summary says the same."""
    files = [json.loads((outcome.directory / name).read_text()) for name in ("manifest.json", "summary.json")]
    manifest, summary = (file["rating_mean"] for file in files)
    assert manifest.items() <= summary.items()
    found: dict[str, Any] = manifest
    return found


def answered(outcome: RunOutcome) -> list[int]:
    """Return the devices in the last query."""
    rows = [row for row in rows_of(outcome, "device_evaluations") if row["round"] < 0]
    last = max(row["round"] for row in rows)
    return sorted(row["device"] for row in rows if row["round"] == last and row["outcome"] == "completed")


def free_ratings(assembly: Assembly, devices: list[int]) -> np.ndarray[Any, Any]:
    """Return all training ratings of devices, as the simulator has them."""
    workload: Any = assembly.workload
    users = np.concatenate([np.atleast_1d(workload.clients.users_of(device)) for device in devices])
    return np.asarray(workload.split.train.gather(users).ratings, np.float64)


@pytest.mark.parametrize("secure", [False, True], ids=["in the clear", "secure sum"])
def test_devices_say_the_mean_of_their_training_ratings(tmp_path: Path, secure: bool) -> None:
    settings = (SECURE, "rounds.count=1") if secure else ()
    outcome, assembly = run_loaded(loaded(tmp_path, *settings), tmp_path / "run")
    devices, found = answered(outcome), said(outcome)
    ratings = free_ratings(assembly, devices)
    assert found["value"] == pytest.approx(ratings.mean(), abs=1e-6)
    assert (found["from"], found["devices"], found["ratings"]) == ("devices", 60, len(ratings))
    assert len(devices) == 60
    assert np.load(outcome.directory / "model.npz")["rating_mean"] == np.float32(found["value"])
    report = (outcome.directory / "report.html").read_text()
    assert f'data-metric="rating_mean.value" data-value="{found["value"]!r}"' in report
    assert "of 60 devices, which were asked" in report


def test_a_query_costs_time_bytes_and_energy_of_its_own_before_the_first_round(tmp_path: Path) -> None:
    outcome, _ = run_loaded(loaded(tmp_path), tmp_path / "run")
    (query,) = rows_of(outcome, "evaluation_rounds")
    assert (query["round"], query["outcome"], query["invited"]) == (-3, "completed", 60)
    mine = rows_of(outcome, "device_evaluations")
    for figure in ("up_bytes", "down_bytes"):
        assert query[figure] == sum(row[figure] for row in mine) > 0
    assert all(row["energy_compute_j"] > 0 for row in mine)
    first = rows_of(outcome, "rounds")[0]
    assert first["start_s"] >= query["end_s"] > query["start_s"] == 0
    # Nobody needs the model for it, so nobody is sent it.
    trained = [row for row in rows_of(outcome, "device_rounds") if row["round"] == 1]
    most = max(row["down_payload_bytes"] for row in mine)
    assert most < min(row["down_payload_bytes"] for row in trained) / 4
    summary = json.loads((outcome.directory / "summary.json").read_text())
    assert summary["rating_mean"]["bytes"]["down"] == query["down_bytes"]
    assert summary["evaluation"] == {"measured_by": "simulator"}


@pytest.mark.parametrize(
    ("learning", "settings"),
    [
        ("{algorithm: fedrecon, factors: 4, subtract_mean: true, upload: dense}", ()),
        ("{algorithm: fedavg-mf, factors: 4, subtract_mean: true}", ()),
        ("{algorithm: fedmmf, factors: 4, mask: {kind: zero-order}}", ("data.features={kind: synthetic}",)),
        ("{algorithm: local-context, model: {kind: one-order}}", ("data.features={kind: synthetic}",)),
        ("{algorithm: federated-context, model: {kind: linear}}", ("data.features={kind: synthetic}",)),
        (
            "{algorithm: fedrecgel, base: {algorithm: fedrecon, subtract_mean: true, factors: 4,"
            " upload: dense, reconstruction: {method: gradient-steps},"
            " client: {method: gradient-steps, steps: 1}}}",
            (),
        ),
    ],
)
@pytest.mark.few(2)
def test_a_method_trains_as_if_the_mean_had_been_stated(
    tmp_path: Path, learning: str, settings: tuple[str, ...]
) -> None:
    before = SMALL[SMALL.index("learning:") : SMALL.index("rounds:")]
    text = SMALL.replace(before, f"learning: {learning}\n")
    asked, _ = run_loaded(loaded(tmp_path, *settings, text=text), tmp_path / "asked")
    public = f"data.public={{clients: 120, items: 150, rating_mean: {said(asked)['value']!r}}}"
    settings = (*settings, "data.mean_query=null")
    stated, _ = run_loaded(loaded(tmp_path, *settings, public, text=text), tmp_path / "stated")
    assert said(stated)["from"] == "public"
    other, _ = run_loaded(loaded(tmp_path, *settings, text=text), tmp_path / "other")
    assert said(other)["from"] == "data"
    assert said(other)["value"] != said(asked)["value"]
    first, second, third = (
        {name: array.tolist() for name, array in np.load(one.directory / "model.npz").items()}
        for one in (asked, stated, other)
    )
    assert first == second
    assert [row["value"] for row in rows_of(asked, "evaluations")] == [
        row["value"] for row in rows_of(stated, "evaluations")
    ]
    assert (first, rows_of(asked, "evaluations")) != (third, rows_of(other, "evaluations"))


def test_ratings_are_cut_off_at_the_range_on_the_device(tmp_path: Path) -> None:
    outcome, assembly = run_loaded(loaded(tmp_path, "data.mean_query.range=[3, 4]", SECURE), tmp_path / "run")
    ratings = free_ratings(assembly, answered(outcome))
    assert said(outcome)["value"] == pytest.approx(np.clip(ratings, 3, 4).mean(), abs=1e-6)
    assert said(outcome)["value"] != pytest.approx(ratings.mean(), abs=1e-3)


def test_clients_of_several_users_say_the_mean_of_them_all(tmp_path: Path) -> None:
    settings = ("data.users_per_client=3", "data.mean_query.cohort=20", "rounds.cohort=10")
    outcome, assembly = run_loaded(loaded(tmp_path, *settings), tmp_path / "run")
    ratings = free_ratings(assembly, answered(outcome))
    assert said(outcome)["value"] == pytest.approx(ratings.mean(), abs=1e-6)
    assert said(outcome)["ratings"] == len(ratings)


@pytest.mark.parametrize("stage", ["share-keys", "masked-input", "unmask"])
def test_the_mean_is_that_of_the_devices_that_stay(tmp_path: Path, stage: str) -> None:
    settings = (SECURE, "secure_aggregation.dropout=30%", FAULT.format("15%", stage), "rounds.count=1")
    outcome, assembly = run_loaded(loaded(tmp_path, *settings), tmp_path / "run")
    (query,) = rows_of(outcome, "evaluation_rounds")
    assert query["outcome"] == "completed"
    struck = [row for row in rows_of(outcome, "faults") if row["round"] < 0]
    assert struck
    # Whoever leaves once its masked input has arrived is in the sum, all the same.
    devices = answered(outcome)
    assert len(devices) == 60 - (0 if stage == "unmask" else len(struck))
    ratings = free_ratings(assembly, devices)
    assert said(outcome)["value"] == pytest.approx(ratings.mean(), abs=1e-6)
    assert (said(outcome)["devices"], said(outcome)["ratings"]) == (len(devices), len(ratings))


def test_a_query_that_comes_to_no_sum_is_repeated_and_then_ends_the_run(tmp_path: Path) -> None:
    settings = (FAULT.format("100%", "report"), "expect=no-round-completed")
    outcome, _ = run_loaded(loaded(tmp_path, *settings), tmp_path / "run")
    assert [(row["round"], row["outcome"]) for row in rows_of(outcome, "evaluation_rounds")] == [
        (-3, "abandoned"),
        (-2, "abandoned"),
        (-1, "abandoned"),
    ]
    assert rows_of(outcome, "rounds") == rows_of(outcome, "evaluations") == []
    assert outcome.status == "no-round-completed"
    assert outcome.reason == "no query of devices for the mean rating came to a sum"
    assert said(outcome) == {"value": None, "from": "devices", "devices": None, "ratings": None}


def test_a_second_query_may_come_to_the_sum_that_the_first_did_not(tmp_path: Path) -> None:
    # The coordinator is down while the first is under way.
    crash = "faults=[{name: down, at: 1 s, for: 30 s, coordinator_crash: {}}]"
    outcome, assembly = run_loaded(loaded(tmp_path, crash), tmp_path / "run")
    assert [(row["round"], row["outcome"]) for row in rows_of(outcome, "evaluation_rounds")] == [
        (-3, "abandoned"),
        (-2, "completed"),
    ]
    ratings = free_ratings(assembly, answered(outcome))
    assert said(outcome)["value"] == pytest.approx(ratings.mean(), abs=1e-6)
    assert np.load(outcome.directory / "model.npz")["rating_mean"] == np.float32(said(outcome)["value"])


@pytest.mark.parametrize(
    ("mechanism", "more"),
    [
        ("central-gaussian", ()),
        ("local-gaussian", ()),
        ("distributed-discrete-gaussian", ("secure_aggregation={mode: secagg-plus, bits: 64}",)),
    ],
)
@pytest.mark.few(1)
def test_noise_is_on_what_devices_say_and_counts(
    tmp_path: Path, mechanism: str, more: tuple[str, ...]
) -> None:
    pytest.importorskip("dp_accounting")
    privacy = f"privacy={{mechanism: {mechanism}, clip_norm: 0.5, noise_multiplier: 1, delta: 1e-5}}"
    settings = (privacy, "learning.weighting=uniform", "rounds.count=1", "data.mean_query.cohort=120", *more)
    noisy, assembly = run_loaded(loaded(tmp_path, *settings), tmp_path / "noisy")
    alone, _ = run_loaded(loaded(tmp_path, *settings, "data.mean_query=null"), tmp_path / "alone")
    (query,) = rows_of(noisy, "evaluation_rounds")
    (trained,) = rows_of(alone, "rounds")
    (after,) = rows_of(noisy, "rounds")
    assert query["epsilon"] > 0
    assert after["epsilon"] > trained["epsilon"]  # all were asked, and some have trained
    workload: Any = assembly.workload
    means = [free_ratings(assembly, [device]).mean() for device in range(workload.n_clients)]
    found = said(noisy)
    assert (found["devices"], found["ratings"]) == (120, None)
    # One standard deviation of the noise is range / devices, of devices' own at most √devices times that.
    sd = 4 / 120 if mechanism == "central-gaussian" else 4 / np.sqrt(120)
    assert abs(found["value"] - np.mean(means)) < 4 * sd
    assert found["value"] != pytest.approx(np.mean(means), abs=1e-9)


def test_the_same_seed_gives_the_same_mean_and_rows_by_waves_or_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = run_loaded(loaded(tmp_path), tmp_path / "first")
    monkeypatch.setattr(SimulatedCohort, "foreseeable", False)
    second, _ = run_loaded(loaded(tmp_path), tmp_path / "second")
    assert said(first) == said(second)
    digests = {open_run(one.directory).manifest["digest"] for one in (first, second)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("learning.subtract_mean=false",), "data.mean_query: 'fedrecon' begins with no mean rating"),
        (
            ("learning={algorithm: fcf, subtract_mean: null}", "evaluation.ranking={}"),
            "'fcf' begins with no mean rating",
        ),
        (("data.negatives=4", "evaluation.ranking={}"), "with data.negatives the mean follows from"),
        (("data.public={clients: 120, items: 150, rating_mean: 3}",), "contradicts 'rating_mean'"),
        (("data.mean_query.range=[5, 1]",), "data.mean_query.range: the lowest rating is not below"),
        (("data.mean_query.cohort=121",), "data.mean_query.cohort: 121 devices would be invited"),
        (("data.mean_query.range=null",), "data.mean_query.range: missing"),
        (("rounds.pacing={mode: buffered, concurrency: 20}",), "buffered pacing has none; leave it out"),
        (("secure_aggregation={mode: ckks, crypto: modelled}",), "no sums of mean queries under ckks"),
        ((SECURE, "data.mean_query.cohort=1"), "data.mean_query.cohort: "),
        (
            (
                "privacy={mechanism: personal-gaussian, clip_norm: 1, delta: 1e-5, tiers: "
                "[{name: all, noise_multiplier: 1}]}",
                "learning.weighting=uniform",
            ),
            "tiers report with weights of their own",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(
    tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        loaded(tmp_path, *settings)
    assert message in str(refused.value)


def test_a_sum_that_no_ratings_within_the_range_have_is_refused() -> None:
    accumulator = CountsAndSums(span=4.0)
    accumulator.check({SUMS: np.array([3.0, 12.0])})
    for sums in ([3.0, 12.1], [0.0, 1.0], [-1.0, 0.0], [3.0, np.inf]):
        with pytest.raises(RemoteProtocolError):
            accumulator.check({SUMS: np.array(sums)})
        batch = UpdateBatch.of({SUMS: np.array([sums])}, np.zeros(1, np.int64), np.zeros(1), np.ones(1))
        assert not accumulator.check_many(batch)


def test_a_noised_report_is_within_the_bound_and_comes_back_as_it_was() -> None:
    scale = MeanScale(1.0, 5.0, clip_norm=0.5)
    reported = scale.reported(np.array([[4.0, 12.0], [2.0, 8.0], [0.0, 0.0]]))
    assert (np.linalg.norm(reported, axis=1) <= 0.5).all()
    found = scale.mean(reported[:2].sum(axis=0), 2)
    assert found is not None
    assert found.value == pytest.approx((4.0 + 5.0) / 2)
    beyond = scale.mean(np.array([9.0]), 2)
    assert beyond is not None
    assert beyond.value == 5.0
    assert MeanScale(1.0, 5.0).mean(np.zeros(2), 3) is None


def test_the_number_of_a_round_says_what_devices_are_asked_for() -> None:
    numbers = (1, FIRST_QUERY - 1, FIRST_QUERY, FIRST_EVALUATION - 1, FIRST_EVALUATION, FIRST_EVALUATION + 7)
    assert [RoundKind.of(number).value for number in numbers] == [
        "training", "training", "mean query", "mean query", "evaluation", "evaluation",
    ]  # fmt: skip
    assert [finished_rounds(number) for number in numbers[2:]] == [-3, -1, 0, 7]
