"""The lengths of a round's frames, known before it starts, for all invited devices at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import Direction
from edge.learning.updates import ArraySpec
from edge.network.cohort import Frame
from edge.wire.codec import array_frame_sizes, frame_size, unsigned_sizes
from edge.wire.messages import Accept, Acknowledge, Report

Ids = npt.NDArray[np.int64]


def frame_sizes(
    run_id: str,
    round_number: int,
    devices: Ids,
    invite_bytes: int,
    model_bytes: Ids,
    examples: Ids,
    upload: Sequence[ArraySpec] | None,
) -> list[Frame]:
    """Return invitation, acceptance, model, report and receipt, each with its length for every device.

    Of a round whose updates are summed securely only the first three are foreseen.

    Parameters
    ----------
    devices : int64 [n].
    invite_bytes : length of the invitation.
    model_bytes : int64 [n], length of the model as each device is sent it.
    examples : int64 [n], what each device will report as its number of examples.
    upload : the arrays of a report; None for a secure sum.

    A report that turns out differently (a device with several users may upload less) is merely not foreseen.
    """
    n = len(devices)

    def same(size: int) -> Ids:
        return np.full(n, size, dtype=np.int64)

    of_device = unsigned_sizes(devices) - 1
    accept = frame_size(Accept(run_id, round_number, 0)) + of_device
    frames = [
        Frame(Direction.DOWN, same(invite_bytes)),
        Frame(Direction.UP, accept),
        Frame(Direction.DOWN, model_bytes),
    ]
    if upload is None:
        return frames
    report = frame_size(Report(run_id, round_number, 0, 0, 0.0, 0.0, {})) + of_device
    report += unsigned_sizes(examples) - 1
    for spec in upload:
        report += 1 + len(spec.name) + array_frame_sizes(1 + len(spec.row_shape), spec.nbytes())
    return [
        *frames,
        Frame(Direction.UP, report),
        Frame(Direction.DOWN, same(frame_size(Acknowledge(run_id, round_number, 0)))),
    ]
