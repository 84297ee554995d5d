"""One device on which a coordinator tries things."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from secagg_harness import Fleet

from edge.crypto import errors
from edge.secagg.states import CoordinatorState, DeviceState
from edge.wire.codec import decode

VICTIM = 2


def ids(*devices: int) -> np.ndarray[Any, Any]:
    return np.array(devices, dtype=np.int64)


def to_victim(fleet: Fleet) -> Any:
    """Take the message to the victim off the wire."""
    found = [decode(frame) for device, frame in fleet.inbox if device == VICTIM]
    fleet.inbox = [(device, frame) for device, frame in fleet.inbox if device != VICTIM]
    assert len(found) == 1
    return found[0]


def expect(fleet: Fleet, message: Any, error: type[errors.SecAggError]) -> None:
    """The victim refuses ``message`` by name, ends its part, releases nothing, and the others finish."""
    victim = fleet.clients[VICTIM]
    with pytest.raises(error) as caught:
        victim.receive(message)
    assert caught.value.reason == error.NAME
    assert victim.state is DeviceState.ABORTED
    assert victim.failure == error.NAME
    fleet.to_server(VICTIM, victim.give_up(error.NAME))
    fleet.run()
    fleet.check()
    assert fleet.server.state is CoordinatorState.DONE
