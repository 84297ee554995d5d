"""The contract of availability, and what all models of it share.

"Is device i available at t?" is a pure function of (seed, i, t): asked alone or in a batch, in any order, of
the past or the future, the answer is the same. Randomness is hashed from counters (``edge.core.rng``), never
drawn in sequence.

Time is simulated seconds from the start of the run, 0 or more; t = 0 is midnight UTC for models with a local
hour. A device is available during half-open intervals ``[start, end)``, so at the time that :meth:`until`
gives it is no longer available, to the last bit, and at the one that :meth:`next_available` gives it is.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.core.rng import Counter

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_T = TypeVar("_T", np.bool_, np.float64)

DAY_S: Final = 86_400.0

SEARCH_HORIZON_S: Final = 7 * DAY_S
"""How far ahead a change of state is looked for, seconds; one further away is reported as ``inf``."""

NO_STAGE: Final = -1
"""Code of "does not drop out"; the others are those of ``edge.core.vocabulary.Stage``."""

# Rows worked on together, so that the temporaries of a million ids stay in the cache.
_CHUNK: Final = 16_384


class Dropout(NamedTuple):
    """Where each participation is broken off.

    Attributes
    ----------
    stage : int8[n], a code of ``edge.core.vocabulary.Stage``, or ``NO_STAGE``.
    fraction : float64[n] in [0, 1), how much of that stage is done by then; 0 where there is no dropout.
    """

    stage: npt.NDArray[np.int8]
    fraction: Floats


class Segment(NamedTuple):
    """The piece of constant state that a time falls into.

    Attributes
    ----------
    available : bool[n].
    end_s : float64[n], absolute, later than the time asked about.
    changes : bool[n]; True where the state is known to be the other one at ``end_s``.
    """

    available: Bools
    end_s: Floats
    changes: Bools


class AvailabilityModel(Protocol):
    """When devices can be reached, and at which point of a participation they go away."""

    def available(self, ids: Ids, t_s: float | Floats) -> Bools:
        """Return bool[n], whether each device of ``ids`` (int64[n]) is available at ``t_s``.

        ``t_s`` is one time for all or float64[n], seconds.
        """
        ...

    def until(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n], when each device that is available at ``t_s`` next ceases to be, absolute.

        ``t_s`` itself for a device that is not available; ``inf`` if it stays for the search horizon.
        """
        ...

    def next_available(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n], the earliest time from ``t_s`` on at which each device is available, absolute.

        ``t_s`` itself for a device that is; ``inf`` if there is none within the search horizon.
        """
        ...

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return where each device breaks off its ``participation`` (int or int[n], the caller's count)."""
        ...


def no_dropout(n: int) -> Dropout:
    """Return the dropout of ``n`` participations that all go through."""
    return Dropout(np.full(n, NO_STAGE, np.int8), np.zeros(n))


def checked_times(ids: Ids, t_s: float | Floats) -> Floats:
    """Return ``t_s`` as float64 of the shape of ``ids``.

    Raises
    ------
    ValueError : a time before the start of the run, infinite or NaN, or a shape that does not fit.
    """
    if isinstance(t_s, float) and math.isfinite(t_s) and t_s >= 0.0:
        return np.full(ids.shape, t_s)
    times = np.asarray(t_s, np.float64)
    if not np.all(np.isfinite(times)) or np.any(times < 0):
        raise ValueError("t_s: availability is defined for finite times of 0 s or more, the start of the run")
    return np.ascontiguousarray(np.broadcast_to(times, ids.shape))


class SegmentedModel(abc.ABC):
    """A model given by the segment of constant state around a time; everything else follows from it."""

    @abc.abstractmethod
    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the segment around ``t_s`` (float64[n]) of each device (int64[n]).

        The end must be the same float for every time inside the segment, or boundaries would not be exact.
        """

    def available(self, ids: Ids, t_s: float | Floats) -> Bools:
        """Return bool[n]; see :class:`AvailabilityModel`."""
        return _in_chunks(lambda i, t: self.segment(i, t).available, ids, checked_times(ids, t_s), np.bool_)

    def until(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n]; see :class:`AvailabilityModel`."""
        return _in_chunks(lambda i, t: self._while(i, t, True), ids, checked_times(ids, t_s), np.float64)

    def next_available(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n]; see :class:`AvailabilityModel`."""
        return _in_chunks(lambda i, t: self._while(i, t, False), ids, checked_times(ids, t_s), np.float64)

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return no dropout; see :class:`AvailabilityModel`. Models with a failure rate replace this."""
        del participation
        return no_dropout(ids.size)

    def _while(self, ids: Ids, t_s: Floats, state: bool) -> Floats:
        """Return the first time from ``t_s`` on at which the device is not in ``state``."""
        time = t_s.copy()
        limit = t_s + SEARCH_HORIZON_S
        rows = np.arange(ids.size)
        while rows.size:
            part = self.segment(ids[rows], time[rows])
            inside = part.available == state
            end = np.where(part.end_s > limit[rows], np.inf, part.end_s)
            time[rows[inside]] = end[inside]
            rows = rows[inside & ~part.changes & (end < np.inf)]
        return time


def _in_chunks(
    function: Callable[[Ids, Floats], npt.NDArray[_T]], ids: Ids, t_s: Floats, dtype: type[_T]
) -> npt.NDArray[_T]:
    if ids.size <= _CHUNK:
        return function(ids, t_s)
    result = np.empty(ids.shape, dtype)
    for start in range(0, ids.size, _CHUNK):
        rows = slice(start, start + _CHUNK)
        result[rows] = function(ids[rows], t_s[rows])
    return result


def epoch_of(t_s: Floats, first_s: Floats, length_s: float | Floats) -> Ids:
    """Return int64[n]: the k with ``first + k·length <= t < first + (k + 1)·length``, exact in floats.

    The quotient alone may round to the wrong side of a boundary; boundaries are always first + k·length.
    """
    k = np.floor((t_s - first_s) / length_s)
    k = k - (t_s < first_s + k * length_s)
    k = k + (t_s >= first_s + (k + 1.0) * length_s)
    return k.astype(np.int64)


def rows_of(values: float | Floats, ids: Ids) -> float | Floats:
    """Return the values of ``ids`` from a per-device array, or the one value that all share."""
    return values[ids] if isinstance(values, np.ndarray) else values
