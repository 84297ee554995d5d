"""The typed messages between coordinator and devices.

Every message names its run and round, so that a stale or replayed frame is recognised. Down messages carry
no device id: they are the same for every receiver, so a broadcast is one object and one encoded frame.
``FIELDS`` drives the codec: the name and kind of each field in the order in which it is sent. ``EVENT`` and
``STAGE`` are what the transfer of such a message is called in logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from edge.vocabulary import EventKind, Stage

Arrays = dict[str, npt.NDArray[np.generic]]

UNSIGNED = "unsigned"
"""An int from 0 to 2**64 − 1."""
REAL = "real"
"""A float64; finite unless the field says otherwise."""
TEXT = "text"
"""A short str."""
ARRAYS = "arrays"
"""A dict of names to arrays."""


@dataclass(frozen=True, slots=True)
class Invite:
    """Coordinator → device: take part in this round.

    ``report_within_s`` counts from the moment the invitation was sent, so that device clocks need not agree.
    ``model_bytes`` is the size of the model frame, so that a device can decline what it cannot hold.
    """

    CODE: ClassVar[int] = 1
    EVENT: ClassVar[EventKind] = EventKind.INVITED
    STAGE: ClassVar[Stage] = Stage.INVITE
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("run_id", TEXT),
        ("round_number", UNSIGNED),
        ("task", TEXT),
        ("report_within_s", REAL),
        ("model_bytes", UNSIGNED),
    )
    run_id: str
    round_number: int
    task: str
    report_within_s: float
    model_bytes: int


@dataclass(frozen=True, slots=True)
class Accept:
    """Device → coordinator: I take part; send the model."""

    CODE: ClassVar[int] = 2
    EVENT: ClassVar[EventKind] = EventKind.ACCEPTED
    STAGE: ClassVar[Stage] = Stage.INVITE
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("run_id", TEXT),
        ("round_number", UNSIGNED),
        ("device", UNSIGNED),
    )
    run_id: str
    round_number: int
    device: int


@dataclass(frozen=True, slots=True)
class Decline:
    """Device → coordinator: I do not take part; ``reason`` is a :class:`~edge.vocabulary.Reason`."""

    CODE: ClassVar[int] = 3
    EVENT: ClassVar[EventKind] = EventKind.DECLINED
    STAGE: ClassVar[Stage] = Stage.INVITE
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("run_id", TEXT),
        ("round_number", UNSIGNED),
        ("device", UNSIGNED),
        ("reason", UNSIGNED),
    )
    run_id: str
    round_number: int
    device: int
    reason: int


@dataclass(frozen=True, slots=True)
class Model:
    """Coordinator → device: the global model of this round."""

    CODE: ClassVar[int] = 4
    EVENT: ClassVar[EventKind] = EventKind.MODEL
    STAGE: ClassVar[Stage] = Stage.DOWNLOAD
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("run_id", TEXT),
        ("round_number", UNSIGNED),
        ("arrays", ARRAYS),
    )
    run_id: str
    round_number: int
    arrays: Arrays = field(repr=False)


@dataclass(frozen=True, slots=True)
class Report:
    """Device → coordinator: the update, its aggregation weight and the local training loss."""

    CODE: ClassVar[int] = 5
    EVENT: ClassVar[EventKind] = EventKind.REPORT
    STAGE: ClassVar[Stage] = Stage.REPORT
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("run_id", TEXT),
        ("round_number", UNSIGNED),
        ("device", UNSIGNED),
        ("examples", UNSIGNED),
        ("weight", REAL),
        ("loss", REAL),
        ("arrays", ARRAYS),
    )
    run_id: str
    round_number: int
    device: int
    examples: int
    weight: float
    loss: float
    arrays: Arrays = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """Device → coordinator: I gave up on this round; ``reason`` is a :class:`~edge.vocabulary.Reason`."""

    CODE: ClassVar[int] = 6
    EVENT: ClassVar[EventKind] = EventKind.FAILED
    STAGE: ClassVar[Stage] = Stage.COMPUTE
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = Decline.FIELDS
    run_id: str
    round_number: int
    device: int
    reason: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Coordinator → device: your report was counted (``reason`` 0), or why it was not."""

    CODE: ClassVar[int] = 7
    EVENT: ClassVar[EventKind] = EventKind.ACKNOWLEDGED
    STAGE: ClassVar[Stage] = Stage.ACKNOWLEDGE
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("run_id", TEXT),
        ("round_number", UNSIGNED),
        ("reason", UNSIGNED),
    )
    run_id: str
    round_number: int
    reason: int


Message = Invite | Accept | Decline | Model | Report | Failure | Acknowledge
MESSAGE_TYPES: tuple[type[Message], ...] = (Invite, Accept, Decline, Model, Report, Failure, Acknowledge)


def array_bytes(message: Message) -> int:
    """Return the payload of ``message`` in bytes: the raw data of its arrays, without any framing."""
    kind = type(message)
    if kind is not Report and kind is not Model:
        return 0
    size = 0
    for array in message.arrays.values():  # type: ignore[union-attr]
        size += array.nbytes
    return size
