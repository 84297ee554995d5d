"""The energy of a round's devices, from its log."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.core.log import Column
from edge.core.vocabulary import Direction, EventKind
from edge.device.energy import RadioSpecs, compute_joules, found_idle, radio_joules, tail_after
from edge.device.energy import Tail as RadioTail

Floats = npt.NDArray[np.float64]


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
    known = slot >= 0
    span_s = columns[Column.END_S] - columns[Column.START_S]

    # Plain values: numpy takes a member of an enum for an array first, which costs more than to compare.
    computed = known & (columns[Column.KIND] == EventKind.COMPUTED.value)
    compute_s = np.asarray(np.bincount(slot[computed], span_s[computed], minlength=n), dtype=np.float64)

    travelled = np.flatnonzero(known & (columns[Column.DIRECTION] != Direction.NONE.value) & (span_s > 0.0))
    # Numpy sorts whole numbers of 16 bits or less by radix, several times as fast as others.
    narrow = slot.take(travelled).astype(np.min_scalar_type(n))
    order = travelled.take(np.lexsort((columns[Column.START_S].take(travelled), narrow)))
    who = slot.take(order)
    start_s, end_s = columns[Column.START_S].take(order), columns[Column.END_S].take(order)
    gap_before_s = np.full(len(order), np.inf)
    gap_before_s[1:] = np.where(who[1:] == who[:-1], np.maximum(start_s[1:] - end_s[:-1], 0.0), np.inf)
    gap_after_s = np.append(gap_before_s[1:], np.inf)

    each = radio.take(who)
    woken = found_idle(gap_before_s, each)
    tail = tail_after(gap_after_s, each)
    bits = 8.0 * columns[Column.PAYLOAD_BYTES : Column.RETRANSMITTED_BYTES + 1].sum(axis=0).take(order)
    up = columns[Column.DIRECTION].take(order) == Direction.UP.value
    # A transfer's span begins with the promotion of an idle radio, which is paid for by itself.
    transfer_s = np.maximum(span_s.take(order) - np.where(woken, each.promotion_s, 0.0), 0.0)

    def per_device(values: Floats) -> Floats:
        return np.asarray(np.bincount(who, values, minlength=n), dtype=np.float64)

    radio_j = radio_joules(
        radio,
        transfer_s=per_device(transfer_s),
        up_bits=per_device(np.where(up, bits, 0.0)),
        down_bits=per_device(np.where(up, 0.0, bits)),
        promotions=per_device(woken.astype(np.float64)),
        tail=RadioTail(per_device(tail.tail_s), per_device(tail.tail2_s)),
    )
    return compute_joules(active_power_w, compute_s), radio_j
