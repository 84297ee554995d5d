from __future__ import annotations

from collections.abc import Callable

import pytest
from swarm_helpers import MASKED, PLAIN, BrokenTables, breakable, said, trial_of

from coordinator.swarm.invariants.conservation import conserved_bytes, exact_frames
from coordinator.swarm.trial import Trial
from edge.core.vocabulary import Direction, EventKind, Fate, label


@pytest.fixture(scope="module", params=[PLAIN, MASKED], ids=["plain", "masked"])
def trial(request: pytest.FixtureRequest) -> Trial:
    return trial_of(request.param)


def test_a_run_without_bugs_counts_every_byte(trial: Trial) -> None:
    assert len(trial.record.deliveries) > 30
    assert said(conserved_bytes, trial) == []
    assert said(exact_frames, trial) == []


@pytest.mark.parametrize("column", ["up_bytes", "down_payload_bytes", "lost_bytes", "download_down_bytes"])
def test_a_device_that_counts_a_byte_too_many(trial: Trial, column: str) -> None:
    broken, tables = breakable(trial)
    tables.change("device_rounds", 0, column, lambda value: value + 1)
    assert said(conserved_bytes, broken)


@pytest.mark.parametrize("column", ["up_bytes", "down_tcp_ip_bytes", "discarded_bytes", "invited"])
def test_a_round_that_counts_one_too_many(trial: Trial, column: str) -> None:
    broken, tables = breakable(trial)
    tables.change("rounds", 1, column, lambda value: value + 1)
    assert said(conserved_bytes, broken)


def test_more_wasted_than_was_sent(trial: Trial) -> None:
    broken, tables = breakable(trial)
    tables.change("device_rounds", 0, "wasted_bytes", lambda _: 10**9)
    assert "are said to be wasted" in said(conserved_bytes, broken)[0]


def arrived(tables: BrokenTables) -> int:
    """Return the event of a frame that has come up."""
    return tables.find("events", kind=label(EventKind.ACCEPTED), direction=label(Direction.UP))


@pytest.mark.parametrize(
    "break_event",
    [
        lambda tables: tables.drop("events", arrived(tables)),
        lambda tables: tables.change("events", arrived(tables), "framing_bytes", lambda value: value - 1),
        lambda tables: tables.change("events", arrived(tables), "direction", lambda _: label(Direction.NONE)),
        lambda tables: tables.change("events", arrived(tables), "fate", lambda _: label(Fate.LOST)),
        lambda tables: tables.change("events", arrived(tables), "device", lambda value: value + 1),
    ],
    ids=["dropped", "smaller", "nowhere", "lost", "another's"],
)
def test_an_event_that_is_wrong(trial: Trial, break_event: Callable[[BrokenTables], None]) -> None:
    broken, tables = breakable(trial)
    break_event(tables)
    assert said(conserved_bytes, broken)


def test_a_frame_that_nobody_tells_of(trial: Trial) -> None:
    broken, _ = breakable(trial)
    broken.record.deliveries.append(broken.record.deliveries[0])
    assert "2 frames were sent, and 1 are told of" in said(conserved_bytes, broken)[0]


def test_a_frame_that_was_never_sent(trial: Trial) -> None:
    broken, _ = breakable(trial)
    del broken.record.deliveries[0]
    assert "1 frames are told of, and 0 were sent" in said(conserved_bytes, broken)[0]


def test_a_frame_of_another_length(trial: Trial) -> None:
    broken, _ = breakable(trial)
    size, payload = broken.record.sizes[3]
    broken.record.sizes[3] = size + 1, payload
    assert "was sent as one of" in said(exact_frames, broken)[0]
