from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from availability_models import DAY_S, KINDS, N_DEVICES, PROFILES, model
from hypothesis import given, settings
from hypothesis import strategies as st

from device_profiles.availability import (
    Bernoulli,
    Combined,
    Diurnal,
    RegionalOutage,
    SimpleAvailability,
    TraceAvailability,
)
from device_profiles.errors import ProfileError
from device_profiles.traces import AvailabilityTrace
from edge.core.vocabulary import Stage
from edge.device.availability import NO_STAGE, SEARCH_HORIZON_S, All, Grouped, build

every_kind = pytest.mark.parametrize("kind", KINDS)


def ids_and_times(
    seed: int, n: int, days: float = 40.0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, N_DEVICES, n), rng.uniform(0, days * DAY_S, n)


@pytest.mark.slow
@every_kind
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_an_answer_depends_on_device_and_time_alone(kind: str, seed: int, data: st.DataObject) -> None:
    ids, times = ids_and_times(seed, data.draw(st.integers(1, 60)))
    rows = np.array(data.draw(st.lists(st.integers(0, ids.size - 1), min_size=1, max_size=30)))
    asked, again = model(kind), model(kind)
    for name in ("available", "until", "next_available"):
        whole = getattr(asked, name)(ids, times)
        # Another instance, another order, other company, repeated, later times first.
        np.testing.assert_array_equal(getattr(again, name)(ids[rows], times[rows]), whole[rows])
        one = int(rows[0])
        alone = getattr(again, name)(ids[one : one + 1], float(times[one]))
        np.testing.assert_array_equal(alone, whole[one : one + 1])
    whole_drop = asked.dropout(ids, 3)
    part_drop = again.dropout(ids[rows], np.full(rows.size, 3))
    np.testing.assert_array_equal(part_drop.stage, whole_drop.stage[rows])
    np.testing.assert_array_equal(part_drop.fraction, whole_drop.fraction[rows])


@every_kind
@pytest.mark.few(5)
def test_a_large_batch_is_the_sum_of_its_parts(kind: str) -> None:
    ids = np.random.default_rng(1).permutation(N_DEVICES)
    asked = model(kind)
    for name in ("available", "until", "next_available"):
        whole = getattr(asked, name)(ids, 2e5)
        parts = [getattr(asked, name)(part, 2e5) for part in np.array_split(ids, 9)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@every_kind
def test_dtypes_and_shapes(kind: str) -> None:
    asked = model(kind)
    for n in (0, 1, 5):
        ids = np.arange(n)
        drop = asked.dropout(ids, 0)
        answers = (asked.available(ids, 0.0), asked.until(ids, 0.0), asked.next_available(ids, 0.0), *drop)
        assert [a.dtype for a in answers] == [np.bool_, np.float64, np.float64, np.int8, np.float64]
        assert all(a.shape == (n,) for a in answers)


@every_kind
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_available_exactly_until(kind: str, seed: int) -> None:
    ids, times = ids_and_times(seed, 200)
    asked = model(kind)
    on = asked.available(ids, times)
    until = asked.until(ids, times)
    np.testing.assert_array_equal(until[~on], times[~on])
    assert np.all(until[on] > times[on])

    ids, times, until = ids[on], times[on], until[on]
    ends = np.isfinite(until)
    assert not asked.available(ids[ends], until[ends]).any()
    last = np.where(ends, np.nextafter(until, 0.0), times + SEARCH_HORIZON_S * (1 - 1e-9))
    for share in (0.1, 0.5, 0.9, 1.0):
        probe = np.clip(times + share * (last - times), times, last)
        assert asked.available(ids, probe).all()
        # Asked from inside, the end is the same, unless the search then reaches further.
        later = asked.until(ids, probe)
        np.testing.assert_array_equal(later[ends], until[ends])
        assert np.all(later[~ends] > last[~ends])


@pytest.mark.slow
@every_kind
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_next_available_is_the_first_moment(kind: str, seed: int) -> None:
    ids, times = ids_and_times(seed, 200)
    asked = model(kind)
    on = asked.available(ids, times)
    following = asked.next_available(ids, times)
    np.testing.assert_array_equal(following[on], times[on])
    assert np.all(following[~on] > times[~on])

    ids, times, following = ids[~on], times[~on], following[~on]
    found = np.isfinite(following)
    assert asked.available(ids[found], following[found]).all()
    last = np.where(found, np.nextafter(following, 0.0), times + SEARCH_HORIZON_S * (1 - 1e-9))
    for share in (0.1, 0.5, 0.9, 1.0):
        probe = np.clip(times + share * (last - times), times, last)
        assert not asked.available(ids, probe).any()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in {"always", "bernoulli", "trace"}])
def test_seeds_give_independent_models(kind: str) -> None:
    ids, times = ids_and_times(4, 4000)
    agreement = [
        np.mean(model(kind, 7).available(ids, times) == model(kind, seed).available(ids, times))
        for seed in (7, 8)
    ]
    assert agreement[0] == 1.0
    assert agreement[1] < 1.0


@every_kind
@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_times_outside_the_run_are_refused(kind: str, bad: float) -> None:
    asked = model(kind)
    for name in ("available", "until", "next_available"):
        with pytest.raises(ValueError, match="finite times of 0 s or more"):
            getattr(asked, name)(np.arange(3), np.array([0.0, bad, 1.0]))


def test_all_is_the_conjunction() -> None:
    ids, times = ids_and_times(9, 3000)
    parts = [model("mixed"), model("diurnal")]
    both = All(parts)
    expected = parts[0].available(ids, times) & parts[1].available(ids, times)
    np.testing.assert_array_equal(both.available(ids, times), expected)
    ends = [part.until(ids, times) for part in parts]
    np.testing.assert_array_equal(both.until(ids, times), np.minimum(*ends))
    assert 0 < expected.mean() < min(part.available(ids, times).mean() for part in parts)


@pytest.mark.parametrize("half_s", [50.0, 50_000.0])
def test_models_that_never_agree_are_given_up(half_s: float) -> None:
    halves = [(0.0, half_s), (half_s, 2 * half_s)]
    traces = [AvailabilityTrace.from_sessions([0], [[half]], [2 * half_s]) for half in halves]
    both = All([build(TraceAvailability("t", trace), 1, utc_offset_s=0.0) for trace in traces])
    assert both.next_available(np.arange(2), 10.0).tolist() == [np.inf, np.inf]


def test_all_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        All([])


def test_all_takes_the_earliest_dropout() -> None:
    ids = np.arange(20_000)
    parts = [model("bernoulli"), model("heavy-tail")]
    single = [part.dropout(ids, 1) for part in parts]
    both = All(parts).dropout(ids, 1)
    order = [np.where(d.stage == NO_STAGE, np.inf, d.stage + d.fraction) for d in single]
    expected = np.where(order[0] <= order[1], single[0].stage, single[1].stage)
    np.testing.assert_array_equal(both.stage, expected)
    combined = np.where(both.stage == NO_STAGE, np.inf, both.stage + both.fraction)
    np.testing.assert_array_equal(combined, np.minimum(*order))
    assert set(np.unique(both.stage)) == {NO_STAGE, Stage.DOWNLOAD, Stage.COMPUTE, Stage.REPORT}


def test_models_of_different_names_are_independent() -> None:
    ids = np.arange(N_DEVICES)
    drops = [model("bernoulli").dropout(ids, 1).stage, model("heavy-tail").dropout(ids, 1).stage]
    both = np.mean((drops[0] != NO_STAGE) & (drops[1] != NO_STAGE))
    product = np.mean(drops[0] != NO_STAGE) * np.mean(drops[1] != NO_STAGE)
    assert abs(both - product) < 4 * np.sqrt(product / N_DEVICES)


def test_a_combined_profile_is_its_parts_each_as_it_is_alone() -> None:
    ids, times = ids_and_times(11, 4000)
    combined = PROFILES["combined"]
    assert isinstance(combined, Combined)
    sessions, dropout = (build(part, 7, utc_offset_s=0.0) for part in combined.parts)
    both = model("combined")
    np.testing.assert_array_equal(both.available(ids, times), sessions.available(ids, times))
    assert both.available(ids, times).mean() == pytest.approx(0.5, abs=0.04)
    np.testing.assert_array_equal(both.dropout(ids, 4).stage, dropout.dropout(ids, 4).stage)
    assert 0.25 < np.mean(both.dropout(ids, 4).stage != NO_STAGE) < 0.35


def test_each_group_follows_its_own_model() -> None:
    ids, times = ids_and_times(12, 4000)
    parts = ("diurnal", "bernoulli")
    group = np.arange(N_DEVICES) % 2
    grouped = Grouped(group.astype(np.uint8), [model(part) for part in parts])
    for code, part in enumerate(parts):
        rows = np.flatnonzero(group[ids] == code)
        for name in ("available", "until", "next_available"):
            whole = getattr(grouped, name)(ids, times)
            np.testing.assert_array_equal(whole[rows], getattr(model(part), name)(ids[rows], times[rows]))
        expected = model(part).dropout(ids[rows], 2)
        np.testing.assert_array_equal(grouped.dropout(ids, 2).stage[rows], expected.stage)
        np.testing.assert_array_equal(
            grouped.dropout(ids, np.full(ids.size, 2)).fraction[rows], expected.fraction
        )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Bernoulli("a", 0.1, 0.2, 0.5, 0.3)], "name two profiles or more"),
        (
            [Bernoulli("a", 0.1, 0.2, 0.5, 0.3), Diurnal("b", 0.15, 4.0, 2.0), Bernoulli("a", 0.1, 1, 0, 0)],
            "'a' twice",
        ),
        ([RegionalOutage("a", 8, 60.0, 60.0), RegionalOutage("b", 4, 60.0, 60.0)], "one profile of regional"),
    ],
)
def test_what_cannot_be_combined(parts: list[SimpleAvailability], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        Combined("ours", tuple(parts))
