"""Prepared ratings are those of the file, to the last bit, in any number of row groups."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge.core.errors import DataError
from edge.data.table import prepared
from edge.data.table.options import TableOptions
from edge.data.table.prepared import MANIFEST_FILE, TABLE_FILE, check_prepared, prepare_ratings
from edge.data.table.reading import read_ratings

ROWS = [
    (user, item, stars / 2, 1_200_000_000 + time)
    for draws in [random.Random(3)]
    for user, item, stars, time in (
        (draws.randrange(60), draws.randrange(50), draws.randrange(1, 11), draws.randrange(9))
        for _ in range(900)
    )
]
"""Many pairs stand twice, some at the same time."""


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be several row groups, and chunks that end within them."""
    monkeypatch.setattr(prepared, "_GROUP_ROWS", 100)
    monkeypatch.setattr(prepared, "_CHUNK_ROWS", 64)


def written(folder: Path, rows: list[tuple[object, ...]], header: str = "user,item,rating,time") -> Path:
    file = folder / "r.csv"
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return file


def named(ids: str) -> list[tuple[object, ...]]:
    match ids:
        case "numbers":
            return [*ROWS]
        case "large numbers":
            return [(user * 10**15 - 7, item - 20, *rest) for user, item, *rest in ROWS]
        case _:
            return [(f"ü {user:03}", f"{item:02}", *rest) for user, item, *rest in ROWS]


@pytest.mark.parametrize("duplicates", ["last", "first", "mean"])
@pytest.mark.parametrize("ids", ["numbers", "large numbers", "text"])
def test_what_is_prepared_is_read_as_the_file(tmp_path: Path, ids: str, duplicates: str) -> None:
    file, options = written(tmp_path, named(ids)), TableOptions(duplicates=duplicates)
    facts = prepare_ratings(file, tmp_path / "out", options=options)
    whole, again = read_ratings(file, options=options), read_ratings(tmp_path / "out")
    assert whole.duplicates > 0
    assert again.store.content_hash() == whole.store.content_hash()
    assert facts.line() == whole.line()
    assert (again.format, again.duplicates, again.by_position) == ("parquet", 0, False)


def test_rows_that_are_left_out_and_times_that_are_unknown_stay_so(tmp_path: Path) -> None:
    # The id of a bad row alone is text, and one time is a year in which seconds look like days.
    rows = [*ROWS, ("nobody", 1, "", 1_200_000_000), (7, 49, 3, ""), (8, 49, 3, -5)]
    file, options = written(tmp_path, rows), TableOptions(skip_bad_rows=True)
    facts = prepare_ratings(file, tmp_path / "out", options=options)
    whole, again = read_ratings(file, options=options), read_ratings(tmp_path / "out")
    assert (facts.skipped, again.skipped) == (1, 0)
    assert whole.store.user_ids is not None
    assert whole.store.user_ids.dtype == np.int64
    assert again.store.content_hash() == whole.store.content_hash()


@pytest.mark.parametrize("unit", [10**6, 20_080_330 / 1_200_000_000])
def test_times_of_any_unit_are_seconds_afterwards(tmp_path: Path, unit: float) -> None:
    file = written(tmp_path, [(user, item, stars, int(time * unit)) for user, item, stars, time in ROWS])
    prepare_ratings(file, tmp_path / "out")
    assert read_ratings(tmp_path / "out").store.content_hash() == read_ratings(file).store.content_hash()


def test_pairs_without_ratings_and_times(tmp_path: Path) -> None:
    file = written(tmp_path, [row[:2] for row in ROWS], "user,item")
    facts = prepare_ratings(file, tmp_path / "out")
    again = read_ratings(tmp_path / "out")
    assert facts.implicit
    assert again.implicit
    assert again.store.timestamps is None
    assert again.store.content_hash() == read_ratings(file).store.content_hash()


def test_a_row_group_has_all_ratings_of_its_users(tmp_path: Path) -> None:
    rows = [*((0, item, 3.0, 0) for item in range(250)), *ROWS]
    facts = prepare_ratings(written(tmp_path, rows), tmp_path / "out")
    with pq.ParquetFile(tmp_path / "out" / TABLE_FILE) as table:
        groups = [table.read_row_group(at, ["user"])["user"].to_numpy() for at in range(table.num_row_groups)]
    for before, after in pairwise(groups):
        assert before[-1] < after[0]
    assert len(groups) > 5
    assert sum(map(len, groups)) == facts.ratings
    manifest = json.loads((tmp_path / "out" / MANIFEST_FILE).read_text(encoding="utf-8"))
    assert manifest["row_groups"] == len(groups)
    assert (manifest["ratings"], manifest["rows"]) == (facts.ratings, len(rows))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "r.csv"]


def test_a_table_that_was_changed_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare_ratings(written(tmp_path, [*ROWS]), out)
    check_prepared(out)
    table = pq.read_table(out / TABLE_FILE)
    pq.write_table(table.slice(1), out / TABLE_FILE)
    with pytest.raises(DataError, match=r"ratings\.parquet: is not what _manifest\.json was written with"):
        check_prepared(out)
    (out / MANIFEST_FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"_manifest\.json: is no manifest of prepared ratings"):
        check_prepared(out)


def test_what_cannot_be_prepared_leaves_nothing(tmp_path: Path) -> None:
    file, out = written(tmp_path, [*ROWS]), tmp_path / "out"
    with pytest.raises(DataError, match=r"\d+ rows repeat a user's rating of an item; keep one of each"):
        prepare_ratings(file, out, options=TableOptions(duplicates="error"))
    quoted = tmp_path / "quoted.parquet"
    ids = ['""a""', "b"]
    pq.write_table(pa.table({"user": ids, "item": [1, 2], "rating": [3, 4]}), quoted)
    with pytest.raises(DataError, match=r"""id '"a"' would be read as another one; take its quotes away"""):
        prepare_ratings(quoted, out)
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(DataError, match="out: is there already; write another folder, or remove it"):
        prepare_ratings(file, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "quoted.parquet", "r.csv"]
