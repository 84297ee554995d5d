"""Parts of a round: the request to simulate one, its result, and the cohort of its devices.

A request has all that earlier rounds have left of its devices, a result all that becomes of them. So any
process can simulate any part, and the part of a process that is lost is simulated by another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coordinator.engine.rounds import RoundPlan
from coordinator.engine.selection.experience import Experience
from coordinator.simulation.backend import SimulatedCohort
from coordinator.simulation.faults.striking import Drawn
from coordinator.simulation.timelines import MODEL, REPORT
from coordinator.simulation.wave import Endings
from edge.clock.virtual import VirtualClockLoop
from edge.core.log import Column
from edge.core.vocabulary import Direction, EventKind, Fate, Reason, Stage
from edge.device.round_faults import Strikes
from edge.device.simulated import SimulatedDevice
from edge.learning.base import State
from edge.learning.updates import Array
from edge.network.link import Delivery
from edge.network.trunk import Flow, Trunk

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]
DOWN: Final = MODEL
UP: Final = REPORT
"""The directions of the coordinator's link, by the frame of a device that occupies each."""
ACCEPTS: Final = 0
LEAVES: Final = 1
REPORTS: Final = 2
"""What arrives at the coordinator: an acceptance, word that no report will count, a report that does."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the devices of a round, and all that their part in it follows from.

    Attributes
    ----------
    plan : of the round; its target is for this part alone, its ``close`` when all of it is over.
    phase, start_s : of the round; absolute seconds.
    ids : int64 [m], the devices; those of a sum group are all in one part.
    state : the global parameters.
    rows : what earlier rounds have left of the devices, by :meth:`Fleet.device_rows`.
    kept : what they keep between rounds, [users, width], user after user; None where they keep nothing.
    drawn : whom the faults of the phase strike in all of the round.
    rating_mean : the mean rating that the method knows of; None where it knows of none.
    """

    plan: RoundPlan
    phase: str
    start_s: float
    ids: Ids
    state: State
    rows: Mapping[str, npt.NDArray[Any]]
    kept: Array | None
    drawn: Drawn
    rating_mean: float | None


@dataclass(frozen=True, slots=True)
class Told:
    """What the coordinator is told, in the order in which it comes, arrays [k].

    ``time_s`` float64; ``slot`` int64, a place among the devices; ``what`` int8, :data:`ACCEPTS`,
    :data:`LEAVES` or :data:`REPORTS`.
    """

    time_s: Floats
    slot: Ids
    what: Codes

    @classmethod
    def of_log(cls, columns: Floats) -> Told:
        """Read what the coordinator was told off a log by column, float64 [WIDTH, records]."""
        kind, reason = columns[Column.KIND], columns[Column.REASON]
        up, discarded = columns[Column.DIRECTION] == Direction.UP, columns[Column.FATE] == Fate.DISCARDED
        counts = up & (columns[Column.FATE] == Fate.DELIVERED) & (reason == Reason.NONE)
        lost = up & discarded & _is_any(reason, Reason.GARBAGE, Reason.OUT_OF_RANGE)
        lost |= (kind == EventKind.DROPPED) & _is_any(reason, Reason.GARBAGE, Reason.CONNECTION_RESET)
        what = np.full(columns.shape[1], -1, np.int8)
        what[counts & (kind == EventKind.ACCEPTED)] = ACCEPTS
        what[counts & _is_any(kind, EventKind.DECLINED, EventKind.FAILED) | lost] = LEAVES
        what[counts & (kind == EventKind.REPORT)] = REPORTS
        # A device leaves once, and not after its report.
        final = np.flatnonzero(what >= LEAVES)
        slots = columns[Column.SLOT].astype(np.int64)
        _, first = np.unique(slots[final], return_index=True)
        again = np.ones(len(final), np.bool_)
        again[first] = False
        what[final[again]] = -1
        at = np.flatnonzero(what >= 0)
        return cls(columns[Column.TIME_S][at], slots[at], what[at])

    def take(self, places: Ids) -> Told:
        """Return what arrives at ``places`` of the order."""
        return Told(self.time_s[places], self.slot[places], self.what[places])


def _is_any(column: Floats, *codes: int) -> Bools:
    return np.isin(column, np.array(codes, np.float64))


@dataclass(frozen=True, slots=True)
class PartResult:
    """What became of the devices of a part, by slot: the place among them.

    Attributes
    ----------
    columns : the log by column, float64 [WIDTH, records]; the first ``early`` are of the invitations.
    outcome, stage, reason : int8 [m], how each participation ended.
    loss, clipped, examples, memory_bytes, work_share : [m] each, as of a
        :class:`~coordinator.engine.backend.RunningCohort`.
    finish_s, done_s : when each device is free again, float64 [m], and when all of it is over.
    arrivals : what the coordinator was told.
    heard_until_s : when the last frame came to it, whatever became of that.
    sums : of the reports that count, by :meth:`~edge.learning.updates.Accumulator.partial`.
    arrived_s : float64 [m], when an update of each device arrived, whatever became of it; ``inf``: none did.
    spoilt : int8 [m], why a device's report was not believed, a :class:`Reason`.
    experience : of each update that answers the invitation: slot, seconds since that, examples and loss.
    kept : of each device that keeps something from now on: when that is settled, slot, and what.
    rows : what is left of the devices, by :meth:`Fleet.device_rows`.
    strikes : what faults did, by fault, slot and stage.
    flows : first byte, last byte and bits/s of all that occupies the coordinator's link, if nothing holds it
        up, float64 [3, flows], by direction.
    crowded : whether frames of this part held each other up.
    """

    columns: Floats
    early: int
    outcome: Codes
    stage: Codes
    reason: Codes
    loss: Floats
    clipped: Bools
    examples: Ids
    memory_bytes: Ids
    work_share: Floats | None
    finish_s: Floats
    done_s: float
    arrivals: Told
    heard_until_s: float
    sums: Any
    arrived_s: Floats
    spoilt: Codes
    experience: Sequence[tuple[int, float, int, float]]
    kept: Sequence[tuple[float, int, Array]]
    rows: Mapping[str, npt.NDArray[Any]]
    strikes: Mapping[tuple[int, int, Stage], Strikes]
    flows: Mapping[int, Floats]
    crowded: bool


class NotedTrunk(Trunk[Flow]):
    """A direction of the coordinator's link that keeps which frames of devices that act alone were on it.

    Attributes
    ----------
    flows : first byte, last byte and bits/s of each.
    crowded : whether it ever was too narrow for all.
    """

    __slots__ = ("crowded", "flows")

    def __init__(self, loop: VirtualClockLoop, capacity_bps: float) -> None:
        super().__init__(loop, capacity_bps)
        self.flows: list[tuple[float, float, float]] = []
        self.crowded = False

    def start(self, flow: Flow) -> None:
        """Let a flow occupy the link from now on."""
        if isinstance(flow, Delivery):
            self.flows.append((flow.first_byte_s, flow.last_byte_s, float(self._pace_of(flow))))
        super().start(flow)
        self.crowded |= flow.sharing


class NotedExperience(Experience):
    """Keeps what would be learnt, in the order in which it comes.

    Attributes
    ----------
    heard : device, seconds since its invitation, examples and loss of each update that is an answer.
    """

    def __init__(self) -> None:
        self.heard: list[tuple[int, float, int, float]] = []

    def answered(self, device: int, round_number: int, duration_s: float) -> None:
        """Keep the arrival of a device's update."""
        self.heard.append((device, duration_s, 0, math.nan))

    def reported(self, device: int, round_number: int, examples: int, loss: float) -> None:
        """Keep what is in the report whose arrival came last."""
        self.heard[-1] = (*self.heard[-1][:2], examples, loss)


class PartCohort(SimulatedCohort):
    """The devices of a part of a round; parameters are those of any simulated cohort."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.finish_s = np.full(len(self.ids), self.loop.now_s)
        """When each device is free again."""
        self.flows: dict[int, Floats] = {number: np.empty((3, 0)) for number in (DOWN, UP)}
        """What the devices of its wave have on the coordinator's link, as in a :class:`PartResult`."""
        self.crowded = False
        self.kept: list[tuple[int, Array]] = []
        """Devices that keep something from now on, and what."""
        if self.keep is not None:
            self.keep = self._note_kept

    def _note_kept(self, client: int, local: Array) -> None:
        self.kept.append((client, local))

    def finished(self, device: SimulatedDevice) -> None:
        """Note when a device is done."""
        self.finish_s[device.slot] = self.loop.now_s
        super().finished(device)

    def wave_ended(self, endings: Endings, applied: Ids) -> None:
        """Take over when the devices of the wave were done, and what of theirs was on the link."""
        assert self.wave is not None
        lines = self.wave.lines
        self.finish_s[endings.slots] = lines.finish_s
        for number in (DOWN, UP):
            flights = lines.frames(number)
            at = flights.occupies
            first_s, last_s = flights.first_byte_s[at], flights.last_byte_s[at]
            self.flows[number] = np.stack([first_s, last_s, flights.wire_bits[at] / (last_s - first_s)])
            self.crowded |= bool((lines.left_s(number)[at] != last_s).any())
        super().wave_ended(endings, applied)
