from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_profiles import quantities, units
from device_profiles.quantities import Quantity
from device_profiles.units import UnitError

QUANTITIES = [
    value
    for name, value in sorted(vars(quantities).items())
    if isinstance(value, Quantity) and name[0] != "_"
]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300 ms", 0.3),
        ("300ms", 0.3),
        (" 300  ms ", 0.3),
        ("1.5 s", 1.5),
        (".5 s", 0.5),
        ("1e-3 s", 1e-3),
        ("45 s", 45.0),
        ("20 min", 1200.0),
        ("20 minutes", 1200.0),
        ("2 h", 7200.0),
        ("1 d", 86400.0),
        ("4 us", 4e-6),
        ("4 µs", 4e-6),
        ("0 s", 0.0),
        ("1_000 s", 1000.0),
        ("010 s", 10.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("50 Mbit/s", 50e6),
        ("50 Mb/s", 50e6),
        ("50 Mbps", 50e6),
        ("50 MB/s", 400e6),
        ("1 KiB/s", 8192.0),
        ("1 kB/s", 8000.0),
        ("128 kbit/s", 128e3),
        ("10 Gbit/s", 10e9),
        ("9600 bit/s", 9600.0),
    ],
)
def test_rates_tell_bits_from_bytes(text: str, bps: float) -> None:
    assert units.parse_rate_bps(text) == bps


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64 KiB", 65536),
        ("64 kB", 64000),
        ("1.5 KiB", 1536),
        ("3 B", 3),
        ("8192 MiB", 2**33),
        ("1 GB", 10**9),
    ],
)
def test_sizes_are_whole_bytes(text: str, size: int) -> None:
    parsed = units.parse_size_bytes(text)
    assert parsed == size
    assert isinstance(parsed, int)


def test_the_other_quantities() -> None:
    assert units.parse_energy_j("10 mJ") == 0.01
    assert units.parse_energy_j("1 Wh") == 3600.0
    assert units.parse_power_w("900 mW") == 0.9
    assert units.parse_energy_per_bit_j("438 nJ/bit") == 4.38e-7
    assert units.parse_frequency_hz("2.8 GHz") == 2.8e9
    assert units.parse_charge_c("4500 mAh") == 16200.0
    assert units.parse_voltage_v("3.85 V") == 3.85
    assert units.parse_bytes_per_s("20 GB/s") == 20e9
    assert units.parse_flops_per_s("58 GFLOP/s") == 58e9
    assert units.parse_operations_per_s("63.3 Mop/s") == 63.3e6


@pytest.mark.parametrize(
    ("text", "value"), [("30%", 0.3), ("0.3", 0.3), ("100%", 1.0), ("0", 0.0), ("1e-3", 1e-3)]
)
def test_fractions(text: str, value: float) -> None:
    assert units.parse_fraction(text) == value


def test_a_ratio_may_exceed_the_whole() -> None:
    assert units.parse_ratio("130%") == 1.3
    assert units.parse_ratio("2.5") == 2.5


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (units.parse_duration_s, "45", "'45' has no unit; write '45 s'"),
        (units.parse_rate_bps, "50", "'50' has no unit; write '50 Mbit/s'"),
        (units.parse_rate_bps, "50 Mbit", "'50 Mbit' is a size in bits, not a rate; write '50 Mbit/s'"),
        (units.parse_rate_bps, "50 MiB", "'50 MiB' is a size in bytes, not a rate; write '50 MiB/s'"),
        (units.parse_size_bytes, "64", "'64' has no unit; write '64 KiB'"),
        (units.parse_size_bytes, "5 MB/s", "'5 MB/s' is a rate, not a size in bytes; write '5 MB'"),
        (units.parse_size_bytes, "64 kbit", "'64 kbit' is a size in bits, not a size in bytes; write '8 kB'"),
        (units.parse_duration_s, "5 Mbit/s", "'5 Mbit/s' is a rate, not a duration; write '5 s'"),
        (units.parse_duration_s, "5 S", "'5 S': unknown unit 'S'; write '5 s'"),
        (units.parse_duration_s, "5 parsec", "'5 parsec': unknown unit 'parsec'; write one of d, h, min, s"),
        (units.parse_duration_s, "1,5 s", "'1,5 s': the decimal sign is a point; write '1.5 s'"),
        (units.parse_duration_s, "-5 s", "'-5 s' is negative; a duration is zero or more"),
        (units.parse_duration_s, "1:30", "'1:30' is not a duration; write a number and a unit: '90 s'"),
        (units.parse_duration_s, "nan s", "'nan s' is not a duration; write one such as '5 s'"),
        (units.parse_duration_s, "inf s", "'inf s' is not a duration; write one such as '5 s'"),
        (units.parse_duration_s, "", "'' is not a duration; write one such as '5 s'"),
        (units.parse_size_bytes, "1.5 B", "'1.5 B' is not a whole number of B; write '2 B'"),
        (units.parse_fraction, "30", "'30' is more than the whole; write '30%'"),
        (units.parse_fraction, "130%", "'130%' is more than the whole; write at most '100%'"),
        (units.parse_fraction, "-1%", "'-1%' is negative; a ratio is zero or more"),
        (units.parse_fraction, "a third", "'a third' is not a ratio; write a percentage such as '30%'"),
        (units.parse_number, "nan", "'nan' is not a number; write one, such as '0.5' or '1e-3'"),
        (units.parse_number, "0,5", "'0,5' is not a number; write '0.5'"),
        (units.parse_number, "45 s", "'45 s' is not a number; write '45'"),
    ],
)
def test_errors_say_what_to_write(parse: object, text: str, message: str) -> None:
    assert callable(parse)
    with pytest.raises(UnitError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["64 KB", "64K", "64 k", "64 M"])
def test_sizes_with_two_meanings_are_refused(text: str) -> None:
    with pytest.raises(UnitError, match="write '"):
        units.parse_size_bytes(text)


@pytest.mark.parametrize("text", ["50 mbps", "50 Kbps", "50 mb/s", "50 KB/s", "50 M"])
def test_rates_with_two_meanings_are_refused(text: str) -> None:
    with pytest.raises(UnitError, match="for bits, 'kB/s' or 'MB/s' for bytes"):
        units.parse_rate_bps(text)


@pytest.mark.parametrize("text", ["1e400 s", "1e31 s", "9" * 99 + " s", "1" * 200 + " s", "1e9999 d"])
def test_absurd_numbers_are_refused(text: str) -> None:
    with pytest.raises(UnitError):
        units.parse_duration_s(text)


def outcome(quantity: Quantity, text: str) -> float | str:
    try:
        return quantity.parse(text)
    except UnitError as error:
        return str(error)


@pytest.mark.slow
@given(st.text(max_size=120))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for quantity in QUANTITIES:
        result = outcome(quantity, text)
        assert "\n" not in result if isinstance(result, str) else math.isfinite(result) and result >= 0


@given(st.floats(min_value=0, max_value=1e15))
def test_written_quantities_read_back_exactly(value: float) -> None:
    for quantity in QUANTITIES:
        if not quantity.whole:
            assert quantity.parse(quantity.write(value)) == value


@given(st.integers(min_value=0, max_value=2**53))
def test_written_sizes_read_back_exactly(value: int) -> None:
    assert units.parse_size_bytes(quantities.SIZE.write(value)) == value


@given(st.floats(min_value=0, max_value=1e6))
def test_written_ratios_read_back_exactly(value: float) -> None:
    assert units.parse_ratio(units.write_ratio(value)) == value


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        (quantities.DURATION, 0.3, "300 ms"),
        (quantities.DURATION, 45.0, "45 s"),
        (quantities.DURATION, 0.0, "0 s"),
        (quantities.DURATION, 1234.5, "1234.5 s"),
        (quantities.DURATION, 86400.0, "1 d"),
        (quantities.RATE, 29.5e6, "29.5 Mbit/s"),
        (quantities.RATE, 1e10, "10 Gbit/s"),
        (quantities.SIZE, 65536, "64 KiB"),
        (quantities.SIZE, 1001, "1001 B"),
    ],
)
def test_quantities_are_written_short(quantity: Quantity, value: float, text: str) -> None:
    assert quantity.write(value) == text


def test_figures_for_people() -> None:
    assert units.format_duration(0.3124) == "312 ms"
    assert units.format_duration(12.44) == "12.4 s"
    assert units.format_duration(90.0) == "90 s"
    assert units.format_duration(5400.0) == "90 min"
    assert units.format_duration(0.0) == "0 s"
    assert units.format_duration(0.9998) == "1 s"
    assert units.format_duration(0.9994) == "999 ms"
    assert units.format_bytes(1464) == "1.43 KiB"
    assert units.format_bytes(2**20 - 1) == "1 MiB"
    assert units.format_bytes(1000 * 1024) == "1000 KiB"
    assert units.format_bytes(0) == "0 B"
    assert units.format_rate(29.5e6) == "29.5 Mbit/s"
