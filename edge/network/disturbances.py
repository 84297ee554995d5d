"""What faults do to the links of a round: rates cut, packets delayed or lost, links that are down.

A fault lays :class:`LinkEffect` on the links that it strikes. A frame that an effect can reach is carried by
its :class:`FrameFaults`, all other frames as if there were no faults, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_uniform_scalar
from edge.core.vocabulary import Direction, Stage
from edge.network.loss import (
    MAX_BACKOFFS,
    SYN_TIMEOUT_S,
    Congestion,
    TransferFailedError,
    lossy_transfer,
    silence_limit,
)
from edge.network.pace import Conditions, Pace, alone, carry
from edge.network.tcp import INITIAL_WINDOW_BYTES, PACKET_BYTES

Note = Callable[[int, int, Stage, float], None]
"""Told that a fault, by its number, has struck a slot at a stage and a time."""


@dataclass(slots=True)
class LinkEffect:
    """What one fault does to one link while it lasts.

    Attributes
    ----------
    fault : number of the fault among those of the scenario.
    direction : the one that it strikes, ``NONE`` for both.
    stage : whose frames it strikes; None for all.
    opens : the stage whose first frame begins the time that the effect lasts; None: ``start_s`` is known.
    start_s, end_s : absolute seconds; with ``opens``, ``end_s`` counts from that first frame.
    scale : factor on the rate; 0: the link is down.
    cap_bps : the rate is no higher than this.
    period_s, up_s, offset_s : the link is up for the first ``up_s`` of every ``period_s``, which begin at
        ``offset_s``; ``inf`` for no such thing.
    delay_s, jitter_s : what packets take longer, and the mean of an exponential delay of a frame on top.
    loss : probability that a packet is lost, beside the link's own.
    key : of the fault's draws for this device and round.
    """

    fault: int = -1
    direction: Direction = Direction.NONE
    stage: Stage | None = None
    opens: Stage | None = None
    start_s: float = -math.inf
    end_s: float = math.inf
    scale: float = 1.0
    cap_bps: float = math.inf
    period_s: float = math.inf
    up_s: float = math.inf
    offset_s: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    key: int = 0

    def at(self, t_s: float) -> tuple[float, float, float]:
        """Return factor and cap of the rate at ``t_s``, and until when they hold."""
        if t_s < self.start_s:
            return 1.0, math.inf, self.start_s
        if t_s >= self.end_s:
            return 1.0, math.inf, math.inf
        if math.isinf(self.period_s):
            return self.scale, self.cap_bps, self.end_s
        cycle = math.floor((t_s - self.offset_s) / self.period_s)
        starts_s = self.offset_s + cycle * self.period_s
        up = t_s - starts_s < self.up_s
        until_s = starts_s + (self.up_s if up else self.period_s)
        until_s = max(min(until_s, self.end_s), math.nextafter(t_s, math.inf))
        return (1.0 if up else 0.0), math.inf, until_s

    def may_meet(self, stage: Stage, start_s: float, end_s: float) -> bool:
        """Return whether a frame of a stage that is under way within that time may meet the effect."""
        if self.opens is not None:
            return self.opens is stage
        return self.stage in (None, stage) and self.start_s <= end_s and self.end_s > start_s

    def active(self, t_s: float) -> bool:
        """Return whether the effect is there at ``t_s``."""
        return self.start_s <= t_s < self.end_s


class LinkRates(NamedTuple):
    """What a link is like by itself: bits/s, seconds, and the probability that a packet is lost."""

    bps: float
    rtt_s: float
    loss: float


class SentFrame(Protocol):
    """A frame on its way."""

    payload_bytes: int
    framing_bytes: int
    retransmitted_bytes: int


class FrameFaults:
    """The effects that can reach one frame, on its way to be sent."""

    __slots__ = ("_direction", "_effects", "_note", "_slot", "_stage")

    def __init__(
        self, slot: int, direction: Direction, stage: Stage, effects: list[LinkEffect], note: Note
    ) -> None:
        self._slot = slot
        self._direction = direction
        self._stage = stage
        self._effects = effects
        self._note = note

    def _of(self, direction: Direction) -> list[LinkEffect]:
        return [effect for effect in self._effects if effect.direction in (Direction.NONE, direction)]

    def meet(self, first_byte_s: float, last_byte_s: float) -> bool:
        """Return whether an effect is there while the frame is sent, and note those that are."""
        # A delay of the other way is one of the acknowledgements.
        reaching = {id(effect) for effect in self._of(self._direction)}
        met = [
            effect
            for effect in self._effects
            if effect.start_s <= last_byte_s
            and effect.end_s > first_byte_s
            and (effect.delay_s > 0.0 or id(effect) in reaching)
        ]
        struck: dict[int, float] = {}
        for effect in met:
            struck.setdefault(effect.fault, max(first_byte_s, effect.start_s))
        for fault, struck_s in struck.items():
            self._note(fault, self._slot, self._stage, struck_s)
        return len(met) > 0

    def pace(self, conditions: Conditions, rate_bps: float) -> Pace:
        """Return the pace of the link with all effects, relative to its mean rate."""
        slot, direction, effects = self._slot, self._direction, self._of(self._direction)

        def pace(t_s: float) -> tuple[float, float]:
            found = [effect.at(t_s) for effect in effects]
            # While an effect takes the link down, whatever else goes on with it does not matter.
            down_until_s = max((changes_s for scale, _, changes_s in found if scale == 0.0), default=t_s)
            if down_until_s > t_s:
                return 0.0, down_until_s
            factor, until_s = conditions.pace(slot, direction, t_s)
            for scale, cap_bps, changes_s in found:
                factor = min(factor * scale, cap_bps / rate_bps)
                until_s = min(until_s, changes_s)
            return factor, until_s

        return pace

    def carry(
        self,
        frame: SentFrame,
        rates: LinkRates,
        conditions: Conditions,
        draw: Callable[[], float],
        first_byte_s: float,
        congestion: Congestion,
        *,
        plain: bool,
    ) -> float:
        """Return how long the frame takes from its first to its last byte, and note in it what is sent again.

        ``rates`` are those of its link and direction, ``draw`` the source of the uniforms that decide what it
        loses. ``plain`` says that the link by itself loses no packet of it and knows no outages.
        Raises ``TransferFailedError`` if TCP gives the transfer up.
        """
        frame_bytes = frame.payload_bytes + frame.framing_bytes
        rtt_s = rates.rtt_s + self.round_trip_s(first_byte_s)
        loss = self.loss(first_byte_s)
        limit_s = silence_limit(rtt_s)
        pace = self.pace(conditions, rates.bps)
        if plain and loss == 0.0:
            return alone(pace, frame_bytes, rates.bps, rtt_s, first_byte_s, INITIAL_WINDOW_BYTES, limit_s)[0]
        loss = 1.0 - (1.0 - rates.loss) * (1.0 - loss)
        result = lossy_transfer(frame_bytes, rates.bps, rtt_s, loss, draw, congestion)
        frame.retransmitted_bytes = result.retransmitted_segments * PACKET_BYTES
        return carry(pace, first_byte_s, result.seconds, limit_s)

    def round_trip_s(self, t_s: float) -> float:
        """Return what the delays of both ways add to a round trip."""
        ways = (*self._of(Direction.DOWN), *self._of(Direction.UP))
        return sum(effect.delay_s for effect in ways if effect.active(t_s))

    def latency_s(self, number: int, t_s: float) -> float:
        """Return what the delays add to the way of frame ``number`` of its device, jitter included."""
        added_s = 0.0
        for effect in self._of(self._direction):
            if effect.active(t_s):
                added_s += effect.delay_s
                if effect.jitter_s:
                    added_s -= effect.jitter_s * math.log(hashed_uniform_scalar(effect.key, number))
        return added_s

    def loss(self, t_s: float) -> float:
        """Return the probability that the effects lose a packet."""
        kept = (1.0 - effect.loss for effect in self._of(self._direction) if effect.active(t_s))
        return 1.0 - math.prod(kept)

    def connect(self, start_s: float, handshake_s: float, handshakes: int) -> tuple[float, int]:
        """Return how long a connection takes that is begun at ``start_s``, and how many SYNs were in vain.

        A SYN into a link that is down is sent again after 1 s, 2 s and so on.

        Raises
        ------
        TransferFailedError : the link was down at every one of them.
        """
        waited_s = 0.0
        for sent in range(MAX_BACKOFFS + 1):
            t_s = start_s + waited_s
            if all(effect.at(t_s)[0] > 0.0 for effect in self._effects):
                delay_s = handshakes * self.round_trip_s(t_s)
                return waited_s + handshake_s + delay_s, sent
            waited_s += SYN_TIMEOUT_S * 2.0**sent
        raise TransferFailedError("every SYN met a dead link", after_s=waited_s)


class Disturbances:
    """The effects of faults on the links of a round, by slot.

    Parameters
    ----------
    effects : of each slot that is struck.
    note : receives every effect that a frame meets.
    """

    __slots__ = ("_effects", "_note")

    def __init__(self, effects: Mapping[int, list[LinkEffect]], note: Note) -> None:
        self._effects = effects
        self._note = note

    def reach(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of ``slots`` (int64 [n]) an effect lies on, bool [n]."""
        return np.isin(slots, list(self._effects))

    def of_frame(self, slot: int, direction: Direction, stage: Stage, now_s: float) -> FrameFaults | None:
        """Return what can reach a frame of ``stage`` that is sent now; None where nothing can."""
        effects = self._effects.get(slot)
        if effects is None:
            return None
        for index, effect in enumerate(effects):
            if effect.opens is stage:
                effects[index] = replace(effect, opens=None, start_s=now_s, end_s=now_s + effect.end_s)
        reaching = [
            effect
            for effect in effects
            if effect.opens is None and effect.stage in (None, stage) and effect.end_s > now_s
        ]
        if not any(effect.direction in (Direction.NONE, direction) or effect.delay_s for effect in reaching):
            return None
        return FrameFaults(slot, direction, stage, reaching, self._note)
