"""Frames of many devices, carried at once: arrays in the place of a delivery each.

What :meth:`~edge.network.link.SimulatedNetwork.carry` is for one frame, :func:`carry_many` is for the same
frame of many devices, bit for bit. Frames that are as foreseen, on links that nothing disturbs, are array
work; the others go through the one-frame form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import Direction, Stage
from edge.network.cohort import CohortLinks
from edge.network.known_flows import Load
from edge.network.link import SimulatedNetwork, TimedFrame
from edge.network.loss import TransferFailedError, lossy_transfers
from edge.network.pace import Conditions
from edge.network.tcp import PACKET_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_PAYLOAD_BYTES

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Flights:
    """A frame of each of n devices on its way, arrays [n]; ``inf`` seconds where it is not sent.

    Attributes
    ----------
    start_s, first_byte_s, last_byte_s, latency_s, end_s : float64, as those of a
        :class:`~edge.network.link.Delivery` that nobody on the coordinator's link holds up.
    radio_until_s : float64, until when the radio is up because of it.
    frame_bytes, payload_bytes, tcp_ip_bytes, retransmitted_bytes : int64.
    failed : bool, whether TCP gives the transfer up.
    """

    start_s: Floats
    first_byte_s: Floats
    last_byte_s: Floats
    latency_s: Floats
    end_s: Floats
    radio_until_s: Floats
    frame_bytes: Ints
    payload_bytes: Ints
    tcp_ip_bytes: Ints
    retransmitted_bytes: Ints
    failed: Bools

    def put(self, places: Ints, other: Flights) -> None:
        """Write ``other``, a frame of each of ``places``, over those that are there."""
        for name in Flights.__slots__:
            getattr(self, name)[places] = getattr(other, name)

    def take(self, places: Ints) -> Flights:
        """Return the frames at ``places``, increasing, to be read: of all of them these themselves."""
        if len(places) == len(self.start_s):
            return self
        return Flights(*(getattr(self, name)[places] for name in Flights.__slots__))

    def sent_share(self, now_s: Floats) -> Floats:
        """Return the share of each frame that has left by ``now_s``, 0…1, at the pace it has alone."""
        span_s = self.last_byte_s - self.first_byte_s
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.minimum(1.0, (now_s - self.first_byte_s) / span_s)
        return np.where(now_s <= self.first_byte_s, 0.0, np.where(span_s > 0.0, share, 1.0))

    @property
    def occupies(self) -> Bools:
        """Which frames occupy the coordinator's link: those that are sent, and more than one packet."""
        return (self.frame_bytes > SEGMENT_PAYLOAD_BYTES) & np.isfinite(self.start_s)

    @property
    def wire_bits(self) -> Floats:
        """Bits that leave, headers and retransmissions included, float64 [n]."""
        headers = -(-self.frame_bytes // SEGMENT_PAYLOAD_BYTES) * SEGMENT_HEADER_BYTES
        return np.asarray(8.0 * (self.frame_bytes + headers + self.retransmitted_bytes), np.float64)

    def load(self) -> Load:
        """Return what the frames ask of the coordinator's link, if nothing holds them up."""
        at = self.occupies
        first_s, last_s = self.first_byte_s[at], self.last_byte_s[at]
        return Load(first_s, last_s, self.wire_bits[at] / (last_s - first_s))


@dataclass(frozen=True, slots=True)
class Sending:
    """The same frame of n devices, about to be sent.

    Attributes
    ----------
    slots : int64 [n], the links.
    number : which frame of its device it is, counted in both directions together.
    stage, direction : of the frame.
    frame_bytes, payload_bytes : int64 [n].
    start_s : float64 [n], when each is sent; ``inf`` for one that is not.
    radio_until_s : float64 [n], until when the device's radio is up.
    arrived_s : float64 [n], when the frame before it arrived: one connection delivers in order.
    """

    slots: Ints
    number: int
    stage: Stage
    direction: Direction
    frame_bytes: Ints
    payload_bytes: Ints
    start_s: Floats
    radio_until_s: Floats
    arrived_s: Floats


def lossy_times(
    network: SimulatedNetwork,
    links: CohortLinks,
    conditions: Conditions,
    slots: Ints,
    number: int,
    direction: Direction,
    frame_bytes: Ints,
    first_byte_s: Floats,
) -> tuple[Floats, Ints]:
    """Return what frames of which packets are lost take: seconds, and retransmitted bytes, [n] each.

    Seconds are ``inf`` where TCP gives the transfer up. Parameters are those of :class:`Sending`.
    """
    seconds, again_bytes = np.full(len(slots), np.inf), np.zeros(len(slots), np.int64)
    if not len(slots):
        return seconds, again_bytes
    specs = links.specs
    rate_bps = specs.up_bps if direction is Direction.UP else specs.down_bps
    keys, loss = links.key_array[slots], specs.loss[slots]
    steady_s, again, gives_up_s = lossy_transfers(
        frame_bytes, rate_bps[slots], specs.rtt_s[slots], loss, keys, number, network.congestion
    )
    again_bytes[:] = again * PACKET_BYTES
    ok = np.flatnonzero(np.isnan(gives_up_s))
    seconds[ok] = conditions.carry_times(slots[ok], direction, first_byte_s[ok], steady_s[ok])
    return seconds, again_bytes


def carry_many(
    network: SimulatedNetwork, links: CohortLinks, conditions: Conditions, sending: Sending
) -> Flights:
    """Return how the frames of ``sending`` travel over open connections, the coordinator's link apart."""
    slots, number, direction = sending.slots, sending.number, sending.direction
    specs, prepared, start_s = links.specs, links.prepared, sending.start_s
    frame_bytes = sending.frame_bytes
    going = np.isfinite(start_s)
    first_byte_s = np.where(start_s > sending.radio_until_s, start_s + specs.promotion_s[slots], start_s)
    seconds = np.zeros(len(slots))
    failed = np.zeros(len(slots), np.bool_)
    retransmitted_bytes = np.zeros(len(slots), np.int64)
    foreseen = going.copy()
    if number < links.frame_count and prepared.directions[number] is direction:
        foreseen &= prepared.frame_bytes[number][slots] == frame_bytes
    else:
        foreseen[:] = False
    if links.disturbances is not None:
        foreseen &= ~links.disturbances.reach(slots)
    overhead, latency_s = np.zeros(len(slots), np.int64), np.zeros(len(slots))
    if foreseen.any():
        overhead = prepared.overhead_bytes[number][slots]
        latency_s = prepared.latency_s[number][slots]
        plain = prepared.plain[number][slots]
        rate_bps = (specs.up_bps if direction is Direction.UP else specs.down_bps)[slots]
        rtt_s = specs.rtt_s[slots]
        small = frame_bytes <= SEGMENT_PAYLOAD_BYTES
        # A single packet is over before the link's rate could matter.
        seconds = np.where(plain & small, prepared.transmission_s[number][slots], 0.0)
        at = np.flatnonzero(foreseen & plain & ~small)
        if len(at):
            seconds[at] = conditions.alone_times(
                slots[at],
                direction,
                frame_bytes[at].astype(np.float64),
                rate_bps[at],
                rtt_s[at],
                first_byte_s[at],
            )
        at = np.flatnonzero(foreseen & ~plain)
        lossy_s, retransmitted_bytes[at] = lossy_times(
            network, links, conditions, slots[at], number, direction, frame_bytes[at], first_byte_s[at]
        )
        failed[at] = ~np.isfinite(lossy_s)
        seconds[at] = np.where(failed[at], 0.0, lossy_s)
    last_byte_s = first_byte_s + seconds
    for place in np.flatnonzero(going & ~foreseen).tolist():
        frame = TimedFrame(direction, int(frame_bytes[place]), int(sending.payload_bytes[place]))
        slot, radio_until_s = int(slots[place]), float(sending.radio_until_s[place])
        try:
            carried = network.carry(
                frame,
                links,
                conditions,
                slot,
                number,
                sending.stage,
                float(start_s[place]),
                radio_until_s,
                True,
            )
        except TransferFailedError:
            carried = False
        if not carried:
            failed[place] = True
            continue
        first_byte_s[place], last_byte_s[place] = frame.first_byte_s, frame.last_byte_s
        latency_s[place], overhead[place] = frame.latency_s, frame.tcp_ip_bytes
        retransmitted_bytes[place] = frame.retransmitted_bytes
    return Flights(
        start_s=start_s.copy(),
        first_byte_s=first_byte_s,
        last_byte_s=last_byte_s,
        latency_s=latency_s,
        end_s=np.maximum(last_byte_s + latency_s, sending.arrived_s),
        radio_until_s=last_byte_s + latency_s + specs.tail_s[slots],
        frame_bytes=frame_bytes,
        payload_bytes=sending.payload_bytes,
        tcp_ip_bytes=overhead,
        retransmitted_bytes=retransmitted_bytes,
        failed=failed,
    )
