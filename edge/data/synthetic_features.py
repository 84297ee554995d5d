"""Features of generated items that say something of their taste, as genres do of films."""

from __future__ import annotations

import numpy as np

from edge.core.rng import stream
from edge.data.features import ItemFeatures, standardise
from edge.data.synthetic import SyntheticRatings, item_tastes


def synthetic_features(spec: SyntheticRatings, *, seed: int, noise: float = 1.0) -> ItemFeatures:
    """Return features of the items that ``generate_ratings(spec, seed=seed)`` rates.

    ``sector-1`` … ``sector-4`` are flags: the sector of users that likes the item best. ``taste-1`` …
    ``taste-r`` are the item's r factors, each with normal noise of ``noise`` times the factor's own standard
    deviation. All items are known. The ratings are those of the seed, whether or not features are made.

    Parameters
    ----------
    spec, seed : as given to :func:`edge.data.synthetic.generate_ratings`.
    noise : from 0, the factors themselves, up.

    Raises
    ------
    ValueError
        when ``noise`` is negative or not finite.
    """
    if not (noise >= 0 and np.isfinite(noise)):
        raise ValueError(f"noise must be finite and 0 or more, not {noise}")
    factors, affinity = item_tastes(spec, seed)
    draws = stream(seed, "synthetic-features").standard_normal(factors.shape)
    noisy = factors + noise * factors.std(axis=1, keepdims=True) * draws
    flags = np.argmax(affinity, axis=0) == np.arange(len(affinity))[:, None]
    names = [f"sector-{number}" for number in range(1, len(affinity) + 1)]
    names += [f"taste-{number}" for number in range(1, len(factors) + 1)]
    known = np.ones(spec.items, dtype=np.bool_)
    raw = np.concatenate([flags.astype(np.float64), noisy]).T
    return ItemFeatures(tuple(names), standardise(raw, known), known, None, "synthetic")
