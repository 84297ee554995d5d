"""Public features of items, standardised, in the order of a store's items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.core.errors import DataError
from edge.data.store import Labels, hash_arrays

_LARGEST = 1e150
_LEAST_RELATIVE_SPREAD = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class ItemFeatures:
    """What is publicly known of every item of a catalogue. Read-only.

    Attributes
    ----------
    names : the d features.
    values : float32 [n_items, d], mean 0 and variance 1 over the known items; zeros for the others. A feature
        that is the same for all known items is zero.
    known : bool [n_items], whether the source says anything of the item.
    titles : n_items names for people, empty for unknown items; None where the source has none.
    source : where the features come from: a path, or ``synthetic``.

    Raises
    ------
    DataError
        when shapes or types contradict each other, names repeat, or a value is not finite.
    """

    names: tuple[str, ...]
    values: npt.NDArray[np.float32]
    known: npt.NDArray[np.bool_]
    titles: tuple[str, ...] | None
    source: str

    def __post_init__(self) -> None:
        if self.values.dtype != np.float32 or self.values.ndim != 2:
            raise DataError(f"{self.source}: features must be float32 [items, d], not {self.values.dtype}")
        items, d = self.values.shape
        if len(self.names) != d or len(set(self.names)) != d:
            raise DataError(f"{self.source}: {d} features need as many different names, not {self.names}")
        if self.known.shape != (items,) or self.known.dtype != np.bool_:
            raise DataError(f"{self.source}: known must be bool[{items}], one flag per item")
        if self.titles is not None and len(self.titles) != items:
            raise DataError(f"{self.source}: {len(self.titles)} titles for {items} items; give one per item")
        if not np.isfinite(self.values).all():
            raise DataError(f"{self.source}: a feature is not a finite number")
        if self.values[~self.known].any():
            raise DataError(f"{self.source}: an unknown item has features; they must be zero")
        for name in ("values", "known"):
            view = getattr(self, name).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.values.nbytes + self.known.nbytes

    def content_hash(self) -> str:
        """Return 32 hexadecimal digits over names, values, known items and titles, but not the source."""
        titles = None if self.titles is None else np.array(self.titles, dtype=np.str_)
        return hash_arrays(
            [
                ("names", np.array(self.names, dtype=np.str_)),
                ("values", self.values),
                ("known", self.known),
                ("titles", titles),
            ]
        )


def standardise(raw: npt.NDArray[np.float64], known: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Return features with mean 0 and variance 1 over the known items.

    Parameters
    ----------
    raw : float64 [items, d]; NaN, where a known item lacks a feature, becomes the feature's mean (0).
        Rows of unknown items are not looked at.
    known : bool [items].

    Returns
    -------
    float32 [items, d]. Unknown items are all zeros, and so is a feature without spread (to a billionth of its
    size) or without any value.

    Raises
    ------
    DataError
        naming the column (from 0) of a value that is infinite or beyond 1e150.
    """
    chosen = raw[known]
    bad = np.flatnonzero((np.abs(chosen) > _LARGEST).any(axis=0))
    if bad.size:
        raise DataError(f"feature column {bad[0]}: a value is infinite or beyond {_LARGEST:g}; scale it down")
    present = ~np.isnan(chosen)
    counts = np.maximum(present.sum(axis=0), 1)
    means = np.where(present, chosen, 0.0).sum(axis=0) / counts
    centred = np.where(present, chosen - means, 0.0)
    # The variance counts filled cells as well: they are items of the mean.
    spread = np.sqrt((centred**2).mean(axis=0)) if len(chosen) else np.zeros(raw.shape[1])
    scaled = np.divide(
        centred, spread, out=np.zeros_like(centred), where=spread > _LEAST_RELATIVE_SPREAD * np.abs(means)
    )
    values = np.zeros(raw.shape, np.float32)
    values[known] = scaled
    return values


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """Features as a source has them, before alignment: one row per item of the source, no item twice.

    Attributes
    ----------
    ids : labels [rows], as in :attr:`edge.data.store.RatingStore.item_ids`.
    names : the d columns.
    raw : float64 [rows, d]; NaN where a value is missing.
    titles : a name per row, or None.
    source : path, for messages.
    """

    ids: Labels
    names: tuple[str, ...]
    raw: npt.NDArray[np.float64]
    titles: Sequence[str] | None
    source: str


def align(table: FeatureTable, item_ids: Labels | None) -> ItemFeatures:
    """Bring a table's rows into the order of a store's items, and standardise over those.

    ``item_ids`` [n_items] are the store's labels. Whole numbers and their plain text ("7", not "007") match.

    Raises
    ------
    DataError
        when the store has no labels, or shares no item with the table.
    """
    if item_ids is None:
        raise DataError(
            f"{table.source}: the ratings have no item ids to match features with; they were generated,"
            " so use synthetic features"
        )
    row_of = {str(label): row for row, label in enumerate(table.ids.tolist())}
    rows = np.array([row_of.get(str(label), -1) for label in item_ids.tolist()], dtype=np.int64)
    known = rows >= 0
    if not known.any():
        theirs, ours = table.ids[:1].tolist(), item_ids[:1].tolist()
        raise DataError(
            f"{table.source}: none of its items is rated; its ids look like {theirs}, those of the ratings"
            f" like {ours}; use the features of the same data set"
        )
    raw: npt.NDArray[np.float64] = np.zeros((len(rows), len(table.names)))
    raw[known] = table.raw[rows[known]]
    titles: tuple[str, ...] | None = None
    if table.titles is not None:
        titles = tuple(table.titles[row] if row >= 0 else "" for row in rows.tolist())
    return ItemFeatures(table.names, standardise(raw, known), known, titles, table.source)
