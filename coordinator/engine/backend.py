"""Where a run takes place: its clock, its devices, and the coordinator that talks to them.

Training needs no more than this. :class:`~coordinator.simulation.backend.Simulation` is a backend in virtual
time; :class:`~coordinator.service.backend.SocketBackend` is one of sockets, on the real clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import Cohort
from coordinator.engine.actor import Coordinator
from coordinator.engine.fleet import Fleet
from coordinator.engine.rounds import RoundMachine
from coordinator.engine.secure_rounds import SecureRoundMachine
from coordinator.engine.secure_sums import RoundOfSums, SecureSums
from coordinator.engine.workload import TrainingKernel
from edge.core.log import EventLog
from edge.core.vocabulary import Reason
from edge.device.compute import Kernel
from edge.learning.base import State, Work
from edge.learning.updates import Aggregate, ClientUpdate
from edge.network.link import Delivery
from edge.wire.messages import AnyMessage

if TYPE_CHECKING:
    from coordinator.engine.shielding import Shield
    from edge.device.round_faults import RoundFaults

T = TypeVar("T")
Ids = npt.NDArray[np.int64]
Codes = list[int] | npt.NDArray[np.int8]
CrashHandler = Callable[[int, float], None]
"""Called with the number of a fault and for how many seconds the coordinator is down."""


class Probe:
    """Hooks for checks of a run, called with what its tables do not hold; each does nothing by default."""

    def invited(self, round_number: int, devices: list[int], frame_bytes: int, now_s: float) -> None:
        """Handle an invitation of ``frame_bytes`` bytes to ``devices``; most have no call of `sent`."""

    def sent(self, delivery: Delivery) -> None:
        """Handle a frame that was put on a link."""

    def judged(
        self, round_number: int, device: int, message: AnyMessage, reason: Reason, now_s: float
    ) -> None:
        """Handle what the coordinator made of a frame from a device of a round; ``NONE``: it counts."""

    def encoded(self, round_number: int, device: int, vector: npt.NDArray[Any]) -> None:
        """Handle a device's input to a secure sum before it is hidden, [L]; it changes afterwards."""

    def summed(
        self, round_number: int, machine: RoundMachine | SecureRoundMachine, aggregate: Aggregate
    ) -> None:
        """Handle the sum of a completed round, before the coordinator adds noise."""

    def applied(self, round_number: int, before: State, after: State) -> None:
        """Handle the model before and after a sum was applied."""

    async def ends(self) -> None:
        """Look at what is left when the last round is over."""


class Clock(Protocol):
    """The time of a run."""

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""


class RunningCohort(Cohort, Protocol):
    """The invited devices of one round, and how each of them ended, by slot."""

    ids: Ids
    round_number: int
    kernel: Kernel[ClientUpdate]
    sums: SecureSums | None
    """How the updates of the round are summed; None: every device reports in the clear."""
    secure_sum: RoundOfSums | None
    faults: RoundFaults | None
    """What goes wrong on purpose; None where nothing does."""
    clipped: npt.NDArray[np.bool_] | None
    """Whose update was longer than the privacy of the run allows; None where only the devices know."""
    examples: Ids
    counts_kept_back: bool
    """Whether nothing is written of how much data a device has, nor of what follows from that."""
    work_share: npt.NDArray[np.float64] | None
    """Which part of its local steps each device takes; None: all take all."""
    log: EventLog

    @property
    def work(self) -> Work:
        """What the round costs each device."""

    @property
    def outcome(self) -> Codes:
        """How each participation ended, an :class:`~edge.core.vocabulary.Outcome`."""

    @property
    def stage(self) -> Codes:
        """The stage at which it ended, −1 where it was completed."""

    @property
    def reason(self) -> Codes:
        """Why it ended so."""

    @property
    def loss(self) -> list[float] | npt.NDArray[np.float64]:
        """Local training loss of each device that computed an update, else NaN."""

    def close(self) -> None:
        """Settle how the devices have ended: nothing of theirs is on its way any more."""

    def crash(self) -> None:
        """Let every device at work lose its connection: the coordinator has crashed."""


class Backend(Protocol):
    """Where a run takes place."""

    run_id: str
    fleet: Fleet
    coordinator: Coordinator
    shields: Mapping[str, Shield | None]
    """Tests for reporting in the clear beside a secure sum, by name of the phase; empty without shielding."""
    probe: Probe | None
    """Sees what happens, beside the run."""

    @property
    def loop(self) -> Clock:
        """The clock."""

    def begin(self, crash: CrashHandler) -> None:
        """Begin the run; ``crash`` lets the coordinator crash because of a fault."""

    def cohort(
        self,
        ids: Ids,
        round_number: int,
        phase: str,
        kernel: TrainingKernel,
        done: Callable[[RunningCohort], None],
    ) -> RunningCohort:
        """Return the cohort of a round; ``done`` is called once, when its last device has ended.

        Parameters
        ----------
        ids : int64 [n], the invited devices.
        round_number, phase : the round, and the phase of the scenario that it belongs to.
        kernel : computes the client updates of this round.
        """

    async def aside(self, measure: Callable[[], T]) -> T:
        """Return what ``measure`` does, which takes long and may run beside everything else.

        In virtual time no time passes meanwhile.
        """

    def catch_up(self) -> None:
        """Let everything that devices do before this moment have happened."""

    def forget(self, kernel: Kernel[ClientUpdate]) -> None:
        """Release ``kernel`` after its last use."""
