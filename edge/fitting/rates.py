"""How the log rate of links co-varies in time: what it does to long transfers, and its fit to pairs of them.

The log rate of a link is the sum of three independent parts: a factor that the device keeps, a slow process
with correlation ``exp(-h/tau)``, and the fast one of ``edge.network.conditions`` with correlation ``rho**h``
in blocks of 32 s. A transfer sees the mean of the multiplier over its duration, whose log has a smaller
spread the longer it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BLOCK_S: Final = 32.0
"""Length of the blocks of the fast process, ``edge.network.conditions.BLOCK_STEPS`` seconds."""
_GRID_S: Final = np.concatenate([[0.0], np.geomspace(1e-3, 2e5, 1200)])
LAG_EDGES_S: Final = np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 90, 128, 256, 512, 1024, 4096, 16384, 65536, 1e12]
)
"""Bins of the lag between two transfers of a device."""
_NEIGHBOURS: Final = 24
"""A transfer is paired with so many that follow it."""
_RHOS: Final = np.concatenate([[0.0], np.linspace(0.1, 0.9, 17), [0.925, 0.95, 0.97, 0.985]])
_TIMES_S: Final = np.geomspace(0.5 * BLOCK_S, 40_000.0, 24)
"""Correlation times of the slow part: what is shorter than half a block is the fast part itself."""
_FEWEST_PAIRS: Final = 100
"""In a range of lags, for what is fitted to it."""
_FEWEST_IN_BIN: Final = 8


@dataclass(frozen=True, slots=True)
class RateSpread:
    """The variances of the parts of the log rate, and their memory.

    Attributes
    ----------
    device, slow, fast : variances. rho : of the fast part after a second. time_s : of the slow part.
    """

    device: float
    slow: float
    fast: float
    rho: float
    time_s: float

    @property
    def total(self) -> float:
        """Variance of the log rate."""
        return self.device + self.slow + self.fast

    def scaled(self, total: float) -> RateSpread:
        """Return the same shares of another total variance."""
        factor = total / self.total
        return replace(self, device=self.device * factor, slow=self.slow * factor, fast=self.fast * factor)

    def excess(self, lag_s: Floats) -> Floats:
        """Return the covariance of the multiplier itself, of mean one, at lags from a random moment."""
        whole = np.floor(lag_s)
        part = lag_s - whole
        base = np.exp(self.device + self.slow * np.exp(-lag_s / self.time_s))
        near = np.exp(self.fast * self.rho**whole)
        held = (1.0 - part) * near + part * np.exp(self.fast * self.rho ** (whole + 1.0))
        inside = np.maximum(1.0 - lag_s / BLOCK_S, 0.0)
        return np.asarray(base * (inside * held + (1.0 - inside)) - 1.0)

    def averaged_sd(self, seconds: Floats) -> Floats:
        """Return the sd of the log of the mean multiplier over a duration, float64 of its shape."""
        table = self._averaged_table()
        return np.asarray(np.interp(seconds, _GRID_S, table))

    def _averaged_table(self) -> Floats:
        values = self.excess(_GRID_S)
        steps = np.diff(_GRID_S)
        first = np.concatenate([[0.0], np.cumsum(0.5 * (values[1:] + values[:-1]) * steps)])
        moment = values * _GRID_S
        second = np.concatenate([[0.0], np.cumsum(0.5 * (moment[1:] + moment[:-1]) * steps)])
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = 2.0 * (_GRID_S * first - second) / _GRID_S**2
        variance[0] = values[0]
        return np.asarray(np.sqrt(np.log1p(np.maximum(variance, 1e-12))))


@dataclass(frozen=True, slots=True)
class LagSums:
    """Products of residuals of pairs of transfers, summed by device and bin of lag, float64 [devices, bins].

    ``products`` are weighted by ``weights``, as are ``lags``; ``pairs`` counts them.
    """

    products: Floats
    weights: Floats
    lags: Floats
    pairs: Floats


def lag_sums(device: Ints, at_s: Floats, residual: Floats, reliability: Floats, devices: int) -> LagSums:
    """Return the sums over pairs of transfers of a device.

    Parameters
    ----------
    device : int64 [n], from 0. at_s : middle of each transfer, seconds.
    residual : float64 [n], log rate less its mean, as far as it can be told from the transfer.
    reliability : float64 [n], share of its variance that can be told, in (0, 1].
    """
    bins = len(LAG_EDGES_S) - 1
    order = np.lexsort((at_s, device))
    device = device[order]
    at_s, residual, reliability = (x[order] for x in (at_s, residual, reliability))
    size = devices * bins
    products, weights, lags, pairs = (np.zeros(size) for _ in range(4))
    for hop in range(1, min(_NEIGHBOURS, len(device) - 1) + 1):
        same = np.flatnonzero(device[:-hop] == device[hop:])
        lag = at_s[same + hop] - at_s[same]
        cell = device[same] * bins + np.clip(np.searchsorted(LAG_EDGES_S, lag, "right") - 1, 0, bins - 1)
        weight = reliability[same] * reliability[same + hop]
        # Residuals are shrunk by their reliability each; the weight undoes that and squares it.
        products += np.bincount(cell, residual[same] * residual[same + hop] * weight, size)
        weights += np.bincount(cell, weight * weight, size)
        lags += np.bincount(cell, lag * weight * weight, size)
        pairs += np.bincount(cell, minlength=size)
    shape = (devices, bins)
    return LagSums(*(x.reshape(shape) for x in (products, weights, lags, pairs)))


def _covariances(sums: LagSums, share: Floats, total: float) -> tuple[Floats, Floats, Floats]:
    """Return lag, covariance and its precision of every bin; ``share`` weighs the devices."""
    weights = share @ sums.weights
    used = share @ sums.pairs >= _FEWEST_IN_BIN
    safe = np.where(used, weights, 1.0)
    value, lag = share @ sums.products / safe, share @ sums.lags / safe
    # Pairs of a device are no independent evidence: the variance is that of the sums of devices.
    spread = share @ (sums.products - value * sums.weights) ** 2 / safe**2
    # Few pairs show too little of it; no product of a pair varies less than this.
    return lag, value, np.where(used, 1.0 / np.maximum(spread, total**2 / safe), 0.0)


def _solve(design: Floats, target: Floats, weight: Floats, total: float) -> tuple[Floats, Floats]:
    """Return the least squares of two or three parts that are not negative and sum to ``total`` or less.

    ``design`` is float64 [candidates, bins, parts]; returns parts [candidates, parts] and residuals.
    """
    scaled = design * np.sqrt(weight)[:, None]
    aim = target * np.sqrt(weight)
    gram = scaled.transpose(0, 2, 1) @ scaled
    right = scaled.transpose(0, 2, 1) @ aim
    parts = design.shape[2]
    best = np.zeros((len(design), parts))
    lowest = np.full(len(design), np.inf)
    for chosen in range(1, 1 << parts):
        rows = [part for part in range(parts) if chosen >> part & 1]
        inner = gram[:, rows][:, :, rows] + 1e-9 * np.eye(len(rows))
        found = np.linalg.solve(inner, right[:, rows][..., None])[..., 0]
        whole = np.zeros((len(design), parts))
        whole[:, rows] = np.maximum(found, 0.0)
        over = whole.sum(axis=1)
        whole *= np.minimum(1.0, total / np.maximum(over, 1e-12))[:, None]
        rest = ((scaled @ whole[..., None])[..., 0] - aim) ** 2
        cost = rest.sum(axis=1)
        better = cost < lowest - 1e-12
        best[better], lowest[better] = whole[better], cost[better]
    return best, lowest


@dataclass(frozen=True, slots=True)
class Memory:
    """What is fitted to pairs: the spread, which parts the data tells of, and how well.

    ``parts`` names what was found significant: ``fast``, ``slow``, ``device``.
    """

    spread: RateSpread
    parts: frozenset[str]


def fit_memory(
    sums: LagSums, total: float, fallback: RateSpread, parts: frozenset[str] | None = None,
    share: Floats | None = None,
) -> Memory:  # fmt: skip
    """Return the parts of the log rate's variance that pairs of transfers tell of.

    Parameters
    ----------
    sums : of pairs. total : variance of the log rate.
    fallback : what is taken where pairs say nothing.
    parts : which parts there are; None: those that lower the squares by more than chance would.
    share : weight of each device, 1 by default.
    """
    weigh = np.ones(len(sums.products)) if share is None else share
    lag, value, weight = _covariances(sums, weigh, total)
    pairs = weigh @ sums.pairs
    near = pairs[lag < 20.0].sum() >= _FEWEST_PAIRS
    far = pairs[lag > 90.0].sum() >= _FEWEST_PAIRS
    middle = pairs[(lag > 20.0) & (lag < 600.0)].sum() >= _FEWEST_PAIRS
    used = weight > 0
    lag, value, weight = lag[used], value[used], weight[used]
    choices: list[frozenset[str]] = []
    if parts is not None:
        choices = [parts]
    elif near or far:
        base = frozenset({"fast"})
        choices = [base]
        if far:
            choices.append(base | {"device"})
        if near and middle:
            choices.append(base | {"slow"})
            if far:
                choices.append(base | {"slow", "device"})
    best: tuple[float, RateSpread, frozenset[str]] | None = None
    for chosen in choices:
        cost, spread = _fit_parts(lag, value, weight, total, chosen, fallback, near=bool(near))
        # What chance takes off the squares by two more parameters, in one of a hundred.
        cost += 9.2 * len(chosen - {"fast"})
        if best is None or cost < best[0]:
            best = cost, spread, chosen
    if best is None:
        return Memory(replace(fallback.scaled(total)), frozenset())
    found = best[2] if near else best[2] - {"fast"}
    return Memory(best[1], found)


def _fit_parts(
    lag: Floats, value: Floats, weight: Floats, total: float, chosen: frozenset[str], fallback: RateSpread,
    *, near: bool,
) -> tuple[float, RateSpread]:  # fmt: skip
    rhos = _RHOS if near else np.array([fallback.rho])
    times = _TIMES_S if "slow" in chosen else np.array([1.0])
    rho, time_s = (x.ravel() for x in np.meshgrid(rhos, times, indexing="ij"))
    whole = np.floor(lag)
    part = lag - whole
    inside = np.maximum(1.0 - lag / BLOCK_S, 0.0)
    powers = rho[:, None] ** whole
    fast = inside * (powers * (1.0 - part) + part * powers * rho[:, None])
    columns = [fast]
    if "slow" in chosen:
        columns.append(np.exp(-lag / time_s[:, None]))
    if "device" in chosen:
        columns.append(np.ones_like(fast))
    design = np.stack(columns, axis=2)
    # What pairs leave of the total is fast: a transfer is on the whole correlated with itself.
    target = np.append(value, total)
    heavy = np.append(weight, 1e3 * max(weight.max(initial=0.0), 1.0 / max(total, 1e-6) ** 2))
    at_zero = np.ones((len(design), 1, design.shape[2]))
    parts, cost = _solve(np.concatenate([design, at_zero], axis=1), target, heavy, total)
    pick = int(np.argmin(cost))
    values = list(parts[pick])
    spread = RateSpread(
        fast=max(values[0], 1e-8),
        slow=values[1] if "slow" in chosen else 0.0,
        device=values[-1] if "device" in chosen else 0.0,
        rho=float(rho[pick]),
        time_s=float(time_s[pick]) if "slow" in chosen else fallback.time_s,
    )
    return float(cost[pick]), spread
