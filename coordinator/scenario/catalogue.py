"""What the items of a run are called in its data, kept beside the model for its later use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.scenario.schema import Scenario
from edge.data.store import RatingStore
from edge.onnx.metadata import ModelInfo


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


def model_info(
    name: str,
    scenario: Scenario,
    catalogue: Mapping[str, Any],
    n_items: int,
    feature_names: Sequence[str] = (),
) -> ModelInfo:
    """Return what the model files of a run say about themselves.

    Parameters
    ----------
    name : what to call the scenario.
    scenario : of the run.
    catalogue : from :func:`catalogue_facts`.
    n_items : of the model.
    feature_names : of what masks read.
    """
    labels, limits, titles = (catalogue[entry] for entry in ("labels", "rating_range", "titles"))
    return ModelInfo(
        scenario=name,
        seed=scenario.seed,
        privacy="none" if scenario.privacy is None else scenario.privacy.mechanism,
        n_items=n_items,
        feature_names=tuple(feature_names),
        item_labels=None if labels is None else tuple(labels),
        rating_range=None if limits is None else (limits[0], limits[1]),
        titles=None if titles is None else tuple(titles),
    )
