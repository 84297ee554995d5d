"""What changes about a link over time: its rate, its outages, its jitter, whether it connects.

Everything here is a pure function of a stream key, the device's id and the time (or a counter), drawn by
hashing: the answer for one device does not depend on which others are asked about, on the order of the
questions, or on whether the past was ever looked at.

The rate follows an AR(1) process on its logarithm, one step a second (the usual shadow-fading model:
Gudmundson 1991). The multiplier of a step has **mean** one, not median one: a link that is said to have
10 Mbit/s carries 10 Mbit a second on average over a long time, and its typical second is a factor
``exp(-sigma**2/2)`` slower than that. A phone's radio fades in both directions at once, so one multiplier
serves both. Links that have a slow process besides (``slow_rates``) are as much slower or faster again.

Outages are on or off: up and down times are exponential, a continuous-time Markov chain (Gilbert 1960)
given by the share of time that the link is down, f, and the mean length of an outage, m; up times last
``m*(1-f)/f`` on average. Time is cut into epochs of ``8*m/f`` seconds, eight outages on average. Each epoch
starts from the stationary distribution (down with probability f) with draws of its own, so any time can be
asked about without knowing what came before. By the lack of memory of exponential times the link is down a
share f of the time exactly; the restarts cut or join an outage now and then, which makes the mean length
``m / (1 + f*(1-f)/8)``, 3 % short at most.

:class:`LinkConditions` puts rate and outages together for transfers.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits, hashed_exponential, hashed_uniform, stream_key
from edge.core.vocabulary import Direction
from edge.network.pace import Conditions, Pace, Paces, alone, alone_array, carry, carry_array
from edge.network.slow_rates import check_slow_rates, slow_multipliers
from edge.network.tcp import INITIAL_WINDOW_BYTES, data_time

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
OUTAGES_PER_EPOCH = 8
_FIRST_STATE = 0
"""Counter of the draw that says whether an epoch starts down; stretches count from 1."""
_STRETCHES_AT_ONCE = 24
BLOCK_STEPS = 32
"""Seconds that are generated together; each block restarts from the stationary distribution."""
_PAIRS = np.arange(BLOCK_STEPS // 2, dtype=np.int64)
_FEWEST_CACHED = 65_536
_BLOCKS_KEPT = 4


def check_outages(fraction: FloatArray, mean_s: FloatArray) -> None:
    """Raise ValueError for a fraction outside [0, 1), or a mean that is not positive where it matters."""
    bad = ~((fraction >= 0.0) & (fraction < 1.0))
    if bad.any():
        raise ValueError(
            f"an outage fraction is in [0, 1), not {float(fraction[bad][0])!r}; write 8% as 0.08, "
            "and leave out a device that is never reachable"
        )
    bad = (fraction > 0.0) & ~((mean_s > 0.0) & np.isfinite(mean_s))
    if bad.any():
        raise ValueError(f"the mean length of an outage is positive seconds, not {float(mean_s[bad][0])!r}")


def epoch_of(t_s: FloatArray, length_s: FloatArray) -> IntArray:
    """Return the epoch that each time falls into, int64[n]: ``epoch*length <= t < (epoch+1)*length``."""
    epoch = np.floor(t_s / length_s).astype(np.int64)
    # The quotient may be rounded across the boundary that the products below define.
    epoch = np.where(epoch * length_s > t_s, epoch - 1, epoch)
    return np.where((epoch + 1) * length_s <= t_s, epoch + 1, epoch)


def _first_state(key: int, device_ids: IntArray, epoch: IntArray, fraction: FloatArray) -> BoolArray:
    return np.asarray(hashed_uniform(key, device_ids, epoch, _FIRST_STATE) < fraction)


def epoch_edges(
    key: int, device_ids: IntArray, epoch: IntArray, fraction: FloatArray, mean_s: FloatArray
) -> tuple[BoolArray, FloatArray]:
    """Return the outages of one epoch of each device.

    Parameters
    ----------
    key : of the outage stream, from ``rng.stream_key``.
    device_ids, epoch : int64[n].
    fraction, mean_s : float64[n], both positive.

    Returns
    -------
    (down bool[n], edges_s float64[n, k]): whether the epoch starts with the link down, and the absolute
    times at which the state changes, increasing along a row; the last is not before the end of the epoch.
    """
    length_s = OUTAGES_PER_EPOCH * mean_s / fraction
    end_s = (epoch + 1) * length_s
    first_down = _first_state(key, device_ids, epoch, fraction)
    up_s = mean_s * (1.0 - fraction) / fraction
    odd_s, even_s = np.where(first_down, mean_s, up_s), np.where(first_down, up_s, mean_s)
    edges_s = (epoch * length_s)[:, np.newaxis]
    while bool((edges_s[:, -1] < end_s).any()):
        done = edges_s.shape[1]
        indices = np.arange(done, done + _STRETCHES_AT_ONCE)
        means_s = np.where(indices & 1, odd_s[:, np.newaxis], even_s[:, np.newaxis])
        lasting_s = means_s * hashed_exponential(
            key, device_ids[:, np.newaxis], epoch[:, np.newaxis], indices
        )
        following_s = np.concatenate([edges_s[:, -1:], lasting_s], axis=1).cumsum(axis=1)
        edges_s = np.concatenate([edges_s, following_s[:, 1:]], axis=1)
    return first_down, edges_s[:, 1:]


def rate_multipliers(
    key: int, device_ids: IntArray, block_index: int | IntArray, sigma_log: FloatArray, rho_1s: FloatArray
) -> FloatArray:
    """Return the factor on the rate of each link in each second of a block.

    ``x`` starts each block as a standard normal and goes on as ``x[k] = rho*x[k-1] + sqrt(1-rho**2)*z[k]``,
    so it is stationary; the multiplier is ``exp(sigma*x - sigma**2/2)``. Blocks are independent of each
    other, which is what makes any second available without those before it: the correlation of neighbouring
    seconds is ``rho`` inside a block and 0 across the boundary between two.

    Parameters
    ----------
    key : of the rate stream, from ``rng.stream_key``.
    device_ids : int64[n].
    block_index : block that holds seconds ``32*block`` to ``32*block + 31``; an int or int64[n].
    sigma_log : float64[n], standard deviation of the log rate, >= 0.
    rho_1s : float64[n], its correlation from one second to the next, in [0, 1].

    Returns
    -------
    float64[n, 32], mean 1 over devices and blocks.

    Raises
    ------
    ValueError : for a sigma or rho out of its range.
    """
    _check_rates(sigma_log, rho_1s)
    blocks = block_index[:, np.newaxis] if isinstance(block_index, np.ndarray) else block_index
    bits = hashed_bits(key, device_ids[:, np.newaxis], blocks, _PAIRS)
    # Two normals from each word (Box & Muller 1958): the upper 32 bits give the radius, the lower the angle.
    radius = np.sqrt(-2.0 * np.log(((bits >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32))
    angle = (bits & np.uint64(0xFFFF_FFFF)).astype(np.float64) * (2.0 * math.pi * 2.0**-32)
    x = np.empty((device_ids.shape[0], BLOCK_STEPS))
    x[:, : BLOCK_STEPS // 2] = radius * np.cos(angle)
    x[:, BLOCK_STEPS // 2 :] = radius * np.sin(angle)
    x[:, 1:] *= np.sqrt(1.0 - rho_1s * rho_1s)[:, np.newaxis]
    # The recursion as a scan: after the pass of span s, x[k] holds the terms of the last 2*s steps.
    factor, span = rho_1s, 1
    while span < BLOCK_STEPS:
        x[:, span:] += factor[:, np.newaxis] * x[:, :-span]
        factor, span = factor * factor, 2 * span
    x *= sigma_log[:, np.newaxis]
    x -= (0.5 * sigma_log * sigma_log)[:, np.newaxis]
    return np.asarray(np.exp(x, out=x))


def _check_rates(sigma_log: FloatArray, rho_1s: FloatArray) -> None:
    if not bool((np.isfinite(sigma_log) & (sigma_log >= 0.0)).all()):
        raise ValueError("rate_sigma_log is a standard deviation, finite and 0 or more")
    if not bool(((rho_1s >= 0.0) & (rho_1s <= 1.0)).all()):
        raise ValueError(
            "rate_rho_1s is a correlation in [0, 1]; a rate that never changes has rate_sigma_log 0"
        )


class _Rates:
    """The rates of many links: the block of seconds that each was asked about last.

    Parameters
    ----------
    count : of the links.
    """

    __slots__ = ("_block", "_rates")

    def __init__(self, count: int) -> None:
        self._block: IntArray = np.full(count, -1)
        self._rates = np.empty((count, BLOCK_STEPS))

    def at(
        self, slots: IntArray, step: IntArray, of_blocks: Callable[[IntArray, IntArray], FloatArray]
    ) -> FloatArray:
        """Return the multipliers of links in the seconds from ``step``, int64 [m], on.

        ``of_blocks`` computes blocks of links, int64 [m] and int64 [m], as float64 [m, 32]. It is not kept:
        it belongs to who keeps this, and nothing of a round shall wait for the collector.
        """
        block = step // BLOCK_STEPS
        place = step - block * BLOCK_STEPS
        multipliers = self._rates.take(slots * BLOCK_STEPS + place)
        missing = (self._block.take(slots) != block).nonzero()[0]
        if missing.size:
            links, blocks = slots[missing], block[missing]
            rates = of_blocks(links, blocks)
            multipliers[missing] = rates[np.arange(missing.size), place[missing]]
            self._rates[links], self._block[links] = rates, blocks
        return np.asarray(multipliers)


class _Outages:
    """The outages of many flaky links: the epoch that each was asked about last.

    Parameters
    ----------
    key : of the outage stream.
    device_ids, fraction, mean_s : as for :func:`epoch_edges`.
    """

    __slots__ = ("_device_ids", "_down", "_edges_s", "_end_s", "_fraction", "_key", "_mean_s", "_start_s")

    def __init__(self, key: int, device_ids: IntArray, fraction: FloatArray, mean_s: FloatArray) -> None:
        self._key = key
        self._device_ids, self._fraction, self._mean_s = device_ids, fraction, mean_s
        count = len(device_ids)
        self._start_s = np.zeros(count)
        self._end_s = np.zeros(count)
        self._down = np.zeros(count, np.bool_)
        self._edges_s = np.empty((count, 0))

    def at(self, links: IntArray, t_s: FloatArray) -> tuple[BoolArray, FloatArray]:
        """Return whether links are down at their times, and until when that holds at least."""
        missing = np.flatnonzero(~((self._start_s[links] <= t_s) & (t_s < self._end_s[links])))
        first_down, edges_s, end_s = self._down[links], self._edges_s[links], self._end_s[links]
        if missing.size:
            late = links[missing]
            ids, fraction, mean_s = self._device_ids[late], self._fraction[late], self._mean_s[late]
            length_s = OUTAGES_PER_EPOCH * mean_s / fraction
            epoch = epoch_of(t_s[missing], length_s)
            down, edges = epoch_edges(self._key, ids, epoch, fraction, mean_s)
            width = max(edges.shape[1], edges_s.shape[1])
            self._edges_s, edges_s, edges = (_widened(e, width) for e in (self._edges_s, edges_s, edges))
            ends = (epoch + 1) * length_s
            first_down[missing], edges_s[missing], end_s[missing] = down, edges, ends
            self._down[late], self._edges_s[late], self._end_s[late] = down, edges, ends
            self._start_s[late] = epoch * length_s
        index = (edges_s <= t_s[:, np.newaxis]).sum(axis=1)
        until_s = np.minimum(edges_s[np.arange(len(links)), index], end_s)
        return first_down ^ ((index & 1) == 1), until_s


def _widened(edges_s: FloatArray, width: int) -> FloatArray:
    """Return ``edges_s`` with columns of ``inf`` up to ``width``."""
    return np.pad(edges_s, ((0, 0), (0, width - edges_s.shape[1])), constant_values=np.inf)


class LinkConditions:
    """The varying rate and the outages of many links, for transfers one at a time or many together.

    Parameters
    ----------
    seed : the run's seed; the streams are ``"link", "rate"``, ``"slow-rate"`` and ``"outage"``.
    device_ids : int64[n]; methods name a link by its ``slot``, its place in this array.
    sigma_log, rho_1s : float64[n], as for :func:`rate_multipliers`.
    outage_fraction, outage_mean_s : float64[n], share of the time down, in [0, 1), and mean length, seconds.
    slow_sigma_log, slow_time_s : float64[n], as for :func:`~edge.network.slow_rates.slow_multipliers`; None
        where no link has a slow process.

    Raises
    ------
    ValueError : for a parameter out of its range.

    Answers are computed a block of seconds (an epoch of outages) at a time and remembered. The methods for
    one transfer compute a block for all links together, or for those that :meth:`prepare` was told of; it
    saves time and changes no answer. Those for many transfers compute the links that they are asked about.
    """

    __slots__ = (
        "_all_vary",
        "_device_ids",
        "_downs",
        "_ever_down",
        "_ever_varies",
        "_flaky",
        "_fraction",
        "_mean_s",
        "_most_cached",
        "_named",
        "_outage_key",
        "_outages_of_many",
        "_place_of_flaky",
        "_rate_key",
        "_rates",
        "_rates_of_many",
        "_rho",
        "_row",
        "_sigma",
        "_slow",
        "_slow_key",
        "_varies",
        "_varying",
    )

    def __init__(
        self,
        seed: int,
        device_ids: IntArray,
        *,
        sigma_log: FloatArray,
        rho_1s: FloatArray,
        outage_fraction: FloatArray,
        outage_mean_s: FloatArray,
        slow_sigma_log: FloatArray | None = None,
        slow_time_s: FloatArray | None = None,
    ) -> None:
        _check_rates(sigma_log, rho_1s)
        check_outages(outage_fraction, outage_mean_s)
        self._rate_key = stream_key(seed, "link", "rate")
        self._outage_key = stream_key(seed, "link", "outage")
        self._device_ids = device_ids
        self._sigma, self._rho = sigma_log, rho_1s
        self._fraction, self._mean_s = outage_fraction, outage_mean_s
        varies = sigma_log > 0.0
        self._slow: tuple[FloatArray, FloatArray] | None = None
        """Sigma and time of the slow process of each link; None where none has one."""
        if slow_sigma_log is not None and slow_time_s is not None:
            check_slow_rates(slow_sigma_log, slow_time_s)
            if bool((slow_sigma_log > 0.0).any()):
                self._slow = slow_sigma_log, slow_time_s
                varies = varies | (slow_sigma_log > 0.0)
        self._slow_key = stream_key(seed, "link", "slow-rate")
        self._ever_varies, self._all_vary = bool(varies.any()), bool(varies.all())
        self._ever_down = bool((outage_fraction > 0.0).any())
        self._varying: BoolArray = varies
        self._flaky: BoolArray = outage_fraction > 0.0
        self._place_of_flaky: IntArray = np.cumsum(self._flaky) - 1
        # One transfer asks about one slot.
        self._varies: list[bool] = varies.tolist()
        self._named: IntArray | None = None
        """Slots given to :meth:`prepare`, sorted, int64 [named]; None before, when any slot is valid."""
        self._row: list[int] = list(range(len(device_ids)))
        """Of a slot: its row in the blocks of :attr:`_rates`; -1: it has none."""
        self._rates: dict[int, FloatArray] = {}
        """Of a block: the multipliers of the named links, float64[named, 32]; the latest few blocks."""
        self._downs: dict[int, tuple[float, float, bool, list[float]]] = {}
        """Of a slot: start and end of the epoch, whether it starts down, and when that changes."""
        self._most_cached = _FEWEST_CACHED
        self._rates_of_many: _Rates | None = None
        self._outages_of_many: _Outages | None = None

    def prepare(self, slots: IntArray, t_s: float) -> None:
        """Compute what :meth:`carry_s` and the others need for transfers of ``slots`` about ``t_s``.

        From the first call on, the rates of other links than those of all calls are computed one by one.
        """
        self._most_cached = max(_FEWEST_CACHED, 2 * slots.shape[0])
        if self._ever_varies:
            self._name(slots)
            block = int(t_s) // BLOCK_STEPS
            if block not in self._rates:
                self._load_rates(block)
        if self._ever_down:
            downs = self._downs
            flaky = slots[self._fraction[slots] > 0.0]
            late = [s for s in flaky.tolist() if s not in downs or not downs[s][0] <= t_s < downs[s][1]]
            if late:
                self._load_outages(np.array(late, np.int64), t_s)

    def multiplier(self, slot: int, t_s: float) -> float:
        """Return the factor on the link's mean rate at ``t_s``, outages apart."""
        return self.multiplier_until(slot, t_s)[0]

    def multiplier_until(self, slot: int, t_s: float) -> tuple[float, float]:
        """Return the factor on the link's mean rate at ``t_s``, and until when it holds (after ``t_s``)."""
        if not self._varies[slot]:
            return 1.0, math.inf
        row = self._row[slot]
        if row < 0:
            factor, until_s = self._multipliers_until(np.array([slot]), np.array([t_s]))
            return factor.item(0), until_s.item(0)
        step = int(t_s)
        block = step // BLOCK_STEPS
        rates = self._rates.get(block)
        if rates is None:
            rates = self._load_rates(block)
        return rates.item(row, step - block * BLOCK_STEPS), step + 1.0

    def outage_at(self, slot: int, t_s: float) -> tuple[bool, float]:
        """Return whether the link is down at ``t_s``, and until when that holds at least (after ``t_s``)."""
        if not self._ever_down:
            return False, math.inf
        known = self._downs.get(slot)
        if known is None or not known[0] <= t_s < known[1]:
            if not self._fraction.item(slot) > 0.0:
                return False, math.inf
            self._load_outages(np.array([slot]), t_s)
            known = self._downs[slot]
        _, end_s, first_down, edges_s = known
        index = bisect.bisect_right(edges_s, t_s)
        return first_down ^ bool(index & 1), min(edges_s[index], end_s)

    def pace(self, slot: int, direction: Direction, t_s: float) -> tuple[float, float]:
        """Return the factor on the link's mean rate at ``t_s``, 0 when it is down, and until when it holds.

        ``direction`` makes no difference: both fade together.
        """
        down, until_s = self.outage_at(slot, t_s)
        if down:
            return 0.0, until_s
        multiplier, changes_s = self.multiplier_until(slot, t_s)
        return multiplier, min(until_s, changes_s)

    def _pace_of(self, slot: int) -> Pace:
        return functools.partial(self.pace, slot, Direction.NONE)

    def carry_s(self, slot: int, direction: Direction, start_s: float, steady_s: float) -> float:
        """Return the seconds that a transfer takes which takes ``steady_s`` at the link's mean rate.

        It stands still during outages and is as much slower or faster as the rate. ``direction`` makes no
        difference: both fade together.
        """
        if not (self._ever_varies or self._ever_down):
            return steady_s
        return carry(self._pace_of(slot), start_s, steady_s, math.inf)

    def alone_time(
        self,
        slot: int,
        direction: Direction,
        payload_bytes: float,
        rate_bps: float,
        rtt_s: float,
        start_s: float,
        *,
        window_bytes: float = INITIAL_WINDOW_BYTES,
    ) -> tuple[float, float]:
        """Return the time from the first to the last byte leaving, and the window afterwards.

        As ``tcp_model.data_time`` at the rate of the moment; exactly so if the transfer ends before the rate
        changes. A window that does not fill the link waits for its acknowledgements as there, whatever the
        rate does meanwhile; beyond that the transfer goes at the rate of each second. It stands still during
        an outage, and restarts from the initial window after one longer than the retransmission time-out.

        Parameters
        ----------
        slot : place of the device in ``device_ids``.
        direction : makes no difference: both fade together.
        rate_bps : the link's mean rate.
        start_s : absolute time at which the first byte leaves.

        The other parameters and errors are those of ``data_time``.
        """
        if not self._ever_down:
            multiplier, until_s = self.multiplier_until(slot, start_s)
            seconds, end_window = data_time(payload_bytes, rate_bps * multiplier, rtt_s, window_bytes)
            if start_s + seconds <= until_s:
                return seconds, end_window
        pace = self._pace_of(slot)
        return alone(pace, payload_bytes, rate_bps, rtt_s, start_s, window_bytes, math.inf)

    def carry_times(
        self, slots: IntArray, direction: Direction, start_s: FloatArray, steady_s: FloatArray
    ) -> FloatArray:
        """Return :meth:`carry_s` of many transfers, float64 [m], bit for bit; ``inf`` remains ``inf``."""
        if not (self._ever_varies or self._ever_down):
            return steady_s.copy()
        return carry_array(self._paces_of(slots), start_s, steady_s)

    def alone_times(
        self,
        slots: IntArray,
        direction: Direction,
        payload_bytes: FloatArray,
        rate_bps: FloatArray,
        rtt_s: FloatArray,
        start_s: FloatArray,
    ) -> FloatArray:
        """Return the seconds of :meth:`alone_time` of many transfers, float64 [m], bit for bit."""
        return alone_array(self._paces_of(slots), payload_bytes, rate_bps, rtt_s, start_s)

    def _paces_of(self, slots: IntArray) -> Paces:
        """Return the paces of transfers of ``slots``."""

        def paces(at: IntArray, t_s: FloatArray) -> tuple[FloatArray, FloatArray]:
            asked = slots[at]
            factor, until_s = self._multipliers_until(asked, t_s)
            if self._ever_down:
                self._apply_outages(asked, t_s, factor, until_s)
            return factor, until_s

        return paces

    def _multipliers_until(self, slots: IntArray, t_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return :meth:`multiplier_until` of many links, each at its own time."""
        if not self._ever_varies:
            return np.ones(len(slots)), np.full(len(slots), np.inf)
        if self._rates_of_many is None:
            self._rates_of_many = _Rates(len(self._device_ids))
        if self._all_vary:
            step = t_s.astype(np.int64)
            return self._rates_of_many.at(slots, step, self._rates_of_blocks), np.asarray(
                step + 1.0, np.float64
            )
        factor, until_s = np.ones(len(slots)), np.full(len(slots), np.inf)
        varying = np.flatnonzero(self._varying[slots])
        step = t_s[varying].astype(np.int64)
        factor[varying] = self._rates_of_many.at(slots[varying], step, self._rates_of_blocks)
        until_s[varying] = step + 1.0
        return factor, until_s

    def _apply_outages(
        self, slots: IntArray, t_s: FloatArray, factor: FloatArray, until_s: FloatArray
    ) -> None:
        """Set the factors of links that are down to 0; limit how long the factors hold."""
        if self._outages_of_many is None:
            flaky = self._flaky
            self._outages_of_many = _Outages(
                self._outage_key, self._device_ids[flaky], self._fraction[flaky], self._mean_s[flaky]
            )
        at = np.flatnonzero(self._flaky[slots])
        down, changes_s = self._outages_of_many.at(self._place_of_flaky[slots[at]], t_s[at])
        factor[at[down]] = 0.0
        until_s[at] = np.where(down, changes_s, np.minimum(until_s[at], changes_s))

    def _rates_of_blocks(self, slots: IntArray, blocks: IntArray) -> FloatArray:
        """Return the multipliers of links in a block of each, float64 [m, 32]."""
        ids = self._device_ids[slots]
        rates = rate_multipliers(self._rate_key, ids, blocks, self._sigma[slots], self._rho[slots])
        if self._slow is not None:
            sigma, time_s = self._slow[0][slots], self._slow[1][slots]
            slow = np.flatnonzero(sigma > 0.0)
            rates[slow] *= slow_multipliers(
                self._slow_key, ids[slow], blocks[slow] * BLOCK_STEPS, BLOCK_STEPS, sigma[slow], time_s[slow]
            )
        return rates

    def _name(self, slots: IntArray) -> None:
        """Add links to those whose rates are computed together."""
        chosen = np.zeros(len(self._device_ids), dtype=np.bool_)
        chosen[slots] = True
        if self._named is not None:
            chosen[self._named] = True
        named = np.flatnonzero(chosen)
        if self._named is None or len(named) > len(self._named):
            row = np.full(len(self._device_ids), -1)
            row[named] = np.arange(len(named))
            self._named, self._row = named, row.tolist()
            self._rates.clear()

    def _load_rates(self, block: int) -> FloatArray:
        slots = np.arange(len(self._device_ids)) if self._named is None else self._named
        rates = self._rates_of_blocks(slots, np.full(len(slots), block))
        if len(self._rates) >= _BLOCKS_KEPT:
            del self._rates[next(iter(self._rates))]
        self._rates[block] = rates
        return rates

    def _load_outages(self, slots: IntArray, t_s: float) -> None:
        known = self._downs
        if len(known) + slots.shape[0] > self._most_cached:
            known.clear()
        fraction, mean_s = self._fraction[slots], self._mean_s[slots]
        length_s = OUTAGES_PER_EPOCH * mean_s / fraction
        epoch = epoch_of(np.full(slots.shape, t_s), length_s)
        first_down, edges_s = epoch_edges(self._outage_key, self._device_ids[slots], epoch, fraction, mean_s)
        starts, ends = (epoch * length_s).tolist(), ((epoch + 1) * length_s).tolist()
        for slot, start, end, down, row in zip(
            slots.tolist(), starts, ends, first_down.tolist(), edges_s.tolist(), strict=True
        ):
            known[slot] = (start, end, down, row)


class MixedConditions:
    """The conditions of several kinds of links, as one; implements ``Conditions``.

    Parameters
    ----------
    kind : int64[n], for each link which of ``parts`` it belongs to.
    parts : the conditions of each kind; the slots of a part are its links, in their order in ``kind``.
    """

    __slots__ = ("_kind", "_part_of", "_parts", "_slot_in", "_within")

    def __init__(self, kind: IntArray, parts: Sequence[Conditions]) -> None:
        within: IntArray = np.empty(kind.shape, np.int64)
        for code in range(len(parts)):
            rows = np.flatnonzero(kind == code)
            within[rows] = np.arange(rows.size)
        self._parts = tuple(parts)
        self._part_of: IntArray = kind
        self._slot_in: IntArray = within
        # A transfer asks about one slot at a time.
        self._kind: list[int] = kind.tolist()
        self._within: list[int] = within.tolist()

    def prepare(self, slots: IntArray, t_s: float) -> None:
        """Get ready for transfers of ``slots`` about ``t_s``."""
        for code, part in enumerate(self._parts):
            part.prepare(self._slot_in[slots[self._part_of[slots] == code]], t_s)

    def pace(self, slot: int, direction: Direction, t_s: float) -> tuple[float, float]:
        """Return the factor on the link's mean rate at ``t_s``, 0 if it is down, and until when it holds."""
        return self._parts[self._kind[slot]].pace(self._within[slot], direction, t_s)

    def carry_s(self, slot: int, direction: Direction, start_s: float, steady_s: float) -> float:
        """Return the seconds that a transfer takes which takes ``steady_s`` at the link's mean rate."""
        return self._parts[self._kind[slot]].carry_s(self._within[slot], direction, start_s, steady_s)

    def alone_time(
        self,
        slot: int,
        direction: Direction,
        payload_bytes: float,
        rate_bps: float,
        rtt_s: float,
        start_s: float,
    ) -> tuple[float, float]:
        """Return the seconds from the first to the last byte leaving, and the window afterwards."""
        part, within = self._parts[self._kind[slot]], self._within[slot]
        return part.alone_time(within, direction, payload_bytes, rate_bps, rtt_s, start_s)

    def _places_by_part(self, slots: IntArray) -> Iterator[tuple[Conditions, IntArray, IntArray]]:
        """Return each part with the places of its transfers among ``slots`` and the slots inside the part."""
        for code, part in enumerate(self._parts):
            at = np.flatnonzero(self._part_of[slots] == code)
            if at.size:
                yield part, at, self._slot_in[slots[at]]

    def carry_times(
        self, slots: IntArray, direction: Direction, start_s: FloatArray, steady_s: FloatArray
    ) -> FloatArray:
        """Return :meth:`carry_s` of many transfers, float64 [m], bit for bit; ``inf`` remains ``inf``."""
        seconds = np.empty(len(slots))
        for part, at, within in self._places_by_part(slots):
            seconds[at] = part.carry_times(within, direction, start_s[at], steady_s[at])
        return seconds

    def alone_times(
        self,
        slots: IntArray,
        direction: Direction,
        payload_bytes: FloatArray,
        rate_bps: FloatArray,
        rtt_s: FloatArray,
        start_s: FloatArray,
    ) -> FloatArray:
        """Return the seconds of :meth:`alone_time` of many transfers, float64 [m], bit for bit."""
        seconds = np.empty(len(slots))
        for part, at, within in self._places_by_part(slots):
            seconds[at] = part.alone_times(
                within, direction, payload_bytes[at], rate_bps[at], rtt_s[at], start_s[at]
            )
        return seconds
