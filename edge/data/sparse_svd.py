"""Truncated singular value decomposition of a sparse matrix, in numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_OVERSAMPLING = 20
_POWER_PASSES = 15


@dataclass(frozen=True, slots=True, eq=False)
class SparseMatrix:
    """A matrix by its entries that are not zero.

    Attributes
    ----------
    rows, columns : int64 [entries].
    values : float64 [entries].
    shape : numbers of rows and columns.
    """

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    shape: tuple[int, int]

    @property
    def transposed(self) -> SparseMatrix:
        """The transpose."""
        return SparseMatrix(self.columns, self.rows, self.values, self.shape[::-1])

    def times(self, dense: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the product with ``dense`` float64 [columns, k], float64 [rows, k]."""
        # A column at a time: bincount needs no buffer of entries × k.
        products = [
            np.bincount(self.rows, self.values * column[self.columns], self.shape[0])
            for column in np.ascontiguousarray(dense.T)
        ]
        return np.stack(products, axis=1)


def truncated_svd(
    matrix: SparseMatrix, components: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the k = ``components`` largest singular values and vectors: U [rows, k], s [k], V [columns, k].

    Randomised subspace iteration with 20 spare directions and 15 passes (Halko, Martinsson & Tropp 2011,
    algorithms 4.4 and 5.1). The sign of each pair of vectors is that which makes the entry of V with the
    largest magnitude positive.

    Raises
    ------
    ValueError
        when ``components`` is not 1 … the smaller side of the matrix.
    """
    if not 1 <= components <= min(matrix.shape):
        raise ValueError(f"components must be 1 … {min(matrix.shape)}, not {components}")
    width = min(components + _OVERSAMPLING, *matrix.shape)
    basis = matrix.times(rng.standard_normal((matrix.shape[1], width)))
    for _ in range(_POWER_PASSES):
        basis, _ = np.linalg.qr(basis)
        across, _ = np.linalg.qr(matrix.transposed.times(basis))
        basis = matrix.times(across)
    basis, _ = np.linalg.qr(basis)
    # The projection is small and wide; its transpose is what the sparse product gives.
    right, values, left = np.linalg.svd(matrix.transposed.times(basis), full_matrices=False)
    right, values = right[:, :components], values[:components]
    signs = np.sign(right[np.argmax(np.abs(right), axis=0), np.arange(components)])
    return basis @ left.T[:, :components] * signs, values, right * signs
