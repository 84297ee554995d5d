"""Generated ratings: long-tailed popularity, uneven activity and low-rank taste; one generator for all sizes.

A user u with factors p_u and an item i with factors q_i (rank r, independent normals) meet in

    score = μ + b_u + b_i + p_u · q_i + noise,      rating = score rounded to a whole star, 1 … 5

with every part's standard deviation given in stars. User factors are product codes (Jégou, Douze & Schmid
2011): the first and the second half of p_u are each one of 128 random vectors, so there are 16,384 different
tastes of exact rank r, and p_u · q_i is the sum of two entries of byte tables.

*What* a user rates follows popularity and taste. Item weights are Zipf–Mandelbrot, w ∝ (rank + 0.01 · items)
to the power −exponent, the ranks dealt to the items at random, times exp(affinity) of the user's coarse
taste. The user's n ratings are a stratified sample: the distribution, in the order of item indices, is cut
into n equal parts and gives one draw a part. Weights are capped at 1/n first (as in sampling proportional to
size without replacement), so an item spans at most one part's width; when two neighbouring draws still meet,
the later one moves to the next free item. So the items of a user come out distinct and in order without
sorting.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from edge.core.rng import stream, stream_key
from edge.data.features import ItemFeatures, standardise
from edge.data.store import Items, RatingStore, empty_items, item_dtype

MAX_ITEMS = 131_072
"""Largest catalogue that can be generated: the quantile tables keep two entries per item."""
_CODES = 128
_SECTORS = 4
_TABLES = ("synthetic-ratings", "tables")
_UNITS_PER_STAR = 32
_NOISE_LEVELS = 256
_CHUNK_USERS = 1024
_HEAD_FLATTENING = 0.01
_AFFINITY_PER_STAR = 1.0
_FIRST_RATING_S = 946_684_800
"""2000-01-01, when everybody begins to rate."""
_BETWEEN_RATINGS_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticRatings:
    """What to generate.

    Attributes
    ----------
    users, items : sizes. A user rates at most half of the catalogue.
    ratings_per_user : mean number of ratings, before the cut at half of the catalogue.
    min_ratings_per_user : least number of ratings.
    activity_sigma : sigma of the lognormal part of a user's number of ratings (0: everyone the same).
    popularity_exponent : exponent of the long tail; 0 makes all items equally popular.
    taste_rank : rank r of the taste, at least 2.
    mean_rating : μ, stars.
    taste_sd, user_bias_sd, item_bias_sd, noise_sd : standard deviations in stars.
    timestamps : give every rating a time; the ratings are the same without.

    Raises
    ------
    ValueError
        naming the setting and what it may be.
    """

    users: int
    items: int
    ratings_per_user: float
    min_ratings_per_user: int = 5
    activity_sigma: float = 0.8
    popularity_exponent: float = 1.0
    taste_rank: int = 4
    mean_rating: float = 3.5
    taste_sd: float = 0.9
    user_bias_sd: float = 0.35
    item_bias_sd: float = 0.35
    noise_sd: float = 0.45
    timestamps: bool = False

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ValueError(f"users must be at least 1, not {self.users}")
        if not 2 <= self.items <= MAX_ITEMS:
            raise ValueError(f"items must be 2 … {MAX_ITEMS}, not {self.items}")
        if not 1 <= self.min_ratings_per_user <= self.ratings_per_user <= self.items / 2:
            raise ValueError(
                "1 ≤ min_ratings_per_user ≤ ratings_per_user ≤ items / 2 must hold, not"
                f" 1 ≤ {self.min_ratings_per_user} ≤ {self.ratings_per_user} ≤ {self.items / 2}"
            )
        if not 2 <= self.taste_rank <= 64:
            raise ValueError(f"taste_rank must be 2 … 64, not {self.taste_rank}")
        if not 1.0 <= self.mean_rating <= 5.0:
            raise ValueError(f"mean_rating must be 1 … 5 stars, not {self.mean_rating}")
        for name in ("taste_sd", "user_bias_sd", "item_bias_sd", "noise_sd"):
            if not 0.0 <= getattr(self, name) <= 2.0:
                raise ValueError(f"{name} must be 0 … 2 stars, not {getattr(self, name)}")
        for name in ("activity_sigma", "popularity_exponent"):
            if not 0.0 <= getattr(self, name) <= 3.0:
                raise ValueError(f"{name} must be 0 … 3, not {getattr(self, name)}")


def generate_ratings(spec: SyntheticRatings, *, seed: int, workers: int | None = None) -> RatingStore:
    """Generate the ratings of ``spec``: a store with uint8 ratings 1 … 5, without labels.

    Timestamps, where they are wanted, are an hour apart in a random order of each user's ratings.

    Parameters
    ----------
    spec : what to generate.
    seed : the run's seed.
    workers : threads (default: one a core). The result does not depend on it.
    """
    rng = stream(seed, "synthetic-ratings", "users")
    counts = _activity(spec, rng)
    indptr = np.zeros(spec.users + 1, dtype=np.int64)
    np.cumsum(counts, out=indptr[1:])
    codes = rng.integers(0, _CODES, size=(2, spec.users), dtype=np.uint8)
    bias = rng.normal(spec.mean_rating, spec.user_bias_sd, spec.users) * _UNITS_PER_STAR
    generator = _Generator(spec, seed, indptr, codes, np.rint(bias).astype(np.int16))
    chunks = range(-(-spec.users // _CHUNK_USERS))
    if workers == 1 or len(chunks) == 1:
        for chunk in chunks:
            generator.fill(chunk)
    else:
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            for _ in pool.map(generator.fill, chunks):
                pass
    return RatingStore(
        indptr=indptr,
        items=generator.items,
        ratings=generator.ratings,
        n_items=spec.items,
        timestamps=generator.timestamps,
    )


def _activity(spec: SyntheticRatings, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return ratings per user, int64[users]: min + LogNormal of the mean that is left, rounded at random."""
    left = spec.ratings_per_user - spec.min_ratings_per_user
    normals = rng.standard_normal(spec.users)
    # E[exp(σz − σ²/2)] = 1.
    extra = left * np.exp(spec.activity_sigma * normals - spec.activity_sigma**2 / 2)
    counts = np.floor(extra + rng.random(spec.users)).astype(np.int64) + spec.min_ratings_per_user
    return np.minimum(counts, max(spec.items // 2, 1))


class _Generator:
    """Tables shared by all chunks of users, and the arrays that they fill."""

    items: Items
    ratings: npt.NDArray[np.uint8]
    timestamps: npt.NDArray[np.int64] | None = None

    def __init__(
        self,
        spec: SyntheticRatings,
        seed: int,
        indptr: npt.NDArray[np.int64],
        codes: npt.NDArray[np.uint8],
        user_bias: npt.NDArray[np.int16],
    ) -> None:
        self._spec = spec
        self._seed = seed
        self._indptr = indptr
        self._codes = codes
        self._user_bias = user_bias
        self.items = empty_items(int(indptr[-1]), spec.items)
        self.ratings = np.empty(int(indptr[-1]), dtype=np.uint8)
        if spec.timestamps:
            self.timestamps = np.empty(int(indptr[-1]), dtype=np.int64)
        rng = stream(seed, *_TABLES)
        vectors, factors = _tastes(spec, rng)
        affinity = vectors[0] @ factors[0]
        item_bias = rng.normal(0.0, spec.item_bias_sd, spec.items)
        self._taste = (_to_bytes(affinity + item_bias), _to_bytes(vectors[1] @ factors[1]))
        self._noise = _to_bytes(spec.noise_sd * _normal_quantiles(_NOISE_LEVELS))
        ranks = rng.permutation(spec.items) + 1.0
        popularity = (ranks + _HEAD_FLATTENING * spec.items) ** -spec.popularity_exponent
        weights = popularity * np.exp(_AFFINITY_PER_STAR * _sector_affinity(affinity))
        largest = int(np.diff(indptr).max())
        self._n_levels = int(self._levels(np.array([largest]))[0]) + 1
        self._entries = 1 << max(12, min(18, (8 * spec.items - 1).bit_length()))
        # One spare entry a row: float32 may round the last draw of a user up to the end.
        self._quantiles = np.empty(
            (_SECTORS * self._n_levels, self._entries + 1), dtype=item_dtype(spec.items)
        )
        for row in range(self._quantiles.shape[0]):
            sector, level = divmod(row, self._n_levels)
            most = min(spec.min_ratings_per_user * 2 ** (level + 1), largest)
            _fill_quantiles(_capped(weights[sector], 1.0 / most), self._quantiles[row])

    def _levels(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Activity levels double: level 0 holds min … 2·min − 1 ratings, and so on."""
        return np.asarray(np.frexp(counts / self._spec.min_ratings_per_user)[1].astype(np.int64) - 1)

    def fill(self, chunk: int) -> None:
        """Generate the ratings of one chunk of users, from the chunk's own stream."""
        n_items = self._spec.items
        first = chunk * _CHUNK_USERS
        last = min(first + _CHUNK_USERS, self._spec.users)
        start, end = int(self._indptr[first]), int(self._indptr[last])
        size = end - start
        counts = np.diff(self._indptr[first : last + 1])
        codes = self._codes[:, first:last].astype(np.int32)
        sectors = codes[0] // (_CODES // _SECTORS)
        # Per user, then looked up per rating.
        step = (self._entries / counts).astype(np.float32)
        starts = (self._indptr[first:last] - start).astype(np.int32)
        row = ((sectors * self._n_levels + self._levels(counts)) * (self._entries + 1)).astype(np.int32)
        slot = np.arange(last - first, dtype=np.int32) * np.int32(n_items)
        taste = codes * np.int32(n_items)

        # SFC64 under the stream's key: four times quicker than Philox, and this is the bulk of the draws.
        key = stream_key(self._seed, "synthetic-ratings", "chunk", chunk)
        words = np.random.Generator(np.random.SFC64(key)).integers(
            0, 2**64, size=(size + 1) // 2, dtype=np.uint64
        )
        random = words.astype("<u8", copy=False).view("<u2")[: 2 * size].reshape(size, 2)
        rank = np.arange(size, dtype=np.int32)
        rank -= np.repeat(starts, counts)
        draw = random[:, 0] * np.float32(2.0**-16)
        draw += rank
        draw *= np.repeat(step, counts)
        index = draw.astype(np.int32)
        index += np.repeat(row, counts)
        item = self._quantiles.reshape(-1).take(index, mode="clip").astype(np.int32)
        # Every user gets a range of numbers of its own, so that one running maximum serves them all. "− rank"
        # turns "strictly rising" into "not falling"; the ceiling leaves room for the draws that follow.
        shift = np.repeat(slot, counts)
        shift -= rank
        item += shift
        np.minimum(item, np.repeat(slot + (n_items - counts).astype(np.int32), counts), out=item)
        np.maximum.accumulate(item, out=item)
        item -= shift
        self.items[start:end] = item

        score = self._noise.take(random[:, 1] & np.uint16(_NOISE_LEVELS - 1), mode="clip").astype(np.int16)
        score += np.repeat(self._user_bias[first:last], counts)
        for half in range(2):
            np.add(item, np.repeat(taste[half], counts), out=index)
            score += self._taste[half].reshape(-1).take(index, mode="clip")
        score += np.int16(_UNITS_PER_STAR // 2)
        score >>= np.int16(_UNITS_PER_STAR.bit_length() - 1)
        np.clip(score, 1, 5, out=score)
        self.ratings[start:end] = score
        if self.timestamps is not None:
            self.timestamps[start:end] = self._times(chunk, counts)

    def _times(self, chunk: int, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the times of a chunk of users with so many ratings, int64 [ratings], seconds since 1970."""
        users = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum(counts) - counts
        rank = np.arange(len(users)) - np.repeat(starts, counts)
        times = np.empty(len(users), np.int64)
        order = np.lexsort(
            (stream(self._seed, "synthetic-ratings", "times", chunk).random(len(users)), users)
        )
        times[order] = _FIRST_RATING_S + _BETWEEN_RATINGS_S * rank
        return times


def item_tastes(spec: SyntheticRatings, seed: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what the items of :func:`generate_ratings` are like under the same ``spec`` and ``seed``.

    Returns
    -------
    q_i of every item, float64 [rank, items] in stars, and the mean over each of the four sectors of users of
    the first half of p · q_i, float64 [4, items] in stars.
    """
    vectors, factors = _tastes(spec, stream(seed, *_TABLES))
    return np.concatenate(factors), _sector_affinity(vectors[0] @ factors[0])


def _tastes(
    spec: SyntheticRatings, rng: np.random.Generator
) -> tuple[list[npt.NDArray[np.float64]], list[npt.NDArray[np.float64]]]:
    """Draw both halves of the users' code vectors [codes, width] and of the item factors [width, items]."""
    halves = (spec.taste_rank - spec.taste_rank // 2, spec.taste_rank // 2)
    vectors = [_codebook(rng.standard_normal((_CODES, width))) for width in halves]
    # Var(p·q) = rank · Var(q) for unit p.
    item_sd = spec.taste_sd / math.sqrt(spec.taste_rank)
    return vectors, [rng.normal(0.0, item_sd, (width, spec.items)) for width in halves]


def _sector_affinity(affinity: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean of ``affinity`` float64 [codes, items] over the codes of each sector, [4, items]."""
    sectors = affinity.reshape(_SECTORS, _CODES // _SECTORS, affinity.shape[1])
    return np.asarray(sectors.mean(axis=1))


def _codebook(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the vectors scaled to variance 1 and ordered by direction, so that runs of codes are sectors."""
    vectors = (vectors - vectors.mean(axis=0)) / vectors.std(axis=0)
    if vectors.shape[1] == 1:
        return np.sort(vectors, axis=0)
    order = np.argsort(np.arctan2(vectors[:, 1], vectors[:, 0]), kind="stable")
    return np.asarray(vectors[order])


def _to_bytes(stars: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    return np.clip(np.rint(stars * _UNITS_PER_STAR), -128, 127).astype(np.int8)


def _normal_quantiles(size: int) -> npt.NDArray[np.float64]:
    """Return the mid-quantiles of the standard normal, float64[size]."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((index + 0.5) / size) for index in range(size)])


def _capped(weights: npt.NDArray[np.float64], cap: float) -> npt.NDArray[np.float64]:
    """Return probabilities proportional to ``weights`` float64[m] but at most ``cap`` (cap · m ≥ 1)."""
    descending = np.sort(weights)[::-1]
    tails = np.cumsum(descending[::-1])[::-1]
    # With the k largest at the cap, the others share 1 − k·cap in proportion; take the least k that fits.
    shares = (1.0 - cap * np.arange(weights.size)) * descending / tails
    capped = int(np.argmax(shares <= cap))
    factor = (1.0 - cap * capped) / tails[capped]
    return np.asarray(np.minimum(weights * factor, cap))


def _fill_quantiles(probabilities: npt.NDArray[np.float64], row: Items) -> None:
    """Write the item at each of the row's equally spaced quantiles; the last entry repeats the one before."""
    entries = row.size - 1
    ends = np.rint(np.cumsum(probabilities) * entries).astype(np.int64)
    ends[-1] = entries
    lengths = np.diff(ends, prepend=0)
    row[:-1] = np.repeat(np.arange(probabilities.size), lengths)
    row[-1] = row[-2]


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
