"""The store of local data: every user's ratings in one compressed-sparse-row table.

A device's local data is a view into this table (:meth:`RatingStore.local`); the data of a whole cohort is one
gather (:meth:`RatingStore.gather`), whose cost does not depend on how many users the store holds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.core.errors import DataError

_LEAF_BYTES = 16 << 20
Items = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
"""Item indices; uint16 for catalogues below 65,536 items, int32 above."""
Labels = npt.NDArray[np.int64] | npt.NDArray[np.str_]
"""Original ids of users or items, one per index: whole numbers or text."""
_MAX_UINT16_ITEMS = 65_536
_CHUNK_USERS = 65_536


def _leaf(chunk: memoryview) -> bytes:
    return hashlib.blake2b(chunk, digest_size=16).digest()


def _buffer(array: npt.NDArray[np.generic]) -> memoryview:
    if array.dtype.kind == "U":
        # The width of a numpy text array depends on its longest entry; its lines do not.
        return memoryview("\n".join(array.tolist()).encode())
    little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little_endian.reshape(-1).view(np.uint8).data


def hash_arrays(parts: Iterable[tuple[str, npt.NDArray[np.generic] | None]]) -> str:
    """Return 32 hexadecimal digits that change when a name, a shape, a type or a value changes.

    The digest is a two-level tree: blake2b of every 16 MiB of an array (the leaves run on threads, hashlib
    releases the interpreter's lock) and blake2b over those. It does not depend on the number of threads, on
    the host's byte order or on how an array is laid out.

    Parameters
    ----------
    parts : (name, array) pairs in a fixed order; None stands for an array that is absent. Arrays of numbers,
        booleans or numpy text.
    """
    root = hashlib.blake2b(digest_size=16)
    for name, array in parts:
        if array is None:
            root.update(f"{name}:none;".encode())
            continue
        kind = "U" if array.dtype.kind == "U" else array.dtype.newbyteorder("<").str
        root.update(f"{name}:{kind}:{array.shape};".encode())
        data = _buffer(array)
        leaves = [data[start : start + _LEAF_BYTES] for start in range(0, len(data), _LEAF_BYTES)]
        if len(leaves) > 1:
            with ThreadPoolExecutor(min(len(leaves), os.cpu_count() or 1)) as pool:
                digests = list(pool.map(_leaf, leaves))
        else:
            digests = [_leaf(chunk) for chunk in leaves]
        for digest in digests:
            root.update(digest)
    return root.hexdigest()


def item_dtype(n_items: int) -> type[np.uint16] | type[np.int32]:
    """Return the narrowest index type of the store for a catalogue of ``n_items``."""
    return np.uint16 if n_items < _MAX_UINT16_ITEMS else np.int32


def empty_items(size: int, n_items: int) -> Items:
    """Return an uninitialised array for ``size`` item indices of a catalogue of ``n_items``."""
    if n_items < _MAX_UINT16_ITEMS:
        return np.empty(size, dtype=np.uint16)
    return np.empty(size, dtype=np.int32)


def as_items(indices: npt.NDArray[np.int64], n_items: int) -> Items:
    """Return ``indices`` in the narrowest type for a catalogue of ``n_items``."""
    items = empty_items(indices.size, n_items)
    items[:] = indices
    return items


@dataclass(frozen=True, slots=True, eq=False)
class StoredRatings:
    """The ratings of a few users, ready to compute with.

    Attributes
    ----------
    indptr : int64[n + 1], where each of the ``n`` users starts and ends.
    items : uint16 or int32 [N], item indices, ascending within a user.
    ratings : float32[N], in the units of the source (stars, bins).
    timestamps : int64[N], seconds since 1970; None unless they were asked for.
    """

    indptr: npt.NDArray[np.int64]
    items: Items
    ratings: npt.NDArray[np.float32]
    timestamps: npt.NDArray[np.int64] | None = None

    @property
    def n_users(self) -> int:
        """Number of users in the batch."""
        return self.indptr.size - 1

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Ratings per user, int64[n]."""
        return np.diff(self.indptr)


@dataclass(frozen=True, slots=True, eq=False)
class RatingStore:
    """Ratings of all users, grouped by user (CSR). Read-only.

    Attributes
    ----------
    indptr : int64[n_users + 1]; user ``u`` owns positions ``indptr[u]:indptr[u + 1]``.
    items : uint16 (n_items < 65,536) or int32 [nnz], strictly ascending within a user.
    ratings : what is stored: float32[nnz], the ratings themselves, or uint8[nnz], codes that stand for
        ``offset + scale * code``. :meth:`local`, :meth:`gather` and :meth:`decoded` return float32 ratings.
    n_items : size of the catalogue, rated or not.
    scale, offset : step and origin of the codes; 1 and 0 for float32.
    timestamps : int64[nnz], seconds since 1970, or None when the source has none.
    user_ids, item_ids : original labels per index, or None for generated data.

    Raises
    ------
    DataError
        when shapes, types or the row pointers contradict each other. The order and range of ``items`` is
        checked by :meth:`validate`, which costs a pass over the data.
    """

    indptr: npt.NDArray[np.int64]
    items: Items
    ratings: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    n_items: int
    scale: float = 1.0
    offset: float = 0.0
    timestamps: npt.NDArray[np.int64] | None = None
    user_ids: Labels | None = None
    item_ids: Labels | None = None

    def __post_init__(self) -> None:
        _check_layout(self)
        for name in ("indptr", "items", "ratings", "timestamps", "user_ids", "item_ids"):
            array = getattr(self, name)
            if array is not None:
                # A view, so that the caller's own array stays writable.
                view = array.view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)

    @property
    def n_users(self) -> int:
        """Number of users, with or without ratings."""
        return self.indptr.size - 1

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""
        return self.items.size

    @property
    def timed(self) -> bool:
        """Whether ratings have times."""
        return self.timestamps is not None

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Ratings per user, int64[n_users]."""
        return np.diff(self.indptr)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, labels included."""
        arrays = (self.indptr, self.items, self.ratings, self.timestamps, self.user_ids, self.item_ids)
        return sum(array.nbytes for array in arrays if array is not None)

    def local(self, user: int) -> tuple[Items, npt.NDArray[np.float32]]:
        """Return one user's item indices (a view) and ratings (float32; a view when stored as float32).

        Raises
        ------
        IndexError
            for a user outside ``0 .. n_users - 1``.
        """
        if not 0 <= user < self.n_users:
            raise IndexError(f"user {user} is outside 0 .. {self.n_users - 1}")
        start, end = self.indptr[user], self.indptr[user + 1]
        return self.items[start:end], self._decode(self.ratings[start:end])

    def gather(self, users: npt.NDArray[np.int64], *, timed: bool = False) -> StoredRatings:
        """Return the ratings of ``users`` (int64[n], any order, repeats allowed) one after the other.

        With ``timed``, their timestamps as well, if the source has any.

        Raises
        ------
        IndexError
            for a user outside ``0 .. n_users - 1``.
        """
        users = np.asarray(users, dtype=np.int64)
        if users.size and (users.min() < 0 or users.max() >= self.n_users):
            raise IndexError(f"a user in the batch is outside 0 .. {self.n_users - 1}")
        starts = self.indptr[users]
        indptr = np.zeros(users.size + 1, dtype=np.int64)
        np.cumsum(self.indptr[users + 1] - starts, out=indptr[1:])
        positions = np.repeat(starts - indptr[:-1], np.diff(indptr))
        positions += np.arange(positions.size)
        # The positions are in range by construction; "clip" spares numpy's buffered bounds check.
        items = self.items.take(positions, mode="clip")
        codes = self.ratings.take(positions, mode="clip")
        times = (
            self.timestamps.take(positions, mode="clip") if timed and self.timestamps is not None else None
        )
        return StoredRatings(indptr, items, self._decode(codes), times)

    def decoded(self) -> npt.NDArray[np.float32]:
        """Return all ratings in the store's order, float32[nnz]."""
        return self._decode(self.ratings)

    def owners(self) -> npt.NDArray[np.int64]:
        """Return the user of every rating in the store's order, int64[nnz]."""
        return np.repeat(np.arange(self.n_users), self.counts)

    def mean(self) -> float:
        """Return the mean rating (the μ of a biased model); nan for a store without ratings."""
        if self.n_ratings == 0:
            return float("nan")
        if self.ratings.dtype == np.uint8:
            histogram = np.zeros(256, dtype=np.int64)
            for part in self._parts():
                histogram += np.bincount(self.ratings[part], minlength=256)
            return self.offset + self.scale * float(histogram @ np.arange(256)) / self.n_ratings
        return float(self.ratings.mean(dtype=np.float64))

    def limits(self) -> tuple[float, float] | None:
        """Return the lowest and the highest rating; None for a store without ratings."""
        if self.n_ratings == 0:
            return None
        codes = self.ratings
        lowest, highest = (self.offset + self.scale * float(code) for code in (codes.min(), codes.max()))
        return lowest, highest

    def item_counts(self) -> npt.NDArray[np.int64]:
        """Return the ratings per item, int64[n_items]."""
        counts = np.zeros(self.n_items, dtype=np.int64)
        for part in self._parts():
            counts += np.bincount(self.items[part], minlength=self.n_items)
        return counts

    def select(self, keep: npt.NDArray[np.bool_]) -> RatingStore:
        """Return a store of the ratings where ``keep`` (bool[nnz]) holds, over the same users and items."""
        if keep.shape != (self.n_ratings,) or keep.dtype != np.bool_:
            raise ValueError(
                f"keep must be bool[{self.n_ratings}], one flag per rating,"
                f" not {keep.dtype}{list(keep.shape)}"
            )
        positions = np.flatnonzero(keep)
        return RatingStore(
            indptr=np.searchsorted(positions, self.indptr).astype(np.int64),
            items=self.items[positions],
            ratings=self.ratings[positions],
            n_items=self.n_items,
            scale=self.scale,
            offset=self.offset,
            timestamps=None if self.timestamps is None else self.timestamps[positions],
            user_ids=self.user_ids,
            item_ids=self.item_ids,
        )

    def validate(self) -> None:
        """Check every item index, its order within the user, and that ratings are finite.

        Raises
        ------
        DataError
            naming the first user that breaks a rule.
        """
        for part in self._parts():
            items = self.items[part]
            if items.size == 0:
                continue
            if items.min() < 0 or items.max() >= self.n_items:
                raise DataError(f"an item index is outside 0 .. {self.n_items - 1}")
            rising = np.empty(items.size, dtype=np.bool_)
            np.greater(items[1:], items[:-1], out=rising[1:])
            starts = self.indptr[(self.indptr >= part.start) & (self.indptr < part.stop)] - part.start
            rising[starts] = True
            if not rising.all():
                position = part.start + int(np.argmin(rising))
                user = int(np.searchsorted(self.indptr, position, side="right")) - 1
                raise DataError(f"user {user}: items must be distinct and ascending")
            if self.ratings.dtype == np.float32 and not np.isfinite(self.ratings[part]).all():
                raise DataError("a rating is not a finite number")

    def content_hash(self) -> str:
        """Return 32 hexadecimal digits over everything in the store: ratings, times and labels."""
        return hash_arrays(
            [
                ("n_items", np.array([self.n_items])),
                ("coding", np.array([self.scale, self.offset])),
                ("indptr", self.indptr),
                ("items", self.items),
                ("ratings", self.ratings),
                ("timestamps", self.timestamps),
                ("user_ids", self.user_ids),
                ("item_ids", self.item_ids),
            ]
        )

    def _decode(self, codes: npt.NDArray[np.uint8] | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if codes.dtype == np.float32:
            return codes.view(np.float32)
        ratings = codes.astype(np.float32)
        if self.scale != 1.0:
            ratings *= np.float32(self.scale)
        if self.offset != 0.0:
            ratings += np.float32(self.offset)
        return ratings

    def _parts(self) -> Iterator[slice]:
        """Whole users at a time, so that a pass over a large store needs little memory beside it."""
        for first in range(0, self.n_users, _CHUNK_USERS):
            last = min(first + _CHUNK_USERS, self.n_users)
            yield slice(int(self.indptr[first]), int(self.indptr[last]))


def _check_layout(store: RatingStore) -> None:
    if store.n_items < 0:
        raise DataError(f"n_items must not be negative, got {store.n_items}")
    indptr = store.indptr
    if indptr.dtype != np.int64 or indptr.ndim != 1 or indptr.size == 0:
        raise DataError("indptr must be int64[n_users + 1]")
    if indptr[0] != 0 or np.any(indptr[1:] < indptr[:-1]):
        raise DataError("indptr must start at 0 and never fall")
    n_ratings = int(indptr[-1])
    if store.items.shape != (n_ratings,) or store.ratings.shape != (n_ratings,):
        raise DataError(
            f"indptr ends at {n_ratings}, but there are {store.items.size} items"
            f" and {store.ratings.size} ratings"
        )
    if store.items.dtype != item_dtype(store.n_items):
        raise DataError(
            f"items must be {item_dtype(store.n_items).__name__} for a catalogue of {store.n_items},"
            f" not {store.items.dtype}"
        )
    if store.ratings.dtype not in (np.uint8, np.float32):
        raise DataError(f"ratings must be float32, or uint8 codes, not {store.ratings.dtype}")
    if store.ratings.dtype == np.float32 and (store.scale, store.offset) != (1.0, 0.0):
        raise DataError("scale and offset belong to uint8 codes; float32 ratings stand for themselves")
    if not (np.isfinite(store.scale) and store.scale > 0 and np.isfinite(store.offset)):
        raise DataError(
            f"scale must be positive and finite, offset finite, not {store.scale} and {store.offset}"
        )
    times = store.timestamps
    if times is not None and (times.dtype != np.int64 or times.shape != (n_ratings,)):
        raise DataError(f"timestamps must be int64[{n_ratings}]")
    for name, labels, size in (
        ("user_ids", store.user_ids, indptr.size - 1),
        ("item_ids", store.item_ids, store.n_items),
    ):
        if labels is not None and labels.shape != (size,):
            raise DataError(f"{name} must have {size} entries, not {labels.size}")
