"""Which items an upload says that its user has rated: the rows that it changes, and their signs.

A device uploads changes of the rows of items. Where it draws no items besides, the rows that are not zero
*are* the rated ones. Where it draws negatives, all rows of one user are multiples of one vector, the user's
own, by the slope of the loss at each item, and that has one sign for positives and another for negatives: the
first left singular vector of the upload separates them, and the fewer are the positives. Neither needs any
training, the ratings or the model. Of a sum over many devices the same is read, and worth less.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_ROUNDING = 1e-6
"""Of the largest number of an upload: what is no more is taken for a zero that was rounded or encrypted."""


def rated_rows(rows: npt.NDArray[Any], *, drawn: bool) -> npt.NDArray[np.bool_]:
    """Return which rows of an upload are taken for those of rated items, bool [n].

    Parameters
    ----------
    rows : float [n, width], the changes of n items; all zeros where an item is not touched.
    drawn : whether devices draw negatives, more of them than they have positives.

    Returns
    -------
    With ``drawn``, of the rows that are not zero those whose sign in the first left singular vector is rarer;
    of signs that are equally frequent that of the first row. All of them if they have one sign. Nothing of
    rows that are not finite.
    """
    largest = float(np.abs(rows).max(initial=0.0))
    if not 0.0 < largest < np.inf:
        return np.zeros(len(rows), np.bool_)
    touched = np.asarray((np.abs(rows) > _ROUNDING * largest).any(axis=1))
    if not drawn:
        return touched
    places = np.flatnonzero(touched)
    left = np.linalg.svd(rows[places].astype(np.float64) / largest, full_matrices=False)[0][:, 0]
    alike = (left > 0) == (left[0] > 0)
    fewer = alike if np.count_nonzero(alike) * 2 <= len(alike) else ~alike
    found = np.zeros(len(rows), np.bool_)
    found[places[fewer] if fewer.any() else places] = True
    return found
