"""Real devices in one process: many sessions, one loop, shared arrays."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from coordinator.engine.assembly import Assembly
from coordinator.run.assembling import assemble
from coordinator.scenario.load import LoadedScenario, load_text
from coordinator.service.answer_store import AnswerStore
from coordinator.service.identities import enrol, fetch_roster, sums_with_identities
from coordinator.service.local_work import DeviceWork, LocalWorks
from coordinator.service.refusals import refuse_on_devices
from device_profiles.errors import Path as Place
from edge.core.errors import RecfleetError
from edge.core.vocabulary import Reason
from edge.device.participation import Participation
from edge.device.real import ResidentDevice
from edge.network.sockets.device_client import Backoff, DeviceClient
from edge.secagg.roster import Enrolled, Roster, RosterError
from edge.wire.session import Event
from edge.wire.session_frames import Welcome

JOIN_S = 10.0
"""How long a device waits for a connection and its welcome until it has the scenario, which says."""
_UNACKNOWLEDGED_BYTES = 256 * 1024 * 1024
PATIENCE_S = 60.0
"""How long a device tries to reach a coordinator that is not there."""
_FIRST_PAUSE_S = 0.2
_GROWTH = 1.5
_LONGEST_PAUSE_S = 5.0


class ScenarioMismatchError(RecfleetError):
    """The scenario that a device has been sent is not what its hash says, or not what it has."""


class RunMismatchError(RecfleetError):
    """A coordinator that has begun another run than the one that the devices here take part in."""


class EpsilonLimitError(RecfleetError):
    """A limit of ε for devices that add no noise of their own, so that none can be kept."""


@dataclass(slots=True)
class Tally:
    """What the devices of a process have done."""

    joined: int = 0
    participations: Counter[str] = field(default_factory=Counter)
    """How they ended, by name."""
    goodbyes: Counter[str] = field(default_factory=Counter)

    def ended(self, part: Participation) -> None:
        """Count the end of a participation."""
        if part.receipt is not None:
            name = "counted" if part.receipt == 0 else f"not counted: {part.receipt.name.lower()}"
        elif part.abandoned is not None:
            name = f"abandoned: {part.abandoned.name.lower()}"
        elif part.declined is not None:
            name = f"declined: {part.declined.name.lower()}"
        else:
            name = "ended without a receipt"
        self.participations[name] += 1


class LocalDevices:
    """The devices of this process.

    Parameters
    ----------
    url : of the coordinator.
    devices : their ids.
    token_of : returns what says that a device may come in.
    enrolled : the identities that devices sign with, where they have been enrolled with any.
    pin : SHA-256 of the certificate to trust; None: one that the system trusts.
    data : stands in for the scenario's ``data.path``; None: as it is written there.
    shaped : whether links and computing times are those of the devices' profiles.
    known : the scenario and what was made of it, where this process has them already.
    workers : threads that compute.
    patience_s : how long a device tries to reach a coordinator that is not there, or not any more.
    memory : folder of the files that say which rounds were answered; None: that ends with this process.
    max_epsilon : most ε that a device spends in the run by noise of its own; None: what all of its rounds
        spend.
    """

    def __init__(
        self,
        url: str,
        devices: Iterable[int],
        *,
        token_of: Callable[[int], str] = lambda _device: "",
        enrolled: Enrolled | None = None,
        pin: bytes | None = None,
        data: Path | None = None,
        shaped: bool = True,
        known: tuple[LoadedScenario, Assembly] | None = None,
        workers: int = 1,
        patience_s: float = PATIENCE_S,
        memory: Path | None = None,
        max_epsilon: float | None = None,
    ) -> None:
        self._backoff = Backoff(patience_s, _FIRST_PAUSE_S, _GROWTH, _LONGEST_PAUSE_S)
        self._url = url
        self._devices = list(devices)
        self._token_of = token_of
        self._enrolled = enrolled
        self._roster: Roster | None = None
        """Known before the first device joins."""
        self._tls = True if pin is None else aiohttp.Fingerprint(pin)
        self._data = data
        self._shaped = shaped
        self._memory = memory
        self._max_epsilon = max_epsilon
        self._run_id = ""
        self._store: AnswerStore | None = None
        """What was answered in the run; None before the first welcome."""
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="device")
        self._works: LocalWorks | None = None
        self._hash = ""
        self.tally = Tally()
        self._crashed: asyncio.Future[None]
        self.clients: dict[int, DeviceClient] = {}
        """The clients that are at work, by device."""
        if known is not None:
            loaded, assembly = known
            self._works = LocalWorks(loaded, assembly, slow=shaped)
            self._hash = loaded.hash

    async def run(self) -> None:
        """Let all devices take part until the coordinator says goodbye to each.

        Raises
        ------
        JoinError : the coordinator does not let one in, or cannot be reached any more.
        RosterError : the coordinator's roster is not the one that devices were enrolled with.
        ScenarioError, DataError : the scenario cannot be used here.
        RunMismatchError, ScenarioMismatchError : the coordinator comes back with another run, or scenario.
        AnswerStoreError : which rounds were answered is not known, or cannot be kept.
        EpsilonLimitError : ``max_epsilon`` cannot be kept, for the devices add no noise of their own.
        """
        self._crashed = asyncio.get_running_loop().create_future()
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        try:
            async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as group:
                if self._enrolled is not None:
                    self._roster = await self._own_roster(http, self._enrolled)
                watch = group.create_task(self._watch())
                lives = [group.create_task(self._live(http, device)) for device in self._devices]
                await asyncio.wait(lives)
                watch.cancel()
        except* Exception as errors:
            # One says what is wrong; the others were cancelled for it, or say the same.
            raise _first(errors) from None
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _own_roster(self, http: aiohttp.ClientSession, enrolled: Enrolled) -> Roster:
        """Return the roster, which has the identities of all devices here."""
        first = self._devices[0]
        roster = await fetch_roster(http, self._url, first, self._token_of(first), enrolled, self._backoff)
        for device in self._devices:
            if roster.get(device) != enrolled.identity_of(device).public:
                raise RosterError(
                    f"device {device} has an identity that is not its own on the roster; use the line that "
                    "'recfleet enroll issue' printed for it"
                )
        return roster

    async def _watch(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._crashed

    async def _live(self, http: aiohttp.ClientSession, device: int) -> None:
        seat = _Seat(self, device)
        client = DeviceClient(
            http,
            self._url,
            device,
            token=self._token_of(device),
            scenario=self._hash,
            listener=seat,
            backoff=self._backoff,
            join_s=JOIN_S,
            unacknowledged_bytes=_UNACKNOWLEDGED_BYTES,
        )
        seat.client = self.clients[device] = client
        try:
            self.tally.goodbyes[await client.run()] += 1
        finally:
            del self.clients[device]
            seat.leave()

    def works(self, welcome: Welcome) -> LocalWorks:
        """Return what the devices can do, made of the scenario that the first of them is sent."""
        if self._works is None:
            stand_ins: dict[Place, Path] = (
                {} if self._data is None else {("data", "path"): self._data.resolve()}
            )
            loaded = load_text(welcome.text, "the coordinator's scenario", stand_ins)
            refuse_on_devices(loaded)
            self._hash = loaded.hash
            assembly = assemble(loaded)
            self._enrol(assembly)
            self._works = LocalWorks(loaded, assembly, slow=self._shaped)
        self.expect(welcome)
        return self._works

    def expect(self, welcome: Welcome) -> None:
        """Refuse a coordinator that has another scenario, or has begun another run."""
        if self._hash != welcome.scenario:
            raise ScenarioMismatchError(
                f"the coordinator runs the scenario {welcome.scenario[:8]}, "
                f"and this device has {self._hash[:8]}"
            )
        if self._run_id not in ("", welcome.run_id):
            raise RunMismatchError(
                f"the coordinator has begun another run, {welcome.run_id} in place of {self._run_id}; "
                "start the device again to take part in it"
            )
        self._run_id = welcome.run_id

    def _memory_of(self, device: int, work: DeviceWork) -> _DeviceMemory:
        """Return a device's memory of the run."""
        if self._store is None:
            self._store = AnswerStore(self._memory, self._url, self._run_id, self._hash)
        allowed = work.rounds if self._max_epsilon is None else work.rounds_within(self._max_epsilon)
        if allowed is None:
            raise EpsilonLimitError(
                f"devices of this scenario add no noise of their own, so no ε of theirs can be kept below "
                f"{self._max_epsilon:g}; leave out --max-epsilon, or take part only in runs with "
                "'privacy.mechanism: local-gaussian' or 'personal-gaussian'"
            )
        return _DeviceMemory(self._store, self._run_id, device, allowed)

    def spent(self) -> tuple[float, int] | None:
        """Return the most ε that a device here has spent in the run, and in how many rounds.

        None where no device adds noise of its own, or none has joined.
        """
        if self._works is None or self._store is None:
            return None
        spent = []
        for device in self._devices:
            rounds = self._store.answered(device).rounds
            epsilon = self._works.of(device).epsilon(rounds)
            if epsilon is None:
                return None
            spent.append((epsilon, rounds))
        return max(spent)

    def _enrol(self, assembly: Assembly) -> None:
        """Let sums know the identities; refuse sums that need what is not there, or do without what is."""
        signing = sums_with_identities(assembly)
        if self._enrolled is None or self._roster is None:
            if signing:
                raise RosterError(
                    "the scenario sums in mode active, in which devices sign with identities, and those here "
                    "have none; use --token-file with lines of 'recfleet enroll issue … --identities'"
                )
        elif len(signing) < len(assembly.all_sums()):
            # Else a coordinator that lies would write another mode into the scenario that it sends.
            raise RosterError(
                "devices here were enrolled with identities, for mode active, and the coordinator's scenario "
                "sums in another way, in some phases at least; use tokens without identities if that is meant"
            )
        else:
            enrol(assembly, self._roster, self._enrolled.identity_of)

    def resident(self, client: DeviceClient, welcome: Welcome) -> ResidentDevice:
        """Return the device behind a client that has been welcomed for the first time."""
        works = self.works(welcome)
        self.tally.joined += 1
        if self._shaped:
            client.link = works.link(client.device)
        work = works.of(client.device)
        return ResidentDevice(
            client.device,
            work,
            self._memory_of(client.device, work),
            client,
            self._executor,
            frame_bytes=welcome.frame_bytes,
            ended=self.tally.ended,
            crashed=self.crashed,
        )

    def crashed(self, error: BaseException) -> None:
        """Handle a bug: no device can go on."""
        if not self._crashed.done():
            self._crashed.set_exception(error)


class _DeviceMemory:
    """What one device remembers; implements :class:`~edge.device.real.RoundMemory`."""

    def __init__(self, store: AnswerStore, run_id: str, device: int, allowed: int) -> None:
        self._store = store
        self._run_id = run_id
        self._device = device
        self._allowed = allowed

    async def objection(self, run_id: str, round_number: int) -> Reason:
        """Return why the device does not answer a round; ``Reason.NONE`` once its answer is kept."""
        if run_id != self._run_id:
            return Reason.STALE
        return await self._store.claim(self._device, round_number, self._allowed)


class _Seat:
    """Where a client and its device come together; a listener of the session."""

    def __init__(self, devices: LocalDevices, device: int) -> None:
        self._devices = devices
        self._device = device
        self._resident: ResidentDevice | None = None
        self.client: DeviceClient

    def welcomed(self, welcome: Welcome) -> None:
        """Take the device's place at the first welcome; the others have to be of the same run."""
        if self._resident is None:
            self._resident = self._devices.resident(self.client, welcome)
        else:
            self._devices.expect(welcome)

    def happened(self, event: Event) -> None:
        """Pass an event on."""
        assert self._resident is not None, "there is a welcome before everything else"
        self._resident.happened(event)

    def session_lost(self) -> None:
        """Let the device stop what it was at: nobody waits for it any more."""
        self.leave()

    def leave(self) -> None:
        """Stop the device."""
        if self._resident is not None:
            self._resident.leave()


def _first(errors: BaseExceptionGroup[Exception]) -> BaseException:
    """Return the first error in a group of groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
