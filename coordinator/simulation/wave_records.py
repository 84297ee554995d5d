"""The records that the devices of a wave leave in a round's log, in the order of the events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coordinator.simulation.timelines import Timelines
from edge.core.log import WIDTH, Column
from edge.core.vocabulary import Direction, EventKind, Fate, Reason, Stage
from edge.device.participation import event_of_discarded
from edge.network.flights import Flights
from edge.wire.messages import (
    KINDS,
    Accept,
    Acknowledge,
    AnyMessage,
    Decline,
    Failure,
    MessageKind,
    Model,
    Report,
)

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_DEPTH = 6
"""Moments by which the order of events is decided: an event's own, that of the event behind it, and so on."""


@dataclass(slots=True)
class _WaveRows:
    """Records of one kind, of the devices at ``places``, with what decides their order."""

    places: Ints
    columns: Floats
    """float64 [WIDTH, n]."""
    moments_s: list[Floats]
    """Of the event, of the one that it follows from, and so on back to the invitation; float64 [n] each."""


def causes(lines: Timelines) -> dict[str, list[Floats]]:
    """Return the moments that decide the order of events: of each event, and of those that led to it.

    Timers that are due at the same moment fire in the order in which they were set, and a timer is set by
    the event before. So of two events at the same moment that one is first whose cause was.
    """
    begun = [lines.begins_s]
    answered = [lines.answer.end_s, *begun]
    given = [lines.model.end_s, *answered]
    worked = [lines.work_end_s, *given]
    # A failure for want of memory or data follows from the model.
    fails = lines.fails & ~lines.refused
    if fails.any():
        padded = [*given, np.full(len(fails), -np.inf)]
        sent = [np.where(fails, short, full) for short, full in zip(padded, worked, strict=True)]
    else:
        sent = worked
    reported = [lines.report.end_s, *sent]
    return {
        "answered": answered,
        "given": given,
        "worked": worked,
        "reported": reported,
        "received": [lines.receipt.end_s, *reported],
    }


def joined(moments_s: list[list[Floats]]) -> list[Floats]:
    """Return the moments of several kinds of events one after the other, as :func:`in_order` takes them.

    Events that follow from fewer others are ahead of those that follow from more, if all else is equal.
    """
    depth = max(len(moments) for moments in moments_s)
    return [
        np.concatenate(
            [
                moments[level] if level < len(moments) else np.full(len(moments[0]), -np.inf)
                for moments in moments_s
            ]
        )
        for level in range(depth)
    ]


def in_order(moments_s: list[Floats], slots: Ints, turns: Ints | None = None) -> Ints:
    """Return the order of events, int64 [n].

    Parameters
    ----------
    moments_s : float64 [n] each; of the events, and of those that led to them; see :func:`causes`.
    slots : int64 [n], whose they are: of devices that are alike the first in the round goes first.
    turns : int64 [n], orders records of the same event; None where each is of another.
    """
    order = np.argsort(moments_s[0], kind="stable")
    times_s = moments_s[0][order]
    if not bool((times_s[1:] == times_s[:-1]).any()):
        return order
    keys = [slots, *reversed(moments_s)]
    return np.lexsort(keys if turns is None else [turns, *keys])


def wave_records(lines: Timelines, verdicts: Codes, lateness: Reason) -> Floats:
    """Return the records of all participations in the order of the events, float64 [WIDTH, records].

    Parameters
    ----------
    lines : the participations, settled.
    verdicts : int8 [m], the :class:`Reason` that each report was discarded for, or ``NONE``.
    lateness : why an acceptance was refused that came too late.
    """
    led = causes(lines)
    parts: list[_WaveRows] = []
    refused = lines.refused

    def frame(happens: Bools, flights: Flights, kind: MessageKind, moments_s: list[Floats]) -> None:
        places = np.flatnonzero(happens)
        if len(places):
            parts.append(_frame_rows(lines, places, flights, kind, moments_s))

    says_no = lines.declines
    accepted = lines.answered & ~says_no
    frame(accepted, lines.answer, KINDS[Accept], led["answered"])
    if refused.any():
        late = parts[-1].columns[:, refused[parts[-1].places]]
        late[Column.FATE], late[Column.REASON] = Fate.DISCARDED, lateness
        parts[-1].columns[:, refused[parts[-1].places]] = late
    frame(lines.answered & says_no, lines.answer, KINDS[Decline], led["answered"])
    frame(lines.given & ~refused, lines.model, KINDS[Model], led["given"])
    frame(lines.given & refused, lines.model, KINDS[Acknowledge], led["given"])
    worked = np.flatnonzero(lines.worked)
    if len(worked):
        ends_s = lines.work_end_s[worked]
        rows = _computed(lines, worked, ends_s, Reason.NONE)
        parts.append(_WaveRows(worked, rows, [moment[worked] for moment in led["worked"]]))
    fails = lines.failing
    frame(lines.reported & fails, lines.report, KINDS[Failure], led["reported"])
    frame(lines.reported & ~fails, lines.report, KINDS[Report], led["reported"])
    if lines.reported.any() and (verdicts != Reason.NONE).any():
        _discard(parts[-1], verdicts)
    frame(lines.received, lines.receipt, KINDS[Acknowledge], led["received"])
    turns = [np.zeros(len(part.places), np.int64) for part in parts]
    for turn, part in enumerate(_cut_rows(lines, led), 1):
        parts.append(part)
        turns.append(np.full(len(part.places), turn))
    if not parts:
        return np.empty((WIDTH, 0))
    columns = np.concatenate([part.columns for part in parts], axis=1)
    moments_s = joined([part.moments_s for part in parts])
    slots = lines.slots[np.concatenate([part.places for part in parts])]
    return columns.take(in_order(moments_s, slots, np.concatenate(turns)), axis=1)


def _blank(lines: Timelines, places: Ints) -> Floats:
    columns = np.zeros((WIDTH, len(places)))
    slots = lines.slots[places]
    columns[Column.SLOT] = slots
    columns[Column.DEVICE] = lines.shared.ids[slots]
    return columns


def _frame_rows(
    lines: Timelines, places: Ints, flights: Flights, kind: MessageKind, moments_s: list[Floats]
) -> _WaveRows:
    """Return the records of frames that have arrived."""
    columns = _blank(lines, places)
    payload_bytes = flights.payload_bytes[places]
    columns[Column.KIND], columns[Column.STAGE] = kind.event, kind.stage
    # The answer and the report go up; what is named here is all that a device sends in such a round.
    up = flights is lines.answer or flights is lines.report
    columns[Column.DIRECTION] = Direction.UP if up else Direction.DOWN
    columns[Column.START_S] = flights.start_s[places]
    columns[Column.TIME_S] = columns[Column.END_S] = flights.end_s[places]
    columns[Column.PAYLOAD_BYTES] = payload_bytes
    columns[Column.FRAMING_BYTES] = flights.frame_bytes[places] - payload_bytes
    columns[Column.TCP_IP_BYTES] = flights.tcp_ip_bytes[places]
    columns[Column.RETRANSMITTED_BYTES] = flights.retransmitted_bytes[places]
    columns[Column.FATE] = Fate.DELIVERED
    return _WaveRows(places, columns, [moment[places] for moment in moments_s])


def _discard(reports: _WaveRows, verdicts: Codes) -> None:
    """Let the records say of the reports that do not count why."""
    reasons = verdicts[reports.places]
    for code in sorted(set(reasons[reasons != Reason.NONE].tolist())):
        reason, at = Reason(code), reasons == code
        reports.columns[Column.KIND, at] = event_of_discarded(Report, reason)
        reports.columns[Column.FATE, at], reports.columns[Column.REASON, at] = Fate.DISCARDED, reason


def _computed(lines: Timelines, places: Ints, ends_s: Floats, reason: Reason | Codes) -> Floats:
    columns = _blank(lines, places)
    columns[Column.KIND], columns[Column.STAGE] = EventKind.COMPUTED, Stage.COMPUTE
    columns[Column.START_S] = lines.model.end_s[places]
    columns[Column.TIME_S] = columns[Column.END_S] = ends_s
    columns[Column.DIRECTION], columns[Column.FATE] = Direction.NONE, Fate.DELIVERED
    columns[Column.REASON] = reason
    return columns


def stages_at_cut(lines: Timelines) -> Codes:
    """Return the stage at which each participation was cut short, int8 [m]; of others it means nothing."""
    plan = lines.shared.plan
    drop_stage = plan.drop_stage[lines.slots]
    # One that is to go away while it answers is not ahead of itself.
    waiting = np.where(drop_stage == Stage.INVITE, np.int8(Stage.INVITE), np.int8(Stage.DOWNLOAD))
    waiting = np.where(lines.answered, np.int8(Stage.DOWNLOAD), waiting)
    stages = np.where(lines.given, np.int8(Stage.COMPUTE), waiting)
    stages = np.where(lines.worked, np.int8(Stage.REPORT), stages)
    return np.where(lines.reported, np.int8(Stage.ACKNOWLEDGE), stages)


def _cut_rows(lines: Timelines, led: dict[str, list[Floats]]) -> list[_WaveRows]:
    """Return what is lost, what is left unfinished and who goes away, where participations are cut short."""
    cut = np.flatnonzero(np.isfinite(lines.cut_s))
    if not len(cut):
        return []
    cut_s, reasons = lines.cut_s[cut], lines.cut_reason[cut]
    moments_s = _cut_moments(lines, led, cut)
    lost_reason = np.where(reasons == Reason.NONE, np.int8(Reason.DEADLINE), reasons)
    found: list[_WaveRows] = []

    def add(which: Bools, columns: Floats) -> None:
        found.append(_WaveRows(cut[which], columns, [moment[which] for moment in moments_s]))

    answered, given, refused = lines.answered[cut], lines.given[cut], lines.refused[cut]
    worked, reported = lines.worked[cut], lines.reported[cut]
    travelling: list[tuple[Bools, Flights, type[AnyMessage]]] = [
        (~answered, lines.answer, Accept),
        (answered & ~given & ~refused, lines.model, Model),
        (answered & ~given & refused, lines.model, Acknowledge),
        (worked & ~reported, lines.report, Report),
        (reported & ~lines.received[cut], lines.receipt, Acknowledge),
    ]
    for which, flights, message in travelling:
        if not which.any():
            continue
        places = cut[which]
        rows = _frame_rows(lines, places, flights, KINDS[message], [])
        columns = rows.columns
        share = flights.take(places).sent_share(cut_s[which])
        for column in (
            Column.PAYLOAD_BYTES,
            Column.FRAMING_BYTES,
            Column.TCP_IP_BYTES,
            Column.RETRANSMITTED_BYTES,
        ):
            columns[column] = np.trunc(columns[column] * share)
        columns[Column.TIME_S] = columns[Column.END_S] = cut_s[which]
        columns[Column.FATE], columns[Column.REASON] = Fate.LOST, lost_reason[which]
        add(which, columns)
    computing = given & ~worked & ~refused
    if computing.any():
        add(computing, _computed(lines, cut[computing], cut_s[computing], lost_reason[computing]))
    gone = reasons != Reason.NONE
    if gone.any():
        columns = _blank(lines, cut[gone])
        columns[Column.KIND], columns[Column.STAGE] = EventKind.DROPPED, stages_at_cut(lines)[cut[gone]]
        columns[Column.TIME_S] = columns[Column.START_S] = columns[Column.END_S] = cut_s[gone]
        columns[Column.DIRECTION], columns[Column.FATE] = Direction.NONE, Fate.DELIVERED
        columns[Column.REASON] = reasons[gone]
        add(gone, columns)
    return found


def _cut_moments(lines: Timelines, led: dict[str, list[Floats]], cut: Ints) -> list[Floats]:
    """Return what decides the order of the moments at which participations are cut short."""
    n = len(cut)
    moments_s = [np.full(n, -np.inf) for _ in range(_DEPTH)]
    moments_s[0] = lines.cut_s[cut]
    # What ends with a session or at the deadline was set when the invitation came.
    moments_s[1] = lines.begins_s[cut].copy()
    planned, stage = lines.event_first[cut], stages_at_cut(lines)[cut]
    behind = {Stage.DOWNLOAD: "answered", Stage.COMPUTE: "given", Stage.REPORT: "worked"}
    for at_stage, name in behind.items():
        which = planned & (stage == at_stage)
        events = led[name][1:] if at_stage is Stage.DOWNLOAD else led[name]
        for depth, moment in enumerate(events[: _DEPTH - 1], 1):
            moments_s[depth][which] = moment[cut][which]
    # At the arrival of the report itself.
    which = planned & (stage == Stage.ACKNOWLEDGE)
    for depth, moment in enumerate(led["reported"][:_DEPTH]):
        moments_s[depth][which] = moment[cut][which]
    # The end of patience is set when the report leaves.
    which = ~planned & (lines.cut_reason[cut] == Reason.NONE) & lines.worked[cut]
    for depth, moment in enumerate(led["worked"][: _DEPTH - 1], 1):
        moments_s[depth][which] = moment[cut][which]
    return moments_s
