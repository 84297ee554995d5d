"""How far the scores and lists of an exported model are from those of the formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.errors import ParityError
from edge.onnx.recommenders import NOTHING_LEFT


@dataclass(frozen=True, slots=True, eq=False)
class RowParity:
    """Largest differences in each row, float64 [n] each; relative to the larger magnitude, or to 1.

    Scores may be anywhere, near zero too, where a share of them says nothing: below 1 it is one of 1.
    """

    max_absolute: npt.NDArray[np.float64]
    max_relative: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two scores may be apart: ``absolute`` + ``relative`` of the larger magnitude."""

    absolute: float
    relative: float

    def of(self, first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return what is allowed between each two scores, float64 of their shape."""
        return np.asarray(self.absolute + self.relative * np.maximum(np.abs(first), np.abs(second)))


def check_rows(
    expected: npt.NDArray[Any],
    found: npt.NDArray[Any],
    tolerance: Tolerance,
    named: Callable[[tuple[int, ...]], str],
) -> RowParity:
    """Compare scores element by element: |found − expected| ≤ tolerance. Return the differences of each row.

    ``named`` gives what to call the score at a place in errors.

    Raises
    ------
    ParityError
        For other shapes, values that are not finite, and any element beyond the tolerance, naming the worst.
    """
    if expected.shape != found.shape:
        raise ParityError(f"{list(found.shape)} scores where the formula gives {list(expected.shape)}")
    a, b = expected.astype(np.float64, copy=False), found.astype(np.float64)
    for what, values in (("the formula gives", a), ("the model gives", b)):
        if not np.isfinite(values).all():
            worst = _place(int(np.isfinite(values).argmin()), values.shape)
            raise ParityError(f"{named(worst)}: {what} {values[worst]}, which cannot be compared")
    rows = a.shape[0] if a.ndim else 1
    if a.size == 0:
        return RowParity(np.zeros(rows), np.zeros(rows))
    apart = np.abs(a - b)
    beyond = apart - tolerance.of(a, b)
    if beyond.max() > 0:
        worst = _place(int(beyond.argmax()), a.shape)
        raise ParityError(
            f"{named(worst)} is {b[worst]:.9g}, the formula gives {a[worst]:.9g}: {apart[worst]:.3g} apart, "
            f"beyond the tolerance of {tolerance.absolute:g} + {tolerance.relative:g} of the score"
        )
    larger = np.maximum(np.maximum(np.abs(a), np.abs(b)), 1.0)
    share = apart / larger
    return RowParity(apart.reshape(rows, -1).max(axis=1), share.reshape(rows, -1).max(axis=1))


def _place(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(index) for index in np.unravel_index(flat, shape))


def check_lists(
    expected: npt.NDArray[np.float64],
    top_items: npt.NDArray[np.int64],
    rated: tuple[npt.NDArray[np.intp], npt.NDArray[np.integer[Any]]],
    tolerance: Tolerance,
    named: Callable[[tuple[int, ...]], str],
) -> None:
    """Check that each list is a ranking of what the formula gives, up to scores within the tolerance.

    Parameters
    ----------
    expected : float64 [n, n_items], finite.
    top_items : int64 [n, top], best first; :data:`NOTHING_LEFT` where no item is left.
    rated : row and item of everything that must not be in a list, integers [r] each.
    tolerance : of two scores. An item may stand where another should if these two are within twice that of
        each other: either score may be wrong by once.
    named : what to call the entry at (row, place in the list) in errors.

    Raises
    ------
    ParityError
        Naming the first entry that a device has rated, that stands twice, or that is not the best left.
    """
    devices, n_items = expected.shape
    top = top_items.shape[1]
    left = np.array(expected)
    left[rated] = -np.inf
    width = min(top, n_items)
    best = np.full((devices, top), -np.inf)
    best[:, :width] = -np.sort(np.partition(-left, width - 1, axis=1)[:, :width], axis=1)
    inside = (top_items >= 0) & (top_items < n_items)
    found = np.take_along_axis(left, np.where(inside, top_items, 0), axis=1)
    found = np.where(inside, found, -np.inf)
    # −inf is right where nothing is left, and nowhere else; a rated item is −inf, too, but never listed.
    listed = np.isfinite(best)
    with np.errstate(invalid="ignore"):
        wrong = np.where(listed, ~(np.abs(found - best) <= 2 * tolerance.of(found, best)), False)
    wrong |= np.where(listed, ~np.isfinite(found), top_items != NOTHING_LEFT)
    order = np.sort(np.where(listed, top_items, -1 - np.arange(top)), axis=1)
    twice = np.zeros(devices, np.bool_)
    twice[:] = (order[:, 1:] == order[:, :-1]).any(axis=1)
    if twice.any():
        raise ParityError(f"{named((int(twice.argmax()), 0))}: an item stands twice in this list")
    if wrong.any():
        row, at = _place(int(wrong.argmax()), wrong.shape)
        raise ParityError(
            f"{named((row, at))} is item {top_items[row, at]}, which the formula gives {found[row, at]:.9g}; "
            f"the best that is left has {best[row, at]:.9g}"
        )
