"""Devices of a round that meet nothing unforeseen, computed as arrays: a *wave* of them.

From its invitation on, all that a device does in a round of plain reports follows from what was drawn for it:
when its answer, the model, the end of its computation, its report and the receipt come, whether it declines,
fails, goes away or is too slow on the way. A wave works that out for all of its devices at the invitation.
Two things depend on others: the close of the round, which says what a late device is answered, and the
numbers. The wave sits in the loop's heap as one object and wakes at the arrival that may close the round,
when a batch of numbers is due, and at its end.

What each step is called comes from the protocol (:data:`~edge.wire.messages.KINDS`), how long a frame takes
from :mod:`edge.network.flights`; the rows, their order and the sums are those of devices that act one by one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import ActiveRound
from coordinator.engine.actor import Coordinator
from coordinator.engine.fleet import Fleet
from coordinator.engine.rounds import RoundMachine
from coordinator.engine.selection.experience import ANSWERS, Experience
from coordinator.simulation.timelines import Timelines
from coordinator.simulation.wave_flows import WaveFlows, WaveTraffic
from coordinator.simulation.wave_records import causes, in_order, joined, stages_at_cut, wave_records
from edge.clock.virtual import VirtualClockLoop
from edge.core.log import EventLog
from edge.core.vocabulary import Outcome, Reason, Stage
from edge.device.compute import ComputeQueue, Kernel
from edge.device.participation import OUTCOME_OF_RECEIPT
from edge.learning.updates import Array, ClientUpdate, UpdateBatch
from edge.wire.codec import measure
from edge.wire.messages import Report

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_ACCEPTS, _LEAVES, _REPORTS = 0, 1, 2
"""What arrives at the coordinator: an acceptance, word that there will be no report that counts, a report."""


class WaveRound(Protocol):
    """What a wave asks of its cohort, and reports to it."""

    loop: VirtualClockLoop
    compute: ComputeQueue
    kernel: Kernel[ClientUpdate]
    log: EventLog
    ids: Ints
    round_number: int
    invited_s: float
    loss: Floats
    sends_model: bool

    @property
    def fleet(self) -> Fleet:
        """The fleet, whose devices are busy for as long as they take part."""

    @property
    def coordinator(self) -> Coordinator:
        """Judges reports, and closes the round."""

    @property
    def experience(self) -> Experience | None:
        """Receives what arrives from each device; None where no policy uses it."""

    @property
    def keep(self) -> Callable[[int, Array], None] | None:
        """Puts what a device keeps between rounds into its storage; None: none keeps anything."""

    @property
    def protect(self) -> Callable[[int, ClientUpdate], ClientUpdate | Reason] | None:
        """Makes of an update, given its slot, what may be seen of it; None where everything may."""

    def wave_ended(self, outcomes: Endings, applied: Ints) -> None:
        """Take over how the devices of the wave have ended; ``applied`` are the slots that count."""


@dataclass(frozen=True, slots=True)
class Endings:
    """How devices have ended: outcome, stage and reason of each, int8 [m], by ``slots``."""

    slots: Ints
    outcome: Codes
    stage: Codes
    reason: Codes


@dataclass(slots=True, eq=False)
class _DueReports:
    """Reports that are computed together.

    ``places`` int64 [k]; ``due_s`` when the first of their computations ends; ``results`` since then.
    """

    places: Ints
    due_s: float
    results: UpdateBatch | list[ClientUpdate] | None = None
    expected: int = 0
    """How many of them are still to be added up."""


class Wave:
    """The devices of a round that are computed as arrays.

    Parameters
    ----------
    cohort : theirs.
    active : the round.
    lines : what they do.
    traffic : the frames of all waves on the coordinator's link.
    """

    def __init__(
        self, cohort: WaveRound, active: ActiveRound, lines: Timelines, traffic: WaveTraffic
    ) -> None:
        assert isinstance(active.machine, RoundMachine)
        self._cohort = cohort
        self._loop = cohort.loop
        self._active = active
        self._machine = active.machine
        self._lines = lines
        n = len(lines.slots)
        self._ids = cohort.ids[lines.slots]
        self._verdicts = np.zeros(n, np.int8)
        """Why each report was discarded, or ``NONE``."""
        self._spoilers = np.zeros(n, np.int8)
        """What is wrong with a report that the coordinator does not believe, or ``NONE``."""
        self._lateness: Reason | None = None
        """Why what comes now comes too late; None: it does not."""
        self._armed_s = math.inf
        self._ended = False
        self._applied: list[Ints] = []
        self._examples = np.zeros(n, np.int64)
        self._losses = np.full(n, np.nan)
        """What the reports say."""
        self._batch_of, self._place_in = np.full(n, -1), np.zeros(n, np.int64)
        self._batches: dict[int, _DueReports] = {}
        """Those whose results are still to be added up, by number."""
        self._pending: list[_DueReports] = []
        """Those of which nothing is computed yet."""
        self._kept: list[tuple[float, int, Array]] = []
        self._answer_seen, self._report_seen = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        """Of which devices the coordinator has seen the answer, and the report or the failure."""
        self._gone = np.zeros(n, np.bool_)
        """Which devices are done, as of the last time that things were put into order."""
        self._computed = np.zeros(n, np.bool_)
        """Of which devices the numbers are computed."""
        self._who = self._what = self._ends = np.empty(0, np.int64)
        self._answers = np.empty(0, np.bool_)
        self._next = self._done = 0
        self._flows = WaveFlows(traffic, lines, self.catch_up, self._changed)
        self._traffic = traffic
        self._order()

    @property
    def lines(self) -> Timelines:
        """What its devices do."""
        return self._lines

    # -- the order of things -----------------------------------------------------------------------------

    def _order(self) -> None:
        """Put what is still to come into its order: what arrives at the coordinator, and who is done."""
        lines = self._lines
        arrived = self._who[: self._next]
        answers = self._answers[: self._next]
        self._answer_seen[arrived[answers]] = True
        self._report_seen[arrived[~answers]] = True
        self._gone[self._ends[: self._done]] = True

        led = causes(lines)
        answered, reported = lines.answered & ~self._answer_seen, lines.reported & ~self._report_seen
        fails = lines.failing | (self._spoilers != Reason.NONE)
        kinds = (
            (_ACCEPTS, answered & ~lines.declines & ~lines.refused, "answered"),
            (_LEAVES, answered & lines.declines, "answered"),
            (_LEAVES, reported & fails, "reported"),
            (_REPORTS, reported & ~fails, "reported"),
        )
        places = [np.flatnonzero(which) for _, which, _ in kinds]
        moments_s = joined(
            [[moment[at] for moment in led[name]] for (_, _, name), at in zip(kinds, places, strict=True)]
        )
        who = np.concatenate(places)
        order = in_order(moments_s, lines.slots[who])
        self._who, self._when_s, self._next = who[order], moments_s[0][order], 0
        self._what = np.repeat([kind for kind, _, _ in kinds], [len(at) for at in places])[order]
        self._answers = np.repeat([name == "answered" for _, _, name in kinds], [len(at) for at in places])[
            order
        ]

        self._ends = np.flatnonzero(~self._gone)
        self._ends = self._ends[np.argsort(lines.finish_s[self._ends], kind="stable")]
        self._ends_s, self._done = lines.finish_s[self._ends], 0

    def _form_batches(self) -> None:
        """Divide the computations to come into batches, in the order in which their reports would arrive."""
        lines = self._lines
        self._pending = []
        places = np.flatnonzero(lines.worked & ~self._computed)
        places = places[np.argsort(lines.report.end_s[places], kind="stable")]
        size = self._cohort.compute.size
        for start in range(0, len(places), size):
            batch = places[start : start + size]
            self._pending.append(_DueReports(batch, float(lines.work_end_s[batch].min())))

    # -- on the clock ------------------------------------------------------------------------------------

    def begin(self, *, others: bool) -> bool:
        """Put the wave on the clock; False: others are on the coordinator's link, or may be in the way.

        ``others`` says that devices of the same round act alone.
        """
        if not self._traffic.add(self._flows, others=others):
            self._drop_flows()
            return False
        self._form_batches()
        lines = self._lines
        answering = self._ids[~lines.declines]
        self._cohort.fleet.answered.add_many(answering, self._cohort.round_number)
        self.rearm()
        return True

    def fire(self, when: float) -> None:
        """Let happen what is due; called by the loop."""
        if when != self._armed_s or self._ended:
            return
        self._armed_s = math.inf
        self._loop.now_s = when
        self._advance(when, inclusive=True)
        self.rearm()

    def catch_up(self) -> None:
        """Let everything happen that comes before this moment; call before anything else looks."""
        self._advance(self._loop.now_s, inclusive=False)

    def _changed(self) -> None:
        """Respond when frames come at another time than was foreseen."""
        self._order()
        self._form_batches()
        self.rearm()

    def rearm(self) -> None:
        """Set the timer for the next event that matters; call when others have changed the round."""
        if self._ended:
            return
        if self._machine.over and self._lateness is None:
            self._close()
        wake_s = self._wake_s()
        if wake_s < self._armed_s:
            self._armed_s = wake_s
            self._loop.push_timer(wake_s, self)

    def _wake_s(self) -> float:
        """Return when the wave must look next: at what may close the round, at numbers due, at its end."""
        wake_s = min((batch.due_s for batch in self._pending), default=math.inf)
        if self._done < len(self._ends):
            wake_s = min(wake_s, float(self._ends_s[-1]))
        machine = self._machine
        if not machine.over and self._next < len(self._who):
            wake_s = min(wake_s, float(self._when_s[-1]))
            reports = np.flatnonzero(self._what[self._next :] == _REPORTS)
            for wanted in self._milestones():
                if wanted <= len(reports):
                    wake_s = min(wake_s, float(self._when_s[self._next + reports[wanted - 1]]))
        return wake_s

    def _milestones(self) -> list[int]:
        """Return after how many more reports something happens: the target is reached, or the quorum."""
        machine, plan = self._machine, self._machine.plan
        found = [plan.target - machine.reports]
        if plan.grace_s is not None and machine.reports < plan.quorum:
            found.append(plan.quorum - machine.reports)
        return found

    def _advance(self, until_s: float, *, inclusive: bool) -> None:
        if self._ended:
            return
        side: Literal["left", "right"] = "right" if inclusive else "left"
        due = [batch for batch in self._pending if batch.due_s <= until_s]
        if due:
            self._pending = [batch for batch in self._pending if batch.due_s > until_s]
            for batch in due:
                self._compute(batch)
        while True:
            if self._machine.over and self._lateness is None:
                self._close()
            end = int(np.searchsorted(self._when_s, until_s, side))
            if end <= self._next:
                break
            if self._lateness is None:
                self._count(self._closing_end(end))
            else:
                self._late(end, self._lateness)
        while self._kept and self._kept[0][0] <= until_s:
            _, place, local = heapq.heappop(self._kept)
            assert self._cohort.keep is not None
            if self._lines.worked[place]:
                self._cohort.keep(int(self._ids[place]), local)
        self._let_go(int(np.searchsorted(self._ends_s, until_s, side)))

    # -- what the coordinator sees -----------------------------------------------------------------------

    def _closing_end(self, end: int) -> int:
        """Return the end of what comes up to the next thing that changes the round, at most ``end``."""
        what = self._what[self._next : end]
        leaving = np.cumsum(what != _ACCEPTS)
        if leaving[-1] >= self._machine.open:
            end = self._next + int(np.searchsorted(leaving, self._machine.open)) + 1
        reports = np.flatnonzero(what == _REPORTS)
        for wanted in self._milestones():
            if 0 < wanted <= len(reports):
                end = min(end, self._next + int(reports[wanted - 1]) + 1)
        return end

    def _count(self, end: int) -> None:
        """Let the coordinator take what arrives before the place ``end``; the round is not over."""
        start, self._next = self._next, end
        who, what = self._who[start:end], self._what[start:end]
        reporting = who[what == _REPORTS]
        leaving = who[what == _LEAVES]
        self._arrived(reporting)
        self._spoiled(leaving)
        if len(reporting):
            self._add(reporting)
            self._applied.append(self._lines.slots[reporting])
        accepted = len(who) - len(reporting) - len(leaving)
        self._machine.count(accepted, len(leaving), self._ids[reporting].tolist())
        if self._machine.over:
            assert self._when_s[end - 1] == self._loop.now_s, "a round closes at a moment that is foreseen"
        self._cohort.coordinator.counted(self._active, self._machine, reports=len(reporting) > 0)

    def _close(self) -> None:
        """Refuse the acceptances that come after the close of the round, and drop the results still held."""
        self._lateness = self._machine.lateness
        self._batches.clear()
        late = np.sort(self._who[self._next :][self._what[self._next :] == _ACCEPTS])
        if len(late):
            self._lines.refuse(late, self._lateness)
            for batch in self._pending:
                batch.places = batch.places[~self._lines.refused[batch.places]]
            self._pending = [batch for batch in self._pending if len(batch.places)]
            self._order()
            self._flows.revise(late)

    def _late(self, end: int, lateness: Reason) -> None:
        """Let what arrives before the place ``end`` come too late."""
        start, self._next = self._next, end
        who, what = self._who[start:end], self._what[start:end]
        reporting = who[what == _REPORTS]
        self._verdicts[reporting] = lateness
        self._arrived(reporting)
        self._spoiled(who[what == _LEAVES])

    def _arrived(self, places: Ints) -> None:
        """Note that the updates of ``places`` have come to the coordinator."""
        self._active.arrived.update(self._ids[places].tolist())
        experience = self._cohort.experience
        if experience is None or (self._lateness or Reason.NONE) not in ANSWERS:
            return
        number = self._cohort.round_number
        for place in places.tolist():
            device, waited_s = int(self._ids[place]), float(self._lines.report.end_s[place])
            experience.answered(device, number, waited_s - self._cohort.invited_s)
            experience.reported(device, number, int(self._examples[place]), float(self._losses[place]))

    def _spoiled(self, places: Ints) -> None:
        """Note which of ``places`` have reported what cannot be."""
        for place in places[self._spoilers[places] != Reason.NONE].tolist():
            device, reason = int(self._ids[place]), Reason(int(self._spoilers[place]))
            self._active.arrived.add(device)
            self._active.spoilers.setdefault(device, reason)
            self._verdicts[place] = reason

    # -- numbers -----------------------------------------------------------------------------------------

    def _compute(self, batch: _DueReports) -> None:
        """Compute a batch, and find out what the coordinator will think of it."""
        cohort, lines, places = self._cohort, self._lines, batch.places
        self._computed[places] = True
        results = cohort.compute.together(cohort.kernel, self._ids[places])
        if isinstance(results, UpdateBatch) and cohort.protect is None and cohort.keep is None:
            cohort.loss[lines.slots[places]] = results.losses
            self._examples[places], self._losses[places] = results.examples, results.losses
            if (
                self._active.own is None
                and np.array_equal(results.upload_bytes(), lines.report.payload_bytes[places])
                and cohort.coordinator.believes_all(self._active, results)
            ):
                self._hold(batch, results)
                return
        self._compute_singly(batch, list(results))

    def _hold(self, batch: _DueReports, results: UpdateBatch | list[ClientUpdate]) -> None:
        """Keep results until their reports arrive; those of reports that come too late are not needed."""
        if self._lateness is not None:
            return
        batch.results, batch.expected = results, len(batch.places)
        if self._flows.settled:
            batch.expected = int(np.count_nonzero(self._lines.reported[batch.places]))
        number = int(batch.places[0])
        self._batches[number] = batch
        self._batch_of[batch.places] = number
        self._place_in[batch.places] = np.arange(len(batch.places))

    def _compute_singly(self, batch: _DueReports, results: list[ClientUpdate]) -> None:
        """Look at the results of a batch one by one: some are protected, kept, or not as foreseen."""
        cohort, lines, active = self._cohort, self._lines, self._active
        made: list[ClientUpdate] = []
        spoilt: list[int] = []
        sizes: dict[int, tuple[int, int]] = {}
        for place, result in zip(batch.places.tolist(), results, strict=True):
            slot, device = int(lines.slots[place]), int(self._ids[place])
            cohort.loss[slot] = result.loss
            if cohort.keep is not None and result.local is not None:
                heapq.heappush(self._kept, (float(lines.work_end_s[place]), place, result.local))
            bare = result._replace(local=None)
            update = bare if cohort.protect is None else cohort.protect(slot, bare)
            if isinstance(update, Reason):
                spoilt.append(place)
                made.append(bare)
                continue
            made.append(update)
            self._examples[place], self._losses[place] = update.examples, update.loss
            if not (math.isfinite(update.loss) and math.isfinite(update.weight)):
                spoilt.append(place)
                continue
            run_id, number = active.machine.plan.run_id, cohort.round_number
            report = Report(
                run_id, number, device, update.examples, update.weight, update.loss, update.arrays
            )
            frame_bytes, payload_bytes = measure(report)
            if frame_bytes != lines.report.frame_bytes[place]:
                sizes[place] = frame_bytes, payload_bytes
            refused = cohort.coordinator.objection(active, report)
            if refused is not None:
                self._spoilers[place] = refused
        self._hold(batch, made)
        changed = np.array(sorted({*spoilt, *sizes}), np.int64)
        if len(changed):
            lengths = [sizes.get(place, (0, 0)) for place in changed.tolist()]
            frame_bytes, payload_bytes = np.array(lengths, np.int64).T
            lines.change_reports(changed, frame_bytes, payload_bytes, np.isin(changed, spoilt))
            self._flows.revise(changed)
        if len(changed) or self._spoilers[batch.places].any():
            self._order()

    def _add(self, places: Ints) -> None:
        """Add the updates of ``places`` to the round's sum, in this order."""
        accumulator, active = self._active.accumulator, self._active
        batch_of = self._batch_of[places]
        bounds = np.flatnonzero(batch_of[1:] != batch_of[:-1]) + 1
        for part in np.split(places, bounds):
            number = int(self._batch_of[part[0]])
            batch = self._batches[number]
            results, at, clients = batch.results, self._place_in[part], self._ids[part]
            assert results is not None
            if isinstance(results, UpdateBatch):
                accumulator.add_many(results, at, clients)
            else:
                for place, client in zip(at.tolist(), clients.tolist(), strict=True):
                    accumulator.add(active.named(results[place], client), client)
            batch.expected -= len(part)
            if not batch.expected:
                del self._batches[number]

    # -- the end -----------------------------------------------------------------------------------------

    def _let_go(self, end: int) -> None:
        """Let the devices before the place ``end`` be free for other rounds: they are done."""
        if end > self._done:
            lines, places = self._lines, self._ends[self._done : end]
            self._done = end
            fleet, ids = self._cohort.fleet, self._ids[places]
            fleet.busy[ids] = False
            if self._cohort.sends_model:
                # What never changes has arrived with it, and is kept.
                fleet.bare[ids[lines.given[places] & ~lines.refused[places]]] = False
            fleet.connected[ids[np.isfinite(lines.cut_s[places])]] = False
        if self._done == len(self._ends) and self._next == len(self._who):
            self._end()

    def _drop_flows(self) -> None:
        """Release the room on the link. No reference cycle is left, so the arrays are freed at once."""
        self._traffic.remove(self._flows)
        del self._flows

    def _end(self) -> None:
        self._ended = True
        self._drop_flows()
        lines, cohort, lateness = self._lines, self._cohort, self._lateness or Reason.NONE
        cohort.loss[lines.slots[~lines.worked]] = np.nan
        cohort.log.insert(wave_records(lines, self._verdicts, lateness))
        applied = np.concatenate(self._applied) if self._applied else np.empty(0, np.int64)
        cohort.wave_ended(self._endings(lateness), applied)

    def _endings(self, lateness: Reason) -> Endings:
        lines, plan = self._lines, self._lines.shared.plan
        reasons = np.where(lines.refused, np.int8(lateness), self._verdicts)
        outcome_of = np.full(len(Reason), Outcome.LATE, np.int8)
        outcome_of[list(OUTCOME_OF_RECEIPT)] = list(OUTCOME_OF_RECEIPT.values())
        outcomes = outcome_of[reasons]
        stages = np.where(lines.refused, np.int8(Stage.DOWNLOAD), np.int8(Stage.ACKNOWLEDGE))
        stages[outcomes == Outcome.COMPLETED] = -1
        cut = np.isfinite(lines.cut_s)
        gone = lines.cut_reason != Reason.NONE
        outcomes[cut] = np.where(gone[cut], np.int8(Outcome.DROPPED), np.int8(Outcome.LATE))
        reasons[cut] = np.where(gone[cut], lines.cut_reason[cut], np.int8(Reason.DEADLINE))
        stages[cut] = stages_at_cut(lines)[cut]
        failing = lines.failing & ~cut
        outcomes[failing], stages[failing] = Outcome.FAILED, Stage.COMPUTE
        shortage = plan.shortage[lines.slots]
        reasons[failing] = np.where(lines.spoilt, np.int8(Reason.NOT_FINITE), shortage)[failing]
        outcomes[lines.declines], stages[lines.declines] = Outcome.DECLINED, Stage.INVITE
        reasons[lines.declines] = plan.obstacle[lines.slots][lines.declines]
        return Endings(lines.slots, outcomes, stages, reasons)
