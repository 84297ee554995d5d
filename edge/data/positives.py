"""Implicit feedback out of ratings: what was rated highly is kept, the rest is as if never rated."""

from __future__ import annotations

import dataclasses

import numpy as np

from edge.data.store import RatingStore
from edge.errors import DataError


def keep_positives(store: RatingStore, threshold: float) -> RatingStore:
    """Return the ratings of ``threshold`` or more, with the values they have.

    Users left without any are dropped, and the others numbered anew in the same order. All items stay in the
    catalogue.

    Raises
    ------
    DataError
        when no rating reaches the threshold.
    """
    kept = store.select(store.decoded() >= threshold)
    if kept.n_ratings == 0:
        highest = float(store.decoded().max()) if store.n_ratings else float("nan")
        raise DataError(
            f"no rating is {threshold:g} or more, the highest is {highest:g}; lower data.positive"
        )
    users = np.flatnonzero(kept.counts)
    return dataclasses.replace(
        kept,
        indptr=np.append(kept.indptr[users], kept.n_ratings),
        user_ids=None if kept.user_ids is None else kept.user_ids[users],
    )
