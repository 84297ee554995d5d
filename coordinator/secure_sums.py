"""Secure sums of a run: what is agreed, what a round makes of it, and what came out.

A :class:`SecureSums` belongs to a run and gives a :class:`RoundOfSums` for each round, which is both ends at
once: the machine of the coordinator, and the part of each simulated device. They meet in frames alone; that
both are here lets the oracle see the inputs.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coordinator.scenario.secure_section import StageDeadlines
from coordinator.secagg.aggregation import SecureAggregation
from coordinator.secagg.oracle import Oracle
from coordinator.secagg.server import SecAggServer
from edge.codec import encode
from edge.learning.base import Aggregate, ArraySpec
from edge.messages import Model
from edge.rng import stream_bytes
from edge.secagg.client import SecAggClient
from edge.secagg.config import SecAggConfig
from edge.secagg.contribution import EXAMPLES, LOSS
from edge.secagg.cryptography import Cryptography
from edge.secagg.entropy import SeededEntropy
from edge.secagg.inputs import Sums
from edge.secagg.keys import Identity
from edge.secagg.masking import MaskingParticipant
from edge.secagg.participant import Participant
from edge.secagg.states import CoordinatorState, Mode

_DRAWS_OF_ROSTER = 0
"""The round whose entropy makes a device's identity; rounds count from 1."""


def lengths(specs: Sequence[ArraySpec]) -> Iterator[tuple[str, int]]:
    """Yield name and number of elements of each array of a dense update, from specs of one client."""
    for spec in specs:
        yield spec.name, int(spec.rows[0]) * int(np.prod(spec.row_shape, dtype=np.int64))


def aggregate_of(sums: Sums, specs: Sequence[ArraySpec]) -> Aggregate:
    """Return a decoded sum as what a method's server update takes; ``specs`` are those of one client."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for spec in specs:
        shape = (int(spec.rows[0]), *spec.row_shape)
        arrays[spec.name] = sums.reals[spec.name].reshape(shape).astype(spec.dtype)
    weight = float(sums.weight)
    examples = int(sums.counts[EXAMPLES][0]) if EXAMPLES in sums.counts else 0
    loss = float(sums.reals[LOSS][0]) / weight if LOSS in sums.reals and weight > 0 else float("nan")
    return Aggregate(arrays, weight, sums.contributors, examples, loss)


@dataclass(frozen=True, slots=True)
class SumFacts:
    """What there is to tell of a round's secure sum, beside its stages.

    Attributes
    ----------
    failure : name of the error that ended it, or None.
    neighbours, threshold : of its graph; None without one.
    sum_error : largest absolute difference from the sum in the clear, in units of the ring; None when there
        is no sum, or none in a ring.
    double_reveals : devices of which both secrets could be rebuilt from what was released.
    clipped_fraction : share of the elements of the inputs in the sum that were clipped; None without a sum.
    """

    failure: str | None
    neighbours: int | None
    threshold: int | None
    sum_error: int | None
    double_reveals: int
    clipped_fraction: float | None


class RoundOfSums(abc.ABC):
    """One round: implements what the coordinator's actor and the simulated devices ask for."""

    def __init__(self, deadlines: StageDeadlines) -> None:
        self._deadlines = deadlines
        self.patience_s = 2.0 * deadlines.total_s
        """How much longer than for a report a device waits until the sum is made, seconds."""

    def deadline_s(self, stage: CoordinatorState) -> float:
        """Return how long a stage may take, seconds; of all stages but the first."""
        return self._deadlines.of(stage)

    @abc.abstractmethod
    def start(self, model: Model, invited: list[int], target: int) -> SecureAggregation:
        """Return the machine that makes the sum over those of ``invited`` that come, ``target`` at most."""

    @abc.abstractmethod
    def participant(self, device: int, model: Model) -> Participant:
        """Return the part of ``device``, which was given ``model``."""

    @abc.abstractmethod
    def arrived(self, device: int) -> None:
        """Note that the coordinator took the input of ``device``."""

    @abc.abstractmethod
    def facts(self) -> SumFacts:
        """Return what there is to tell, once the round is over."""


class SecureSums(abc.ABC):
    """How the updates of a run are summed."""

    specs: Sequence[ArraySpec]
    """The arrays of an update, as of one client."""
    input_bytes: int
    """Memory of a device's input, beside the update."""

    @abc.abstractmethod
    def round(self, round_number: int) -> RoundOfSums:
        """Return a round."""


class SeededRoster(Mapping[int, bytes]):
    """The identities of a fleet, made from the run's seed when they are first asked for.

    Parameters
    ----------
    key : 32 bytes.
    devices : how many there are.
    """

    def __init__(self, key: bytes, devices: int) -> None:
        self._key = key
        self._devices = devices
        self._identities: dict[int, Identity] = {}

    def identity(self, device: int) -> Identity:
        """Return the identity of a device, which only it should ever hold."""
        found = self._identities.get(device)
        if found is None:
            if not 0 <= device < self._devices:
                raise KeyError(device)
            entropy = SeededEntropy(self._key, device, _DRAWS_OF_ROSTER)
            found = self._identities[device] = Identity.generate(entropy)
        return found

    def __getitem__(self, device: int) -> bytes:
        """Return the public identity of a device."""
        return self.identity(device).public

    def __contains__(self, device: object) -> bool:
        return isinstance(device, int) and 0 <= device < self._devices

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._devices))

    def __len__(self) -> int:
        return self._devices


class MaskedSums(SecureSums):
    """Sums by double masking.

    Parameters
    ----------
    config : what is agreed.
    specs : the arrays of an update, as of one client.
    deadlines : of the stages.
    crypto : where cryptography is done.
    run_id, seed : of the run; all secrets follow from the seed.
    devices : how many the fleet has.
    """

    def __init__(
        self,
        config: SecAggConfig,
        specs: Sequence[ArraySpec],
        deadlines: StageDeadlines,
        crypto: Cryptography,
        *,
        run_id: str,
        seed: int,
        devices: int,
    ) -> None:
        self.config = config
        self.specs = specs
        self.deadlines = deadlines
        self.crypto = crypto
        self.run_id = run_id
        self.input_bytes = config.length * config.bits // 8
        self.secrets_key = stream_bytes(seed, "secure-aggregation", "secrets")
        self.rounding_key = stream_bytes(seed, "secure-aggregation", "rounding")
        active = config.mode is Mode.ACTIVE
        identities_key = stream_bytes(seed, "secure-aggregation", "identities")
        self.roster = SeededRoster(identities_key, devices) if active else None

    def round(self, round_number: int) -> RoundOfSums:
        """Return a round."""
        return _RoundOfMaskedSums(self, round_number)


class _RoundOfMaskedSums(RoundOfSums):
    def __init__(self, sums: MaskedSums, round_number: int) -> None:
        super().__init__(sums.deadlines)
        self._sums = sums
        self._round_number = round_number
        self._oracle = Oracle(sums.config)
        self._participants: dict[int, MaskingParticipant] = {}
        self._model: Model | None = None
        self._model_hash = b""
        self._server: SecAggServer | None = None

    def start(self, model: Model, invited: list[int], target: int) -> SecureAggregation:
        """Return the coordinator's machine."""
        sums = self._sums
        self._server = SecAggServer(
            sums.config,
            run_id=sums.run_id,
            round_number=self._round_number,
            model_hash=self._hash_of(model),
            devices=invited,
            roster=sums.roster,
            target=target,
            crypto=sums.crypto,
        )
        return self._server

    def _hash_of(self, model: Model) -> bytes:
        # All simulated devices are given the one object.
        if model is not self._model:
            self._model, self._model_hash = model, hashlib.sha256(encode(model)).digest()
        return self._model_hash

    def participant(self, device: int, model: Model) -> Participant:
        """Return the part of ``device``."""
        sums, number = self._sums, self._round_number
        client = SecAggClient(
            sums.config,
            device=device,
            run_id=sums.run_id,
            round_number=number,
            model_hash=self._hash_of(model),
            entropy=SeededEntropy(sums.secrets_key, device, number),
            identity=None if sums.roster is None else sums.roster.identity(device),
            roster=sums.roster,
            rounding=SeededEntropy(sums.rounding_key, device, number),
            crypto=sums.crypto,
        )
        participant = MaskingParticipant(sums.config, client, self._oracle)
        self._participants[device] = participant
        return participant

    def arrived(self, device: int) -> None:
        """Note that the coordinator took the input of ``device``."""
        self._oracle.arrived(device)

    def facts(self) -> SumFacts:
        """Return what there is to tell, once the round is over."""
        server = self._server
        assert server is not None
        parameters, result = server.parameters, server.result
        sum_error: int | None = None
        clipped_fraction: float | None = None
        if result is not None:
            survivors = result.survivors.tolist()
            sum_error = self._oracle.sum_error(result.total, survivors)
            clipped = sum(self._participants[device].client.clipped for device in survivors)
            clipped_fraction = clipped / (len(survivors) * self._sums.config.length)
        return SumFacts(
            failure=None if server.failure is None else server.failure.reason,
            neighbours=None if parameters is None else parameters.k,
            threshold=None if parameters is None else parameters.t,
            sum_error=sum_error,
            double_reveals=0 if parameters is None else self._oracle.double_reveals(parameters.t),
            clipped_fraction=clipped_fraction,
        )
