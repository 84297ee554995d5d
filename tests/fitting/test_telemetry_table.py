from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge.core.errors import DataError
from edge.fitting.importers import read_telemetry
from edge.fitting.telemetry import COLUMNS, table_of, telemetry_of

TRANSFER: dict[str, Any] = {
    "kind": "transfer",
    "device": "a",
    "time_s": 5.0,
    "direction": "down",
    "bytes": 1000.0,
    "seconds": 0.5,
    "ok": True,
}


def _table(**columns: Any) -> Any:
    row = {key: [value, value] for key, value in TRANSFER.items()} | columns
    return pa.table({key: value for key, value in row.items() if value is not None})


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"kind": None}, "has no column 'kind'"),
        ({"kind": ["transfer", "upload"]}, "row 2, column 'kind': upload; write one of transfer"),
        ({"bytes": None}, "has no column 'bytes', which rows of kind 'transfer' need"),
        ({"device": ["a", ""]}, "row 2, column 'device'"),
        ({"device": [None, "a"]}, "row 1, column 'device': nothing"),
        ({"seconds": [0.5, -1.0]}, "row 2, column 'seconds': -1.0; write a time above zero"),
        ({"seconds": [0.0, 1.0]}, "row 1, column 'seconds'"),
        (
            {"seconds": [None, 1.0]},
            "row 1, column 'seconds': nothing; write how long it took, or 'ok' as false",
        ),
        ({"seconds": [1e9, 1.0]}, "a week is the most"),
        ({"seconds": [float("inf"), 1.0]}, "write a finite number"),
        ({"seconds": ["fast", "slow"]}, "column 'seconds' holds string; write numbers, s"),
        ({"bytes": [-5.0, 1.0]}, "row 1, column 'bytes': -5.0"),
        ({"bytes": [1e15, 1.0]}, "more than 100 Gbit/s"),
        ({"direction": ["down", "sideways"]}, "row 2, column 'direction': sideways; write one of down, up"),
        ({"span": ["body", "all"]}, "row 2, column 'span': all; write one of body, one-way, answer"),
        ({"time_s": [1.7e12, 1.0]}, "write seconds, not milliseconds"),
        ({"time_s": [float("nan"), 1.0]}, "row 1, column 'time_s': nothing"),
        ({"server_s": [0.1, 0.6]}, "row 2, column 'server_s': 0.6"),
        ({"ok": ["yes", "no"]}, "column 'ok' holds string; write true or false"),
        ({"handshakes": [1, 9]}, "row 2, column 'handshakes': 9.0"),
        ({"rtt_s": [-0.1, 0.1]}, "row 1, column 'rtt_s'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_is_refused_with_its_place(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        telemetry_of("t.parquet", _table(**columns))
    assert str(caught.value).startswith("t.parquet: ")
    assert said in str(caught.value)


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(DataError, match="has no rows; give at least 30 transfers of 10 devices"):
        telemetry_of("t.parquet", _table().slice(0, 0))


def test_timestamps_have_a_zone() -> None:
    naive = pa.array([0, 1_500_000], pa.timestamp("us"))
    with pytest.raises(DataError, match="have no zone"):
        telemetry_of("t", _table(time_s=None, time=naive))
    found = telemetry_of("t", _table(time_s=None, time=naive.cast(pa.timestamp("us", "UTC"))))
    assert found.columns["time_s"].tolist() == [0.0, 1.5]


def test_failed_transfers_need_no_time_and_other_columns_are_ignored() -> None:
    found = telemetry_of("t", _table(ok=[True, False], seconds=[1.0, None], weather=["sun", "rain"]))
    assert len(found) == 2
    assert set(found.columns) == set(COLUMNS)


def test_a_table_reads_back_from_parquet_and_csv(tmp_path: Path) -> None:
    rows = {key: [value] * 3 for key, value in TRANSFER.items()} | {
        "network": ["lte", None, "wifi"],
        "cold": [True, None, False],
    }
    table = table_of(rows)
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text(
        "kind,device,network,time_s,ok,seconds,direction,bytes,cold\n"
        + "".join(
            f"transfer,a,{n},5,true,0.5,down,1000,{c}\n"
            for n, c in (("lte", "true"), ("", ""), ("wifi", "false"))
        )
    )
    one, other = (read_telemetry([tmp_path / name], None, {}) for name in ("t.parquet", "t.csv"))
    for key in ("device", "network", "seconds", "direction"):
        assert [value or None for value in other.columns[key]] == [
            value or None for value in one.columns[key]
        ], key
    assert str(other.columns["cold"].tolist()) == str(one.columns["cold"].tolist()) == "[1.0, nan, 0.0]"
    given = read_telemetry([tmp_path / "t.csv"], "table", {"network": "5g"})
    assert given.columns["network"].tolist() == ["5g"] * 3


@pytest.mark.parametrize("contents", [b"", b"PAR1", b"PAR1junkjunkPAR1", b"\xff\xfe\x00", b"a,b\n1\n"])
def test_a_file_that_is_no_table_is_refused(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(contents)
    with pytest.raises(DataError) as caught:
        read_telemetry([path], "table", {})
    assert str(path) in str(caught.value)


def test_the_page_has_every_column_with_its_meaning() -> None:
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
    for name, spec in COLUMNS.items():
        needed = "all" if len(spec.needed) == 3 else ", ".join(spec.needed)
        assert f"| `{name}` | {spec.type} | {needed} | {spec.unit} | {spec.meaning} |" in page
