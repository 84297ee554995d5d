"""Buckets, connections, and what counts as one address; time is handed to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.service.admission.arrivals import OF_DEVICE, Arrivals
from coordinator.service.admission.buckets import BucketPerAddress, Rate, TokenBucket, origin
from coordinator.service.admission.limits import ArrivalLimits, LimitsError


class TestTokenBucket:
    def test_holds_a_burst_and_fills_at_its_rate(self) -> None:
        bucket = TokenBucket(Rate(per_s=2.0, burst=3.0), 10.0)
        assert [bucket.take(10.0) for _ in range(4)] == [True, True, True, False]
        assert not bucket.take(10.25)
        assert bucket.take(10.5)
        assert not bucket.take(10.5)
        assert bucket.take(1000.0)

    def test_never_holds_more_than_its_burst(self) -> None:
        bucket = TokenBucket(Rate(per_s=2.0, burst=3.0), 0.0)
        assert [bucket.take(1e6) for _ in range(4)] == [True, True, True, False]

    def test_a_clock_that_goes_back_gives_nothing_away(self) -> None:
        bucket = TokenBucket(Rate(per_s=1.0, burst=1.0), 100.0)
        assert bucket.take(100.0)
        assert not bucket.take(50.0)
        assert not bucket.take(50.5)
        assert bucket.take(51.0)

    @given(st.lists(st.floats(0.0, 5.0), max_size=200), st.floats(0.1, 50.0), st.floats(1.0, 20.0))
    def test_lets_through_no_more_than_its_rate_in_any_case(
        self, pauses: list[float], per_s: float, burst: float
    ) -> None:
        bucket, now_s, taken = TokenBucket(Rate(per_s, burst), 0.0), 0.0, 0
        for pause_s in pauses:
            now_s += pause_s
            taken += bucket.take(now_s)
        assert taken <= burst + per_s * now_s + 1e-6


class TestBucketPerAddress:
    def test_each_address_has_its_own(self) -> None:
        buckets = BucketPerAddress(Rate(1.0, 1.0))
        assert buckets.take("192.0.2.1", 0.0)
        assert not buckets.take("192.0.2.1", 0.0)
        assert buckets.take("192.0.2.2", 0.0)

    def test_never_remembers_more_than_it_may(self) -> None:
        buckets = BucketPerAddress(Rate(0.001, 1.0), kept=100)
        for number in range(10_000):
            buckets.take(f"address {number}", 0.0)
        assert len(buckets) == 100
        assert not buckets.take("address 9999", 0.0)

    def test_forgets_whoever_has_a_full_bucket(self) -> None:
        buckets = BucketPerAddress(Rate(1.0, 1.0))
        for number in range(50):
            buckets.take(f"address {number}", 0.0)
        for number in range(50, 100):
            buckets.take(f"address {number}", 100.0)
        assert len(buckets) <= 51


@pytest.mark.parametrize(
    ("address", "counted_as"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a socket", "a socket"),
    ],
)
def test_what_counts_as_one_address(address: str, counted_as: str) -> None:
    assert origin(address) == counted_as


class TestArrivals:
    def test_counts_from_arrival_to_end(self) -> None:
        arrivals = Arrivals(ArrivalLimits(connections=2), 0.0)
        assert arrivals.arrived("192.0.2.1", 0.0) is None
        assert arrivals.arrived("192.0.2.2", 0.0) is None
        assert arrivals.arrived("192.0.2.3", 0.0) == "too many connections"
        arrivals.left("192.0.2.1")
        assert arrivals.arrived("192.0.2.3", 0.0) is None
        assert arrivals.open == 2

    def test_one_address_cannot_take_all_connections(self) -> None:
        arrivals = Arrivals(ArrivalLimits(connections=10, connections_per_address=2), 0.0)
        addresses = ["2001:db8::1", "2001:db8::2", "2001:db8::3"]
        assert [arrivals.arrived(one, 0.0) for one in addresses] == [
            None,
            None,
            "too many connections from one address",
        ]
        assert arrivals.arrived("2001:db8:1::1", 0.0) is None

    def test_one_address_that_is_too_fast_does_not_slow_others_down(self) -> None:
        limits = ArrivalLimits(arrivals_per_s=10.0, arrivals_per_s_per_address=2.0, burst_s=1.0)
        arrivals = Arrivals(limits, 0.0)
        mine = [arrivals.arrived("192.0.2.1", 0.0) for _ in range(100)]
        assert mine.count(None) == 2
        assert set(mine) == {None, "connections come too fast from one address"}
        theirs = [arrivals.arrived(f"192.0.2.{number}", 0.0) for number in range(2, 20)]
        assert theirs.count(None) == 8
        assert set(theirs) == {None, "connections come too fast"}
        assert arrivals.arrived("192.0.2.1", 1.0) is None

    def test_a_slow_rate_still_lets_somebody_in(self) -> None:
        arrivals = Arrivals(ArrivalLimits(arrivals_per_s=0.01), 0.0)
        assert arrivals.arrived("192.0.2.1", 0.0) is None
        assert arrivals.arrived("192.0.2.1", 99.0) == "connections come too fast"
        assert arrivals.arrived("192.0.2.1", 101.0) is None

    def test_a_device_that_has_proved_who_it_is_leaves_its_address_to_others(self) -> None:
        arrivals = Arrivals(ArrivalLimits(connections=9, connections_per_address=2), 0.0)
        for device in (7, 8):
            assert arrivals.arrived("192.0.2.1", 0.0) is None
            assert arrivals.proved("192.0.2.1", device, 0.0)
        strangers = [arrivals.arrived("192.0.2.1", 0.0) for _ in range(3)]
        assert strangers == [None, None, "too many connections from one address"]
        assert arrivals.open == 4
        # In whatever order a connection ends and its device is forgotten.
        arrivals.left("192.0.2.1")
        arrivals.forgotten("192.0.2.1", 7)
        arrivals.forgotten("192.0.2.1", 8)
        arrivals.left("192.0.2.1")
        assert arrivals.open == 2
        arrivals.left("192.0.2.1")
        assert arrivals.open == 1
        assert arrivals.arrived("192.0.2.1", 0.0) is None

    def test_one_device_does_not_make_room_without_end(self) -> None:
        arrivals = Arrivals(ArrivalLimits(connections_per_address=1), 0.0)
        for _ in range(OF_DEVICE):
            assert arrivals.arrived("192.0.2.1", 0.0) is None
            assert arrivals.proved("192.0.2.1", 7, 0.0)
        assert arrivals.arrived("192.0.2.1", 0.0) is None
        assert not arrivals.proved("192.0.2.1", 7, 0.0)
        assert arrivals.arrived("192.0.2.1", 0.0) == "too many connections from one address"
        arrivals.left("192.0.2.1")
        assert arrivals.arrived("192.0.2.1", 0.0) is None
        assert arrivals.proved("192.0.2.1", 8, 0.0)

    def test_devices_that_are_known_come_back_to_an_address_that_is_too_fast(self) -> None:
        limits = ArrivalLimits(arrivals_per_s_per_address=3.0, burst_s=1.0)
        arrivals = Arrivals(limits, 0.0)
        for device in (7, 8, 9):
            assert arrivals.arrived("192.0.2.1", 0.0) is None
            assert arrivals.proved("192.0.2.1", device, 0.0)
        assert arrivals.arrived("192.0.2.2", 0.0) is None
        assert arrivals.proved("192.0.2.2", 9, 0.0)  # it has moved, and is known there now
        back = [arrivals.arrived("192.0.2.1", 0.0) for _ in range(3)]
        assert back == [None, None, "connections come too fast from one address"]
        elsewhere = [arrivals.arrived("192.0.2.3", 0.0) for _ in range(4)]
        assert elsewhere == [None, None, None, "connections come too fast from one address"]
        # After 10 s each device may come back once more, however fast others are.
        assert [arrivals.arrived("192.0.2.1", 10.0) for _ in range(6)].count(None) == 3 + 2

    def test_those_turned_away_are_not_counted_as_open(self) -> None:
        arrivals = Arrivals(ArrivalLimits(connections=1), 0.0)
        for _ in range(5):
            arrivals.arrived("192.0.2.1", 0.0)
        assert arrivals.open == 1
        arrivals.left("192.0.2.1")
        assert arrivals.open == 0

    @pytest.mark.parametrize("name", ["connections", "connections_per_address", "arrivals_per_s"])
    def test_limits_that_let_nobody_in_are_refused(self, name: str) -> None:
        with pytest.raises(LimitsError, match=f"--{name.replace('_', '-')} 0 lets nobody in"):
            ArrivalLimits(**{name: 0})
