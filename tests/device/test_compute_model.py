from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.scenario.load import load
from coordinator.simulation.fleet_assembly import build_fleet
from device_profiles.profile import CryptoProfile, DeviceProfile, ThermalProfile
from edge.core.rng import hashed_normal, stream_key
from edge.device.compute_model import (
    KAPPA,
    ComputeSpecs,
    speed,
    step_seconds,
    task_seconds,
    throttled_seconds,
)
from edge.learning.base import WORK_KINDS, Work

Floats = npt.NDArray[np.float64]
FLEET = """
format: 2
data: {source: synthetic-ratings, users: 8, items: 20, ratings_per_user: 8}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 2}
rounds: {count: 1, cohort: 8, deadline: 60 s}
"""


def specs_of(n: int, **changed: float) -> ComputeSpecs:
    values = {
        "flops_per_s": 2e10,
        "memory_bytes_per_s": 1e10,
        "op_overhead_s": 5e-6,
        "sigma_log": 0.0,
        "thermal_floor": 1.0,
        "thermal_onset_s": 0.0,
        "thermal_tau_s": 1.0,
    }
    assert set(changed) <= set(values)
    return ComputeSpecs(**{name: np.full(n, value) for name, value in (values | changed).items()})


def work_of(n: int, rng: np.random.Generator) -> Work:
    return Work(
        flops=rng.uniform(1e5, 1e8, (n, 3)),
        moved_bytes=rng.uniform(1e5, 1e8, (n, 3)),
        ops=rng.integers(1, 50, (n, 3)).astype(np.float64),
        steps=rng.integers(1, 6, n).astype(np.float64),
        memory_bytes=np.full(n, 1 << 20, np.int64),
    )


def work_done(duration_s: Floats, busy_s: Floats, floor: Floats, onset_s: Floats, tau_s: Floats) -> Floats:
    """Integrate the speed over the task by Simpson's rule: before, during and after the slowdown."""
    total = np.zeros(duration_s.shape)
    end_s = busy_s + duration_s
    kink = np.clip(onset_s, busy_s, end_s)
    settled = np.clip(onset_s + 40 * tau_s, busy_s, end_s)
    for start, end in ((busy_s, kink), (kink, settled), (settled, end_s)):
        points = np.linspace(start, end, 4001)
        values = speed(points, floor, onset_s, tau_s)
        weights = np.ones(4001)
        weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
        total += (end - start) / 12_000 * (weights[:, np.newaxis] * values).sum(axis=0)
    return total


def test_kappa_has_a_value_for_each_kind_of_work() -> None:
    assert KAPPA.shape == (len(WORK_KINDS),)
    assert WORK_KINDS == ("gather", "dense", "scoring")


def test_one_step_by_hand() -> None:
    work = Work(
        flops=np.array([[0.0, 4e9, 2e9]]),
        moved_bytes=np.array([[1e9, 2e9, 3e9]]),
        ops=np.array([[1.0, 10.0, 100.0]]),
        steps=np.array([7.0]),
        memory_bytes=np.array([0]),
    )
    specs = specs_of(1, flops_per_s=2e9, memory_bytes_per_s=1e9, op_overhead_s=1e-3)
    kappa = np.array([2.0, 1.0, 0.5])
    # 0.25 + 111 ms + 2·(0 + 1) + 1·(2 + 2) + 0.5·(1 + 3)
    expected = 0.25 + 0.111 + 2.0 + 4.0 + 2.0
    found = step_seconds(work, specs, framework_step_s=0.25, kappa=kappa)
    assert found == pytest.approx([expected], rel=1e-14)
    task = task_seconds(
        work,
        specs,
        framework_step_s=0.25,
        busy_s=np.zeros(1),
        noise_key=1,
        device_ids=np.array([3]),
        task=0,
        kappa=kappa,
    )
    assert task == pytest.approx([7 * expected], rel=1e-14)


def test_specs_of_profiles_and_their_rows() -> None:
    thermal = ThermalProfile("warm", floor=0.6, onset_s=90.0, tau_s=200.0)
    crypto = CryptoProfile("core", 1e-4, 2e-4, 3e-6, 1e-4, 4e-4, 1e9, 5e7, 1e8, 0.02, 0.005)
    slow = DeviceProfile("slow", "a phone", 1e9, 3e9, 2e9, 1 << 30, 2e-5, 2.0, 0.1, None, thermal, crypto)
    fast = dataclasses.replace(slow, name="fast", flops_1_thread=5e9, flops_all_threads=2e10)
    table = ComputeSpecs.of([slow, fast], all_threads=False)
    assert table.flops_per_s.tolist() == [1e9, 5e9]
    assert ComputeSpecs.of([slow, fast], all_threads=True).flops_per_s.tolist() == [3e9, 2e10]
    rows = table.take(np.array([1, 0, 1], np.uint8))
    assert rows.flops_per_s.tolist() == [5e9, 1e9, 5e9]
    assert rows.thermal_floor.tolist() == [0.6] * 3
    assert (rows.op_overhead_s[0], rows.sigma_log[0], rows.memory_bytes_per_s[0]) == (2e-5, 0.1, 2e9)
    assert (rows.thermal_onset_s[0], rows.thermal_tau_s[0]) == (90.0, 200.0)


def test_noise_is_log_normal_of_median_one() -> None:
    n = 40_000
    work = work_of(1, np.random.default_rng(1))
    same = Work(*(np.repeat(getattr(work, f.name), n, axis=0) for f in dataclasses.fields(Work)))
    key = stream_key(5, "compute noise")
    times = [
        task_seconds(
            same,
            specs_of(n, sigma_log=sigma),
            framework_step_s=0.01,
            busy_s=np.zeros(n),
            noise_key=key,
            device_ids=np.arange(n),
            task=9,
        )
        for sigma in (0.0, 0.3)
    ]
    logs = np.log(times[1] / times[0])
    # Four standard errors of mean and sd.
    assert abs(logs.mean()) < 4 * 0.3 / math.sqrt(n)
    assert abs(logs.std() - 0.3) < 4 * 0.3 / math.sqrt(2 * n)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 70), st.data())
def test_a_row_does_not_depend_on_its_batch(seed: int, n: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    work = work_of(n, rng)
    specs = ComputeSpecs(
        rng.uniform(1e9, 1e11, n),
        rng.uniform(1e9, 2e10, n),
        rng.uniform(1e-6, 1e-4, n),
        rng.uniform(0.0, 0.5, n),
        rng.uniform(0.05, 1.0, n),
        rng.uniform(0.0, 0.2, n),
        rng.uniform(0.01, 1.0, n),
    )
    busy, ids = rng.uniform(0, 1, n), rng.integers(0, 1_000_000, n)

    def seconds(rows: npt.NDArray[np.intp]) -> Floats:
        part = Work(*(getattr(work, f.name)[rows] for f in dataclasses.fields(Work)))
        return task_seconds(
            part,
            specs.take(rows),
            framework_step_s=1e-4,
            busy_s=busy[rows],
            noise_key=11,
            device_ids=ids[rows],
            task=4,
        )

    rows = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    np.testing.assert_array_equal(seconds(np.arange(n))[rows], seconds(rows))


def test_a_cool_device_runs_at_full_speed_until_the_onset() -> None:
    # 100 s on a device that keeps full speed for 120 s, from cold and after 30 s of work.
    cool, busy = np.array([100.0, 100.0]), np.array([0.0, 30.0])
    found = throttled_seconds(cool, busy, np.full(2, 0.5), np.full(2, 120.0), np.full(2, 360.0))
    assert found[0] == 100.0
    assert found[1] > 100.0


def test_a_long_task_approaches_the_floor() -> None:
    floor, onset, tau = np.array([0.55]), np.array([120.0]), np.array([360.0])
    cool = np.array([1e6])
    # The exponential has died out: onset + floor·u + (1 − floor)·τ = cool.
    expected = 120.0 + (1e6 - 120.0 - 0.45 * 360.0) / 0.55
    assert throttled_seconds(cool, np.zeros(1), floor, onset, tau) == pytest.approx([expected], rel=1e-13)


def test_a_hot_device_is_as_slow_as_the_floor() -> None:
    found = throttled_seconds(
        np.array([3.0]), np.array([1e5]), np.array([0.5]), np.array([60.0]), np.array([100.0])
    )
    assert found == pytest.approx([6.0], rel=1e-14)


def test_a_floor_of_one_never_throttles() -> None:
    cool = np.array([0.0, 1e-9, 5e7])
    found = throttled_seconds(cool, np.full(3, 1e4), np.ones(3), np.zeros(3), np.ones(3))
    np.testing.assert_array_equal(found, cool)


@settings(deadline=None, max_examples=60)
@given(
    st.floats(1e-3, 1e5),
    st.floats(0, 1e4),
    st.floats(0.02, 1.0),
    st.floats(0, 500),
    st.floats(1, 2000),
)
def test_the_speed_integrates_to_the_work(
    cool_s: float, busy_s: float, floor: float, onset_s: float, tau_s: float
) -> None:
    arguments = [np.array([value]) for value in (busy_s, floor, onset_s, tau_s)]
    duration = throttled_seconds(np.array([cool_s]), *arguments)
    assert cool_s * (1 - 1e-12) <= duration[0] <= cool_s / floor * (1 + 1e-12)
    # Panels are at most τ/100 wide, so Simpson's error is below 1e-10; busy_s costs digits of a short task.
    assert work_done(duration, *arguments) == pytest.approx([cool_s], rel=1e-9, abs=1e-11 * busy_s)


def test_two_tasks_in_a_row_take_as_long_as_one() -> None:
    n = 1000
    rng = np.random.default_rng(3)
    floor, onset, tau = rng.uniform(0.1, 1, n), rng.uniform(0, 200, n), rng.uniform(1, 500, n)
    first, second, busy = rng.uniform(0, 300, n), rng.uniform(0, 300, n), rng.uniform(0, 300, n)
    first_s = throttled_seconds(first, busy, floor, onset, tau)
    second_s = throttled_seconds(second, busy + first_s, floor, onset, tau)
    both_s = throttled_seconds(first + second, busy, floor, onset, tau)
    np.testing.assert_allclose(first_s + second_s, both_s, rtol=1e-11)


def test_noise_is_drawn_anew_for_every_device_and_task() -> None:
    work, key, ids = work_of(3, np.random.default_rng(1)), stream_key(5, "compute noise"), np.arange(3)

    def seconds(task: int, sigma: float) -> Floats:
        return task_seconds(
            work,
            specs_of(3, sigma_log=sigma),
            framework_step_s=0.01,
            busy_s=np.zeros(3),
            noise_key=key,
            device_ids=ids,
            task=task,
        )

    for task in (1, 2):
        expected = seconds(task, 0.0) * np.exp(0.3 * hashed_normal(key, ids, task))
        assert seconds(task, 0.3) == pytest.approx(expected, rel=1e-14)
    assert len(set((seconds(1, 0.3) / seconds(2, 0.3)).round(9))) == 3


def test_a_device_of_a_fleet_is_not_as_fast_in_every_round(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(FLEET)
    fleet, ids = build_fleet(load(tmp_path / "run.yaml"), 8), np.arange(8)
    work = work_of(8, np.random.default_rng(1))
    first, again, second = (fleet.compute_seconds(ids, work, number) for number in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert (first != second).all()
