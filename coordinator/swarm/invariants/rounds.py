"""Rounds: nothing is applied twice, too late or in another round, and nothing goes on without an end."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

from coordinator.engine.secure_rounds import STAGE_OF_STATE
from coordinator.engine.stop_reason import StopReason
from coordinator.scenario.secure_section import Ckks, NoSecureAggregation
from coordinator.swarm.trial import Trial, columns, rows
from edge.core.vocabulary import SUM_STAGES, EventKind, Fate, Outcome, Reason, RoundOutcome, Stage, label
from edge.device.simulated import SimulatedDevice
from edge.wire.messages import Acknowledge

_STATE_OF_STAGE = {stage: state for state, stage in STAGE_OF_STATE.items()}
_BITS = 1e-6
"""Seconds of room for differences of times."""


def applied_once(trial: Trial) -> Iterator[str]:
    """Check that updates are accepted once a round, in their own round, from invited devices, and in time."""
    invited: set[tuple[int, int]] = set()
    completed: Counter[tuple[int, int]] = Counter()
    for row in rows(trial.tables, "device_rounds", "round", "device", "outcome"):
        key = (row["round"], row["device"])
        if key in invited:
            yield f"device {key[1]} was invited twice to round {key[0]}"
        invited.add(key)
        completed[key] += row["outcome"] == label(Outcome.COMPLETED)
    known = {row["round"]: row for row in rows(trial.tables, "rounds")}
    accepted: Counter[tuple[int, int]] = Counter()
    for one in trial.record.inputs:
        if one.reason is not Reason.NONE or one.round_number not in known:
            continue
        key, row = (one.round_number, one.device), known[one.round_number]
        accepted[key] += 1
        if accepted[key] == 2:
            yield f"a second update of device {one.device} was accepted in round {one.round_number}"
        if one.named_round != one.round_number:
            yield f"an update of round {one.named_round} was accepted in round {one.round_number}"
        if key not in invited:
            yield f"an update of device {one.device} was accepted in round {one.round_number}, uninvited"
        latest_s = _latest_s(trial, row, clear=one.report is not None)
        if one.time_s > latest_s + _BITS:
            yield (
                f"an update of device {one.device} was accepted at {one.time_s:.3f} s; in round "
                f"{one.round_number} it was too late from {latest_s:.3f} s on"
            )
    for (number, device), count in completed.items():
        if count and not accepted[number, device]:
            yield f"device {device} is said to be completed in round {number}, and no update was accepted"
    for number, row in known.items():
        if row["outcome"] != label(RoundOutcome.COMPLETED) and row[label(Outcome.COMPLETED)]:
            yield f"round {number} was abandoned with {row[label(Outcome.COMPLETED)]} completed devices"


def _latest_s(trial: Trial, row: dict[str, Any], *, clear: bool) -> float:
    """Return until when a round may take updates: its deadline or its end, or the end of the stage."""
    scenario = trial.loaded.scenario
    if clear:
        return float(min(row["start_s"] + scenario.deadline_in(row["phase"]), row["end_s"]))
    spent_s = 0.0
    for stage in SUM_STAGES:
        spent_s += row[f"{label(stage)}_s"] or 0.0
        if stage is Stage.MASKED_INPUT:
            break
    # A stage that was still going on when the round was given up has no length of its own.
    ended = row[f"{label(Stage.MASKED_INPUT)}_s"] is not None
    return float(row["start_s"] + spent_s if ended else row["end_s"])


def timely_rounds(trial: Trial) -> Iterator[str]:
    """Check that no round, and no stage of a secure sum, outlasts its deadline, and none overlaps another."""
    scenario = trial.loaded.scenario
    last_s = 0.0
    for expected, row in enumerate(rows(trial.tables, "rounds"), start=1):
        number = row["round"]
        if number != expected:
            yield f"round {expected} is missing before round {number}"
        if row["start_s"] < last_s - _BITS:
            yield f"round {number} began at {row['start_s']:.3f} s, before the last one ended"
        last_s = row["end_s"]
        if not row["start_s"] <= last_s:
            yield f"round {number} ended before it began"
        section = scenario.secure_in(row["phase"])
        deadline_s = limit_s = scenario.deadline_in(row["phase"])
        if not isinstance(section, NoSecureAggregation):
            deadlines = section.stage_deadlines
            limit_s += deadlines.total_s
            if isinstance(section, Ckks):
                # One device after the other may be asked to decrypt.
                limit_s += scenario.rounds.cohort * deadlines.unmask
            else:
                for stage in SUM_STAGES:
                    first = stage is Stage.ADVERTISE_KEYS
                    own_s = deadline_s if first else deadlines.of(_STATE_OF_STAGE[stage])
                    took_s = row[f"{label(stage)}_s"]
                    if took_s is not None and took_s > own_s + _BITS:
                        yield f"round {number}: {label(stage)} took {took_s:.3f} s of {own_s:g} s"
        if row["duration_s"] > limit_s + _BITS:
            yield f"round {number} took {row['duration_s']:.3f} s of {limit_s:g} s"


def comes_to_an_end(trial: Trial) -> Iterator[str]:
    """Check that the run ends, for a reason with a name, without an error, and leaves nothing behind."""
    if trial.error is not None:
        place = traceback.extract_tb(trial.error.__traceback__)[-1]
        notes = "; ".join(getattr(trial.error, "__notes__", ()))
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        yield f"{type(trial.error).__name__} at {where}: {trial.error}{f' ({notes})' if notes else ''}"
        return
    if trial.stop is None:
        yield "the run ended for no reason"
    yield from trial.record.left
    scenario = trial.loaded.scenario
    count = trial.tables.rows("rounds")
    if trial.stop is StopReason.LAST_ROUND and scenario.round_count not in (None, count):
        yield f"the run ended with its last round after {count} of {scenario.round_count} rounds"


def honest_receipts(trial: Trial) -> Iterator[str]:
    """Check that whoever is told that its update counts has given one, which counts if the round does."""
    outcomes = {
        (row["round"], row["device"]): row["outcome"]
        for row in rows(trial.tables, "device_rounds", "round", "device", "outcome")
    }
    completed = {
        row["round"]
        for row in rows(trial.tables, "rounds", "round", "outcome")
        if row["outcome"] == label(RoundOutcome.COMPLETED)
    }
    accepted = {(one.round_number, one.device) for one in trial.record.inputs if one.reason is Reason.NONE}
    for delivery in trial.record.deliveries:
        message = delivery.message
        if not isinstance(message, Acknowledge) or message.reason != Reason.NONE:
            continue
        key = (message.round_number, cast(SimulatedDevice, delivery.link).device)
        if key not in accepted:
            yield f"device {key[1]} was told that its update counts in round {key[0]}; none was accepted"
        elif key[0] in completed and outcomes[key] != label(Outcome.COMPLETED):
            yield f"device {key[1]} was told that its update counts in round {key[0]}; it is {outcomes[key]}"


def one_round_at_a_time(trial: Trial) -> Iterator[str]:
    """Check that no device is at work for a round before it is done with the one before."""
    busy_until: dict[int, tuple[float, int]] = {}
    spans: dict[tuple[int, int], list[float]] = {}
    names = ("round", "device", "slot", "kind", "end_s", "start_s", "fate")
    for number, device, slot, kind, end_s, start_s, fate in zip(
        *columns(trial.tables, "events", *names).values(), strict=True
    ):
        # A frame that is sent in vain finds nobody at work; pauses between attempts to connect are noted
        # beforehand, and a crash of the coordinator cuts them short.
        if slot < 0 or fate == label(Fate.LOST) or kind == label(EventKind.RETRY):
            continue
        span = spans.setdefault((number, device), [start_s, end_s])
        span[0], span[1] = min(span[0], start_s), max(span[1], end_s)
    for (number, device), (start_s, end_s) in sorted(spans.items()):
        until_s, before = busy_until.get(device, (0.0, 0))
        if start_s < until_s - _BITS:
            yield (
                f"device {device} begins with round {number} at {start_s:.3f} s, "
                f"and is at work for round {before} until {until_s:.3f} s"
            )
        busy_until[device] = max((until_s, before), (end_s, number))
