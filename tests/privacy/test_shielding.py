"""Which masks let their devices report in the clear: the tests by themselves, and a run's devices by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coordinator.engine.shielding import Shield
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load
from edge.core.rng import hashed_bits
from edge.learning.base import Problem, RatingBatch, Ratings, Work
from edge.learning.fedrecon_kernels import split
from edge.learning.methods.fedmmf import FedMMF, FedMMFSettings
from edge.privacy.shielding import IndicatorTest, MaskTest, RecoveryTest

ITEMS, FEATURES = 40, 5
SCALE = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
MEAN = {"kind": "zero-order", "shrinkage": 1e-9}
LINEAR = {"kind": "one-order", "regularization": 0.5}
BOTH = pytest.mark.parametrize(
    "test", [IndicatorTest(0.08, 0.25), RecoveryTest(0.6, 0.5)], ids=["indicator", "recovery"]
)


def method(mask: dict[str, Any], **more: Any) -> FedMMF:
    written = {"algorithm": "fedmmf", "mask": mask, "factors": 3, **more}
    features = np.random.default_rng(0).standard_normal((ITEMS, FEATURES)).astype(np.float32)
    problem = Problem(n_items=ITEMS, rating_mean=3.5, features=features)
    return FedMMF(FedMMFSettings.model_validate(written), problem)


def ratings_of(*users: list[float]) -> Ratings:
    indptr = np.cumsum([0, *map(len, users)]).astype(np.int64)
    random = np.random.default_rng(4)
    items = [np.sort(random.choice(ITEMS, len(user), replace=False)) for user in users]
    flat = np.array([value for user in users for value in user], np.float32)
    return Ratings(indptr, np.concatenate(items).astype(np.uint16), flat)


def random_ratings(users: int, seed: int = 1) -> Ratings:
    random = np.random.default_rng(seed)
    return ratings_of(*(random.integers(1, 6, random.integers(2, 20)).tolist() for _ in range(users)))


def keys(n: int) -> npt.NDArray[np.uint64]:
    return hashed_bits(77, np.arange(n))


def of_user(batch: RatingBatch, user: int) -> Ratings:
    start, end = int(batch.indptr[user]), int(batch.indptr[user + 1])
    return Ratings(np.array([0, end - start]), batch.items[start:end], batch.ratings[start:end])


# -- the tests -------------------------------------------------------------------------------------------


def test_the_indicator_is_taken_of_ratings_that_were_held_out() -> None:
    batch, fedmmf = random_ratings(30), method(MEAN)
    rest, held = split(batch, keys(30), 0.75)
    for user in range(30):
        kept, asked = of_user(rest, user).ratings, of_user(held, user).ratings
        assert len(kept) >= 1 <= len(asked)
        indicator = float(np.mean(((asked.astype(np.float64) - kept.mean(dtype=np.float64)) / 4.0) ** 2))
        for at_most, passes in ((indicator + 1e-4, True), (indicator - 1e-4, False)):
            found = IndicatorTest(at_most, 0.25).passes(fedmmf, batch, keys(30), SCALE)
            assert found.dtype == np.bool_
            assert found[user] == passes


def test_recovery_is_of_the_devices_own_masked_ratings() -> None:
    batch, fedmmf = random_ratings(30), method(LINEAR)
    masked = fedmmf.masked(batch)
    for user in range(30):
        truth = of_user(batch, user).ratings.astype(np.float64)
        seen = of_user(masked, user).ratings.astype(np.float64)
        guess = truth.min() + np.ptp(truth) * (seen - seen.min()) / np.ptp(seen)
        share = float(np.mean(np.abs(guess - truth) <= 0.5))
        for at_most, passes in ((share + 1e-6, True), (share - 1e-6, False)):
            assert RecoveryTest(at_most, 0.5).passes(fedmmf, batch, keys(30), SCALE)[user] == passes


def test_a_users_mean_passes_the_indicator_and_gives_every_rating_away() -> None:
    batch = ratings_of([3, 3, 4, 3, 4, 4, 3, 4], [4, 5, 4, 5, 4, 5])
    fedmmf = method(MEAN)
    assert IndicatorTest(0.05, 0.2).passes(fedmmf, batch, keys(2), SCALE).tolist() == [True, True]
    assert RecoveryTest(0.99, 0.5).passes(fedmmf, batch, keys(2), SCALE).tolist() == [False, False]
    assert RecoveryTest(1.0, 0.5).passes(fedmmf, batch, keys(2), SCALE).tolist() == [True, True]


def test_too_few_ratings_to_judge_by_do_not_pass() -> None:
    batch, fedmmf = ratings_of([], [4.0], [4.0, 4.0], []), method(MEAN)
    assert IndicatorTest(9.0, 0.2).passes(fedmmf, batch, keys(4), SCALE).tolist() == [
        False,
        False,
        True,
        False,
    ]
    # A single rating is recovered by its range alone.
    assert RecoveryTest(0.9, 0.5).passes(fedmmf, batch, keys(4), SCALE).tolist() == [False] * 4
    assert RecoveryTest(1.0, 0.5).passes(fedmmf, batch, keys(4), SCALE).tolist() == [False, True, True, False]


@BOTH
def test_nobody_is_judged_by_the_company(test: MaskTest) -> None:
    batch, fedmmf = random_ratings(40), method(LINEAR)
    together = test.passes(fedmmf, batch, keys(40), SCALE)
    assert 0 < together.sum() < 40
    for user in range(40):
        alone = test.passes(method(LINEAR), of_user(batch, user), keys(40)[user : user + 1], SCALE)
        assert alone.tolist() == [together[user]]


@BOTH
def test_a_mask_that_diverged_does_not_pass(test: MaskTest, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, fedmmf = random_ratings(40), method(LINEAR)
    whole = test.passes(fedmmf, batch, keys(40), SCALE)
    broken = int(np.flatnonzero(whole)[0])
    honest = fedmmf.mask_of

    def diverged(fitted: RatingBatch, indptr: Any, items: Any) -> npt.NDArray[np.float32]:
        known = honest(fitted, indptr, items).copy()
        known[indptr[broken]] = np.inf
        return known

    monkeypatch.setattr(fedmmf, "mask_of", diverged)
    expected = whole.copy()
    expected[broken] = False
    assert test.passes(fedmmf, batch, keys(40), SCALE).tolist() == expected.tolist()


def totals(work: Work) -> npt.NDArray[np.float64]:
    """Return flops, bytes and operators of whole tasks, [3, n]."""
    return np.stack(
        [(part * work.steps[:, None]).sum(axis=1) for part in (work.flops, work.moved_bytes, work.ops)]
    )


@pytest.mark.parametrize("mask", [MEAN, LINEAR, {"kind": "high-order", "width": 3, "epochs": 10}])
def test_the_work_of_judging(mask: dict[str, Any]) -> None:
    fedmmf, examples = method(mask), np.array([0, 1, 2, 10, 100])
    held = np.array([0, 0, 1, 2, 20])
    fit = totals(fedmmf.mask.work(examples - held, FEATURES))
    flops, moved, ops = totals(IndicatorTest(0.1, 0.2).work(fedmmf, examples)) - fit
    np.testing.assert_allclose(flops, 2.0 * FEATURES * held, atol=1e-6)
    np.testing.assert_allclose(moved, 4.0 * FEATURES * held, atol=1e-6)
    np.testing.assert_allclose(ops, 1.0)
    flops, moved, ops = totals(RecoveryTest(0.5, 0.5).work(fedmmf, examples))
    assert (flops.tolist(), moved.tolist()) == ([0, 10, 20, 100, 1000], [0, 8, 16, 80, 800])
    assert ops.tolist() == [1.0] * 5


# -- the devices of a run --------------------------------------------------------------------------------

SCENARIO = """
format: 2
seed: 6
data:
  source: synthetic-ratings
  users: 600
  items: 80
  ratings_per_user: 12
  features: {kind: synthetic, noise: 1}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedmmf, mask: {kind: one-order, regularization: 1}, factors: 4}
rounds: {count: 1, cohort: 20}
secure_aggregation: {mode: secagg-plus, shielded: {test: indicator, at_most: 0.05}}
"""


def workload_of(folder: Path, *settings: str) -> tuple[RatingWorkload, dict[str, Shield]]:
    file = folder / "s.yaml"
    file.write_text(SCENARIO)
    assembly = assemble(load(file, settings))
    assert isinstance(assembly.workload, RatingWorkload)
    return assembly.workload, dict(assembly.shields)


def test_ratings_that_are_all_alike_are_refused(tmp_path: Path) -> None:
    lines = [f"{user},{item},4,0" for user in range(30) for item in range(user % 5, 40, 3)]
    (tmp_path / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *lines, ""]))
    table = [f"{item},{item % 7}" for item in range(40)]
    (tmp_path / "features.csv").write_text("\n".join(["item,taste", *table, ""]))
    data = "{source: movielens-csv, path: ratings.csv, features: {kind: table, path: features.csv}}"
    text = SCENARIO[: SCENARIO.index("data:")] + f"data: {data}\n" + SCENARIO[SCENARIO.index("fleet:") :]
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        assemble(load(tmp_path / "s.yaml"))
    (problem,) = caught.value.problems
    assert ":8:51: secure_aggregation.shielded: all ratings of the data are alike" in str(problem)


class Watched:
    """A test that notes how many users it is asked about."""

    def __init__(self, test: MaskTest) -> None:
        self.test = test
        self.asked: list[int] = []

    def passes(self, fedmmf: FedMMF, batch: RatingBatch, keys: npt.NDArray[np.uint64], scale: Any) -> Any:
        self.asked.append(len(keys))
        return self.test.passes(fedmmf, batch, keys, scale)

    def work(self, fedmmf: FedMMF, examples: npt.NDArray[np.int64]) -> Work:
        return self.test.work(fedmmf, examples)


def test_devices_are_judged_once_and_in_any_company(tmp_path: Path) -> None:
    workload, shields = workload_of(tmp_path)
    (shield,) = shields.values()
    everybody = np.arange(workload.n_clients)
    at_once = shield.passes(everybody)
    assert 0.1 < at_once.mean() < 0.9
    watched = Watched(IndicatorTest(0.05, 0.2))
    again = Shield(workload, watched, seed=6)
    shuffled = np.random.default_rng(2).permutation(everybody)
    for part in np.array_split(shuffled, 7):
        assert again.passes(part).tolist() == at_once[part].tolist()
    assert sum(watched.asked) == 600
    assert again.passes(everybody).tolist() == at_once.tolist()
    assert sum(watched.asked) == 600, "the answers are kept"
    assert Shield(workload, watched, seed=6).passes(everybody).tolist() == at_once.tolist()
    assert max(watched.asked) <= 256
    other = Shield(workload, IndicatorTest(0.05, 0.2), seed=7).passes(everybody)
    assert other.tolist() != at_once.tolist(), "which ratings are held out follows from the seed"


def test_a_client_of_several_users_is_as_well_shielded_as_the_worst_of_them(tmp_path: Path) -> None:
    workload, shields = workload_of(
        tmp_path, "data.users_per_client=3", "secure_aggregation.shielded.at_most=0.08"
    )
    (shield,) = shields.values()
    alone, single = workload_of(tmp_path, "secure_aggregation.shielded.at_most=0.08")
    (each,) = single.values()
    of_user = np.zeros(600, np.bool_)
    of_user[alone.clients.users] = each.passes(np.arange(alone.n_clients))
    clients = np.arange(workload.n_clients)
    expected = [bool(of_user[workload.clients.users_of(client)].all()) for client in clients]
    assert shield.passes(clients).tolist() == expected
    assert 0 < sum(expected) < len(clients)
    # It judges its users in turn.
    together = totals(shield.work(clients)).sum(axis=1)
    np.testing.assert_allclose(together, totals(each.work(np.arange(600))).sum(axis=1))
