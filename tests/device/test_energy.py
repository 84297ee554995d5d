from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.engine.round_records import device_energy
from device_profiles.profile import RadioProfile
from edge.core.log import EventLog, pack_record
from edge.core.vocabulary import Direction, EventKind, Fate, Reason, Stage
from edge.device.compute_model import RadioSpecs, Tail, compute_joules, found_idle, radio_joules, tail_after

LTE = RadioProfile(
    "lte",
    promotion_s=0.26,
    promotion_w=1.21,
    tail_s=10.0,
    tail_w=1.06,
    tail2_s=0.0,
    tail2_w=0.0,
    base_w=1.2,
    up_w_per_bps=438.39e-9,
    down_w_per_bps=51.97e-9,
)
UMTS = RadioProfile(
    "umts",
    promotion_s=2.0,
    promotion_w=0.3,
    tail_s=4.0,
    tail_w=0.6,
    tail2_s=10.0,
    tail2_w=0.38,
    base_w=0.6,
    up_w_per_bps=0.0,
    down_w_per_bps=0.0,
)


def test_compute_energy_is_power_times_time() -> None:
    assert compute_joules(np.array([3.5, 2.0]), np.array([10.0, 0.0])).tolist() == [35.0, 0.0]


def test_one_lte_upload_by_hand() -> None:
    # 8 Mbit up at 4 Mbit/s: 2 s at 1.2 W + 438.39 mW/Mbps · 4 Mbps, one promotion, the whole tail.
    radio = RadioSpecs.of([LTE])
    found = radio_joules(
        radio,
        transfer_s=np.array([2.0]),
        up_bits=np.array([8_000_000]),
        down_bits=np.array([0]),
        promotions=np.array([1]),
        tail=tail_after(np.array([np.inf]), radio),
    )
    expected = 0.26 * 1.21 + 2.0 * (1.2 + 0.43839 * 4) + 10.0 * 1.06
    assert found == pytest.approx([expected], rel=1e-12)


def test_both_tails_and_the_download_slope() -> None:
    radio = RadioSpecs.of([UMTS, LTE]).take(np.array([1, 0, 0]))
    found = radio_joules(
        radio,
        transfer_s=np.array([1.0, 1.0, 3.0]),
        up_bits=np.zeros(3),
        down_bits=np.array([1e7, 1e7, 0.0]),
        promotions=np.array([0, 2, 0]),
        tail=Tail(np.array([0.0, 4.0, 1.0]), np.array([0.0, 2.5, 0.0])),
    )
    assert found == pytest.approx(
        [1.2 + 51.97e-9 * 1e7, 2 * 2.0 * 0.3 + 0.6 + 4 * 0.6 + 2.5 * 0.38, 3 * 0.6 + 0.6], rel=1e-12
    )


def test_the_next_activity_cuts_the_tail_short() -> None:
    radio = RadioSpecs.of([UMTS]).take(np.zeros(5, np.int64))
    tail = tail_after(np.array([0.0, 1.5, 4.0, 9.0, np.inf]), radio)
    assert tail.tail_s.tolist() == [0.0, 1.5, 4.0, 4.0, 4.0]
    assert tail.tail2_s.tolist() == [0.0, 0.0, 0.0, 5.0, 10.0]


def test_the_radio_is_idle_once_both_tails_are_over() -> None:
    radio = RadioSpecs.of([UMTS]).take(np.zeros(4, np.int64))
    gaps = np.array([0.0, 13.999, 14.0, np.inf])
    assert found_idle(gaps, radio).tolist() == [False, False, True, True]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_tails_and_gaps_never_overlap(gaps: list[float]) -> None:
    radio = RadioSpecs.of([UMTS]).take(np.zeros(len(gaps), np.int64))
    gap_s = np.array(gaps)
    tail = tail_after(gap_s, radio)
    up_s = tail.tail_s + tail.tail2_s
    np.testing.assert_allclose(up_s, np.minimum(gap_s, 14.0), rtol=1e-15)
    np.testing.assert_array_equal(found_idle(gap_s, radio), gap_s >= 14.0)


def test_energy_is_the_integral_of_power_over_a_timeline() -> None:
    # UMTS: idle, promotion, 2 s of transfer, gap of 6 s, 1 s of transfer, then nothing.
    power_w = [(2.0, 0.3), (2.0, 0.6), (4.0, 0.6), (2.0, 0.38), (1.0, 0.6), (4.0, 0.6), (10.0, 0.38)]
    expected = sum(seconds * watts for seconds, watts in power_w)
    radio = RadioSpecs.of([UMTS])
    gaps = [np.array([6.0]), np.array([np.inf])]
    tails = [tail_after(gap, radio) for gap in gaps]
    found = radio_joules(
        radio,
        transfer_s=np.array([3.0]),
        up_bits=np.zeros(1),
        down_bits=np.zeros(1),
        promotions=np.array([1]) + found_idle(gaps[0], radio),
        tail=Tail(tails[0].tail_s + tails[1].tail_s, tails[0].tail2_s + tails[1].tail2_s),
    )
    assert found == pytest.approx([expected], rel=1e-12)


def test_a_row_does_not_depend_on_its_batch() -> None:
    rng = np.random.default_rng(0)
    radio = RadioSpecs.of([LTE, UMTS]).take(rng.integers(0, 2, 37))
    columns = rng.uniform(0, 1e6, (4, 37))

    def joules(rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        part = radio.take(rows)
        return radio_joules(
            part,
            transfer_s=columns[0, rows],
            up_bits=columns[1, rows],
            down_bits=columns[2, rows],
            promotions=np.ones(rows.size, np.int64),
            tail=tail_after(columns[3, rows], part),
        )

    rows = rng.permutation(37)[:11]
    np.testing.assert_array_equal(joules(np.arange(37))[rows], joules(rows))


def test_the_energy_of_a_round_is_of_its_transfers_and_computations() -> None:
    """One device computes for 10 s, then uploads 8 Mbit in 2.26 s, 0.26 s of which its radio wakes up in."""
    log = EventLog()
    rest = (Fate.DISCARDED, Reason.STALE)

    def record(slot: int, kind: EventKind, way: Direction, span_s: tuple[float, float], size: int) -> None:
        stage = Stage.COMPUTE if way is Direction.NONE else Stage.REPORT
        # Payload, framing, headers and what was sent again: the radio carries them all.
        parts = (size - 60, 30, 20, 10) if size else (0, 0, 0, 0)
        log.extend(pack_record(span_s[1], slot, 7, kind, stage, way, *span_s, *parts, *rest))

    record(0, EventKind.COMPUTED, Direction.NONE, (0.0, 10.0), 0)
    record(0, EventKind.REPORT, Direction.UP, (10.0, 12.26), 1_000_000)
    # A stranger, and a frame that never reached the air, cost it nothing.
    record(-1, EventKind.GARBAGE, Direction.UP, (3.0, 5.0), 1_000_000)
    record(0, EventKind.ACKNOWLEDGED, Direction.DOWN, (12.5, 12.5), 300)
    compute_j, radio_j = device_energy(log.columns(), 1, np.array([3.5]), RadioSpecs.of([LTE]))
    assert compute_j.tolist() == [35.0]
    assert radio_j == pytest.approx([0.26 * 1.21 + 2.0 * (1.2 + 0.43839 * 4) + 10.0 * 1.06], rel=1e-12)
