"""A device's part in a round of double masking: update, stages, and what each stage costs it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

from edge.crypto.errors import SecAggError
from edge.crypto.ring import RingVector
from edge.crypto.shamir import SECRET_BYTES
from edge.learning.updates import ClientUpdate
from edge.secagg.client import SecAggClient
from edge.secagg.config import SecAggConfig
from edge.secagg.inputs import part_values
from edge.secagg.participant import Answer, CryptoWork
from edge.secagg.states import DEVICE_FINAL, Mode
from edge.wire.messages import (
    Abort,
    AnyMessage,
    ConsistencyCheck,
    FromDevice,
    KeyList,
    SecAggMessage,
    SharesDelivery,
    UnmaskRequest,
    UnmaskShares,
)

_SHARE_WORDS = 2 * SECRET_BYTES // 2
"""Words of 16 bits in a device's two secrets."""


class Watcher(Protocol):
    """Sees what a device does, beside the protocol: for simulations and tests only."""

    def watch(self, device: int, vector: RingVector) -> None:
        """Note the encoded input of ``device``, [L], before it is masked; it changes afterwards."""

    def released(self, holder: int, owners: Iterable[int], dead: frozenset[int]) -> None:
        """Note that ``holder`` released a share of each of ``owners``: of the mask key if in ``dead``."""


class MaskingParticipant:
    """Takes a device through the stages of double masking.

    Parameters
    ----------
    config : of the round.
    client : the device's machine, fresh.
    watcher : sees its input and what it releases.
    """

    __slots__ = ("_config", "_update", "_watcher", "client")

    def __init__(
        self,
        config: SecAggConfig,
        client: SecAggClient,
        watcher: Watcher | None = None,
    ) -> None:
        self._config = config
        self._watcher = watcher
        self._update: ClientUpdate | None = None
        self.client = client

    @property
    def over(self) -> bool:
        """Say whether nothing more is expected from the device."""
        return self.client.state in DEVICE_FINAL

    @property
    def failure(self) -> str | None:
        """Why the device's part ended early, by the name of an error; None while it has not."""
        return self.client.failure

    def begin(self, update: ClientUpdate) -> Answer:
        """Take the update and return the message that advertises the device's keys."""
        self._update = update
        active = self._config.mode is Mode.ACTIVE
        return Answer(self.client.advertise(), CryptoWork(key_pairs=2, signatures=int(active)))

    def receive(self, message: AnyMessage) -> Answer | None:
        """Take a frame from the coordinator; see :class:`Participant`."""
        answer: FromDevice | None = self.client.receive(cast(SecAggMessage, message))
        if isinstance(message, SharesDelivery):
            answer = self._contribute()
        elif isinstance(message, UnmaskRequest) and self._watcher is not None:
            assert isinstance(answer, UnmaskShares)
            dead = frozenset(message.arrays["dead"].tolist())
            owners = self.client.partners.difference(answer.arrays["unopened"].tolist())
            self._watcher.released(self.client.device, (self.client.device, *owners), dead)
        return None if answer is None else Answer(answer, self._work(message))

    def give_up(self, reason: str) -> Abort:
        """End the device's part and return the message that says why."""
        return self.client.give_up(reason)

    def _contribute(self) -> FromDevice:
        assert self._update is not None
        update, self._update = self._update, None
        try:
            values, weight = part_values(self._config.parts, update)
        except SecAggError as error:
            self.client.give_up(error.reason)
            raise
        watch = None if self._watcher is None else self._watcher.watch
        return self.client.contribute(values, weight, watch=watch)

    def _work(self, message: AnyMessage) -> CryptoWork:
        """Return what the answer to ``message`` took."""
        active = self._config.mode is Mode.ACTIVE
        if isinstance(message, KeyList):
            k, t = message.neighbours, message.threshold
            return CryptoWork(
                exchanges=k,
                seals=k,
                verifications=k if active else 0,
                share_products=_SHARE_WORDS * t * (k + 1),
            )
        if isinstance(message, SharesDelivery):
            masks = len(self.client.partners)
            vector_bytes = self._config.length * self._config.bits // 8
            return CryptoWork(
                exchanges=masks,
                seals=masks,
                expanded_bytes=(masks + 1) * vector_bytes,
                quantised=self._config.length,
            )
        if isinstance(message, ConsistencyCheck):
            return CryptoWork(signatures=1)
        assert isinstance(message, UnmaskRequest)
        return CryptoWork(verifications=len(message.arrays["signers"]) if active else 0)
