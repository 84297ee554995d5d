"""A device's part in a round of double masking, and what each stage costs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from secagg_harness import IDENTITIES, KEY, MODEL_HASH, ROUND, RUN

from coordinator.secure.secagg.oracle import Oracle
from coordinator.secure.secagg.server import SecAggServer
from edge.core.errors import LocalProtocolError
from edge.crypto.entropy import SeededEntropy
from edge.crypto.errors import MalformedMessageError, NotFiniteError, SecAggError, WeightError
from edge.crypto.keys import Identity, KeyPair, SealedChannel
from edge.learning.updates import ClientUpdate
from edge.secagg import cryptography
from edge.secagg.client import SecAggClient
from edge.secagg.config import CountPart, RealPart, SecAggConfig
from edge.secagg.cryptography import REAL, Cryptography
from edge.secagg.graph import GraphParameters
from edge.secagg.masking import MaskingParticipant
from edge.secagg.participant import CryptoWork
from edge.secagg.states import COORDINATOR_FINAL, DeviceState, Mode
from edge.wire.codec import decode, encode
from edge.wire.messages import (
    Abort,
    AdvertiseKeys,
    ConsistencySignature,
    MaskedInput,
    SealedShares,
    UnmaskShares,
)

PARTS = (RealPart("factors", 5, 2.0), CountPart("examples", 1, 100))
LENGTH = 5 + 1 + 2
N, K, T = 8, 4, 3
BOTH = pytest.mark.parametrize("mode", list(Mode))


def update_of(device: int) -> ClientUpdate:
    return ClientUpdate({"factors": np.full(5, device / 10, np.float32)}, 1.0, 10 + device, 0.5)


class Notes(Oracle):
    """Keeps what each device released, too."""

    def __init__(self, config: SecAggConfig) -> None:
        super().__init__(config)
        self.released_by: dict[int, tuple[tuple[int, ...], frozenset[int]]] = {}

    def released(self, holder: int, owners: Iterable[int], dead: frozenset[int]) -> None:
        self.released_by[holder] = tuple(owners), dead
        super().released(holder, owners, dead)


class Fleet:
    """Participants and a coordinator; ``silent`` devices say nothing after their shares."""

    def __init__(
        self,
        mode: Mode = Mode.SEMI_HONEST,
        *,
        bits: int = 32,
        silent: int | None = None,
        crypto: Cryptography = REAL,
        watched: bool = True,
    ) -> None:
        self.config = SecAggConfig(
            PARTS, n_max=N, bits=bits, mode=mode, corrupt=0.0, parameters=GraphParameters(K, T)
        )
        active = mode is Mode.ACTIVE
        roster = {device: IDENTITIES[device].public for device in range(N)} if active else None
        common: dict[str, Any] = {"run_id": RUN, "round_number": ROUND, "model_hash": MODEL_HASH}
        self.server = SecAggServer(self.config, devices=range(N), roster=roster, crypto=crypto, **common)
        self.oracle = Notes(self.config)
        self.parts = [
            MaskingParticipant(
                self.config,
                SecAggClient(
                    self.config,
                    device=device,
                    entropy=SeededEntropy(KEY, device, ROUND),
                    identity=IDENTITIES[device] if active else None,
                    roster=roster,
                    crypto=crypto,
                    **common,
                ),
                self.oracle if watched else None,
            )
            for device in range(N)
        ]
        self.silent = silent
        self.work: dict[tuple[int, type[Any]], CryptoWork] = {}
        """By device and what it sent."""

    def neighbours(self, device: int) -> set[int]:
        cohort = self.server.cohort
        assert cohort is not None
        return set(cohort.devices[cohort.holders[device]].tolist()) - {device}

    def run(self) -> None:
        for device, part in enumerate(self.parts):
            answer = part.begin(update_of(device))
            self._answered(device, answer)
        while self.server.state not in COORDINATOR_FINAL:
            self._post(self.server.deadline_passed(self.server.state).send)

    def _answered(self, device: int, answer: Any) -> None:
        self.work[device, type(answer.message)] = answer.work
        if device == self.silent and isinstance(answer.message, MaskedInput):
            return
        self._post(self.server.receive(device, decode(encode(answer.message))).send)

    def _post(self, send: Any) -> None:
        for device, message in send:
            answer = self.parts[device].receive(decode(encode(message)))
            if answer is not None:
                self._answered(device, answer)


@BOTH
@pytest.mark.parametrize("bits", [32, 64])
def test_the_work_of_every_stage(mode: Mode, bits: int) -> None:
    """Counted by hand for k = 4 neighbours and a threshold of 3; one device dies with its input."""
    fleet = Fleet(mode, bits=bits, silent=2)
    fleet.run()
    assert fleet.server.failure is None
    active = mode is Mode.ACTIVE
    for device in range(N):
        assert fleet.work[device, AdvertiseKeys] == CryptoWork(key_pairs=2, signatures=int(active))
        assert fleet.work[device, SealedShares] == CryptoWork(
            exchanges=4,
            seals=4,
            verifications=4 if active else 0,
            # Two secrets of 16 words, each a polynomial of 3 coefficients evaluated for 5 holders.
            share_products=2 * 16 * 3 * 5,
        )
        assert fleet.work[device, MaskedInput] == CryptoWork(
            exchanges=4,
            seals=4,
            # A mask with each neighbour and one of its own, of 8 elements.
            expanded_bytes=5 * 8 * bits // 8,
            quantised=8,
        )
        if device == 2:
            assert (device, UnmaskShares) not in fleet.work
            continue
        if active:
            assert fleet.work[device, ConsistencySignature] == CryptoWork(signatures=1)
        signers = len(fleet.neighbours(device) - {2}) if active else 0
        assert fleet.work[device, UnmaskShares] == CryptoWork(verifications=signers)


class Counting(Cryptography):
    """Counts signatures."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts

    def sign(self, identity: Identity, statement: bytes) -> bytes:
        self.counts["signatures"] += 1
        return super().sign(identity, statement)

    def verify(self, public: bytes, signature: bytes, statement: bytes) -> None:
        self.counts["verifications"] += 1
        super().verify(public, signature, statement)


@BOTH
def test_what_is_counted_is_what_is_done(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add up what all devices count; the coordinator's own verifications come on top."""
    done: Counter[str] = Counter()

    def counting(owner: Any, name: str, count: str, of: Callable[..., int] = lambda *_: 1) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            done[count] += of(*arguments)
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    counting(KeyPair, "generate", "key_pairs")
    counting(KeyPair, "agree", "exchanges")
    counting(SealedChannel, "seal", "seals")
    counting(SealedChannel, "open", "seals")
    counting(
        cryptography,
        "add_all_expanded",
        "expanded_bytes",
        lambda vector, added, subtracted: vector.nbytes * (len(added) + len(subtracted)),
    )
    fleet = Fleet(mode, silent=None, crypto=Counting(done))
    fleet.run()
    counted = [sum(counts) for counts in zip(*fleet.work.values(), strict=True)]
    total = CryptoWork(*counted)
    coordinators = 2 * N if mode is Mode.ACTIVE else 0
    assert done["verifications"] == total.verifications + coordinators
    for name in ("key_pairs", "exchanges", "seals", "signatures", "expanded_bytes"):
        assert done[name] == getattr(total, name), name
    assert total.quantised == N * LENGTH
    assert (total.encryptions, total.decryptions) == (0, 0)


@BOTH
@pytest.mark.parametrize("watched", [True, False])
def test_a_watcher_sees_inputs_and_what_is_released(mode: Mode, watched: bool) -> None:
    fleet = Fleet(mode, silent=2, watched=watched)
    fleet.run()
    assert fleet.server.result is not None
    survivors = fleet.server.result.survivors.tolist()
    assert survivors == [0, 1, 3, 4, 5, 6, 7]
    assert fleet.oracle.double_reveals(1) == 0
    if watched:
        assert fleet.oracle.sum_error(fleet.server.result.total, survivors) == 0
        released = fleet.oracle.released_by
        assert sorted(released) == sorted(device for device, kind in fleet.work if kind is UnmaskShares)
        for device, (owners, dead) in released.items():
            assert set(owners) == {device, *fleet.neighbours(device)}
            assert dead == {2} & fleet.neighbours(device)
    else:
        with pytest.raises(KeyError):
            fleet.oracle.expected(survivors)
    answered = [device for device, part in enumerate(fleet.parts) if part.over]
    assert set(answered) == {device for device, kind in fleet.work if kind is UnmaskShares}


# -- a part that ends early ------------------------------------------------------------------------------


def reached(device: int, update: ClientUpdate) -> tuple[Fleet, Any]:
    """Return a fleet of which one device has another update and is about to be given its shares."""
    fleet = Fleet()
    pending: list[Any] = []
    for number, part in enumerate(fleet.parts):
        answer = part.begin(update if number == device else update_of(number))
        pending += fleet.server.receive(number, answer.message).send
    delivered: list[Any] = []
    for number, message in pending:
        answer = fleet.parts[number].receive(message)  # type: ignore[assignment]
        delivered += fleet.server.receive(number, answer.message).send
    return fleet, dict(delivered)[device]


@pytest.mark.parametrize(
    ("update", "error"),
    [
        (update_of(1)._replace(weight=0.5), WeightError),
        (update_of(1)._replace(weight=2.0), WeightError),
        (update_of(1)._replace(arrays={}), MalformedMessageError),
        (update_of(1)._replace(arrays={"factors": np.full(5, np.nan, np.float32)}), NotFiniteError),
    ],
)
def test_an_update_that_cannot_be_summed_ends_the_part(
    update: ClientUpdate, error: type[SecAggError]
) -> None:
    fleet, delivery = reached(1, update)
    part = fleet.parts[1]
    assert not part.over
    with pytest.raises(error):
        part.receive(delivery)
    assert (part.over, part.failure) == (True, error.NAME)
    assert part.give_up(error.NAME) == Abort(RUN, ROUND, 1, error.NAME)


def test_a_notice_ends_the_part_and_wants_no_answer() -> None:
    fleet = Fleet()
    part = fleet.parts[3]
    part.begin(update_of(3))
    assert (part.over, part.failure) == (False, None)
    assert part.receive(Abort(RUN, ROUND, 3, "too-few-contributors")) is None
    assert (part.over, part.failure) == (True, "too-few-contributors")


def test_a_device_may_give_up() -> None:
    part = Fleet().parts[3]
    part.begin(update_of(3))
    assert part.give_up("out-of-memory") == Abort(RUN, ROUND, 3, "out-of-memory")
    assert (part.over, part.failure) == (True, "out-of-memory")
    assert part.client.state is DeviceState.ABORTED


def test_a_second_begin_is_our_own_mistake() -> None:
    part = Fleet().parts[0]
    part.begin(update_of(0))
    with pytest.raises(LocalProtocolError):
        part.begin(update_of(0))
