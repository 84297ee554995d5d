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

A user has a row: how many ratings, its two codes and its mean. The draws of its ratings are hashed counters
under a key of its own, so that the ratings of any users can be made at any time, and those of users that are
never asked for need not be made at all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits, stream, stream_key
from edge.data.features import ItemFeatures, standardise
from edge.data.store import Items, RatingStore, StoredRatings, empty_items, hash_arrays, item_dtype

MAX_ITEMS = 1_048_576
"""Largest catalogue that can be generated: numbers of the items of 1,024 users fit into 31 bits."""
_LARGE, _BLOCK_ITEMS = 131_072, 8_192
"""Of catalogues above the first number, the affinities of so many items are computed at a time."""
Floats = npt.NDArray[np.float64]
KEPT_RATINGS = 16_000_000
"""Up to so many ratings are made at once: 48 MB, and gathered faster than they are made."""
_VERSION = 2
"""Of the generator; other versions make other ratings of the same rows."""
_STARS = 5
_SAMPLED_USERS = 4096
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


class GeneratedRatings(RatingStore):
    """Ratings that follow from the seed and the user: made when they are gathered.

    Everything else of a :class:`RatingStore` holds for it, too. Stores of up to :data:`KEPT_RATINGS` ratings
    make all of them at once and keep them. Of a larger one, whoever asks for more than single users' ratings
    (``items``, ``ratings``, ``timestamps``, :meth:`select` …) has all of them made and kept. Even then
    :meth:`mean` is that of a sample of users, :meth:`limits` are those of the scale, and :meth:`content_hash`
    names what the ratings follow from, for what a store says must not depend on who has asked it before.
    """

    __slots__ = ("_generator", "_known")
    _generator: _Generator
    _known: RatingStore | None

    def __init__(self, generator: _Generator) -> None:
        values: dict[str, Any] = {
            "indptr": generator.indptr,
            "n_items": generator.spec.items,
            "scale": 1.0,
            "offset": 0.0,
            "user_ids": None,
            "item_ids": None,
            "_generator": generator,
            "_known": None,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _whole(self) -> RatingStore:
        known = self._known
        if known is None:
            known = self._generator.store()
            object.__setattr__(self, "_known", known)
        return known

    @property
    def items(self) -> Items:
        """Item indices of all ratings, which are made for it."""
        return self._whole().items

    @property
    def ratings(self) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """All ratings, uint8[nnz], which are made for it."""
        return self._whole().ratings

    @property
    def timestamps(self) -> npt.NDArray[np.int64] | None:
        """Times of all ratings, which are made for it; None where they have none."""
        return self._whole().timestamps if self.timed else None

    @property
    def timed(self) -> bool:
        """Whether ratings have times."""
        return self._generator.spec.timestamps

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""
        return int(self.indptr[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of what is held now."""
        return self._generator.nbytes + (0 if self._known is None else self._known.nbytes)

    def local(self, user: int) -> tuple[Items, npt.NDArray[np.float32]]:
        """Return one user's item indices and ratings, float32."""
        self._require([user])
        found = self.gather(np.array([user]))
        return found.items, found.ratings

    def gather(self, users: npt.NDArray[np.int64], *, timed: bool = False) -> StoredRatings:
        """Return the ratings of ``users``, made for it; see :meth:`RatingStore.gather`."""
        if self._known is not None:
            return self._known.gather(users, timed=timed)
        users = np.asarray(users, dtype=np.int64)
        self._require(users)
        made = self._generator.of(users, timed=timed and self.timed)
        return StoredRatings(made.indptr, made.items, made.ratings.astype(np.float32), made.timestamps)

    def _require(self, users: npt.NDArray[np.int64] | list[int]) -> None:
        if len(users) and (min(users) < 0 or max(users) >= self.n_users):
            raise IndexError(f"a user in the batch is outside 0 .. {self.n_users - 1}")

    def mean(self) -> float:
        """Return the mean rating of a sample of users."""
        users = np.linspace(0, self.n_users - 1, min(self.n_users, _SAMPLED_USERS)).astype(np.int64)
        return float(self._generator.of(users).ratings.mean(dtype=np.float64))

    def limits(self) -> tuple[float, float] | None:
        """Return the lowest and the highest rating of the scale."""
        return 1.0, float(_STARS)

    def item_counts(self) -> npt.NDArray[np.int64]:
        """Return the ratings per item, int64[n_items], made for it."""
        return self._whole().item_counts()

    def content_hash(self) -> str:
        """Return 32 hexadecimal digits over what the ratings follow from."""
        return self._generator.content_hash()


def generate_ratings(spec: SyntheticRatings, *, seed: int, workers: int | None = None) -> RatingStore:
    """Generate the ratings of ``spec``: a store with uint8 ratings 1 … 5, without labels.

    What a user rates, and how, follows from the seed and the user's row alone. Timestamps, where they are
    wanted, are an hour apart in a random order of each user's ratings.

    Parameters
    ----------
    spec : what to generate.
    seed : the run's seed.
    workers : threads (default: one a core). The result does not depend on it.
    """
    generator = _Generator(spec, seed, workers)
    whole = generator.indptr[-1] <= KEPT_RATINGS
    return generator.store() if whole else GeneratedRatings(generator)


def _activity(spec: SyntheticRatings, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return ratings per user, int64[users]: min + LogNormal of the mean that is left, rounded at random."""
    left = spec.ratings_per_user - spec.min_ratings_per_user
    normals = rng.standard_normal(spec.users)
    # E[exp(σz − σ²/2)] = 1.
    extra = left * np.exp(spec.activity_sigma * normals - spec.activity_sigma**2 / 2)
    counts = np.floor(extra + rng.random(spec.users)).astype(np.int64) + spec.min_ratings_per_user
    return np.minimum(counts, max(spec.items // 2, 1))


class _Made(NamedTuple):
    """Ratings of some users, one after the other."""

    indptr: npt.NDArray[np.int64]
    items: Items
    ratings: npt.NDArray[np.uint8]
    timestamps: npt.NDArray[np.int64] | None


class _Generator:
    """A row a user (how many ratings, its taste, its mean), and tables that all users share.

    Attributes
    ----------
    indptr : int64[users + 1], as of a store.
    """

    def __init__(self, spec: SyntheticRatings, seed: int, workers: int | None) -> None:
        self.spec = spec
        self._workers = workers or os.cpu_count() or 1
        self._key = stream_key(seed, "synthetic-ratings", "ratings")
        self._times_key = stream_key(seed, "synthetic-ratings", "times")
        rng = stream(seed, "synthetic-ratings", "users")
        counts = _activity(spec, rng)
        self.indptr = np.zeros(spec.users + 1, dtype=np.int64)
        np.cumsum(counts, out=self.indptr[1:])
        self._codes = rng.integers(0, _CODES, size=(2, spec.users), dtype=np.uint8)
        bias = rng.normal(spec.mean_rating, spec.user_bias_sd, spec.users) * _UNITS_PER_STAR
        self._user_bias = np.rint(bias).astype(np.int16)
        rng = stream(seed, *_TABLES)
        vectors, factors = _tastes(spec, rng)
        item_bias = rng.normal(0.0, spec.item_bias_sd, spec.items)
        self._taste = (_taste_bytes(vectors[0], factors[0], item_bias), _taste_bytes(vectors[1], factors[1]))
        self._noise = _to_bytes(spec.noise_sd * _normal_quantiles(_NOISE_LEVELS))
        ranks = rng.permutation(spec.items) + 1.0
        popularity = (ranks + _HEAD_FLATTENING * spec.items) ** -spec.popularity_exponent
        weights = popularity * np.exp(_AFFINITY_PER_STAR * _sector_affinity(vectors[0], factors[0]))
        largest = int(counts.max())
        self._n_levels = int(self._levels(np.array([largest]))[0]) + 1
        # Eight entries an item or more, of a large catalogue two.
        eight, two = (8 * spec.items - 1).bit_length(), (2 * spec.items - 1).bit_length()
        self._entries = 1 << max(12, min(18, eight), two)
        # One spare entry a row: float32 may round the last draw of a user up to the end.
        self._quantiles = np.empty(
            (_SECTORS * self._n_levels, self._entries + 1), dtype=item_dtype(spec.items)
        )
        for row in range(self._quantiles.shape[0]):
            sector, level = divmod(row, self._n_levels)
            most = min(spec.min_ratings_per_user * 2 ** (level + 1), largest)
            _fill_quantiles(_capped(weights[sector], 1.0 / most), self._quantiles[row])

    @property
    def nbytes(self) -> int:
        """Bytes of rows and tables."""
        rows = (self.indptr, self._codes, self._user_bias)
        return sum(array.nbytes for array in (*rows, *self._taste, self._quantiles))

    def content_hash(self) -> str:
        """Return 32 hexadecimal digits over what the ratings follow from."""
        keys = np.array([self._key, self._times_key], dtype=np.uint64)
        return hash_arrays(
            [
                ("generated", np.array([_VERSION, self.spec.timestamps])),
                ("keys", keys),
                ("indptr", self.indptr),
                ("codes", self._codes),
                ("user_bias", self._user_bias),
                ("quantiles", self._quantiles),
                ("taste", np.concatenate(self._taste)),
                ("noise", self._noise),
            ]
        )

    def store(self) -> RatingStore:
        """Return all ratings, made and kept."""
        made = self.of(np.arange(self.spec.users), timed=self.spec.timestamps)
        return RatingStore(self.indptr, made.items, made.ratings, self.spec.items, timestamps=made.timestamps)

    def of(self, users: npt.NDArray[np.int64], *, timed: bool = False) -> _Made:
        """Return the ratings of ``users``, int64[n], in any order, repeats allowed."""
        indptr = np.zeros(users.size + 1, dtype=np.int64)
        np.cumsum(self.indptr[users + 1] - self.indptr[users], out=indptr[1:])
        size = int(indptr[-1])
        made = _Made(
            indptr,
            empty_items(size, self.spec.items),
            np.empty(size, dtype=np.uint8),
            np.empty(size, dtype=np.int64) if timed else None,
        )
        firsts = range(0, users.size, _CHUNK_USERS)

        def fill(first: int) -> None:
            part = slice(first, min(first + _CHUNK_USERS, users.size))
            self._fill(users[part], slice(int(indptr[part.start]), int(indptr[part.stop])), made)

        if self._workers == 1 or len(firsts) == 1:
            for first in firsts:
                fill(first)
        else:
            with ThreadPoolExecutor(self._workers) as pool:
                for _ in pool.map(fill, firsts):
                    pass
        return made

    def _levels(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Activity levels double: level 0 holds min … 2·min − 1 ratings, and so on."""
        return np.asarray(np.frexp(counts / self.spec.min_ratings_per_user)[1].astype(np.int64) - 1)

    def _fill(self, users: npt.NDArray[np.int64], place: slice, made: _Made) -> None:
        """Make the ratings of a chunk of users, from a key a user; they go to ``place`` of ``made``."""
        n_items = self.spec.items
        size = place.stop - place.start
        counts = self.indptr[users + 1] - self.indptr[users]
        codes = self._codes[:, users].astype(np.int32)
        sectors = codes[0] // (_CODES // _SECTORS)
        # Per user, then looked up per rating.
        step = (self._entries / counts).astype(np.float32)
        starts = (np.cumsum(counts) - counts).astype(np.int32)
        row = ((sectors * self._n_levels + self._levels(counts)) * (self._entries + 1)).astype(np.int32)
        slot = np.arange(users.size, dtype=np.int32) * np.int32(n_items)
        taste = codes * np.int32(n_items)

        rank = np.arange(size, dtype=np.int32)
        rank -= np.repeat(starts, counts)
        random = self._words(users, counts, rank).view("<u2").reshape(size, 2)
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
        made.items[place] = item

        score = self._noise.take(random[:, 1] & np.uint16(_NOISE_LEVELS - 1), mode="clip").astype(np.int16)
        score += np.repeat(self._user_bias[users], counts)
        for half in range(2):
            np.add(item, np.repeat(taste[half], counts), out=index)
            score += self._taste[half].reshape(-1).take(index, mode="clip")
        score += np.int16(_UNITS_PER_STAR // 2)
        score >>= np.int16(_UNITS_PER_STAR.bit_length() - 1)
        np.clip(score, 1, _STARS, out=score)
        made.ratings[place] = score
        if made.timestamps is not None:
            made.timestamps[place] = self._times(users, counts, rank)

    def _words(
        self, users: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], rank: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.uint32]:
        """Return 32 random bits a rating, uint32[ratings]: two ratings share a draw of their user's key."""
        pairs = (counts + 1) // 2
        firsts = np.cumsum(pairs) - pairs
        number = np.arange(int(pairs.sum())) - np.repeat(firsts, pairs)
        drawn = hashed_bits(np.repeat(hashed_bits(self._key, users), pairs), number)
        words = drawn.astype("<u8", copy=False).view("<u4")
        return np.asarray(words.take(rank + np.repeat(2 * firsts, counts), mode="clip"))

    def _times(
        self, users: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], rank: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64]:
        """Return the times of the ratings of users, int64[ratings], seconds since 1970."""
        owners = np.repeat(np.arange(users.size), counts)
        keys = np.repeat(hashed_bits(self._times_key, users), counts)
        order = np.lexsort((hashed_bits(keys, rank.astype(np.int64)), owners))
        times = np.empty(rank.size, np.int64)
        times[order] = _FIRST_RATING_S + _BETWEEN_RATINGS_S * rank.astype(np.int64)
        return times


def item_tastes(spec: SyntheticRatings, seed: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what the items of :func:`generate_ratings` are like under the same ``spec`` and ``seed``.

    Returns
    -------
    q_i of every item, float64 [rank, items] in stars, and the mean over each of the four sectors of users of
    the first half of p · q_i, float64 [4, items] in stars.
    """
    vectors, factors = _tastes(spec, stream(seed, *_TABLES))
    return np.concatenate(factors), _sector_affinity(vectors[0], factors[0])


def _tastes(
    spec: SyntheticRatings, rng: np.random.Generator
) -> tuple[list[npt.NDArray[np.float64]], list[npt.NDArray[np.float64]]]:
    """Draw both halves of the users' code vectors [codes, width] and of the item factors [width, items]."""
    halves = (spec.taste_rank - spec.taste_rank // 2, spec.taste_rank // 2)
    vectors = [_codebook(rng.standard_normal((_CODES, width))) for width in halves]
    # Var(p·q) = rank · Var(q) for unit p.
    item_sd = spec.taste_sd / math.sqrt(spec.taste_rank)
    return vectors, [rng.normal(0.0, item_sd, (width, spec.items)) for width in halves]


def _affinities(vectors: Floats, factors: Floats) -> Iterator[tuple[slice, Floats]]:
    """Yield the affinities of all codes [codes, width] to some of the items [width, items] at a time."""
    items = factors.shape[1]
    step = items if items <= _LARGE else _BLOCK_ITEMS
    for first in range(0, items, step):
        part = slice(first, min(first + step, items))
        yield part, vectors @ factors[:, part]


def _taste_bytes(vectors: Floats, factors: Floats, item_bias: Floats | None = None) -> npt.NDArray[np.int8]:
    """Return affinities, plus the items' biases, in units that a byte holds, int8 [codes, items]."""
    found = np.empty((len(vectors), factors.shape[1]), np.int8)
    for part, affinity in _affinities(vectors, factors):
        found[:, part] = _to_bytes(affinity if item_bias is None else affinity + item_bias[part])
    return found


def _sector_affinity(vectors: Floats, factors: Floats) -> Floats:
    """Return the mean affinity to the items over the codes of each sector, float64 [4, items]."""
    found = np.empty((_SECTORS, factors.shape[1]))
    for part, affinity in _affinities(vectors, factors):
        sectors = affinity.reshape(_SECTORS, _CODES // _SECTORS, affinity.shape[1])
        found[:, part] = sectors.mean(axis=1)
    return found


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
