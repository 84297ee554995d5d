"""What is said of tables: bad rows and where they are, guesses, scales, times, duplicates."""

from __future__ import annotations

import gzip
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge.core.errors import DataError
from edge.data.table.columns import KNOWN_NAMES, known_role
from edge.data.table.options import TableOptions
from edge.data.table.reading import RatingsFile, check_ratings, read_ratings


def _file(folder: Path, text: str | bytes, name: str = "r.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _read(folder: Path, text: str | bytes, **options: Any) -> RatingsFile:
    return read_ratings(_file(folder, text), "auto", TableOptions(**options))


def _ids(read: RatingsFile) -> list[object]:
    assert read.store.user_ids is not None
    return read.store.user_ids.tolist()  # type: ignore[no-any-return]


def _times(read: RatingsFile) -> list[int]:
    assert read.store.timestamps is not None
    return read.store.timestamps.tolist()  # type: ignore[no-any-return]


def test_no_name_is_known_for_two_roles() -> None:
    names = [name for ranks in KNOWN_NAMES.values() for rank in ranks for name in rank]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and name.isalnum() for name in names)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("user_id", "user"), ("USER-ID", "user"), ("uid", "user"), ("reviewerID", "user"), ("User Id",
         "user"),
        ("item_id", "item"), ("asin", "item"), ("movieId", "item"), ("business_id", "item"), ("ISBN", "item"),
        ("Book-Rating", "rating"), ("overall", "rating"), ("stars", "rating"),
        ("unixReviewTime", "time"), ("timestamp:float", "time"), ("t.created_at", "time"),
        ("review_id", None), ("title", None), ("id", None), ("", None),
    ],
)  # fmt: skip
def test_names_of_the_field_are_known(name: str, role: str | None) -> None:
    found = known_role(name)
    assert (None if found is None else found[0]) == role


def test_quotes_and_spaces_do_not_make_another_user(tmp_path: Path) -> None:
    read = _read(tmp_path, 'u1,i1,5\n"u1",i1,4\n u1 , "i2" ,3\n')
    assert _ids(read) == ["u1"]
    assert (read.store.n_items, read.duplicates) == (2, 1)
    assert "1 duplicate, the last kept" in read.line()
    assert read.store.decoded().tolist() == [4.0, 3.0]


@pytest.mark.parametrize(("rule", "rating"), [("last", 4.0), ("first", 5.0), ("mean", 4.5)])
def test_the_rule_for_duplicates_is_said_and_followed(tmp_path: Path, rule: str, rating: float) -> None:
    read = _read(tmp_path, "u,i,5\nu,i,4\n", duplicates=rule)
    assert read.store.decoded().tolist() == [rating]
    assert "1 duplicate, the" in read.line() or "1 duplicate, their mean" in read.line()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("1,10,978300760,5\n1,11,978302109,3\n", {},
         "r.csv: column 3, taken for the rating, looks like times; write data.columns, such as "
         "{user: 1, item: 2, time: 3, rating: 4}"),
        ("user,item,rating\n1,2,2008-01-02\n3,4,2008-01-02\n", {},
         "rating, taken for the rating, looks like times"),
        ("u,i,5\nu,j,\n", {}, "r.csv:2: rating is missing; leave such rows out with data.on_bad_row: skip"),
        ("u,i,5\nu,j,NA\n", {}, "r.csv:2: rating is missing"),
        ("u,i,5\nu,j,good\n", {}, "r.csv:2: rating 'good' is not a number"),
        ("u,i,5\nu,j,1e10\n", {}, "r.csv:2: rating 10000000000.0 is beyond 1e+09"),
        ("user;item;rating\nu;i;5\nu;j;4\n" + "u;k;3\n" * 300 + "u;l;1,5\n", {}, "write data.decimal: ','"),
        ("u;i;1,500\nu;j;2,000\n", {}, "write data.decimal: ',' or data.decimal: '.'"),
        ("user,item,rating\nu,i,5\nu,j\n", {}, "r.csv:3: 2 fields instead of 3; expected lines like 'u,i,5'"),
        ("u,i,5\n,j,4\n", {}, "r.csv:2: user is empty"),
        ("u,i,5,100\nu,j,4,later\nu,k,4,300\n", {}, "r.csv:2: time 'later' is not a time"),
        ("user,item,rating\nu,i,5\nu,j,7\n", {"scale": (1.0, 5.0)},
         "r.csv:3: rating 7.0 is outside data.scale, 1 to 5"),
        ("a,b,c\nu,i,5\n", {},
         "no column is known as the user; there are: a, b, c; write data.columns, such as "
         "{user: a, item: b, rating: c}, or --set 'data.columns={user: a, item: b, rating: c}'"),
        ("user,uid,item,rating\nu,v,i,5\n", {}, "columns user, uid could all be the user; name one"),
        ("user,item,rating,user\nu,i,5,v\n", {}, "columns user, user could all be the user; name one, "
         "data.columns: {user: 1}"),
        ('{"user": {"0": 1}, "item": {"0": 2}, "rating": {"0": 3}}', {},
         "'user' holds objects or lists; expected a text or a number, and one object a line (pandas:"),
        ("1,2,3\n".encode("utf-16-be"), {},
         "r.csv:1: a NUL byte; expected lines of text; if it is UTF-16, write"),
        ("user,item,rating\nu,i,5\nTotal: 1\n", {}, "r.csv:3: 1 field instead of 3"),
        ("user,item,rating\nu,i,5\n", {"columns": {"user": "who"}},
         "data.columns.user: there is no column 'who'; there are: user, item, rating"),
        ("u,i,5\nu,j,4\n", {"columns": {"user": "4", "item": "1"}},
         "they are numbered 1 to 3, without a header"),
        ("user,item,rating\nu,i,5\n", {"columns": {"rating": "user", "user": "1"}},
         "data.columns names one column twice"),
        ("1,2,3,4,5\n2,3,4,5,1\n", {}, "5 columns and no header with known names; write which is which"),
        ("".join(f"{n},{n % 3},{n % 5},{n % 4}\n" for n in range(20)), {}, "column 1 counts the rows"),
        (b"user,item,rating\nu,i,5\nu,j\xe9,4\n", {},
         "r.csv:3: byte 4 is not UTF-8; write data.encoding, such as latin-1"),
        ("user,item,rating\n", {}, "a header and no ratings"),
        ("user,item,rating\nu,i,\n", {"skip_bad_rows": True}, "no ratings; 1 rows were left out as bad ones"),
        ("u,i,5\nu,i,4\n", {"duplicates": "error"}, "rows 1 and 2 are both of user u and item i"),
        ("Hello there\n", {}, "is no row of a table"),
        (b"PK\x03\x04 and more", {}, "a zip archive or an Excel workbook"),
        ("<!DOCTYPE html>\n<html>not found</html>\n", {}, "the file is a web page, perhaps in place of"),
        (b"\x80\x04pickle", {}, "a pickle, which is never opened"),
        (gzip.compress(b"u,i,5\n" * 999, mtime=0)[:30], {}, "cannot be read"),
        ('{"user": 1, "item": 2, "rating": 3}\n{"user": \n', {}, "r.csv:2: '{\"user\": ' is no JSON object"),
        ('{\n"user": 1}\n', {}, "one object a line (pandas: orient='records', lines=True)"),
        ('[{"user": 1}, 2]', {}, "element 2 is '2'; expected an object"),
        ("u,i,5,01/02/2008\nu,j,4,03/04/2008\n", {"columns": {"user": "1", "item": "2", "rating": "3",
         "time": "4"}},
         "fit both %m/%d/%Y and %d/%m/%Y"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_to_write(
    tmp_path: Path, text: str | bytes, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        _read(tmp_path, text, **options)
    assert str(caught.value).startswith(str(tmp_path / "r.csv"))
    assert message in str(caught.value)


def test_bad_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    text = "user,item,rating\nu,i,5\nu,j,\nu,k,NULL\nu,l,good\n,m,3\nu,n\n\nu,o,4\nu,p,9\n"
    read = _read(tmp_path, text, skip_bad_rows=True, scale=(1.0, 5.0))
    assert (read.rows, read.skipped) == (2, 6)
    assert "6 bad rows skipped" in read.line()
    assert read.store.decoded().tolist() == [5.0, 4.0]


def test_lines_of_later_blocks_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.data.table.files.BLOCK_BYTES", 64)
    rows = [f'u{n},"i{n}",{n % 5}\n' for n in range(100)]
    rows[70] = 'u70,"i\n70",bad\n'
    with pytest.raises(DataError, match=r"r\.csv:73: rating 'bad' is not a number"):
        # A header before, and a line end inside the row: its last line is 1 + 71 + 1.
        _read(tmp_path, "user,item,rating\n" + "".join(rows))


def _readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("table")]


@pytest.mark.parametrize("later", ["u,i\n", "u,i,\xff\n", "u,i,5\0\n"])
def test_the_first_bad_row_is_named_though_the_next_block_is_read_before_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    monkeypatch.setattr("edge.data.table.files.BLOCK_BYTES", 60)
    good = ["u,i,5\n"] * 10
    rows = "".join(["u,j,bad\n", *good, later, *good])
    path = _file(tmp_path, ("user,item,rating\n" + "".join(good) + rows).encode("latin-1"))
    # The check of the head would refuse a NUL before anything is read.
    monkeypatch.setattr("edge.data.table.files._HEAD_BYTES", 60)
    with pytest.raises(DataError, match=r"r\.csv:12: rating 'bad' is not a number"):
        read_ratings(path)
    assert _readers() == []


@pytest.mark.parametrize("ends", [KeyboardInterrupt, MemoryError])
def test_no_thread_is_left_of_a_reading_that_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: type[BaseException]
) -> None:
    monkeypatch.setattr("edge.data.table.files.BLOCK_BYTES", 60)
    seen: list[list[str]] = []

    def take(*_: object) -> None:
        seen.append(_readers())
        raise ends

    monkeypatch.setattr("edge.data.table.reading._TableReader._take", take)
    with pytest.raises(ends):
        _read(tmp_path, "user,item,rating\n" + "u,i,5\n" * 100)
    assert (len(seen), len(seen[0]), _readers()) == (1, 1, [])


def test_a_column_of_line_ends_and_quotes_is_passed_over(tmp_path: Path) -> None:
    rows = "".join(f'u{n},"He said ""no"",\n\n{n}; \\"x\\" ",i{n},{n % 5}\n' for n in range(400))
    read = _read(tmp_path, "user,review,item,rating\n" + rows)
    assert (read.rows, read.left_out) == (400, ("review",))


def test_a_comma_is_the_decimal_mark_where_it_is_given_or_certain(tmp_path: Path) -> None:
    assert _read(tmp_path, "u;i;1,5\nu;j;2\n").store.decoded().tolist() == [1.5, 2.0]
    given = _read(tmp_path, "u;i;1,500\nu;j;2,000\n", decimal=",")
    assert given.store.decoded().tolist() == [1.5, 2.0]
    assert _read(tmp_path, 'u,i,"1,5"\nu,j,"2,5"\n').store.decoded().tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1206914169", 1_206_914_169),
        ("1206914169.75", 1_206_914_169),
        ("1206914169123", 1_206_914_169),
        ("1206914169123456", 1_206_914_169),
        ("1206914169123456789", 1_206_914_169),
        ("2008-03-30T21:56:09Z", 1_206_914_169),
        ("2008-03-30T23:56:09+02:00", 1_206_914_169),
        ("2008-03-30 21:56:09.123 UTC", 1_206_914_169),
        ("2008-03-30", 1_206_835_200),
        ("20080330", 1_206_835_200),
        ("30.03.2008", 1_206_835_200),
        ("3/30/2008", 1_206_835_200),
        ("30/03/2008", 1_206_835_200),
        ("Mar 30, 2008", 1_206_835_200),
        ("30-Mar-2008", 1_206_835_200),
        ("90", 90),
        ("-5", -5),
    ],
)
def test_times_come_in_many_forms(tmp_path: Path, written: str, seconds: int) -> None:
    read = _read(tmp_path, f'user,item,rating,time\nu,i,5,"{written}"\n')
    assert _times(read) == [seconds]


def test_times_that_are_missing_are_zero_and_counted(tmp_path: Path) -> None:
    for time in ("100", "2008-03-30"):
        read = _read(tmp_path, f"user,item,rating,time\nu,i,5,{time}\nu,j,4,\n")
        assert _times(read)[1] == 0
        assert "1 rows without a time" in read.line()


@pytest.mark.parametrize(
    ("dates", "why"),
    [
        (("01/02/2008", "03/04/2008"), "its dates fit both %m/%d/%Y and %d/%m/%Y"),
        (("soon", "later"), "not understood as times"),
    ],
)
def test_times_that_are_not_understood_are_left_out_and_said(
    tmp_path: Path, dates: tuple[str, str], why: str
) -> None:
    read = _read(tmp_path, f"user,item,rating,date\nu,i,5,{dates[0]}\nu,j,4,{dates[1]}\n")
    assert read.store.timestamps is None
    assert read.left_out == (f"date ({why})",)
    assert f"left out date ({why})" in read.line()


def test_a_day_beyond_twelve_decides_between_day_and_month(tmp_path: Path) -> None:
    read = _read(tmp_path, "user,item,rating,date\nu,i,5,01/02/2008\nu,j,4,13/02/2008\n")
    assert np.diff(_times(read)).tolist() == [12 * 86_400]


def test_outliers_of_a_scale_are_warned_about_with_the_row(tmp_path: Path) -> None:
    rows = [f"u{n},i,{1 + n % 5}\n" for n in range(300)]
    rows[123] = "u123,i,55\n"
    rows[50] = "u50,i,\n"
    read = _read(tmp_path, "user,item,rating\n" + "".join(rows), skip_bad_rows=True)
    assert read.warnings == (
        "1 rating is outside 1 to 5, where all others are: 55 in row 124; if it is wrong, write "
        "data.scale: [1, 5] and on_bad_row: skip",
    )


def test_ids_of_any_type_stay_apart(tmp_path: Path) -> None:
    assert _ids(_read(tmp_path, "007,i,5\n7,i,4\n")) == ["007", "7"]
    assert _ids(_read(tmp_path, "9223372036854775808,i,5\n10,i,4\n")) == ["10", "9223372036854775808"]
    assert _ids(_read(tmp_path, "1.0,i,5\n2.0,i,4\n")) == [1, 2]
    assert _ids(_read(tmp_path, "1.5,i,5\n2.0,i,4\n")) == ["1.5", "2.0"]
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"user": [1.5], "item": [1], "rating": [5]}), path)
    with pytest.raises(
        DataError, match=r"r\.parquet: column 'user' is double; ids are whole numbers or text"
    ):
        read_ratings(path)


@pytest.mark.parametrize(
    "parts",
    [
        ([7, 3], [3, -1]),
        ([7, 3], [2**40, 7]),
        ([2**40, 7], [7, 3]),
        ([7, 3], ["u", "7"]),
        (["u", "7"], [7, 3]),
        ([7, 3], [3, None], [5, 7]),
        ([2**63, 7], [7, 3], ["u", "7"]),
    ],
)
def test_users_are_the_same_in_parts_with_ids_of_other_kinds(
    tmp_path: Path, parts: tuple[list[Any], ...]
) -> None:
    rated = set()
    for number, users in enumerate(parts):
        kind = pa.uint64() if 2**63 in users else None
        items = [2 * number, 2 * number + 1]
        columns = {"user": pa.array(users, kind), "item": items, "rating": [float(number)] * 2}
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
        pairs = zip(users, items, strict=True)
        rated |= {(user, item, number) for user, item in pairs if user is not None}
    if any(user == "u" for user, _, _ in rated):
        rated = {(str(user), item, number) for user, item, number in rated}
    read = read_ratings(tmp_path, "table", TableOptions(skip_bad_rows=True, duplicates="error"))
    store, ids = read.store, _ids(read)
    assert ids == sorted({user for user, _, _ in rated})
    assert (read.rows, read.skipped) == (len(rated), 2 * len(parts) - len(rated))
    assert store.item_ids is not None
    items = store.item_ids[store.items].tolist()
    triples = zip(store.owners().tolist(), items, store.decoded().tolist(), strict=True)
    assert {(ids[user], item, rating) for user, item, rating in triples} == rated


@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_parts_of_parquet_share_the_ids_of_their_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coded: bool, kind: Any
) -> None:
    monkeypatch.setattr("edge.data.table.files._BATCH_ROWS", 400)
    monkeypatch.setattr("edge.data.table.files._ENCODED_ROWS", 700)
    monkeypatch.setattr("edge.data.table.files._PART_ROWS", 60)
    users = [f"u{97 * n % 13}" for n in range(2000)]
    table = pa.table({"user": pa.array(users, kind), "item": list(range(2000)), "rating": [3.0] * 2000})
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=900, use_dictionary=coded)
    read = read_ratings(tmp_path / "r.parquet")
    owners = [_ids(read)[user] for user in read.store.owners()]
    assert sorted(zip(read.store.items.tolist(), owners, strict=True)) == list(enumerate(users))


def test_a_few_large_numbers_as_ids_take_little_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        read = _read(tmp_path, "user,item,rating\n2000000000,1,5\n3,2,4\n")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert _ids(read) == [3, 2_000_000_000]
    assert peak_bytes < 200 << 20


def test_more_rows_than_the_first_lines_promise_are_read(tmp_path: Path) -> None:
    long = "".join(f"{'u' * 3000}{n},i,5\n" for n in range(100))
    short = "".join(f"{n % 50},j{n},{n % 5}\n" for n in range(100_000))
    read = _read(tmp_path, "user,item,rating\n" + long + short)
    assert (read.rows, read.store.n_users) == (100_100, 150)
    assert read.store.local(_ids(read).index("7"))[1].tolist() == [2.0] * 2000


def test_ids_of_many_parts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"user": [{"a": 1, "b": 2}], "item": [1], "rating": [5]}), path)
    with pytest.raises(DataError, match=r"column 'user' is struct<.*>; ids are whole numbers or text"):
        read_ratings(path)


@pytest.mark.parametrize("header", ["user,item,rating,", "user,item,rating"])
def test_a_delimiter_at_the_end_of_lines_is_no_column(tmp_path: Path, header: str) -> None:
    read = _read(tmp_path, f"{header}\nu,i,5,\nv,i,4,\n")
    assert (_ids(read), read.store.decoded().tolist()) == (["u", "v"], [5.0, 4.0])


def test_binary_ids_that_are_no_text_are_hexadecimal(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    users = pa.array([b"\xff\x00", b"\x80\x81"], pa.binary(2))
    pq.write_table(pa.table({"user": users, "item": [1, 1], "rating": [5, 4]}), path)
    assert _ids(read_ratings(path)) == ["8081", "ff00"]


def test_guesses_and_left_out_columns_are_said(tmp_path: Path) -> None:
    assert (
        "columns user = column 1, item = column 2, rating = column 3, guessed by position"
        in _read(tmp_path, "u,i,5\n").line()
    )
    read = _read(tmp_path, ",user,item,rating\n0,u,i,5\n")
    assert read.line().endswith("left out an unnamed index column")


def test_a_column_can_be_refused(tmp_path: Path) -> None:
    read = _read(tmp_path, "user,item,rating,time\nu,i,5,100\n", columns={"rating": "none", "time": "none"})
    assert read.implicit
    assert (read.store.timestamps, read.left_out) == (None, ("rating", "time"))
    assert read.line().endswith("no rating column: implicit feedback")


def test_a_check_reads_the_first_block_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.data.table.files.BLOCK_BYTES", 64)
    path = _file(tmp_path, "user,item,rating\n" + "u,i,5\n" * 50 + "u,j,bad\n")
    assert dict(check_ratings(path, "auto", TableOptions()).index) == {"user": 0, "item": 1, "rating": 2}
    with pytest.raises(DataError, match=r"r\.csv:52: "):
        read_ratings(path)


def test_the_message_of_the_most_particular_reader_is_shown(tmp_path: Path) -> None:
    path = _file(tmp_path, "1\t1\t5\t100\n1\tx\t5\t100\n", "u.data")
    with pytest.raises(DataError, match=r"u\.data:2: item 'x' is not a whole number"):
        read_ratings(tmp_path)
    with pytest.raises(
        DataError, match=r"expected 'userId,movieId,rating,timestamp'; for another, source: table"
    ):
        read_ratings(path, "movielens-csv")
