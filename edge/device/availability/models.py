"""Models of availability: always, by chance, by the hour, by region, by activity, or as recorded."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from device_profiles.traces import AvailabilityTrace
from edge.core.rng import Counter, hashed_bits, hashed_uniform
from edge.core.vocabulary import Stage
from edge.device.availability.base import (
    DAY_S,
    NO_STAGE,
    Bools,
    Dropout,
    Floats,
    Ids,
    Segment,
    SegmentedModel,
    checked_times,
    epoch_of,
    no_dropout,
    rows_of,
)
from edge.device.availability.sessions import Lengths, SessionKeys, session_segment

BREAKING_STAGES: Final = np.array([Stage.DOWNLOAD, Stage.COMPUTE, Stage.REPORT], np.int8)
"""Where a participation can break off: before download (its very start), during compute, during upload."""
SLOT_S: Final = 1800.0
"""Length of a slot, seconds: an assumption about how often a device starts or ends being idle."""
MEAN_SESSION_S: Final = 3600.0
"""Mean length of a session, seconds (an assumption)."""
FAILURE_STAGES: Final[Floats] = np.array([0.2, 0.5, 0.3])
"""Where a failure happens, ordered as ``BREAKING_STAGES`` (assumption, as in the catalogue's Bernoulli)."""
_LEAST_ACTIVE: Final = 1e-6
_MOST_ACTIVE: Final = 1.0 - 1e-4


class AlwaysAvailable:
    """Every device, always."""

    def available(self, ids: Ids, t_s: float | Floats) -> Bools:
        """Return bool[n], all True; see :class:`~edge.device.availability.base.AvailabilityModel`."""
        checked_times(ids, t_s)
        return np.ones(ids.shape, np.bool_)

    def until(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n], all ``inf``."""
        checked_times(ids, t_s)
        return np.full(ids.shape, np.inf)

    def next_available(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n], ``t_s`` itself."""
        return checked_times(ids, t_s).copy()

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return no dropout."""
        del participation
        return no_dropout(ids.size)


class BernoulliDropout(AlwaysAvailable):
    """Always reachable, but a participation breaks off with a fixed probability.

    Parameters
    ----------
    key : of the model's random stream.
    probability : that a participation breaks off, in [0, 1].
    stage_shares : float64[3], where it does, given that it does, ordered as ``BREAKING_STAGES``; sum to 1.
    """

    def __init__(self, key: int, probability: float, stage_shares: Floats) -> None:
        self._key = key
        self._probability = probability
        self._stage_shares = stage_shares

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return where each participation breaks off; see ``AvailabilityModel``."""
        return draw_dropout(self._key, ids, participation, self._probability, self._stage_shares)


def draw_dropout(
    key: int, ids: Ids, participation: Counter, probability: float | Floats, stage_shares: Floats
) -> Dropout:
    """Return where each participation breaks off.

    Parameters
    ----------
    key : of the model's random stream. ids : int64[n]. participation : int or int[n].
    probability : float or float64[n], that the participation breaks off.
    stage_shares : float64[3], ordered as ``BREAKING_STAGES``; sum to 1.
    """
    dropped = hashed_uniform(key, ids, participation, 0) < probability
    where = hashed_uniform(key, ids, participation, 1)
    # Only the inner edges: the last stage takes what rounding may leave of the sum.
    index = np.searchsorted(np.cumsum(stage_shares)[:-1], where, side="right")
    stage = np.where(dropped, BREAKING_STAGES[index], np.int8(NO_STAGE))
    fraction = hashed_uniform(key, ids, participation, 2)
    under_way = stage > BREAKING_STAGES[0]
    return Dropout(stage, np.where(under_way, fraction, 0.0))


class DiurnalAvailability(SegmentedModel):
    """Available by slots, with a probability that follows the local hour.

    Each device divides time into slots of ``SLOT_S`` with a phase of its own, so that the fleet does not
    switch all at once. In a slot it is available with the probability at the slot's middle,

        p(h) = mean · (1 + A·cos(2π(h − peak)/24)),   A = (r − 1)/(r + 1),

    h being the local hour and r = p(peak)/p(trough). Slots are independent of each other, so the share of
    available devices follows p and sessions are short: a geometric number of slots.

    Parameters
    ----------
    phase_key, slot_key : of the model's two random streams.
    mean_available : share available over a day. peak_to_trough : r, at least 1.
    peak_local_hour : hours, in [0, 24).
    utc_offset_s : local time minus UTC, seconds: one for all, or float64[devices].
    """

    def __init__(
        self,
        phase_key: int,
        slot_key: int,
        *,
        mean_available: float,
        peak_to_trough: float,
        peak_local_hour: float,
        utc_offset_s: float | Floats,
    ) -> None:
        self._phase_key = phase_key
        self._slot_key = slot_key
        self._mean = mean_available
        self._swing = mean_available * (peak_to_trough - 1.0) / (peak_to_trough + 1.0)
        self._peak_s = peak_local_hour * 3600.0
        self._utc_offset_s = utc_offset_s

    def probability(self, local_s: Floats) -> Floats:
        """Return the share of devices available at a local time (seconds, any day), float64 of its shape."""
        return np.asarray(
            self._mean + self._swing * np.cos((local_s - self._peak_s) * (2.0 * math.pi / DAY_S))
        )

    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the slot around ``t_s``."""
        first = (hashed_uniform(self._phase_key, ids) - 1.0) * SLOT_S
        slot = epoch_of(t_s, first, SLOT_S)
        start = first + slot * SLOT_S
        local = start + 0.5 * SLOT_S + rows_of(self._utc_offset_s, ids)
        on = hashed_uniform(self._slot_key, ids, slot) < self.probability(local)
        return Segment(on, first + (slot + 1.0) * SLOT_S, np.zeros(ids.shape, np.bool_))


class RegionalOutageAvailability(SegmentedModel):
    """Each region alternates between service and outage, both of exponential length.

    Parameters
    ----------
    keys : of the process. region_key : of the stream that assigns devices to regions.
    regions : number of regions.
    mean_between_s, mean_outage_s : mean lengths of service and outage, seconds.
    region : int[devices] in [0, regions), or None to assign devices evenly at random.

    Raises
    ------
    ValueError : a region outside [0, regions).
    """

    def __init__(
        self,
        keys: SessionKeys,
        region_key: int,
        *,
        regions: int,
        mean_between_s: float,
        mean_outage_s: float,
        region: npt.NDArray[np.integer] | None,
    ) -> None:
        if region is not None and region.size and not 0 <= region.min() <= region.max() < regions:
            raise ValueError(
                f"region: found {int(region.min())} to {int(region.max())}, but the profile has {regions} "
                f"regions; write 0 to {regions - 1}"
            )
        self._keys = keys
        self._region_key = region_key
        self._regions = regions
        self._region = region
        self._on, self._off = Lengths(mean_between_s, None), Lengths(mean_outage_s, None)

    def region_of(self, ids: Ids) -> Ids:
        """Return int64[n], the region of each device."""
        if self._region is not None:
            return self._region[ids].astype(np.int64)
        return (hashed_bits(self._region_key, ids) % np.uint64(self._regions)).astype(np.int64)

    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the service or outage around ``t_s``."""
        region = self.region_of(ids)
        if ids.size > self._regions and np.all(t_s == t_s[0]):
            # One time for all, the usual question: it is answered once per region.
            every = np.arange(self._regions, dtype=np.int64)
            part = session_segment(self._keys, every, np.full(self._regions, t_s[0]), self._on, self._off)
            return Segment(part.available[region], part.end_s[region], part.changes[region])
        return session_segment(self._keys, region, t_s, self._on, self._off)


FAILURE_STAGES.setflags(write=False)


class HeavyTailAvailability(SegmentedModel):
    """Sessions with a share of time of its own for each device: few take part in most rounds.

    Device i is available for a share a_i = u_i^g of time, u_i uniform. The most active share q then holds

        1 − (1 − q)^(g + 1)

    of all availability (the Lorenz curve of a power of a uniform), and of all participations when the
    coordinator picks among available devices at random; g follows from the share that is asked for. FLASH
    (Yang et al. 2022, "FLASH: Heterogeneity-Aware Federated Learning at Scale", IEEE Transactions on Mobile
    Computing) reports q = 30 % and 86 %, so g = 4.5 and 18 % of devices available on average.

    The share of time is spent in sessions of ``MEAN_SESSION_S`` on average; the gaps between them are as long
    as a_i wants. A participation of device i fails with probability v_i^d, v_i uniform and d such that the
    mean over devices is the one asked for; that failure is independent of activity is an assumption.

    Parameters
    ----------
    keys : of the sessions. activity_key, failure_key, dropout_key : of three more random streams.
    mean_failure : mean over devices of the chance that a participation fails, in [0, 1).
    top_share, top_participation : the most active ``top_share`` of devices do that share of everything.
    """

    def __init__(
        self,
        keys: SessionKeys,
        activity_key: int,
        failure_key: int,
        dropout_key: int,
        *,
        mean_failure: float,
        top_share: float,
        top_participation: float,
    ) -> None:
        self._keys = keys
        self._activity_key, self._failure_key, self._dropout_key = activity_key, failure_key, dropout_key
        self._mean_failure = mean_failure
        self._exponent = math.log(1.0 - top_participation) / math.log(1.0 - top_share) - 1.0

    def activity(self, ids: Ids) -> Floats:
        """Return float64[n]: the share of time for which each device is available.

        Kept within [1e-6, 0.9999], so that neither gaps of centuries nor of milliseconds arise.
        """
        share = hashed_uniform(self._activity_key, ids) ** self._exponent
        return np.clip(share, _LEAST_ACTIVE, _MOST_ACTIVE)

    def failure(self, ids: Ids) -> Floats:
        """Return float64[n]: the chance that a participation of each device fails."""
        if self._mean_failure == 0.0:
            return np.zeros(ids.shape)
        return np.asarray(hashed_uniform(self._failure_key, ids) ** (1.0 / self._mean_failure - 1.0))

    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the session or gap around ``t_s``."""
        gap_s = MEAN_SESSION_S * (1.0 / self.activity(ids) - 1.0)
        return session_segment(self._keys, ids, t_s, Lengths(MEAN_SESSION_S, None), Lengths(gap_s, None))

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return where each participation breaks off; see ``AvailabilityModel``."""
        return draw_dropout(self._dropout_key, ids, participation, self.failure(ids), FAILURE_STAGES)


class TraceReplay(SegmentedModel):
    """The sessions of an ``AvailabilityTrace``, repeated with each client's period.

    Device i replays client i modulo the clients of the trace.
    """

    def __init__(self, trace: AvailabilityTrace) -> None:
        n_sessions = np.diff(trace.indptr)
        client = np.repeat(np.arange(n_sessions.size), n_sessions)
        covers_all = (trace.starts_s == 0) & (trace.ends_s == trace.period_s[client])
        self._period_s = trace.period_s
        self._constant = n_sessions == 0
        self._constant[client[covers_all]] = True
        # A session that reaches the end of the period leaves it to the next one to say how things go on;
        # rounding of the sum of cycle and edge could make it end just before, with a gap in between.
        ends_s = np.where(trace.ends_s == trace.period_s[client], np.inf, trace.ends_s)
        # Starts and ends alternate, so the parity of the number of edges passed is the state.
        self._edges_s = np.stack([trace.starts_s, ends_s], axis=1).reshape(-1)
        self._indptr = 2 * trace.indptr
        # Halvings that empty the longest list of edges.
        self._halvings = int(np.diff(self._indptr).max()).bit_length()

    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the session or gap around ``t_s``, cut at the end of the client's period."""
        client = ids % self._period_s.size
        period = self._period_s[client]
        cycle = epoch_of(t_s, np.zeros(ids.shape), period)
        base, period_end = cycle * period, (cycle + 1.0) * period
        first, stop = self._indptr[client], self._indptr[client + 1]
        low, high = first, stop
        for _ in range(self._halvings):
            middle = (low + high) // 2
            searching = low < high
            # Edges are compared as absolute times, the form in which they are handed out.
            passed = searching & (base + self._edge(middle) <= t_s)
            low, high = np.where(passed, middle + 1, low), np.where(searching & ~passed, middle, high)
        inside = low < stop
        end = np.where(inside, np.minimum(base + self._edge(low), period_end), period_end)
        # Without this, a client that never changes would be followed period by period to the search horizon.
        end = np.where(self._constant[client], np.inf, end)
        return Segment((low - first) % 2 == 1, end, end < period_end)

    def _edge(self, index: Ids) -> Floats:
        if self._edges_s.size == 0:
            return np.full(index.shape, np.inf)
        return self._edges_s[np.minimum(index, self._edges_s.size - 1)]
