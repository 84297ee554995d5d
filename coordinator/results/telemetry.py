"""A run as the telemetry that a real fleet would have left: transfers, compute tasks and check-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from coordinator.engine.run_files import RESOLVED_SCENARIO
from coordinator.results.tables.reader import RunFormatError, RunTables
from coordinator.scenario.load import load
from coordinator.simulation.fleet_assembly import utc_offset_s
from edge.core.vocabulary import Direction, EventKind, Fate, Reason, Stage, label
from edge.device.compute_model import KAPPA
from edge.fitting.telemetry import table_of
from edge.learning.base import Work
from edge.network.link import TLS_HANDSHAKE_BYTES
from edge.network.tcp import (
    HANDSHAKE_RECEIVED_BYTES,
    HANDSHAKE_SENT_BYTES,
    PACKET_BYTES,
    PURE_ACK_BYTES,
    SEGMENT_HEADER_BYTES,
    SEGMENT_PAYLOAD_BYTES,
    SEGMENTS_PER_ACK,
    SYN_BYTES,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_HANDSHAKE_BYTES: Final = HANDSHAKE_SENT_BYTES + HANDSHAKE_RECEIVED_BYTES
_READ: Final = (
    "round", "slot", "device", "kind", "stage", "direction", "start_s", "end_s", "payload_bytes",
    "framing_bytes",
    "tcp_ip_bytes", "retransmitted_bytes", "fate", "reason",
)  # fmt: skip


def telemetry_table(run: RunTables, work_of: Callable[[Ints], Work] | None = None) -> Any:
    """Return the telemetry of a run as a ``pyarrow.Table``, sorted by device and time.

    Parameters
    ----------
    run : finished or not.
    work_of : returns the work of a task of each device (int64 [n]); None leaves it out.

    Raises
    ------
    RunFormatError : a run without a device that took part.
    """
    events = run.read("events", _READ)
    if events.num_rows == 0:
        raise RunFormatError(f"{run.directory}: no device has taken part; run it for a round at least")
    scenario = load(run.directory / RESOLVED_SCENARIO, references=False).scenario
    has = {
        name: _numbers(events, name)
        for name in _READ
        if not pa.types.is_dictionary(events.schema.field(name).type)
    }
    said = {name: events[name].combine_chunks() for name in ("kind", "stage", "direction", "fate", "reason")}
    device = has["device"].astype(np.int64)
    places = _places(run, device)
    zones_s = utc_offset_s(scenario.seed, scenario.fleet.time_zones, device)
    # Half of the day east of Greenwich, half of it west.
    offset = (np.broadcast_to(zones_s, device.shape) / 3600.0 + 12.0) % 24.0 - 12.0
    kind = said["kind"]
    moved = ~_is(said["direction"], Direction.NONE) & ~_is(kind, EventKind.HANDSHAKE)
    moved &= has["payload_bytes"] + has["framing_bytes"] + has["tcp_ip_bytes"] > 0
    invited = _is(kind, EventKind.INVITED)
    size = has["payload_bytes"] + has["framing_bytes"]
    arrived = ~_is(said["fate"], Fate.LOST)
    failures, begun_s = _connecting(has, said)
    start_s = np.where(invited & arrived, np.maximum(begun_s, has["start_s"]), has["start_s"])
    seconds = has["end_s"] - start_s
    transfers = np.flatnonzero(
        (moved | invited) & (~arrived | (seconds > 0.0)) & ~_is(said["reason"], Reason.UNAVAILABLE)
    )
    tasks = np.flatnonzero(
        _is(kind, EventKind.COMPUTED) & _is(said["stage"], Stage.COMPUTE) & (seconds > 0.0)
    )
    checked = np.flatnonzero(invited)

    def common(rows: Ints, name: str) -> dict[str, Any]:
        return {
            "kind": np.full(len(rows), name, dtype=object), "device": device[rows].astype(str).astype(object),
            "class": places["class"][rows], "network": places["network"][rows],
            "time_s": start_s[rows], "utc_offset_h": offset[rows],
        }  # fmt: skip

    sent = arrived[transfers]
    parts = [
        common(transfers, "transfer")
        | {
            "ok": sent,
            "seconds": np.where(sent, seconds[transfers], np.nan),
            "direction": np.where(_is(said["direction"], Direction.UP)[transfers], "up", "down").astype(
                object
            ),
            "bytes": size[transfers].astype(np.float64),
            "span": np.full(len(transfers), "one-way", dtype=object),
            "handshakes": np.where(sent, _handshakes(size, has["tcp_ip_bytes"])[transfers], np.nan),
            "resent": np.where(sent, has["retransmitted_bytes"][transfers] / PACKET_BYTES, np.nan),
            "failed_connects": np.where(invited[transfers], failures[transfers], np.nan),
        },
        common(tasks, "compute")
        | {"ok": _is(said["reason"], Reason.NONE)[tasks], "seconds": seconds[tasks]}
        | _work(run, has, tasks, work_of),
        common(checked, "check-in") | {"ok": ~_is(said["reason"], Reason.UNAVAILABLE)[checked]},
    ]
    table = pa.concat_tables([table_of(part) for part in parts], promote_options="default")
    order = pc.sort_indices(
        table, sort_keys=[("device", "ascending"), ("time_s", "ascending"), ("kind", "ascending")]
    )
    return table.take(order)


def telemetry_bytes(table: Any, *, csv: bool) -> bytes:
    """Return the table as the contents of a Parquet or a CSV file."""
    sink = pa.BufferOutputStream()
    if csv:
        pacsv.write_csv(table, sink)
    else:
        pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _numbers(events: Any, name: str) -> npt.NDArray[Any]:
    return np.asarray(events[name].to_numpy())


def _is(column: Any, member: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.equal(column, label(member)).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _places(run: RunTables, device: Ints) -> dict[str, npt.NDArray[Any]]:
    """Return class and network of the device of each event."""
    rows = run.read("device_rounds", ("device", "class", "network"))
    ids, first = np.unique(rows["device"].to_numpy(), return_index=True)
    at = np.minimum(np.searchsorted(ids, device), max(len(ids) - 1, 0))
    known = ids[at] == device if len(ids) else np.zeros(len(device), np.bool_)
    found: dict[str, npt.NDArray[Any]] = {}
    for name in ("class", "network"):
        names = np.array(rows[name].take(pa.array(first)).to_pylist(), dtype=object)
        found[name] = np.full(len(device), None, dtype=object)
        found[name][known] = names[at[known]]
    return found


def _connecting(has: dict[str, npt.NDArray[Any]], said: dict[str, Any]) -> tuple[Floats, Floats]:
    """Return how many attempts to connect failed before each invitation, and when the last one began."""
    pairs = np.stack([has["round"].astype(np.int64), has["slot"].astype(np.int64)])
    cell = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
    failures, begun_s = np.zeros(int(cell.max()) + 1), np.full(int(cell.max()) + 1, -np.inf)
    silent = _is(said["kind"], EventKind.HANDSHAKE) & _is(said["fate"], Fate.LOST)
    np.add.at(failures, cell[silent], has["tcp_ip_bytes"][silent] / SYN_BYTES)
    again = _is(said["kind"], EventKind.RETRY) & _is(said["stage"], Stage.INVITE)
    np.maximum.at(begun_s, cell[again], has["end_s"][again])
    return failures[cell], begun_s[cell]


def _handshakes(size: npt.NDArray[Any], overhead: npt.NDArray[Any]) -> Ints:
    """Return the round trips of the handshakes that each transfer began with, by their bytes."""
    packets = -(-size // SEGMENT_PAYLOAD_BYTES)
    more = overhead - packets * SEGMENT_HEADER_BYTES - -(-packets // SEGMENTS_PER_ACK) * PURE_ACK_BYTES
    return np.where(
        more >= _HANDSHAKE_BYTES + TLS_HANDSHAKE_BYTES, 2, np.where(more >= _HANDSHAKE_BYTES, 1, 0)
    )


def _work(
    run: RunTables, has: dict[str, npt.NDArray[Any]], tasks: Ints, work_of: Callable[[Ints], Work] | None
) -> dict[str, Any]:
    """Return examples of each task, and its operations where the work is known and was done whole."""
    rows = run.read("device_rounds", ("round", "device", "examples", "work_share"))
    most = int(rows["device"].to_numpy().max()) + 1

    def key(numbers: Any, devices: Any) -> Ints:
        return np.asarray(numbers, dtype=np.int64) * most + np.asarray(devices, dtype=np.int64)

    keys = key(rows["round"].to_numpy(), rows["device"].to_numpy())
    order = np.argsort(keys)
    wanted = key(has["round"][tasks], has["device"][tasks])
    at = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
    examples = pc.cast(rows["examples"], pa.float64()).to_numpy()[at]
    found: dict[str, Any] = {"examples": examples}
    if work_of is not None and tasks.size:
        partial = np.isfinite(pc.cast(rows["work_share"], pa.float64()).to_numpy()[at])
        work = work_of(has["device"][tasks].astype(np.int64))
        for name, by_kind in (
            ("flops", work.flops * KAPPA), ("moved_bytes", work.moved_bytes * KAPPA), ("ops", work.ops)
        ):  # fmt: skip
            found[name] = np.where(partial, np.nan, by_kind.sum(axis=1) * work.steps)
        found["steps"] = np.where(partial, np.nan, work.steps)
    return found
