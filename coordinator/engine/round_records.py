"""What is written about a round once all of its devices are done."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.backend import RunningCohort
from coordinator.engine.facts import CohortFacts, FaultStrike, Recorder, RoundFacts
from coordinator.engine.fleet import Fleet
from coordinator.engine.progress import RunObserver
from coordinator.scenario.faults_section import Fault
from edge.core.log import Column, pack_record
from edge.core.vocabulary import Direction, EventKind, Fate, Reason, Stage
from edge.device.compute_model import RadioSpecs, compute_joules, found_idle, radio_joules, tail_after
from edge.device.compute_model import Tail as RadioTail

if TYPE_CHECKING:
    from edge.device.round_faults import RoundFaults

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


def device_energy(
    columns: Floats, n: int, active_power_w: Floats, radio: RadioSpecs
) -> tuple[Floats, Floats]:
    """Return the joules that each device spent computing and on its radio, float64 [n] each.

    Parameters
    ----------
    columns : float64 [WIDTH, records], the round's log by column.
    active_power_w : float64 [n].
    radio : n rows.

    The radio is taken to have been idle before the round. A frame that never reached the air (to or from a
    device that was gone) costs its device nothing.
    """
    slot = columns[Column.SLOT].astype(np.int64)
    if slot.size and slot.min() < 0:
        columns, slot = columns[:, slot >= 0], slot[slot >= 0]
    span_s = columns[Column.END_S] - columns[Column.START_S]

    # Plain values: numpy takes a member of an enum for an array first, which costs more than to compare.
    computing_s = np.where(columns[Column.KIND] == EventKind.COMPUTED.value, span_s, 0.0)
    compute_s = np.asarray(np.bincount(slot, computing_s, minlength=n), dtype=np.float64)

    travelled = ((columns[Column.DIRECTION] != Direction.NONE.value) & (span_s > 0.0)).nonzero()[0]
    # Numpy sorts whole numbers of 16 bits or less by radix, several times as fast as others.
    narrow = slot.take(travelled).astype(np.min_scalar_type(n))
    order = travelled.take(np.lexsort((columns[Column.START_S].take(travelled), narrow)))
    who = slot.take(order)
    start_s, end_s = columns[Column.START_S].take(order), columns[Column.END_S].take(order)
    gap_before_s = np.empty(len(order) + 1)
    gap_before_s[0] = gap_before_s[-1] = np.inf
    gap_before_s[1:-1] = np.where(who[1:] == who[:-1], np.maximum(start_s[1:] - end_s[:-1], 0.0), np.inf)
    gap_before_s, gap_after_s = gap_before_s[:-1], gap_before_s[1:]

    lengths = RadioTail(radio.tail_s.take(who), radio.tail2_s.take(who))
    woken = found_idle(gap_before_s, lengths)
    tail = tail_after(gap_after_s, lengths)
    bits = 8.0 * columns[Column.PAYLOAD_BYTES : Column.RETRANSMITTED_BYTES + 1].sum(axis=0).take(order)
    up_bits = np.where(columns[Column.DIRECTION].take(order) == Direction.UP.value, bits, 0.0)
    # A transfer's span begins with the promotion of an idle radio, which is paid for by itself.
    promotion_s = np.where(woken, radio.promotion_s.take(who), 0.0)
    transfer_s = np.maximum(span_s.take(order) - promotion_s, 0.0)

    def per_device(values: Floats | npt.NDArray[np.bool_]) -> Floats:
        return np.asarray(np.bincount(who, values, minlength=n), dtype=np.float64)

    radio_j = radio_joules(
        radio,
        transfer_s=per_device(transfer_s),
        up_bits=per_device(up_bits),
        down_bits=per_device(bits - up_bits),
        promotions=per_device(woken),
        tail=RadioTail(per_device(tail.tail_s), per_device(tail.tail2_s)),
    )
    return compute_joules(active_power_w, compute_s), radio_j


class RoundRecords:
    """Writes rounds, takes their energy out of the batteries, and reports to the observer.

    Parameters
    ----------
    fleet, recorder, observer : whose devices, where to, and who receives what is written.
    """

    def __init__(self, fleet: Fleet, recorder: Recorder, observer: RunObserver) -> None:
        self._fleet = fleet
        self._recorder = recorder
        self._observer = observer

    def write(
        self,
        facts: RoundFacts,
        cohort: CohortFacts,
        columns: Floats,
        strikes: list[FaultStrike],
        *,
        of_sums: bool = False,
    ) -> None:
        """Write one round, its devices and its log by column, and what was done to it on purpose.

        ``of_sums`` says that it was to no update of the model.
        """
        if strikes:
            self._recorder.faults(facts.round_number, facts.phase, strikes)
        self._fleet.spend(cohort.device, cohort.energy_compute_j + cohort.energy_radio_j, facts.end_s)
        if of_sums:
            self._recorder.evaluation_round(facts, cohort, columns)
            return
        self._observer.on_round(self._recorder.round(facts, cohort, columns))


def facts_of(fleet: Fleet, cohort: RunningCohort, columns: Floats) -> CohortFacts:
    """Return the facts of a cohort's devices; ``columns`` is its log by column, float64 [WIDTH, records]."""
    n = len(cohort.ids)
    return device_facts(
        fleet,
        cohort.ids,
        columns,
        # By way of bytes: numpy reads the members of an enum one by one, ten times as slowly.
        outcome=np.frombuffer(bytearray(cohort.outcome), np.int8),
        stage=np.array(cohort.stage, np.int8),
        reason=np.frombuffer(bytearray(cohort.reason), np.int8),
        loss=np.array(cohort.loss),
        examples=cohort.examples,
        memory_bytes=cohort.work.memory_bytes,
        work_share=np.full(n, np.nan) if cohort.work_share is None else cohort.work_share,
        staleness=np.full(n, np.nan),
        kept_back=np.full(n, cohort.counts_kept_back),
    )


def device_facts(
    fleet: Fleet,
    ids: Ids,
    columns: Floats,
    *,
    examples: Ids,
    loss: Floats,
    work_share: Floats,
    **others: npt.NDArray[Any],
) -> CohortFacts:
    """Return the facts of devices, with their classes in the fleet and the energy that each has spent.

    Parameters
    ----------
    fleet, ids : int64 [n], devices of the fleet.
    columns : float64 [WIDTH, records], the log of the round by column.
    examples, work_share : as in :class:`CohortFacts`, but of all devices; they count where there is a loss.
    loss, others : fields of :class:`CohortFacts`.
    """
    device_class, network = fleet.device_class[ids], fleet.network[ids]
    compute_j, radio_j = device_energy(
        columns, len(ids), fleet.active_power_w[device_class], fleet.radio_specs.take(network)
    )
    none_made = np.isnan(loss)
    return CohortFacts(
        device=ids,
        device_class=device_class,
        network=network,
        region=fleet.region[ids],
        energy_compute_j=compute_j,
        energy_radio_j=radio_j,
        examples=np.where(none_made, 0, examples),
        loss=loss,
        work_share=np.where(none_made, np.nan, work_share),
        **others,
    )


def strikes_of(
    faults: Sequence[Fault], found: RoundFaults, ids: Ids, slots: Container[int] | None = None
) -> list[FaultStrike]:
    """Return what struck a round, by fault, device and stage; ``ids`` are its invited devices.

    With ``slots`` only what struck those.
    """
    rows = sorted(
        (number, int(ids[slot]), stage)
        for number, slot, stage in found.struck
        if slots is None or slot in slots
    )
    slot_of = {int(device): slot for slot, device in enumerate(ids.tolist())}
    made = []
    for number, device, stage in rows:
        fault, struck = faults[number], found.struck[number, slot_of[device], stage]
        kind = "+".join(fault.keys)
        made.append(FaultStrike(fault.name, kind, device, stage, struck.first_s, struck.last_s, struck.count))
    return made


def suspension(device: int, reason: Reason, now_s: float) -> bytes:
    """Return the record of a device's suspension: of no slot, because it is no part of a participation."""
    stage, nowhere, fate = Stage.ACKNOWLEDGE, Direction.NONE, Fate.DELIVERED
    return pack_record(
        *(now_s, -1, device, EventKind.SUSPENDED, stage, nowhere, now_s, now_s),
        *(0, 0, 0, 0),
        *(fate, reason),
    )
