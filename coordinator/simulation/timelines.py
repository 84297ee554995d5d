"""What devices do in a round of plain reports, from its invitation on, worked out for many of them as arrays.

A device answers, downloads, computes, reports, and awaits its receipt; it may decline or fail, and a
participation may be cut short: by the device's going away, or because its patience ends. All of that follows
from what was drawn for the round. What a device does itself is decided by the same rules as in
:mod:`edge.device.simulated`, where devices act one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import Direction, Reason, Stage
from edge.device.participation import RECEIPT_PATIENCE
from edge.device.simulated import CohortPlan
from edge.network.cohort import CohortLinks
from edge.network.flights import Flights, Sending, carry_many
from edge.network.link import SimulatedNetwork
from edge.network.pace import Conditions
from edge.wire.codec import frame_size, unsigned_sizes
from edge.wire.messages import Acknowledge, Decline, Failure

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# Numbers of the frames of a round, in a device's own order; 0 is the invitation.
ANSWER, MODEL, REPORT, RECEIPT = 1, 2, 3, 4


@dataclass(slots=True)
class RoundOfDevices:
    """What the devices of a round share, and what was drawn for them; arrays by slot.

    Attributes
    ----------
    network, links, conditions, plan : as for devices that act one by one.
    ids : int64 [n], the devices.
    run_id, round_number : of the messages.
    report_within_s : what the invitation allows, seconds.
    model_payload, report_payload : int64 [n], bytes of the arrays.
    """

    network: SimulatedNetwork
    links: CohortLinks
    conditions: Conditions
    plan: CohortPlan
    ids: Ints
    run_id: str
    round_number: int
    report_within_s: float
    model_payload: Ints
    report_payload: Ints


class Timelines:
    """The participations of m devices.

    Parameters
    ----------
    shared : the round.
    slots : int64 [m], the devices.
    begins_s : float64 [m], when their invitations arrive.

    Attributes
    ----------
    answer, model, report, receipt : the frames; ``model`` is a receipt where the coordinator refused an
        acceptance, ``report`` a failure where the device could not do the work.
    declines, fails : bool [m], who says no, and who fails for want of memory or data.
    work_end_s : float64 [m], when the computation is finished; ``inf`` for never.
    refused : bool [m], whose acceptance came when the round was over; set by :meth:`refuse`.
    spoilt : bool [m], whose numbers turned out not to be finite; set by :meth:`change_reports`.
    broken_s : float64 [m] by number of the frame, when the model or the report is broken off on the
        coordinator's link if it is on it; ``inf`` for never.
    cut_s : float64 [m], when a participation is cut short; ``inf`` for never.
    cut_reason : int8 [m], a :class:`Reason`: why the device goes away; ``NONE`` where its patience ends.
    answered, given, worked, reported, received : bool [m], whether that comes to pass: the answer arrives,
        the model, the computation ends, the report or the failure arrives, the receipt.
    finish_s : float64 [m], when it is all over.
    odd : bool [m], on whose way TCP gives up.
    """

    def __init__(self, shared: RoundOfDevices, slots: Ints, begins_s: Floats) -> None:
        n = len(slots)
        plan = shared.plan
        self.shared, self.slots, self.begins_s = shared, slots, begins_s
        self.declines = plan.obstacle[slots] != Reason.NONE
        self.fails = ~self.declines & (plan.shortage[slots] != Reason.NONE)
        self.refused, self.spoilt = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        prepared = shared.links.prepared
        self._report_bytes = prepared.frame_bytes[REPORT][slots]
        self._report_payload = shared.report_payload[slots]
        self._refusal = Reason.NONE
        self._device_bytes = unsigned_sizes(shared.ids[slots]) - 1
        self._held_s = {MODEL: np.full(n, np.nan), REPORT: np.full(n, np.nan)}
        """When the last byte has left of frames that the coordinator's link held up, NaN of others."""
        self.broken_s = {MODEL: np.full(n, np.inf), REPORT: np.full(n, np.inf)}
        self.answer: Flights
        self.model: Flights
        self.report: Flights
        self.receipt: Flights
        self.work_end_s, self.cut_s = np.full(n, np.inf), np.full(n, np.inf)
        self._stops_s, self._sleeps_until_s = np.full(n, np.inf), np.full(n, np.inf)
        """When devices go away while they compute, and until when those sleep that would be too slow.

        ``inf`` for others.
        """
        self.cut_reason = np.zeros(n, np.int8)
        self.event_first = np.zeros(n, np.bool_)
        self.odd = np.zeros(n, np.bool_)
        self.finish_s = np.full(n, np.inf)
        self.answered, self.given = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self.worked, self.reported = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self.received = np.zeros(n, np.bool_)
        self._run(np.arange(n))

    @property
    def failing(self) -> Bools:
        """Who sends word of a failure in place of a report, if it comes so far."""
        return np.asarray((self.fails & ~self.refused) | self.spoilt)

    def keep(self, places: Ints) -> None:
        """Leave only the devices at ``places``."""
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | Flights):
                setattr(self, name, value.take(places))
        for by_number in (self._held_s, self.broken_s):
            by_number.update({number: values[places] for number, values in by_number.items()})

    def refuse(self, places: Ints, reason: Reason) -> None:
        """Let the acceptances of ``places`` be refused for ``reason``: the round was over."""
        self.refused[places] = True
        self._refusal = reason
        for held_s in self._held_s.values():
            held_s[places] = np.nan
        self._run(places)

    def change_reports(self, places: Ints, frame_bytes: Ints, payload_bytes: Ints, spoilt: Bools) -> None:
        """Let the reports of ``places`` have other lengths, or be failures where ``spoilt``."""
        self._report_bytes[places], self._report_payload[places] = frame_bytes, payload_bytes
        self.spoilt[places] = spoilt
        self._run(places)

    def frames(self, number: int) -> Flights:
        """Return the models or the reports, by the number of the frame."""
        return self.model if number == MODEL else self.report

    def left_s(self, number: int) -> Floats:
        """Return when the last bytes of the models or the reports leave, as far as is known, float64 [m]."""
        held_s = self._held_s[number]
        return np.where(np.isnan(held_s), self.frames(number).last_byte_s, held_s)

    def hold_up(self, number: int, places: Ints, last_byte_s: Floats) -> None:
        """Let the last bytes of models or reports leave at ``last_byte_s``; ``inf``: it is unknown when.

        Parameters
        ----------
        number : of the frames.
        places : int64 [k], whose, in any order.
        last_byte_s : float64 [k].
        """
        order = np.argsort(places)
        places, last_byte_s = places[order], last_byte_s[order]
        self._held_s[number][places] = last_byte_s
        flights = self.frames(number)
        arrived_s = (self.answer if number == MODEL else self.model).end_s[places]
        ends_s = np.maximum(last_byte_s + flights.latency_s[places], arrived_s)
        if number == MODEL:
            self._held_s[REPORT][places] = np.nan
            self.model.end_s[places] = ends_s
            self._work(places)
        else:
            self.report.end_s[places] = ends_s
        self._finish(places)

    # -- what follows from what; places are increasing ---------------------------------------------------

    def _carry(
        self,
        at: Ints,
        number: int,
        stage: Stage,
        frame_bytes: Ints,
        payload_bytes: Ints,
        start_s: Floats,
        before: Flights | None,
    ) -> Flights:
        shared, slots = self.shared, self.slots[at]
        if before is None:
            arrived_s = self.begins_s[at]
            radio_until_s = arrived_s + shared.links.specs.tail_s[slots]
        else:
            arrived_s, radio_until_s = before.end_s, before.radio_until_s
        direction = Direction.UP if number in (ANSWER, REPORT) else Direction.DOWN
        sending = Sending(
            slots, number, stage, direction, frame_bytes, payload_bytes, start_s, radio_until_s, arrived_s
        )
        flights = carry_many(shared.network, shared.links, shared.conditions, sending)
        if number in self._held_s:
            held_s = self._held_s[number][at]
            held = np.flatnonzero(~np.isnan(held_s))
            if len(held):
                ends_s = held_s[held] + flights.latency_s[held]
                flights.end_s[held] = np.maximum(ends_s, arrived_s[held])
        return flights

    def _put(self, name: str, at: Ints, flights: Flights) -> None:
        """Let ``flights`` be those of the places ``at``: of all, to begin with."""
        if len(at) == len(self.slots):
            setattr(self, name, flights)
        else:
            getattr(self, name).put(at, flights)

    def _sizes(self, at: Ints, number: int) -> Ints:
        return np.asarray(self.shared.links.prepared.frame_bytes[number][self.slots[at]])

    def _run(self, at: Ints) -> None:
        """Work out the participations at the places ``at``."""
        self._receive(at)
        self._work(at)
        self._finish(at)

    def _receive(self, at: Ints) -> None:
        """Work out how devices answer, and when what they are answered comes."""
        shared, slots = self.shared, self.slots[at]
        plan, run_id, number = shared.plan, shared.run_id, shared.round_number
        declines, refused = self.declines[at], self.refused[at]
        none = np.zeros(len(at), np.int64)

        sizes = self._sizes(at, ANSWER)
        for reason in sorted(set(plan.obstacle[slots][declines].tolist())):
            saying = declines & (plan.obstacle[slots] == reason)
            sizes[saying] = frame_size(Decline(run_id, number, 0, reason)) + self._device_bytes[at][saying]
        answer = self._carry(at, ANSWER, Stage.INVITE, sizes, none, self.begins_s[at], None)

        start_s = np.where(declines, np.inf, answer.end_s)
        if refused.any():
            assert refused.all(), "the round is over for some devices and not for others"
            sizes = none + frame_size(Acknowledge(run_id, number, self._refusal))
            model = self._carry(at, MODEL, Stage.ACKNOWLEDGE, sizes, none, start_s, answer)
        else:
            payload = shared.model_payload[slots]
            model = self._carry(at, MODEL, Stage.DOWNLOAD, self._sizes(at, MODEL), payload, start_s, answer)
        self._put("answer", at, answer)
        self._put("model", at, model)

    def _work(self, at: Ints) -> None:
        """Work out the computations of devices, and their reports."""
        plan, slots = self.shared.plan, self.slots[at]
        fails, refused, model = self.fails[at], self.refused[at], self.model.take(at)
        works = ~(self.declines[at] | fails | refused)
        deadline_s = self.begins_s[at] + self.shared.report_within_s
        seconds = plan.compute_s[slots]
        with np.errstate(invalid="ignore"):
            before_s = seconds * plan.drop_fraction[slots]
            drops = works & (plan.drop_stage[slots] == Stage.COMPUTE) & (model.end_s + before_s < deadline_s)
            too_slow = works & ~drops & (model.end_s + seconds > deadline_s)
        finishes = works & ~drops & ~too_slow
        work_end_s = np.where(finishes, model.end_s + np.where(seconds > 0.0, seconds, 0.0), np.inf)

        report = self._reports(at, work_end_s, model)
        failing = np.flatnonzero(fails & ~refused)
        if len(failing):
            report.put(failing, self._failures(at[failing], model.end_s[failing], model.take(failing)))
        self._put("report", at, report)
        self.work_end_s[at] = work_end_s
        # The device sleeps as long as is left: not always to the very float of the deadline.
        left_s = deadline_s - model.end_s
        sleeps_until_s = model.end_s + np.where(left_s > 0.0, left_s, 0.0)
        self._sleeps_until_s[at] = np.where(too_slow, sleeps_until_s, np.inf)
        self._stops_s[at] = np.where(drops, model.end_s + np.where(before_s > 0.0, before_s, 0.0), np.inf)

    def _finish(self, at: Ints) -> None:
        """Work out when receipts come, and how participations are cut short."""
        shared, slots = self.shared, self.slots[at]
        plan = shared.plan
        declines, fails, refused = self.declines[at], self.fails[at], self.refused[at]
        answer, model, report = self.answer.take(at), self.model.take(at), self.report.take(at)
        work_end_s = self.work_end_s[at]
        finishes = np.isfinite(work_end_s)
        ends = finishes & ~self.spoilt[at]
        none = np.zeros(len(at), np.int64)
        sizes, start_s = self._sizes(at, RECEIPT), np.where(ends, report.end_s, np.inf)
        receipt = self._carry(at, RECEIPT, Stage.ACKNOWLEDGE, sizes, none, start_s, report)

        # How it is cut short. Of equal moments the first that is named here counts, as timers set first fire
        # first.
        cut_s = np.full(len(at), np.inf)
        reasons = np.zeros(len(at), np.int8)
        event_first = np.zeros(len(at), np.bool_)

        def cut(whom: Bools, when_s: Floats, reason: Reason, *, after_event: bool = False) -> None:
            with np.errstate(invalid="ignore"):
                sooner = whom & (when_s < cut_s)
            cut_s[sooner], reasons[sooner], event_first[sooner] = when_s[sooner], reason, after_event

        accepts = ~declines
        begins_s = self.begins_s[at]
        deadline_s = begins_s + shared.report_within_s
        patience_s = begins_s + RECEIPT_PATIENCE * shared.report_within_s
        leaves_s = np.where(plan.leaves_s[slots] < patience_s, plan.leaves_s[slots], np.inf)
        leaves_s = np.maximum(leaves_s, begins_s)
        cut(accepts & (model.end_s >= deadline_s), deadline_s, Reason.NONE)
        cut(accepts, leaves_s, Reason.SESSION_ENDED)
        cut(accepts, self._sleeps_until_s[at], Reason.NONE)
        cut(accepts, self._stops_s[at], Reason.VANISHED, after_event=True)
        drop_stage, fraction = plan.drop_stage[slots], plan.drop_fraction[slots]
        model_broken_s, report_broken_s = np.minimum(deadline_s, leaves_s), np.minimum(patience_s, leaves_s)
        if (drop_stage >= 0).any():
            at_s = answer.first_byte_s + fraction * (answer.last_byte_s - answer.first_byte_s)
            cut(accepts & (drop_stage == Stage.INVITE), at_s, Reason.VANISHED, after_event=True)
            model_broken_s[drop_stage == Stage.INVITE] = -np.inf
            cut(accepts & (drop_stage == Stage.DOWNLOAD), answer.end_s, Reason.VANISHED, after_event=True)
            # The coordinator answers before it is known that the device is gone.
            leaving = drop_stage == Stage.DOWNLOAD
            model_broken_s[leaving] = np.minimum(model_broken_s, answer.end_s)[leaving]
            report_broken_s[(drop_stage == Stage.INVITE) | (drop_stage == Stage.DOWNLOAD)] = -np.inf
            with np.errstate(invalid="ignore"):
                at_s = report.first_byte_s + fraction * (report.last_byte_s - report.first_byte_s)
            leaving = ends & (drop_stage == Stage.REPORT)
            cut(leaving, at_s, Reason.VANISHED, after_event=True)
            report_broken_s[leaving] = np.minimum(report_broken_s, at_s)[leaving]
            cut(ends & (drop_stage == Stage.ACKNOWLEDGE), report.end_s, Reason.VANISHED, after_event=True)
        cut(ends & (receipt.end_s >= patience_s), patience_s, Reason.NONE)

        # A device that has said no, or failed, waits for nothing any more.
        final_s = np.where(declines, answer.end_s, np.where(refused, model.end_s, receipt.end_s))
        said_s = np.where(declines, begins_s, np.inf)
        gives_up = (fails & ~refused) | (finishes & self.spoilt[at])
        said_s[gives_up], final_s[gives_up] = report.start_s[gives_up], report.end_s[gives_up]
        void = (cut_s > final_s) | (cut_s > said_s) | declines
        cut_s[void], reasons[void] = np.inf, Reason.NONE

        def happens(end_s: Floats) -> Bools:
            return np.where(event_first, end_s <= cut_s, end_s < cut_s)

        self._put("receipt", at, receipt)
        self.cut_s[at], self.cut_reason[at], self.event_first[at] = cut_s, reasons, event_first
        self.broken_s[MODEL][at], self.broken_s[REPORT][at] = model_broken_s, report_broken_s
        self.answered[at], self.given[at] = happens(answer.end_s), happens(model.end_s)
        self.worked[at], self.reported[at] = happens(work_end_s), happens(report.end_s)
        self.received[at] = happens(receipt.end_s)
        self.finish_s[at] = np.minimum(cut_s, final_s)
        flights = (answer, model, report, receipt)
        self.odd[at] = np.any([flight.failed & (flight.start_s <= cut_s) for flight in flights], axis=0)

    def _reports(self, at: Ints, start_s: Floats, model: Flights) -> Flights:
        sizes, payload = self._report_bytes[at], self._report_payload[at]
        made = self._carry(at, REPORT, Stage.REPORT, sizes, payload, start_s, model)
        spoilt = np.flatnonzero(self.spoilt[at])
        if len(spoilt):
            made.put(spoilt, self._failures(at[spoilt], start_s[spoilt], model.take(spoilt)))
        return made

    def _failures(self, at: Ints, start_s: Floats, model: Flights) -> Flights:
        shared = self.shared
        reasons = np.where(self.spoilt[at], np.int8(Reason.NOT_FINITE), shared.plan.shortage[self.slots[at]])
        sizes = np.array(
            [
                frame_size(Failure(shared.run_id, shared.round_number, 0, reason))
                for reason in reasons.tolist()
            ],
            np.int64,
        )
        none = np.zeros(len(at), np.int64)
        return self._carry(at, REPORT, Stage.COMPUTE, sizes + self._device_bytes[at], none, start_s, model)
