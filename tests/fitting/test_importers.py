from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge.core.errors import DataError
from edge.fitting.importers import read_telemetry, source_of

FIREBASE: list[dict[str, Any]] = [
    {
        "event_timestamp": "2024-03-01 12:00:00.250000 UTC",
        "event_type": "NETWORK_REQUEST",
        "radio_type": "LTE",
        "device_name": "Pixel 6",
        "os_version": "33",
        "carrier": "One",
        "country": "IE",
        "custom_attributes": [{"key": "device", "value": "p1"}],
        "network_info": {
            "response_code": "200",
            "request_payload_bytes": "100000",
            "response_payload_bytes": "5000",
            "request_completed_time_us": "400000",
            "response_initiated_time_us": "450000",
            "response_completed_time_us": "460000",
        },
    },
    {
        "event_timestamp": "2024-03-01 12:00:05 UTC",
        "event_type": "DURATION_TRACE",
        "trace_info": {"duration_us": "5"},
    },
    {
        "event_timestamp": "2024-03-01 12:01:00 UTC",
        "event_type": "NETWORK_REQUEST",
        "radio_type": "WIFI",
        "device_name": "Pixel 6",
        "os_version": "33",
        "carrier": "One",
        "country": "IE",
        "network_info": {
            "response_payload_bytes": None,
            "request_payload_bytes": "20",
            "request_completed_time_us": "1000",
            "response_initiated_time_us": "31000",
            "response_completed_time_us": "32000",
        },
    },
]


def _read(path: Path, text: str, source: str | None = None, **given: str) -> Any:
    path.write_text(text, encoding="utf-8")
    return read_telemetry([path], source, given)


def _rows(telemetry: Any, *keys: str) -> list[tuple[Any, ...]]:
    return list(zip(*(telemetry.columns[key].tolist() for key in keys), strict=True))


@pytest.mark.parametrize("form", ["lines", "list", "parquet"])
def test_firebase_rows_become_transfers(form: str, tmp_path: Path) -> None:
    path = tmp_path / "export"
    if form == "parquet":
        whole = {key for row in FIREBASE for key in row}
        pq.write_table(pa.Table.from_pylist([{key: row.get(key) for key in whole} for row in FIREBASE]), path)
        found = read_telemetry([path], None, {})
    else:
        text = "\n".join(map(json.dumps, FIREBASE)) if form == "lines" else json.dumps(FIREBASE)
        found = _read(path, text)
    keys = ("device", "class", "network", "direction", "bytes", "seconds", "span")
    assert _rows(found, *keys) == [
        ("p1", "Pixel 6", "LTE", "down", 5000.0, pytest.approx(0.01), "body"),
        ("p1", "Pixel 6", "LTE", "up", 100000.0, pytest.approx(0.4), "body"),
    ]
    assert found.columns["time_s"].tolist() == pytest.approx([1709294400.7, 1709294400.25])
    assert found.columns["rtt_s"].tolist() == [pytest.approx(0.05), pytest.approx(float("nan"), nan_ok=True)]
    # The last one has no size, and an upload that ends in a buffer.
    assert found.dropped["no size, or 0 bytes"] == 1
    assert any(reason.startswith("uploads below") for reason in found.dropped)


def _attribute(key: str, **value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def test_spans_become_answers(tmp_path: Path) -> None:
    def span(kind: Any, sent: int, got: int, *more: dict[str, Any], code: bool = True) -> dict[str, Any]:
        told = [
            _attribute("http.request.body.size", intValue=str(sent)),
            _attribute("http.response.body.size", intValue=str(got)),
        ]
        status = [_attribute("http.response.status_code", intValue="200")] if code else []
        return {
            "kind": kind,
            "startTimeUnixNano": "1709294400000000000",
            "endTimeUnixNano": "1709294400200000000",
            "attributes": [*told, *status, *more],
        }

    spans = [
        span(3, 10, 9000),
        span("SPAN_KIND_CLIENT", 70_000, 12),
        span(2, 1, 1),
        span(3, 5000, 5000),
        span(3, 0, 900, _attribute("http.request.resend_count", intValue="1")),
        span(3, 0, 4000, code=False),
    ]
    told = [
        _attribute("device.id", stringValue="d7"),
        _attribute("device.model.identifier", stringValue="SM-1"),
        _attribute("network.connection.type", stringValue="cell"),
        _attribute("network.connection.subtype", stringValue="lte"),
    ]
    document = {"resourceSpans": [{"resource": {"attributes": told}, "scopeSpans": [{"spans": spans}]}]}
    found = _read(tmp_path / "spans.json", json.dumps(document))
    assert _rows(found, "device", "class", "network", "direction", "bytes", "span", "ok") == [
        ("d7", "SM-1", "cell lte", "down", 9000.0, "answer", 1.0),
        ("d7", "SM-1", "cell lte", "up", 70_000.0, "answer", 1.0),
        ("d7", "SM-1", "cell lte", "down", 4000.0, "answer", 0.0),
    ]
    assert found.columns["seconds"][0] == pytest.approx(0.2)
    assert sum(found.dropped.values()) == 2


def test_a_har_file_is_a_device(tmp_path: Path) -> None:
    entry = {
        "startedDateTime": "2024-03-01T12:00:00.000Z",
        "request": {"bodySize": 80_000},
        "response": {"status": 200, "bodySize": 40_000},
        "timings": {"blocked": 1, "dns": -1, "connect": 60, "ssl": 35, "send": 20, "wait": 30, "receive": 80},
    }
    cached = entry | {"response": {"status": 200, "bodySize": 0}, "request": {"bodySize": 0}}
    failed = entry | {"response": {"status": 0, "bodySize": -1}}
    found = _read(
        tmp_path / "phone7.har", json.dumps({"log": {"entries": [entry, cached, failed]}}), network="lte"
    )
    assert _rows(found, "device", "network", "direction", "bytes", "ok") == [
        ("phone7", "lte", "down", 40_000.0, 1.0),
        ("phone7", "lte", "up", 80_000.0, 1.0),
        ("phone7", "lte", "down", 0.0, 0.0),
    ]
    assert found.columns["seconds"][:2].tolist() == pytest.approx([0.08, 0.02])
    assert found.columns["rtt_s"][0] == pytest.approx(0.025)
    assert found.columns["time_s"][0] == pytest.approx(1709294400.0 + 0.111)


def test_timings_of_curl(tmp_path: Path) -> None:
    got = {
        "time_namelookup": 0.01,
        "time_connect": 0.05,
        "time_appconnect": 0.1,
        "time_pretransfer": 0.1,
        "time_starttransfer": 0.15,
        "time_total": 0.35,
        "size_download": 90_000,
        "size_upload": 0,
        "num_connects": 1,
    }
    sent = got | {"size_download": 20, "size_upload": 200_000, "num_connects": 0, "device": 5, "time_s": 99}
    failed = got | {"exitcode": 28}
    found = _read(tmp_path / "c.jsonl", "\n".join(map(json.dumps, (got, sent, failed))), device="mine")
    assert _rows(found, "device", "direction", "bytes", "span", "ok") == [
        ("mine", "down", 90_000.0, "body", 1.0),
        ("mine", "up", 200_000.0, "answer", 1.0),
        ("mine", "down", 0.0, "body", 0.0),
    ]
    assert found.columns["seconds"][:2].tolist() == pytest.approx([0.2, 0.05])
    assert found.columns["rtt_s"][0] == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[1, 2]", "entry 1 is no object"),
        ('{"a": 1}', "JSON of no known kind; say which with --from firebase"),
        ('{"log": {"entries": 5}}', "no transfer in it can be used"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [5, null]}]}]}', "no transfer in it can be used"),
        (
            '{"event_type": "NETWORK_REQUEST", "event_timestamp": "noon",'
            ' "network_info": {"response_completed_time_us": "5"}}',
            "'noon' is no time",
        ),
        ("[" * 50_000, "is nested too deeply"),
        ('{"time_total": "x"}\n{"time_total":', "2: is no JSON"),
    ],
)
def test_hostile_json_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        _read(tmp_path / "t.json", text)
    assert str(tmp_path / "t.json") in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        source_of(tmp_path / "none")
