from __future__ import annotations

import os

import pytest
from secagg_storm import play_all


def test_two_thousand_random_rounds_end_exactly_or_by_name() -> None:
    endings = play_all(range(2_000))
    # Neither kind of ending is a rarity, or the rounds would prove little.
    assert endings["done"] > 800
    assert sum(endings.values()) - endings["done"] > 200


@pytest.mark.slow
def test_many_more_random_rounds_end_exactly_or_by_name() -> None:
    rounds = int(os.environ.get("RECFLEET_STORM_ROUNDS", "8000"))
    assert play_all(range(2_000, 2_000 + rounds))["done"] > rounds // 2
