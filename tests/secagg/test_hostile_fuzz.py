"""Frames whose arrays are anything that can travel: typed errors only, on both machines."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from secagg_harness import ROUND, RUN, Fleet, with_arrays

from edge.crypto.errors import SecAggError
from edge.secagg.states import STAGE_OF_ANSWER, CoordinatorState, DeviceState, Mode
from edge.wire.codec import DTYPES, decode
from edge.wire.messages import SECAGG_FROM_COORDINATOR, ConsistencyCheck

NAMES = (
    *("context", "dead", "devices", "digest", "masked", "record", "records"),
    *("sealed", "senders", "shares", "signature", "signatures", "signers", "survivors"),
)
NUMBERS = (0, 1, 2, 3, 7, 8, 2**31, 2**63 - 1, 2**63, 2**64 - 1)


def anything(choose: random.Random) -> np.ndarray[Any, Any]:
    shape = tuple(choose.choice((0, 1, 2, 3, 7, 32, 34, 64, 84, 96)) for _ in range(choose.randrange(4)))
    dtype = np.dtype(choose.choice(DTYPES))
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(choose.randbytes(count * dtype.itemsize), dtype=dtype).reshape(shape)


def garbled(choose: random.Random, message: Any) -> Any:
    """Return a valid message with a few of its fields and arrays replaced by anything of the right kind."""
    for name in message._fields:
        if name in ("members", "neighbours", "threshold", "survivors") and choose.random() < 0.3:
            message = message._replace(**{name: choose.choice(NUMBERS)})
        if name == "arrays":
            for array in choose.sample(NAMES, 2):
                if choose.random() < 0.3 or array in message.arrays:
                    message = with_arrays(message, **{array: anything(choose)})
    return message


def invented(choose: random.Random, kinds: tuple[type[Any], ...], device: int) -> Any:
    kind = choose.choice(kinds)
    arrays = {name: anything(choose) for name in choose.sample(NAMES, choose.randrange(4))}
    values: dict[str, Any] = {"run_id": RUN, "round_number": ROUND, "device": device, "arrays": arrays}
    return kind(*(values.get(name, choose.choice(NUMBERS)) for name in kind._fields if name != "reason"),
                *(["why"] if "reason" in kind._fields else []))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("seed", range(12))
def test_a_device_answers_any_frame_or_refuses_it_by_name(mode: Mode, seed: int) -> None:
    choose = random.Random(seed)
    for stage in list(CoordinatorState)[1:5]:
        if mode is Mode.SEMI_HONEST and stage is CoordinatorState.CHECKING:
            continue
        fleet = Fleet(7, mode=mode, corrupt=0.0)
        fleet.reach(stage)
        refused = 0
        for device, frame in fleet.inbox:
            client = fleet.clients[device]
            real = decode(frame)
            for message in (invented(choose, SECAGG_FROM_COORDINATOR, device), garbled(choose, real), real):
                try:
                    client.receive(message)
                except SecAggError:
                    refused += 1
            assert (client.failure is not None) is (client.state is DeviceState.ABORTED)
        assert refused
        assert isinstance(real, ConsistencyCheck) or real.device == device


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("seed", range(12))
def test_the_coordinator_takes_any_frame_or_refuses_it_by_name(mode: Mode, seed: int) -> None:
    choose = random.Random(100 + seed)
    fleet = Fleet(7, mode=mode, corrupt=0.0)

    def garble(message: Any) -> Any:
        fleet.to_server(message.device, invented(choose, tuple(STAGE_OF_ANSWER), message.device))
        return garbled(choose, message) if choose.random() < 0.2 else message

    fleet.advertise(mutate=garble)
    for _ in range(6):
        fleet.deliver(mutate=garble)
        if not fleet.inbox:
            fleet.deadline()
    assert fleet.refusals
    assert all(error.reason for error in fleet.refusals)
    assert fleet.server.state in (CoordinatorState.DONE, CoordinatorState.ABORTED)
    fleet.check()
