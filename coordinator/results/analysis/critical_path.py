"""Who held rounds up: the critical path of every round, from the tables of a run alone.

A round consists of barriers. In the clear there is one: the coordinator waits for reports until it has those
it wants, until nobody is left, or until the deadline. A secure sum has one per stage. Between two barriers
lies a *segment*, and either of two things ends it:

*an arrival*: the last answer it waited for came. It is the device one of whose stages ended at that very
moment; simulated times of cause and effect are equal, up to the rounding of sums. The segment's seconds are
those of this device: per stage where it was in it, as *waiting* for the rest.

*a deadline*: no answer came at that moment, so the deadline of the round or stage (or another window of time)
passed. Its seconds are shared equally by the devices that were missing, each at the stage where it was stuck:
those that had vanished in the segment, never answered, or were still at work.

So the seconds of a round add up to its duration, and those of a run to that of all of its rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.results.analysis.rows import Rows, read_rows
from coordinator.results.tables.reader import RunTables
from edge.core.vocabulary import SUM_STAGES, Outcome, Stage, label

Floats = npt.NDArray[np.float64]
Wholes = npt.NDArray[np.int64]

PATH_STAGES: Final = (Stage.INVITE, Stage.DOWNLOAD, Stage.COMPUTE, Stage.REPORT, *SUM_STAGES)
"""The stages that can hold a round up, as a device comes to them; the receipt never does."""

WAITING: Final = "waiting"
STEPS: Final = (*(label(stage) for stage in PATH_STAGES), WAITING)
"""What the seconds of a critical path are spent on."""

NOBODY: Final = "–"
"""Stands for the device class where no device was to blame."""

ARRIVAL: Final = "arrival"
DEADLINE: Final = "deadline"

_WAIT: Final = len(PATH_STAGES)
_SILENT: Final = (label(Outcome.DROPPED), label(Outcome.UNREACHABLE))
"""Outcomes of devices that the coordinator waits for in vain."""
_UNFINISHED: Final = (label(Outcome.LATE), label(Outcome.ABANDONED))

_DEVICE_COLUMNS: Final = (
    "round",
    "device",
    "class",
    "network",
    "outcome",
    "stage",
    "latency_s",
    *(f"{label(stage)}_{end}_s" for stage in PATH_STAGES for end in ("start", "end")),
)
_ROUND_COLUMNS: Final = ("round", "start_s", "end_s", *(f"{label(stage)}_s" for stage in SUM_STAGES))


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The critical paths of a run of r rounds, cut into s segments, in the order of the rounds.

    Attributes
    ----------
    rounds : int64 [r], numbers of the rounds.
    durations_s : float64 [r].
    segment_round : int64 [s], positions in ``rounds``.
    by_deadline : bool [s], what ended the segment: False an arrival, True a deadline.
    device : int64 [s], the device that arrived last; -1 for a deadline.
    row : int64 [s], its row in ``device_rounds``; -1 for a deadline.
    missing : int64 [s], how many devices a deadline's segment waited for in vain; 0 for an arrival.
    seconds : float64 [s, steps], in the order of ``STEPS``.
    blame_s : float64 [2, classes + 1, steps], all seconds of the run by what ended the segment (arrival,
        deadline), device class and step; the last class is nobody.
    classes : names of the device classes.
    """

    rounds: Wholes
    durations_s: Floats
    segment_round: Wholes
    by_deadline: npt.NDArray[np.bool_]
    device: Wholes
    row: Wholes
    missing: Wholes
    seconds: Floats
    blame_s: Floats
    classes: tuple[str, ...]

    def round_seconds(self) -> Floats:
        """Return the seconds of every round by step, float64 [r, steps]; a row adds up to the duration."""
        whole = np.zeros((len(self.rounds), len(STEPS)))
        np.add.at(whole, self.segment_round, self.seconds)
        return whole

    def last_segments(self) -> Wholes:
        """Return the segment that ended each round, int64 [r]."""
        last = np.zeros(len(self.rounds), dtype=np.int64)
        last[self.segment_round] = np.arange(len(self.segment_round))  # of equal rounds the last one stays
        return last

    def longest_segments(self) -> Wholes:
        """Return the segment that took longest of each round, int64 [r]; of equals the last."""
        longest = np.zeros(len(self.rounds), dtype=np.int64)
        # Sorted by round, then by seconds: the last of a round is the one that took longest.
        order = np.lexsort((self.seconds.sum(axis=1), self.segment_round))
        longest[self.segment_round[order]] = order
        return longest


@dataclass(frozen=True, slots=True)
class _Segments:
    round: Wholes
    start_s: Floats
    end_s: Floats
    first_step: Wholes
    """The first and the last of the stages, by position in ``PATH_STAGES``, that a device is at in it …"""
    last_step: Wholes
    beyond: Wholes
    """… or any stage beyond this one."""
    ordinal: Wholes
    """Position within the round."""


def _segments(rounds: Rows) -> _Segments:
    """Cut rounds at the ends of the stages of their secure sums."""
    start_s, end_s = rounds.numbers["start_s"], rounds.numbers["end_s"]
    n = len(start_s)
    spans_s = np.stack([rounds.numbers[f"{label(stage)}_s"] for stage in SUM_STAGES], axis=1)
    reached = ~np.isnan(spans_s)
    cuts_s = start_s[:, None] + np.cumsum(np.where(reached, spans_s, 0.0), axis=1)
    # The remainder after the last stage, or the whole of a round in the clear.
    open_end = ~reached.any(axis=1) | (end_s - cuts_s[:, -1] > _tolerance_s(end_s))
    exists = np.concatenate([reached, open_end[:, None]], axis=1)
    ends_s = np.concatenate([cuts_s, end_s[:, None]], axis=1)
    of_round, column = np.nonzero(exists)
    segment_end_s = ends_s[of_round, column]
    begins = np.append(True, of_round[1:] != of_round[:-1])[: len(of_round)]
    last = np.append(begins[1:], True)[: len(of_round)]
    segment_end_s[last] = end_s[of_round[last]]
    segment_start_s = np.where(begins, start_s[of_round], np.roll(segment_end_s, 1))
    first_sum = PATH_STAGES.index(SUM_STAGES[0])
    is_open = column == len(SUM_STAGES)
    step = np.where(is_open, first_sum - 1, column + first_sum)
    # A remainder waits for reports in the clear, or for a stage that was begun and not brought to an end.
    begun = np.where(reached, np.arange(len(SUM_STAGES)) + first_sum, first_sum - 1).max(axis=1, initial=0)
    beyond = np.where(is_open, begun[of_round], _WAIT)
    ordinal = np.arange(len(of_round)) - np.searchsorted(of_round, np.arange(n))[of_round]
    first_step = np.where(begins | is_open, 0, step)
    return _Segments(of_round, segment_start_s, segment_end_s, first_step, step, beyond, ordinal)


def _tolerance_s(time_s: Floats) -> Floats:
    """Return by how much equal times may differ once one of them is a sum: a few units in the last place."""
    return np.asarray(1e-9 + 16 * np.spacing(np.abs(time_s)))


def _ends_at(ends_s: Floats, rows: Rows, segments: _Segments, row_round: Wholes) -> Wholes:
    """Return for each segment the row of the device that arrived when it ended, int64 [s]; -1: none did."""
    found = np.full(len(segments.round), -1, dtype=np.int64)
    n_rounds = int(row_round.max(initial=-1)) + 1
    preferred = rows.equal("outcome", label(Outcome.COMPLETED))
    for ordinal in range(int(segments.ordinal.max(initial=-1)) + 1):
        of_ordinal = np.flatnonzero((segments.ordinal == ordinal) & (segments.round < n_rounds))
        segment_of_round = np.full(n_rounds, -1, dtype=np.int64)
        segment_of_round[segments.round[of_ordinal]] = of_ordinal
        segment = segment_of_round[row_round]
        boundary_s = np.where(segment >= 0, segments.end_s[segment], np.nan)
        with np.errstate(invalid="ignore"):
            near = (np.abs(ends_s - boundary_s) <= _tolerance_s(boundary_s)).any(axis=0)
        candidates = np.flatnonzero(near)
        # Written last, a completed device stays; of equals the first row does.
        order = candidates[np.lexsort((-candidates, preferred[candidates]))]
        found[segment[order]] = order
    return found


def _spent(starts_s: Floats, ends_s: Floats, segment_start_s: Floats, segment_end_s: Floats) -> Floats:
    """Return the seconds of one device per segment in each step, float64 [s, steps]; stages never overlap."""
    seconds = np.zeros((len(segment_start_s), len(STEPS)))
    cursor_s = segment_start_s.copy()
    for step in range(_WAIT):
        begin_s = np.fmax(starts_s[step], cursor_s)
        finish_s = np.fmin(ends_s[step], segment_end_s)
        spent_s = finish_s - begin_s
        there = (spent_s > 0) & ~np.isnan(starts_s[step])
        seconds[:, step] = np.where(there, spent_s, 0.0)
        cursor_s = np.where(there, finish_s, cursor_s)
    rest_s = segment_end_s - segment_start_s - seconds.sum(axis=1)
    # What rounding leaves is no waiting.
    seconds[:, _WAIT] = np.where(rest_s > _tolerance_s(segment_end_s), rest_s, 0.0)
    return seconds


def _stuck(starts_s: Floats, rows: Rows, until_s: Floats) -> Wholes:
    """Return the step at which each device was at a time, or went away before it, int64 [n]."""
    begun = starts_s <= until_s  # NaN: not begun
    latest = _WAIT - 1 - np.argmax(begun[::-1], axis=0)
    latest = np.where(begun.any(axis=0), latest, 0)
    steps = {name: step for step, name in enumerate(STEPS)}
    of_label = np.array([steps.get(name, -1) for name in rows.names["stage"]] + [-1])
    ended = of_label[rows.codes["stage"]]
    return np.where(rows.among("outcome", _SILENT) & (ended >= 0), ended, latest)


def critical_path(run: RunTables) -> CriticalPath:
    """Return who held up the rounds of a run; see the module for the definitions.

    One pass of numpy per stage and barrier; nothing loops over devices.
    """
    rounds = read_rows(run, "rounds", _ROUND_COLUMNS)
    rows = read_rows(run, "device_rounds", _DEVICE_COLUMNS)
    numbers = rounds.numbers["round"].astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    row_round = order[np.searchsorted(numbers, rows.numbers["round"], sorter=order)] if len(rows) else (
        np.zeros(0, dtype=np.int64)
    )  # fmt: skip
    segments = _segments(rounds)
    starts_s = np.stack([rows.numbers[f"{label(stage)}_start_s"] for stage in PATH_STAGES])
    ends_s = np.stack([rows.numbers[f"{label(stage)}_end_s"] for stage in PATH_STAGES])
    # A repeated report ends its stage later than the first one came.
    arrival_s = np.fmin.reduce(starts_s, axis=0) + rows.numbers["latency_s"]
    for stage in (Stage.REPORT, Stage.MASKED_INPUT):
        ends_s[PATH_STAGES.index(stage)] = np.fmin(ends_s[PATH_STAGES.index(stage)], arrival_s)

    row = _ends_at(ends_s, rows, segments, row_round)
    arrived = row >= 0
    seconds = np.zeros((len(row), len(STEPS)))
    seconds[arrived] = _spent(
        starts_s[:, row[arrived]], ends_s[:, row[arrived]], segments.start_s[arrived], segments.end_s[arrived]
    )
    classes = rows.names["class"]
    blame_s = np.zeros((2, len(classes) + 1, len(STEPS)))
    np.add.at(blame_s[0], rows.codes["class"][row[arrived]], seconds[arrived])

    missing = np.zeros(len(row), dtype=np.int64)
    durations_s = segments.end_s - segments.start_s
    for ordinal in range(int(segments.ordinal.max(initial=-1)) + 1):
        timed = np.flatnonzero(~arrived & (segments.ordinal == ordinal))
        if not len(timed):
            continue
        who, step, segment = _missing(starts_s, ends_s, rows, segments, timed, row_round)
        missing += np.bincount(segment, minlength=len(row))
        share_s = durations_s[segment] / missing[segment]
        np.add.at(seconds, (segment, step), share_s)
        np.add.at(blame_s[1], (rows.codes["class"][who], step), share_s)
    alone = ~arrived & (missing == 0)
    seconds[alone, _WAIT] = durations_s[alone]
    blame_s[1, -1, _WAIT] += durations_s[alone].sum()
    device = np.full(len(row), -1, dtype=np.int64)
    device[arrived] = rows.numbers["device"][row[arrived]]
    return CriticalPath(
        rounds=numbers,
        durations_s=rounds.numbers["end_s"] - rounds.numbers["start_s"],
        segment_round=segments.round,
        by_deadline=~arrived,
        device=device,
        row=row,
        missing=missing,
        seconds=seconds,
        blame_s=blame_s,
        classes=classes,
    )


def _missing(
    starts_s: Floats, ends_s: Floats, rows: Rows, segments: _Segments, timed: Wholes, row_round: Wholes
) -> tuple[Wholes, Wholes, Wholes]:
    """Return rows of devices that were waited for in vain, the steps they were stuck at, and the segments."""
    segment_of_round = np.full(int(segments.round.max(initial=-1)) + 1, -1, dtype=np.int64)
    segment_of_round[segments.round[timed]] = timed
    who = np.flatnonzero(segment_of_round[row_round] >= 0)
    segment = segment_of_round[row_round[who]]
    found = rows.where(who)
    until_s = segments.end_s[segment]
    step = _stuck(starts_s[:, who], found, until_s)
    at_work = found.among("outcome", _UNFINISHED)
    at_work &= ends_s[:, who][step, np.arange(len(who))] > until_s
    waited_for = found.among("outcome", _SILENT) | at_work
    within = (segments.first_step[segment] <= step) & (step <= segments.last_step[segment])
    waited_for &= within | (step > segments.beyond[segment])
    return who[waited_for], step[waited_for], segment[waited_for]


@dataclass(frozen=True, slots=True)
class Blame:
    """Seconds by which a device class at a step held up the rounds of a run.

    ``ended_by`` is ``arrival`` or ``deadline``; ``share`` is the part of all seconds of all rounds.
    """

    device_class: str
    step: str
    ended_by: str
    seconds: float
    share: float


def held_up(path: CriticalPath) -> list[Blame]:
    """Return what held rounds up, the most seconds first; their sum is the duration of all rounds."""
    shares = path.blame_s
    if not np.isfinite(shares.sum()):  # huge durations add up to infinity, and yet have their shares
        shares = np.minimum(shares, np.finfo(np.float64).max) / np.finfo(np.float64).max / shares.size
    whole = float(shares.sum())
    names = (*path.classes, NOBODY)
    found = [
        Blame(
            names[of_class],
            STEPS[step],
            (ARRIVAL, DEADLINE)[ended_by],
            float(path.blame_s[ended_by, of_class, step]),
            float(shares[ended_by, of_class, step]) / whole,
        )
        for ended_by, of_class, step in np.argwhere(path.blame_s > 0).tolist()
    ]
    return sorted(found, key=lambda row: (-row.seconds, row.device_class, row.step, row.ended_by))
