"""Random rounds of secure aggregation in bad weather: losses, late, repeated, stray, stale and forged frames.

Everything about a round follows from its seed. With ``PYTHONPATH=.``,
``python tests/secagg/secagg_storm.py SEED`` plays one again, and ``… FIRST LAST`` many.
Both say how rounds ended.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

import numpy as np
from secagg_harness import Fleet, small_config, with_arrays

from edge.crypto.errors import (
    AuthenticationError,
    CommitmentMismatchError,
    InconsistentSharesError,
    InfeasibleError,
    KeyMismatchError,
    SecAggError,
    ThresholdError,
    TooFewContributorsError,
    TooFewNeighboursError,
    TooFewSurvivorsError,
    WrongShareError,
)
from edge.crypto.shamir import SECRET_BYTES
from edge.secagg.graph import GraphParameters
from edge.secagg.states import COORDINATOR_FINAL, CoordinatorState, DeviceState, Mode
from edge.wire.codec import decode, encode
from edge.wire.messages import MaskedInput, SecAggMessage, UnmaskRequest, UnmaskShares

LOSSES = {
    kind.NAME
    for kind in (
        *(InfeasibleError, ThresholdError),
        *(TooFewContributorsError, TooFewNeighboursError, TooFewSurvivorsError),
    )
}
"""Why a round may end without a sum when devices are lost."""
FORGERIES = {
    kind.NAME
    for kind in (
        *(AuthenticationError, CommitmentMismatchError, InconsistentSharesError),
        *(KeyMismatchError, WrongShareError),
    )
}
"""Why it may end when devices forge shares."""

MISCHIEF = (
    "loss",
    "early deadlines",
    "duplicates",
    "stray",
    "stale",
    "wrong shares",
    "hostile devices",
    "hostile coordinator",
)


class Storm:
    """One random round.

    Each round has some of the kinds of mischief and not others, so that every one also meets calm.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.mischief = {kind for kind in MISCHIEF if self.random.random() < 0.35}
        n = min(60, 2 + int(self.random.expovariate(1 / 4)))
        active = n <= 16 and self.random.random() < 0.2
        ids = sorted(self.random.sample(range(10 * n), n)) if not active else range(n)
        parameters = None
        if n >= 6 and self.random.random() < 0.5:
            k = 2 * self.random.randint(1, (n - 2) // 2)
            parameters = GraphParameters(k, self.random.randint((k + 1) // 2 + 1, k + 1))
        config = small_config(
            n,
            mode=Mode.ACTIVE if active else Mode.SEMI_HONEST,
            bits=self.random.choice((32, 64)),
            parameters=parameters,
            corrupt=self.random.choice((0.0, 0.1)),
            dropout=0.0,
            min_contributors=self.random.randint(2, max(2, n // 2)),
        )
        self.fleet = Fleet(list(ids), config, seed=seed)
        self.up: list[tuple[int, bytes]] = []
        """Frames on their way to the coordinator, each with its sender."""
        self.history: list[tuple[bool, int, bytes]] = []
        """Every frame that was ever sent: whether upwards, which device, what."""
        self.gone: set[int] = set()
        hostile = self.random.sample(self.fleet.devices, max(1, n // 5))
        self.hostile = set(hostile) if "hostile devices" in self.mischief else set()
        liars = self.random.sample(self.fleet.devices, self.random.randint(1, max(1, n // 3)))
        self.liars = set(liars) if "wrong shares" in self.mischief else set()
        """Who releases other shares than it was given."""
        self.loss_rate = self.random.random() * 0.1 if "loss" in self.mischief else 0.0

    # -- weather -----------------------------------------------------------------------------------------

    def play(self) -> str:
        """Play the round to its end and check it; return how it ended."""
        fleet = self.fleet
        for device in fleet.devices:
            self.send(device, fleet.clients[device].advertise())
        while fleet.server.state not in COORDINATOR_FINAL:
            self.step()
        while fleet.inbox:
            self.to_device(0)
        self.check()
        return fleet.server.state.value if fleet.server.failure is None else fleet.server.failure.reason

    def step(self) -> None:
        fleet, chance = self.fleet, self.random.random
        if chance() < self.loss_rate:
            self.lose(self.random.choice(fleet.devices))
        if "early deadlines" in self.mischief and chance() < 0.01:
            fleet.deadline()
        if "hostile coordinator" in self.mischief and chance() < 0.1:
            self.forge_request()
        if self.history and chance() < 0.1:
            upwards, device, frame = self.random.choice(self.history)
            if "duplicates" in self.mischief and chance() < 0.5:
                self.enqueue(upwards, device, frame)
            if "stray" in self.mischief and chance() < 0.5:
                self.enqueue(upwards, self.random.choice([*fleet.devices, 10**6]), frame)
            if "stale" in self.mischief and chance() < 0.5:
                old = decode(frame)._replace(round_number=self.random.randint(0, 2))
                self.enqueue(upwards, device, encode(old if chance() < 0.5 else old._replace(run_id="old")))
        frames = len(self.up) + len(fleet.inbox)
        if not frames:
            fleet.deadline()
            return
        # Any frame may overtake any other.
        at = self.random.randrange(frames)
        if at < len(self.up):
            self.to_server(at)
        else:
            self.to_device(at - len(self.up))

    def enqueue(self, upwards: bool, device: int, frame: bytes) -> None:
        (self.up if upwards else self.fleet.inbox).append((device, frame))

    def lose(self, device: int) -> None:
        self.gone.add(device)
        if self.random.random() < 0.5:
            self.up = [frame for frame in self.up if frame[0] != device]
        if self.random.random() < 0.5:
            self.fleet.lose(device)

    # -- frames ------------------------------------------------------------------------------------------

    def send(self, device: int, message: SecAggMessage) -> None:
        if device in self.hostile and self.random.random() < 0.3:
            message = self.forged(message)
        elif device in self.liars and isinstance(message, UnmaskShares):
            message = self.with_wrong_shares(message)
        frame = encode(message)
        self.history.append((True, device, frame))
        self.up.append((device, frame))

    def to_server(self, at: int) -> None:
        device, frame = self.up.pop(at)
        self.fleet.to_server(device, decode(frame))

    def to_device(self, at: int) -> None:
        device, frame = self.fleet.inbox.pop(at)
        if device in self.gone or device not in self.fleet.clients:
            return
        self.history.append((False, device, frame))
        reply = self.fleet.answer(device, decode(frame))
        if reply is not None:
            self.send(device, reply)

    def forged(self, message: Any) -> Any:
        """Return a message that a device which breaks the protocol might send instead."""
        if not hasattr(message, "arrays") or self.random.random() < 0.1:
            return message._replace(device=self.random.choice(self.fleet.devices))
        name = self.random.choice(sorted(name for name, array in message.arrays.items() if array.size))
        array = message.arrays[name]
        choice = self.random.randrange(4)
        if choice == 0:
            return with_arrays(message, **{name: None})
        if choice == 1:
            return with_arrays(message, **{name: array[:-1]})
        if choice == 2 or isinstance(message, MaskedInput):
            return with_arrays(message, **{name: array.astype(np.float32)})
        copy = array.copy()
        copy.reshape(-1)[self.random.randrange(copy.size)] ^= 1 << self.random.randrange(8)
        return with_arrays(message, **{name: copy})

    def with_wrong_shares(self, message: UnmaskShares) -> UnmaskShares:
        """Return the answer with some shares, or all of them, other than the device was given."""
        shares = message.arrays["shares"].copy()
        wrong = self.random.sample(range(len(shares)), self.random.randint(1, len(shares)))
        shares[wrong, self.random.randrange(SECRET_BYTES)] ^= 1 << self.random.randrange(8)
        return with_arrays(message, shares=shares)

    def forge_request(self) -> None:
        """Let a coordinator that lies ask a device for shares, with a list of the dead of its own."""
        fleet = self.fleet
        device = self.random.choice(fleet.devices)
        partners = sorted(fleet.clients[device].partners)
        dead = np.array(sorted(self.random.sample(partners, len(partners) // 3)), dtype=np.int64)
        request = UnmaskRequest("run", 3, device, len(fleet.devices) - len(dead), {"dead": dead})
        fleet.inbox.append((device, encode(request)))

    # -- what must hold ----------------------------------------------------------------------------------

    def check(self) -> None:
        fleet = self.fleet
        if "hostile coordinator" in self.mischief:
            # Devices may have answered lies, so the round may fail; but nothing is revealed.
            threshold = 2 if fleet.server.cohort is None else fleet.server.cohort.t
            assert fleet.oracle.double_reveals(threshold) == 0
            if fleet.server.result is None:
                return
        fleet.check()
        failure = fleet.server.failure
        assert all(isinstance(error, SecAggError) for error in fleet.refusals)
        bad = self.hostile | self.liars
        if failure is not None:
            permitted = LOSSES | FORGERIES if bad else LOSSES
            assert failure.reason in permitted, failure
        if "hostile coordinator" not in self.mischief:
            # Nobody is blamed for what others do.
            assert fleet.server.culprits.keys() <= bad
        if failure is not None and failure.reason == WrongShareError.NAME:
            assert fleet.server.culprits.keys() & self.liars or self.hostile
        k, t = fleet.config.graph(len(fleet.devices))
        if (
            not self.mischief - {"duplicates", "stray", "stale", "wrong shares"}
            and len(self.liars) <= k + 1 - t
        ):
            # Nobody was lost, and there are shares in place of the wrong ones: nothing is lost.
            assert fleet.server.state is CoordinatorState.DONE, failure
            assert len(fleet.server.result.survivors) == len(fleet.devices)  # type: ignore[union-attr]
            waiting = {client.state for client in fleet.clients.values()} - {DeviceState.DONE}
            assert not waiting - {DeviceState.AWAITING_UNMASK}


def play(seed: int) -> str:
    """Play the round of ``seed``; a failure says how to play it again."""
    try:
        return Storm(seed).play()
    except BaseException as error:
        error.add_note(f"play it again: python tests/secagg/secagg_storm.py {seed}")
        raise


def play_all(seeds: range) -> Counter[str]:
    return Counter(play(seed) for seed in seeds)


if __name__ == "__main__":
    print(dict(play_all(range(int(sys.argv[1]), int(sys.argv[-1]) + 1))))
