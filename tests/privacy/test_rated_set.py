"""The audit of virtual ratings."""

from __future__ import annotations

import numpy as np
import pytest
from rated_set import rated_set_attack


def test_hits_and_chance_by_hand() -> None:
    indptr = np.array([0, 4, 6, 6, 9])
    scores = np.array([9.0, 1, 5, 2, 3, 3, 1, 2, 3])
    rated = np.array([True, False, False, True, True, False, False, False, False])
    audit = rated_set_attack(indptr, scores, rated)
    # 2 of 4: takes 9 and 5, one of which is right. 1 of 2 at one score: right every other time.
    np.testing.assert_allclose(audit.attack.per_user(), [0.5, 0.5, np.nan, np.nan])
    np.testing.assert_allclose(audit.chance.per_user(), [0.5, 0.5, np.nan, np.nan])
    assert audit.attack.metric().value == pytest.approx(1.5 / 3)
    assert audit.attack.metric().left_out == 2


@pytest.mark.parametrize("right", [True, False])
def test_scores_that_tell_all_and_scores_that_mislead(right: bool) -> None:
    rated = np.arange(12) % 3 == 0
    audit = rated_set_attack(np.array([0, 12]), (rated == right).astype(float), rated)
    assert audit.attack.metric().value == (1.0 if right else 0.0)
    assert audit.chance.metric().value == pytest.approx(4 / 12)


def test_scores_that_say_nothing_are_chance() -> None:
    rng = np.random.default_rng(0)
    rated = rng.random(40_000) < 0.5
    indptr = np.arange(0, 40_001, 40)
    same = rated_set_attack(indptr, np.ones(40_000), rated)
    np.testing.assert_allclose(same.attack.sums, same.chance.sums)
    noise = rated_set_attack(indptr, rng.normal(size=40_000), rated)
    assert noise.attack.metric().value == pytest.approx(noise.chance.metric().value, abs=0.01)


def test_bad_input_is_refused() -> None:
    indptr, rated = np.array([0, 2]), np.array([True, False])
    with pytest.raises(ValueError, match="indptr ends at 2"):
        rated_set_attack(indptr, np.ones(3), rated)
    with pytest.raises(ValueError, match="not finite"):
        rated_set_attack(indptr, np.array([1.0, np.nan]), rated)
