"""Recorded sessions, played again and again; device i replays client i modulo the clients of the trace."""

from __future__ import annotations

import numpy as np

from device_profiles.traces import AvailabilityTrace
from edge.device.availability.base import Floats, Ids, Segment, SegmentedModel, epoch_of


class TraceReplay(SegmentedModel):
    """The sessions of an ``AvailabilityTrace``, repeated with each client's period."""

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
