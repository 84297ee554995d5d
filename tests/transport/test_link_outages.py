from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outage_stretches import stretch_at

from edge.network.conditions import OUTAGES_PER_EPOCH, check_outages, epoch_edges, epoch_of

KEY = 0x1234_5678_9ABC_DEF0
FRACTION, MEAN_S = 0.083, 3.2


def _same(n: int, fraction: float = FRACTION, mean_s: float = MEAN_S) -> tuple[np.ndarray, np.ndarray]:
    return np.full(n, fraction), np.full(n, mean_s)


def test_the_share_of_time_down_is_the_fraction() -> None:
    n = 200_000
    for fraction in (0.02, 0.3, 0.9):
        down, _ = stretch_at(KEY, np.arange(n), 12_345.6, *_same(n, fraction))
        sigma = np.sqrt(fraction * (1 - fraction) / n)
        assert down.mean() == pytest.approx(fraction, abs=4 * sigma)


def outages_of(device: int, epochs: int) -> list[tuple[float, float]]:
    """Return start and end of the outages of a device's first epochs, one list over their boundaries."""
    share, means = _same(epochs)
    numbers = np.arange(epochs)
    length = OUTAGES_PER_EPOCH * MEAN_S / FRACTION
    first_down, edges = epoch_edges(KEY, np.full(epochs, device), numbers, share, means)
    found: list[tuple[float, float]] = []
    for number, down, row in zip(numbers.tolist(), first_down.tolist(), edges.tolist(), strict=True):
        end = (number + 1) * length
        changes = [number * length, *(edge for edge in row if edge < end), end]
        for start_s, end_s in itertools.islice(itertools.pairwise(changes), 0 if down else 1, None, 2):
            joined = found and found[-1][1] == start_s
            found.append((found.pop()[0] if joined else start_s, end_s))
    return found


def test_the_mean_outage_is_as_long_as_documented() -> None:
    lengths = [end - start for device in range(20) for start, end in outages_of(device, 160)]
    expected = MEAN_S / (1 + FRACTION * (1 - FRACTION) / OUTAGES_PER_EPOCH)
    assert len(lengths) > 20_000
    assert np.mean(lengths) == pytest.approx(expected, abs=4 * MEAN_S / np.sqrt(len(lengths)))


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


def test_a_link_without_outages_is_never_down() -> None:
    ids = np.array([1, 2, 3])
    share, means = np.array([0.0, 0.5, 0.0]), np.array([np.nan, 3.0, 0.0])
    down, until = stretch_at(KEY, ids, 77.0, share, means)
    assert not down[[0, 2]].any()
    assert np.isinf(until[[0, 2]]).all()
    assert np.isfinite(until[1])


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
        check_outages(np.array([0.1, fraction]), np.array([3.0, mean_s]))
