"""Samplers of training negatives: what is never drawn, and what a counter of draws finds out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import report_on, run_text

from coordinator.engine.evaluation import RatingEvaluator
from coordinator.engine.samplers import CountingWorkload, barred_items, counter_values
from coordinator.engine.workload import RatingWorkload
from coordinator.results.comparison import compare_runs
from coordinator.results.summary import summarise
from coordinator.results.tables.reader import open_run, read_manifest
from coordinator.run.assembling import assemble
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load_text
from coordinator.swarm import conformance
from edge.learning.methods.fedncf.algorithm import FedNCF

FEDMF = "algorithm: fedmf, factors: 2"
FEDNCF = "algorithm: fedncf, gmf_factors: 2, mlp_factors: 2, layers: [4]"
SCENARIO = """
format: 2
seed: 3
data:
  source: {source}
  {more}
  held_out_negatives: {sampler}
  split: {{kind: leave-one-out, validation: true}}
fleet: {{mix: iot_gateways, availability: always_on}}
learning: {{{learning}}}
rounds: {{count: 3, cohort: 15, deadline: 600 s}}
evaluation: {{every: 1, ranking: {{k: [1, 10], negatives: {negatives}}}}}
"""


def scenario(sampler: str, learning: str = FEDMF, *, negatives: str = "5", draws: int = 30) -> str:
    more = "users: 40\n  items: 30\n  ratings_per_user: 8"
    if learning == FEDMF:
        more += f"\n  negatives: {draws}"
    return SCENARIO.format(
        source="synthetic-ratings", more=more, sampler=sampler, learning=learning, negatives=negatives
    )


def parts(text: str) -> tuple[RatingWorkload, RatingEvaluator]:
    assembly = assemble(load_text(text, "samplers"))
    assert isinstance(assembly.workload, RatingWorkload)
    assert isinstance(assembly.evaluator, RatingEvaluator)
    return assembly.workload, assembly.evaluator


@pytest.mark.parametrize("learning", [FEDMF, FEDNCF])
def test_counts_are_those_of_what_devices_train_on(learning: str) -> None:
    workload, _ = parts(scenario("spared", learning, draws=2))
    trained = {1: np.array([0, 3, 5]), 2: np.array([3]), 4: np.array([3, 5])}
    users = workload.clients.users[np.array([5, 9, 3])]
    counts = CountingWorkload(workload, trained, 3).counts(users)
    state = workload.algorithm.initial_state(0)
    for row, client in enumerate((5, 9, 3)):
        expected = np.zeros(30, int)
        rated = workload.split.train.local(int(workload.clients.users[client]))[0]
        for number, clients in trained.items():
            if client in clients:
                (update,) = workload.training(state, number)(np.array([client]))()
                drawn = set(update.arrays["items"].tolist()) - set(rated.tolist())
                expected[list(drawn)] += 1
        assert counts[row].tolist() == expected.tolist()
    assert counts[1].sum() == 0
    assert counts[2].max() > 1


def test_a_counter_knows_what_is_spared_and_nothing_of_what_is_drawn() -> None:
    # Devices draw all that they may: the held-out item has the count 0 where it is spared, all others 1.
    everybody = {1: np.arange(40)}
    spared = counter_values(*parts(scenario("spared")), everybody, 3)
    assert spared["hr@1/5neg"] == spared["ndcg@1/5neg"] == 1.0
    # Where it is drawn it has the count 1 like all others; where nobody trained, 0 like all others: chance.
    drawn = counter_values(*parts(scenario("drawn")), everybody, 3)
    untrained = counter_values(*parts(scenario("spared")), {}, 3)
    assert drawn == untrained
    assert drawn["hr@1/5neg"] == pytest.approx(1 / 6, abs=3 * (5 / 36 / 40) ** 0.5)
    # Half of them trained: theirs are first, the others' are where they would be anyway.
    half = counter_values(*parts(scenario("spared")), {1: np.arange(20)}, 3)
    assert half["hr@1/5neg"] == pytest.approx(0.5 + (1 / 6) / 2, abs=0.1)


@pytest.mark.parametrize("learning", [FEDMF, FEDNCF])
def test_a_symmetric_sampler_draws_no_candidate(learning: str) -> None:
    workload, evaluator = parts(scenario("symmetric", learning))
    users, candidates = evaluator.candidates()
    counting = CountingWorkload(workload, {number: np.arange(40) for number in range(1, 30)}, 3)
    counts = counting.counts(users)
    assert counts[np.arange(len(users))[:, None], candidates].sum() == 0
    held_out = workload.split.held_out
    assert held_out is not None
    for row, user in enumerate(users.tolist()):
        rated = np.concatenate([workload.split.train.local(user)[0], held_out.local(user)[0]])
        assert counts[row, rated].sum() == 0
        free = np.setdiff1d(np.arange(30), np.concatenate([rated, candidates[row]]))
        assert counts[row, free].min() > 0, "all others come up"


def test_a_symmetric_sampler_needs_candidates() -> None:
    with pytest.raises(ScenarioError, match="with all items ranked there is none left to draw"):
        load_text(scenario("symmetric", negatives="full"), "samplers")
    workload, _ = parts(scenario("drawn"))
    with pytest.raises(ValueError, match="needs sampled candidates"):
        barred_items("symmetric", workload.split, None)


@pytest.mark.parametrize("learning", [FEDMF, FEDNCF])
def test_a_leaky_run_says_so_beside_what_a_counter_reaches(learning: str, tmp_path: Path) -> None:
    runs = {one: run_text(tmp_path, scenario(one, learning), name=one) for one in ("spared", "drawn")}
    for sampler, outcome in runs.items():
        summary: dict[str, Any] = summarise(open_run(outcome.directory))
        said = read_manifest(outcome.directory)["negatives"]
        leaky = sampler == "spared"
        assert summary["leaky_protocol"] is said["leaky_protocol"] is leaky
        assert said["sampler"] == sampler
        notices = [notice for notice in summary["notices"] if notice.startswith("leaky protocol")]
        assert len(notices) == leaky
        assert ("leaky protocol" in report_on(outcome)) is leaky
        if leaky:
            assert f"hr@10/5neg {said['counter']['hr@10/5neg']:.3f}" in notices[0]
            assert said["counter"]["hr@1/5neg"] > 1 / 6
        else:
            assert "counter" not in said
    found = compare_runs([runs["drawn"].directory, runs["spared"].directory])
    assert any("never drawn as negatives in B" in note for note in found.notes)


def test_the_counter_stops_at_the_round_whose_model_is_scored(tmp_path: Path) -> None:
    text = scenario("spared", draws=2).replace("count: 3", "count: 6")
    # With a rate this large an early round is the best.
    settings = ["evaluation.select=ndcg@10/5neg", "learning.learning_rate=2"]
    outcome = run_text(tmp_path, text, settings)
    tables = open_run(outcome.directory)
    chosen: Any = summarise(tables)["selected"]
    rows = tables.read("device_rounds").to_pylist()
    trained = {
        number: np.array(
            sorted(r["device"] for r in rows if r["round"] == number and r["outcome"] == "completed"),
            np.int64,
        )
        for number in range(1, 7)
    }
    before = {number: devices for number, devices in trained.items() if number <= chosen["round"]}
    assert 0 < len(before) < sum(len(devices) > 0 for devices in trained.values())
    workload, evaluator = parts(text)
    found = read_manifest(outcome.directory)["negatives"]["counter"]
    assert found == counter_values(workload, evaluator, before, 3)
    assert found != counter_values(workload, evaluator, trained, 3)


def test_a_method_that_does_not_say_what_it_draws_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assembly = assemble(load_text(scenario("spared", FEDNCF), "samplers"))
    state, clients = assembly.workload.algorithm.initial_state(0), np.arange(6)
    assert list(conformance._named_draws(assembly, state, clients)) == []
    monkeypatch.delattr(FedNCF, "training_examples")
    found = list(conformance._named_draws(assembly, state, clients))
    assert found[-1] == "devices draw negatives, and training_examples has no zeros"


def test_a_run_that_draws_nothing_says_nothing_of_negatives(tmp_path: Path) -> None:
    text = scenario("spared").replace("negatives: 30", "positive: 2")
    outcome = run_text(tmp_path, text)
    summary = summarise(open_run(outcome.directory))
    assert summary["negatives"] is None
    assert summary["leaky_protocol"] is False


@pytest.mark.slow
def test_the_counter_on_movielens_100k() -> None:
    folder = os.environ.get("RECFLEET_DATA")
    if folder is None:
        pytest.skip("set RECFLEET_DATA to a folder with ml-100k")
    more = f"path: {Path(folder) / 'ml-100k'}\n  negatives: 4"
    found = {}
    for sampler in ("spared", "drawn"):
        text = SCENARIO.format(
            source="movielens-100k", more=more, sampler=sampler, learning=FEDMF, negatives=99
        )
        trained = {number: np.arange(943) for number in range(1, 51)}
        found[sampler] = counter_values(*parts(text), trained, 3)
    # Draws of an independent program under the same protocol: .994 / .854 where held-out items are spared,
    # .099 / .044 where they are not; one standard error of an HR of .1 is .01.
    assert found["spared"]["hr@10/99neg"] == pytest.approx(0.994, abs=0.01)
    assert found["spared"]["ndcg@10/99neg"] == pytest.approx(0.854, abs=0.03)
    assert found["drawn"]["hr@10/99neg"] == pytest.approx(0.1, abs=0.03)
