"""The service's handling of bytes under fuzzing; ``fuzz_frames.py`` says how to do it for longer."""

from __future__ import annotations

import os

import pytest
from door_helpers import play
from fuzz_frames import Result, fuzz
from service_helpers import HANG_S


def fuzzed(seconds: float, seed: int, garbage: int = 1) -> Result:
    results: list[Result] = []

    async def story() -> None:
        results.append(await fuzz(seconds, seed, garbage))

    play(story(), seconds + HANG_S)
    return results[0]


@pytest.mark.slow
def test_nothing_breaks_and_nobody_honest_loses_a_message() -> None:
    result = fuzzed(3.0, seed=1)
    # How many there are in three seconds says how busy the machine is; it lasts longer if that is too little.
    assert result.seen_all


@pytest.mark.slow
def test_a_longer_time_of_it_takes_no_memory() -> None:
    result = fuzzed(float(os.environ.get("RECFLEET_FUZZ_S", "5")), seed=2, garbage=100)
    assert len(result.rss_bytes) >= 4
    assert result.growth_bytes < 16 << 20
