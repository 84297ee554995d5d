"""What real devices of this process have and can do: their own data, from the scenario's data source.

Each device works with its own ratings alone, and with the model that it was sent. The arrays behind them are
shared by the devices of a process, which is no business of theirs.
"""

from __future__ import annotations

import bisect

import numpy as np

from coordinator.engine.assembly import Assembly
from coordinator.engine.device_sums import finite_report
from coordinator.engine.secure_sums import RoundOfSums, SecureSums
from coordinator.scenario.load import LoadedScenario
from edge.core.rng import hashed_bits_scalar, stream_key
from edge.core.vocabulary import Reason, RoundKind, finished_rounds
from edge.crypto.entropy import SecretSource, SystemEntropy
from edge.crypto.errors import NotFiniteError
from edge.device.compute_model import CryptoCosts
from edge.device.participation import UNLIMITED
from edge.learning.base import State
from edge.learning.updates import ClientUpdate
from edge.network.shaping import LinkShape, ShapedLink
from edge.privacy.protection import clipped_update
from edge.secagg.participant import CryptoWork, Participant
from edge.wire.messages import Model


class LocalWorks:
    """The devices of a process.

    Parameters
    ----------
    loaded, assembly : the scenario, and what was made of it here.
    slow : whether devices take as long as their profiles say, if this host is faster.
    """

    def __init__(self, loaded: LoadedScenario, assembly: Assembly, *, slow: bool) -> None:
        self.scenario = loaded.scenario
        self.assembly = assembly
        self.slow = slow
        count = loaded.scenario.answers_count
        self.rounds = UNLIMITED if count is None else count
        """Most rounds, evaluations and queries of the run."""
        self.asked = assembly.asked()
        self.fixed = frozenset(assembly.workload.algorithm.fixed())
        self._sums_of_round: tuple[int, RoundOfSums] | None = None
        if assembly.privacy is not None:
            assembly.privacy.draw_from(SecretSource.SYSTEM)

    def of(self, device: int) -> DeviceWork:
        """Return what one device has and can do."""
        return DeviceWork(self, device)

    def link(self, device: int) -> ShapedLink:
        """Return the link of a device, by its network's profile and with the draws of the simulation."""
        ids = np.array([device])
        fleet, connection = self.assembly.fleet, self.scenario.connection
        specs = fleet.link_specs(ids)
        shape = LinkShape(
            down_bps=float(specs.down_bps[0]),
            up_bps=float(specs.up_bps[0]),
            rtt_s=float(specs.rtt_s[0]),
            loss=float(specs.loss[0]),
            jitter_s=float(specs.jitter_s[0]),
            promotion_s=float(specs.promotion_s[0]),
            tail_s=float(specs.tail_s[0]),
            flaky=bool(specs.flaky[0]),
            congestion=connection.congestion,
            handshakes=connection.handshakes,
        )
        key = hashed_bits_scalar(stream_key(self.scenario.seed, "link", "frames"), device)
        return ShapedLink(shape, fleet.link_conditions(ids), key)

    def phase(self, round_number: int) -> str:
        """Return the phase that a round belongs to; phases are measured in rounds on the real clock.

        An evaluation belongs to that of the round before it.
        """
        return self.scenario.phase_at(max(finished_rounds(round_number) - 1, 0), 0.0)

    def sums(self, round_number: int) -> SecureSums | None:
        """Return how the reports of a round are summed; None: in the clear."""
        asked = self.asked.get(RoundKind.of(round_number))
        task = self.assembly if asked is None else asked
        return task.secure_sums[self.phase(round_number)]

    def patience_s(self, round_number: int) -> float:
        """Return how much longer than for a report a device waits for a secure sum, seconds."""
        sums = self.sums(round_number)
        if sums is None:
            return 0.0
        found = self._sums_of_round
        if found is None or found[0] != round_number:
            found = self._sums_of_round = (round_number, sums.round(round_number, devices_elsewhere=True))
        return found[1].patience_s


class DeviceWork:
    """One device; implements :class:`~edge.device.real.LocalWork`."""

    def __init__(self, works: LocalWorks, device: int) -> None:
        self._works = works
        self._device = device
        self._ids = np.array([device], dtype=np.int64)
        self._bare = bool(works.fixed)
        fleet = works.assembly.fleet
        self._crypto: CryptoCosts | None = None
        if works.slow:
            self._crypto = fleet.crypto_specs.take(fleet.device_class[self._ids]).rows()[0]

    def obstacle(self) -> Reason:
        """Say that nothing keeps the device from taking part: it is here, and on mains power."""
        return Reason.NONE

    def bare(self) -> bool:
        """Say whether the device lacks what never changes and is sent only once."""
        return self._bare

    def update(self, model: Model) -> ClientUpdate | Reason:
        """Compute the update from the device's own data and the model that it was sent."""
        assembly = self._works.assembly
        workload = assembly.workload
        if self._works.fixed <= model.arrays.keys():
            self._bare = False
        if not int(workload.examples(self._ids)[0]):
            return Reason.NO_DATA
        state = dict(self._changing(model).arrays)
        if RoundKind.of(model.round_number) is not RoundKind.TRAINING:
            return self._summed(model.round_number, state)
        with np.errstate(over="ignore", invalid="ignore"):  # of a model that has run away
            (result,) = workload.training(state, model.round_number)(self._ids)()
        update: ClientUpdate = result
        if workload.keep is not None and update.local is not None:
            workload.keep(self._device, update.local)
            update = update._replace(local=None)
        if assembly.privacy is not None:
            try:
                update, _ = assembly.privacy.protection(self._device).apply(update, SystemEntropy())
            except NotFiniteError:
                return Reason.NOT_FINITE
            return update
        norm_bound = self._works.scenario.aggregation.norm_bound
        if norm_bound is not None:
            try:
                update, _ = clipped_update(update, norm_bound)
            except NotFiniteError:
                return Reason.NOT_FINITE
        if (shield := assembly.shields.get(self._phase(model))) is not None and not self._shielded(model):
            update = shield.summed(update)
        return update

    def _summed(self, round_number: int, state: State) -> ClientUpdate | Reason:
        """Return what the device reports where no update is asked for."""
        assembly, asked = self._works.assembly, self._works.asked.get(RoundKind.of(round_number))
        if asked is None:
            return Reason.NO_DATA
        with np.errstate(over="ignore", invalid="ignore"):  # of a model that has run away
            (result,) = asked.workload.training(state, round_number)(self._ids)()
        report = finite_report(self._device, result)
        if isinstance(report, Reason) or assembly.privacy is None:
            return report
        protected, _ = assembly.privacy.protection(self._device).apply(report, SystemEntropy())
        return protected

    @property
    def rounds(self) -> int:
        """Most rounds, evaluations and queries of the run."""
        return self._works.rounds

    def epsilon(self, rounds: int) -> float | None:
        """Return the ε of the device after so many rounds; None: it adds no noise of its own."""
        privacy = self._works.assembly.privacy
        return None if privacy is None else privacy.own_epsilon(self._device, rounds)

    def rounds_within(self, epsilon: float) -> int | None:
        """Return how many rounds the device answers for no more than ``epsilon``; None as above."""
        if self.epsilon(0) is None:
            return None
        return bisect.bisect_right(range(1, self.rounds + 1), epsilon, key=lambda n: self.epsilon(n) or 0.0)

    def participant(self, model: Model) -> Participant | None:
        """Return the device's part in the secure sum of this round, with secrets of its own."""
        sums = self._works.sums(model.round_number)
        if sums is None or self._shielded(model):
            return None
        return sums.part_of(self._device, self._changing(model), SystemEntropy())

    def patience_s(self, round_number: int) -> float:
        """Return how much longer than for a report the device waits until a secure sum is made, seconds."""
        return self._works.patience_s(round_number)

    def compute_s(self, round_number: int) -> float:
        """Return how long the update takes by the device's profile, if it is to be slow, seconds."""
        if not self._works.slow:
            return 0.0
        assembly, asked = self._works.assembly, self._works.asked.get(RoundKind.of(round_number))
        work = (assembly if asked is None else asked).workload.work(self._ids)
        return float(assembly.fleet.compute_seconds(self._ids, work, round_number)[0])

    def crypto_s(self, work: CryptoWork) -> float:
        """Return how long cryptography takes by the device's profile, if it is to be slow, seconds."""
        return 0.0 if self._crypto is None else self._crypto.seconds(work)

    def _phase(self, model: Model) -> str:
        return self._works.phase(model.round_number)

    def _shielded(self, model: Model) -> bool:
        if RoundKind.of(model.round_number) is not RoundKind.TRAINING:
            return False
        shield = self._works.assembly.shields.get(self._phase(model))
        return shield is not None and bool(shield.passes(self._ids)[0])

    def _changing(self, model: Model) -> Model:
        """Return the model without what never changes: what all devices of the round were sent."""
        fixed = self._works.fixed
        return model._replace(
            arrays={name: array for name, array in model.arrays.items() if name not in fixed}
        )
