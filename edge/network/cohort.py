"""The links of one round's devices, prepared together.

The frames of a round are known before it starts: who sends them, in which order, and how long they are. What
chance does to each (the first lost packet, the jitter, lost handshakes) is therefore drawn for the whole
cohort at once, and sending a frame only looks its fate up. A frame that is not as foreseen (a duplicate, a
retry, another length) draws its own, from its own stream: frame ``n`` of a device in a round has the key
``hash(link key, n)`` whichever way it is prepared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits, hashed_uniform
from edge.core.vocabulary import Direction
from edge.network.loss import (
    HANDSHAKE,
    JITTER,
    LOSS,
    TransferFailedError,
    frame_draws,
    frame_jitter,
    handshake_time,
)
from edge.network.tcp import (
    PURE_ACK_BYTES,
    SEGMENT_HEADER_BYTES,
    SEGMENT_PAYLOAD_BYTES,
    SEGMENTS_PER_ACK,
    SMALL_PACKET_BYTES,
    WIRE_BYTES_PER_PAYLOAD_BYTE,
)

if TYPE_CHECKING:
    from edge.network.disturbances import Disturbances

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class LinkSpecs:
    """What the links of a cohort are like, float64 [n] each; rates in bits/s, times in seconds."""

    down_bps: Floats
    up_bps: Floats
    rtt_s: Floats
    loss: Floats
    jitter_s: Floats
    promotion_s: Floats
    tail_s: Floats
    """How long the radio stays up after an activity."""
    flaky: npt.NDArray[np.bool_]
    """Whether the link has outages."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the round, foreseen for every device: whose it is and its length, int64 [n]."""

    direction: Direction
    frame_bytes: Ints


@dataclass(frozen=True, slots=True)
class PreparedFrame:
    """The fate of one frame for every device of the cohort, as lists indexed by slot.

    Attributes are those of :class:`PreparedFrames`.
    """

    direction: Direction
    frame_bytes: list[int]
    overhead_bytes: list[int]
    latency_s: list[float]
    transmission_s: list[float]
    plain: list[bool]


@dataclass(frozen=True, slots=True)
class PreparedFrames:
    """The fates of all frames of the round, arrays [frames, n]: a row a frame, a column a slot.

    Attributes
    ----------
    directions : of each frame.
    frame_bytes : int64, its length.
    overhead_bytes : int64, headers of its packets, and the acknowledgements that they draw.
    latency_s : float64, half a round trip and the jitter.
    transmission_s : float64, seconds that its packets take at the link's mean rate.
    plain : bool, whether no packet is lost at its first sending and the link knows no outages.
    """

    directions: tuple[Direction, ...]
    frame_bytes: Ints
    overhead_bytes: Ints
    latency_s: Floats
    transmission_s: Floats
    plain: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, frames: list[Frame], specs: LinkSpecs, small_down_s: Floats, small_up_s: Floats, of_frame: Keys
    ) -> PreparedFrames:
        """Draw the fates of all frames at once; ``of_frame`` are their keys, uint64 [frames, n]."""
        frame_bytes = np.stack([frame.frame_bytes for frame in frames])
        up = np.array([[frame.direction is Direction.UP] for frame in frames])
        count = -(-frame_bytes // SEGMENT_PAYLOAD_BYTES)
        overhead = count * SEGMENT_HEADER_BYTES + -(-count // SEGMENTS_PER_ACK) * PURE_ACK_BYTES
        with np.errstate(divide="ignore"):
            first_lost = np.log(hashed_uniform(of_frame, LOSS)) / np.log1p(-specs.loss)
        jitter = specs.jitter_s * -np.log(hashed_uniform(of_frame, JITTER))
        latency = 0.5 * np.where(up, small_up_s, small_down_s) + jitter
        rate_bps = np.where(up, specs.up_bps, specs.down_bps)
        transmission = frame_bytes * (8.0 * WIRE_BYTES_PER_PAYLOAD_BYTE) / rate_bps
        plain = (first_lost >= count) & ~specs.flaky
        directions = tuple(frame.direction for frame in frames)
        return cls(directions, frame_bytes, overhead, latency, transmission, plain)

    def by_slot(self) -> list[PreparedFrame]:
        """Return the same as lists, a frame each, where devices look things up one by one."""
        columns = (
            self.frame_bytes.tolist(),
            self.overhead_bytes.tolist(),
            self.latency_s.tolist(),
            self.transmission_s.tolist(),
            self.plain.tolist(),
        )
        return [PreparedFrame(*row) for row in zip(self.directions, *columns, strict=True)]


def small_round_trip_array(rate_bps: Floats, rtt_s: Floats) -> Floats:
    """Return ``tcp_model.small_round_trip`` for arrays, float64 [n] seconds."""
    return np.asarray(rtt_s + 8 * 2 * SMALL_PACKET_BYTES / rate_bps)


class CohortLinks:
    """The links of a round's invited devices.

    Parameters
    ----------
    link_key : of the stream ``"link", "frames"``.
    device_ids : int64 [n].
    round_number : round.
    specs : of the devices' links.
    frames : the frames of a round in each device's own order, from both sides.
    handshakes : round trips that opening a connection takes.
    connected : bool [n], whose connection is open already.
    """

    __slots__ = (
        "_by_slot",
        "connected",
        "disturbances",
        "down_bps",
        "frame_count",
        "handshake_s",
        "jitter_s",
        "key_array",
        "keys",
        "loss",
        "prepared",
        "promotion_s",
        "rtt_s",
        "small_down_s",
        "small_up_s",
        "specs",
        "tail_s",
        "up_bps",
    )

    def __init__(
        self,
        link_key: int,
        device_ids: Ints,
        round_number: int,
        specs: LinkSpecs,
        frames: list[Frame],
        handshakes: int,
        connected: npt.NDArray[np.bool_],
    ) -> None:
        keys = hashed_bits(link_key, device_ids, round_number)
        small_down = small_round_trip_array(specs.down_bps, specs.rtt_s)
        small_up = small_round_trip_array(specs.up_bps, specs.rtt_s)
        self.key_array = keys
        """Of each device in this round, uint64 [n]."""
        self.keys: list[int] = keys.tolist()
        self.down_bps: list[float] = specs.down_bps.tolist()
        self.up_bps: list[float] = specs.up_bps.tolist()
        self.rtt_s: list[float] = specs.rtt_s.tolist()
        self.loss: list[float] = specs.loss.tolist()
        self.jitter_s: list[float] = specs.jitter_s.tolist()
        self.promotion_s: list[float] = specs.promotion_s.tolist()
        self.tail_s: list[float] = specs.tail_s.tolist()
        self.small_down_s: list[float] = small_down.tolist()
        self.small_up_s: list[float] = small_up.tolist()
        self.connected: list[bool] = connected.tolist()
        of_frame = hashed_bits(keys, np.arange(len(frames))[:, None])
        self.handshake_s = self._handshakes(of_frame[0], specs, small_down, handshakes, connected)
        """Seconds that opening the connection takes; ``inf`` where TCP gives up."""
        self.specs = specs
        self.prepared = PreparedFrames.of(frames, specs, small_down, small_up, of_frame)
        """What becomes of the frames that are foreseen."""
        self.frame_count = len(frames)
        self._by_slot: list[PreparedFrame] | None = None
        self.disturbances: Disturbances | None = None
        """What faults do to these links; None where there are none."""

    def _handshakes(
        self,
        of_first_frame: Keys,
        specs: LinkSpecs,
        small_s: Floats,
        handshakes: int,
        connected: npt.NDArray[np.bool_],
    ) -> list[float]:
        seconds: list[float] = np.where(connected, 0.0, handshakes * small_s).tolist()
        # Few handshakes lose a packet; those are followed one by one, from the same draws.
        with np.errstate(divide="ignore"):
            first = np.log(hashed_uniform(of_first_frame, HANDSHAKE)) / np.log1p(-specs.loss)
        for slot in np.flatnonzero((first < 2 * handshakes) & ~connected).tolist():
            try:
                seconds[slot] = handshake_time(
                    self.rtt_s[slot],
                    self.down_bps[slot],
                    handshakes,
                    self.loss[slot],
                    frame_draws(self.keys[slot], 0, HANDSHAKE),
                )
            except TransferFailedError:
                seconds[slot] = math.inf
        return seconds

    @property
    def frames(self) -> list[PreparedFrame]:
        """:attr:`prepared` as lists: made when the first frame is sent by itself."""
        if self._by_slot is None:
            self._by_slot = self.prepared.by_slot()
        return self._by_slot

    def loss_draws(self, slot: int, number: int) -> Callable[[], float]:
        """Return the source of the uniforms that decide what frame ``number`` of a device loses."""
        return frame_draws(self.keys[slot], number, LOSS)

    def unforeseen_latency_s(self, slot: int, number: int, direction: Direction) -> float:
        """Return half a round trip and the jitter of a frame that was not foreseen, seconds."""
        jitter_s = frame_jitter(self.keys[slot], number, self.jitter_s[slot])
        small_s = self.small_up_s[slot] if direction is Direction.UP else self.small_down_s[slot]
        return 0.5 * small_s + jitter_s
