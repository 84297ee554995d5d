"""What the items of a run are called in its data, kept beside the model for its later use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge.data.store import RatingStore


def catalogue_facts(store: RatingStore, titles: Sequence[str] | None) -> dict[str, Any]:
    """Return the contents of ``items.json``.

    ``titles`` is what people call each item, or null where the data does not say. ``labels`` has the id of
    each item in the data, in the order of the model's rows, or null for generated data, whose ids are the
    indices. ``rating_range`` is the lowest and the highest rating; null without any.
    """
    limits = None
    if store.n_ratings:
        codes = store.ratings
        limits = [store.offset + store.scale * float(code) for code in (codes.min(), codes.max())]
    return {
        "labels": None if store.item_ids is None else store.item_ids.tolist(),
        "rating_range": limits,
        "titles": None if titles is None else list(titles),
    }
