"""Layouts that tools export ratings in: each is written from the same rows, and read back to exactly them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from edge.core.errors import DataError
from edge.data.table.options import TableOptions
from edge.data.table.reading import RatingsFile, read_ratings

Row = tuple[int, int, float, int]

ROWS: list[Row] = [
    (
        user,
        100 + item,
        float(1 + (user * 7 + item * 3) % 5),
        1_206_914_169 + 86_400 * ((user * 13 + item * 5) % 97),
    )
    for user in range(1, 13)
    for item in range(20)
    if (user * 5 + item * 11) % 7 < 3
]
"""User, item, rating and time; no pair twice."""


def _iso(time_s: int, how: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime(how)


def _csv(
    cells: Iterable[Sequence[object]], delimiter: str = ",", end: str = "\n", quoting: int = csv.QUOTE_MINIMAL
) -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]
    writer.writerows(cells)
    return text.getvalue()


def _lines(rows: Iterable[Sequence[object]], join: str) -> str:
    return "".join(join.join(map(str, row)) + "\n" for row in rows)


def _jsonl(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@dataclass(frozen=True)
class Layout:
    """A layout: what is written, and what of the rows it keeps."""

    name: str
    file: str
    write: Callable[[list[Row]], str | bytes | pa.Table]
    options: dict[str, Any] = field(default_factory=dict)
    user: Callable[[int], object] = int
    item: Callable[[int], object] = int
    rating: Callable[[float], float] | None = float
    time: Callable[[int], int] | None = int
    format: str = "table"
    left_out: tuple[str, ...] = ()


def _day(time_s: int) -> int:
    return time_s // 86_400 * 86_400


def _minute(time_s: int) -> int:
    return time_s // 60 * 60


def _buyer(user: int) -> str:
    return f"A{user:03d}XYZ"


def _asin(item: int) -> str:
    return f"B00{item:07d}"


def _isbn(item: int) -> str:
    return f"{item:09d}X"


def _uuid(user: int) -> str:
    return str(uuid.UUID(int=user << 64 | 7))


def _double(rating: float) -> float:
    return 2 * rating


def _netflix(rows: list[Row]) -> str:
    text = ""
    for movie in sorted({row[1] for row in rows}):
        text += f"{movie}:\n"
        text += "".join(f"{u},{int(r)},{_iso(t, '%Y-%m-%d')}\n" for u, i, r, t in rows if i == movie)
    return text


def _review(rows: list[Row]) -> list[list[object]]:
    return [[u, i, r, f'He said "fine",\nthen {n} more; lines', t] for n, (u, i, r, t) in enumerate(rows)]


def _arrow(**columns: Any) -> pa.Table:
    return pa.table(columns)


def _columns(rows: list[Row]) -> tuple[list[int], list[int], list[float], list[int]]:
    users, items, ratings, times = zip(*rows, strict=True)
    return list(users), list(items), list(ratings), list(times)


HEADER = ["user", "item", "rating", "timestamp"]
LAYOUTS = [
    # The cases that people brought.
    Layout("header", "r.csv", lambda rows: _csv([HEADER, *rows])),
    Layout("utf-16", "r.csv", lambda rows: _csv([["userId", "movieId", "rating", "timestamp"], *rows])
           .encode("utf-16"), format="movielens-csv"),
    Layout("semicolons", "r.csv", lambda rows: _csv([HEADER, *rows], ";")),
    Layout("decimal comma", "r.csv", lambda rows: _lines(
        [(u, i, f"{r + 0.5:.1f}".replace(".", ","), t) for u, i, r, t in rows], ";"),
         rating=lambda r: r + 0.5),
    Layout("comment", "r.csv", lambda rows: "# exported by tool\n" + _lines(rows, ",")),
    Layout("spaces round values", "r.csv", lambda rows: _lines(rows, ", "), format="plain"),
    Layout("iso times", "r.csv", lambda rows: _lines([(u, i, r, _iso(t)) for u, i, r, t in rows], ",")),
    Layout("pandas index", "r.csv", lambda rows: _csv(
        [["", *HEADER], *([n, *row] for n, row in enumerate(rows))]), left_out=("an unnamed index column",)),
    Layout("book-crossing", "BX-Book-Ratings.csv", lambda rows: _csv(
        [["User-ID", "ISBN", "Book-Rating"], *((u, _isbn(i), int(2 * r)) for u, i, r, _ in rows)],
        ";", "\r\n", csv.QUOTE_ALL), item=_isbn, rating=_double, time=None),
    Layout("amazon json", "reviews.jsonl", lambda rows: _jsonl(
        {"reviewerID": _buyer(u), "asin": _asin(i), "overall": r, "unixReviewTime": t} for u, i, r,
         t in rows),
        user=_buyer, item=_asin),
    Layout("pairs", "r.csv", lambda rows: _lines([row[:2] for row in rows], ","), rating=None, time=None),
    Layout("another order", "r.csv", lambda rows: _csv(
        [["movieId", "userId", "rating", "timestamp"], *((i, u, r, t) for u, i, r, t in rows)])),
    Layout("inter without rating", "r.inter", lambda rows: _csv(
        [["user_id:token", "item_id:token", "timestamp:float"], *((u, i, t) for u, i, _, t in rows)], "\t"),
        rating=None, format="recbole"),
    Layout("gzip", "r.csv.gz", lambda rows: gzip.compress(_csv([HEADER, *rows]).encode())),
    Layout("decimal parquet", "r.parquet", lambda rows: _arrow(
        user=[row[0] for row in rows], item=[row[1] for row in rows],
        rating=[Decimal(str(row[2])) for row in rows], timestamp=[row[3] for row in rows]), format="parquet"),
    Layout("date parquet", "r.parquet", lambda rows: _arrow(
        user=[row[0] for row in rows], item=[row[1] for row in rows], rating=[row[2] for row in rows],
        timestamp=[date.fromtimestamp(_day(row[3])) for row in rows]), time=_day, format="parquet"),
    Layout("ids above 2^63", "r.parquet", lambda rows: _arrow(
        user=pa.array([2**63 + row[0] for row in rows], pa.uint64()), item=[row[1] for row in rows],
        rating=[row[2] for row in rows], timestamp=[row[3] for row in rows]),
        user=lambda u: str(2**63 + u), format="parquet"),
    # pandas.
    Layout("pandas to_csv without header", "r.csv", lambda rows: _lines(rows, ","), format="plain"),
    Layout("pandas named index twice", "r.csv", lambda rows: _csv(
        [["Unnamed: 0", "Unnamed: 0.1", *HEADER], *([n, n, *row] for n, row in enumerate(rows))]),
        left_out=("Unnamed: 0", "Unnamed: 0.1")),
    Layout("pandas to_csv sep=tab", "r.tsv", lambda rows: _csv([HEADER, *rows], "\t")),
    Layout("pandas to_json lines", "r.jsonl", lambda rows: _jsonl(
        dict(zip(HEADER, row, strict=True)) for row in rows)),
    Layout("pandas to_json records", "r.json", lambda rows: json.dumps(
        [dict(zip(HEADER, row, strict=True)) for row in rows])),
    Layout("pandas float ids", "r.csv", lambda rows: _csv(
        [HEADER, *((float(u), float(i), r, t) for u, i, r, t in rows)])),
    Layout("pandas to_parquet float ids", "r.parquet", lambda rows: _arrow(
        user_id=[float(row[0]) for row in rows], item_id=[row[1] for row in rows],
        rating=[row[2] for row in rows]), time=None, format="parquet"),
    Layout("pandas categories", "r.parquet", lambda rows: _arrow(
        user_id=pa.array([f"u{row[0]}" for row in rows]).dictionary_encode(),
         item_id=[row[1] for row in rows],
        rating=pa.array([int(row[2]) for row in rows], pa.int8()),
        ts=pa.array([row[3] * 10**9 for row in rows], pa.timestamp("ns"))),
        user=lambda u: f"u{u}", format="parquet"),
    Layout("R write.csv", "r.csv", lambda rows: _csv(
        [["", *HEADER], *([str(n), *row] for n, row in enumerate(rows, 1))], quoting=csv.QUOTE_NONNUMERIC),
        left_out=("an unnamed index column",)),
    Layout("R write.table", "r.txt", lambda rows: '"user" "item" "rating"\n' + "".join(
        f'"{n}" {u} {i} {r:g}\n' for n, (u, i, r, _) in enumerate(rows, 1)), time=None,
        left_out=("an unnamed index column",)),
    # Spreadsheets.
    Layout("Excel, German", "r.csv", lambda rows: "\ufeff" + _csv(
        [["Benutzer", "Artikel", "Bewertung", "Datum"],
         *((u, i, f"{r + 0.5:.1f}".replace(".", ","), _iso(t, "%d.%m.%Y %H:%M")) for u, i, r, t in rows)],
        ";", "\r\n"), rating=lambda r: r + 0.5, time=_minute),
    Layout("Excel, sep line", "r.csv", lambda rows: "sep=;\r\n" + _csv([HEADER, *rows], ";", "\r\n")),
    Layout("Excel, empty columns and rows", "r.csv", lambda rows: _csv(
        [[*HEADER, "", ""], *([*row, "", ""] for row in rows), *[[""] * 6] * 3]),
        left_out=("an unnamed index column", "an unnamed index column")),
    Layout("Excel, unicode text", "r.txt", lambda rows: _csv([HEADER, *rows], "\t", "\r\n").encode("utf-16")),
    Layout("Excel, latin-1", "r.csv", lambda rows: _csv(
        [["user", "item", "rating", "Größe"], *((f"Zoë{u}", i, r, "ü") for u, i, r,
         _ in rows)]).encode("latin-1"),
        options={"encoding": "latin-1"}, user=lambda u: f"Zoë{u}", time=None, left_out=("Größe",)),
    Layout("old Mac line ends", "r.csv", lambda rows: _csv([HEADER, *rows], end="\r")),
    Layout("Google Forms", "r.csv", lambda rows: _csv(
        [["Timestamp", "User ID", "Item ID", "Rating"],
         *((_iso(t, "%m/%d/%Y %H:%M:%S"), u, i, r) for u, i, r, t in rows)])),
    # Warehouses and databases.
    Layout("BigQuery", "bq.csv", lambda rows: _csv(
        [["user_id", "item_id", "rating", "created_at"], *((u, i, r, _iso(t) + " UTC") for u, i, r,
         t in rows)])),
    Layout("BigQuery json", "bq.json", lambda rows: _jsonl(
        {"user_id": str(u), "item_id": str(i), "rating": r, "event_timestamp": _iso(t) + " UTC"}
        for u, i, r, t in rows)),
    Layout("Snowflake", "sf.csv.gz", lambda rows: gzip.compress(_csv(
        [["USER_ID", "ITEM_ID", "RATING", "CREATED_AT"],
         *((u, i, r, _iso(t) + ".000 Z") for u, i, r, t in rows)], quoting=csv.QUOTE_ALL).encode())),
    Layout("Redshift unload", "0000_part_00", lambda rows: _lines(rows, "|"),
           options={"columns": {"user": "1", "item": "2", "rating": "3", "time": "4"}}),
    Layout("PostgreSQL copy", "r.tsv", lambda rows: _csv(
        [["user_id", "item_id", "rating", "rated_at"],
         *((u, i, r, _iso(t, "%Y-%m-%d %H:%M:%S.250000+00")) for u, i, r, t in rows)], "\t")),
    Layout("PostgreSQL uuid", "r.csv", lambda rows: _csv(
        [["user_uuid", "item_id", "rating"], *((_uuid(u), i, r) for u, i, r, _ in rows)]), user=_uuid,
         time=None),
    Layout("SQL Server", "r.csv", lambda rows: _lines(
        [("{" + _uuid(u).upper() + "}", i, r) for u, i, r, _ in rows], ","),
        user=lambda u: "{" + _uuid(u).upper() + "}", time=None, format="plain"),
    Layout("Hive", "000000_0", lambda rows: _lines(rows, "\x01")),
    Layout("Hive, names of the table", "r.csv", lambda rows: _csv(
        [["reviews.user_id", "reviews.item_id", "reviews.stars"], *(row[:3] for row in rows)]), time=None),
    Layout("ClickHouse", "r.jsonl.zst", lambda rows: pa.compress(_jsonl(
        {"user_id": str(u), "item_id": str(i), "score": int(r), "event_time": _iso(t)} for u, i, r, t in rows)
        .encode(), codec="zstd", asbytes=True)),
    Layout("MongoDB export", "r.json", lambda rows: _jsonl(
        {"_id": {"$oid": f"{n:024x}"}, "userId": {"$oid": f"{u:024x}"}, "itemId": {"$numberLong": str(i)},
         "rating": {"$numberInt": str(int(r))}, "createdAt": {"$date": {"$numberLong": str(t * 1000)}}}
        for n, (u, i, r, t) in enumerate(rows)), user=lambda u: f"{u:024x}", left_out=("_id",)),
    Layout("MongoDB relaxed", "r.json", lambda rows: _jsonl(
        {"user": u, "item": i, "rating": r, "date": {"$date": _iso(t, "%Y-%m-%dT%H:%M:%S.500Z")}}
        for u, i, r, t in rows)),
    Layout("DynamoDB numbers as text", "r.jsonl", lambda rows: _jsonl(
        {"uid": f" {u} ", "iid": str(i), "rating": str(r), "ts": str(t)} for u, i, r, t in rows)),
    Layout("binary ids", "r.parquet", lambda rows: _arrow(
        user_id=pa.array([f"u{row[0]:02d}".encode() for row in rows], pa.binary(3)),
        item_id=pa.array([f"i{row[1]}".encode() for row in rows], pa.binary()),
        rating=[row[2] for row in rows]),
        user=lambda u: f"u{u:02d}", item=lambda i: f"i{i}", time=None, format="parquet"),
    Layout("decimal ids", "r.parquet", lambda rows: _arrow(
        user_id=pa.array([Decimal(row[0]) for row in rows], pa.decimal128(38, 0)),
        item_id=pa.array([Decimal(row[1]) for row in rows], pa.decimal128(20, 2)),
        rating=[row[2] for row in rows]), time=None, format="parquet"),
    Layout("negative hashes as ids", "r.csv", lambda rows: _csv(
        [["user_id", "item_id", "rating"], *((-u * 10**17, i, r) for u, i, r, _ in rows)]),
        user=lambda u: -u * 10**17, time=None),
    # Published sets.
    Layout("Goodreads", "goodreads.json.gz", lambda rows: gzip.compress(_jsonl(
        {"user_id": f"{u:032x}", "book_id": str(i), "review_id": f"{n:032x}", "rating": int(r),
         "review_text": 'a "b"\nc', "date_added": _iso(t, "%a %b %d %H:%M:%S -0700 %Y"), "read_at": ""}
        for n, (u, i, r, t) in enumerate(rows)).encode()),
        user=lambda u: f"{u:032x}", time=lambda t: t + 7 * 3600, left_out=("review_id", "review_text",
         "read_at")),
    Layout("Goodreads library", "library.csv", lambda rows: _csv(
        [["Book Id", "Title", "My Rating", "Date Added", "user"],
         *((i, f"A, {i}", int(r), _iso(t, "%Y/%m/%d"), u) for u, i, r, t in rows)]),
        time=_day, left_out=("Title",)),
    Layout("Yelp", "yelp_academic_dataset_review.json", lambda rows: _jsonl(
        {"review_id": f"r{n}", "user_id": f"u-{u}_", "business_id": f"b-{i}", "stars": r, "useful": 0,
         "text": "so, so", "date": _iso(t)} for n, (u, i, r, t) in enumerate(rows)),
        user=lambda u: f"u-{u}_", item=lambda i: f"b-{i}", left_out=("review_id", "useful", "text")),
    Layout("Steam, as Python writes it", "steam.json", lambda rows: "".join(
        repr({"username": f"o'{u}", "product_id": str(i), "hours": 1.5, "early_access": False,
         "date": _iso(t)[:10]})
        + "\n" for u, i, r, t in rows), user=lambda u: f"o'{u}", rating=None, time=_day,
        left_out=("hours", "early_access")),
    Layout("Netflix", "combined_data_1.txt", _netflix, time=_day),
    Layout("Amazon ratings only", "ratings_Video.csv", lambda rows: _lines(
        [(_buyer(u), _asin(i), r, t) for u, i, r, t in rows], ","), user=_buyer, item=_asin,
        format="plain"),
    Layout("Amazon 2014, loose json", "reviews.json", lambda rows: "".join(
        repr({"reviewerID": _buyer(u), "asin": _asin(i), "reviewerName": "J. 'Q'", "helpful": [0, 1],
              "overall": r, "unixReviewTime": t, "reviewTime": _iso(t, "%m %d, "
              "%Y")}) + "\n" for u, i, r, t in rows),
        user=_buyer, item=_asin, left_out=("reviewerName", "helpful", "reviewTime")),
    Layout("Amazon 2018, dates", "reviews.jsonl", lambda rows: _jsonl(
        {"reviewerID": _buyer(u), "asin": _asin(i), "overall": r, "reviewTime": _iso(t, "%m %d, %Y")}
        for u, i, r, t in rows), user=_buyer, item=_asin, time=_day),
    Layout("Amazon 2023", "All_Beauty.jsonl.gz", lambda rows: gzip.compress(_jsonl(
        {"rating": r, "title": "x", "asin": "v" + _asin(i), "parent_asin": _asin(i), "user_id": _buyer(u),
         "timestamp": t * 1000 + 7, "verified_purchase": True} for u, i, r, t in rows).encode()),
        user=_buyer, item=_asin, left_out=("title", "asin", "verified_purchase")),
    Layout("Food.com with reviews", "RAW_interactions.csv", lambda rows: _csv(
        [["user_id", "recipe_id", "rating", "review", "date"],
         *((u, i, r, text, _iso(t, "%Y-%m-%d")) for u, i, r, text, t in _review(rows))]),
        time=_day, left_out=("review",)),
    Layout("Anime", "rating.csv", lambda rows: _csv(
        [["user_id", "anime_id", "rating"], *((u, i, int(2 * r)) for u, i, r, _ in rows)]),
        rating=_double, time=None),
    Layout("BeerAdvocate", "beer.csv", lambda rows: _csv(
        [["review/profileName", "beer/beerId", "review/overall", "review/time", "beer/name"],
         *((f"p {u}", i, r, t, "x") for u, i, r, t in rows)]), user=lambda u: f"p {u}",
          left_out=("beer/name",)),
    Layout("Epinions", "ratings_data.txt", lambda rows: _lines([(u, i, int(r)) for u, i, r, _ in rows], " "),
           time=None, format="plain"),
    Layout("Jester, aligned", "jester.dat", lambda rows: "".join(
        f"  {u:>5}  {i:>5}   {r:6.3f}\n" for u, i, r, _ in rows), time=None),
    Layout("KONECT", "out.ratings", lambda rows: "% bip weighted\n% 1 2 3\n" + _lines(rows, " ")),
    Layout("Matrix Market", "r.mtx",
     lambda rows: "%%MatrixMarket matrix coordinate real general\n% x\n12 120 "
           f"{len(rows)}\n" + _lines([row[:3] for row in rows], " "), time=None),
    Layout("commented header", "r.txt", lambda rows: "# item\tuser\trating\n" + _lines(
        [(i, u, r) for u, i, r, _ in rows], "\t"), time=None),
    Layout("Retailrocket", "events.csv", lambda rows: _csv(
        [["timestamp", "visitorid", "event", "itemid", "transactionid"],
         *((t * 1000, u, "view", i, "") for u, i, _, t in rows)]), rating=None, left_out=("event",
          "transactionid")),
    Layout("Criteo-like days", "r.csv", lambda rows: _csv(
        [["uid", "iid", "rating", "day"], *((u, i, r, _iso(t, "%Y%m%d")) for u, i, r, t in rows)]),
         time=_day),
    # Libraries of recommenders.
    Layout("RecBole", "ml.inter", lambda rows: _csv(
        [["user_id:token", "item_id:token", "rating:float", "timestamp:float"], *rows], "\t"),
         format="recbole"),
    Layout("LibRec", "ratings.txt", lambda rows: _lines([row[:3] for row in rows], " "), time=None,
     format="plain"),
    Layout("Surprise", "u.data", lambda rows: _lines([(u, i, int(r), t) for u, i, r, t in rows], "\t"),
           format="movielens-100k"),
    Layout("MyMediaLite", "r.dat", lambda rows: _lines([(u, i, int(r), t) for u, i, r, t in rows], "::"),
           format="movielens-1m"),
    Layout("two colons, text ids", "r.dat", lambda rows: _lines(
        [(f"u{u}", i, int(r), t) for u, i, r, t in rows], "::"), user=lambda u: f"u{u}"),
    Layout("Cornac UIRT", "r.txt", lambda rows: _lines([(f"u{u}", f"i{i}", r, t) for u, i, r, t in rows],
     "\t"),
           user=lambda u: f"u{u}", item=lambda i: f"i{i}", format="plain"),
    Layout("Elliot", "dataset.tsv", lambda rows: _lines(rows, "\t"), format="plain"),
    Layout("MS recommenders", "r.csv", lambda rows: _csv(
        [["userID", "itemID", "rating", "timestamp"], *rows])),
    Layout("LensKit", "r.csv.bz2", lambda rows: bz2.compress(_csv(
        [["user", "item", "rating", "timestamp"], *rows]).encode())),
    Layout("TFRS, quoted bytes", "r.parquet", lambda rows: _arrow(
        user_id=pa.array([str(row[0]).encode() for row in rows], pa.binary()),
        movie_id=pa.array([str(row[1]).encode() for row in rows], pa.binary()),
        user_rating=pa.array([row[2] for row in rows], pa.float32()),
        timestamp=pa.array([row[3] for row in rows], pa.int32())), format="parquet"),
    Layout("given by name", "r.csv", lambda rows: _csv(
        [["who", "what", "how", "when"], *rows]),
        options={"columns": {"user": "who", "item": "what", "rating": "how", "time": "when"}}),
    Layout("given by number, seven columns", "r.csv", lambda rows: _lines(
        [("x", r, "y", u, "z", i, t) for u, i, r, t in rows], ","),
        options={"columns": {"rating": "2", "user": "4", "item": "6", "time": "7"}},
        left_out=("column 1", "column 3", "column 5")),
    Layout("given delimiter of two", "r.csv", lambda rows: _lines(rows, "~|"), options={"delimiter": "~|"}),
    Layout("header given", "r.csv", lambda rows: _csv([["a", "b", "3", "4"], *rows]), options={
        "header": True, "columns": {"user": "a", "item": "b", "rating": "3", "time": "4"}}),
]  # fmt: skip


def write(folder: Path, layout: Layout, rows: list[Row]) -> Path:
    path = folder / layout.file
    content = layout.write(rows)
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def naive(layout: Layout, rows: Iterable[Row]) -> list[tuple[object, object, float, int]]:
    kept = [
        (
            layout.user(user),
            layout.item(item),
            1.0 if layout.rating is None else layout.rating(rating),
            0 if layout.time is None else layout.time(time),
        )
        for user, item, rating, time in rows
    ]
    return sorted(kept)  # type: ignore[type-var]


def rows_of(read: RatingsFile) -> list[tuple[object, object, float, int]]:
    store = read.store
    store.validate()
    assert store.user_ids is not None
    assert store.item_ids is not None
    users, items = store.user_ids.tolist(), store.item_ids.tolist()
    times = [0] * store.n_ratings if store.timestamps is None else store.timestamps.tolist()
    found = zip(store.owners().tolist(), store.items.tolist(), store.decoded().tolist(), times, strict=True)
    return sorted((users[user], items[item], rating, time) for user, item, rating, time in found)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_is_read_to_exactly_its_rows(tmp_path: Path, layout: Layout) -> None:
    read = read_ratings(write(tmp_path, layout, ROWS), "auto", TableOptions(**layout.options))
    assert read.format == layout.format
    assert rows_of(read) == naive(layout, ROWS)
    assert read.implicit == (layout.rating is None)
    assert (read.store.timestamps is not None) == (layout.time is not None)
    assert read.left_out == layout.left_out
    assert (read.rows, read.skipped, read.duplicates, read.warnings) == (len(ROWS), 0, 0, ())


def test_there_are_forty_layouts_beside_the_cases() -> None:
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)
    assert len(LAYOUTS) == 83


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.few(20)
def test_a_layout_cut_into_blocks_is_read_alike(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.data.table.files.BLOCK_BYTES", 700)
    monkeypatch.setattr("edge.data.table.files._BATCH_ROWS", 13)
    monkeypatch.setattr("edge.data.table.files._PART_ROWS", 5)
    monkeypatch.setattr("edge.data.table.values._MERGED_IDS", 5)
    monkeypatch.setattr("edge.data.table.values._MOST_RESERVED_ROWS", 3)
    read = read_ratings(write(tmp_path, layout, ROWS), "auto", TableOptions(**layout.options))
    assert rows_of(read) == naive(layout, ROWS)
    assert read.rows == len(ROWS)


@pytest.mark.skipif(not hasattr(pa, "uuid"), reason="this pyarrow has no type of UUIDs")
def test_uuids_of_arrow_are_text_as_usual(tmp_path: Path) -> None:
    users = [uuid.UUID(int=7 << 64), uuid.UUID(int=1 << 90)]
    table = _arrow(user=pa.array([user.bytes for user in users], pa.uuid()), item=[1, 2], rating=[4, 5])
    pq.write_table(table, tmp_path / "r.parquet")
    store = read_ratings(tmp_path / "r.parquet").store
    assert store.user_ids is not None
    assert store.user_ids.tolist() == sorted(map(str, users))


def test_parts_of_spark_are_one_table(tmp_path: Path) -> None:
    halves = (ROWS[:50], [], ROWS[50:])
    for number, rows in enumerate(halves):
        text = _csv([["user_id", "item_id", "rating", "timestamp"], *rows]).encode()
        (tmp_path / f"part-{number:05d}-c000.csv.gz").write_bytes(gzip.compress(text) if rows else b"")
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / ".part-00000-c000.csv.gz.crc").write_bytes(b"crc")
    read = read_ratings(tmp_path)
    assert rows_of(read) == naive(LAYOUTS[0], ROWS)
    assert read.files == 2
    assert read.line().startswith(f"2 files of {tmp_path.name} (table): {len(ROWS)} ratings of 12 users")


def test_parquet_parts_below_folders_are_one_table(tmp_path: Path) -> None:
    for number, rows in enumerate((ROWS[:50], ROWS[50:])):
        folder = tmp_path / f"year=200{number}"
        folder.mkdir()
        users, items, ratings, times = _columns(rows)
        table = _arrow(user=users, item=items, rating=ratings, timestamp=times)
        pq.write_table(table, folder / "part-0.snappy.parquet")
    assert rows_of(read_ratings(tmp_path)) == naive(LAYOUTS[0], ROWS)


def test_a_part_with_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(_csv([HEADER, *ROWS]))
    (tmp_path / "b.csv").write_text(_csv([["item", "user", "rating", "timestamp"], *ROWS]))
    with pytest.raises(DataError, match=r"b\.csv: its columns are .* others than .* in a\.csv"):
        read_ratings(tmp_path)


def test_pyarrow_reads_as_many_rows(tmp_path: Path) -> None:
    path = write(tmp_path, LAYOUTS[0], ROWS)
    assert pacsv.read_csv(path).num_rows == read_ratings(path).rows
