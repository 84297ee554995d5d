"""Readers of item features: small files, malformed ones, and the real ones where they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge.core.errors import DataError
from edge.data.readers.lastfm_features import read_tag_features, tf_idf
from edge.data.readers.movielens_features import (
    GENRES_1M,
    GENRES_100K,
    read_1m_features,
    read_100k_features,
)
from edge.data.readers.table_features import read_table_features
from edge.data.table.reading import read_ratings

FLAGS = "|".join(["0"] * 19)


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def line_100k(item: int | str, date: str = "01-Jan-1995", genres: tuple[int, ...] = ()) -> str:
    flags = ["1" if place in genres else "0" for place in range(19)]
    return "|".join([str(item), f"Film {item}", date, "", "http://x", *flags]) + "\n"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_u_item_by_hand(tmp_path: Path, ending: str) -> None:
    text = line_100k(2, "4-Feb-1971", (1,)) + line_100k(1, "01-Jan-1991", (1, 8)) + line_100k(3, "")
    path = write(tmp_path, "u.item", text.replace("\n", ending))
    features = read_100k_features(path, np.array([1, 2, 3, 4]))
    assert features.names == (*GENRES_100K, "year")
    assert features.titles == ("Film 1", "Film 2", "Film 3", "")
    assert features.known.tolist() == [True, True, True, False]
    root = np.sqrt(0.5)
    np.testing.assert_allclose(features.values[:, 1], [root, root, -2 * root, 0], atol=1e-6)
    # 1991, 1971 and nothing, which is the mean, 1981.
    np.testing.assert_allclose(features.values[:, 19], [np.sqrt(1.5), -np.sqrt(1.5), 0, 0], atol=1e-6)
    assert not features.values[:, 0].any()


def test_movies_dat_by_hand(tmp_path: Path) -> None:
    text = (
        "5::Léon (1994)::Action|Drama\n"
        "7::Seven (a.k.a. Se7en) (1995)::Drama\n"
        "9::2001 without a year::Sci-Fi\n"
    )
    features = read_1m_features(write(tmp_path, "movies.dat", text.encode("latin-1")), np.array([5, 7, 9]))
    assert features.names == (*GENRES_1M, "year")
    assert features.titles == ("Léon (1994)", "Seven (a.k.a. Se7en) (1995)", "2001 without a year")
    column = dict(zip(features.names, features.values.T.tolist(), strict=True))
    root = np.sqrt(0.5)
    assert column["Drama"] == pytest.approx([root, root, -2 * root])
    assert column["Sci-Fi"] == pytest.approx([-root, -root, 2 * root])
    assert column["year"] == pytest.approx([-np.sqrt(1.5), np.sqrt(1.5), 0])
    assert column["War"] == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1|Film|01-Jan-1995||u|0|0\n", r"u.item:1: 7 fields instead of 24.*like '1\|Toy"),
        (line_100k(1) + line_100k("x"), "u.item:2: item 'x' is not a whole number"),
        (line_100k(1).replace("|0|0\n", "|0|2\n"), "u.item:1: flag 'Western' is '2'; write 0 or 1"),
        (line_100k(1, "1995-01-01"), "u.item:1: release date '1995-01-01'; write one like"),
        (line_100k(1) + line_100k(2) + line_100k(1), "u.item:3: item 1 stands in the file a second time"),
        ("", "file is empty"),
        (line_100k(8), r"none of its items is rated.*\[8\].*\[1\]"),
    ],
)
def test_a_malformed_u_item(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_100k_features(write(tmp_path, "u.item", text), np.array([1, 2]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1::Film (1995)\n", 'movies.dat:1: 2 fields instead of 3.*like "1::Toy'),
        (
            "1::Film (1995)::Drama\n2::Film::Dramma\n",
            "movies.dat:2: unknown genre 'Dramma'; write some of Action",
        ),
        ("-1::Film (1995)::Drama\n", "movies.dat:1: item '-1' is not a whole number"),
        ("1::A::Drama\n\n1::B::Drama\n", "movies.dat:3: item 1 stands in the file a second time"),
    ],
)
def test_a_malformed_movies_dat(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_1m_features(write(tmp_path, "movies.dat", text), np.array([1, 2]))


TAGS_HEADER = "userID\tartistID\ttagID\tday\tmonth\tyear\n"


def tags(*rows: tuple[int, int, int]) -> str:
    return TAGS_HEADER + "".join(f"{user}\t{artist}\t{tag}\t1\t4\t2009\n" for user, artist, tag in rows)


def test_tf_idf_by_hand() -> None:
    # Document 0: term 0 twice, term 1 once; document 1: term 1; document 2: term 2 and term 1.
    table = tf_idf(np.array([0, 0, 0, 1, 2, 2]), np.array([0, 0, 1, 1, 2, 1]), (3, 3))
    dense = np.zeros((3, 3))
    dense[table.rows, table.columns] = table.values
    # Term 1 is in every document and weighs nothing; lengths are one.
    assert dense.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]
    two = tf_idf(np.array([0, 0, 0, 1, 2]), np.array([0, 0, 1, 1, 2]), (3, 3))
    first, second = (1 + np.log(2)) * np.log(3), np.log(1.5)
    assert two.values[:2] == pytest.approx(np.array([first, second]) / np.hypot(first, second))


def test_artists_with_the_same_tags_are_alike(tmp_path: Path) -> None:
    rows = [(user, artist, tag) for user in (1, 2) for artist in (10, 11) for tag in (1, 2)]
    rows += [(user, artist, tag) for user in (1, 2) for artist in (20, 21) for tag in (3, 4)]
    path = write(tmp_path, "tags.dat", tags(*rows, rows[0]))
    names = "id\tname\turl\tpictureURL\n10\tÆon\tu\tp\n20\tB\tu\tp\n"
    features = read_tag_features(
        path,
        np.array([10, 11, 12, 20, 21]),
        artists=write(tmp_path, "artists.dat", names),
        components=2,
    )
    assert features.names == ("tags-1", "tags-2")
    assert features.titles == ("Æon", "", "", "B", "")
    assert features.known.tolist() == [True, True, False, True, True]
    values = features.values
    np.testing.assert_allclose(values[0], values[1], atol=1e-5)
    np.testing.assert_allclose(values[3], values[4], atol=1e-5)
    assert np.abs(values[0] - values[3]).max() > 1.5


def test_a_tag_given_twice_by_a_user_counts_once(tmp_path: Path) -> None:
    rows = [(1, 10, 1), (1, 10, 2), (1, 11, 2), (1, 11, 3), (2, 12, 3)]
    once, twice, by_another = (
        read_tag_features(
            write(tmp_path, "tags.dat", tags(*rows, extra)), np.array([10, 11, 12]), components=3
        ).content_hash()
        for extra in (rows[4], rows[0], (2, 10, 1))
    )
    assert once == twice != by_another


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("userID\tartistID\ttag\n", "tags.dat:1: header .*expected 'userID"),
        (tags((1, 10, 1)) + "1\t10\n", "tags.dat:3: 2 fields instead of 6"),
        (TAGS_HEADER + "1\tx\t3\t1\t4\t2009\n", "tags.dat:2: artist 'x' is not a whole number"),
        (TAGS_HEADER, "no tags; expected lines like"),
        (tags((1, 10, 1), (1, 11, 1)), "2 components of 2 artists and 1 tags; take 1 … 1"),
    ],
)
def test_malformed_tags(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_tag_features(write(tmp_path, "tags.dat", text), np.array([10]), components=2)


def test_malformed_artists(tmp_path: Path) -> None:
    path = write(tmp_path, "tags.dat", tags((1, 10, 1), (1, 11, 2)))
    artists = write(tmp_path, "artists.dat", "id\tname\turl\tpictureURL\n10\tA\tu\tp\nx\tB\n")
    with pytest.raises(DataError, match=r"artists\.dat:3: .*expected 'id"):
        read_tag_features(path, np.array([10]), artists=artists, components=1)


CSV = 'item,price,"name",new,size\nb,2.5,"B, the second",true,\na,1.5,A,false,4\n\nc,nan,C,false,2\n'


def test_a_csv_table(tmp_path: Path) -> None:
    path = write(tmp_path, "items.csv", CSV)
    features = read_table_features(path, np.array(["a", "b", "c", "d"]), title_column="name")
    assert features.names == ("price", "new", "size")
    assert features.titles == ("A", "B, the second", "C", "")
    assert features.known.tolist() == [True, True, True, False]
    root = np.sqrt(1.5)
    # The empty cell and NaN are their columns' means.
    np.testing.assert_allclose(features.values[:, 0], [-root, root, 0, 0], atol=1e-6)
    np.testing.assert_allclose(features.values[:, 2], [root, 0, -root, 0], atol=1e-6)
    chosen = read_table_features(path, np.array(["a", "b"]), columns=["new"])
    assert chosen.names == ("new",)
    assert chosen.titles is None
    assert chosen.values.tolist() == [[-1.0], [1.0]]


def test_a_tsv_table_with_whole_numbers_as_ids(tmp_path: Path) -> None:
    path = write(tmp_path, "items.tsv", "\ufeffmovie\tprice\r\n7\t1\r\n8\t3\r\n")
    features = read_table_features(path, np.array([8, 7]), item_column="movie")
    assert features.values.tolist() == [[1.0], [-1.0]]


def test_parquet_and_csv_give_the_same(tmp_path: Path) -> None:
    table = pa.table(
        {
            "item": ["b", "a", "c"],
            "price": [2.5, 1.5, float("nan")],
            "name": ["B, the second", "A", "C"],
            "new": [True, False, False],
            "size": pa.array([None, 4, 2], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "items.parquet")
    ids = np.array(["a", "b", "c", "d"])
    parquet = read_table_features(tmp_path / "items.parquet", ids, title_column="name")
    csv = read_table_features(write(tmp_path, "items.csv", CSV), ids, title_column="name")
    assert parquet.content_hash() == csv.content_hash()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("id,x\n1,2\n", {}, "no column 'item'; the table has id, x"),
        ("item,x\n1,2\n", {"columns": ["y"]}, "no column 'y'; the table has item, x"),
        ("item,x\n1,2\n", {"title_column": "name"}, "no column 'name'"),
        ("item,x\n1,2\n", {"columns": ["x", "x"]}, "none twice"),
        ("item,x\n1,2\n", {"columns": []}, "name at least one"),
        ("item,x\n1,2\n", {"columns": ["item"]}, "not 'item'"),
        ("item,x\n", {}, "no rows"),
        ("item,x\n1,red\n", {}, "no column of numbers beside 'item'"),
        ("item,x\n1,\n", {}, "no column of numbers"),
        ("item,x\n1,2\n2,red\n", {"columns": ["x"]}, "items.csv:3: column 'x': 'red' is not a number"),
        ("item,x\n1,2\n2,inf\n", {}, "items.csv:3: column 'x': inf is infinite"),
        ("item,x\n1,2\n2\n", {}, "items.csv:3: 1 fields instead of 2"),
        ("item,x\n1,2\n2,3\n1,4\n", {}, "items.csv:4: item '1' stands already at .*items.csv:2"),
        ("item,x\n,2\n", {}, "items.csv:2: column 'item': item None"),
        ("item,x,x\n1,2,3\n", {}, "items.csv:1: header .*name of its own"),
        ('item,x\n1,"2\n', {}, "items.csv:.*expected comma-separated"),
        ("item,x\n1,2\n", {"ids": ["q"]}, "none of its items is rated"),
        (b"item,x\n1,2\n\xff,3\n", {}, "items.csv:3: a byte that is not UTF-8"),
        ("", {}, "empty"),
    ],
)
def test_a_malformed_table(
    tmp_path: Path, text: str | bytes, options: dict[str, list[str]], message: str
) -> None:
    path = write(tmp_path, "items.csv", text)
    options = dict(options)
    ids = np.array(options.pop("ids", ["1", "2"]))
    with pytest.raises(DataError, match=message):
        read_table_features(path, ids, **options)  # type: ignore[arg-type]


def test_malformed_parquet(tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    ids = np.array([1, 2])
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_table_features(path, ids)
    pq.write_table(pa.table({"item": [1, 2, 1], "x": [1.0, 2.0, 3.0]}), path)
    with pytest.raises(DataError, match=r"row 3: item '1' stands already at .*row 1"):
        read_table_features(path, ids)
    pq.write_table(pa.table({"item": [1, 2], "x": [1.0, float("inf")]}), path)
    with pytest.raises(DataError, match="row 2: column 'x': inf is infinite"):
        read_table_features(path, ids)
    pq.write_table(pa.table({"item": [1.5, 2.0], "x": [1.0, 2.0]}), path)
    with pytest.raises(DataError, match=r"row 1: column 'item': item 1\.5"):
        read_table_features(path, ids)
    with pytest.raises(DataError, match=r"missing\.csv: cannot be read"):
        read_table_features(tmp_path / "missing.csv", ids)


@pytest.fixture
def data() -> Path:
    folder = os.environ.get("RECFLEET_DATA")
    if not folder:
        pytest.skip("set RECFLEET_DATA to a folder with ml-100k, ml-1m and lastfm-2k")
    return Path(folder)


def test_movielens_100k(data: Path) -> None:
    store = read_ratings(data / "ml-100k" / "u.data").store
    features = read_100k_features(data / "ml-100k" / "u.item", store.item_ids)
    genres = [line.split("|")[0] for line in (data / "ml-100k" / "u.genre").read_text().split("\n") if line]
    assert list(GENRES_100K) == genres
    assert features.values.shape == (1682, 20)
    assert features.known.all()
    assert features.titles is not None
    assert features.titles[0] == "Toy Story (1995)"
    assert [features.names[j] for j in np.flatnonzero(features.values[0, :19] > 0)] == [
        "Animation",
        "Children's",
        "Comedy",
    ]
    np.testing.assert_allclose(features.values.std(axis=0), 1.0, atol=1e-4)


def test_movielens_1m(data: Path) -> None:
    store = read_ratings(data / "ml-1m" / "ratings.dat").store
    features = read_1m_features(data / "ml-1m" / "movies.dat", store.item_ids)
    assert features.values.shape == (3706, 19)
    assert features.known.all()
    np.testing.assert_allclose(features.values.std(axis=0), 1.0, atol=1e-4)


@pytest.mark.slow
def test_lastfm(data: Path) -> None:
    folder = data / "lastfm-2k"
    store = read_ratings(folder / "user_artists.dat").store
    features = read_tag_features(
        folder / "user_taggedartists.dat", store.item_ids, artists=folder / "artists.dat"
    )
    assert features.values.shape == (17_632, 20)
    assert 0.68 < features.known.mean() < 0.70
    np.testing.assert_allclose(features.values[features.known].std(axis=0), 1.0, atol=1e-4)
    assert features.titles is not None
    at = {title: row for row, title in enumerate(features.titles)}
    unit = features.values / np.maximum(np.linalg.norm(features.values, axis=1, keepdims=True), 1e-9)
    metal, metal_too, pop = (unit[at[name]] for name in ("Metallica", "Megadeth", "Britney Spears"))
    assert metal @ metal_too > 0.5 > metal @ pop
    other_start = read_tag_features(folder / "user_taggedartists.dat", store.item_ids, seed=1)
    assert np.abs(other_start.values - features.values).max() < 0.1
