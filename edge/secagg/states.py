"""The states of both secure-aggregation machines and the transitions between them, as data.

The machines look their next state up in these tables and nowhere else; the diagrams of the guide are drawn
from the same tables.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from edge.wire.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    MaskedInput,
    SealedShares,
    UnmaskShares,
)


class Mode(enum.Enum):
    """How far the coordinator is trusted."""

    SEMI_HONEST = "semi-honest"
    """It follows the protocol and is curious."""
    ACTIVE = "active"
    """It may lie: devices sign their keys, and agree on the survivors before any share is released."""


class DeviceState(enum.Enum):
    """Where a device stands in secure aggregation."""

    IDLE = "idle"
    AWAITING_KEYS = "awaiting keys"
    AWAITING_SHARES = "awaiting shares"
    READY = "ready to contribute"
    AWAITING_CHECK = "awaiting consistency check"
    AWAITING_UNMASK = "awaiting unmask request"
    DONE = "done"
    ABORTED = "aborted"


class DeviceEvent(enum.Enum):
    """What moves a device on."""

    ADVERTISE = "advertise() / AdvertiseKeys"
    KEY_LIST = "KeyList / SealedShares"
    SHARES = "SharesDelivery"
    CONTRIBUTE = "contribute() / MaskedInput"
    CHECK = "ConsistencyCheck / ConsistencySignature"
    UNMASK = "UnmaskRequest / UnmaskShares"
    ABORT = "Abort, or a broken protocol"


class CoordinatorState(enum.Enum):
    """Where the coordinator stands in secure aggregation: the stage whose answers it collects."""

    ADVERTISING = "advertise keys"
    SHARING = "share keys"
    MASKING = "masked input"
    CHECKING = "consistency"
    UNMASKING = "unmask"
    DONE = "done"
    ABORTED = "aborted"


class CoordinatorEvent(enum.Enum):
    """What moves the coordinator on; a stage ends when all have answered, or at its deadline."""

    KEYS_COLLECTED = "enough keys / KeyList"
    ALL_CLEAR = "enough reports in the clear, no keys"
    SHARES_COLLECTED = "enough shares / SharesDelivery"
    INPUTS_COLLECTED = "enough inputs / UnmaskRequest"
    INPUTS_COLLECTED_TO_CHECK = "enough inputs / ConsistencyCheck"
    SIGNATURES_COLLECTED = "enough signatures / UnmaskRequest"
    UNMASKED = "enough shares of every secret"
    ABORT = "too few, or a broken protocol / Abort"


DeviceTransitions = Mapping[tuple[DeviceState, DeviceEvent], DeviceState]
CoordinatorTransitions = Mapping[tuple[CoordinatorState, CoordinatorEvent], CoordinatorState]

DEVICE_FINAL = frozenset({DeviceState.DONE, DeviceState.ABORTED})
COORDINATOR_FINAL = frozenset({CoordinatorState.DONE, CoordinatorState.ABORTED})


def _device(*steps: tuple[DeviceState, DeviceEvent, DeviceState]) -> DeviceTransitions:
    table = {(state, event): after for state, event, after in steps}
    table.update({(state, DeviceEvent.ABORT): DeviceState.ABORTED for state, _, _ in steps})
    return table


def _coordinator(
    *steps: tuple[CoordinatorState, CoordinatorEvent, CoordinatorState],
) -> CoordinatorTransitions:
    table = {(state, event): after for state, event, after in steps}
    table.update({(state, CoordinatorEvent.ABORT): CoordinatorState.ABORTED for state, _, _ in steps})
    return table


_TO_READY = (
    (DeviceState.IDLE, DeviceEvent.ADVERTISE, DeviceState.AWAITING_KEYS),
    (DeviceState.AWAITING_KEYS, DeviceEvent.KEY_LIST, DeviceState.AWAITING_SHARES),
    (DeviceState.AWAITING_SHARES, DeviceEvent.SHARES, DeviceState.READY),
)
_TO_MASKING = (
    (CoordinatorState.ADVERTISING, CoordinatorEvent.KEYS_COLLECTED, CoordinatorState.SHARING),
    (CoordinatorState.ADVERTISING, CoordinatorEvent.ALL_CLEAR, CoordinatorState.DONE),
    (CoordinatorState.SHARING, CoordinatorEvent.SHARES_COLLECTED, CoordinatorState.MASKING),
)

DEVICE_TRANSITIONS: Mapping[Mode, DeviceTransitions] = {
    Mode.SEMI_HONEST: _device(
        *_TO_READY,
        (DeviceState.READY, DeviceEvent.CONTRIBUTE, DeviceState.AWAITING_UNMASK),
        (DeviceState.AWAITING_UNMASK, DeviceEvent.UNMASK, DeviceState.DONE),
    ),
    Mode.ACTIVE: _device(
        *_TO_READY,
        (DeviceState.READY, DeviceEvent.CONTRIBUTE, DeviceState.AWAITING_CHECK),
        (DeviceState.AWAITING_CHECK, DeviceEvent.CHECK, DeviceState.AWAITING_UNMASK),
        (DeviceState.AWAITING_UNMASK, DeviceEvent.UNMASK, DeviceState.DONE),
    ),
}
"""What a device does next. Whatever is not in the table is refused."""

COORDINATOR_TRANSITIONS: Mapping[Mode, CoordinatorTransitions] = {
    Mode.SEMI_HONEST: _coordinator(
        *_TO_MASKING,
        (CoordinatorState.MASKING, CoordinatorEvent.INPUTS_COLLECTED, CoordinatorState.UNMASKING),
        (CoordinatorState.UNMASKING, CoordinatorEvent.UNMASKED, CoordinatorState.DONE),
    ),
    Mode.ACTIVE: _coordinator(
        *_TO_MASKING,
        (CoordinatorState.MASKING, CoordinatorEvent.INPUTS_COLLECTED_TO_CHECK, CoordinatorState.CHECKING),
        (CoordinatorState.CHECKING, CoordinatorEvent.SIGNATURES_COLLECTED, CoordinatorState.UNMASKING),
        (CoordinatorState.UNMASKING, CoordinatorEvent.UNMASKED, CoordinatorState.DONE),
    ),
}
"""What the coordinator does next. Whatever is not in the table is refused."""


STAGE_OF_ANSWER: Mapping[type[NamedTuple], CoordinatorState] = {
    AdvertiseKeys: CoordinatorState.ADVERTISING,
    SealedShares: CoordinatorState.SHARING,
    MaskedInput: CoordinatorState.MASKING,
    ConsistencySignature: CoordinatorState.CHECKING,
    UnmaskShares: CoordinatorState.UNMASKING,
}
"""The stage that collects each message of a device."""
