"""Simulated rounds: the devices of each, and what all rounds of a run share, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import ActiveRound, Broadcast
from coordinator.engine.actor import UPDATES as BRING_UPDATES
from coordinator.engine.actor import Coordinator
from coordinator.engine.backend import CrashHandler, Probe, RunningCohort
from coordinator.engine.device_sums import DeviceSums, finite_report
from coordinator.engine.fleet import Fleet
from coordinator.engine.invitation_records import SentInvitations, connect_delays, invitation_rows
from coordinator.engine.predictions import PartialWork
from coordinator.engine.secure_rounds import SecureRoundMachine
from coordinator.engine.secure_sums import RoundOfSums, SecureSums
from coordinator.engine.selection.experience import UPDATES, Experience
from coordinator.engine.workload import TrainingKernel, Workload
from coordinator.scenario.rounds_section import Retry
from coordinator.simulation.faults.base import Setting
from coordinator.simulation.faults.striking import FaultsOfRun
from coordinator.simulation.frame_sizes import frame_sizes
from coordinator.simulation.timelines import RoundOfDevices, Timelines
from coordinator.simulation.wave import Endings, Wave
from coordinator.simulation.wave_flows import WaveTraffic
from edge.clock.virtual import VirtualClockLoop
from edge.core.log import EventLog
from edge.core.rng import stream_key
from edge.core.vocabulary import Direction, Fate, Outcome, Reason, RoundKind, Stage
from edge.crypto.errors import NotFiniteError
from edge.device.compute import ComputeQueue, Kernel
from edge.device.participation import RECEIPT_PATIENCE
from edge.device.simulated import SimulatedDevice
from edge.learning.base import together
from edge.learning.updates import ClientUpdate
from edge.network.cohort import CohortLinks
from edge.network.flights import lossy_times
from edge.network.link import Delivery, DeviceLink, SimulatedNetwork
from edge.network.loss import Congestion
from edge.network.pace import Conditions
from edge.privacy.protection import clipped_update
from edge.wire.messages import KINDS, AnyMessage, EncryptedInput, Invite, MaskedInput, Report

if TYPE_CHECKING:
    from coordinator.engine.privacy import RunPrivacy
    from coordinator.engine.shielding import Shield

# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_INVITE = Stage.INVITE
_DOWNLOAD = Stage.DOWNLOAD
_DISCARDED = Fate.DISCARDED
_DELIVERED = Fate.DELIVERED
T = TypeVar("T")
Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
_NOTICED = (Reason.CONNECTION_RESET, Reason.GARBAGE)
"""Why a device goes away in a way that the coordinator notices at once."""


class ProbedNetwork(SimulatedNetwork):
    """A network that calls a probe with every frame.

    Parameters are those of :class:`~edge.network.link.SimulatedNetwork`, and the probe.
    """

    def __init__(
        self,
        loop: VirtualClockLoop,
        down_bps: float,
        up_bps: float,
        *,
        tls: bool,
        congestion: Congestion,
        probe: Probe,
    ) -> None:
        super().__init__(loop, down_bps, up_bps, tls=tls, congestion=congestion)
        self._probe = probe

    def transmit(
        self,
        link: DeviceLink,
        conditions: Conditions,
        direction: Direction,
        message: AnyMessage,
        frame_bytes: int,
        payload_bytes: int,
    ) -> Delivery:
        """Send as any network does, and call the probe."""
        delivery = super().transmit(link, conditions, direction, message, frame_bytes, payload_bytes)
        self._probe.sent(delivery)
        return delivery


@dataclass(slots=True)
class Simulation:
    """What all rounds of a simulated run share."""

    seed: int
    run_id: str
    loop: VirtualClockLoop
    network: SimulatedNetwork
    fleet: Fleet
    workload: Workload
    compute: ComputeQueue
    coordinator: Coordinator
    retry: Retry
    keep_alive: bool
    faults: FaultsOfRun
    """What goes wrong on purpose."""
    secure_sums: Mapping[str, SecureSums | None]
    """How updates are summed in each phase, by its name; None: every device reports in the clear."""
    shields: Mapping[str, Shield | None]
    """Tests for reporting in the clear beside a secure sum, by name of the phase; empty without shielding."""
    privacy: RunPrivacy | None
    """What devices do to their updates before anybody sees them; None: nothing."""
    norm_bound: float | None
    """What devices clip their updates to, beside privacy; None: nothing."""
    partial_work: PartialWork | None
    """How many local steps devices take; None: all of them."""
    asked: Mapping[RoundKind, DeviceSums]
    """What devices report beside updates."""
    experience: Experience | None
    """Receives what arrives from each device; None where no policy uses it."""
    crashed: Callable[[str, BaseException], None]
    """Told of a bug: where, and what was raised."""
    crash: CrashHandler = lambda _fault, _down_s: None
    """Lets the coordinator crash because of a fault, for so many seconds."""
    probe: Probe | None = None
    """Sees what happens, beside the run."""
    traffic: WaveTraffic = field(init=False)
    """The frames of waves on the coordinator's link."""
    cohorts: dict[int, SimulatedCohort] = field(default_factory=dict)
    """Those with devices that are still at work, by round."""

    def __post_init__(self) -> None:
        """Let waves use the network."""
        self.traffic = WaveTraffic(self.loop, self.network)

    def begin(self, crash: CrashHandler) -> None:
        """Set the crashes of the coordinator that have a time of their own."""
        self.crash = crash
        for number, at_s, down_s in self.faults.crashes:
            self.loop.call_at(at_s, crash, number, down_s)

    def cohort(
        self,
        ids: Ids,
        round_number: int,
        phase: str,
        kernel: TrainingKernel,
        done: Callable[[RunningCohort], None],
    ) -> SimulatedCohort:
        """Return the cohort of a round; ``done`` is called once, when its last device has ended."""
        cohort = SimulatedCohort(self, ids, round_number, phase, kernel, done)
        self.cohorts[round_number] = cohort
        return cohort

    def catch_up(self) -> None:
        """Let everything that devices do before this moment have happened."""
        for cohort in list(self.cohorts.values()):
            if cohort.wave is not None:
                cohort.wave.catch_up()

    async def aside(self, measure: Callable[[], T]) -> T:
        """Return what ``measure`` does; no time passes meanwhile."""
        return measure()

    def forget(self, kernel: Kernel[ClientUpdate]) -> None:
        """Release ``kernel`` after its last use."""
        self.compute.forget(kernel)


class SimulationProbe(Probe):
    """A probe of a simulated run, given what its rounds share."""

    def begins(self, simulation: Simulation) -> None:
        """Record the simulation, before its first round."""


class SimulatedCohort:
    """The invited devices of one round; what they share, and how each of them ended.

    Parameters
    ----------
    simulation : what all rounds share.
    ids : int64 [n], the invited devices.
    round_number, phase : the round, and the phase of the scenario that it belongs to.
    kernel : computes the client updates of this round.
    done : called once, when the last device has ended its participation.
    """

    counts_kept_back = False
    foreseeable = True
    """Whether what its devices do may be worked out together; not where each is reported by itself."""
    fewest_in_wave = 8
    """Arrays of fewer cost more than devices that act one by one."""

    def __init__(
        self,
        simulation: Simulation,
        ids: Ids,
        round_number: int,
        phase: str,
        kernel: TrainingKernel,
        done: Callable[[SimulatedCohort], None],
    ) -> None:
        fleet = simulation.fleet
        asked = simulation.asked.get(RoundKind.of(round_number))
        task = simulation if asked is None else asked
        self._trains = asked is None
        self.sends_model = asked is None or asked.sends_model
        """Whether devices are sent the model."""
        self.workload = workload = task.workload
        """What devices do."""
        self._simulation = simulation
        self._done = done
        self.ids = ids
        self.devices: list[int] = ids.tolist()
        self.round_number = round_number
        self.kernel: Kernel[ClientUpdate] = kernel
        self.loop = simulation.loop
        self.network = simulation.network
        self.compute = simulation.compute
        self.examples = workload.examples(ids)
        self.work = workload.work(ids)
        self.work_share: Floats | None = None
        """Which part of its local steps each device takes; None: all take all."""
        if simulation.partial_work is not None and asked is None:
            self._limit_work(simulation.partial_work, kernel, phase)
        self.sums = sums = task.secure_sums[phase]
        """How the updates of the round are summed; None: every device reports in the clear."""
        self.secure_sum: RoundOfSums | None = None
        if sums is not None:
            self.secure_sum = sums.round(round_number)
            self.work = replace(self.work, memory_bytes=self.work.memory_bytes + sums.input_bytes)
        self.shield = shield = simulation.shields.get(phase) if asked is None else None
        """Who reports in the clear beside the sum; None: nobody."""
        shielded = None
        if shield is not None:
            shielded = shield.passes(ids)
            # Whatever comes out, a device does the same work and has room for either way: nothing but the
            # choice tells the judgement.
            room_bytes = self.work.memory_bytes + shield.table_bytes
            self.work = together(shield.work(ids), replace(self.work, memory_bytes=room_bytes))
        self.plan = fleet.plan(
            ids,
            self.loop.now_s,
            round_number,
            self.work,
            self.examples,
            cryptography=sums is not None,
            shielded=shielded,
        )
        self.faults = simulation.faults.strike(
            phase,
            Setting(
                seed=simulation.seed,
                fleet=fleet,
                ids=ids,
                round_number=round_number,
                now_s=self.loop.now_s,
                plan=self.plan,
                memory_bytes=self.work.memory_bytes,
            ),
        )
        """What goes wrong on purpose; None where nothing does."""
        self.conditions = fleet.link_conditions(ids)
        self.links: CohortLinks
        self.log = EventLog(by_slot=sums is None and not simulation.faults.crashing)
        self.record = self.log.extend
        self.outcome: Codes = np.full(len(ids), Outcome.UNREACHABLE.value, np.int8)
        self.stage: Codes = np.full(len(ids), Stage.INVITE.value, np.int8)
        self.reason: Codes = np.full(len(ids), Reason.UNAVAILABLE.value, np.int8)
        self.round: ActiveRound | None = None
        self.invited_s = 0.0
        self.arrives: npt.NDArray[np.bool_]
        """Whom the invitation reaches."""
        self.loss: Floats = np.full(len(ids), np.nan)
        """Local training loss of each device that computed an update."""
        self.protect: Callable[[int, ClientUpdate], ClientUpdate | Reason] | None = None
        if simulation.privacy is not None:
            self.protect = self._protect
        elif asked is not None:
            self.protect = finite_report
        elif simulation.norm_bound is not None:
            self.protect = self._bound
        elif shield is not None:
            self.protect = self._lay_out
        """Makes of an update, given its slot, what may be seen of it; None where everything may."""
        self.keep = workload.keep
        """Puts what a device keeps between rounds into its storage; None: devices keep nothing."""
        self._clipped = np.zeros(len(ids), dtype=np.bool_)
        self.clipped: npt.NDArray[np.bool_] | None = self._clipped
        """Whose update was longer than the privacy of the run allows."""
        self._applied: list[int] = []
        """Slots whose reports the coordinator has taken."""
        self._open = 0
        self.wave: Wave | None = None
        """The devices that are computed as arrays, while they are at work; None: there are none."""
        self._at_work: dict[int, SimulatedDevice] = {}
        """The devices that are not done, by slot; only where the coordinator may crash."""
        self._crashed = False
        fleet.busy[ids] = True

    def _limit_work(self, partial_work: PartialWork, kernel: TrainingKernel, phase: str) -> None:
        """Let each device take only the steps that its deadline allows."""
        workload = self.workload
        steps = partial_work.steps(self.ids, self.round_number, phase)
        full = workload.local_steps(self.ids)
        assert full is not None, "the scenario was checked"
        self.work_share = steps / np.maximum(full, 1)
        self.work = workload.work(self.ids, steps)
        self.kernel = kernel.limited(self.ids, steps)

    # -- invitation ------------------------------------------------------------------------------------

    def invite(self, round_: ActiveRound, invitation: Broadcast) -> None:
        """Send the invitation to every device of the cohort."""
        self.round = round_
        simulation = self._simulation
        now_s = self.invited_s = self.loop.now_s
        connected = simulation.fleet.connected[self.ids]
        self.links = CohortLinks(
            stream_key(simulation.seed, "link", "frames"),
            self.ids,
            self.round_number,
            simulation.fleet.link_specs(self.ids),
            frame_sizes(
                simulation.run_id,
                self.round_number,
                self.ids,
                invitation.frame_bytes,
                np.where(self.plan.bare, round_.whole_model.frame_bytes, round_.model.frame_bytes),
                self.examples,
                None if self.secure_sum else self.workload.upload_spec(self.examples),
            ),
            self.network.handshakes,
            connected,
        )
        delay_s, reaches = connect_delays(simulation.retry, self.plan, connected)
        links, prepared = self.links, self.links.prepared
        handshake_s = np.array(links.handshake_s)
        reaches &= np.isfinite(handshake_s)
        first_byte_s = now_s + links.specs.promotion_s + handshake_s + delay_s
        arrival_s = first_byte_s + prepared.transmission_s[0] + prepared.latency_s[0]
        reachable = self.plan.reachable
        arrives = reachable & reaches
        plain = arrives & prepared.plain[0]
        retransmitted_bytes = np.zeros(len(self.ids), np.int64)
        lossy = np.flatnonzero(arrives & ~plain)
        seconds, retransmitted_bytes[lossy] = lossy_times(
            self.network,
            links,
            self.conditions,
            slots=lossy,
            number=0,
            direction=Direction.DOWN,
            frame_bytes=np.full(len(lossy), invitation.frame_bytes, np.int64),
            first_byte_s=first_byte_s[lossy],
        )
        plain[lossy] = np.isfinite(seconds)
        arrival_s[lossy] = first_byte_s[lossy] + seconds + prepared.latency_s[0][lossy]
        arrivals: list[float] = arrival_s.tolist()
        if self.faults is not None:
            if self.faults.links:
                from edge.network.disturbances import Disturbances  # noqa: PLC0415 - most runs do without

                links.disturbances = Disturbances(self.faults.links, self.faults.note)
            plain[self.faults.meeting_invitations(now_s, arrivals)] = False
        if simulation.faults.crashing:
            # A crash breaks off the invitations that are on their way.
            plain[:] = False
        followed = arrives & ~plain
        sent = SentInvitations(
            invitation, ~followed, arrives, arrival_s, self.network.handshake_bytes, retransmitted_bytes
        )
        rows = invitation_rows(self.ids, now_s, self.plan, links, simulation.retry, sent)
        self.log.extend(rows.tobytes())
        self.log.mark()
        self.reason[reachable & ~reaches] = Reason.RETRIES_EXHAUSTED.value
        simulation.fleet.busy[self.ids[~arrives]] = False
        if simulation.keep_alive:
            simulation.fleet.connected[self.ids] = arrives
        message = invitation.message
        assert isinstance(message, Invite)
        self._open = int(np.count_nonzero(arrives)) + 1
        self.arrives = arrives
        alone = arrives & ~self._begin_wave(round_, message, plain, arrival_s)
        plain &= alone
        self.conditions.prepare(np.flatnonzero(alone), now_s)
        self._foresee(self.ids[alone & self.plan.computes].tolist())
        if simulation.probe is not None:
            invited = self.ids[arrives].tolist()
            simulation.probe.invited(self.round_number, invited, invitation.frame_bytes, now_s)
        for slot in np.flatnonzero(plain).tolist():
            device = SimulatedDevice(self, self.devices[slot], slot)
            self._keep(device)
            device.expect(message, arrivals[slot])
        for slot in np.flatnonzero(followed).tolist():
            device = SimulatedDevice(self, self.devices[slot], slot)
            self._keep(device)
            self.loop.call_later(
                float(delay_s[slot]), device.invite, message, invitation.frame_bytes, invitation.payload_bytes
            )
            if self.faults is not None:
                patience_s = RECEIPT_PATIENCE * message.report_within_s
                self.loop.call_later(patience_s, device.give_up_invitation)
        # The cohort itself is open until the invitations are out, lest it end within this loop.
        self.loop.call_soon(self._closed_one)

    def _begin_wave(self, round_: ActiveRound, message: Invite, plain: Bools, arrival_s: Floats) -> Bools:
        """Let the devices that meet nothing unforeseen act together as a wave; return who they are, bool [n].

        ``plain`` bool [n] are those whose invitations need no following; they arrive at ``arrival_s``.
        """
        simulation = self._simulation
        chosen = np.zeros(len(self.ids), np.bool_)
        if not (
            self.foreseeable
            and type(self.network) is SimulatedNetwork
            and self.secure_sum is None
            and simulation.probe is None
            and not simulation.faults.crashing
            and (self.faults is None or self.faults.leave_frames)
        ):
            return chosen
        chosen |= plain
        if self.faults is not None:
            chosen[self.faults.slots()] = False
        slots = np.flatnonzero(chosen)
        chosen[:] = False
        if len(slots) < self.fewest_in_wave:
            return chosen
        specs = self.workload.upload_spec(self.examples)
        payload = sum((spec.nbytes() for spec in specs), np.zeros(len(self.ids), np.int64))
        model, whole = round_.model.payload_bytes, round_.whole_model.payload_bytes
        shared = RoundOfDevices(
            self.network,
            self.links,
            self.conditions,
            self.plan,
            self.ids,
            message.run_id,
            self.round_number,
            message.report_within_s,
            np.where(self.plan.bare, whole, model),
            payload,
        )
        lines = Timelines(shared, slots, arrival_s[slots])
        if lines.odd.any():
            lines.keep(np.flatnonzero(~lines.odd))
        if len(lines.slots):
            wave = Wave(self, round_, lines, simulation.traffic)
            if wave.begin(others=int(np.count_nonzero(self.arrives)) > len(lines.slots)):
                chosen[lines.slots] = True
                self._open += 1 - len(lines.slots)
                self.wave = round_.wave = wave
        return chosen

    def wave_ended(self, endings: Endings, applied: Ids) -> None:
        """Take over how the devices of the wave have ended: they are all done."""
        slots = endings.slots
        self.outcome[slots], self.stage[slots] = endings.outcome, endings.stage
        self.reason[slots] = endings.reason
        self._applied += applied.tolist()
        assert self.round is not None
        self.wave = self.round.wave = None
        self._closed_one()

    @property
    def fleet(self) -> Fleet:
        """The fleet of the run."""
        return self._simulation.fleet

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the run."""
        return self._simulation.coordinator

    @property
    def experience(self) -> Experience | None:
        """Receives what arrives from each device; None where no policy uses it, or it is no update."""
        return self._simulation.experience if self._trains else None

    def _foresee(self, clients: list[int]) -> None:
        """Announce who will compute, so that they can be computed together."""
        self.compute.foresee(self.kernel, clients)

    def _keep(self, device: SimulatedDevice) -> None:
        """Register a device for crashes, until it is done."""
        if self._simulation.faults.crashing:
            self._at_work[device.slot] = device

    # -- what devices tell -----------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        """Hand a frame to the coordinator and record what it made of it."""
        device = cast(SimulatedDevice, delivery.link)
        if self.wave is not None:
            self.wave.catch_up()
        self._open += 1  # the answer may end the last device, but not the round before this record
        faults = self.faults
        if faults is not None and (faults.handlings or faults.crashes):
            now_s, stage = self.loop.now_s, KINDS[delivery.message.__class__].stage
            for crash in faults.crashes[:]:
                if crash.stage is stage:
                    faults.crashes.remove(crash)
                    self._simulation.crash(crash.fault, crash.down_s)
            handled_s = faults.handled_s(device.slot, stage, now_s)
            if handled_s > now_s and not self._crashed:
                self.loop.call_at(handled_s, self._handle, device, delivery)
                return
        self._handle(device, delivery)

    def crash(self) -> None:
        """Let every device at work lose its connection: the coordinator has crashed."""
        self._crashed = True
        self._open += 1
        for _, device in sorted(self._at_work.items()):
            device.break_off(Reason.COORDINATOR_CRASH)
        self._closed_one()

    def _handle(self, device: SimulatedDevice, delivery: Delivery) -> None:
        coordinator = self._simulation.coordinator
        if self._crashed:
            # It had come the whole way; what it said is lost with the memory of the coordinator, but seen.
            if delivery.message.__class__ in BRING_UPDATES and self.round is not None:
                self.round.arrived.add(device.device)
            device.log_frame(delivery, _DISCARDED, Reason.COORDINATOR_CRASH)
            self._closed_one()
            return
        if self.faults is not None and self.faults.corrupts(delivery):
            reason = coordinator.garbage_received(device, self.round_number)
        else:
            reason = coordinator.frame_received(device, delivery.message)
        probe = self._simulation.probe
        if probe is not None:
            probe.judged(self.round_number, device.device, delivery.message, reason, self.loop.now_s)
        device.log_frame(delivery, _DISCARDED if reason else _DELIVERED, reason)
        kind = type(delivery.message)
        experience = self.experience
        if kind in UPDATES and experience is not None and delivery.message.round_number == self.round_number:
            waited_s = self.loop.now_s - self.invited_s
            experience.learn(device.device, delivery.message, reason, waited_s)
        if reason is Reason.NONE:
            if kind is Report:
                self._applied.append(device.slot)
            elif kind is MaskedInput or kind is EncryptedInput:
                assert self.secure_sum is not None
                self.secure_sum.arrived(device.device)
        if self.wave is not None:
            self.wave.rearm()
        self._closed_one()

    def _protect(self, slot: int, update: ClientUpdate) -> ClientUpdate | Reason:
        """Return the visible part of an update, and record whether it was clipped; or what is wrong."""
        privacy = self._simulation.privacy
        assert privacy is not None
        if not self._trains:
            seen = finite_report(slot, update)
            if isinstance(seen, Reason):
                return seen
        device = self.devices[slot]
        entropy = privacy.entropy(device, self.round_number)
        try:
            protected, self._clipped[slot] = privacy.protection(device).apply(update, entropy)
        except NotFiniteError:
            return Reason.NOT_FINITE
        return protected

    def _bound(self, slot: int, update: ClientUpdate) -> ClientUpdate | Reason:
        """Return a device's update within the norm bound, as the device sends it; or what is wrong."""
        norm_bound = self._simulation.norm_bound
        assert norm_bound is not None
        try:
            clipped, self._clipped[slot] = clipped_update(update, norm_bound)
        except NotFiniteError:
            return Reason.NOT_FINITE
        return clipped if self.shield is None else self._lay_out(slot, clipped)

    def _lay_out(self, slot: int, update: ClientUpdate) -> ClientUpdate:
        """Return the update as it is reported in the clear, or as the sum takes it."""
        assert self.shield is not None
        return update if self.plan.shielded[slot] else self.shield.summed(update)

    def crashed(self, device: SimulatedDevice, error: Exception) -> None:
        """Handle a bug in an actor: the run cannot go on."""
        self._simulation.crashed(f"in the actor of device {device.device}", error)

    def answers(self, device: int) -> None:
        """Note in the device's own memory that it answers the round."""
        self._simulation.fleet.answered.add(device, self.round_number)

    def finished(self, device: SimulatedDevice) -> None:
        """Respond when ``device`` has ended its participation."""
        slot = device.slot
        assert device.outcome is not None
        self._at_work.pop(slot, None)
        self.outcome[slot] = device.outcome
        self.stage[slot] = -1 if device.outcome is Outcome.COMPLETED else device.stage
        self.reason[slot] = device.reason
        self.loss[slot] = device.loss
        fleet = self._simulation.fleet
        fleet.busy[device.device] = False
        if self.sends_model and device.stage is not _INVITE and device.stage is not _DOWNLOAD:
            fleet.bare[device.device] = False  # what never changes has arrived, and is kept
        if device.outcome is Outcome.DROPPED or not device.connected:
            fleet.connected[device.device] = False
        if device.reason in _NOTICED and device.outcome is Outcome.DROPPED:
            self._simulation.coordinator.lost(self.round_number, device.device)
        self._closed_one()

    def close(self) -> None:
        """Settle how the devices have ended: nothing of theirs is on its way any more."""
        assert self.round is not None
        machine = self.round.machine
        if isinstance(machine, SecureRoundMachine):
            self._applied += np.flatnonzero(np.isin(self.ids, list(machine.summed))).tolist()
        # Whoever went away before its receipt does not know it, but its report counts.
        self.outcome[self._applied] = Outcome.COMPLETED
        self.stage[self._applied] = -1
        self.reason[self._applied] = Reason.NONE

    def _closed_one(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._simulation.cohorts.pop(self.round_number, None)
            self._done(self)
