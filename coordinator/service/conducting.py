"""Runs on the real clock: the service listens, devices join, and training takes its course until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aiohttp import web

from coordinator.engine.actor import Coordinator
from coordinator.engine.assembly import Assembly
from coordinator.engine.stop_reason import StopReason
from coordinator.engine.training import Training
from coordinator.run.assembling import assemble
from coordinator.run.conductor import new_run_id
from coordinator.run.without_data import assemble_without_data
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.registered_sections import method_name
from coordinator.service.admission.gate import local_gate
from coordinator.service.admission.review import keep_reviewing
from coordinator.service.app import Listening, make_app
from coordinator.service.backend import SocketBackend
from coordinator.service.greeting import Offer
from coordinator.service.hooks import Admission, ServiceObserver
from coordinator.service.refusals import refuse_on_real_clock, refuse_unsent_mean
from coordinator.service.sessions import Sessions
from coordinator.service.survival.survivor import Survivor
from edge.clock import real as real_clock
from edge.clock.real import RealClockLoop
from edge.core.errors import RecfleetError
from edge.crypto.entropy import SecretSource

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_UNSEEN = frozenset({"secagg.sum_error", "secagg.double_reveal", "round.clipped", "privacy.clipped"})
"""Metrics of what happens on devices, which the coordinator does not observe."""
_KEPT_BACK = frozenset({"device.energy", "device.wasted_work"})
"""Metrics that follow from how long devices compute, and so from how much data they have."""
_STOPPING = "stops once the round under way is over; the next signal abandons it"
Company = Callable[[str, LoadedScenario, Assembly], AbstractAsyncContextManager[None]]
"""Devices that this process brings along: given the URL, the scenario and its assembly."""


@contextmanager
def first_signal(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first Ctrl-C or request to terminate; the next one does what it did before.

    For code on ``loop``, in the main thread.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = False

    def restore() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])

    def hear() -> None:
        nonlocal heard
        if not heard:
            heard = True
            restore()
            stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, hear)
    try:
        yield
    finally:
        if not heard:
            restore()


@asynccontextmanager
async def nobody(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
    """Bring no devices along."""
    yield


def assembled(loaded: LoadedScenario, wait_for: int | None, *, with_data: bool = True) -> Assembly:
    """Return what a run on the real clock works with; ``with_data`` reads or makes the data of all devices.

    Raises
    ------
    ScenarioError : it asks for what only a simulation has.
    WaitError : more devices are waited for than there are.
    DataError : the data cannot be read.
    """
    refuse_on_real_clock(loaded)
    assembly = assemble(loaded) if with_data else assemble_without_data(loaded)
    refuse_unsent_mean(loaded, assembly.workload.algorithm)
    if wait_for is not None and wait_for > assembly.fleet.n:
        raise WaitError(f"there are {assembly.fleet.n} devices in all; wait for so many, or fewer")
    return assembly


class WaitError(RecfleetError):
    """A run that could never begin."""


class PlaceError(RecfleetError):
    """A service that cannot listen where it should."""


@dataclass(slots=True)
class RealTime:
    """Conducts runs on the real clock.

    Attributes
    ----------
    host, port : where the service listens; port 0 lets the system choose.
    wait_for : devices that have joined before the first round; None: as many as a round invites.
    listening : told the URL once devices can join.
    company : devices that this process brings along.
    admission, observer : who may come in, and who watches.
    routes : adds what else the service answers.
    survival : lets the run outlive this process; None: it ends with it.
    stopping : receives, in a line, when a signal asks the run to end: the round under way is finished first,
        and a second signal abandons it. None: signals are not heard here.
    stretch : real seconds that one of the run takes, where this process has all of the devices.
    stays : awaited once all devices have gone; the service then stays open, though it answers nobody, until
        :meth:`close`, while the results are written. None: it closes at once.
    """

    host: str = "127.0.0.1"
    port: int = 0
    wait_for: int | None = None
    listening: Callable[[str], None] = lambda _url: None
    company: Company = nobody
    admission: Admission = field(default_factory=local_gate)
    observer: ServiceObserver = field(default_factory=ServiceObserver)
    routes: Callable[[web.Application], None] = lambda _app: None
    survival: Survivor | None = None
    stopping: Callable[[str], None] | None = None
    stretch: float = 1.0
    stays: Callable[[], Awaitable[None]] | None = None
    clock: Literal["virtual", "real"] = "real"
    secrets: SecretSource = SecretSource.SYSTEM
    _run_id: str | None = field(default=None, init=False, repr=False)
    _runner: asyncio.Runner | None = field(default=None, init=False, repr=False)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack, init=False, repr=False)

    def run_id(self, loaded: LoadedScenario) -> str:
        """Return the identity of the run: of one that is gone on with, the one that it began with."""
        if self.survival is not None and self.survival.run_id is not None:
            return self.survival.run_id
        if self._run_id is None:
            self._run_id = new_run_id(loaded, self.secrets)
        return self._run_id

    def __call__(self, loaded: LoadedScenario, assembly: Assembly, training: Training) -> StopReason:
        """Listen, wait for devices, train until a reason to stop, say goodbye, and return it."""
        start_s = 0.0 if self.survival is None else self.survival.start_s
        self._runner = real_clock.runner(start_s, self.stretch)
        try:
            return self._runner.run(self._conduct(loaded, assembly, training))
        finally:
            if self.stays is None:
                self.close()

    def unseen(self, assembly: Assembly) -> Collection[str]:
        """Return the metrics that are not observed: what is seen on devices alone, and what is kept back."""
        kept_back = any(map(assembly.counts_kept_back, assembly.secure_sums))
        return _UNSEEN | _KEPT_BACK if kept_back else _UNSEEN

    def close(self) -> None:
        """Answer again, for as long as it takes those who watch to hear how it ended, and close.

        Of a run that never began there is nothing to close.
        """
        if self._runner is not None:
            with self._runner as runner:
                runner.run(self._open.aclose())

    async def _conduct(self, loaded: LoadedScenario, assembly: Assembly, training: Training) -> StopReason:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RealClockLoop)
        scenario, run_id = loaded.scenario, self.run_id(loaded)
        crashed: asyncio.Future[None] = loop.create_future()

        def crash(where: str, error: BaseException) -> None:
            if not crashed.done():
                error.add_note(f"{where}, {loop.now_s:.3f} s into the run")
                crashed.set_exception(error)

        def callback_failed(_: object, context: dict[str, Any]) -> None:
            crash(context["message"], context.get("exception") or RuntimeError(context["message"]))

        loop.set_exception_handler(callback_failed)
        backend = SocketBackend(
            run_id=run_id,
            loop=loop,
            assembly=assembly,
            coordinator=Coordinator(run_id, method_name(scenario.learning), assembly.ranges),
            experience=training.invitations.experience,
            observer=self.observer,
            frame_bytes=scenario.limits.frame_bytes,
            changed=training.wake,
        )
        offer = Offer(run_id, loaded.hash, loaded.resolved, assembly.fleet.n, scenario.limits.frame_bytes)
        sockets = scenario.connection.sockets
        sessions = Sessions(offer, sockets, self.admission, self.observer, backend, crash)
        backend.sessions = sessions
        app = make_app(sessions, self.admission)
        self.routes(app)

        async def story() -> StopReason:
            wanted = scenario.rounds.invited if self.wait_for is None else self.wait_for
            await backend.until_joined(wanted)
            stop = await training.run(backend)
            await sessions.close("the run was stopped" if stop is StopReason.STOPPED else "the run is over")
            return stop

        def asked_to_stop() -> None:
            assert self.stopping is not None
            training.stop()
            backend.wait_no_longer()
            self.stopping(_STOPPING)

        service = Listening(app, self.admission, self.host, self.port, sockets.join_timeout)
        try:
            await self._open.enter_async_context(service)
        except OSError as error:
            where = f"{self.host}:{self.port}: {os.strerror(error.errno) if error.errno else error}"
            raise PlaceError(f"the service cannot listen at {where}; write another --port, or 0") from error
        self.listening(service.url)
        hears = contextlib.nullcontext() if self.stopping is None else first_signal(loop, asked_to_stop)
        async with self.company(service.url, loaded, assembly):
            told = loop.create_task(story(), name="coordinator")
            review = loop.create_task(keep_reviewing(sessions), name="review")
            try:
                with hears:
                    await asyncio.wait((told, crashed), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await sessions.close("the run was stopped")
                raise
            finally:
                told.cancel()
                review.cancel()
            if crashed.done():
                await crashed
        crashed.cancel()
        if self.stays is not None:
            await self.stays()
        return await told
