"""Telemetry that people have: Firebase exports, OpenTelemetry spans, HAR files and timings of curl.

Each importer makes rows of the table (``telemetry.COLUMNS``). What a source does not hold stays empty; rows
that cannot be used are counted by reason. Formats, as their makers document them: the export of Firebase
Performance Monitoring to BigQuery (firebase.google.com/docs/perf-mon/bigquery-export), OTLP in JSON with the
semantic conventions of HTTP spans (opentelemetry.io/docs/specs/semconv/http), HAR 1.2
(softwareishard.com/blog/har-12-spec), ``curl -w '%{json}'`` (curl.se/docs/manpage.html).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from edge.core.errors import DataError
from edge.fitting.telemetry import COLUMNS, Telemetry, read_table, table_of, telemetry_of

SOURCES: Final = ("table", "firebase", "otel", "har", "curl")

_LEAST_UPLOAD: Final = 65_536
"""Smaller bodies fit into the buffer of the sender, whose clock stops before they have left."""
_MOST_BYTES: Final = 1 << 30
_TOO_SMALL: Final = f"uploads below {_LEAST_UPLOAD:,} bytes, which end in the sender's buffer"
_NO_SIZE: Final = "no size, or 0 bytes"
_NO_TIME: Final = "no time, or none above zero"
Row = dict[str, Any]


class _Rows:
    """Rows under way, and what was left out."""

    def __init__(self, given: Mapping[str, str | None], origin: str) -> None:
        self.rows: list[Row] = []
        self.dropped: Counter[str] = Counter()
        self.given = given
        self.origin = origin

    def add(self, row: Row) -> None:
        """Add a transfer, unless its bytes or seconds say nothing."""
        whole: Row = {"kind": "transfer", "ok": True, "span": "body"}
        row = whole | row
        for key in ("device", "class", "network"):
            row[key] = self.given.get(key) or row.get(key)
        row["device"] = row["device"] or self.origin
        if row["ok"] and not row["bytes"]:
            self.dropped[_NO_SIZE] += 1
        elif row["ok"] and not (row["seconds"] is not None and row["seconds"] > 0.0):
            self.dropped[_NO_TIME] += 1
        elif (
            row["ok"] and row["direction"] == "up" and row["span"] == "body" and row["bytes"] < _LEAST_UPLOAD
        ):
            self.dropped[_TOO_SMALL] += 1
        else:
            self.rows.append(row)


def read_telemetry(paths: Sequence[Path], source: str | None, given: Mapping[str, str | None]) -> Telemetry:
    """Return the telemetry in files.

    Parameters
    ----------
    paths : one or more files of one kind.
    source : one of :data:`SOURCES`; None: told by the contents.
    given : ``device``, ``class`` and ``network`` of all rows, where not None.

    Raises
    ------
    DataError : a file that cannot be read, or holds no telemetry.
    """
    parts, dropped = [], Counter[str]()
    for path in paths:
        chosen = source or source_of(path)
        if chosen == "table":
            table = read_table(path)
            for key in COLUMNS.keys() & {key for key, value in given.items() if value is not None}:
                table = table.drop_columns([key] if key in table.column_names else [])
                table = table.append_column(key, pa.array([given[key]] * table.num_rows, pa.string()))
            found = telemetry_of(str(path), table)
        else:
            rows = _Rows(given, path.stem)
            _IMPORTERS[chosen](path, rows)
            dropped += rows.dropped
            if not rows.rows:
                said = "; ".join(f"{count} rows have {reason}" for reason, count in rows.dropped.items())
                raise DataError(f"{path}: no transfer in it can be used{f': {said}' if said else ''}")
            filled = {key: [row.get(key) for row in rows.rows] for key in COLUMNS}
            found = telemetry_of(str(path), table_of(filled))
        parts.append(found)
    columns = {key: np.concatenate([part.columns[key] for part in parts]) for key in COLUMNS}
    name = parts[0].name if len(parts) == 1 else f"{parts[0].name} and {len(parts) - 1} more"
    return Telemetry(name, columns, dropped)


def source_of(path: Path) -> str:
    """Return what a file holds, told by its contents; raises DataError if that is nothing known."""
    if _head(path).startswith(b"PAR1"):
        return "firebase" if "network_info" in read_table(path).column_names else "table"
    if path.suffix.lower() in (".csv", ".txt") or not _head(path).lstrip().startswith((b"{", b"[")):
        return "table"
    first = next(_objects(path), {})
    if "resourceSpans" in first or "resource_spans" in first:
        return "otel"
    if "log" in first:
        return "har"
    if "event_type" in first or "network_info" in first:
        return "firebase"
    if "time_total" in first:
        return "curl"
    raise DataError(f"{path}: JSON of no known kind; say which with --from {', '.join(SOURCES[1:])}")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(64)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON file: one, those in a list, or one a line."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path}: is larger than 1 GiB; convert it to a Parquet table")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8: {error}") from None
    try:
        whole: Any = json.loads(text)
    except RecursionError:
        raise DataError(f"{path}: is nested too deeply for telemetry") from None
    except ValueError as error:
        lines = text.splitlines()
        if len(lines) < 2:
            raise DataError(f"{path}: is no JSON ({error})") from None
        whole = []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    whole.append(json.loads(line))
                except (ValueError, RecursionError) as problem:
                    raise DataError(f"{path}:{number}: is no JSON ({problem})") from None
    for number, one in enumerate(whole if isinstance(whole, list) else [whole], start=1):
        if not isinstance(one, dict):
            raise DataError(f"{path}: entry {number} is no object")
        yield one


def _number(value: Any) -> float | None:
    """Return a number that JSON may hold as text; None for none, or for what is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _seconds_of(path: Path, value: Any, entry: int) -> float:
    """Return a timestamp as seconds: ISO 8601, as BigQuery writes it (``… UTC``), or an epoch in any unit."""
    number = _number(value)
    if number is not None:
        # Seconds, milliseconds, microseconds or nanoseconds since 1970, told by size.
        for limit, unit in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6)):
            if abs(number) < limit:
                return number / unit
        return number / 1e9
    if isinstance(value, datetime):
        moment = value
    else:
        try:
            moment = datetime.fromisoformat(
                str(value).strip().replace(" UTC", "+00:00").replace("Z", "+00:00")
            )
        except ValueError:
            raise DataError(
                f"{path}: entry {entry}: {str(value)[:60]!r} is no time; write it as 2024-03-01T12:00:00Z"
            ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _firebase(path: Path, rows: _Rows) -> None:
    """Add the network requests of an export of Firebase Performance Monitoring."""
    entries: Any = read_table(path).to_pylist() if _head(path).startswith(b"PAR1") else _objects(path)
    for number, entry in enumerate(entries, start=1):
        if entry.get("event_type") not in (None, "NETWORK_REQUEST"):
            continue
        info = _mapping(entry.get("network_info"))
        if not info:
            continue
        own = {
            _mapping(one).get("key"): _mapping(one).get("value")
            for one in _list(entry.get("custom_attributes"))
        }
        device = _text(own.get("device")) or _text(own.get("device_id"))
        if device is None:
            # There is no id of a device: those alike count as one.
            parts = [str(entry.get(key) or "") for key in ("device_name", "os_version", "carrier", "country")]
            device = "/".join(parts)
            rows.dropped[
                "no id of the device (kept): those of one model, system, carrier and country count as one"
            ] += 1
        start_s = _seconds_of(path, entry.get("event_timestamp"), number)
        sent_us, first_us, last_us = (
            _number(info.get(key))
            for key in (
                "request_completed_time_us",
                "response_initiated_time_us",
                "response_completed_time_us",
            )
        )
        common = {
            "device": device, "class": _text(entry.get("device_name")),
            "network": _text(entry.get("radio_type")),
        }  # fmt: skip
        if last_us is None:
            size = _number(info.get("response_payload_bytes")) or 0.0
            rows.add(
                common | {"time_s": start_s, "ok": False, "direction": "down", "bytes": size, "seconds": None}
            )
            continue
        begun_us = first_us if first_us is not None else last_us
        waited = (
            None if sent_us is None or first_us is None or first_us <= sent_us else (first_us - sent_us) / 1e6
        )
        rows.add(
            common
            | {
                "time_s": start_s + begun_us / 1e6, "direction": "down", "handshakes": 0.0, "cold": False,
                "bytes": _number(info.get("response_payload_bytes")), "seconds": (last_us - begun_us) / 1e6,
                "rtt_s": waited,
            }
        )  # fmt: skip
        if sent_us is not None and _number(info.get("request_payload_bytes")):
            rows.add(
                common
                | {
                    "time_s": start_s, "direction": "up", "bytes": _number(info.get("request_payload_bytes")),
                    "seconds": sent_us / 1e6,
                }
            )  # fmt: skip


def _attributes(owner: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for one in _list(owner.get("attributes")):
        value = _mapping(_mapping(one).get("value"))
        key = _mapping(one).get("key")
        if isinstance(key, str):
            found[key] = next(iter(value.values()), None)
    return found


def _first(attributes: Mapping[str, Any], *names: str) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _otel(path: Path, rows: _Rows) -> None:
    """Add the HTTP client spans of OTLP JSON; a span holds a request and its answer whole."""
    number = 0
    for batch in _objects(path):
        for group in _list(batch.get("resourceSpans", batch.get("resource_spans"))):
            shared = _attributes(_mapping(_mapping(group).get("resource")))
            scopes = _list(_mapping(group).get("scopeSpans", _mapping(group).get("scope_spans")))
            for span in (_mapping(one) for scope in scopes for one in _list(_mapping(scope).get("spans"))):
                if span.get("kind") in (3, "SPAN_KIND_CLIENT", "3"):
                    number += 1
                    _add_span(path, rows, span, shared | _attributes(span), number)


def _add_span(path: Path, rows: _Rows, span: Mapping[str, Any], told: Mapping[str, Any], number: int) -> None:
    up = _number(_first(told, "http.request.body.size", "http.request_content_length")) or 0.0
    down = _number(_first(told, "http.response.body.size", "http.response_content_length")) or 0.0
    start_s = _seconds_of(path, span.get("startTimeUnixNano"), number)
    end_s = _seconds_of(path, span.get("endTimeUnixNano"), number)
    if min(up, down) > 0.1 * max(up, down) and min(up, down) > 1_448:
        rows.dropped["as much sent as received: the span does not say which took how long"] += 1
        return
    if (_number(told.get("http.request.resend_count")) or 0.0) > 0.0:
        rows.dropped["resent requests"] += 1
        return
    types = [
        _text(_first(told, f"network.connection.{key}", f"net.host.connection.{key}"))
        for key in ("type", "subtype")
    ]
    answered = _first(told, "http.response.status_code", "http.status_code") is not None
    rows.add(
        {
            "device": _text(
                _first(told, "device.id", "app.installation.id", "service.instance.id", "session.id")
            ),
            "class": _text(_first(told, "device.model.identifier", "device.model.name")),
            "network": " ".join(one for one in types if one) or None,
            "time_s": start_s,
            "ok": answered,
            "direction": "up" if up > down else "down",
            "bytes": max(up, down),
            "seconds": end_s - start_s if answered else None,
            "span": "answer",
        }
    )


def _har(path: Path, rows: _Rows) -> None:
    """Add the entries of a HAR file, a file a device."""
    for document in _objects(path):
        for number, entry in enumerate(_list(_mapping(document.get("log")).get("entries")), start=1):
            _add_entry(path, rows, _mapping(entry), number)


def _add_entry(path: Path, rows: _Rows, entry: Mapping[str, Any], number: int) -> None:
    timings = _mapping(entry.get("timings"))

    def took(key: str) -> float:
        # -1 says that there was no such phase.
        return max(_number(timings.get(key)) or 0.0, 0.0) / 1e3

    request, answer = _mapping(entry.get("request")), _mapping(entry.get("response"))
    start_s = _seconds_of(path, entry.get("startedDateTime"), number)
    connecting = took("connect")
    rtt_s = connecting - took("ssl") if connecting > took("ssl") else None
    before = sum(took(key) for key in ("blocked", "dns", "connect"))
    received = _number(answer.get("bodySize"))
    size = received if received is not None and received > 0 else _number(answer.get("_transferSize"))
    if (_number(answer.get("status")) or 0.0) <= 0.0:
        rows.add({"time_s": start_s, "ok": False, "direction": "down", "bytes": 0.0, "seconds": None})
        return
    begun = before + took("send") + took("wait")
    rows.add(
        {
            "time_s": start_s + begun, "direction": "down", "bytes": max(size or 0.0, 0.0),
            "seconds": took("receive"),
            "handshakes": 0.0, "cold": False, "rtt_s": rtt_s,
        }
    )  # fmt: skip
    if (_number(request.get("bodySize")) or 0.0) > 0.0:
        rows.add(
            {
                "time_s": start_s + before, "direction": "up", "bytes": _number(request.get("bodySize")),
                "seconds": took("send"), "handshakes": 0.0, "cold": False,
            }
        )  # fmt: skip


def _curl(path: Path, rows: _Rows) -> None:
    """Add transfers that curl has timed, one object each; ``time_s``, ``device`` … beside them are taken."""
    clock_s = 0.0
    for number, entry in enumerate(_objects(path), start=1):
        lookup, connect, before, first, total = (
            _number(entry.get(f"time_{key}")) or 0.0
            for key in ("namelookup", "connect", "pretransfer", "starttransfer", "total")
        )
        given = entry.get("time_s", entry.get("time"))
        start_s = clock_s if given is None else _seconds_of(path, given, number)
        # Without a clock, transfers follow each other after a minute.
        clock_s += total + 60.0
        new = (_number(entry.get("num_connects")) or 0.0) > 0.0
        common = {
            "device": None if entry.get("device") is None else str(entry["device"]),
            "class": _text(entry.get("class")), "network": _text(entry.get("network")),
            "rtt_s": connect - lookup if new and connect > lookup else None,
        }  # fmt: skip
        if (_number(entry.get("exitcode")) or 0.0) != 0.0:
            rows.add(
                common | {"time_s": start_s, "ok": False, "direction": "down", "bytes": 0.0, "seconds": None}
            )
            continue
        sent, got = _number(entry.get("size_upload")) or 0.0, _number(entry.get("size_download")) or 0.0
        warm = {"handshakes": 0.0, "cold": False}
        if sent > got:
            rows.add(
                common | warm
                | {
                    "time_s": start_s + before, "direction": "up", "bytes": sent, "seconds": first - before,
                    "span": "answer",
                }
            )  # fmt: skip
        else:
            rows.add(
                common
                | warm
                | {"time_s": start_s + first, "direction": "down", "bytes": got, "seconds": total - first}
            )


_IMPORTERS: Final[Mapping[str, Callable[[Path, _Rows], None]]] = {
    "firebase": _firebase,
    "otel": _otel,
    "har": _har,
    "curl": _curl,
}
