"""What the time a message takes on the coordinator's host is made of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from service_helpers import SMALL, loaded_text, run_real

from coordinator.service import backend, sessions
from coordinator.service.hooks import ServiceObserver

DECODING_S, ENCODING_S = 1.0, 100.0


class Stopwatch(ServiceObserver):
    """Notes how long messages took."""

    def __init__(self) -> None:
        self.handled_s: list[float] = []

    def on_handled(self, seconds: float) -> None:
        self.handled_s.append(seconds)


def test_it_is_that_of_decoding_of_the_round_and_of_encoding_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that only decoding and encoding move: 6 devices of a round accept and report."""
    now_s = [0.0]
    decode, encode = backend.decode, sessions.encode

    def slow_decode(*arguments: Any) -> Any:
        now_s[0] += DECODING_S
        return decode(*arguments)

    def slow_encode(*arguments: Any) -> Any:
        now_s[0] += ENCODING_S
        return encode(*arguments)

    monkeypatch.setattr(backend, "decode", slow_decode)
    monkeypatch.setattr(sessions, "encode", slow_encode)
    monkeypatch.setattr(backend, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    watch = Stopwatch()
    loaded = loaded_text(tmp_path, SMALL, ["rounds.count=1"])
    run_real(loaded, tmp_path / "run", observer=watch)
    # The model is encoded for the first who accepts, and the receipt for the first who reports.
    both_s = DECODING_S + ENCODING_S
    assert sorted(watch.handled_s) == [*[DECODING_S] * 10, both_s, both_s]
