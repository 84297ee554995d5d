"""Sums under homomorphic encryption, by TenSEAL or modelled."""

from __future__ import annotations

import functools
import math

from coordinator.engine.facts import SumFacts
from coordinator.engine.secure_sums import RoundOfSums, SecureAggregation, SecureSums, arrays_of
from coordinator.scenario.secure_section import StageDeadlines
from coordinator.secure.homomorphic.server import CkksServer
from edge.crypto.entropy import Entropy
from edge.homomorphic.config import CIPHERTEXT_BYTES, CkksConfig
from edge.homomorphic.participant import CkksParticipant
from edge.homomorphic.schemes import Scheme
from edge.secagg.config import SecAggConfig
from edge.secagg.participant import Participant
from edge.wire.messages import Model


class EncryptedSums(SecureSums):
    """Sums under one key that all devices share and the coordinator does not have.

    Parameters
    ----------
    config : what is agreed.
    deadlines : of the stages.
    scheme : holds the key.
    """

    def __init__(self, config: CkksConfig, deadlines: StageDeadlines, scheme: Scheme) -> None:
        self.config = config
        self.deadlines = deadlines
        self.scheme = scheme
        self.input_bytes = config.ciphertexts * CIPHERTEXT_BYTES

    @property
    def masked(self) -> SecAggConfig | None:
        """None: there are no masks."""
        return None

    @property
    def rounding_norm(self) -> float:
        """Rounding moves each element by half a step at most."""
        steps = [
            part.length * (part.clip / self.config.levels / 2) ** 2 for part in arrays_of(self.config.parts)
        ]
        return math.sqrt(sum(steps))

    def round(self, round_number: int, *, devices_elsewhere: bool = False) -> RoundOfSums:
        """Return a round; with ``devices_elsewhere`` the coordinator's end only, which sees no inputs."""
        return _RoundOfEncryptedSums(self, round_number, devices_elsewhere=devices_elsewhere)

    def part_of(self, device: int, model: Model, entropy: Entropy) -> Participant:
        """Return the part of a device that is by itself; the scheme brings the entropy of its own."""
        return CkksParticipant(
            self.config,
            self.scheme.secret,
            device=device,
            run_id=model.run_id,
            round_number=model.round_number,
        )


class _RoundOfEncryptedSums(RoundOfSums):
    def __init__(self, sums: EncryptedSums, round_number: int, *, devices_elsewhere: bool) -> None:
        super().__init__(sums.deadlines)
        self._devices_elsewhere = devices_elsewhere
        # The last device that is asked to decrypt may be so after all the others had their time.
        self.patience_s += sums.config.n_max * sums.deadlines.unmask
        self._sums = sums
        self._round_number = round_number
        self._participants: dict[int, CkksParticipant] = {}
        self._server: CkksServer | None = None

    def start(self, model: Model, invited: list[int], target: int) -> SecureAggregation:
        """Return the coordinator's machine."""
        sums = self._sums
        self._server = CkksServer(
            sums.config,
            sums.scheme.public,
            run_id=model.run_id,
            round_number=self._round_number,
            devices=invited,
            target=target,
        )
        return self._server

    def participant(self, device: int, model: Model) -> Participant:
        """Return the part of ``device``."""
        sums = self._sums
        participant = CkksParticipant(
            sums.config,
            sums.scheme.secret,
            device=device,
            run_id=model.run_id,
            round_number=self._round_number,
            watch=None if sums.watch is None else functools.partial(sums.watch, self._round_number),
        )
        self._participants[device] = participant
        return participant

    def arrived(self, device: int) -> None:
        """Do nothing: sums of ciphertexts are checked by what they decrypt to."""

    def facts(self) -> SumFacts:
        """Return the facts of the sum, once the round is over."""
        server = self._server
        assert server is not None
        seen = server.failure is None and not self._devices_elsewhere
        summed = [self._participants[one] for one in server.contributors] if seen else []
        nonzero = sum(participant.nonzero for participant in summed)
        clipped = sum(participant.clipped for participant in summed)
        return SumFacts(
            failure=None if server.failure is None else server.failure.reason,
            neighbours=None,
            threshold=None,
            sum_error=None,
            double_reveals=None,
            clipped_fraction=clipped / nonzero if nonzero else None,
        )
