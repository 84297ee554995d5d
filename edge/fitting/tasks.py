"""Estimates from compute tasks and check-ins: rates of processors, and availability by hour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from edge.fitting.links import REPLICATES, FittedValue

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FEWEST_TASKS: Final = 30
_MOST_CONDITION: Final = 30.0
_Z95: Final = 1.959964
FRAMEWORK_STEP_S: Final = 1e-3
"""What a framework spends on a step beside its operations: the assumption that runs are simulated with."""


@dataclass(frozen=True, slots=True)
class TaskPrior:
    """Rates of the device profile that is nearest."""

    flops_per_s: float
    memory_bytes_per_s: float
    op_overhead_s: float
    sigma: float


@dataclass(frozen=True, slots=True)
class TaskFit:
    """What tasks tell of a class of devices.

    ``kind``: ``free`` all three rates are told; ``scaled`` one scale, by which those of the prior are moved;
    ``none`` the work of the tasks is unknown.
    """

    kind: Literal["free", "scaled", "none"]
    values: dict[str, FittedValue]
    tasks: int
    devices: int


def fit_tasks(
    device: Ints, seconds: Floats, work: Floats, steps: Floats, prior: TaskPrior, replicates: int = REPLICATES
) -> TaskFit:
    """Return the rates of a class, of ``log t = log(c*steps + F/P + B/M + o*ops) + sigma*z``.

    Parameters
    ----------
    device : int64 [n] from 0. seconds : float64 [n].
    work : flops, bytes moved and operations of each task, float64 [n, 3]; NaN where unknown.
    steps : of each task, float64 [n].
    """
    n, devices = len(seconds), int(device.max(initial=-1)) + 1
    usual = np.array([1.0 / prior.flops_per_s, 1.0 / prior.memory_bytes_per_s, prior.op_overhead_s])
    known = np.isfinite(work).all(axis=0) & (work.sum(axis=0) > 0.0)
    fixed = FRAMEWORK_STEP_S * steps
    if n < FEWEST_TASKS or not known[0]:
        values = _values(usual, prior.sigma, None)
        return TaskFit(
            "none", {name: FittedValue(one.value, measured=False) for name, one in values.items()}, n, devices
        )
    parts = np.where(known, work, 0.0)
    scaled = parts[:, known] / seconds[:, None]
    condition = float(np.linalg.cond(scaled / scaled.mean(axis=0))) if known.sum() == 3 else math.inf
    kind: Literal["free", "scaled"] = "free" if condition < _MOST_CONDITION else "scaled"
    # One scale: all three together are one column, in units of the prior.
    columns = parts * usual if kind == "free" else (parts * usual).sum(axis=1, keepdims=True)

    def once(share: Floats) -> tuple[Floats, float]:
        factor, rest = _log_squares(columns, fixed, seconds, share)
        spread = math.sqrt(float(share @ rest**2) / max(float(share.sum()) - len(factor), 1.0))
        return usual * factor, spread

    cost, sigma = once(np.ones(n))
    rng = np.random.default_rng(17)
    drawn = []
    for _ in range(replicates):
        weight = rng.multinomial(devices, np.full(devices, 1.0 / devices)).astype(np.float64)[device]
        if weight.sum() > 0:
            again, spread = once(weight)
            drawn.append([*np.log(np.maximum(again, 1e-30)), math.log(max(spread, 1e-6))])
    return TaskFit(kind, _values(cost, sigma, np.std(np.array(drawn), axis=0)), n, devices)


def _values(cost: Floats, sigma: float, error: Floats | None) -> dict[str, FittedValue]:
    values = (1.0 / max(cost[0], 1e-30), 1.0 / max(cost[1], 1e-30), float(cost[2]), sigma)
    found = {}
    for place, (name, value) in enumerate(
        zip(("flops_per_s", "memory_bytes_per_s", "op_overhead_s", "compute_sigma"), values, strict=True)
    ):
        half = math.nan if error is None else _Z95 * float(error[place])
        found[name] = FittedValue(value, value * math.exp(-half), value * math.exp(half))
    return found


def _log_squares(columns: Floats, fixed: Floats, seconds: Floats, share: Floats) -> tuple[Floats, Floats]:
    """Return the factors of columns whose sum, with ``fixed``, has the least squares of logs to ``seconds``.

    Gauss and Newton's steps on the logs of the factors; returns the residuals, too.
    """
    log_seconds = np.log(seconds)
    theta = np.zeros(columns.shape[1])
    cost, rest = math.inf, log_seconds
    damping = 1e-3
    trial = theta
    for _ in range(40):
        parts = columns * np.exp(trial)
        whole = fixed + parts.sum(axis=1)
        rest_now = log_seconds - np.log(np.maximum(whole, 1e-12))
        cost_now = float(share @ rest_now**2)
        if cost_now < cost:
            done = cost - cost_now < 1e-9 * (1.0 + cost_now)
            theta, cost, rest, damping = trial, cost_now, rest_now, damping / 4.0
            slopes = parts / np.maximum(whole, 1e-12)[:, None]
            weighted = slopes * share[:, None]
            gram, right = weighted.T @ slopes, weighted.T @ rest
            if done:
                break
        else:
            damping *= 8.0
        step = np.linalg.solve(gram + damping * np.diag(np.diag(gram) + 1e-9), right)
        trial = np.clip(theta + np.clip(step, -2.0, 2.0), -12.0, 12.0)
    return np.exp(theta), rest


@dataclass(frozen=True, slots=True)
class AvailabilityFit:
    """Availability by local hour: ``p(h) = mean * (1 + A cos(2 pi (h - peak) / 24))``.

    ``values``: ``mean_available``, ``peak_to_trough``, ``peak_local_hour``. ``by_hour`` is the share
    available, float64 [24], NaN where there were no check-ins.
    """

    values: dict[str, FittedValue]
    by_hour: Floats
    check_ins: int
    devices: int


def fit_availability(
    device: Ints, local_hour: Floats, available: npt.NDArray[np.bool_]
) -> AvailabilityFit | None:
    """Return availability by hour; None where check-ins tell nothing: too few, or all alike.

    Without check-ins in 20 hours of the day there is a mean only.
    """
    n, devices = len(device), int(device.max(initial=-1)) + 1
    if n < 100 or available.all() or not available.any():
        return None
    hour = np.floor(local_hour).astype(np.int64) % 24
    seen = np.bincount(hour, minlength=24)
    with np.errstate(invalid="ignore"):
        by_hour = np.bincount(hour, available, 24) / seen
    angle = local_hour * (2.0 * math.pi / 24.0)
    design = np.stack([np.ones(n), np.cos(angle), np.sin(angle)], axis=1)
    daily = int((seen > 0).sum()) >= 20
    if not daily:
        design = design[:, :1]
    size = design.shape[1]
    rows = design[:, :, None] * design[:, None, :]
    grams = np.stack(
        [np.bincount(device, rows[:, i, j], devices) for i in range(size) for j in range(size)], axis=1
    )
    rights = np.stack([np.bincount(device, design[:, i] * available, devices) for i in range(size)], axis=1)

    def once(share: Floats) -> tuple[float, float, float]:
        gram = (share @ grams).reshape(size, size) + 1e-9 * np.eye(size)
        found = np.linalg.solve(gram, share @ rights)
        mean = float(np.clip(found[0], 1e-4, 1.0))
        if not daily:
            return mean, 1.0, 0.0
        swing = min(math.hypot(found[1], found[2]) / mean, 0.98, 1.0 / mean - 1.0)
        return mean, (1.0 + swing) / (1.0 - swing), math.atan2(found[2], found[1]) * 12.0 / math.pi % 24.0

    mean, ratio, peak = once(np.ones(devices))
    rng = np.random.default_rng(24)
    drawn = np.array(
        [
            once(rng.multinomial(devices, np.full(devices, 1.0 / devices)).astype(np.float64))
            for _ in range(REPLICATES)
        ]
    )
    of_mean = _Z95 * float(drawn[:, 0].std())
    of_ratio = _Z95 * float(np.log(drawn[:, 1]).std())
    apart = (drawn[:, 2] - peak + 12.0) % 24.0 - 12.0
    of_peak = _Z95 * float(apart.std())
    values = {
        "mean_available": FittedValue(mean, max(mean - of_mean, 0.0), min(mean + of_mean, 1.0)),
        "peak_to_trough": FittedValue(
            ratio, max(ratio * math.exp(-of_ratio), 1.0), ratio * math.exp(of_ratio), measured=daily
        ),
        "peak_local_hour": FittedValue(peak, peak - of_peak, peak + of_peak, measured=daily),
    }
    return AvailabilityFit(values, by_hour, n, devices)
