"""How many local steps a device plans, and that they take the time that it has."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from coordinator.engine.fleet import Fleet
from coordinator.engine.predictions import PartialWork, Predictions
from coordinator.engine.workload import Workload


class Steps:
    """A workload whose work is its number of steps."""

    def __init__(self, full: list[int]) -> None:
        self.full = np.array(full)

    def local_steps(self, ids: Any) -> Any:
        return self.full[ids]

    def work(self, ids: Any, steps: Any = None) -> Any:
        return self.full[ids] if steps is None else steps


class Clockwork:
    """A fleet and its predictions: a computation takes ``before`` and so much a step."""

    def __init__(self, before_s: float, step_s: list[float], link_s: list[float], power: float = 1.0) -> None:
        self.before_s, self.step_s, self.link_s, self.power = (
            before_s,
            np.array(step_s),
            np.array(link_s),
            power,
        )

    def compute_seconds(self, ids: Any, work: Any, round_number: int) -> Any:
        return self.before_s + self.step_s[ids] * work**self.power

    def link_seconds(self, ids: Any) -> Any:
        return self.link_s[ids]


def planned(workload: Steps, clockwork: Clockwork, planned_s: float) -> list[int]:
    partial = PartialWork(
        cast(Fleet, clockwork),
        cast(Workload, workload),
        cast(Predictions, clockwork),
        lambda phase: planned_s,
    )
    steps: list[int] = partial.steps(np.arange(len(workload.full)), 1, "").tolist()
    return steps


def test_a_device_takes_as_many_steps_as_fit_into_its_time() -> None:
    # 60 s less 2 s before the first step and 8 s on the link: 50 s for steps of 1, 5, 7 and 200 s.
    clockwork = Clockwork(2.0, [1.0, 5.0, 7.0, 200.0], [8.0] * 4)
    assert planned(Steps([20, 20, 20, 20]), clockwork, 60.0) == [20, 10, 7, 1]


def test_who_has_no_time_at_all_takes_one_step_all_the_same() -> None:
    assert planned(Steps([20, 20]), Clockwork(2.0, [1.0, 1.0], [100.0, 59.0]), 60.0) == [1, 1]


def test_a_device_with_a_single_step_takes_it_and_one_without_takes_none() -> None:
    assert planned(Steps([1, 0]), Clockwork(2.0, [1.0, 1.0], [0.0, 0.0]), 60.0) == [1, 0]


def test_the_last_step_that_fits_to_the_second_is_taken() -> None:
    assert planned(Steps([9]), Clockwork(0.0, [10.0], [10.0]), 60.0) == [5]


@pytest.mark.parametrize("limit_s", [3.0, 10.0, 47.0, 99.0])
def test_a_device_that_slows_down_never_plans_more_than_fits(limit_s: float) -> None:
    hot = Clockwork(0.0, [1.0], [0.0], power=1.4)
    (steps,) = planned(Steps([40]), hot, limit_s)
    assert hot.compute_seconds(np.array([0]), np.array([steps]), 1)[0] <= limit_s
