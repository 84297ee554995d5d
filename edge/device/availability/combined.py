"""Several availabilities as one: of devices that need all of them, or of groups that have one each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from edge.core.rng import Counter
from edge.device.availability.base import (
    NO_STAGE,
    SEARCH_HORIZON_S,
    AvailabilityModel,
    Bools,
    Dropout,
    Floats,
    Ids,
    checked_times,
)

MAX_SEARCH_ROUNDS: Final = 1000
"""How often :meth:`All.next_available` passes the models on from one to the next before it gives up."""
_T = TypeVar("_T", np.bool_, np.float64)
_Model = AvailabilityModel


class All:
    """The conjunction of one or more models.

    Each of them needs random streams of its own (``build`` names them after the profile), or they would go up
    and down together.

    Raises
    ------
    ValueError : no models.
    """

    def __init__(self, models: Sequence[AvailabilityModel]) -> None:
        if not models:
            raise ValueError(
                "All needs at least one availability model; use AlwaysAvailable for no restriction"
            )
        self._models = tuple(models)

    def available(self, ids: Ids, t_s: float | Floats) -> Bools:
        """Return bool[n]; see :class:`~edge.device.availability.base.AvailabilityModel`."""
        return reduce(np.logical_and, (model.available(ids, t_s) for model in self._models))

    def until(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n], the earliest end among the models; ``t_s`` where any says no."""
        return reduce(np.minimum, (model.until(ids, t_s) for model in self._models))

    def next_available(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n]; see ``AvailabilityModel``.

        A time is carried from model to model, each moving it to its next availability, until none moves it.
        ``inf`` beyond the search horizon or after ``MAX_SEARCH_ROUNDS`` rounds.
        """
        time = checked_times(ids, t_s).copy()
        limit = time + SEARCH_HORIZON_S
        rows = np.arange(ids.size)
        for _ in range(MAX_SEARCH_ROUNDS):
            before = time[rows]
            after = before
            for model in self._models:
                alive = np.flatnonzero(after < np.inf)
                moved = np.full(rows.shape, np.inf)
                moved[alive] = model.next_available(ids[rows[alive]], after[alive])
                after = moved
            time[rows] = np.where(after > limit[rows], np.inf, after)
            rows = rows[(time[rows] > before) & (time[rows] < np.inf)]
            if rows.size == 0:
                return time
        time[rows] = np.inf
        return time

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return the earliest of the models' dropouts; see ``AvailabilityModel``."""
        return reduce(_earlier, (model.dropout(ids, participation) for model in self._models))


def _earlier(a: Dropout, b: Dropout) -> Dropout:
    progress_a = np.where(a.stage == NO_STAGE, np.inf, a.stage + a.fraction)
    progress_b = np.where(b.stage == NO_STAGE, np.inf, b.stage + b.fraction)
    first = progress_a <= progress_b
    return Dropout(np.where(first, a.stage, b.stage), np.where(first, a.fraction, b.fraction))


class Grouped:
    """A fleet of groups; each device follows the model of its own.

    Parameters
    ----------
    group : uint8[devices], the group of each device, an index into ``models``.
    models : one for each group; groups of the same availability may share theirs.
    """

    def __init__(self, group: npt.NDArray[np.uint8], models: Sequence[AvailabilityModel]) -> None:
        self._group, self._models = group, tuple(models)

    def available(self, ids: Ids, t_s: float | Floats) -> Bools:
        """Return bool[n]; see :class:`~edge.device.availability.base.AvailabilityModel`."""
        return self._each(lambda model, i, t: model.available(i, t), ids, t_s, np.bool_)

    def until(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n]; see ``AvailabilityModel``."""
        return self._each(lambda model, i, t: model.until(i, t), ids, t_s, np.float64)

    def next_available(self, ids: Ids, t_s: float | Floats) -> Floats:
        """Return float64[n]; see ``AvailabilityModel``."""
        return self._each(lambda model, i, t: model.next_available(i, t), ids, t_s, np.float64)

    def dropout(self, ids: Ids, participation: Counter) -> Dropout:
        """Return where each participation is broken off; see ``AvailabilityModel``."""
        stage, fraction = np.empty(ids.shape, np.int8), np.empty(ids.shape)
        for model, rows in self._rows(ids):
            of_rows = participation[rows] if isinstance(participation, np.ndarray) else participation
            stage[rows], fraction[rows] = model.dropout(ids[rows], of_rows)
        return Dropout(stage, fraction)

    def _each(
        self,
        ask: Callable[[_Model, Ids, float | Floats], npt.NDArray[_T]],
        ids: Ids,
        t_s: float | Floats,
        dtype: type[_T],
    ) -> npt.NDArray[_T]:
        result = np.empty(ids.shape, dtype)
        for model, rows in self._rows(ids):
            result[rows] = ask(model, ids[rows], t_s[rows] if isinstance(t_s, np.ndarray) else t_s)
        return result

    def _rows(self, ids: Ids) -> Iterator[tuple[_Model, npt.NDArray[np.intp]]]:
        """Yield each model that some of ``ids`` follow, with the rows of those."""
        group = self._group[ids]
        for code in np.flatnonzero(np.bincount(group, minlength=len(self._models))):
            yield self._models[code], np.flatnonzero(group == code)
