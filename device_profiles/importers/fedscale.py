"""FedScale's device traces: capacity of half a million clients, sessions of a hundred thousand.

Lai et al. 2022, "FedScale: Benchmarking Model and System Performance of Federated Learning at Scale"
(ICML), section 3.2. Both files are pickles of plain dicts and are read without unpickling
(:mod:`device_profiles.importers.plain_pickle`). The traces are not part of recfleet; their licence is theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from device_profiles.errors import TraceError, UnsafePickleError
from device_profiles.importers.plain_pickle import MAX_PICKLE_BYTES, load_plain_pickle
from device_profiles.traces import AvailabilityTrace, CapacityTable


def read_fedscale_capacity(path: Path) -> CapacityTable:
    """Read ``client_device_capacity``: client id -> {computation: ms per sample, communication: kbit/s}.

    ``computation`` is the latency of one inference; FedScale takes a training step as three of them.

    Raises
    ------
    UnsafePickleError : the file is anything but plain data.
    TraceError : it cannot be read, or an entry is not as described; the message names the client.
    """
    ids, inference_ms, rate_kbps = [], [], []
    for client, entry in _clients(path):
        where = f"{path}: client {client}"
        ids.append(client)
        inference_ms.append(_positive(where, entry, "computation"))
        rate_kbps.append(_positive(where, entry, "communication"))
    order = np.argsort(np.asarray(ids, np.int64), kind="stable")
    return CapacityTable(
        client_ids=np.asarray(ids, np.int64)[order],
        inference_s=np.asarray(inference_ms, np.float64)[order] / 1e3,
        rate_bps=np.asarray(rate_kbps, np.float64)[order] * 1e3,
    )


def read_fedscale_availability(path: Path) -> AvailabilityTrace:
    """Read ``client_behave_trace``: client id -> {active: [s], inactive: [s], finish_time: s, …}.

    A client is available from each ``active`` to the ``inactive`` at the same index, and everything repeats
    after ``finish_time``. Other keys (``duration``, ``model``) are not used. Sessions that touch or overlap
    are joined, those without length are left out.

    Raises
    ------
    UnsafePickleError : the file is anything but plain data.
    TraceError : it cannot be read, or an entry is not as described; the message names the client.
    """
    ids: list[int] = []
    sessions: list[list[tuple[float, float]]] = []
    periods: list[float] = []
    for client, entry in sorted(_clients(path), key=lambda pair: pair[0]):
        where = f"{path}: client {client}"
        period = _positive(where, entry, "finish_time")
        starts, ends = _times(where, entry, "active"), _times(where, entry, "inactive")
        if len(starts) != len(ends):
            raise TraceError(f"{where}: {len(starts)} times in 'active', but {len(ends)} in 'inactive'")
        for start, end in zip(starts, ends, strict=True):
            if not 0 <= start <= end <= period:
                lies = f"does not lie in 0 to {period:g} s (finish_time)"
                raise TraceError(f"{where}: a session from {start:g} to {end:g} s {lies}")
        ids.append(client)
        sessions.append(list(zip(starts, ends, strict=True)))
        periods.append(period)
    return AvailabilityTrace.from_sessions(ids, sessions, periods)


def _clients(path: Path) -> Iterator[tuple[int, dict[object, object]]]:
    """Yield (id, entry) for every client, in the order of the file."""
    try:
        if path.stat().st_size > MAX_PICKLE_BYTES:
            raise UnsafePickleError(f"{path}: larger than the limit of {MAX_PICKLE_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        content = load_plain_pickle(data)
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{path}: {error}") from None
    if not isinstance(content, dict) or not content:
        raise TraceError(f"{path}: expected a dict from client id to its entry, found {_kind(content)}")
    seen: set[int] = set()
    for key, entry in content.items():
        client = _client_id(path, key)
        if client in seen:
            raise TraceError(f"{path}: client {client} appears as a number and as text")
        seen.add(client)
        if not isinstance(entry, dict):
            raise TraceError(f"{path}: client {client}: expected a dict, found {_kind(entry)}")
        yield client, entry


def _client_id(path: Path, key: object) -> int:
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < 2**63:
        return key
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 18:
        return int(key)
    raise TraceError(f"{path}: {str(key)[:40]!r} is not a client id; expected a whole number, 0 or more")


def _number(where: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TraceError(f"{where}: {name}: expected a finite number, found {_kind(value)}")
    return float(value)


def _positive(where: str, entry: dict[object, object], name: str) -> float:
    if name not in entry:
        raise TraceError(f"{where}: {name!r} is missing")
    value = _number(where, name, entry[name])
    if value <= 0:
        raise TraceError(f"{where}: {name}: must be above zero, not {value:g}")
    return value


def _times(where: str, entry: dict[object, object], name: str) -> list[float]:
    if name not in entry:
        raise TraceError(f"{where}: {name!r} is missing")
    values = entry[name]
    if isinstance(values, np.ndarray) and values.ndim == 1:
        values = values.tolist()
    if not isinstance(values, list | tuple):
        raise TraceError(f"{where}: {name}: expected a list of times in seconds, found {_kind(values)}")
    return [_number(where, name, value) for value in values]


def _kind(value: object) -> str:
    """Return what a value is, for a message; the value itself only if that is short."""
    name = type(value).__name__
    return f"{name} {str(value)[:40]!r}" if isinstance(value, int | float | str) else name
