"""Where the devices of the rounds under way stand, by the frames between them and the coordinator."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from coordinator.scenario.faults_section import STAGE_ORDER
from edge.core.vocabulary import FIRST_QUERY, Direction, Reason, Stage, label
from edge.wire.messages import KINDS, Abort, Accept, AcceptBare, Acknowledge, AnyMessage, Decline, Failure

INVITED: Final = "invited"
AT_WORK: Final = "downloading or computing"
OVER: Final = "over"
_ORDER: Final = STAGE_ORDER[:-1]
"""The stages of a round as they follow each other, but for the receipt."""
_RANK: Final = {stage: rank for rank, stage in enumerate(_ORDER)}
_FIRST_SENT: Final = _RANK[Stage.REPORT]
_OVER_RANK: Final = len(_ORDER)
_AT_WORK_RANK: Final = 1
_ACCEPTANCES: Final = (Accept, AcceptBare)
_LAST: Final[dict[Direction, tuple[type[Any], ...]]] = {
    Direction.DOWN: (Acknowledge, Abort),
    Direction.UP: (Decline, Failure, Abort),
}
"""After one of these a device takes no further part."""
_NAMES: Final = (
    INVITED,
    AT_WORK,
    AT_WORK,
    *(f"sent: {label(stage)}" for stage in _ORDER[_FIRST_SENT:]),
    OVER,
)
"""What each rank is called: until something of a device's work has come, nobody sees what it does."""
STATES: Final = tuple(dict.fromkeys(_NAMES))
"""All states, in the order in which a device goes through them."""


class DevicesAtWork:
    """The state of each device in the rounds under way, and what has passed in the newest of them.

    A device is in the state that its latest counted frame says, until the round it is in has been written.
    Evaluations on devices are left out: they are no rounds of training.

    Attributes
    ----------
    round_number : the newest round; 0 before the first.
    time_s : of the last frame, on the clock of the run.
    frames, frame_bytes : that passed in the newest round, by direction; nothing below a frame is in them.
    """

    def __init__(self) -> None:
        self.round_number = 0
        self.time_s = 0.0
        self.frames = {Direction.DOWN: 0, Direction.UP: 0}
        self.frame_bytes = {Direction.DOWN: 0, Direction.UP: 0}
        self._stage = 0
        self._rank_of: dict[int, tuple[int, int]] = {}
        """Round and rank of each device."""
        self._count: Counter[int] = Counter()

    def invited(self, round_number: int, devices: list[int], frame_bytes: int, time_s: float) -> None:
        """Handle devices that an invitation of ``frame_bytes`` goes to."""
        if round_number >= FIRST_QUERY:
            return
        if round_number > self.round_number:
            self.round_number = round_number
            self._stage = 0
            self.frames = dict.fromkeys(self.frames, 0)
            self.frame_bytes = dict.fromkeys(self.frame_bytes, 0)
        self._passed(round_number, Direction.DOWN, len(devices), len(devices) * frame_bytes, time_s)
        for device in devices:
            self._move(device, round_number, 0)

    def frame(
        self,
        round_number: int,
        device: int,
        direction: Direction,
        message: AnyMessage,
        reason: Reason,
        frame_bytes: int,
        time_s: float,
    ) -> None:
        """Handle any other frame: one sent down, or one that came up and what it was judged."""
        if round_number >= FIRST_QUERY:
            return
        self._passed(round_number, direction, 1, frame_bytes, time_s)
        if reason is not Reason.NONE:
            return
        kind = message.__class__
        rank = _RANK.get(KINDS[kind].stage, 0)
        if kind in _LAST[direction]:
            rank = _OVER_RANK
        elif round_number == self.round_number and rank > self._stage:
            self._stage = rank
        if direction is Direction.DOWN and rank != _OVER_RANK:
            return  # what the coordinator asks for is where the round stands, not yet where the device does
        if kind in _ACCEPTANCES:
            rank = _AT_WORK_RANK
        known = self._rank_of.get(device)
        if known is not None and known[0] == round_number and rank > known[1]:
            self._move(device, round_number, rank)

    def _passed(
        self, round_number: int, direction: Direction, frames: int, frame_bytes: int, time_s: float
    ) -> None:
        self.time_s = max(self.time_s, time_s)
        if round_number == self.round_number:
            self.frames[direction] += frames
            self.frame_bytes[direction] += frame_bytes

    def _move(self, device: int, round_number: int, rank: int) -> None:
        known = self._rank_of.get(device)
        if known is not None:
            self._count[known[1]] -= 1
        self._rank_of[device] = (round_number, rank)
        self._count[rank] += 1

    def gone(self, device: int) -> None:
        """Respond when a device takes no further part in its round."""
        known = self._rank_of.get(device)
        if known is not None:
            self._move(device, known[0], _OVER_RANK)

    def written(self, round_number: int, devices: list[int]) -> None:
        """Forget the devices of a round that has been written."""
        for device in devices:
            known = self._rank_of.get(device)
            if known is not None and known[0] <= round_number:
                del self._rank_of[device]
                self._count[known[1]] -= 1

    @property
    def stage(self) -> str | None:
        """The stage of the newest round; None between rounds."""
        return label(_ORDER[self._stage]) if self._rank_of else None

    def states(self) -> dict[str, int]:
        """Return how many devices are in each of :data:`STATES`."""
        found = dict.fromkeys(STATES, 0)
        for rank, number in self._count.items():
            found[_NAMES[rank]] += number
        return found

    def record(self) -> dict[str, Any]:
        """Return it as a mapping of JSON types."""
        return {
            "round": self.round_number,
            "stage": self.stage,
            "time_s": self.time_s,
            "states": self.states(),
            "frames": {label(way): number for way, number in self.frames.items()},
            "frame_bytes": {label(way): number for way, number in self.frame_bytes.items()},
        }
