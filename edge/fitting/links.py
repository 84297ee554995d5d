"""Estimates of a network's parameters from transfers: rates, round trip, jitter, loss, outages, memory.

A transfer of n bytes takes ``promotion + handshakes + w*(R + 960/C) + D(n, C, R) + jitter`` with the rate of
the moment C, the round trip R, w = 0, 1/2 or 1 for what of a round trip its span holds besides, and D the
time of its data with slow start (``edge.network.tcp``). Bytes over seconds is not C: by slow start and round
trips it is 1.4 to 5 times too low. Here mean and spread of log C are those of the highest
likelihood of the times, jitter and outages integrated over. Errors are those of a bootstrap over devices, for
transfers of one device tell the same of it over and over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from edge.fitting.rates import LagSums, RateSpread, fit_memory, lag_sums
from edge.network.tcp import (
    INITIAL_WINDOW_BYTES,
    PACKET_BYTES,
    SEGMENT_PAYLOAD_BYTES,
    SMALL_PACKET_BYTES,
    data_time_array,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_CLOCK_BITS: Final = 8.0 * (PACKET_BYTES + SMALL_PACKET_BYTES)
_SMALL_BITS: Final = 8.0 * 2 * SMALL_PACKET_BYTES
_BITS_PER_BYTE: Final = 8.0 * PACKET_BYTES / SEGMENT_PAYLOAD_BYTES
_MOST_WINDOWS: Final = 24
_CELLS: Final = 48
"""Cells of the log rate in the likelihood."""
_MOST_ROWS: Final = 15_000
_LONG_S: Final = 0.5
_WIDEST_RHO: Final = 0.8
"""Length of an interval of a correlation that says nothing of it."""
_UNKNOWN_RHOS: Final = (0.4, 0.9)
"""Range of the memory where pairs do not tell it: that of recorded links and of the catalogue."""
_MOST_STALLED: Final = 0.02
"""Share of stalls that is left out of the spread of rates; what is more belongs to it."""
_SILENCE_S: Final = 30.0
_PROMPT_S: Final = 12.0
"""Within which a transfer is over, but for an outage, to tell of outages."""
_QUIET_MEANS: Final = 6.0
"""Delays beyond so many of their mean are stalls."""
_MOST_QUIET: Final = 1_500
_GRID: Final = 25
_OCTILES: Final = np.array([-1.534, -0.887, -0.489, -0.157, 0.157, 0.489, 0.887, 1.534])
"""Medians of the eighths of a standard normal."""
FEWEST_TRANSFERS: Final = 30
FEWEST_SMALL: Final = 20
FEWEST_STALLS: Final = 5
REPLICATES: Final = 100
_Z95: Final = 1.959964
_KNOWN_TOO_WELL: Final = 1.2
"""On errors of rates and spreads: a step of the bootstrap takes round trip, jitter and memory as known."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Transfers of one network that arrived, sorted by device and time; arrays [n].

    Attributes
    ----------
    device : from 0. start_s : one clock for a device. up : towards the coordinator.
    size : bytes. seconds : of the span, the server's own time taken off.
    trips : round trips in the span beside the data and the handshakes: 0, 0.5 or 1.
    handshakes : 0 on a warm connection. cold : 1 the radio was idle, 0 it was not, -1 unknown.
    rtt_s : measured round trip, NaN unknown. resent : packets sent again, -1 unknown.
    """

    device: Ints
    start_s: Floats
    up: Bools
    size: Floats
    seconds: Floats
    trips: Floats
    handshakes: Ints
    cold: Ints
    rtt_s: Floats
    resent: Ints

    def __len__(self) -> int:
        return len(self.device)

    def take(self, rows: npt.NDArray[np.generic]) -> Transfers:
        """Return some of them."""
        return Transfers(*(getattr(self, name)[rows] for name in self.__slots__))

    @property
    def devices(self) -> int:
        """Number of devices."""
        return int(self.device.max(initial=-1)) + 1


@dataclass(frozen=True, slots=True)
class FittedValue:
    """A value with its 95 % interval, and whether the data told it (or a profile of the catalogue)."""

    value: float
    low: float = math.nan
    high: float = math.nan
    measured: bool = True


@dataclass(frozen=True, slots=True)
class LinkPrior:
    """What is taken where the transfers do not tell, from a profile of the catalogue."""

    down_bps: float
    up_bps: float
    rtt_s: float
    jitter_s: float
    loss: float
    spread: RateSpread
    outage_fraction: float
    outage_mean_s: float
    promotion_s: float
    connect_success: float


@dataclass(frozen=True, slots=True)
class LinkFit:
    """What is known of a network.

    Attributes
    ----------
    values : estimates by name: ``down_bps``, ``up_bps``, ``rtt_s``, ``jitter_s``, ``loss``, ``rate_sigma``,
        ``rate_rho``, ``slow_sigma``, ``slow_time_s``, ``device_sigma``, ``outage_fraction``,
        ``outage_mean_s``, ``promotion_s``, ``connect_success``.
    transfers, devices : how many it is from.
    stalled : share of transfers that no rate explains (slow servers, retries).
    notes : what should be known.
    """

    values: dict[str, FittedValue]
    transfers: int
    devices: int
    stalled: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> float:
        return self.values[name].value

    @property
    def spread(self) -> RateSpread:
        """Variances of the log rate."""
        return RateSpread(
            self["device_sigma"] ** 2, self["slow_sigma"] ** 2, self["rate_sigma"] ** 2,
            self["rate_rho"], self["slow_time_s"],
        )  # fmt: skip


def normal_cdf(z: Floats) -> tuple[Floats, Floats]:
    """Return distribution and density of the standard normal, float64 of the shape of ``z``.

    The distribution to within 7.5e-8 (Abramowitz and Stegun 1964, 26.2.17).
    """
    density = 0.3989422804014327 * np.exp(-0.5 * z * z)
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    series = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )  # fmt: skip
    upper = density * series
    return np.where(z >= 0.0, 1.0 - upper, upper), density


def _density(times: Floats, spent: Floats, jitter_s: float, outage_s: float | None = None) -> Floats:
    """Return the density of ``spent`` [n] for a time uniform in each cell of ``times``, float64 [n, cells].

    On top come an exponential jitter, and an exponential outage where its mean is given.
    """
    rest = spent[:, None] - times
    after = np.maximum(rest, 0.0)
    jitter_s = max(jitter_s, 1e-6)
    cumulated = -np.expm1(-after / jitter_s)
    if outage_s is not None:
        longer = -np.expm1(-after / outage_s)
        cumulated = (outage_s * longer - jitter_s * cumulated) / (outage_s - jitter_s)
    width = np.maximum(times[:, 1:] - times[:, :-1], 1e-12)
    return np.asarray((cumulated[:, :-1] - cumulated[:, 1:]) / width)


def _time_table(size: Floats, rate: Floats, rtt_s: float) -> Floats:
    """Return :func:`~edge.network.tcp.data_time` for float64 [n] sizes at rates [n, m].

    It is the largest of the times with 0, 1, 2 … windows of slow start.
    """
    best = size[:, None] * _BITS_PER_BYTE / rate
    most = float(size.max(initial=0.0))
    for stalls in range(1, _MOST_WINDOWS):
        sent = INITIAL_WINDOW_BYTES * (2.0**stalls - 1.0)
        if sent >= most:
            break
        rows = np.flatnonzero(size > sent)
        slow = (
            stalls * (rtt_s + _CLOCK_BITS / rate[rows])
            + (size[rows, None] - sent) * _BITS_PER_BYTE / rate[rows]
        )
        best[rows] = np.maximum(best[rows], slow)
    return best


def _data_time(size: Floats, rate: Floats | float, rtt_s: float) -> Floats:
    whole = np.broadcast_to(np.asarray(rate, dtype=np.float64), size.shape)
    return data_time_array(size, np.array(whole), np.full(size.shape, rtt_s))


def _fit_quiet(values: Floats, own: Floats, sd: float, trips: float) -> tuple[FittedValue, FittedValue]:
    """Return threshold and mean of exponential delays over a threshold, each with its 95 % interval.

    ``values`` [n] are ``trips`` times a threshold, a delay, and ``own`` [n] over a log-normal of mean one and
    sd ``sd`` of its log: the time of the packet itself at its rate. Threshold and mean have flat priors; the
    estimates are means of the posterior over a grid, the intervals its quantiles. A minimum of many has no
    normal error, and the posterior holds for it as for a mean. Values beyond :data:`_QUIET_MEANS` mean
    delays are stalls: they are left out, and the density is cut there.
    """
    values, own = values / trips, own / trips
    if len(values) > _MOST_QUIET:
        pick = np.random.default_rng(0).choice(len(values), _MOST_QUIET, replace=False)
        values, own = values[pick], own[pick]
    least = float(values.min())
    scale = max(float(np.quantile(values, 0.75) - np.quantile(values, 0.25)) / math.log(3.0), 1e-6)
    for _ in range(12):
        kept = values <= least + _QUIET_MEANS * scale
        scale = max(float(values[kept].mean()) - least, 1e-7)
    cut = least + _QUIET_MEANS * scale
    kept = values <= cut
    values, own = values[kept], own[kept]
    # Log-normal factors on the packet's own time in eight classes of equal chance.
    slower = own[:, None] * np.exp(sd * _OCTILES + 0.5 * sd * sd)
    reach = 8.0 * scale / len(values) + float(slower[:, -1].mean())
    thresholds = np.linspace(max(least - reach, 1e-6), least, _GRID)
    half = 3.0 * reach / scale + 5.0 / math.sqrt(len(values))
    means = scale * np.exp(np.linspace(-min(half, 2.0), min(half, 0.7), _GRID))
    for _ in range(2):
        posterior = np.array(
            [_quiet_likelihood(values - one, slower, means, cut - one) for one in thresholds]
        )
        posterior = np.exp(posterior - posterior.max())
        found = _of_grid(thresholds, posterior.sum(axis=1)), _of_grid(means, posterior.sum(axis=0))
        # Anew where the density is.
        low, high = found[0].low, found[0].high
        thresholds = np.linspace(max(low - (high - low), 1e-6), min(high + 0.5 * (high - low), least), _GRID)
        low, high = found[1].low, found[1].high
        means = np.linspace(max(low - (high - low), 0.3 * low), high + (high - low), _GRID)
    delay = found[1]
    return found[0], FittedValue(trips * delay.value, trips * delay.low, trips * delay.high)


def _quiet_likelihood(over: Floats, own: Floats, means: Floats, cut: float) -> Floats:
    """Return the log likelihood of values over a threshold for mean delays [m], float64 [m].

    ``own`` [n, 8] are what each may hold beside its delay; those above ``cut`` are missing.
    """
    rest = over[:, None] - own
    density = np.zeros((len(over), len(means)))
    for column in rest.T:
        density += np.where(column[:, None] >= 0.0, np.exp(-np.maximum(column, 0.0)[:, None] / means), 0.0)
    inside = -np.expm1(-max(cut, 1e-9) / means)
    return np.asarray(np.log(np.maximum(density / (8.0 * means * inside), 1e-300)).sum(axis=0))


def _of_grid(values: Floats, weights: Floats) -> FittedValue:
    """Return mean and central 95 % of a density over a grid, the density linear between its points."""
    pieces = 0.5 * (weights[1:] + weights[:-1])
    below = np.concatenate([[0.0], np.cumsum(pieces)]) / pieces.sum()
    low, high = np.interp([0.025, 0.975], below, values)
    return FittedValue(float(values @ weights / weights.sum()), float(low), float(high))


@dataclass(slots=True)
class _LinkState:
    """Estimates under way."""

    down: float
    up: float
    rtt_s: float
    jitter_s: float
    spread: RateSpread
    stalled: float
    fraction: float
    mean_s: float
    promotion_s: float
    known: dict[str, FittedValue]
    most_stalled: float = _MOST_STALLED
    own_s: float = 0.0
    """Time a round trip of what was taken off at the mean rate, to tell the round trip."""
    parts: frozenset[str] | None = None

    def rate(self, up: Bools) -> Floats:
        return np.where(up, math.exp(self.up), math.exp(self.down))


def fit_link(
    transfers: Transfers,
    prior: LinkPrior,
    *,
    rounds: int = 3,
    replicates: int = REPLICATES,
    parts: frozenset[str] | None = None,
) -> LinkFit:
    """Return the estimates of a network.

    Parameters
    ----------
    transfers : those that arrived.
    prior : for what they do not tell.
    rounds : how often round trip, rates and memory are fitted in turn.
    replicates : of the bootstrap over devices.
    parts : of the spread, of ``fast``, ``slow`` and ``device``; None: those that the transfers show.
    """
    notes: list[str] = []
    whole = transfers
    loss = _loss(whole, prior)
    unhurt = np.flatnonzero(whole.resent <= 0)
    clean = whole.take(unhurt)
    idle_s = _idle_s(whole)
    state = _begin(clean, prior)
    fit: _RateFit | None = None
    for turn in range(rounds):
        _fit_round_trip(clean, state)
        _fit_promotion(clean, state, prior)
        if turn:
            # Of the spread first: what is slow in proportion to its size shall not pass for an outage.
            _fit_outages(clean, idle_s[unhurt], state, prior)
        before = replace(state)
        fit = _RateFit.of(whole, idle_s, state)
        if fit is None:
            break
        fit.climb(state)
        if state.fraction > 0.0:
            state, fit = _without_outages(before, state, fit)
        fit.remember(state, parts)
    if fit is None:
        notes.append("no transfers large enough to tell rates")
        for name, value in (("down_bps", prior.down_bps), ("up_bps", prior.up_bps)):
            state.known[name] = FittedValue(value, measured=False)
        _spread_from(state, prior.spread, frozenset())
    else:
        fit.errors(state, prior, replicates)
    values = dict(state.known)
    values["loss"] = loss
    values.setdefault("connect_success", FittedValue(prior.connect_success, measured=False))
    stalled = 0.0 if fit is None else fit.seen_stalled
    return LinkFit(values, len(whole), whole.devices, stalled, tuple(notes))


def _without_outages(before: _LinkState, state: _LinkState, fit: _RateFit) -> tuple[_LinkState, _RateFit]:
    """Return state and fit as they are, or those without outages where their likelihood is higher.

    Rates that are low for seconds and long stalls look alike one at a time. Transfers on links with outages
    are stretched as a whole, others only where the rate decides: the times of all sizes tell which it is.
    """
    plain = replace(before, fraction=0.0)
    rival = _RateFit(fit.rows, fit.idle_s, plain)
    rival.climb(plain)
    if rival.value <= fit.value:
        return state, fit
    plain.known["outage_fraction"] = FittedValue(0.0, 0.0, before.known["outage_fraction"].high)
    plain.known["outage_mean_s"] = replace(before.known["outage_mean_s"], measured=False)
    return plain, rival


def _begin(rows: Transfers, prior: LinkPrior) -> _LinkState:
    large = rows.take(np.flatnonzero(rows.size > SEGMENT_PAYLOAD_BYTES))
    rates = {}
    for up, usual in ((False, prior.down_bps), (True, prior.up_bps)):
        mine = large.up == up
        seen = large.size[mine] * _BITS_PER_BYTE / np.maximum(large.seconds[mine], 1e-6)
        rates[up] = math.log(float(np.quantile(seen, 0.75))) if mine.sum() > 2 else math.log(usual)
    return _LinkState(
        down=rates[False], up=rates[True], rtt_s=prior.rtt_s, jitter_s=prior.jitter_s,
        spread=replace(prior.spread, fast=1.0, slow=0.0, device=0.0), stalled=_MOST_STALLED,
        fraction=0.0, mean_s=prior.outage_mean_s, promotion_s=prior.promotion_s,
        known={
            "outage_fraction": FittedValue(prior.outage_fraction, measured=False),
            "outage_mean_s": FittedValue(prior.outage_mean_s, measured=False),
        },
    )  # fmt: skip


def _loss(rows: Transfers, prior: LinkPrior) -> FittedValue:
    """Return the share of packets that are lost, of transfers whose retransmissions were counted."""
    counted = rows.resent >= 0
    packets = float(np.ceil(rows.size[counted] / SEGMENT_PAYLOAD_BYTES).sum())
    if packets < 500:
        return FittedValue(prior.loss, measured=False)
    lost = float(rows.resent[counted].sum())
    value = (lost + 0.5) / (packets + lost + 0.5 / max(prior.loss, 1e-5))
    if not lost:
        return FittedValue(value, 0.0, -math.log(0.025) / packets)
    by_device = np.bincount(rows.device[counted], rows.resent[counted], rows.devices)
    of_device = np.bincount(
        rows.device[counted], np.ceil(rows.size[counted] / SEGMENT_PAYLOAD_BYTES), rows.devices
    )
    error = math.sqrt(float(((by_device - value * of_device) ** 2).sum()) + 0.25) / packets
    ratio = math.exp(min(_Z95 * error / value, 700.0))
    return FittedValue(value, value / ratio, min(value * ratio, 1.0))


def _fit_round_trip(rows: Transfers, state: _LinkState) -> None:
    """Set round trip and jitter, from measured round trips or from warm frames of one packet."""
    known = np.isfinite(rows.rtt_s)
    rate = state.rate(rows.up)
    # A lone packet goes at the mean rate of its device; on links with outages it is stretched like all else.
    sd = math.sqrt(state.spread.total if state.fraction > 0.0 else state.spread.device)
    if known.sum() >= FEWEST_SMALL:
        found, _ = _fit_quiet(rows.rtt_s[known], np.zeros(int(known.sum())), 0.0, 1.0)
        state.rtt_s = found.value
        state.known["rtt_s"] = found
    packet = (
        (rows.size <= SEGMENT_PAYLOAD_BYTES) & (rows.handshakes == 0) & (rows.cold == 0) & (rows.trips > 0)
    )
    own_s = rows.size * _BITS_PER_BYTE / rate + rows.trips * _SMALL_BITS / rate
    pick = packet
    for most in (0.03, 0.1):
        short = packet & (own_s < most * rows.trips * state.rtt_s)
        if short.sum() >= 60:
            pick = short
            break
    if pick.sum() < FEWEST_SMALL:
        state.known.setdefault("rtt_s", FittedValue(state.rtt_s, measured=False))
        state.known["jitter_s"] = FittedValue(state.jitter_s, measured=False)
        return
    trips = float(np.median(rows.trips[pick]))
    pick &= rows.trips == trips
    base, jitter = _fit_quiet(rows.seconds[pick], own_s[pick], sd, trips)
    if known.sum() < FEWEST_SMALL:
        state.rtt_s = base.value
        state.known["rtt_s"] = base
        state.own_s = float(own_s[pick].mean()) / trips
    state.jitter_s = jitter.value
    state.known["jitter_s"] = jitter


def _fit_promotion(rows: Transfers, state: _LinkState, prior: LinkPrior) -> None:
    """Set the delay of an idle radio, from first contacts of one packet."""
    rate = state.rate(rows.up)
    trips = (rows.handshakes + rows.trips) * (state.rtt_s + _SMALL_BITS / rate)
    usual = trips + _data_time(rows.size, rate, state.rtt_s)
    slow = trips + _data_time(rows.size, rate * math.exp(-4.0 * math.sqrt(state.spread.total)), state.rtt_s)
    packet = (rows.cold == 1) & (rows.size <= SEGMENT_PAYLOAD_BYTES)
    short = packet & (usual - trips < 0.1 * state.rtt_s)
    packet = short if short.sum() >= FEWEST_SMALL else packet
    if packet.sum() < FEWEST_SMALL:
        packet = (rows.cold == 1) & (slow < 0.5)
    if packet.sum() < FEWEST_SMALL:
        state.promotion_s = prior.promotion_s
        state.known["promotion_s"] = FittedValue(prior.promotion_s, measured=False)
        return
    over = (rows.seconds - usual)[packet]
    # The median of those that meet no outage.
    delay = float(np.quantile(over, 0.5 * (1.0 - state.fraction))) - state.jitter_s * math.log(2.0)
    spread = 1.2533 * max(float(np.quantile(over, 0.75) - np.quantile(over, 0.25)) / 1.35, state.jitter_s)
    error = _Z95 * spread / math.sqrt(len(over)) + 0.3 * float((usual - trips)[packet].mean())
    known = state.known["rtt_s"]
    if known.measured:
        error += 0.5 * (known.high - known.low) * float((rows.handshakes + rows.trips)[packet].mean())
    state.promotion_s = max(delay, 0.0)
    state.known["promotion_s"] = FittedValue(
        state.promotion_s, max(delay - error, 0.0), max(delay, 0.0) + error
    )


def _idle_s(rows: Transfers) -> Floats:
    """Return the time since the device's transfer before ended, float64 [n]; inf for its first."""
    idle_s = np.full(len(rows), np.inf)
    gap_s = rows.start_s[1:] - rows.start_s[:-1] - rows.seconds[:-1]
    idle_s[1:] = np.where(rows.device[1:] == rows.device[:-1], np.maximum(gap_s, 0.0), np.inf)
    return idle_s


def _starts_down(idle_s: Floats, fraction: float, mean_s: float) -> Floats:
    """Return the chance that a link is down when a transfer starts, float64 of the shape of ``idle_s``.

    It was up when the transfer before ended, and forgets that at the rate at which it goes down and up.
    """
    return np.asarray(fraction * -np.expm1(-idle_s / ((1.0 - fraction) * mean_s)))


def _fit_outages(rows: Transfers, idle_s: Floats, state: _LinkState, prior: LinkPrior) -> None:
    """Set the outages, from transfers that no rate of the spread makes as long as they took.

    Beyond a patience that no jitter, slow second or retransmission reaches, the lengths of outages are
    exponential anew. How many are seen follows from the chance that the link is down at each start or goes
    down meanwhile.
    """
    rate = state.rate(rows.up)
    trips = (rows.handshakes + rows.trips) * (state.rtt_s + _SMALL_BITS / rate)
    usual = trips + _data_time(rows.size, rate, state.rtt_s)
    slow = trips + _data_time(rows.size, rate * math.exp(-4.0 * math.sqrt(state.spread.total)), state.rtt_s)
    prompt = (rows.cold != -1) & (slow < _PROMPT_S)
    state.fraction, state.mean_s = prior.outage_fraction, prior.outage_mean_s
    state.most_stalled = _MOST_STALLED
    tried = int(prompt.sum())
    fresh = int((prompt & (idle_s > _LONG_S)).sum())
    if fresh < FEWEST_SMALL:
        state.known["outage_fraction"] = FittedValue(prior.outage_fraction, measured=False)
        state.known["outage_mean_s"] = FittedValue(prior.outage_mean_s, measured=False)
        return
    usual, idle_s = usual[prompt], idle_s[prompt]
    patience = np.maximum(slow[prompt] - usual, max(8.0 * state.jitter_s, 2.0 * (state.rtt_s + 0.2)))
    wait = rows.seconds[prompt] - usual - patience
    wait -= np.where(rows.cold[prompt] == 1, state.promotion_s, 0.0)
    seen = wait[wait > 0.0]
    n = len(seen)
    state.fraction = 0.0
    chances = float(_met(usual, idle_s, patience, 1e-3, prior.outage_mean_s).sum()) / 1e-3
    state.known["outage_fraction"] = FittedValue(0.0, 0.0, min(_poisson_range(n)[1] / chances, 0.9))
    state.known["outage_mean_s"] = FittedValue(prior.outage_mean_s, measured=False)
    state.most_stalled = max(_MOST_STALLED, n / tried)
    # Timers of retransmissions are all of about one length.
    if n < FEWEST_STALLS or n < 0.003 * fresh or float(seen.std()) < 0.4 * float(seen.mean()):
        return
    mean_s = float(seen.mean())
    share = _share_down(n, usual, idle_s, patience, mean_s)
    if share > 0.5:
        return
    state.fraction, state.mean_s, state.most_stalled = share, mean_s, _MOST_STALLED
    by_mean = math.log(_share_down(n, usual, idle_s, patience, 1.05 * mean_s) / share) / math.log(1.05)
    few, many = _poisson_range(n)
    # The sum of n exponentials is as a Poisson count of n turned round.
    short, long = n * mean_s / _poisson_range(n - 1)[1], n * mean_s / few
    below = math.hypot(math.log(n / few), by_mean * math.log(mean_s / short))
    above = math.hypot(math.log(many / n), by_mean * math.log(long / mean_s))
    state.known["outage_fraction"] = FittedValue(
        share, share * math.exp(-below), min(share * math.exp(above), 0.9)
    )
    state.known["outage_mean_s"] = FittedValue(mean_s, short, long)


def _met(usual: Floats, idle_s: Floats, patience: Floats, fraction: float, mean_s: float) -> Floats:
    """Return the chance that each transfer is seen to meet an outage: one that lasts beyond its patience."""
    starts_per_s = fraction / (1.0 - fraction) / mean_s
    met = _starts_down(idle_s, fraction, mean_s) - np.expm1(-starts_per_s * usual)
    return np.asarray(met * np.exp(-np.minimum(patience / mean_s, 30.0)))


def _share_down(n: int, usual: Floats, idle_s: Floats, patience: Floats, mean_s: float) -> float:
    """Return the share of time down under which ``n`` outages are expected to be seen."""
    share = 1e-3
    for _ in range(20):
        share = min(share * n / float(_met(usual, idle_s, patience, share, mean_s).sum()), 0.9)
    return share


def _poisson_range(n: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean of a Poisson count (Garwood 1936; Wilson and Hilferty 1931)."""
    low = n * (1.0 - 1.0 / (9.0 * n) - _Z95 / (3.0 * math.sqrt(n))) ** 3 if n else 0.0
    more = n + 1.0
    return max(low, 0.0), more * (1.0 - 1.0 / (9.0 * more) + _Z95 / (3.0 * math.sqrt(more))) ** 3


def _spread_from(state: _LinkState, spread: RateSpread, parts: frozenset[str]) -> None:
    told = {
        "rate_sigma": "fast",
        "rate_rho": "fast",
        "slow_sigma": "slow",
        "slow_time_s": "slow",
        "device_sigma": "device",
    }
    for name, part in told.items():
        state.known[name] = FittedValue(_named(spread)[name], measured=part in parts)


def _named(spread: RateSpread) -> dict[str, float]:
    return {
        "rate_sigma": math.sqrt(spread.fast), "rate_rho": spread.rho, "slow_sigma": math.sqrt(spread.slow),
        "slow_time_s": spread.time_s, "device_sigma": math.sqrt(spread.device),
    }  # fmt: skip


class _RateFit:
    """The likelihood of mean rates and their spread, over the transfers that their rate decides.

    The time of the data is a falling function of the log of the rate, tabulated for every transfer at
    :data:`_CELLS` rates. The rate lies in a cell with a probability that follows from its mean and spread
    over that time. Within a cell the time is taken as uniform; jitter on top, and an outage where there are
    some, is exponential: so the density of what was measured is a sum of closed forms.
    """

    def __init__(self, rows: Transfers, idle_s: Floats, state: _LinkState) -> None:
        self.rows, self.idle_s = rows, idle_s
        self.up = rows.up
        center = np.where(rows.up, state.up, state.down)
        reach = min(5.0 * math.sqrt(state.spread.total) + 1.0, 7.0)
        offsets = np.linspace(reach, -reach, _CELLS + 1)
        self.log_rate = center[:, None] + offsets
        rate = np.exp(center)
        handled = (rows.handshakes + rows.trips) * (state.rtt_s + _SMALL_BITS / rate)
        handled += np.where(rows.cold == 1, state.promotion_s, 0.0)
        spent = rows.seconds - handled
        flaky = state.fraction > 0.0
        self.center = center
        if flaky:
            # On a link with outages whole transfers are stretched by the rate, slow start with them.
            steady = _data_time(rows.size, rate, state.rtt_s)
            self.slope = np.log(_data_time(rows.size, rate * 1.02, state.rtt_s) / steady) / -math.log(1.02)
            self.times = steady[:, None] * np.exp(-offsets)
        else:
            self.slope = np.ones(len(rows))
            self.times = _time_table(rows.size, np.exp(self.log_rate), state.rtt_s)
        self.kernel = _density(self.times, spent, state.jitter_s)
        if flaky:
            middle = 0.5 * (self.times[:, 1:] + self.times[:, :-1])
            starts_per_s = state.fraction / (1.0 - state.fraction) / state.mean_s
            stays_up = np.exp(-starts_per_s * middle)
            stays_up *= 1.0 - _starts_down(idle_s, state.fraction, state.mean_s)[:, None]
            met = _density(self.times, spent, state.jitter_s, state.mean_s)
            self.kernel = stays_up * self.kernel + (1.0 - stays_up) * met
        # Stalls: what takes far longer than any rate of the spread would.
        usual = _data_time(rows.size, rate, state.rtt_s) + state.jitter_s
        with np.errstate(divide="ignore", invalid="ignore"):
            far = (np.log(np.maximum(spent, 1e-9) / usual) - 1.0 - 3.0 * math.sqrt(state.spread.total)) / 1.5
        self.stalls = np.exp(-0.5 * far**2) / (3.76 * np.maximum(spent, 1e-6))

    @classmethod
    def of(cls, rows: Transfers, idle_s: Floats, state: _LinkState) -> _RateFit | None:
        """Return the likelihood over what can tell rates; None where that is too little.

        Transfers without a loss are chosen by their size alone, never by how long they took.
        """
        rate = state.rate(rows.up)
        step = 1.001
        sensitivity = -np.log(
            _data_time(rows.size, rate * step, state.rtt_s) / _data_time(rows.size, rate / step, state.rtt_s)
        ) / (2.0 * math.log(step))
        own_s = _data_time(rows.size, rate, state.rtt_s)
        useful = (
            (rows.size > SEGMENT_PAYLOAD_BYTES) & (rows.cold != -1) & (rows.resent <= 0)
            & (own_s * sensitivity > 0.3 * state.jitter_s)
        )  # fmt: skip
        # What waits for a transfer that takes long starts when the link has just been fast. Left out by the
        # size of those before, which says nothing of the rate.
        ends = np.where(own_s > _LONG_S, rows.start_s + rows.seconds, -np.inf)
        offset = rows.device * (2.0 * float(np.abs(rows.start_s).max(initial=0.0)) + 1e6)
        latest = np.maximum.accumulate(np.concatenate([[-np.inf], (ends + offset)[:-1]]))
        after_long = rows.start_s + offset - latest < _SILENCE_S
        pick = np.flatnonzero(useful & ~after_long)
        if len(pick) < 10 * FEWEST_TRANSFERS:
            pick = np.flatnonzero(useful)
        if len(pick) < FEWEST_TRANSFERS:
            return None
        if len(pick) > _MOST_ROWS:
            pick = np.sort(np.random.default_rng(0).choice(pick, _MOST_ROWS, replace=False))
        return cls(rows.take(pick), idle_s[pick], state)

    def _edges(self, theta: Floats, spread: RateSpread) -> tuple[Floats, Floats]:
        """Return standard normals and sd at the edges of all cells, float64 [n, cells + 1]."""
        sd = spread.scaled(math.exp(2.0 * theta[2])).averaged_sd(self.times)
        moved = self.slope * (np.where(self.up, theta[1], theta[0]) - self.center)
        return (self.log_rate - self.center[:, None] - moved[:, None]) / sd + 0.5 * sd, sd

    def likelihood(self, theta: Floats, spread: RateSpread, share: float) -> tuple[Floats, Floats, float]:
        """Return the log likelihood of each transfer [n], its scores [n, 3], and the mean chance of a stall.

        ``theta`` is log down, log up and log sigma, ``share`` that of stalls.
        """
        z, sd = self._edges(theta, spread)
        wider = spread.scaled(math.exp(2.0 * (theta[2] + 0.01))).averaged_sd(self.times)
        cumulated, density = normal_cdf(z)
        # Times rise as rates fall along a row, and so does the probability of a longer time.
        quiet = self._sum(cumulated)
        by_mean = self._sum(-density / sd) * self.slope
        by_sd = self._sum(density * ((0.5 * sd - z) / sd + 0.5) * (wider - sd) / 0.01)
        whole = (1.0 - share) * quiet + share * self.stalls + 1e-300
        scores = np.zeros((len(z), 3))
        scores[:, 0] = np.where(self.up, 0.0, (1.0 - share) * by_mean / whole)
        scores[:, 1] = np.where(self.up, (1.0 - share) * by_mean / whole, 0.0)
        scores[:, 2] = (1.0 - share) * by_sd / whole
        return np.log(whole), scores, float((share * self.stalls / whole).mean())

    def _sum(self, at_edges: Floats) -> Floats:
        return np.asarray(((at_edges[:, :-1] - at_edges[:, 1:]) * self.kernel).sum(axis=1))

    def climb(self, state: _LinkState, steps: int = 12) -> None:
        """Move the state to the highest likelihood by BHHH steps (Berndt et al. 1974)."""
        theta = np.array([state.down, state.up, 0.5 * math.log(state.spread.total)])
        share = min(max(state.stalled, 1e-4), state.most_stalled)
        value, scores, stalled = self.likelihood(theta, state.spread, share)
        for _ in range(steps):
            # The share of stalls by expectation-maximisation, the rest given it.
            share = min(max(stalled, 1e-5), state.most_stalled)
            value, scores, stalled = self.likelihood(theta, state.spread, share)
            info = scores.T @ scores + 1e-3 * np.eye(len(theta))
            move = np.linalg.solve(info, scores.sum(axis=0))
            move *= min(1.0, 1.0 / float(np.abs(move).max() + 1e-12))
            length, gain = 1.0, 0.0
            while length > 0.01:
                target = theta + length * move
                target[2] = np.clip(target[2], math.log(0.02), math.log(2.2))
                after, steeper, stalls = self.likelihood(target, state.spread, share)
                gain = float(after.sum() - value.sum())
                if gain > 0.0:
                    theta, scores, stalled = target, steeper, stalls
                    break
                length *= 0.4
            if gain < 0.02:
                break
        self.theta, self.scores, self.value = theta, scores, float(value.sum()) + max(gain, 0.0)
        if not self.up.any():
            theta[1] = state.up + theta[0] - state.down
        elif self.up.all():
            theta[0] = state.down + theta[1] - state.up
        state.down, state.up = float(theta[0]), float(theta[1])
        state.stalled = share
        self.seen_stalled = stalled
        state.spread = state.spread.scaled(math.exp(2.0 * float(theta[2])))

    def remember(self, state: _LinkState, parts: frozenset[str] | None = None) -> None:
        """Split the spread into what is fast, slow, and the device's own, by pairs of transfers."""
        z, sd = self._edges(self.theta, state.spread)
        cumulated, _ = normal_cdf(z)
        weight = (cumulated[:, :-1] - cumulated[:, 1:]) * self.kernel * (1.0 - state.stalled)
        quiet = weight.sum(axis=1)
        sure = quiet / (quiet + state.stalled * self.stalls + 1e-300)
        weight /= quiet[:, None] + 1e-300
        residual = 0.5 * (z * sd)[:, 1:] + 0.5 * (z * sd)[:, :-1]
        mean = (weight * residual).sum(axis=1)
        around = (weight * residual**2).sum(axis=1) - mean**2
        variance = (weight * 0.5 * (sd[:, 1:] ** 2 + sd[:, :-1] ** 2)).sum(axis=1)
        reliability = np.clip(1.0 - around / np.maximum(variance, 1e-9), 0.0, 1.0)
        expected_s = np.exp(0.5 * state.spread.total) * _data_time(
            self.rows.size, state.rate(self.up), state.rtt_s
        )
        good = (sure > 0.5) & (reliability > 0.3)
        brief = good & (expected_s < 1.5)
        if brief.sum() >= 200:
            good = brief
        rows = np.flatnonzero(good)
        bound = 3.0 * math.sqrt(state.spread.total)
        self.sums: LagSums | None = None
        if len(rows) < FEWEST_TRANSFERS:
            state.parts = frozenset()
            return
        at_s = self.rows.start_s[rows] + 0.5 * self.rows.seconds[rows]
        # What transfers of one size have in common is of the model of their time, not of the rate.
        kind = 2 * np.log2(self.rows.size[rows]).astype(np.int64) + self.up[rows]
        summed = np.bincount(kind, reliability[rows] * mean[rows])
        shared = summed / np.maximum(np.bincount(kind, reliability[rows] ** 2), 1e-9)
        mean[rows] -= reliability[rows] * shared[kind]
        self.sums = lag_sums(
            self.rows.device[rows],
            at_s,
            np.clip(mean[rows], -bound, bound),
            reliability[rows],
            self.rows.devices,
        )
        memory = fit_memory(self.sums, state.spread.total, state.spread, parts)
        state.spread, state.parts = memory.spread, memory.parts

    def errors(self, state: _LinkState, prior: LinkPrior, replicates: int) -> None:
        """Note all estimates with the intervals of a bootstrap over devices, each by one Newton step."""
        devices = self.rows.devices
        totals = np.stack(
            [np.bincount(self.rows.device, column, devices) for column in self.scores.T], axis=1
        )
        info = np.linalg.pinv(self.scores.T @ self.scores + 1e-6 * np.eye(3))
        parts = state.parts or frozenset()
        rng = np.random.default_rng(20_17)
        found: dict[str, list[float]] = {name: [] for name in ("down", "up", *_named(state.spread))}
        for _ in range(replicates):
            share = rng.multinomial(devices, np.full(devices, 1.0 / devices)).astype(np.float64)
            theta = self.theta + np.clip(info @ (share @ totals), -1.0, 1.0)
            total = math.exp(2.0 * float(np.clip(theta[2], math.log(0.02), math.log(2.5))))
            spread = state.spread.scaled(total)
            if self.sums is not None and parts:
                spread = fit_memory(self.sums, total, spread, parts | {"fast"}, share).spread
            found["down"].append(float(theta[0]))
            found["up"].append(float(theta[1]))
            for name, value in _named(spread).items():
                found[name].append(value)
        by_memory = np.zeros(3) if "fast" in parts else self._by_memory(state)
        for name, value, has, more in (
            ("down", state.down, not self.up.all(), by_memory[0]),
            ("up", state.up, bool(self.up.any()), by_memory[1]),
        ):
            half = math.hypot(_KNOWN_TOO_WELL * _Z95 * float(np.std(found[name])), more)
            state.known[f"{name}_bps"] = FittedValue(
                math.exp(value), math.exp(value - half), math.exp(value + half), measured=has
            )
        trip = state.known["rtt_s"]
        if trip.measured:
            unsure = (
                state.own_s
                * _KNOWN_TOO_WELL
                * _Z95
                * max(float(np.std(found["down"])), float(np.std(found["up"])))
            )
            unsure = min(unsure, 0.5 * trip.value)
            state.known["rtt_s"] = replace(
                trip, low=trip.value - math.hypot(trip.value - trip.low, unsure),
                high=trip.value + math.hypot(trip.high - trip.value, unsure),
            )  # fmt: skip
        named = _named(state.spread)
        if "fast" not in parts:
            # Without pairs the spread is known, its memory is not.
            split = (
                prior.spread.scaled(state.spread.total - state.spread.device)
                if prior.spread.total
                else state.spread
            )
            named["rate_rho"] = split.rho
        for name, value in named.items():
            told = {
                "slow_sigma": "slow",
                "slow_time_s": "slow",
                "device_sigma": "device",
                "rate_rho": "fast",
            }.get(name)
            if told is not None and told not in parts:
                state.known[name] = FittedValue(value, measured=False)
                continue
            if name == "rate_rho":
                low, high = _percentiles(found[name], value)
                told_little = high - low > _WIDEST_RHO
                state.known[name] = FittedValue(value, low, high, measured=not told_little)
                continue
            logs = np.log(np.maximum(found[name], 1e-4))
            half = _KNOWN_TOO_WELL * _Z95 * float(np.std(logs))
            if name == "rate_sigma":
                half = math.hypot(half, by_memory[2])
            state.known[name] = FittedValue(value, value * math.exp(-half), value * math.exp(half))

    def _by_memory(self, state: _LinkState) -> Floats:
        """Return how far log down, log up and log sigma move with a memory that is not known, float64 [3].

        The longer a rate stays, the less a long transfer averages it.
        """
        moved = np.zeros(3)
        for rho in _UNKNOWN_RHOS:
            other = replace(state, spread=replace(state.spread, rho=rho))
            fit = _RateFit(self.rows, self.idle_s, other)
            fit.climb(other)
            moved = np.maximum(moved, np.abs(fit.theta - self.theta))
        return moved


def _percentiles(values: list[float], value: float) -> tuple[float, float]:
    half = _KNOWN_TOO_WELL * _Z95 * float(np.std(values))
    return max(value - half, 0.0), min(value + half, 1.0)
