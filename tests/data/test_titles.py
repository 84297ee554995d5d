"""Titles of items, from the files that data sets publish beside their ratings."""

from pathlib import Path

import pytest

from edge.core.errors import DataError
from edge.data.readers.titles import read_item_titles
from edge.data.table.reading import read_ratings

RATINGS = {
    "movielens-100k": ("u.data", "1\t10\t5\t0\n2\t7\t3\t0\n"),
    "movielens-1m": ("ratings.dat", "1::10::5::0\n2::7::3::0\n"),
    "movielens-csv": ("ratings.csv", "userId,movieId,rating,timestamp\n1,10,5,0\n2,7,3,0\n"),
    "lastfm": ("user_artists.dat", "userID\tartistID\tweight\n1\t10\t5\n2\t7\t3\n"),
}
TITLES = {
    "movielens-100k": ("u.item", b"9|Nine (1990)|||\n10|Am\xe9lie (2001)|01-Jan-2001||x|0\n\n"),
    "movielens-1m": ("movies.dat", b"9::Nine (1990)::Drama\r\n10::Am\xe9lie (2001)::Drama\r\n"),
    "movielens-csv": ("movies.csv", 'movieId,title,genres\n10,"Amélie (2001)",Drama\n'.encode()),
    "lastfm": ("artists.dat", "id\tname\turl\tpictureURL\n10\tAmélie (2001)\tu\tp\n".encode()),
}


def written(folder: Path, source: str, titles: bytes | None = None) -> Path:
    name, text = RATINGS[source]
    (folder / name).write_text(text)
    title_name, contents = TITLES[source]
    (folder / title_name).write_bytes(contents if titles is None else titles)
    return folder / title_name


@pytest.mark.parametrize("source", list(RATINGS))
def test_every_item_has_a_title_or_its_id(tmp_path: Path, source: str) -> None:
    written(tmp_path, source)
    read = read_ratings(tmp_path / RATINGS[source][0], source)
    assert read.store.item_ids is not None
    assert read.store.item_ids.tolist() == [7, 10]
    assert read_item_titles(read) == ("7", "Amélie (2001)")


@pytest.mark.parametrize("source", list(RATINGS))
def test_without_the_file_there_are_none(tmp_path: Path, source: str) -> None:
    written(tmp_path, source).unlink()
    assert read_item_titles(read_ratings(tmp_path / RATINGS[source][0], source)) is None


def test_a_format_without_such_a_file_has_none(tmp_path: Path) -> None:
    (tmp_path / "ratings.txt").write_text("1 10 5\n2 7 3\n")
    (tmp_path / "u.item").write_text("nonsense")
    assert read_item_titles(read_ratings(tmp_path / "ratings.txt")) is None


@pytest.mark.parametrize(
    ("source", "contents", "message"),
    [
        ("movielens-100k", b"10|A\n10|B\n", "u.item:2: item '10' has a title already"),
        ("movielens-100k", b"10|A\n11\n", "u.item:2: '11' has no title"),
        ("movielens-1m", b"10:A\n", "movies.dat:1: '10:A' has no title"),
        ("movielens-csv", b'movieId,title\n10,"A\n', "movies.csv:2: unexpected end of data"),
        ("lastfm", b"id\tname\n10\n", "artists.dat:2: '10' has no title"),
    ],
)
def test_a_malformed_file_is_refused_at_its_line(
    tmp_path: Path, source: str, contents: bytes, message: str
) -> None:
    written(tmp_path, source, contents)
    with pytest.raises(DataError, match=message):
        read_item_titles(read_ratings(tmp_path / RATINGS[source][0], source))
