"""The typed messages between coordinator and devices.

Every message names its run and round, so that a stale or replayed frame is recognised. Down messages carry
no device id: they are the same for every receiver, so a broadcast is one object and one encoded frame.
The messages are named tuples, the quickest of Python's immutable records: a simulation makes millions of
them. :data:`KINDS` says how each type travels and what its transfer is called.
"""

from __future__ import annotations

from typing import NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import EventKind, Stage

Arrays = dict[str, npt.NDArray[np.generic]]

UNSIGNED = "unsigned"
"""An int from 0 to 2**64 − 1."""
REAL = "real"
"""A float64; finite unless the field says otherwise."""
TEXT = "text"
"""A short str."""
ARRAYS = "arrays"
"""A dict of names to arrays."""


class Invite(NamedTuple):
    """Coordinator → device: take part in this round.

    ``report_within_s`` counts from the moment the invitation was sent, so that device clocks need not agree.
    ``model_bytes`` is the size of the model frame, so that a device can decline what it cannot hold.
    """

    run_id: str
    round_number: int
    task: str
    report_within_s: float
    model_bytes: int


class Accept(NamedTuple):
    """Device → coordinator: I take part; send the model."""

    run_id: str
    round_number: int
    device: int


class AcceptBare(NamedTuple):
    """Device → coordinator: I take part; send, with the model, what never changes: I do not have it yet."""

    run_id: str
    round_number: int
    device: int


class Decline(NamedTuple):
    """Device → coordinator: I do not take part; ``reason`` is a :class:`~edge.core.vocabulary.Reason`."""

    run_id: str
    round_number: int
    device: int
    reason: int


class Model(NamedTuple):
    """Coordinator → device: the global model of this round."""

    run_id: str
    round_number: int
    arrays: Arrays


class Report(NamedTuple):
    """Device → coordinator: the update, its aggregation weight and the local training loss."""

    run_id: str
    round_number: int
    device: int
    examples: int
    weight: float
    loss: float
    arrays: Arrays


class Failure(NamedTuple):
    """Device → coordinator: I gave up on this round; ``reason`` is a ``Reason``."""

    run_id: str
    round_number: int
    device: int
    reason: int


class Acknowledge(NamedTuple):
    """Coordinator → device: your report was counted (``reason`` 0), or why it was not."""

    run_id: str
    round_number: int
    reason: int


FROM_DEVICES = (Accept, AcceptBare, Decline, Report, Failure)
"""What devices send."""

Message = Invite | Accept | AcceptBare | Decline | Model | Report | Failure | Acknowledge


class MessageKind(NamedTuple):
    """What there is to know of a type of message.

    ``code`` stands for it on the wire. ``event`` and ``stage`` are what its transfer is called in logs.
    """

    code: int
    event: EventKind
    stage: Stage


KINDS: dict[type[Message], MessageKind] = {
    Invite: MessageKind(1, EventKind.INVITED, Stage.INVITE),
    Accept: MessageKind(2, EventKind.ACCEPTED, Stage.INVITE),
    Decline: MessageKind(3, EventKind.DECLINED, Stage.INVITE),
    Model: MessageKind(4, EventKind.MODEL, Stage.DOWNLOAD),
    Report: MessageKind(5, EventKind.REPORT, Stage.REPORT),
    Failure: MessageKind(6, EventKind.FAILED, Stage.COMPUTE),
    Acknowledge: MessageKind(7, EventKind.ACKNOWLEDGED, Stage.ACKNOWLEDGE),
    AcceptBare: MessageKind(8, EventKind.ACCEPTED, Stage.INVITE),
}
"""Every type of message; codes are only ever added."""


def fields_of(message_type: type[NamedTuple]) -> tuple[tuple[str, str], ...]:
    """Return name and kind of each field of a type of message, as they are sent, run and round first."""
    kinds = {int: UNSIGNED, float: REAL, str: TEXT, Arrays: ARRAYS}
    return tuple((name, kinds[hint]) for name, hint in get_type_hints(message_type).items())
