"""Groups of devices, each with an availability of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edge.core.rng import Counter
from edge.device.availability.base import AvailabilityModel, Bools, Dropout, Floats, Ids

_T = TypeVar("_T", np.bool_, np.float64)
_Model = AvailabilityModel


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
