"""RMSE, MAE and the share of ratings within half a star, over any number of batches and groups."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Groups = npt.NDArray[np.integer]

_WITHIN = 0.5


class RatingErrors:
    """Sums of errors by group of users (class of device, network, all together …).

    Sums are float64, added in the order of the calls: the same batches in the same order give the same bits.

    Parameters
    ----------
    n_groups : number of groups; one holds everybody.
    """

    def __init__(self, n_groups: int = 1) -> None:
        if n_groups < 1:
            raise ValueError(f"n_groups must be at least 1, not {n_groups}")
        self._n_groups = n_groups
        self._counts = np.zeros(n_groups, dtype=np.int64)
        self._squares = np.zeros(n_groups)
        self._absolutes = np.zeros(n_groups)
        self._within = np.zeros(n_groups, dtype=np.int64)

    def add(
        self,
        predicted: npt.NDArray[np.floating],
        actual: npt.NDArray[np.floating],
        groups: Groups | None = None,
    ) -> None:
        """Add predictions (float[N]) of ratings (float[N]); ``groups`` int[N], or None for group 0.

        Raises
        ------
        ValueError
            when the shapes differ or a group is outside ``0 .. n_groups - 1``.
        """
        if predicted.shape != actual.shape or predicted.ndim != 1:
            raise ValueError(f"predicted {predicted.shape} and actual {actual.shape} must be equally long")
        index = group_index(groups, predicted.size, self._n_groups)
        errors = predicted.astype(np.float64) - actual
        self._counts += np.bincount(index, minlength=self._n_groups)
        self._squares += np.bincount(index, errors * errors, self._n_groups)
        sizes = np.abs(errors)
        self._absolutes += np.bincount(index, sizes, self._n_groups)
        self._within += np.bincount(index[sizes <= _WITHIN], minlength=self._n_groups)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Ratings per group, int64[n_groups]."""
        return self._counts.copy()

    def rmse(self) -> npt.NDArray[np.float64]:
        """Root of the mean squared error per group; nan for a group without ratings."""
        return np.asarray(np.sqrt(mean(self._squares, self._counts)))

    def mae(self) -> npt.NDArray[np.float64]:
        """Mean absolute error per group; nan for a group without ratings."""
        return mean(self._absolutes, self._counts)

    def accuracy(self) -> npt.NDArray[np.float64]:
        """Share of ratings with an error of at most half a star (Singhal et al. 2021, section 5)."""
        return mean(self._within.astype(np.float64), self._counts)

    def table(self) -> npt.NDArray[np.float64]:
        """Return the sums as numbers that can be added up over users, float64 [n_groups, 4].

        Ratings, squared errors, absolute errors, and ratings within half a star.
        """
        return np.stack(
            (self._counts, self._squares, self._absolutes, self._within), axis=1, dtype=np.float64
        )

    def with_table(self, table: npt.NDArray[np.float64]) -> RatingErrors:
        """Return the sums that a :meth:`table` holds, or a sum of tables; counts are rounded."""
        made = RatingErrors(len(table))
        made._counts, made._within = (np.rint(table[:, i]).astype(np.int64) for i in (0, 3))
        made._squares, made._absolutes = table[:, 1].copy(), table[:, 2].copy()
        return made

    def results(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return ``{"rmse": …, "mae": …, "accuracy": …}``, each float64[n_groups]."""
        return {"rmse": self.rmse(), "mae": self.mae(), "accuracy": self.accuracy()}


def group_index(groups: Groups | None, size: int, n_groups: int) -> npt.NDArray[np.int64]:
    """Return ``groups`` as int64[size], all zero for None, or raise ValueError."""
    if groups is None:
        return np.zeros(size, dtype=np.int64)
    if groups.shape != (size,):
        raise ValueError(f"groups must have {size} entries, not {groups.shape}")
    if size and (groups.min() < 0 or groups.max() >= n_groups):
        raise ValueError(f"a group is outside 0 .. {n_groups - 1}")
    return groups.astype(np.int64)


def mean(sums: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return sums / counts, nan where there is nothing to average."""
    return np.asarray(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0))
