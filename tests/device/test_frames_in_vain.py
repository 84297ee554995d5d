"""Frames to a device that is gone: TCP sends a window of them, with its headers, and hears nothing more."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.core.log import RECORD, Column
from edge.core.vocabulary import Direction, Fate, Reason
from edge.device.simulated import RecordedLink
from edge.network.link import Delivery
from edge.wire.codec import measure
from edge.wire.messages import Acknowledge, AnyMessage, Model


class Link(RecordedLink):
    def arrived(self, delivery: Delivery) -> None:
        raise NotImplementedError

    def delivered(self, delivery: Delivery) -> None:
        raise NotImplementedError


def sent_in_vain(message: AnyMessage) -> tuple[float, ...]:
    records: list[bytes] = []
    link: Any = object.__new__(Link)
    link._services = SimpleNamespace(record=records.append)
    link.loop, link.slot, link.device, link.reason = SimpleNamespace(now_s=2.0), 0, 7, Reason.VANISHED
    link._send_in_vain(Direction.DOWN, message)
    (record,) = records
    return tuple(RECORD.unpack(record))


@pytest.mark.parametrize("values", [0, 3000, 5000])
def test_a_window_of_the_frame_is_lost_with_its_headers(values: int) -> None:
    message: AnyMessage = Acknowledge("run", 1, Reason.NONE)
    if values:
        message = Model("run", 1, {"a": np.zeros(values, np.float32)})
    found = sent_in_vain(message)
    frame_bytes, payload_bytes = measure(message)
    share = min(1.0, 10 * 1448 / frame_bytes)
    assert found[Column.PAYLOAD_BYTES] == int(payload_bytes * share)
    assert found[Column.FRAMING_BYTES] == int((frame_bytes - payload_bytes) * share)
    assert found[Column.TCP_IP_BYTES] == int(52 * math.ceil(frame_bytes / 1448) * share) > 0
    assert found[Column.RETRANSMITTED_BYTES] == 0
    assert (found[Column.FATE], found[Column.REASON]) == (Fate.LOST, Reason.VANISHED)
