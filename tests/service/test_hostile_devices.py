"""A device that sends what it should not: it is refused by name, and the round goes on without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import numpy.typing as npt
import pytest
from service_helpers import SMALL, Silent, loaded_text, rows_of

from coordinator.engine.assembly import Assembly
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_assembled
from coordinator.scenario.load import LoadedScenario
from coordinator.service.backend import FRAMES_OF_ROUND
from coordinator.service.conducting import RealTime
from coordinator.service.local_devices import LocalDevices
from edge.core.errors import RemoteProtocolError
from edge.wire.codec import decode, encode
from edge.wire.messages import (
    Abort,
    Accept,
    AnyMessage,
    Decline,
    Failure,
    Invite,
    Model,
    Report,
    UnmaskShares,
)
from edge.wire.session import Received, Session, SessionEnded, SessionLimits
from edge.wire.session_frames import PROTOCOL, Hello, Welcome, pack, unpack

STAGES = "stage_deadlines: {share_keys: 5 s, masked_input: 5 s, unmask: 5 s, consistency: 5 s}"
MASKED = f"secure_aggregation: {{mode: secagg-plus, clip: 1, {STAGES}}}\n"
STRANGER = 11
LIMITS = SessionLimits(1 << 26, 1 << 28, 1e3, 1e4, 1e4)

Answer = Callable[[AnyMessage], Iterator[AnyMessage | bytes]]


async def live(url: str, answer: Answer) -> str:
    """Join as the stranger and answer every message with what ``answer`` says, until it is all over."""
    session = Session(LIMITS, client=True)
    async with aiohttp.ClientSession() as http, http.ws_connect(url + "/v1/join", max_msg_size=0) as socket:
        await socket.send_bytes(pack(Hello(PROTOCOL, STRANGER, "", "", "", 0)))
        assert isinstance(unpack((await socket.receive()).data), Welcome)
        while True:
            while (data := session.next_frame(0.0)) is not None:
                await socket.send_bytes(data)
            message = await socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                return "closed"
            for event in session.receive(message.data, 0.0):
                if isinstance(event, SessionEnded):
                    return event.reason
                if isinstance(event, Received):
                    for said in answer(decode(event.frame)):
                        session.send(said if isinstance(said, bytes) else encode(said))


def run_with(tmp_path: Path, text: str, answer: Answer) -> tuple[list[dict[str, object]], str]:
    """Run a round of all twelve devices, one of them a stranger; return their rows and its end."""
    text = text.replace("count: 3", "count: 1").replace("cohort: 6", "cohort: 12, quorum: 6")
    loaded = loaded_text(tmp_path, text)
    ends: list[str] = []

    @asynccontextmanager
    async def company(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        async def stranger() -> None:
            ends.append(await live(url, answer))

        async with asyncio.TaskGroup() as group:
            ours = LocalDevices(url, range(STRANGER), shaped=False, known=(loaded, assembly))
            group.create_task(ours.run())
            group.create_task(stranger())
            yield

    conductor = RealTime(wait_for=12, company=company)
    outcome = run_assembled(
        loaded, assemble(loaded), target=tmp_path / "run", observer=Silent(), conductor=conductor
    )
    (row,) = rows_of(outcome, "rounds")
    assert (row["outcome"], row["completed"]) == ("completed", 11)
    rows = [row for row in rows_of(outcome, "device_rounds") if row["device"] == STRANGER]
    return rows, ends[0]


def filled_with(value: float) -> dict[str, npt.NDArray[np.generic]]:
    return {"item_rows": np.full((40, 5), value, np.float32)}


def report(message: AnyMessage, **changes: object) -> Report:
    whole = Report(message.run_id, message.round_number, STRANGER, 3, 1.0, 0.5, filled_with(0.0))
    return whole._replace(**changes)  # type: ignore[arg-type]


def after_accepting(*then: Callable[[AnyMessage], AnyMessage | bytes]) -> Answer:
    def answer(message: AnyMessage) -> Iterator[AnyMessage | bytes]:
        if isinstance(message, Invite):
            yield Accept(message.run_id, message.round_number, STRANGER)
        elif isinstance(message, Model):
            for make in then:
                yield make(message)

    return answer


PLAIN = {
    "garbage": lambda message: b"\xc1garbage",
    "arrays of another shape": lambda message: report(message, arrays={"weights": np.zeros(3)}),
    "no arrays": lambda message: report(message, arrays={}),
    "a failure for no known reason": lambda message: Failure(
        message.run_id, message.round_number, STRANGER, 9999
    ),
}


OUTSIDE: dict[str, dict[str, object]] = {
    "too many examples": {"examples": 2**64 - 1},
    "a weight that takes those of eight others away": {"weight": -8.0},
    "a weight of many": {"weight": 9.0},
    "a weight that is hardly one": {"weight": 5e-324},
    "a loss that no other outweighs": {"loss": -1.7e308},
    "a loss that no chart has room for": {"loss": 1.7e308},
    "an update that freezes the model": {"arrays": filled_with(1e30)},
}


@pytest.mark.few(3)
@pytest.mark.parametrize("what", OUTSIDE)
def test_a_number_outside_its_range_does_not_count(tmp_path: Path, what: str) -> None:
    (row,), end = run_with(tmp_path, SMALL, after_accepting(lambda m: report(m, **OUTSIDE[what])))
    assert (row["outcome"], row["reason"]) == ("failed", "out-of-range")
    assert row["examples"] == 0
    assert end == "the run is over"


@pytest.mark.few(2)
@pytest.mark.parametrize("what", PLAIN)
def test_a_bad_report_does_not_count(tmp_path: Path, what: str) -> None:
    (row,), end = run_with(tmp_path, SMALL, after_accepting(PLAIN[what]))
    assert (row["outcome"], row["reason"]) == ("failed", "garbage")
    assert end == "the run is over"


def test_a_refusal_for_no_known_reason(tmp_path: Path) -> None:
    def answer(message: AnyMessage) -> Iterator[AnyMessage]:
        if isinstance(message, Invite):
            yield Decline(message.run_id, message.round_number, STRANGER, 2**64 - 1)

    (row,), _ = run_with(tmp_path, SMALL, answer)
    assert (row["outcome"], row["reason"]) == ("declined", "garbage")


def test_one_speaks_for_another(tmp_path: Path) -> None:
    def for_another(message: AnyMessage) -> AnyMessage:
        return report(message, device=0)

    def give_up(message: AnyMessage) -> AnyMessage:
        return Failure(message.run_id, message.round_number, STRANGER, 3)

    (row,), _ = run_with(tmp_path, SMALL, after_accepting(for_another, give_up))
    assert (row["outcome"], row["reason"]) == ("failed", "memory")
    assert row["discarded_bytes"] > 300  # type: ignore[operator]


def test_a_flood_ends_the_session(tmp_path: Path) -> None:
    def answer(message: AnyMessage) -> Iterator[AnyMessage]:
        if isinstance(message, Invite):
            for _ in range(FRAMES_OF_ROUND + 10):
                yield Accept(message.run_id, message.round_number, STRANGER)

    (row,), _ = run_with(tmp_path, SMALL, answer)
    assert (row["outcome"], row["reason"]) == ("dropped", "garbage")


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda message: UnmaskShares(message.run_id, message.round_number, STRANGER, {}),
    lambda message: Abort(message.run_id, message.round_number, STRANGER, "no error of ours"),
    report,
], ids=["out of order", "abort", "report"])  # fmt: skip
def test_a_secure_sum_is_made_without_it(
    tmp_path: Path, make: Callable[[AnyMessage], AnyMessage | bytes]
) -> None:
    # Whoever is silent is waited for until every deadline is over.
    text = SMALL.replace("deadline: 60 s", "deadline: 5 s") + MASKED
    rows, _ = run_with(tmp_path, text, after_accepting(make))
    assert rows[0]["outcome"] != "completed"


def test_bytes_after_a_report_change_nothing(tmp_path: Path) -> None:
    def answer(message: AnyMessage) -> Iterator[AnyMessage | bytes]:
        if isinstance(message, Invite):
            yield Accept(message.run_id, message.round_number, STRANGER)
        elif isinstance(message, Model):
            yield report(message, arrays={})
            yield report(message)
            yield report(message)

    (row,), _ = run_with(tmp_path, SMALL, answer)
    assert row["outcome"] == "failed"


def test_the_session_layer_refuses_before_the_round_does() -> None:
    session = Session(LIMITS, client=False)
    with pytest.raises(RemoteProtocolError):
        session.receive(b"\x00", 0.0)
