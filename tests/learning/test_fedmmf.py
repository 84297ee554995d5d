"""FedMMF: a mask and a factorisation of what it leaves, and what devices download for it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.engine.facts import RoundRow
from coordinator.results.tables.reader import open_run
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load
from edge.learning.base import Problem, Ratings
from edge.learning.methods.fedmmf import FedMMF, FedMMFSettings
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import FedReconSettings

ITEMS, FEATURES = 30, 4
MASKS = (
    {"kind": "zero-order"},
    {"kind": "one-order"},
    {"kind": "two-order", "factors": 2, "max_sweeps": 3},
    {"kind": "high-order", "width": 3, "epochs": 10},
)


def features() -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((ITEMS, FEATURES)).astype(np.float32)


def problem() -> Problem:
    return Problem(n_items=ITEMS, rating_mean=3.5, features=features())


def method(mask: dict[str, Any] | None = None, **more: Any) -> FedMMF:
    written = {"algorithm": "fedmmf", "mask": mask or MASKS[1], "factors": 3, **more}
    return FedMMF(FedMMFSettings.model_validate(written), problem())


def ratings(users: int, seed: int = 1) -> Ratings:
    random = np.random.default_rng(seed)
    counts = random.integers(1, 12, users)
    indptr = np.concatenate(([0], np.cumsum(counts)))
    items = np.concatenate([np.sort(random.choice(ITEMS, n, replace=False)) for n in counts])
    return Ratings(indptr, items.astype(np.uint16), random.integers(1, 6, len(items)).astype(np.float32))


def one_of(batch: Ratings, user: int) -> Ratings:
    start, end = batch.indptr[user], batch.indptr[user + 1]
    return Ratings(np.array([0, end - start]), batch.items[start:end], batch.ratings[start:end])


def test_behind_a_mask_that_only_knows_the_mean_it_is_fedrecon() -> None:
    shared = {"factors": 3, "upload": "dense"}
    masked = method({"kind": "zero-order", "shrinkage": "1e12"}, upload="dense")
    plain = FedRecon(FedReconSettings.model_validate({"algorithm": "fedrecon", **shared}), problem())
    batch, keys = ratings(6), np.arange(6, dtype=np.uint64)
    one = masked.client_update(masked.initial_state(1), batch, keys)
    other = plain.client_update(plain.initial_state(1), batch, keys)
    for first, second in zip(one, other, strict=True):
        np.testing.assert_allclose(first.arrays["item_rows"], second.arrays["item_rows"], atol=1e-5)
        assert first.weight == second.weight
        assert first.loss == pytest.approx(second.loss, rel=1e-5)


def test_a_secure_sum_takes_whole_tables_whatever_is_reported() -> None:
    sparse, dense = method(upload="sparse"), method(upload="dense")
    batch, keys = ratings(6), np.arange(6, dtype=np.uint64)
    state = sparse.initial_state(1)
    for one, other in zip(
        sparse.client_update(state, batch, keys), dense.client_update(state, batch, keys), strict=True
    ):
        summed = sparse.summed(one)
        assert summed.arrays.keys() == {"item_rows"}
        np.testing.assert_array_equal(summed.arrays["item_rows"], other.arrays["item_rows"])
        assert summed[1:] == one[1:] == other[1:]
        assert dense.summed(other) is other
    (spec,), (uploaded,) = sparse.summed_spec(), dense.upload_spec(np.array([3]))
    assert (spec.name, spec.dtype, spec.row_shape, spec.rows.tolist()) == (
        uploaded.name, uploaded.dtype, uploaded.row_shape, uploaded.rows.tolist(),
    )  # fmt: skip


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: str(mask["kind"]))
def test_a_prediction_is_mask_and_factorisation_together(mask: dict[str, Any]) -> None:
    fedmmf = method(mask)
    state = fedmmf.initial_state(2)
    support, query, keys = ratings(5, 1), ratings(5, 2), np.arange(5, dtype=np.uint64)
    fitted = fedmmf.mask.fit(support, features(), 3.5, np.zeros(5, np.uint64))
    known = fedmmf.mask.predict(fitted, features(), query.indptr, query.items)
    rest = FedRecon.predict(fedmmf, state, fedmmf.masked(support), query, keys)
    np.testing.assert_array_equal(fedmmf.predict(state, support, query, keys), rest + known)
    scores = fedmmf.scores(state, support, keys)
    owners = np.repeat(np.arange(5), np.diff(query.indptr))
    np.testing.assert_allclose(
        fedmmf.predict(state, support, query, keys), scores[owners, query.items], atol=1e-5
    )


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True), st.sampled_from(MASKS))
@settings(max_examples=25, deadline=None)
def test_a_device_does_not_depend_on_the_others_of_its_batch(users: list[int], mask: dict[str, Any]) -> None:
    everybody = ratings(8)
    keys = np.arange(8, dtype=np.uint64)
    fedmmf = method(mask)
    state = fedmmf.initial_state(1)
    parts = [one_of(everybody, user) for user in users]
    edges = np.concatenate(([0], np.cumsum([len(part.items) for part in parts])))
    together = Ratings(
        edges, np.concatenate([p.items for p in parts]), np.concatenate([p.ratings for p in parts])
    )
    batch = list(fedmmf.client_update(state, together, keys[users]))
    for update, part, user in zip(batch, parts, users, strict=True):
        (alone,) = method(mask).client_update(state, part, keys[[user]])
        assert alone.loss == update.loss
        for name, array in update.arrays.items():
            np.testing.assert_array_equal(array, alone.arrays[name])


def test_what_is_remembered_is_what_is_fitted_and_does_not_travel() -> None:
    fedmmf = method()
    batch = ratings(6)
    first = fedmmf.masked(batch).ratings
    np.testing.assert_array_equal(fedmmf.masked(batch).ratings, first)
    copied = pickle.dumps(fedmmf)
    fedmmf.masked(ratings(400, 3))
    assert len(pickle.dumps(fedmmf)) == len(copied)
    np.testing.assert_array_equal(pickle.loads(copied).masked(batch).ratings, first)


def test_fitting_the_mask_is_work() -> None:
    fedmmf = method()
    examples = np.array([1, 10, 100])
    both, rest = fedmmf.work(examples), FedRecon.work(fedmmf, examples)
    mask = fedmmf.mask.work(examples, FEATURES)
    np.testing.assert_allclose(
        both.flops * both.steps[:, None],
        rest.flops * rest.steps[:, None] + mask.flops * mask.steps[:, None],
    )
    np.testing.assert_array_equal(both.steps, rest.steps + mask.steps)


def test_without_features_there_is_no_mask() -> None:
    with pytest.raises(ValueError, match="fedmmf needs item features"):
        FedMMF(FedMMFSettings.model_validate({"algorithm": "fedmmf", "mask": MASKS[0]}), Problem(n_items=3))


# -- runs ------------------------------------------------------------------------------------------------

RUN = """
format: 2
seed: 4
data:
  source: synthetic-ratings
  users: 40
  items: 120
  ratings_per_user: 15
  features: {kind: synthetic}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedmmf, mask: {kind: one-order}, factors: 4, upload: dense}
rounds: {count: 6, cohort: 20, deadline: 300 s}
evaluation: {every: 6}
"""


class Silent:
    def on_start(self, name: str, rounds: int | None) -> None: ...

    def on_round(self, row: RoundRow) -> None: ...

    def on_evaluation(self, round_number: int, values: Any) -> None: ...

    def on_end(self, status: str) -> None: ...


def rows_of(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    file = folder / "s.yaml"
    file.write_text(RUN)
    outcome = run_scenario(load(file, overrides), target=folder / "run", observer=Silent())
    assert outcome.status == "finished"
    rows: list[dict[str, Any]] = open_run(outcome.directory).read("device_rounds").to_pylist()
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["off", "secagg", "{mode: ckks, crypto: modelled}"], ids=["plain", "masked", "encrypted"]
)
def test_features_are_downloaded_once_and_kept(tmp_path: Path, mode: str) -> None:
    written = mode if mode.startswith("{") else f"{{mode: {mode}}}"
    rows = rows_of(tmp_path, f"secure_aggregation={written}")
    assert {row["outcome"] for row in rows} == {"completed"}
    payloads: dict[int, list[int]] = {}
    for row in rows:
        payloads.setdefault(row["device"], []).append(row["download_down_bytes"])
    again = [sizes for sizes in payloads.values() if len(sizes) > 1]
    assert len(again) > 20
    for first, *later in again:
        # 120 items with 8 features of 4 bytes each, and what carries them.
        assert 3840 < first - max(later) < 3840 * 1.2
        assert max(later) - min(later) < 400
