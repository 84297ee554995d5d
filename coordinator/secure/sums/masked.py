"""Sums by double masking, with real or modelled cryptography."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from coordinator.engine.facts import SumFacts
from coordinator.engine.secure_sums import RoundOfSums, SecureAggregation, SecureSums, arrays_of
from coordinator.scenario.secure_section import StageDeadlines
from coordinator.secure.secagg.oracle import Oracle
from coordinator.secure.secagg.server import SecAggServer
from edge.core.errors import LocalProtocolError
from edge.core.rng import stream_bytes
from edge.crypto.entropy import Entropy, SeededEntropy
from edge.crypto.keys import Identity
from edge.crypto.ring import RingVector
from edge.secagg.client import SecAggClient
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.cryptography import Cryptography
from edge.secagg.masking import MaskingParticipant
from edge.secagg.participant import Participant
from edge.secagg.states import Mode
from edge.wire.codec import encode
from edge.wire.messages import Model

_DRAWS_OF_ROSTER = 0
"""The round whose entropy makes a device's identity; rounds count from 1."""


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
    deadlines : of the stages.
    crypto : where cryptography is done.
    seed : of the run; all secrets of simulated devices follow from it.
    devices : how many the fleet has.
    quorum : how many must contribute together with those that report in the clear; 0 where nobody does.
    """

    def __init__(
        self,
        config: SecAggConfig,
        deadlines: StageDeadlines,
        crypto: Cryptography,
        *,
        seed: int,
        devices: int,
        quorum: int = 0,
    ) -> None:
        self.quorum = quorum
        self.config = config
        self.deadlines = deadlines
        self.crypto = crypto
        self.input_bytes = config.length * config.bits // 8
        self.secrets_key = stream_bytes(seed, "secure-aggregation", "secrets")
        self.rounding_key = stream_bytes(seed, "secure-aggregation", "rounding")
        active = config.mode is Mode.ACTIVE
        identities_key = stream_bytes(seed, "secure-aggregation", "identities")
        self.roster: Mapping[int, bytes] | None = None
        self._identity_of: Callable[[int], Identity] | None = None
        self._seeded = active
        """Whether identities are those of a simulation, which follow from the seed."""
        if active:
            seeded = SeededRoster(identities_key, devices)
            self.roster, self._identity_of = seeded, seeded.identity

    def enrol(self, roster: Mapping[int, bytes], identity_of: Callable[[int], Identity] | None) -> None:
        """Take the identities of real devices in place of those of a simulation; in active mode only.

        Parameters
        ----------
        roster : the public identity of every device.
        identity_of : gives the identity of a device of this process; None where there are none.
        """
        if self.config.mode is not Mode.ACTIVE:
            raise LocalProtocolError("only the active mode has identities")
        self.roster, self._identity_of, self._seeded = roster, identity_of, False

    def _expect_real_identities(self) -> None:
        if self._seeded:
            raise LocalProtocolError(
                "real devices in active mode have to be enrolled: no secret is in the seed"
            )

    @property
    def masked(self) -> SecAggConfig | None:
        """What is agreed for masks."""
        return self.config

    @property
    def rounding_norm(self) -> float:
        """Stochastic rounding moves each element by less than one unit of the ring."""
        scales = {name: quantizer.scale for name, quantizer in self.config.quantizers.items()}
        return math.sqrt(sum(part.length / scales[part.name] ** 2 for part in arrays_of(self.config.parts)))

    def round(self, round_number: int, *, devices_elsewhere: bool = False) -> RoundOfSums:
        """Return a round; with ``devices_elsewhere`` the coordinator's end only, which sees no inputs."""
        if devices_elsewhere:
            self._expect_real_identities()
        return _RoundOfMaskedSums(self, round_number, None if devices_elsewhere else Oracle(self.config))

    def part_of(self, device: int, model: Model, entropy: Entropy) -> Participant:
        """Return the part of a device that is by itself; ``entropy`` is where its secrets come from.

        How it rounds is no secret and follows from the seed, unless noise is drawn with it.
        """
        self._expect_real_identities()
        seeded = SeededEntropy(self.rounding_key, device, model.round_number)
        noisy = any(isinstance(part, RealPart) and part.noise_sd > 0 for part in self.config.parts)
        model_hash = hashlib.sha256(encode(model)).digest()
        client = self.client(device, model, model_hash, entropy, entropy if noisy else seeded, self.crypto)
        return MaskingParticipant(self.config, client)

    def client(
        self,
        device: int,
        model: Model,
        model_hash: bytes,
        entropy: Entropy,
        rounding: Entropy,
        crypto: Cryptography,
    ) -> SecAggClient:
        """Return the machine of ``device`` in the round of ``model``; secrets come from ``entropy``."""
        return SecAggClient(
            self.config,
            device=device,
            run_id=model.run_id,
            round_number=model.round_number,
            model_hash=model_hash,
            entropy=entropy,
            identity=None if self._identity_of is None else self._identity_of(device),
            roster=self.roster,
            rounding=rounding,
            crypto=crypto,
        )


class _RoundOfMaskedSums(RoundOfSums):
    def __init__(self, sums: MaskedSums, round_number: int, oracle: Oracle | None) -> None:
        super().__init__(sums.deadlines)
        self._sums = sums
        self._round_number = round_number
        self._oracle = oracle
        """Sees the inputs, where devices are simulated here."""
        self._crypto = sums.crypto if oracle is None else sums.crypto.of_simulated_round()
        self._participants: dict[int, MaskingParticipant] = {}
        self._model: Model | None = None
        self._model_hash = b""
        self._server: SecAggServer | None = None

    def start(self, model: Model, invited: list[int], target: int) -> SecureAggregation:
        """Return the coordinator's machine."""
        sums = self._sums
        self._model, self._model_hash = model, hashlib.sha256(encode(model)).digest()
        self._server = SecAggServer(
            sums.config,
            run_id=model.run_id,
            round_number=self._round_number,
            model_hash=self._model_hash,
            devices=invited,
            roster=sums.roster,
            target=target,
            quorum=sums.quorum,
            crypto=self._crypto,
        )
        return self._server

    def _hash_of(self, model: Model) -> bytes:
        """Return the hash of what changes from round to round in a model: of what the round started with."""
        started = model.arrays if self._model is None else self._model.arrays
        arrays = {name: array for name, array in model.arrays.items() if name in started}
        # All simulated devices are given the same arrays.
        if self._model is not None and all(arrays.get(name) is array for name, array in started.items()):
            return self._model_hash
        return hashlib.sha256(encode(model._replace(arrays=arrays))).digest()

    def participant(self, device: int, model: Model) -> Participant:
        """Return the part of ``device``."""
        sums, number = self._sums, self._round_number
        client = sums.client(
            device,
            model,
            self._hash_of(model),
            SeededEntropy(sums.secrets_key, device, number),
            SeededEntropy(sums.rounding_key, device, number),
            self._crypto,
        )
        participant = MaskingParticipant(sums.config, client, self)
        self._participants[device] = participant
        return participant

    def watch(self, device: int, vector: RingVector) -> None:
        """Keep the encoded input of ``device``, [L], before it is masked."""
        assert self._oracle is not None
        self._oracle.watch(device, vector)
        if self._sums.watch is not None:
            self._sums.watch(self._round_number, device, vector)

    def released(self, holder: int, owners: Iterable[int], dead: frozenset[int]) -> None:
        """Count a share of each of ``owners`` that ``holder`` released: of the mask key if in ``dead``."""
        assert self._oracle is not None
        self._oracle.released(holder, owners, dead)

    def arrived(self, device: int) -> None:
        """Count the input of ``device``, which the coordinator took."""
        if self._oracle is not None:
            self._oracle.arrived(device)

    def facts(self) -> SumFacts:
        """Return the facts of the sum, once the round is over."""
        server = self._server
        assert server is not None
        parameters, result, oracle = server.parameters, server.result, self._oracle
        sum_error: int | None = None
        clipped_fraction: float | None = None
        double_reveals: int | None = None
        if oracle is not None:
            double_reveals = 0 if parameters is None else oracle.double_reveals(parameters.t)
        if result is not None and oracle is not None:
            survivors = result.survivors.tolist()
            sum_error = oracle.sum_error(result.total, survivors)
            clients = [self._participants[device].client for device in survivors]
            nonzero = sum(client.nonzero for client in clients)
            clipped_fraction = sum(client.clipped for client in clients) / nonzero if nonzero else None
        return SumFacts(
            failure=None if server.failure is None else server.failure.reason,
            neighbours=None if parameters is None else parameters.k,
            threshold=None if parameters is None else parameters.t,
            sum_error=sum_error,
            double_reveals=double_reveals,
            clipped_fraction=clipped_fraction,
        )
