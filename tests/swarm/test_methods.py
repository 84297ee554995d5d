"""Every method of the registry is drawn, with everything that the swarm can ask of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from coordinator.swarm import methods, populations, protections
from coordinator.swarm.generator import document
from edge.core.rng import Draws
from edge.data.synthetic import SyntheticRatings, generate_ratings
from edge.learning.registry import METHODS

SCENARIOS = 500


@pytest.fixture(scope="module")
def made() -> list[dict[str, Any]]:
    return [document(5, index) for index in range(SCENARIOS)]


def test_every_method_is_drawn(made: list[dict[str, Any]]) -> None:
    drawn = Counter(one["learning"]["algorithm"] for one in made)
    assert set(drawn) == set(METHODS)
    assert min(drawn.values()) >= SCENARIOS / 100


def test_methods_have_the_data_that_they_need(made: list[dict[str, Any]]) -> None:
    for one in made:
        method = METHODS[one["learning"]["algorithm"]]
        assert one["data"]["source"] == f"synthetic-{method.data}"
        assert ("features" in one["data"] and method.data == "ratings") is method.needs_features
        assert not method.timed or one["data"]["timestamps"] == "true"


def test_what_methods_and_data_may_be_is_drawn(made: list[dict[str, Any]]) -> None:
    bases = {one["learning"]["base"]["algorithm"] for one in made if "base" in one["learning"]}
    assert bases == {"fedncf", "fedrecon"}
    assert {one["learning"]["algorithm"] for one in made if "proximal" in one["learning"]} == {
        "fedrecon", "fedmmf", "fedmf", "fedrec", "lipm", "fedavg-mf", "linear-regression"
    }  # fmt: skip
    models = {one["learning"]["model"]["kind"] for one in made if "model" in one["learning"]}
    assert models >= {"linear", "factorization-machine", "network", "zero-order", "one-order"}
    assert {key for one in made for key in one["data"]} >= {
        "positive", "negatives", "held_out_negatives", "timestamps", "features"
    }  # fmt: skip
    losses = Counter(one["learning"].get("loss") for one in made)
    assert set(losses) == {None, "cross-entropy", "bpr", "sampled-softmax"}
    with_losses = {one["learning"]["algorithm"] for one in made if "loss" in one["learning"]}
    assert with_losses == {"fedrecon", "fedmf", "fedavg-mf", "pfedme", "fedncf"}
    samplers = {one["data"].get("held_out_negatives") for one in made}
    assert samplers == {None, "spared", "symmetric"}


def test_every_protection_is_drawn(made: list[dict[str, Any]]) -> None:
    rules = Counter(one["aggregation"]["rule"] for one in made if "aggregation" in one)
    assert set(rules) == {"mean", "median", "trimmed-mean", "krum", "multi-krum"}
    bounded = [one for one in made if "norm_bound" in one.get("aggregation", {})]
    assert {one["aggregation"]["rule"] for one in bounded} == set(rules)
    assert any("secure_aggregation" in one for one in bounded)
    privacy = [one["privacy"] for one in made if "privacy" in one]
    personal = [one for one in privacy if one["mechanism"] == "personal-gaussian"]
    assert {len(one["tiers"]) for one in personal} == {1, 2, 3}
    assert any("shrinkage" in one for one in personal)
    naive = {one["mechanism"] for one in privacy if "claimed_epsilon" in one}
    assert naive == {"central-gaussian", "local-gaussian", "distributed-discrete-gaussian"}
    assert {one.get("sampler") for one in privacy} == {None, "discrete"}


def test_poisons_strike_where_something_withstands_them(made: list[dict[str, Any]]) -> None:
    poisons = [
        (fault["poisoned_updates"], "aggregation" in one)
        for one in made
        for fault in one["faults"]
        if "poisoned_updates" in fault
    ]
    assert {poison["kind"] for poison, _ in poisons} == {"nan", "huge-norm", "sign-flip"}
    assert any(poison.get("ignores_bound") == "true" and withstood for poison, withstood in poisons)
    assert sum(withstood for _, withstood in poisons) > len(poisons) / 2


def test_what_goes_with_what_is_in_the_registry() -> None:
    assert {name for name in METHODS if methods.has_rows_of_users(name)} == {
        "fedavg-mf",
        "pfedme",
        "gpfedrec",
    }
    drawn = methods.method(Draws(1, "a"), "fedncf", methods.Asked(dense=True, uniform=True))
    assert (drawn.only_ranks, drawn.stepwise) == (True, True)
    assert drawn.settings["upload"] == "dense"
    assert drawn.settings["weighting"] == "uniform"
    assert not methods.method(
        Draws(1, "b"), "local-context", methods.Asked(dense=False, uniform=False)
    ).stepwise


def test_devices_are_those_who_have_a_rating_left() -> None:
    data = {"source": "synthetic-ratings", "users": 30, "items": 8, "ratings_per_user": 2,
            "min_ratings_per_user": 1}  # fmt: skip
    assert populations.devices_of(data, seed=3) == 30
    assert populations.devices_of({"source": "synthetic-regression", "clients": 4}, seed=3) == 4
    spec = SyntheticRatings(users=30, items=8, ratings_per_user=2, min_ratings_per_user=1)
    store = generate_ratings(spec, seed=3)
    left = sum(store.ratings[store.indptr[user] : store.indptr[user + 1]].max() >= 4 for user in range(30))
    assert populations.devices_of({**data, "positive": 4}, seed=3) == left < 30


def test_shares_of_attackers_fit_every_number_of_reports() -> None:
    for most in range(5, 13):
        for number in range(20):
            share = protections.attackers(Draws(1, "share", most, number), range(5, most + 1))
            percent = int(share.removesuffix("%"))
            assert all(reports > 2 * -(-percent * reports // 100) + 2 for reports in range(5, most + 1))
