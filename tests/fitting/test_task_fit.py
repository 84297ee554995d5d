from __future__ import annotations

import numpy as np
import pytest

from edge.fitting.tasks import FRAMEWORK_STEP_S, TaskPrior, fit_availability, fit_tasks

PRIOR = TaskPrior(20e9, 9e9, 8e-6, 0.2)


def _tasks(n: int, *, mixed: bool, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    scale = np.exp(draw.uniform(0, 5, (n, 3 if mixed else 1)))
    work = scale * np.array([2e7, 5e6, 400.0])
    steps = np.full(n, 2.0)
    cost = work @ np.array([1 / 5e9, 1 / 2e9, 20e-6]) + FRAMEWORK_STEP_S * steps
    return draw.integers(0, 40, n), cost * np.exp(0.15 * draw.standard_normal(n)), work, steps


def test_rates_are_found_from_tasks_of_different_kinds() -> None:
    device, seconds, work, steps = _tasks(3000, mixed=True)
    fit = fit_tasks(device, seconds, work, steps, PRIOR)
    assert fit.kind == "free"
    for name, true in (
        ("flops_per_s", 5e9),
        ("memory_bytes_per_s", 2e9),
        ("op_overhead_s", 20e-6),
        ("compute_sigma", 0.15),
    ):
        estimate = fit.values[name]
        assert estimate.value == pytest.approx(true, rel=0.06), name
        assert estimate.low < true < estimate.high


def test_tasks_of_one_kind_tell_one_scale() -> None:
    device, seconds, work, steps = _tasks(3000, mixed=False)
    fit = fit_tasks(device, seconds, work, steps, PRIOR)
    assert fit.kind == "scaled"
    ratio = fit.values["flops_per_s"].value / PRIOR.flops_per_s
    assert fit.values["memory_bytes_per_s"].value / PRIOR.memory_bytes_per_s == pytest.approx(ratio)
    assert PRIOR.op_overhead_s / fit.values["op_overhead_s"].value == pytest.approx(ratio)
    # What it predicts is right, whatever the rates are.
    found = [
        1 / fit.values["flops_per_s"].value,
        1 / fit.values["memory_bytes_per_s"].value,
        fit.values["op_overhead_s"].value,
    ]
    assert np.median(seconds / (work @ np.array(found) + 2 * FRAMEWORK_STEP_S)) == pytest.approx(
        1.0, abs=0.02
    )


def test_tasks_without_their_work_tell_nothing() -> None:
    device, seconds, work, steps = _tasks(100, mixed=True)
    fit = fit_tasks(device, seconds, np.full_like(work, np.nan), steps, PRIOR)
    assert fit.kind == "none"
    assert not any(estimate.measured for estimate in fit.values.values())


def test_availability_by_hour_is_found() -> None:
    draw = np.random.default_rng(1)
    device, hour = draw.integers(0, 300, 20_000), draw.uniform(0, 24, 20_000)
    available = draw.random(20_000) < 0.15 * (1 + 0.6 * np.cos((hour - 2) * np.pi / 12))
    fit = fit_availability(device, hour, available)
    assert fit is not None
    for name, true in (("mean_available", 0.15), ("peak_to_trough", 4.0), ("peak_local_hour", 2.0)):
        estimate = fit.values[name]
        assert estimate.measured
        assert estimate.low < true < estimate.high, name
    assert fit.by_hour.shape == (24,)
    some = hour < 5
    part = fit_availability(device[some], hour[some], available[some])
    assert part is not None
    assert not part.values["peak_to_trough"].measured
    assert fit_availability(device, hour, np.ones(20_000, np.bool_)) is None
