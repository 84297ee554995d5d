from __future__ import annotations

import os

import pytest
from secagg_storm import play_all


@pytest.mark.slow
def test_random_rounds_end_exactly_or_by_name() -> None:
    endings = play_all(range(500))
    # Neither kind of ending is a rarity, or the rounds would prove little.
    assert endings["done"] > 200
    assert sum(endings.values()) - endings["done"] > 50


@pytest.mark.slow
def test_many_more_random_rounds_end_exactly_or_by_name() -> None:
    rounds = int(os.environ.get("RECFLEET_STORM_ROUNDS", "500"))
    assert play_all(range(500, 500 + rounds))["done"] > rounds // 2
