from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge.core.errors import DataError
from edge.data.published import read_published_ml_1m
from edge.data.table.reading import quantile_bins, read_ratings
from edge.metrics.ranking import RankingSums, rank_among


def _write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


GOOD = {
    "movielens-100k": ("u.data", "7\t30\t3\t100\n5\t10\t4\t90\n7\t10\t5\t80\n"),
    "movielens-1m": ("ratings.dat", "7::30::3::100\n5::10::4::90\n7::10::5::80\n"),
    "movielens-csv": (
        "ratings.csv",
        "userId,movieId,rating,timestamp\n7,30,3.0,100\n5,10,4.0,90\n7,10,5.0,80\n",
    ),
    "recbole": (
        "toy.inter",
        "item_id:token\tuser_id:token\tgenre:token_seq\trating:float\ttimestamp:float\n"
        "30\t7\ta b\t3\t100\n10\t5\t\t4\t90\n10\t7\tc\t5\t80.5\n",
    ),
    "plain": ("ratings.txt", "7 30 3 100\n5 10 4 90\n7 10 5 80\n"),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_every_text_format_is_detected_and_read_alike(tmp_path: Path, name: str, ending: str) -> None:
    file, text = GOOD[name]
    # RecBole's skipped column may be empty; it must not count as a missing value.
    _write(tmp_path, file, text.replace("\n", ending))
    result = read_ratings(tmp_path)
    assert (result.path, result.format, result.rows, result.duplicates) == (tmp_path / file, name, 3, 0)
    store = result.store
    store.validate()
    assert store.user_ids is not None
    assert store.user_ids.tolist() == [5, 7]
    assert store.item_ids is not None
    assert store.item_ids.tolist() == [10, 30]
    assert store.indptr.tolist() == [0, 1, 3]
    assert store.items.tolist() == [0, 0, 1]
    assert store.decoded().tolist() == [4.0, 5.0, 3.0]
    assert store.timestamps is not None
    assert store.timestamps.tolist() == [90, 80, 100]
    assert read_ratings(tmp_path / file, name).store.content_hash() == store.content_hash()


def test_ids_that_are_not_plain_numbers_stay_text(tmp_path: Path) -> None:
    path = _write(tmp_path, "ratings.dat", "A7,007,5.0,100\nA6,7,2.5,90\n")
    store = read_ratings(path).store
    assert store.user_ids is not None
    assert store.user_ids.tolist() == ["A6", "A7"]
    assert store.item_ids is not None
    # 007 and 7 are two items.
    assert store.item_ids.tolist() == ["007", "7"]
    assert store.scale == 0.5


def test_duplicates_are_counted_and_the_latest_wins(tmp_path: Path) -> None:
    path = _write(tmp_path, "u.data", "1\t1\t5\t200\n1\t1\t3\t100\n1\t2\t4\t100\n")
    result = read_ratings(path)
    assert (result.rows, result.duplicates) == (3, 1)
    assert result.store.decoded().tolist() == [5.0, 4.0]


def test_byte_order_mark_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = _write(tmp_path, "u.data", b"\xef\xbb\xbf1\t1\t5\t200\n\n2\t1\t3\t100\n\n")
    assert read_ratings(path, "movielens-100k").rows == 2


@pytest.mark.parametrize(
    ("name", "text", "line", "problem"),
    [
        ("movielens-100k", "1\t1\t5\t9\n1\t2\t5\n", 2, "3 fields instead of 4"),
        ("movielens-100k", "1\t1\t5\t9\n\n1\tx\t5\t9\n", 3, "item 'x' is not a whole number"),
        ("movielens-100k", "1\t1\t5\t9\n1\t-2\t5\t9\n", 2, "item -2 is negative"),
        ("movielens-100k", "1\t1\t5\t9\n1\t2\tnan\t9\n", 2, "rating is missing"),
        ("movielens-100k", "1\t1\t5\t9\n1\t2\tinf\t9\n", 2, "rating inf is not a finite number"),
        ("movielens-100k", "1\t1\t5\t9\n1\t2\tfive\t9\n", 2, "rating 'five' is not a number"),
        ("movielens-100k", "1\t1\t5\t9\n1\t2\t\t9\n", 2, "rating is missing"),
        ("movielens-100k", "1\t1\t5\t9\n\t2\t3\t9\n", 2, "user is empty"),
        ("movielens-100k", "1\t1\t5\t9\n1\t2\t3\t1e300\n", 2, "time 1e300 is out of range"),
        ("movielens-100k", "1\t1\t5\t9\n99999999999999999999\t2\t3\t1\n", 2, "too large"),
        ("movielens-1m", "1::1::5::9\n1::2::5:9\n", 2, "3 fields instead of 4"),
        ("movielens-1m", "1::1::5::9\n1\t2::5::9\n", 2, "3 fields instead of 4"),
        ("movielens-1m", b"1::1::5::9\n1::2::\xe9::9\n", 2, "byte 7 is not UTF-8"),
        ("movielens-csv", "userId,movieId,rating,timestamp\n1,1,5,9\n1,2,x,9\n", 3, "rating 'x'"),
        ("movielens-csv", "userId,movieId,tag,timestamp\n1,1,5,9\n", 1, "userId,movieId,rating,timestamp"),
        ("recbole", "user_id:token\titem_id:token\trating:float\n1\t1\t2\n1\t\t2\n", 3, "item is empty"),
        ("recbole", b"user_id:token\titem_id:token\trating:float\n1\t1\t2\n1\t\xff\t2\n", 3, "not UTF-8"),
        ("lastfm", "user\tartist\tweight\n1\t1\t1\n", 1, "userID"),
        ("lastfm", "userID\tartistID\tweight\n1\t1\n", 2, "2 fields instead of 3"),
        ("plain", "one two three\n", 1, "rating 'three' is not a number"),
        ("plain", "1 1 3\n1 2\n", 2, "2 fields instead of 3"),
        ("movielens-100k", b"1\t1\t5\t9\n1\t\x00\t5\t9\n", 2, "NUL byte"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, name: str, text: str | bytes, line: int, problem: str) -> None:
    path = _write(tmp_path, "file", text)
    with pytest.raises(DataError) as caught:
        read_ratings(path, name)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert problem in message


@pytest.mark.parametrize("text", ["", "  \n\n"])
@pytest.mark.parametrize("name", ["auto", "movielens-100k", "recbole", "lastfm", "plain", "movielens-csv"])
def test_empty_files_are_refused(tmp_path: Path, text: str, name: str) -> None:
    with pytest.raises(DataError, match="empty"):
        read_ratings(_write(tmp_path, "u.data", text), name)


def test_a_header_without_rows_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, "ratings.csv", "userId,movieId,rating,timestamp\n")
    with pytest.raises(DataError, match="no ratings"):
        read_ratings(path)


def test_missing_unknown_and_ambiguous_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_ratings(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no ratings file"):
        read_ratings(tmp_path)
    with pytest.raises(
        DataError, match="unknown data format 'movie-lens'; write one of auto, movielens-100k"
    ):
        read_ratings(tmp_path, "movie-lens")
    with pytest.raises(DataError, match="is no row of a table"):
        read_ratings(_write(tmp_path, "notes.md", "Hello there\n"))
    _write(tmp_path, "u.data", "1\t1\t5\t9\n")
    _write(tmp_path, "ratings.txt", "1 1 5\n")
    with pytest.raises(DataError, match=r"holds ratings\.txt, u\.data; write the path"):
        read_ratings(tmp_path)
    assert read_ratings(tmp_path, "movielens-100k").rows == 1


def test_lastfm_counts_become_bins_of_the_whole_file(tmp_path: Path) -> None:
    rows = "".join(f"{user}\t{user + 1}\t{user * 10}\n" for user in range(1, 11))
    result = read_ratings(_write(tmp_path, "user_artists.dat", "userID\tartistID\tweight\n" + rows))
    assert result.format == "lastfm"
    assert result.store.decoded().tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_quantile_bins_keep_equal_values_together() -> None:
    bins = quantile_bins(np.array([1.0] * 8 + [5.0, 9.0]), 5)
    assert bins.tolist() == [1.0] * 8 + [5.0, 5.0]


def test_a_negative_listening_count_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, "user_artists.dat", "userID\tartistID\tweight\n1\t1\t-4\n")
    with pytest.raises(DataError, match="negative"):
        read_ratings(path)


def _parquet(folder: Path, **columns: object) -> Path:
    path = folder / "ratings.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_by_common_names(tmp_path: Path) -> None:
    path = _parquet(
        tmp_path,
        userId=pa.array(["u2", "u1", "u2"]).dictionary_encode(),
        movie_id=[3, 3, 1],
        Rating=pa.array([1.0, 2.0, 4.5], pa.float32()),
        timestamp=pa.array([5_000, 6_000, 7_999], pa.timestamp("ms")),
        other=["x", None, "z"],
    )
    result = read_ratings(path)
    assert (result.format, result.rows) == ("parquet", 3)
    assert result.store.user_ids is not None
    assert result.store.user_ids.tolist() == ["u1", "u2"]
    assert result.store.decoded().tolist() == [2.0, 4.5, 1.0]
    assert result.store.timestamps is not None
    assert result.store.timestamps.tolist() == [6, 7, 5]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": [1], "uid": [1], "item": [1], "rating": [1]}, "could all be the user"),
        ({"user": [1.5], "item": [1], "rating": [1]}, "is double; ids are whole numbers or text"),
        ({"user": [1, 2], "item": [1, 1], "rating": [1.0, float("nan")]}, "row 2: rating is missing"),
        ({"user": [1, 2], "item": [1, None], "rating": [1, 1]}, "row 2: item is empty"),
        ({"user": [1], "item": [1], "rating": [[5]]}, "expected numbers"),
    ],
)
def test_bad_parquet_is_refused(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_ratings(_parquet(tmp_path, **columns))


def test_a_file_that_only_begins_like_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_ratings(_write(tmp_path, "x.parquet", b"PAR1 and then nothing"))


def _datasets() -> Path:
    folder = os.environ.get("RECFLEET_DATA")
    if not folder:
        pytest.skip("set RECFLEET_DATA to a folder with ml-100k, ml-1m, lastfm-2k, filmtrust, amazon-video")
    return Path(folder)


# Users, items, ratings, duplicates dropped.
SIZES = {
    "ml-100k": ("movielens-100k", (943, 1_682, 100_000, 0)),
    "ml-1m": ("movielens-1m", (6_040, 3_706, 1_000_209, 0)),
    "lastfm-2k": ("lastfm", (1_892, 17_632, 92_834, 0)),
    "filmtrust": ("plain", (1_508, 2_071, 35_494, 3)),
    "amazon-video": ("plain", (8_072, 11_830, 63_836, 0)),
}


@pytest.mark.parametrize("folder", SIZES)
def test_real_datasets_have_their_published_sizes(folder: str) -> None:
    result = read_ratings(_datasets() / folder)
    store = result.store
    store.validate()
    assert (result.format, (store.n_users, store.n_items, store.n_ratings, result.duplicates)) == SIZES[
        folder
    ]


def test_published_ml_1m_split() -> None:
    published = read_published_ml_1m(_datasets() / "ml-1m")
    split = published.split
    assert split.test is not None
    assert split.test.counts.tolist() == [1] * 6_040
    assert np.array_equal(split.test.items, published.positives)
    assert split.train.n_ratings == 1_000_209 - 6_040
    assert published.negatives.shape == (6_040, 99)
    assert published.rated_negatives == 156
    # Ranking by the number of training ratings: the popularity line of this split, HR .454 and NDCG .255.
    popularity = split.train.item_counts().astype(np.float64)
    sums = RankingSums((10,), negatives=99)
    sums.add(
        rank_among(
            popularity[published.positives],
            popularity[published.negatives],
            published.positives,
            published.negatives,
            places=10,
        )
    )
    results = sums.results()
    assert results["hr@10/99neg"][0] == pytest.approx(0.454, abs=0.001)
    assert results["ndcg@10/99neg"][0] == pytest.approx(0.255, abs=0.001)
