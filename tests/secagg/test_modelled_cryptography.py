"""Cryptography of simulations.

With secrets shared by both ends of a pair: the very frames of the real one. Modelled: the messages, lengths,
refusals and sums of the real one, and no secret at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from secagg_harness import IDENTITIES, RUN, Fleet, with_arrays

from coordinator.engine.secure_sums import Step
from edge.crypto.entropy import SeededEntropy
from edge.crypto.errors import SecAggError
from edge.crypto.keys import KeyPair, PairSecrets
from edge.secagg.cryptography import MODELLED, REAL, Cryptography, ModelledCryptography
from edge.secagg.graph import GraphParameters
from edge.secagg.states import CoordinatorState, Mode
from edge.wire.codec import encode
from edge.wire.messages import (
    ConsistencySignature,
    MaskedInput,
    SealedShares,
    SecAggMessage,
    UnmaskShares,
)

BOTH = pytest.mark.parametrize("mode", list(Mode))


class Recorded(Fleet):
    """Keeps what every frame was, how long, and what came of it."""

    def __init__(self, *arguments: Any, **changes: Any) -> None:
        super().__init__(*arguments, **changes)
        self.log: list[tuple[str, int, str, int, str]] = []

    def to_server(self, sender: int, message: SecAggMessage) -> Step:
        step = super().to_server(sender, message)
        refused = "" if step.refused is None else step.refused.reason
        self.log.append(("up", sender, type(message).__name__, len(encode(message)), refused))
        return step

    def post(self, step: Step) -> None:
        super().post(step)
        for device, message in step.send:
            self.log.append(("down", device, type(message).__name__, len(encode(message)), ""))

    def answer(self, device: int, message: SecAggMessage) -> SecAggMessage | None:
        reply = super().answer(device, message)
        error = self.errors.pop(device, None)
        if error is not None:
            self.log.append(("refused", device, type(message).__name__, 0, error.reason))
        return reply

    def outcome(self) -> dict[str, Any]:
        server = self.server
        return {
            "log": self.log,
            "state": server.state,
            "failure": None if server.failure is None else server.failure.reason,
            "dropped": server.dropped,
            "parameters": server.parameters,
            "devices": {device: client.state for device, client in self.clients.items()},
            "total": None if server.result is None else server.result.total.tolist(),
            "survivors": None if server.result is None else server.result.survivors.tolist(),
        }


@contextmanager
def twice(fleet: Recorded) -> Iterator[None]:
    """Let every frame to the coordinator arrive a second time, and one in another's name after it."""
    once = fleet.to_server

    def repeated(sender: int, message: SecAggMessage) -> Step:
        step = once(sender, message)
        once(sender, message)
        once((sender + 1) % len(fleet.devices), message)
        once(sender, message._replace(round_number=1))
        return step

    fleet.to_server = repeated  # type: ignore[method-assign]
    yield
    fleet.to_server = once  # type: ignore[method-assign]


def calm(fleet: Recorded) -> None:
    fleet.advertise()
    fleet.run()


def losses_everywhere(fleet: Recorded) -> None:
    """Lose a device in each stage: 0 before its keys, 1 before its shares, 2 before its input …"""
    fleet.advertise(fleet.devices[1:])
    gone = {0}
    fleet.deadline()
    while fleet.server.result is None and fleet.server.failure is None:
        gone.add(max(gone) + 1)
        fleet.deliver(silent=gone)
        fleet.deadline()
    fleet.deliver(silent=gone)


def too_many_losses(fleet: Recorded) -> None:
    fleet.advertise()
    fleet.deliver()
    fleet.deliver(silent=range(1, 12))
    fleet.deadline()
    fleet.run()


def repeated_and_strayed(fleet: Recorded) -> None:
    with twice(fleet):
        fleet.advertise()
        fleet.inbox += fleet.inbox
        fleet.deliver()
        fleet.inbox += [((device + 1) % 12, frame) for device, frame in fleet.inbox]
        fleet.deliver()
        fleet.run()


def late(fleet: Recorded) -> None:
    fleet.advertise(fleet.devices[:-1])
    fleet.deadline()
    fleet.advertise(fleet.devices[-1:])
    slow, fleet.inbox = fleet.inbox[:1], fleet.inbox[1:]
    fleet.deliver()
    fleet.deadline()
    fleet.inbox += slow
    fleet.run()


def malformed(fleet: Recorded) -> None:
    kinds = [SealedShares, MaskedInput, ConsistencySignature, UnmaskShares]

    def spoiled(message: Any) -> Any:
        kind = type(message)
        if kind not in kinds or message.device != kinds.index(kind):
            return message
        name, array = next(iter(message.arrays.items()))
        return with_arrays(message, **{name: array[:-1]})

    fleet.advertise()
    while fleet.inbox:
        fleet.deliver(mutate=spoiled)
    fleet.run()


SEQUENCES = [calm, losses_everywhere, too_many_losses, repeated_and_strayed, late, malformed]


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("play", SEQUENCES, ids=lambda play: play.__name__)
def test_the_same_happens_with_real_and_modelled_cryptography(play: Any, mode: Mode) -> None:
    real, modelled = (Recorded(12, mode=mode, corrupt=0.0, crypto=crypto) for crypto in (REAL, MODELLED))
    play(real)
    play(modelled)
    assert modelled.outcome() == real.outcome()
    assert len(real.log) > 20
    real.check()
    modelled.check()
    assert (real.server.result is None) == (play is too_many_losses)


@BOTH
@pytest.mark.parametrize("play", SEQUENCES, ids=lambda play: play.__name__)
def test_a_simulated_round_has_the_frames_of_the_real_one(play: Any, mode: Mode) -> None:
    """Byte by byte: secrets are seeded, so only their computation differs."""
    simulated = REAL.of_simulated_round()
    fleets = [Recorded(12, mode=mode, corrupt=0.0, crypto=crypto) for crypto in (REAL, simulated)]
    for fleet in fleets:
        play(fleet)
        fleet.check()
    real, shared = fleets
    assert [encode(frame) for frame in shared.frames] == [encode(frame) for frame in real.frames]
    assert shared.outcome() == real.outcome()


@BOTH
@pytest.mark.parametrize("lost", [0, 3])
def test_a_simulated_round_makes_half_of_the_exchanges(
    mode: Mode, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanges: list[KeyPair] = []
    original = KeyPair.agree
    monkeypatch.setattr(KeyPair, "agree", lambda own, public: exchanges.append(own) or original(own, public))
    counts = []
    for crypto in (REAL, REAL.of_simulated_round()):
        exchanges.clear()
        n = 12
        fleet = Fleet(n, mode=mode, corrupt=0.0, crypto=crypto)
        fleet.advertise()
        fleet.deliver()
        fleet.deliver(silent=range(lost))
        if lost:
            fleet.deadline()
        fleet.run()
        fleet.check()
        assert fleet.server.result is not None
        counts.append(len(exchanges))
    # For sealed shares everybody with everybody; for masks all but those among the lost, which nobody needs.
    pairs = n * (n - 1) // 2
    needed = pairs + pairs - lost * (lost - 1) // 2
    assert counts == [2 * needed, needed]
    # Both ends had everything: nothing is left of any secret.
    assert repr(crypto.pairs) == "SharedPairSecrets(0 of one end)"


def test_rounds_and_modelled_cryptography_share_nothing() -> None:
    first, second = REAL.of_simulated_round(), REAL.of_simulated_round()
    assert first.pairs is not second.pairs
    assert first.hides
    assert MODELLED.of_simulated_round() is MODELLED
    assert type(REAL.pairs) is PairSecrets


@BOTH
def test_a_sparse_graph_makes_the_same_frames_too(mode: Mode) -> None:
    """Who is whose neighbour depends on the keys, so with losses single frames would differ."""
    fleets = [Recorded(14, mode=mode, parameters=GraphParameters(4, 3), crypto=c) for c in (REAL, MODELLED)]
    for fleet in fleets:
        calm(fleet)
        fleet.check()
    real, modelled = (fleet.outcome() for fleet in fleets)
    # The sum is made when the first few shares of everybody are in, which again depends on the graph.
    for outcome in (real, modelled):
        outcome["log"] = [(*row[:4], row[2] == "UnmaskShares" or row[4]) for row in outcome["log"]]
    assert modelled == real


def test_modelled_messages_hide_nothing() -> None:
    seen: dict[int, list[int]] = {}
    for crypto in (MODELLED, REAL):
        fleet = Fleet(4, crypto=crypto)
        calm(fleet)  # type: ignore[arg-type]
        inputs = {
            frame.device: frame.arrays["masked"].tolist()
            for frame in fleet.frames
            if isinstance(frame, MaskedInput)
        }
        if crypto is MODELLED:
            seen = inputs
            shares = [frame for frame in fleet.frames if isinstance(frame, SealedShares | UnmaskShares)]
            assert shares
            assert not any(array.any() for frame in shares for array in frame.arrays.values())
            continue
        for device, masked in inputs.items():
            same = np.count_nonzero(np.array(masked) == np.array(seen[device]))
            assert same <= 1, "a real mask leaves nothing as it was, but by chance"
        # What travels in the open is the input: its weight and the one that counts it come last.
        for device, values in seen.items():
            assert values[-2:] == [fleet.weight(device), 1]
            assert values[5:8] == fleet.values(device)["touched"].tolist()


def test_modelled_public_keys_are_the_real_ones_because_the_graph_follows_from_them() -> None:
    for device in (0, 1, 2**63 - 1):
        real = REAL.secrets(SeededEntropy(bytes(16), device, 1), device, 1).public()
        modelled = MODELLED.secrets(SeededEntropy(bytes(16), device, 1), device, 1).public()
        assert modelled[:2] == real[:2]
        assert modelled.commitment == bytes(32)


def test_modelled_signatures_are_zeros_and_any_will_do() -> None:
    identity = IDENTITIES[0]
    assert MODELLED.sign(identity, b"statement") == bytes(64)
    MODELLED.verify(identity.public, b"anything", b"statement")
    signature = REAL.sign(identity, b"statement")
    assert len(signature) == 64
    REAL.verify(identity.public, signature, b"statement")
    with pytest.raises(SecAggError):
        REAL.verify(identity.public, bytes(64), b"statement")


def test_only_the_real_one_hides() -> None:
    assert (REAL.hides, MODELLED.hides) == (True, False)
    assert type(REAL) is Cryptography
    assert type(MODELLED) is ModelledCryptography


@BOTH
def test_a_sum_that_contradicts_itself_is_noticed_in_the_open_too(mode: Mode) -> None:
    fleet = Fleet(5, mode=mode, crypto=MODELLED)
    fleet.reach(CoordinatorState.MASKING)

    def one_more(message: Any) -> Any:
        if not isinstance(message, MaskedInput) or message.device:
            return message
        masked = message.arrays["masked"].copy()
        masked[-1] += 1
        return with_arrays(message, masked=masked)

    fleet.deliver(mutate=one_more)
    fleet.run()
    assert fleet.server.failure is not None
    assert fleet.server.failure.reason == "sum-mismatch"
    assert {frame.run_id for frame in fleet.frames} == {RUN}
