"""The leave-one-out split of MovieLens 1M published with Neural Collaborative Filtering (He et al. 2017).

``ml-1m.test.rating`` has one held-out rating a user, ``ml-1m.test.negative`` 99 items a user to rank it
against. There user = UserID − 1 and items are numbered by first appearance in ``ratings.dat``. Some of the
published negatives are items that the user did rate; they are kept, for comparability, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.core.errors import DataError
from edge.data.split import PUBLISHED_NEGATIVES, Split, split_leave_one_out
from edge.data.store import RatingStore
from edge.data.table.reading import RatingsFile, read_in_order


@dataclass(frozen=True, slots=True, eq=False)
class PublishedRatings:
    """The ratings, and the published split in their store's numbering.

    Attributes
    ----------
    file : ``ratings.dat`` as it was read.
    split : every user trains; ``test`` holds one rating a user, ``validation`` another one if asked for.
    positives : int64[n_users], the held-out item.
    negatives : int64[n_users, 99], the items to rank it against, in the published order.
    rated_negatives : how many of the negatives the user did rate.
    """

    file: RatingsFile
    split: Split
    positives: npt.NDArray[np.int64]
    negatives: npt.NDArray[np.int64]
    rated_negatives: int


def read_published_ml_1m(folder: str | Path, *, validation: bool = False) -> PublishedRatings:
    """Read ``ratings.dat`` and the two ``ml-1m.test.*`` files of ``folder``.

    With ``validation`` each user's last rating but the held-out one is kept back too, found as
    :func:`~edge.data.split.split_leave_one_out` finds the last one.

    Raises
    ------
    DataError
        when a file is missing or malformed, or a held-out rating is not in ``ratings.dat``.
    """
    root = Path(folder)
    file, items = read_in_order(root / "ratings.dat", "movielens-1m")
    store = file.store
    assert store.user_ids is not None
    if not np.array_equal(store.user_ids, np.arange(1, store.n_users + 1)):
        raise DataError(f"{root / 'ratings.dat'}: user ids are not 1 … n, as they are in MovieLens 1M")
    _, first_row = np.unique(items, return_index=True)
    to_index = np.argsort(first_row)
    held_out, times = _read_positives(root / "ml-1m.test.rating", store.n_users, store.n_items)
    negatives = _read_negatives(root / "ml-1m.test.negative", held_out, store.n_items)
    positives = to_index[held_out]
    in_test = _mark_held_out(store, positives, times, root / "ml-1m.test.rating")
    negative_items = to_index[negatives]
    train, last = store.select(~in_test), None
    if validation:
        # The test part is published, so this one is the same for every seed, too.
        again = split_leave_one_out(train, seed=0, validation=False)
        train, last = again.train, again.test
    return PublishedRatings(
        file=file,
        split=Split(
            kind="published-leave-one-out",
            train=train,
            validation=last,
            test=store.select(in_test),
            support=None,
            seen_users=np.arange(store.n_users, dtype=np.int64),
            unseen_users=np.empty(0, dtype=np.int64),
            validation_users=np.empty(0, dtype=np.int64),
        ),
        positives=positives,
        negatives=negative_items,
        rated_negatives=int(np.count_nonzero(_rated(store, negative_items))),
    )


def _read_positives(
    path: Path, n_users: int, n_items: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    rows = _read_table(path, columns=4)
    if not np.array_equal(rows[:, 0], np.arange(n_users)):
        raise DataError(f"{path}: expected one line for each user 0 … {n_users - 1}, in order")
    _check_items(path, rows[:, 1], n_items)
    return rows[:, 1], rows[:, 3]


def _read_negatives(path: Path, held_out: npt.NDArray[np.int64], n_items: int) -> npt.NDArray[np.int64]:
    # "(0,25)<tab>…": drop the brackets and the comma, so that every field is a number.
    rows = _read_table(
        path, columns=2 + PUBLISHED_NEGATIVES, table=str.maketrans({"(": None, ")": None, ",": "\t"})
    )
    if rows.shape[0] != held_out.size:
        raise DataError(f"{path}: {rows.shape[0]} lines for {held_out.size} users")
    wrong = (rows[:, 0] != np.arange(held_out.size)) | (rows[:, 1] != held_out)
    if wrong.any():
        raise DataError(
            f"{path}:{int(np.argmax(wrong)) + 1}: another pair than in the file of held-out ratings"
        )
    _check_items(path, rows[:, 2:].ravel(), n_items)
    return rows[:, 2:]


def _read_table(
    path: Path, columns: int, table: dict[int, str | None] | None = None
) -> npt.NDArray[np.int64]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    lines = text.translate(table or {}).splitlines()
    for number, line in enumerate(lines, start=1):
        if line.count("\t") != columns - 1:
            raise DataError(f"{path}:{number}: expected {columns} whole numbers between tabs")
    try:
        return np.array("\t".join(lines).split("\t"), dtype=np.int64).reshape(len(lines), columns)
    except ValueError as error:
        raise DataError(f"{path}: expected whole numbers between tabs: {error}") from error


def _check_items(path: Path, items: npt.NDArray[np.int64], n_items: int) -> None:
    if items.size and (items.min() < 0 or items.max() >= n_items):
        raise DataError(f"{path}: an item is outside 0 … {n_items - 1}")


def _mark_held_out(
    store: RatingStore, positives: npt.NDArray[np.int64], times: npt.NDArray[np.int64], path: Path
) -> npt.NDArray[np.bool_]:
    assert store.timestamps is not None
    keys = store.owners() * store.n_items + store.items
    wanted = np.arange(store.n_users) * store.n_items + positives
    position = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    known = store.timestamps[position]
    # Some copies of ratings.dat have lost part of their timestamps and say 0 there.
    wrong = (keys[position] != wanted) | ((known != 0) & (known != times))
    if wrong.any():
        raise DataError(f"{path}:{int(np.argmax(wrong)) + 1}: this rating is not in ratings.dat")
    flags = np.zeros(store.n_ratings, dtype=np.bool_)
    flags[position] = True
    return flags


def _rated(store: RatingStore, items: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return bool[n_users, k]: whether user u rated ``items[u, j]``."""
    keys = store.owners() * store.n_items + store.items
    wanted = np.arange(store.n_users)[:, None] * store.n_items + items
    position = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.asarray(keys[position] == wanted)
