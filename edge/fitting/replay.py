"""Transfers simulated at fitted parameters, to see how well they are met."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edge.core.rng import stream, stream_key
from edge.core.vocabulary import Direction
from edge.fitting.links import FittedValue, LinkFit, LinkPrior, Transfers, fit_link
from edge.network.conditions import LinkConditions
from edge.network.loss import TransferFailedError, lossy_transfer
from edge.network.slow_rates import device_factors
from edge.network.tcp import SEGMENT_PAYLOAD_BYTES, WIRE_BYTES_PER_PAYLOAD_BYTE, small_round_trip

Floats = npt.NDArray[np.float64]

_BUCKETS = ((0, 1_500, "up to 1.5 KB"), (1_500, 30_000, "to 30 KB"), (30_000, 300_000, "to 300 KB"),
            (300_000, 2**62, "above 300 KB"))  # fmt: skip
_FEWEST = 30
_CORRECTED = frozenset(
    {"down_bps", "up_bps", "jitter_s", "rate_sigma", "rate_rho", "slow_sigma", "slow_time_s", "device_sigma"}
)
"""Values whose estimates lean: they follow from one another and from an approximation of long transfers."""
_PARTS = {"fast": "rate_rho", "slow": "slow_sigma", "device": "device_sigma"}
_SIMULATED = 4_000
_MOST_COPIES = 8
_MOST_MOVED = 0.5
_MOST = 2_500


@dataclass(frozen=True, slots=True)
class Match:
    """Measured and simulated times of the transfers of one direction and about one size.

    ``ks`` is the largest distance of their distributions (Kolmogorov 1933), ``by_chance`` what it reaches in
    one of twenty samples of the same distribution.
    """

    direction: str
    sizes: str
    measured: Floats
    simulated: Floats
    ks: float
    by_chance: float

    def ratio(self, quantile: float) -> float:
        """Return simulated over measured time at a quantile."""
        return float(np.quantile(self.simulated, quantile) / np.quantile(self.measured, quantile))


def ks_distance(one: Floats, other: Floats) -> float:
    """Return the largest difference of two empirical distributions."""
    one, other = np.sort(one), np.sort(other)
    at = np.concatenate([one, other])
    shares = (np.searchsorted(values, at, "right") / len(values) for values in (one, other))
    first, second = shares
    return float(np.abs(first - second).max())


def replay(rows: Transfers, fit: LinkFit, seed: int = 1) -> Floats:
    """Return the seconds that the same transfers take at fitted parameters, float64 [n]; NaN: given up.

    Every device keeps its times and sizes; what would start before the one before it has ended waits.
    """
    n = len(rows)
    draw = stream(seed, "fit", "replay").random
    devices, first = np.unique(rows.device, return_index=True)
    bounds = np.append(first, n)
    own = device_factors(
        stream_key(seed, "link", "device-rate"), devices, np.full(len(devices), fit["device_sigma"])
    ).tolist()
    loss, fraction = fit["loss"], fit["outage_fraction"]
    spread = fit.spread
    result = np.full(n, np.nan)
    for place, device in enumerate(devices.tolist()):
        one = np.ones(1)
        conditions = LinkConditions(
            seed,
            np.array([device]),
            sigma_log=one * math.sqrt(spread.fast),
            rho_1s=one * spread.rho,
            outage_fraction=one * fraction,
            outage_mean_s=one * max(fit["outage_mean_s"], 1e-3),
            slow_sigma_log=one * math.sqrt(spread.slow),
            slow_time_s=one * spread.time_s,
        )
        end_s = -math.inf
        origin_s = math.floor(float(rows.start_s[bounds[place]]) / 1e6) * 1e6
        for row in range(bounds[place], bounds[place + 1]):
            start_s = max(float(rows.start_s[row]) - origin_s, end_s)
            rate = (fit["up_bps"] if rows.up[row] else fit["down_bps"]) * own[place]
            size, rtt_s = int(rows.size[row]), fit["rtt_s"]
            small_s = small_round_trip(rate, rtt_s)
            before_s = float(rows.handshakes[row]) * small_s
            if rows.cold[row] == 1:
                before_s += fit["promotion_s"]
            lost = loss > 0.0 and math.log(draw()) / math.log1p(-loss) < -(-size // SEGMENT_PAYLOAD_BYTES)
            if rows.resent[row] >= 0:
                lost = bool(rows.resent[row] > 0)
            try:
                seconds = _data_s(
                    conditions,
                    size,
                    rate,
                    rtt_s,
                    start_s + before_s,
                    loss if lost else 0.0,
                    fraction > 0.0,
                    draw,
                )
            except TransferFailedError:
                continue
            jitter_s = -fit["jitter_s"] * math.log(1.0 - draw())
            result[row] = before_s + seconds + float(rows.trips[row]) * small_s + jitter_s
            end_s = start_s + float(result[row])
    return result


def simulated(rows: Transfers, fit: LinkFit, seed: int = 1) -> Transfers:
    """Return the same transfers as a network of fitted parameters carries them, less those given up."""
    seconds = replay(rows, fit, seed)
    arrived = np.flatnonzero(np.isfinite(seconds))
    start_s = rows.start_s.copy()
    for row in range(1, len(rows)):
        if rows.device[row] == rows.device[row - 1] and np.isfinite(seconds[row - 1]):
            start_s[row] = max(start_s[row], start_s[row - 1] + seconds[row - 1])
    return replace(rows, seconds=seconds, start_s=start_s).take(arrived)


def fit_corrected(transfers: Transfers, prior: LinkPrior) -> LinkFit:
    """Return :func:`~edge.fitting.links.fit_link` of a network less its bias.

    The same transfers are simulated at the estimate and fitted anew: what the second fit has too much or too
    little, the first has had as well (indirect inference: Gourieroux, Monfort and Renault 1993). Few
    transfers are simulated several times over. Intervals are wider by what is drawn anew.
    """
    fit = fit_link(transfers, prior)
    told = {name for name, value in fit.values.items() if value.measured and name in _CORRECTED}
    if "down_bps" not in told and "up_bps" not in told:
        return fit
    copies = min(max(math.ceil(_SIMULATED / len(transfers)), 1), _MOST_COPIES)
    parts = frozenset(part for part, name in _PARTS.items() if name in told)
    again = fit_link(
        simulated(_repeated(transfers, copies), fit, seed=2), prior, replicates=1, parts=parts or None
    )
    wider = math.sqrt(1.0 + 1.0 / copies)
    values = dict(fit.values)
    for name in told:
        if again.values[name].measured:
            values[name] = _moved(name, fit.values[name], again[name], wider)
    return replace(fit, values=values)


def _repeated(rows: Transfers, copies: int) -> Transfers:
    """Return the transfers of so many times as many devices."""
    whole = rows.take(np.tile(np.arange(len(rows)), copies))
    return replace(whole, device=whole.device + np.repeat(np.arange(copies) * rows.devices, len(rows)))


def _moved(name: str, estimate: FittedValue, again: float, wider: float) -> FittedValue:
    """Return an estimate less its bias, its interval ``wider``, on the scale where its error is normal."""
    there, back = _scale(name)
    middle, seen = there(estimate.value), there(again)
    value = middle + float(np.clip(middle - seen, -_MOST_MOVED, _MOST_MOVED))
    low, high = (value + wider * (there(end) - middle) for end in (estimate.low, estimate.high))
    return replace(estimate, value=back(value), low=back(low), high=back(high))


def _scale(name: str) -> tuple[Callable[[float], float], Callable[[float], float]]:
    if name != "rate_rho":
        return (lambda value: math.log(max(value, 1e-9))), math.exp
    return (lambda rho: math.atanh(min(max(rho, 0.0), 0.995))), (lambda z: max(math.tanh(z), 0.0))


def _data_s(
    conditions: LinkConditions,
    size: int,
    rate: float,
    rtt_s: float,
    start_s: float,
    loss: float,
    flaky: bool,
    draw: object,
) -> float:
    assert callable(draw)
    if loss > 0.0 or flaky:
        sent = lossy_transfer(size, rate, rtt_s, loss, draw)
        while loss > 0.0 and sent.retransmitted_segments == 0:
            # It is known to lose a packet.
            sent = lossy_transfer(size, rate, rtt_s, loss, draw)
        return conditions.carry_s(0, Direction.NONE, start_s, sent.seconds)
    if size <= SEGMENT_PAYLOAD_BYTES:
        return size * 8.0 * WIRE_BYTES_PER_PAYLOAD_BYTE / rate
    return conditions.alone_time(0, Direction.NONE, size, rate, rtt_s, start_s)[0]


def matches(rows: Transfers, fit: LinkFit) -> tuple[Match, ...]:
    """Return how well simulated times meet measured ones, by direction and size; if many, of some devices."""
    if len(rows) > _MOST:
        share = _MOST / len(rows)
        chosen = stream(1, "fit", "devices").random(rows.devices) < max(share, 2.0 / rows.devices)
        rows = rows.take(np.flatnonzero(chosen[rows.device]))
    simulated = replay(rows, fit)
    found = []
    for up, direction in ((False, "down"), (True, "up")):
        for low, high, sizes in _BUCKETS:
            mine = (rows.up == up) & (rows.size > low) & (rows.size <= high) & np.isfinite(simulated)
            n = int(mine.sum())
            if n >= _FEWEST:
                one, other = rows.seconds[mine], simulated[mine]
                found.append(
                    Match(direction, sizes, one, other, ks_distance(one, other), 1.358 * math.sqrt(2.0 / n))
                )
    return tuple(found)
