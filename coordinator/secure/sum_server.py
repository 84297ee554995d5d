"""The coordinator's side of a sum of which it sees no part: admission of frames, losses and deadlines.

A bad frame never ends the round: it is refused by name, and if its sender broke the protocol the round goes
on without that device.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from coordinator.engine.secure_sums import Step
from edge.core.errors import LocalProtocolError
from edge.crypto.errors import (
    DuplicateMessageError,
    SecAggError,
    UnknownDeviceError,
    WrongSenderError,
    WrongStageError,
)
from edge.secagg.checks import expect_round
from edge.secagg.states import COORDINATOR_FINAL, CoordinatorEvent, CoordinatorState
from edge.wire.messages import Abort, DecryptRequest, FromCoordinator

Sent = list[tuple[int, FromCoordinator | DecryptRequest]]
"""Messages to send, each with its receiver."""


class SumServer(abc.ABC):
    """One round as a state machine without I/O, but for what its messages are worth.

    Parameters
    ----------
    run_id, round_number : which round.
    devices : ids of those that may take part.
    state : the first stage.
    transitions : the state after each event.

    Attributes
    ----------
    state : the stage whose answers are collected.
    failure : the error that ended the round without a sum, else None.
    opened : whether the sum was seen without its masks or its encryption, whatever came of it.
    dropped : the stage at which each device was lost, refused or too late, by id.
    culprits : by id, the error by which a device was found to have broken the protocol.

    Raises ``LocalProtocolError`` for no devices or one twice.
    """

    stages: ClassVar[Mapping[type[Any], CoordinatorState]]
    """The stage that collects each message of a device; besides these only ``Abort`` is admitted."""
    sum_name: ClassVar[str]
    """What is summed, in errors."""

    def __init__(
        self,
        run_id: str,
        round_number: int,
        devices: Iterable[int],
        state: CoordinatorState,
        transitions: Mapping[tuple[CoordinatorState, CoordinatorEvent], CoordinatorState],
    ) -> None:
        listed = list(devices)
        self._waiting = set(listed)
        """Whose answer to this stage is awaited."""
        if not listed or len(self._waiting) != len(listed):
            raise LocalProtocolError("a round needs one or more devices, each named once")
        self._run_id = run_id
        self._round_number = round_number
        self._invited = frozenset(listed)
        self._answered: dict[CoordinatorState, set[int]] = {stage: set() for stage in CoordinatorState}
        self._transitions = transitions
        self.state = state
        self.failure: SecAggError | None = None
        self.opened = False
        self.dropped: dict[int, CoordinatorState] = {}
        self.culprits: dict[int, SecAggError] = {}

    @property
    def waiting(self) -> frozenset[int]:
        """Whose answers are awaited."""
        return frozenset(self._waiting)

    def receive(self, sender: int, message: Any) -> Step:
        """Take a frame that arrived from the device ``sender``; a refusal is in the result, never raised."""
        try:
            self._admit(sender, message)
        except SecAggError as error:
            return Step([], error)
        if isinstance(message, Abort):
            return self.lost(sender)
        self._waiting.remove(sender)
        stage = self.state
        try:
            self._take(sender, message)
        except SecAggError as error:
            self.culprits[sender] = error
            notice = self._exclude(sender, error.reason)
            return Step([notice, *self._advance()], error)
        self._answered[stage].add(sender)
        return Step(self._advance())

    def lost(self, device: int) -> Step:
        """Drop ``device``, which is known to be gone: nothing more is expected from it or sent to it."""
        if device not in self._invited or device in self.dropped or self.state in COORDINATOR_FINAL:
            return Step([])
        self.dropped[device] = self.state
        self._waiting.discard(device)
        return Step(self._advance())

    def deadline_passed(self, stage: CoordinatorState) -> Step:
        """End ``stage`` with the answers that are there; does nothing if it has ended before."""
        if stage is not self.state:
            return Step([])
        self._drop_waiting()
        return Step(self._advance())

    def _admit(self, sender: int, message: Any) -> None:
        """Raise for a message of another round, stage or sender, or a repeated one; its sender stays in."""
        kind = type(message)
        if kind is not Abort and kind not in self.stages:
            raise WrongStageError(f"{kind.__name__} is not for the coordinator of {self.sum_name}")
        expect_round(self._run_id, self._round_number, message.run_id, message.round_number)
        if sender not in self._invited:
            raise UnknownDeviceError(f"device {sender} was not invited to this round")
        if message.device != sender:
            raise WrongSenderError(f"device {sender} sent a message in the name of device {message.device}")
        if kind is Abort:
            return
        stage = self.stages[kind]
        if sender in self._answered[stage]:
            raise DuplicateMessageError(f"a second {kind.__name__} from device {sender}")
        if stage is not self.state or sender not in self._waiting:
            raise WrongStageError(
                f"{kind.__name__} from device {sender} came at the stage '{self.state.value}'"
            )

    @abc.abstractmethod
    def _take(self, sender: int, message: Any) -> None:
        """Take a message that was admitted; a ``SecAggError`` excludes its sender."""

    @abc.abstractmethod
    def _advance(self) -> Sent:
        """Go on for as long as nothing more is awaited; return what to send."""

    def _exclude(self, device: int, reason: str) -> tuple[int, Abort]:
        """Go on without ``device``; return the notice to it."""
        self.dropped[device] = self.state
        return self._notice(device, reason)

    def _notice(self, device: int, reason: str) -> tuple[int, Abort]:
        return device, Abort(self._run_id, self._round_number, device, reason)

    def _drop_waiting(self) -> None:
        self.dropped.update(dict.fromkeys(sorted(self._waiting), self.state))
        self._waiting = set()

    def _go(self, event: CoordinatorEvent, waiting: Iterable[int] = ()) -> None:
        """Go to the stage after ``event``, which awaits ``waiting``."""
        self.state = self._transitions[self.state, event]
        self._waiting = set(waiting)
