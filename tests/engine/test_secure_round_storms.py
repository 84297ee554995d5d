"""Random rounds of secure sums in bad weather: frames lost, repeated, late, out of order; devices that go.

Everything about a round follows from its seed; ``play(seed)`` plays one again.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from secure_round_harness import ROUND, Encrypted, Masked, Round

from coordinator.engine.rounds import FrameVerdict
from edge.core.vocabulary import Reason, RoundOutcome
from edge.learning.updates import ClientUpdate
from edge.secagg.states import Mode
from edge.wire.codec import decode, encode
from edge.wire.messages import Decline, Failure

WEATHER = ("drops", "duplicates", "stale", "early deadlines", "vanishing", "known losses", "refusals")
"""What may happen; each round has some of it and not the rest."""


class Storm:
    """One random round."""

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(seed)
        self.weather = {kind for kind in WEATHER if chance.random() < 0.35}
        n = chance.randint(3, 8)
        ids = sorted(chance.sample(range(16), n))
        target = chance.choice((n, chance.randint(2, n)))
        least = chance.randint(2, 3)
        quorum = chance.randint(1, target)
        shielded: list[int] | None = None
        protocol: Masked | Encrypted
        if chance.random() < 0.25:
            protocol = Encrypted(min_contributors=least)
        else:
            mode = chance.choice((Mode.SEMI_HONEST, Mode.SEMI_HONEST, Mode.ACTIVE))
            if chance.random() < 0.5:
                shielded = [device for device in ids if chance.random() < 0.4]
            protocol = Masked(
                mode,
                seed=seed,
                corrupt=chance.choice((0.0, 0.1)),
                min_contributors=least,
                quorum=0 if shielded is None else quorum,
            )
        self.round = Round(protocol, ids, target=target, quorum=quorum, shielded=shielded)
        self.gone: set[int] = set()
        """Devices that hear and say nothing any more, or that the coordinator takes for lost."""
        self.losses = 0
        if "refusals" in self.weather:
            for device in self.round.devices.values():
                luck = chance.random()
                if luck < 0.1:
                    device.declines = Reason.BATTERY
                elif luck < 0.2:
                    device.result = Reason.MEMORY
                elif luck < 0.3 and isinstance(device.result, ClientUpdate):
                    device.result = device.result._replace(weight=0.5)

    def play(self) -> str:
        """Play the round until nothing is under way and check it; return how it ended."""
        round_, chance = self.round, self.random.random
        deadlines = 0
        while round_.up or round_.down or not round_.machine.over:
            if not round_.up and not round_.down:
                # Nobody has anything to say: one deadline a stage, or one for each who may decrypt.
                round_.deadline()
                deadlines += 1
                assert deadlines <= 5 + len(round_.devices), "no round goes on for ever"
                continue
            if "early deadlines" in self.weather and chance() < 0.05:
                round_.deadline()
            if "vanishing" in self.weather and chance() < 0.02:
                self.gone.add(self.random.choice(list(round_.devices)))
            if "known losses" in self.weather and chance() < 0.02:
                lost = self.random.choice(list(round_.devices))
                self.gone.add(lost)
                round_.lose(lost)
            self.step()
        self.check()
        return "completed" if round_.machine.failure is None else round_.machine.failure

    def step(self) -> None:
        """Take one frame of those under way, whichever, and do to it what the weather does."""
        round_, chance = self.round, self.random.random
        at = self.random.randrange(len(round_.up) + len(round_.down))
        upwards = at < len(round_.up)
        queue = round_.up if upwards else round_.down
        device, frame = queue.pop(at if upwards else at - len(round_.up))
        if "duplicates" in self.weather and chance() < 0.1:
            queue.append((device, frame))
        if "stale" in self.weather and chance() < 0.1:
            old = decode(frame)._replace(round_number=ROUND - 1)
            queue.append((device, encode(old)))
        if "drops" in self.weather and chance() < 0.05:
            self.losses += 1
        elif upwards:
            judged = round_.arrive(device, frame)
            if decode(frame).round_number != ROUND:
                assert judged[2:] == (FrameVerdict.DISCARD, Reason.STALE)
        elif device not in self.gone:
            round_.devices[device].take(decode(frame))

    def check(self) -> None:
        round_ = self.round
        machine = round_.machine
        round_.check()
        completed = machine.outcome is RoundOutcome.COMPLETED
        assert (machine.reason is Reason.NONE) == completed
        protocol = round_.protocol
        if isinstance(protocol, Masked) and protocol.aggregation.parameters is not None:
            assert protocol.oracle.double_reveals(protocol.aggregation.parameters.t) == 0
        for number, device in round_.devices.items():
            if number in self.gone:
                continue
            if device.ended is None:
                # It waits for a frame that was lost: its answer, or one that never told the coordinator more.
                assert self.losses
                late = number in machine.aggregation.dropped
                assert late or number in round_.answered or number not in round_.given_model
                continue
            said_no = any(isinstance(sent, Decline | Failure) for sent in device.sent)
            assert (device.verdict is None) == said_no, "everybody else has been told"
            if not self.losses:
                assert (device.verdict is Reason.NONE) == (number in machine.applied | machine.clear)
        if not self.weather - {"duplicates", "stale"} and not round_.plan.mixed:
            assert completed == (machine.plan.target >= protocol.config.min_contributors)
            assert len(machine.applied) in (0, machine.plan.target)


def play(seed: int) -> str:
    try:
        return Storm(seed).play()
    except BaseException as error:
        error.add_note(f"replay: play({seed})")
        raise


@pytest.mark.parametrize("block", range(8))
@pytest.mark.few(3)
def test_random_rounds_sum_exactly_or_are_given_up_by_name(block: int) -> None:
    endings = Counter(play(seed) for seed in range(block * 75, (block + 1) * 75))
    assert endings["completed"] >= 20
    assert len(endings) > 2, "and not all of them go well"
