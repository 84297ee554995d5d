"""How long a task takes on a device (simulated, never measured).

    T_step = c_fw + Σ_kinds [ o·ops + κ·(F/P + B/M) ]
    T_cool = T_step · steps · LogNormal(0, σ)
    s(t)   = f + (1 − f)·exp(−max(0, t − onset)/τ)
    T      solves  ∫ from busy to busy+T of s(t) dt = T_cool

F flops and B bytes of a kind of operation, P flop/s and M bytes/s of the device, o its overhead per
operation, c_fw what a framework spends on each step besides. Arithmetic and memory traffic are added, not
overlapped: for measured training steps the sum predicts 0.84 to 1.05 of the time, the larger of the two only
0.57 to 0.82. s is the speed relative to a cool device after t seconds of work without a rest. It falls while
the task runs, so a long task is slowed by itself; dividing by the speed at its start would miss that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from device_profiles.profile import DeviceProfile
from edge.core.rng import Counter, hashed_normal
from edge.learning.base import Work

Floats = npt.NDArray[np.float64]

KAPPA: Final[Floats] = np.array([1.5, 1.0, 1.0])
"""Cost of each kind relative to F/P + B/M, ordered as ``WORK_KINDS``.

``dense`` (matrix products, solves) 1.0: the sum fits measured training steps within 0.84 to 1.05 as it is.
``gather`` (rows of an embedding table by index) 1.5: random rows do not stream. Measured on one x86 server
core, a gather of rows of 64 to 200 bytes costs 1.0 times a copy of as many bytes from a table that fits the
cache, 1.4 times from one of 4 to 12 MB and 3.4 times from one of 32 MB. Assumed for phones as well.
``scoring`` (one vector against a whole table) 1.0: the same measurement gives 0.7 to 1.3; assumed for phones.
"""
KAPPA.setflags(write=False)

_NEWTON_TOLERANCE: Final = 1e-13


@dataclass(frozen=True, slots=True)
class ComputeSpecs:
    """What the compute model needs of each device (or of each class of devices), float64[n] each.

    Attributes
    ----------
    flops_per_s, memory_bytes_per_s : rates P and M.
    op_overhead_s : time o per operation, seconds.
    sigma_log : σ, sd of the log of a task's time.
    thermal_floor : f in (0, 1]. thermal_onset_s, thermal_tau_s : seconds.
    """

    flops_per_s: Floats
    memory_bytes_per_s: Floats
    op_overhead_s: Floats
    sigma_log: Floats
    thermal_floor: Floats
    thermal_onset_s: Floats
    thermal_tau_s: Floats

    @classmethod
    def of(cls, profiles: Sequence[DeviceProfile], *, all_threads: bool) -> Self:
        """Return a row per profile; ``all_threads`` picks the rate of all threads instead of one."""
        rows = [
            (
                p.flops_all_threads if all_threads else p.flops_1_thread,
                p.memory_bytes_per_s,
                p.op_overhead_s,
                p.compute_sigma_log,
                p.thermal.floor,
                p.thermal.onset_s,
                p.thermal.tau_s,
            )
            for p in profiles
        ]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(fields(cls)))
        return cls(*np.ascontiguousarray(table.T))

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """Return the specs of ``rows`` (int[n]): a table of classes becomes one row per device."""
        return type(self)(*(getattr(self, f.name)[rows] for f in fields(self)))


def step_seconds(
    work: Work, specs: ComputeSpecs, *, framework_step_s: float, kappa: Floats = KAPPA
) -> Floats:
    """Return the time of one step on a cool device, without noise, float64[n] seconds.

    Parameters
    ----------
    work : of n clients, per step; its columns are ordered as ``WORK_KINDS``.
    specs : n rows.
    framework_step_s : c_fw, seconds a step.
    kappa : float64[kinds].
    """
    # Sums of a handful of columns, not matmul: BLAS may round a row by how many others there are.
    overhead = specs.op_overhead_s * _sum_kinds(work.ops)
    arithmetic = _sum_kinds(work.flops * kappa) / specs.flops_per_s
    traffic = _sum_kinds(work.moved_bytes * kappa) / specs.memory_bytes_per_s
    return np.asarray(framework_step_s + overhead + arithmetic + traffic)


def _sum_kinds(values: Floats) -> Floats:
    total = values[:, 0]
    for kind in range(1, values.shape[1]):
        total = total + values[:, kind]
    return total


def task_seconds(
    work: Work,
    specs: ComputeSpecs,
    *,
    framework_step_s: float,
    busy_s: Floats,
    noise_key: int,
    device_ids: npt.NDArray[np.int64],
    task: Counter,
    kappa: Floats = KAPPA,
) -> Floats:
    """Return how long each device takes for its task, float64[n] seconds.

    Row i depends on row i alone: the result is the same whoever else is in the batch.

    Parameters
    ----------
    work : of n clients, per step, with the number of steps.
    specs : n rows.
    framework_step_s : c_fw, seconds a step.
    busy_s : float64[n], seconds that each device has worked without a rest before this task.
    noise_key : key of the stream of the log-normal factor, from :func:`edge.core.rng.stream_key`.
    device_ids : int64[n].
    task : int or int[n], which task of the device this is; the round, if it has one a round.
    kappa : float64[kinds].
    """
    step_s = step_seconds(work, specs, framework_step_s=framework_step_s, kappa=kappa)
    noise = np.exp(specs.sigma_log * hashed_normal(noise_key, device_ids, task))
    return throttled_seconds(
        step_s * work.steps * noise, busy_s, specs.thermal_floor, specs.thermal_onset_s, specs.thermal_tau_s
    )


def speed(busy_s: Floats, floor: Floats, onset_s: Floats, tau_s: Floats) -> Floats:
    """Return s(t), the speed relative to a cool device after ``busy_s`` seconds of work, float64[n]."""
    return np.asarray(floor + (1.0 - floor) * np.exp(-np.maximum(busy_s - onset_s, 0.0) / tau_s))


def throttled_seconds(
    cool_s: Floats, busy_s: Floats, floor: Floats, onset_s: Floats, tau_s: Floats
) -> Floats:
    """Return the time that work worth ``cool_s`` seconds on a cool device takes, all float64[n], seconds.

    With e = (1 − f)·exp(−max(0, busy − onset)/τ) the work done d seconds after full speed has ended is
    G(d) = f·d + e·τ·(1 − exp(−d/τ)), and d solves G(d) = v, v being what full speed has left over.
    G rises and is concave, so Newton's iteration from below climbs to the root and never passes it; both
    v/(f + e) and (v − e·τ)/f are below.

    Parameters
    ----------
    busy_s : seconds of work before, without a rest.
    floor : in (0, 1]. onset_s : at least 0. tau_s : above 0.
    """
    full_speed_s = np.minimum(cool_s, np.maximum(onset_s - busy_s, 0.0))
    left = cool_s - full_speed_s
    slow = np.flatnonzero((left > 0) & (floor < 1))
    duration = np.array(cool_s)
    if slow.size == 0:
        return duration
    v, f, tau = left[slow], floor[slow], tau_s[slow]
    e = (1.0 - f) * np.exp(-np.maximum(busy_s[slow] - onset_s[slow], 0.0) / tau)
    solution = np.maximum(v / (f + e), (v - e * tau) / f)
    open_rows = np.arange(slow.size)
    while open_rows.size:
        d, f_open, e_open, tau_open = solution[open_rows], f[open_rows], e[open_rows], tau[open_rows]
        faded = np.expm1(-d / tau_open)
        missing = v[open_rows] - (f_open * d - e_open * tau_open * faded)
        step = missing / (f_open + e_open * (1.0 + faded))
        solution[open_rows] = d + np.maximum(step, 0.0)
        # A row stops by its own step alone, so that its digits do not depend on its neighbours.
        open_rows = open_rows[step > _NEWTON_TOLERANCE * d]
    duration[slow] = full_speed_s[slow] + solution
    return duration
