from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.network.outages import (
    OUTAGES_PER_EPOCH,
    epoch_edges,
    epoch_of,
    in_outage,
    outage_end,
    outage_intervals,
    outage_start,
    stretch_at,
)

KEY = 0x1234_5678_9ABC_DEF0
FRACTION, MEAN_S = 0.083, 3.2


def _same(n: int, fraction: float = FRACTION, mean_s: float = MEAN_S) -> tuple[np.ndarray, np.ndarray]:
    return np.full(n, fraction), np.full(n, mean_s)


def test_the_share_of_time_down_is_the_fraction() -> None:
    n = 200_000
    for fraction in (0.02, 0.3, 0.9):
        down = in_outage(KEY, np.arange(n), 12_345.6, *_same(n, fraction))
        sigma = np.sqrt(fraction * (1 - fraction) / n)
        assert down.mean() == pytest.approx(fraction, abs=4 * sigma)


def test_the_mean_outage_is_as_long_as_documented() -> None:
    lengths = [
        end - start
        for device in range(20)
        for start, end in outage_intervals(KEY, device, 0.0, 50_000.0, fraction=FRACTION, mean_s=MEAN_S)
    ]
    expected = MEAN_S / (1 + FRACTION * (1 - FRACTION) / OUTAGES_PER_EPOCH)
    assert len(lengths) > 20_000
    assert np.mean(lengths) == pytest.approx(expected, abs=4 * MEAN_S / np.sqrt(len(lengths)))


@settings(deadline=None)
@given(
    device=st.integers(0, 10**6),
    t=st.floats(0, 1e7),
    fraction=st.floats(0.001, 0.99),
    mean=st.floats(0.01, 1e4),
)
def test_start_and_end_are_where_the_state_changes(
    device: int, t: float, fraction: float, mean: float
) -> None:
    ids, (share, means) = np.array([device]), _same(1, fraction, mean)
    end = outage_end(KEY, ids, t, share, means)
    start = outage_start(KEY, ids, t, share, means)
    down = in_outage(KEY, ids, t, share, means)[0]
    assert (end[0] > t, start[0] > t) == (down, not down)
    changes = end if down else start
    assert in_outage(KEY, ids, changes, share, means)[0] != down
    assert in_outage(KEY, ids, np.nextafter(changes, 0.0), share, means)[0] == down
    # A stretch may be a few floats long: a sum that is rounded up must not leave it.
    inside = np.minimum(t + (changes[0] - t) * np.array([0.1, 0.5, 0.9]), np.nextafter(changes, 0.0))
    assert (in_outage(KEY, np.full(3, device), inside, *_same(3, fraction, mean)) == down).all()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), min_size=1, max_size=30))
def test_an_answer_depends_on_nobody_else(questions: list[tuple[int, float]]) -> None:
    ids = np.array([q[0] for q in questions])
    times = np.array([q[1] for q in questions])
    down, until = stretch_at(KEY, ids, times, *_same(len(questions)))
    for i in reversed(range(len(questions))):
        alone = stretch_at(KEY, ids[i : i + 1], times[i], *_same(1))
        assert (alone[0][0], alone[1][0]) == (down[i], until[i])
    assert (until > times).all()


def test_the_edges_of_an_epoch_are_those_of_the_questions() -> None:
    n = 500
    ids, (share, means) = np.arange(n), _same(n)
    length = OUTAGES_PER_EPOCH * means / share
    epoch = np.full(n, 3)
    first, edges = epoch_edges(KEY, ids, epoch, share, means)
    assert (edges[:, -1] >= (epoch + 1) * length).all()
    assert (np.diff(edges, axis=1) >= 0).all()
    for times in (epoch * length, epoch * length + 0.5 * length, np.nextafter((epoch + 1) * length, 0)):
        down, until = stretch_at(KEY, ids, times, share, means)
        passed = (edges <= times[:, np.newaxis]).sum(axis=1)
        assert (down == first ^ (passed % 2 == 1)).all()
        assert (until == np.minimum(edges[np.arange(n), passed], (epoch + 1) * length)).all()


@settings(deadline=None)
@given(epoch=st.integers(0, 10**9), length=st.floats(1e-3, 1e6))
def test_epochs_start_at_their_own_boundaries(epoch: int, length: float) -> None:
    lengths = np.array([length])
    boundary = np.array([epoch * length])
    assert epoch_of(boundary, lengths)[0] == epoch
    if epoch:
        assert epoch_of(np.nextafter(boundary, 0.0), lengths)[0] == epoch - 1


def test_intervals_cover_exactly_the_outages_and_are_cut_to_the_window() -> None:
    fraction, mean = 0.4, 2.0
    intervals = outage_intervals(KEY, 11, 10.0, 400.0, fraction=fraction, mean_s=mean)
    times = np.linspace(10.0, 400.0, 3_901)[:-1]
    inside = np.zeros(times.shape, dtype=bool)
    for start, end in intervals:
        assert 10.0 <= start < end <= 400.0
        inside |= (start <= times) & (times < end)
    assert (inside == in_outage(KEY, np.full(times.shape, 11), times, *_same(3_900, fraction, mean))).all()


def test_neighbouring_windows_give_the_outages_of_both() -> None:
    whole = outage_intervals(KEY, 3, 0.0, 2_000.0, fraction=0.3, mean_s=4.0)
    cut = sum(
        b - a
        for t in range(0, 2_000, 50)
        for a, b in outage_intervals(KEY, 3, t, t + 50.0, fraction=0.3, mean_s=4.0)
    )
    assert cut == pytest.approx(sum(b - a for a, b in whole))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(whole))


def test_a_link_without_outages_is_never_down() -> None:
    ids = np.array([1, 2, 3])
    share, means = np.array([0.0, 0.5, 0.0]), np.array([np.nan, 3.0, 0.0])
    down, until = stretch_at(KEY, ids, 77.0, share, means)
    assert not down[[0, 2]].any()
    assert np.isinf(until[[0, 2]]).all()
    assert np.isfinite(until[1])
    assert outage_start(KEY, ids, 77.0, share, means)[0] == np.inf
    assert outage_end(KEY, ids[:1], 77.0, share[:1], means[:1])[0] == 77.0
    assert outage_intervals(KEY, 1, 0.0, 1e9, fraction=0.0, mean_s=0.0) == []


@pytest.mark.parametrize(
    ("fraction", "mean_s", "says"),
    [
        (-0.1, 3.0, "fraction is in"),
        (1.0, 3.0, "never reachable"),
        (np.nan, 3.0, "fraction is in"),
        (0.1, 0.0, "positive seconds"),
        (0.1, np.inf, "positive seconds"),
    ],
)
def test_senseless_outages_are_refused(fraction: float, mean_s: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        in_outage(KEY, np.arange(2), 0.0, np.array([0.1, fraction]), np.array([3.0, mean_s]))
