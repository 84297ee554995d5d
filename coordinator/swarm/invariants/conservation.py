"""Conservation of bytes: what was sent is what arrived, was lost or was discarded, in every table alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator
from typing import Final, NamedTuple, cast

from coordinator.results.tables.metric_source import Tables
from coordinator.results.tables.schemas import DIRECTIONS, SPLITS
from coordinator.scenario.rounds_section import Buffered
from coordinator.swarm.trial import Trial, columns, rows
from edge.core.vocabulary import Direction, EventKind, Fate, Outcome, Stage, label
from edge.device.simulated import SimulatedDevice
from edge.network.link import Delivery
from edge.wire.codec import encode

_FATES: Final = tuple(label(fate) for fate in Fate)
_SPLITS: Final = tuple(f"{split}_bytes" for split in SPLITS)
_NOWHERE: Final = label(Direction.NONE)
_STAGES: Final = tuple(label(stage) for stage in Stage)


class LoggedFrame(NamedTuple):
    """A frame, as the table of events has it."""

    round_number: int
    device: int
    direction: str
    payload: int
    framing: int
    tcp_ip: int
    retransmitted: int


def tables_agree(tables: Tables, *, by_round: bool = True) -> Iterator[str]:
    """Yield where the bytes of ``rounds``, ``device_rounds`` and ``events`` do not add up to each other.

    ``by_round`` says that a device is in a round once; in a step of buffered pacing it can be twice.
    """
    by_device = yield from _of_devices(tables, by_round=by_round)
    of_round: defaultdict[int, Counter[str]] = defaultdict(Counter)
    strangers: defaultdict[int, Counter[str]] = defaultdict(Counter)
    found: defaultdict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    names = ("round", "device", "slot", "stage", "direction", "fate", *_SPLITS)
    for number, device, slot, stage, direction, fate, *parts in zip(
        *columns(tables, "events", *names).values(), strict=True
    ):
        total = sum(parts)
        if direction == _NOWHERE:
            if total:
                yield f"round {number}: {total} bytes of device {device} travelled in no direction"
            continue
        counts = {
            f"{direction}_bytes": total,
            f"{fate}_bytes": total,
            f"{stage}_{direction}_bytes": total,
            **{f"{direction}_{split}": part for split, part in zip(_SPLITS, parts, strict=True)},
        }
        of_round[number].update(counts)
        (strangers[number] if slot < 0 else found[number, device]).update(counts)
    for (number, device), row in by_device.items():
        events = found.pop((number, device), Counter())
        for name, value in row.items():
            if value != events[name]:
                yield f"round {number}, device {device}: {name} is {value}, its events have {events[name]}"
    for number, device in found:
        yield f"round {number}: device {device} has events and no row among the devices"
    for row in rows(tables, "rounds"):
        number = row["round"]
        if row["invited"] != sum(row[label(outcome)] for outcome in Outcome):
            yield f"round {number}: {row['invited']} devices were invited, their outcomes add up to others"
        for name in (*_totals(), *(f"{fate}_bytes" for fate in _FATES)):
            if row[name] != of_round[number][name]:
                yield f"round {number}: {name} is {row[name]}, its events have {of_round[number][name]}"
            of_devices = sum(r[name] for (n, _), r in by_device.items() if n == number)
            if row[name] != of_devices + strangers[number][name]:
                yield f"round {number}: {name} is {row[name]}, its devices and strangers have others"


def _totals() -> Iterator[str]:
    for direction in DIRECTIONS:
        yield f"{direction}_bytes"
        yield from (f"{direction}_{split}" for split in _SPLITS)


def _of_devices(
    tables: Tables, *, by_round: bool
) -> Generator[str, None, dict[tuple[int, int], dict[str, int]]]:
    """Check each row of device_rounds by itself; return its columns of bytes, by round and device."""
    stages = [f"{stage}_{direction}_bytes" for stage in _STAGES for direction in DIRECTIONS]
    names = [*_totals(), *(f"{fate}_bytes" for fate in _FATES), *stages]
    found: dict[tuple[int, int], dict[str, int]] = {}
    for row in rows(tables, "device_rounds", "round", "device", "wasted_bytes", *names):
        number, device = row.pop("round"), row.pop("device")
        where = f"round {number}, device {device}"
        wasted = row.pop("wasted_bytes")
        before = found.get((number, device))
        if before is not None and by_round:
            yield f"{where}: a second row"
        found[number, device] = row if before is None else {name: row[name] + before[name] for name in names}
        negative = [name for name in names if row[name] < 0]
        if negative:
            yield f"{where}: {negative[0]} is {row[negative[0]]}"
        sent = row["up_bytes"] + row["down_bytes"]
        ended = sum(row[f"{fate}_bytes"] for fate in _FATES)
        if sent != ended:
            yield f"{where}: {sent} bytes were sent, and {ended} arrived, were lost or were discarded"
        if not 0 <= wasted <= sent:
            yield f"{where}: {wasted} of {sent} bytes are said to be wasted"
        for direction in DIRECTIONS:
            total = row[f"{direction}_bytes"]
            if total != sum(row[f"{direction}_{split}"] for split in _SPLITS):
                yield f"{where}: the parts of {direction}_bytes do not add up"
            if total != sum(row[f"{stage}_{direction}_bytes"] for stage in _STAGES):
                yield f"{where}: the stages of {direction}_bytes do not add up"
    return found


def frame_of(delivery: Delivery) -> LoggedFrame:
    """Return the bytes that events must have of a frame that has arrived, or had left when it was lost."""
    device = cast(SimulatedDevice, delivery.link)
    return LoggedFrame(
        delivery.message.round_number,
        device.device,
        label(delivery.direction),
        delivery.payload_bytes,
        delivery.framing_bytes,
        delivery.tcp_ip_bytes,
        delivery.retransmitted_bytes,
    )


def unaccounted(tables: Tables, deliveries: Iterable[Delivery], *, by_round: bool = True) -> Iterator[str]:
    """Yield the frames that were put on a link and are not among the events, and the other way about.

    The events may tell of more only where nothing was put on a link: of the first invitations, which are
    recorded for a whole cohort at once, and of what was sent in vain, to a device that was gone. With
    buffered pacing a frame does not carry the number of the step that it is told of with: there frames are
    not compared ``by_round``.
    """
    frames = map(frame_of, deliveries)
    sent = Counter(frames if by_round else (frame._replace(round_number=0) for frame in frames))
    names = ("kind", "fate", "round", "device", "direction", *_SPLITS)
    events: Counter[LoggedFrame] = Counter()
    surely_sent: Counter[LoggedFrame] = Counter()
    for kind, fate, *values in zip(*columns(tables, "events", *names).values(), strict=True):
        frame = LoggedFrame(*values) if by_round else LoggedFrame(*values)._replace(round_number=0)
        if frame.direction == _NOWHERE or kind == label(EventKind.HANDSHAKE):
            continue
        events[frame] += 1
        surely_sent[frame] += fate != label(Fate.LOST) and kind != label(EventKind.INVITED)
    for frame, count in surely_sent.items():
        if count > sent[frame]:
            yield f"{count} frames are told of, and {sent[frame]} were sent: {frame}"
    for frame, count in sent.items():
        if count > events[frame]:
            yield f"{count} frames were sent, and {events[frame]} are told of: {frame}"


def conserved_bytes(trial: Trial) -> Iterator[str]:
    """Check that every byte put on a link is counted once, with one fate, and that all tables agree."""
    by_round = not isinstance(trial.loaded.scenario.rounds.pacing, Buffered)
    yield from tables_agree(trial.tables, by_round=by_round)
    yield from unaccounted(trial.tables, trial.record.deliveries, by_round=by_round)


def exact_frames(trial: Trial) -> Iterator[str]:
    """Check that the size of every frame is the length of the bytes that the codec would send."""
    known: dict[int, tuple[int, int]] = {}
    for delivery, told in zip(trial.record.deliveries, trial.record.sizes, strict=True):
        message = delivery.message
        # A broadcast is one object for all; the record keeps every message alive, so ids are not reused.
        exact = known.get(id(message))
        if exact is None:
            payload = sum(array.nbytes for array in getattr(message, "arrays", {}).values())
            exact = known[id(message)] = len(encode(message)), payload
        if told != exact:
            yield f"a {type(message).__name__} of {exact} bytes (frame, arrays) was sent as one of {told}"
